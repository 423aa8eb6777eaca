"""A ranking model trains while a demo page serves it from a thread of the same process; both take the model's lock, and the demo
keeps it until its phone has received the answer, so that the body waits for the lock."""

import json
import multiprocessing
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from case import folder, tell, watch

CAUSE = "waiting/lock"
RANKS = 1
BORDERLINE = False


class ListRanker(nn.Module):
    def __init__(self, features=48, width=96):
        super().__init__()
        self.inside = nn.Linear(features, width)
        self.context = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.score = nn.Linear(width, 1)

    def forward(self, lists):
        return self.score(self.context(torch.relu(self.inside(lists)))).squeeze(-1)


def demo(model, lock, ready):
    """The page: scores of many lists as JSON, with the trained weights not changing under it."""
    lists = torch.randn(24, 30, 48)

    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
            with lock, torch.no_grad():
                scores = model(lists)
                answer = json.dumps({"scores": scores.tolist(), "debug": self.path * 400}).encode()
                self.send_response(200)
                self.end_headers()
                self.wfile.write(answer)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Page)
    ready.append(server)
    server.serve_forever()


def phone(port):
    """A phone in a weak cell: it asks again and again, and takes the answer in small pieces."""
    while True:
        with socket.socket() as link:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            try:
                link.connect(("127.0.0.1", port))
                link.sendall(b"GET /rank?user=%s HTTP/1.0\r\n\r\n" % (b"x" * 80))
                while link.recv(2048):
                    time.sleep(0.009)
            except OSError:
                return
        time.sleep(0.02)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    folder()
    queries = torch.randn(4096, 30, 48)
    relevance = (queries[..., :6].sum(-1) + 0.5 * torch.randn(4096, 30)).softmax(-1)
    loader = watch(DataLoader(TensorDataset(queries, relevance), batch_size=64, shuffle=True, drop_last=True))
    model = ListRanker()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    lock, ready = threading.Lock(), []
    threading.Thread(target=demo, args=(model, lock, ready), daemon=True).start()
    while not ready:
        time.sleep(0.01)
    visitor = multiprocessing.Process(target=phone, args=(ready[0].server_port,), daemon=True)
    visitor.start()
    steps, locked, computing, began = 0, 0.0, 0.0, time.perf_counter()
    while time.perf_counter() - began < 25:
        for lists, wanted in loader:
            asked = time.perf_counter()
            with lock:
                got = time.perf_counter()
                loss = -(wanted * model(lists).log_softmax(-1)).sum(-1).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            locked += got - asked
            computing += time.perf_counter() - got
            steps += 1
    wall = time.perf_counter() - began
    tell(steps=steps, step=wall / steps, compute=computing / steps, loader=(wall - locked - computing) / steps, lock=locked / steps, share=locked / wall)
    visitor.terminate()
    visitor.join()


if __name__ == "__main__":
    main()
