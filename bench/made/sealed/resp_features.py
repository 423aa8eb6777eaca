"""Features come from a store that speaks a little of Redis' protocol and answers after 6 ms; what it answers is JSON, which the two workers parse."""
import asyncio
import json
import random
import socket
import subprocess
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "waiting/socket"
RANKS = 1
BORDERLINE = True
WIDTH = 8000


def serve():
    values = [json.dumps([random.gauss(0, 1) for _ in range(WIDTH)]).encode() for _ in range(40)]

    async def client(reader, writer):
        try:
            while True:
                count = int((await reader.readline())[1:])
                words = []
                for _ in range(count):
                    size = int((await reader.readline())[1:])
                    words.append((await reader.readexactly(size + 2))[:-2])
                await asyncio.sleep(0.006)
                value = values[int(words[1].split(b":")[1]) % len(values)]
                writer.write(b"$%d\r\n%s\r\n" % (len(value), value))
                await writer.drain()
        except (ValueError, ConnectionError, asyncio.IncompleteReadError):
            writer.close()

    async def main():
        server = await asyncio.start_server(client, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, lambda: (sys.stdin.read(), loop.call_soon_threadsafe(stop.set)))
        await stop.wait()

    stop = asyncio.Event()
    asyncio.run(main())


class Store:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.file = self.socket.makefile("rb")

    def get(self, key):
        self.socket.sendall(b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(key), key))
        size = int(self.file.readline()[1:])
        return self.file.read(size + 2)[:-2]


class Remote(Dataset):
    def __init__(self, port):
        self.port, self.store = port, None

    def __len__(self):
        return 50_000

    def __getitem__(self, i):
        self.store = self.store or Store(self.port)
        a = time.perf_counter()
        raw = self.store.get(b"user:%d" % i)
        b = time.perf_counter()
        x = torch.tensor(json.loads(raw))
        return x.sign() * x.abs().sqrt(), i % 2, b - a, time.perf_counter() - b


def main():
    folder()
    server = subprocess.Popen([sys.executable, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        port = int(server.stdout.readline())
        torch.set_num_threads(1)
        model = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, 2))
        optimizer = torch.optim.Adam(model.parameters())
        loader = DataLoader(Remote(port), batch_size=24, shuffle=True, num_workers=2)
        rows = []
        begin = last = time.perf_counter()
        for x, y, asked, parsed in watch(loader):
            got = time.perf_counter()
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            now = time.perf_counter()
            rows.append((now - last, got - last, asked.sum().item() / 2, parsed.sum().item() / 2))
            last = now
            if now - begin > 21.5 and len(rows) > 75:
                break
        del loader
    finally:
        server.stdin.close()
        try:
            server.wait(3)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
    step, wait, asked, parsed = torch.tensor(rows[10:]).mean(0).tolist()
    tell(step_s=step, waiting_for_input_s=wait, cause_s=asked, parsing_s=parsed, steps=len(rows))


if __name__ == "__main__":
    serve() if sys.argv[1] == "--serve" else main()
