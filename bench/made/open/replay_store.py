"""Reinforcement learning from a replay store behind a redis-like socket: an own thread asks for transitions one by one."""

import pickle
import queue
import socket
import struct
import subprocess
import sys
import threading
import time

import numpy as np
import torch
from torch import nn

from case import folder, tell, watch

CAUSE = "waiting/socket"
RANKS = 1
BORDERLINE = False

STORE = """
import pickle, random, socket, struct, time, zlib
import numpy as np
rng = np.random.default_rng(0)
frames = [zlib.compress(np.cumsum(rng.integers(-1, 2, (4, 84, 84)), axis=2).astype("u1").tobytes()) for _ in range(64)]
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
peer, _ = listener.accept()
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
stream = peer.makefile("rb")
while line := stream.readline():
    key = int(line.split()[1])
    time.sleep(0.008)                                # the round trip to the other rack
    answer = pickle.dumps((frames[key % 64], key % 6, float(key % 3)))
    peer.sendall(struct.pack("<I", len(answer)) + answer)
"""


class Replay(threading.Thread):
    def __init__(self, port: int, batch: int) -> None:
        super().__init__(daemon=True)
        self.connection = socket.create_connection(("127.0.0.1", port))
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.batch = batch
        self.ready: queue.Queue = queue.Queue(maxsize=3)
        self.done = False

    def exactly(self, count: int) -> bytes:
        parts = []
        while count:
            part = self.connection.recv(min(count, 65536))
            if not part:
                raise ConnectionError("the store is gone")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def transition(self, key: int):
        import zlib

        began = time.perf_counter()
        self.connection.sendall(f"GET {key}\n".encode())
        (length,) = struct.unpack("<I", self.exactly(4))
        raw = self.exactly(length)
        waited = time.perf_counter() - began
        frames, action, reward = pickle.loads(raw)
        frames = np.frombuffer(zlib.decompress(frames), dtype=np.uint8).reshape(4, 84, 84).astype(np.float32)
        # random shift, as DrQ does it
        dy, dx = np.random.randint(0, 9, 2)
        frames = np.pad(frames, ((0, 0), (4, 4), (4, 4)), mode="edge")[:, dy : dy + 84, dx : dx + 84]
        for plane in frames:
            plane -= np.median(plane)
            plane /= np.percentile(np.abs(plane), 95) + 1.0
        return frames, action, reward, waited

    def run(self) -> None:
        try:
            while not self.done:
                began = time.perf_counter()
                rows = [self.transition(int(k)) for k in np.random.randint(0, 1 << 20, self.batch)]
                frames, actions, rewards, waited = zip(*rows)
                took = time.perf_counter() - began
                batch = torch.from_numpy(np.stack(frames)), torch.tensor(actions), torch.tensor(rewards), sum(waited), took
                while not self.done:
                    try:
                        self.ready.put(batch, timeout=0.5)
                        break
                    except queue.Full:
                        continue
        finally:
            self.connection.close()

    def __iter__(self):
        self.start()
        while True:
            yield self.ready.get()


def main() -> None:
    torch.set_num_threads(1)
    folder()
    store = subprocess.Popen([sys.executable, "-c", STORE], stdout=subprocess.PIPE, text=True, start_new_session=True)
    replay = Replay(int(store.stdout.readline()), batch=20)
    try:
        q = nn.Sequential(nn.Conv2d(4, 16, 8, stride=4), nn.ReLU(), nn.Conv2d(16, 16, 4, stride=2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(6))
        q(torch.zeros(1, 4, 84, 84))
        optimizer = torch.optim.Adam(q.parameters(), lr=1e-4)
        rows = []
        begun = last = time.perf_counter()
        for frames, actions, rewards, waited, took in watch(replay, batch_size=20):
            got = time.perf_counter()
            value = q(frames).gather(1, actions[:, None]).squeeze(1)
            loss = nn.functional.smooth_l1_loss(value, rewards)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            now = time.perf_counter()
            rows.append((now - last, got - last, waited, took))
            last = now
            if len(rows) >= 80 and now - begun > 22:
                break
    finally:
        replay.done = True
        replay.join(5)
        store.terminate()
        store.wait()
    step_s, wait_s, cause_s, reader_s = np.mean(rows[10:], axis=0)
    tell(step_s=step_s, waiting_for_input_s=wait_s, cause_s=cause_s, steps=len(rows) - 10, reader_s=reader_s)


if __name__ == "__main__":
    main()
