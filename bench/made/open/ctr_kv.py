"""Click model whose Dataset asks a key-value service for each row, one GET per sample, over TCP (the N+1 pattern);
the workers wait for the answers."""
import multiprocessing
import socket
import socketserver
import struct
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

from case import tell, watch

CAUSE = "waiting/socket"
RANKS = 1
BORDERLINE = False
USERS, WIDTH = 40_000, 64


class Handler(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True

    def handle(self):
        for line in self.rfile:  # b"GET user:123\r\n"
            key = int(line.split(b":")[1])
            time.sleep(0.0045)  # the service is in another region
            row = self.server.table[key % len(self.server.table)].tobytes()
            self.wfile.write(b"$%d\r\n" % len(row) + row)


class Server(socketserver.ThreadingTCPServer):
    daemon_threads, allow_reuse_address, request_queue_size = True, True, 16


def serve(ports):
    with Server(("127.0.0.1", 0), Handler) as server:
        server.table = np.random.default_rng(0).standard_normal((2000, WIDTH), dtype=np.float32)
        ports.put(server.server_address[1])
        server.serve_forever()


class Clicks(Dataset):
    def __init__(self, port):
        self.port, self.stream = port, None

    def __len__(self):
        return 48 * 200

    def __getitem__(self, i):
        if self.stream is None:
            sock = socket.create_connection(("127.0.0.1", self.port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.stream = sock.makefile("rwb")
        asked = time.perf_counter()
        self.stream.write(b"GET user:%d\r\n" % (i * 7919 % USERS))
        self.stream.flush()
        size = int(self.stream.readline()[1:])
        row = np.frombuffer(self.stream.read(size), np.float32).copy()
        return {"x": row, "y": np.float32(row[0] > 0), "rpc": time.perf_counter() - asked}


def run():
    torch.set_num_threads(1)
    ports = multiprocessing.Queue()
    service = multiprocessing.Process(target=serve, args=(ports,), daemon=True)
    service.start()
    port = ports.get()
    model = nn.Sequential(nn.Linear(WIDTH, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 512), nn.GELU(), nn.Linear(512, 1))
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    loader = watch(DataLoader(Clicks(port), batch_size=48, num_workers=2, shuffle=True, drop_last=True))
    totals = dict(step=0.0, waiting=0.0, cause=0.0)
    n, t0 = 0, time.perf_counter()
    for _ in range(1):
        mark = time.perf_counter()
        for batch in loader:
            ready = time.perf_counter()
            totals["waiting"] += ready - mark
            loss = F.binary_cross_entropy_with_logits(model(batch["x"]).squeeze(1), batch["y"])
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            totals["cause"] += batch["rpc"].sum().item() / 2  # two workers
            n += 1
            mark = time.perf_counter()
            totals["step"] += mark - ready
    tell(wall=time.perf_counter() - t0, steps=n, **totals)
    service.terminate()
    service.join()


if __name__ == "__main__":
    run()
