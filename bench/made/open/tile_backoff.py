"""Map tiles through requests with urllib3's Retry: the tile server answers 503 twice for each tile that it has to render, and the
workers sleep through the back-off between their tries."""

import multiprocessing
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import requests
import torch
from requests.adapters import HTTPAdapter
from torch import nn
from torch.utils.data import DataLoader, Dataset
from urllib3.util.retry import Retry

from case import folder, tell, watch

CAUSE = "waiting/sleep"
RANKS = 1
BORDERLINE = False
SIZE, BATCH = 64, 4
slept = [0.0]


class Tiles(BaseHTTPRequestHandler):
    """Played: the first two askers of a tile only put it into the renderer's queue."""

    protocol_version, disable_nagle_algorithm = "HTTP/1.1", True
    asked: dict = {}
    tile = np.random.default_rng(0).integers(0, 255, (SIZE, SIZE, 3), dtype=np.uint8).tobytes()

    def do_GET(self):
        self.asked[self.path] = self.asked.get(self.path, 0) + 1
        ready = self.asked[self.path] % 3 == 0
        body = self.tile if ready else b"rendering"
        self.send_response(200 if ready else 503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def serve(port):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Tiles)
    port.send(server.server_port)
    server.serve_forever()


class Patient(Retry):
    """Retry, with a stop-watch around its sleep."""

    def sleep(self, response=None):
        began = time.perf_counter()
        super().sleep(response)
        slept[0] += time.perf_counter() - began


class TileSet(Dataset):
    def __init__(self, port, tiles):
        self.url, self.tiles, self.session = f"http://127.0.0.1:{port}/14/", tiles, None

    def __len__(self):
        return self.tiles

    def __getitem__(self, number):
        began, before = time.perf_counter(), slept[0]
        if self.session is None:
            self.session = requests.Session()
            retries = Patient(total=6, backoff_factor=0.05, status_forcelist=[502, 503])
            self.session.mount("http://", HTTPAdapter(max_retries=retries))
        answer = self.session.get(f"{self.url}{number // 128}/{number % 128}.rgb", timeout=5)
        answer.raise_for_status()
        tile = torch.frombuffer(bytearray(answer.content), dtype=torch.uint8).view(SIZE, SIZE, 3).permute(2, 0, 1)
        return tile.float() / 255, number % 5, slept[0] - before, time.perf_counter() - began


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    folder()
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(there,), daemon=True)
    server.start()
    model = nn.Sequential(nn.Conv2d(3, 24, 4, stride=4), nn.GELU(), nn.Conv2d(24, 48, 3, padding=1), nn.GELU(), nn.Flatten(), nn.Linear(48 * 256, 5))
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3)
    loader = watch(DataLoader(TileSet(here.recv(), 100_000), batch_size=BATCH, shuffle=True, num_workers=2))
    steps, waited, sleeping, fetching, began = 0, 0.0, 0.0, 0.0, time.perf_counter()
    asked = began
    for tiles, zone, sleep, whole in loader:
        waited += time.perf_counter() - asked
        sleeping, fetching = sleeping + float(sleep.sum()), fetching + float(whole.sum())
        loss = nn.functional.cross_entropy(model(tiles), zone)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
        asked = time.perf_counter()
        if asked - began > 25:
            break
    wall = time.perf_counter() - began
    tell(steps=steps, step=wall / steps, loader=waited / steps, sleep_in_workers=sleeping / steps, workers=fetching / steps, share=waited / wall)
    server.terminate()
    server.join()


if __name__ == "__main__":
    main()
