"""Land cover from map tiles, which a tile server gives over HTTP; fsspec fetches them in the loader's workers."""
import io
import subprocess
import sys
import time

import fsspec
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from bclock import Clock
from case import folder, tell, watch

CAUSE = "waiting/socket"
RANKS = 1
BORDERLINE = False

SERVER = """
import io, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import numpy as np

class Tiles(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        row, column = self.path.split("/")[-2:]
        time.sleep(0.06)                  # renders it, or asks the next cache
        rng = np.random.default_rng(int(row) * 1000 + int(column))
        file = io.BytesIO()
        np.save(file, rng.integers(0, 255, (4, 64, 64), dtype=np.uint8))
        body = file.getvalue()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *a):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Tiles)
print(server.server_port, flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
"""


class TileSet(Dataset):
    def __init__(self, url, clock):
        self.url, self.clock, self.fs = url, clock, None

    def __len__(self):
        return 100 * 60

    def __getitem__(self, i):
        if self.fs is None:
            self.fs = fsspec.filesystem("http")
        with self.clock.part():
            raw = self.fs.cat_file(f"{self.url}/{i // 100}/{i % 100}")
        tile = torch.from_numpy(np.load(io.BytesIO(raw))).float() / 255
        return tile, (tile[3] > tile[0]).long()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(4, 24, 3, 2, 1), nn.ReLU(), nn.Conv2d(24, 48, 3, 2, 1), nn.ReLU())
        self.up = nn.Sequential(nn.ConvTranspose2d(48, 24, 2, 2), nn.ReLU(), nn.ConvTranspose2d(24, 2, 2, 2))

    def forward(self, x):
        return self.up(self.down(x))


def main():
    torch.set_num_threads(1)
    root = folder()
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    url = f"http://127.0.0.1:{server.stdout.readline().strip()}/tiles"
    clock = Clock(root / "fetch")
    loader = DataLoader(TileSet(url, clock), batch_size=4, shuffle=True, num_workers=2)
    model = Net()
    opt = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    step = waiting = 0.0
    n, start = 0, time.perf_counter()
    mark = start
    for x, y in watch(loader):
        got = time.perf_counter()
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        n += 1
        done = time.perf_counter()
        waiting, step, mark = waiting + got - mark, step + done - got, done
        if mark - start > 24:
            break
    wall = time.perf_counter() - start
    each = clock.seconds()
    tell(wall=wall, steps=n, step=step, waiting=waiting, cause=sum(each) / 2, each=each)
    server.kill()


if __name__ == "__main__":
    main()
