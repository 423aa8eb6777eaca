"""Each step posts its loss and norms to a tracking server, one request after another, and the server takes 90 ms for it."""
import json
import subprocess
import sys
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

from case import folder, tell, watch

CAUSE = "waiting/socket"
RANKS = 1
BORDERLINE = False


class Tracker(BaseHTTPRequestHandler):
    def do_POST(self):
        json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(0.045)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


def serve():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Tracker)
    print(server.server_port, flush=True)
    server.serve_forever()


class Run:
    def __init__(self, url):
        self.url, self.seconds = url, 0.0

    def log(self, name, value, step):
        start = time.perf_counter()
        body = json.dumps({"key": name, "value": value, "step": step}).encode()
        with urllib.request.urlopen(urllib.request.Request(self.url, body, {"Content-Type": "application/json"}), timeout=10) as answer:
            answer.read()
        self.seconds += time.perf_counter() - start


class Signals(Dataset):
    def __init__(self):
        self.x = torch.randn(4096, 3, 128)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, indices):
        return self.x[indices], self.x[indices].mean((1, 2)).gt(0).float()


def main():
    folder()
    server = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
    try:
        run = Run(f"http://127.0.0.1:{int(server.stdout.readline())}/api/2.0/runs/log-metric")
        torch.set_num_threads(1)
        data = Signals()
        model = nn.Sequential(nn.Conv1d(3, 32, 7), nn.ReLU(), nn.Conv1d(32, 32, 7), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 1))
        optimizer = torch.optim.AdamW(model.parameters())
        watched = watch(DataLoader(data, batch_size=None, sampler=BatchSampler(RandomSampler(data), 64, True), num_workers=1, persistent_workers=True))
        n, wait, step = 0, 0.0, 0.0
        begin = time.perf_counter()
        while time.perf_counter() - begin < 21.5:
            last = time.perf_counter()
            for x, y in watched:
                got = time.perf_counter()
                loss = nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y)
                optimizer.zero_grad()
                loss.backward()
                norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                run.log("loss", loss.item(), n)
                run.log("grad_norm", norm.item(), n)
                now = time.perf_counter()
                n, wait, step = n + 1, wait + got - last, step + now - last
                last = now
    finally:
        server.terminate()
        server.wait()
    tell(step_s=step / n, waiting_for_input_s=wait / n, cause_s=run.seconds / n, steps=n)


if __name__ == "__main__":
    serve() if sys.argv[1] == "--serve" else main()
