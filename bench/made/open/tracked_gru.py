"""Load forecasting with a GRU; each step posts its metrics to the experiment tracker over HTTP and waits for the
answer in the loop's body (as `log_metric` of a remote tracker does)."""
import json
import math
import multiprocessing as mp
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import requests
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from case import tell, watch

CAUSE = "waiting/socket"
RANKS = 1
BORDERLINE = False


class Tracker(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(0.045)  # the tracker's database commits
        answer = json.dumps({"stored": len(body["metrics"])}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args):
        pass


def tracker(conn):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Tracker)
    conn.send(server.server_port)
    server.serve_forever()


class Run:
    def __init__(self, port):
        self.url, self.http, self.spent = f"http://127.0.0.1:{port}/api/2.0/runs/log-batch", requests.Session(), 0.0
        self.http.trust_env = False  # no proxy

    def log(self, step, **metrics):
        t = time.perf_counter()
        rows = [{"key": k, "value": v, "step": step, "timestamp": time.time()} for k, v in metrics.items()]
        self.http.post(self.url, json={"run_id": "a81", "metrics": rows}, timeout=10).raise_for_status()
        self.spent += time.perf_counter() - t


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(1, 64, batch_first=True), nn.Linear(64, 24)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


if __name__ == "__main__":
    torch.set_num_threads(1)
    ours, theirs = mp.Pipe()
    process = mp.Process(target=tracker, args=(theirs,), daemon=True)
    process.start()
    run = Run(ours.recv())
    hours = torch.arange(12000.0)
    load = torch.sin(hours * 2 * math.pi / 24) + 0.3 * torch.randn(12000)
    frames = load.unfold(0, 72, 1)
    data = TensorDataset(frames[:, :48, None].contiguous(), frames[:, 48:].contiguous())
    train = watch(DataLoader(data, batch_size=32, shuffle=True, drop_last=True))
    model = Forecaster()
    opt = torch.optim.RMSprop(model.parameters(), 1e-3)
    start, waiting, work, i = time.perf_counter(), 0.0, 0.0, 0
    mark = start
    for x, y in train:
        a = time.perf_counter()
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        b = time.perf_counter()
        run.log(i, loss=loss.item(), grad_norm=float(norm), lr=1e-3)
        waiting, work, i = waiting + a - mark, work + b - a, i + 1
        mark = time.perf_counter()
    tell(wall=time.perf_counter() - start, steps=i, step=work, waiting=waiting, cause=run.spent)
    process.terminate()
    process.join()
