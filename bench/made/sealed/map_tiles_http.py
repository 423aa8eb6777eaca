"""Road detection on map tiles, fetched with aiohttp from a tile server; two workers, four requests each at a time."""
import asyncio
import io
import subprocess
import sys
import time

import aiohttp
import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from case import folder, tell, watch

CAUSE = "waiting/socket"
RANKS = 1
BORDERLINE = False

SERVER = """
import http.server, os, sys, threading, time
tiles = [open(os.path.join(sys.argv[1], name), "rb").read() for name in sorted(os.listdir(sys.argv[1]))]

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        tile = tiles[sum(map(int, self.path.split("/")[-2:])) % len(tiles)]
        time.sleep(0.18)                              # the renderer behind it
        self.send_response(200)
        self.send_header("Content-Length", str(len(tile)))
        self.end_headers()
        self.wfile.write(tile)
    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
print(server.server_port, flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
os._exit(0)
"""


class Tiles(IterableDataset):
    def __init__(self, url, zoom=14):
        self.url, self.zoom = url, zoom
        self.asking = torch.zeros(2, dtype=torch.float64).share_memory_()

    async def ask(self, session, x, y):
        async with session.get(f"{self.url}/{self.zoom}/{x}/{y}") as answer:
            answer.raise_for_status()
            return await answer.read()

    def __iter__(self):
        info = get_worker_info()
        rng = np.random.default_rng(info.seed)
        loop = asyncio.new_event_loop()
        session = loop.run_until_complete(self.session())
        while True:
            where = rng.integers(0, 16384, (4, 2)).tolist()
            began = time.perf_counter()
            answers = loop.run_until_complete(self.all(session, where))
            self.asking[info.id] += time.perf_counter() - began
            for answer in answers:
                tile = np.asarray(Image.open(io.BytesIO(answer)))
                yield torch.from_numpy(tile.astype(np.float32) / 255)[None], torch.from_numpy((tile > 200).astype(np.float32))[None]

    async def session(self):
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=4))

    async def all(self, session, where):
        return await asyncio.gather(*(self.ask(session, x, y) for x, y in where))


def draw(root, count=20):
    root.mkdir()
    rng = np.random.default_rng(4)
    for i in range(count):
        tile = rng.integers(60, 140, (128, 128), dtype=np.uint8)
        for _ in range(4):
            a, b = rng.integers(0, 120, 2)
            tile[a : a + 5], tile[:, b : b + 5] = 230, 230
        Image.fromarray(tile).save(root / f"{i:02d}.png")


def main():
    torch.set_num_threads(1)
    root = folder() / "tiles"
    draw(root)
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    data = Tiles("http://127.0.0.1:" + server.stdout.readline().strip())
    model = nn.Sequential(nn.Conv2d(1, 4, 5, padding=2), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 1))
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    step = waiting = 0.0
    n, start = 0, time.perf_counter()
    mark = start
    for tile, road in watch(DataLoader(data, batch_size=8, num_workers=2)):
        got = time.perf_counter()
        loss = nn.functional.binary_cross_entropy_with_logits(model(tile), road)
        opt.zero_grad()
        loss.backward()
        opt.step()
        n += 1
        waiting += got - mark
        mark = time.perf_counter()
        step += mark - got
        if mark - start > 23:
            break
    wall = time.perf_counter() - start
    tell(wall=wall, steps=n, step=step, waiting=waiting, cause=float(data.asking.sum()) / 2, asking=data.asking.tolist())
    server.stdin.close()
    server.wait()


if __name__ == "__main__":
    main()
