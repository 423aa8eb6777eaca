"""What a household will watch next: its profile and those of the films it has seen are asked from the store of features; two towers."""
import multiprocessing
import socket
import socketserver
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import applied, long_enough, tell, watch

CAUSE = "waiting/socket"
RANKS = 1

WIDTH, SEEN, BATCH = 64, 3, 8


def store(port):
    """Played: the store is in another zone, and each answer takes some milliseconds."""
    table = np.random.default_rng(0).normal(size=(1000, WIDTH)).astype(np.float32)

    class Answer(socketserver.StreamRequestHandler):
        def handle(self):
            for line in self.rfile:
                keys = [int(key) % 1000 for key in line.split()]
                time.sleep(0.0035)
                self.wfile.write(table[keys].tobytes())

    class Store(socketserver.ThreadingTCPServer):
        daemon_threads = allow_reuse_address = True

    server = Store(("127.0.0.1", 0), Answer)
    port.send(server.server_address[1])
    server.serve_forever()


class Nights(Dataset):
    def __init__(self, port):
        self.port, self.line = port, None

    def __len__(self):
        return 1000000

    def ask(self, *keys):
        if self.line is None:
            self.line = socket.create_connection(("127.0.0.1", self.port))
            self.line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.answers = self.line.makefile("rb")
        self.line.sendall((" ".join(map(str, keys)) + "\n").encode())
        return np.frombuffer(self.answers.read(4 * WIDTH * len(keys)), np.float32).reshape(len(keys), WIDTH)

    def keys(self, i):
        return [i * 7919 % 100003, *(i * 31 % 1013 + 97 * k for k in range(SEEN))]

    def __getitem__(self, i):
        rows = np.concatenate([self.ask(key) for key in self.keys(i)])
        return torch.from_numpy(rows), i * 13 % 400


class NightsAtOnce(Nights):
    def __getitems__(self, numbers):
        rows = self.ask(*(key for i in numbers for key in self.keys(i))).reshape(len(numbers), 1 + SEEN, WIDTH)
        return [(torch.tensor(own), i * 13 % 400) for own, i in zip(rows, numbers)]


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.household = nn.Sequential(nn.Linear(WIDTH * (1 + SEEN), 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 128))
        self.films = nn.Embedding(20000, 128)

    def forward(self, rows):
        return self.household(rows.flatten(1)) @ self.films.weight.T


def main():
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=store, args=(there,), daemon=True)
    server.start()
    torch.set_num_threads(applied("fewer_threads", 1))
    torch.manual_seed(0)
    workers = applied("more_workers", 1)
    nights = (NightsAtOnce if applied("nearer_service", False) else Nights)(here.recv())
    loader = DataLoader(
        nights, batch_size=BATCH, num_workers=workers, prefetch_factor=applied("longer_queue", 2) if workers else None,
        persistent_workers=applied("staying_workers", False) and workers > 0,
    )
    model = Towers()
    opt = torch.optim.SGD(model.parameters(), 0.05)
    marks = []
    for rows, film in watch(loader):
        loss = nn.functional.cross_entropy(model(rows), film)
        opt.zero_grad()
        loss.backward()
        opt.step()
        marks.append(time.perf_counter())
        if long_enough(marks):
            break
    tell(step_s=(marks[-1] - marks[9]) / (len(marks) - 10), steps=len(marks) - 10)
    server.terminate()
    server.join()


if __name__ == "__main__":
    main()
