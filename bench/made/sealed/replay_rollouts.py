"""Q-learning from a replay buffer in shared memory: a process plays episodes and stores them, the learner samples. The
player takes the buffer for a whole episode, so that no half episode is ever sampled."""
import time

import numpy as np
import torch
import torch.multiprocessing as mp
from torch import nn

from case import folder, tell, watch

CAUSE = "waiting/lock"
RANKS = 1
BORDERLINE = False
SIZE, OBSERVED = 40_000, 24


class Replay:
    def __init__(self):
        self.state = torch.zeros(SIZE, OBSERVED).share_memory_()
        self.after = torch.zeros(SIZE, OBSERVED).share_memory_()
        self.action = torch.zeros(SIZE, dtype=torch.int64).share_memory_()
        self.reward = torch.zeros(SIZE).share_memory_()
        self.filled = mp.Value("l", 0, lock=False)
        self.guard = mp.Lock()
        self.waited = 0.0

    def batches(self, size):
        while True:
            t = time.perf_counter()
            with self.guard:
                self.waited += time.perf_counter() - t
                i = torch.randint(min(self.filled.value, SIZE), (size,))
                batch = self.state[i], self.action[i], self.reward[i], self.after[i]
            yield batch


def play(replay, moves=700):
    rng = np.random.default_rng(1)
    push = rng.normal(size=(4, OBSERVED)).astype(np.float32)
    drift = (rng.normal(size=(OBSERVED, OBSERVED)) / 6).astype(np.float32)
    while True:
        state = rng.normal(size=OBSERVED).astype(np.float32)
        with replay.guard:
            for _ in range(moves):
                at = replay.filled.value % SIZE
                action = int(rng.integers(4))
                after = state
                for _ in range(12):  # substeps of the simulation
                    after = np.tanh(after + 0.1 * (drift @ after) + 0.05 * push[action])
                replay.state[at] = torch.from_numpy(state)
                replay.after[at] = torch.from_numpy(after)
                replay.action[at], replay.reward[at] = action, float(after[0] - abs(after[1]))
                replay.filled.value += 1
                state = after
        best = [float(np.abs(push @ rng.normal(size=OBSERVED)).max()) for _ in range(1500)]  # exploration noise of the next episode
        push *= 1 + 1e-4 * best[0]


def main():
    torch.set_num_threads(1)
    folder()
    replay = Replay()
    player = mp.get_context("fork").Process(target=play, args=(replay,), daemon=True)
    player.start()
    while replay.filled.value < 1400:
        time.sleep(0.05)
    net = nn.Sequential(nn.Linear(OBSERVED, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
    target = nn.Sequential(nn.Linear(OBSERVED, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
    optimizer = torch.optim.Adam(net.parameters(), 3e-4)
    step = waiting = 0.0
    n, replay.waited, start = 0, 0.0, time.perf_counter()
    mark = start
    for state, action, reward, after in watch(replay.batches(512)):
        got = time.perf_counter()
        with torch.no_grad():
            goal = reward + 0.98 * target(after).max(1).values
        loss = nn.functional.smooth_l1_loss(net(state).gather(1, action.unsqueeze(1)).squeeze(1), goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        n += 1
        if n % 50 == 0:
            target.load_state_dict(net.state_dict())
        now = time.perf_counter()
        waiting, step, mark = waiting + got - mark, step + now - got, now
        if now - start > 25:
            break
    tell(wall=time.perf_counter() - start, steps=n, step=step, waiting=waiting, cause=replay.waited, episodes=replay.filled.value / 700)
    player.terminate()


if __name__ == "__main__":
    main()
