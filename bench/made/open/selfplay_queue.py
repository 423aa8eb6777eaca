"""Q-learning on a grid world in many rooms: actors play without pause in processes of their own and write what they saw
to a ring in shared memory; the learner draws from it and never waits for them. The number of actors is the paper's."""
import time

import torch
import torch.multiprocessing as mp
from torch import nn

from case import tell, watch

CAUSE = "client_cpu/cores"
RANKS = 1
BORDERLINE = False

ACTORS, RING, SIDE, MOVES = 9, 4096, 12, 4


def play(actor, frames, taken, rewards, stop):
    """One actor: random walks with a search for the nearest goal, written to its part of the ring."""
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(actor)
    part = RING // ACTORS
    slot = 0
    while not stop.value:
        room = torch.rand(2, SIDE, SIDE, generator=g)
        place = int(torch.randint(SIDE * SIDE, (1,), generator=g))
        for _ in range(20):
            row, column = divmod(place, SIDE)
            room[1].zero_()
            room[1, row, column] = 1
            move = int(torch.randint(MOVES, (1,), generator=g))
            row = min(max(row + (move == 0) - (move == 1), 0), SIDE - 1)
            column = min(max(column + (move == 2) - (move == 3), 0), SIDE - 1)
            place = row * SIDE + column
            where = actor * part + slot
            frames[where], taken[where], rewards[where] = room, move, room[0, row, column]
            slot = (slot + 1) % part


def draws(frames, taken, rewards, count, batch=192):
    g = torch.Generator().manual_seed(99)
    for _ in range(count):
        rows = torch.randint(RING, (batch,), generator=g)
        yield frames[rows], taken[rows], rewards[rows]


class Q(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(2, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 24, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(24 * 36, 64), nn.ReLU(), nn.Linear(64, MOVES)
        )

    def forward(self, x):
        return self.net(x)


def main():
    torch.set_num_threads(1)
    frames = torch.rand(RING, 2, SIDE, SIDE).share_memory_()
    taken = torch.zeros(RING, dtype=torch.int64).share_memory_()
    rewards = torch.zeros(RING).share_memory_()
    context = mp.get_context("fork")
    stop = context.Value("b", 0)
    actors = [context.Process(target=play, args=(a, frames, taken, rewards, stop), daemon=True) for a in range(ACTORS)]
    for a in actors:
        a.start()
    model = Q()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    step = waiting = cpu = 0.0
    n, start = 0, time.perf_counter()
    mark, cpu_start = start, time.thread_time()
    for x, move, reward in watch(draws(frames, taken, rewards, 5000)):
        got = time.perf_counter()
        value = model(x).gather(1, move[:, None]).squeeze(1)
        loss = nn.functional.mse_loss(value, reward)
        opt.zero_grad()
        loss.backward()
        opt.step()
        n += 1
        waiting += got - mark
        mark = time.perf_counter()
        step += mark - got
        if mark - start > 24:
            break
    wall, cpu = time.perf_counter() - start, time.thread_time() - cpu_start
    stop.value = 1
    for a in actors:
        a.join(5)
    tell(wall=wall, steps=n, step=step, waiting=waiting, own_cpu=cpu, cause=wall - cpu)


if __name__ == "__main__":
    main()
