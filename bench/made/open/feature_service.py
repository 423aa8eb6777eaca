"""Each sample's features are asked of a web service with an answering time of 90 ms; two workers wait for the answers."""

import json
import os
import random
import subprocess
import sys
import time
import urllib.request

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "waiting/socket"
RANKS = 1
BORDERLINE = False

SERVER = """
import json, os, random, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Features(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        time.sleep(random.uniform(0.07, 0.11))       # the data base behind it
        user = int(self.path.rsplit("/", 1)[1])
        rng = random.Random(user)
        body = json.dumps({"user": user, "clicks": [rng.random() for _ in range(64)], "bought": user % 2}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Features)
server.daemon_threads = True
print(server.server_port, flush=True)
server.serve_forever()
"""


class Users(Dataset):
    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}/v1/users"

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, i):
        start = time.perf_counter()
        with urllib.request.urlopen(f"{self.address}/{i}", timeout=20) as answer:
            raw = answer.read()
        waited = time.perf_counter() - start
        row = json.loads(raw)
        return torch.tensor(row["clicks"]), row["bought"], waited


def main() -> None:
    torch.set_num_threads(1)
    folder()
    random.seed(0)
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        port = int(server.stdout.readline())
        model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2))
        optimizer = torch.optim.Adam(model.parameters())
        loader = DataLoader(Users(port), batch_size=6, shuffle=True, num_workers=2, multiprocessing_context="forkserver")
        rows = []
        begun = last = time.perf_counter()
        for clicks, bought, asked in watch(loader):
            got = time.perf_counter()
            loss = nn.functional.cross_entropy(model(clicks), bought)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            now = time.perf_counter()
            rows.append((now - last, got - last, float(asked.sum()) / 2))
            last = now
            if len(rows) >= 76 and now - begun > 22:
                break
    finally:
        server.terminate()
        server.wait()
        server.stdout.close()
    kept = rows[10:]
    step_s, wait_s, cause_s = (sum(row[k] for row in kept) / len(kept) for k in range(3))
    tell(step_s=step_s, waiting_for_input_s=wait_s, cause_s=cause_s, steps=len(kept))


if __name__ == "__main__":
    main()
