"""Connect Four: eight actors play in processes of their own and fill a shared replay table beside one learner, on two
cores; the learner has its data at once and waits for a core."""
CAUSE = "client_cpu/cores"
RANKS = 1
BORDERLINE = False

import multiprocessing as mp
import random
import time

import numpy as np
import torch
from torch import nn

from case import tell, watch

SLOTS, ACTORS = 20_000, 8


def won(board, row, column):
    me = board[row][column]
    for dr, dc in ((0, 1), (1, 0), (1, 1), (1, -1)):
        run = 1
        for sign in (1, -1):
            r, c = row + sign * dr, column + sign * dc
            while 0 <= r < 6 and 0 <= c < 7 and board[r][c] == me:
                run, r, c = run + 1, r + sign * dr, c + sign * dc
        if run >= 4:
            return True
    return False


def act(number, raw, results, stop):
    boards = np.frombuffer(raw, np.int8).reshape(SLOTS, 6, 7)
    rng, slot = random.Random(number), number
    while not stop.is_set():
        board, history, player, winner = [[0] * 7 for _ in range(6)], [], 1, 0
        for _ in range(42):
            column = rng.choice([c for c in range(7) if board[0][c] == 0])
            row = max(r for r in range(6) if board[r][column] == 0)
            board[row][column] = player
            history.append([line[:] for line in board])
            if won(board, row, column):
                winner = player
                break
            player = -player
        for position in history:
            boards[slot], results[slot] = position, winner
            slot = (slot + ACTORS) % SLOTS


class Replay:
    def __init__(self, raw, results, steps):
        self.boards = np.frombuffer(raw, np.int8).reshape(SLOTS, 6, 7)
        self.results, self.steps = np.frombuffer(results, np.float32), steps

    def __iter__(self):
        rng = np.random.default_rng(0)
        for _ in range(self.steps):
            rows = rng.integers(0, SLOTS, 256)
            board = torch.from_numpy(self.boards[rows])
            yield torch.stack([board == 1, board == -1], 1).float(), torch.from_numpy(self.results[rows])


def main():
    torch.set_num_threads(1)
    raw, results, stop = mp.RawArray("b", SLOTS * 42), mp.RawArray("f", SLOTS), mp.Event()
    actors = [mp.Process(target=act, args=(i, raw, results, stop), daemon=True) for i in range(ACTORS)]
    for actor in actors:
        actor.start()
    time.sleep(3)  # let the table fill
    net = nn.Sequential(
        nn.Conv2d(2, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(32 * 42, 64), nn.ReLU(), nn.Linear(64, 1), nn.Tanh(),
    )  # fmt: skip
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    step_s = wait_s = 0.0
    steps, start, cpu = 0, time.perf_counter(), time.thread_time()
    last = start
    for boards, result in watch(Replay(raw, results, 2000)):
        got = time.perf_counter()
        wait_s += got - last
        loss = nn.functional.mse_loss(net(boards)[:, 0], result)
        opt.zero_grad()
        loss.backward()
        opt.step()
        steps += 1
        last = time.perf_counter()
        step_s += last - got
        if steps >= 100 and last - start > 25:
            break
    wall, cpu = time.perf_counter() - start, time.thread_time() - cpu
    delay = int(open("/proc/self/schedstat").read().split()[1]) / 1e9
    tell(steps=steps, wall_s=wall, step_s=step_s, wait_s=wait_s, without_core_s=wall - cpu, run_delay_s_of_process=delay)
    stop.set()
    for actor in actors:
        actor.join()


if __name__ == "__main__":
    main()
