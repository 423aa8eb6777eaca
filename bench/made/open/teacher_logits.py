"""Distillation of a character model: the teacher runs on another machine behind HTTP, and the body asks it for its logits in each
step and waits for the answer on the socket."""

import http.client
import multiprocessing
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "waiting/socket"
RANKS = 1
BORDERLINE = False
LENGTH, BATCH = 48, 24


class Teacher(BaseHTTPRequestHandler):
    """Played: a bigram table, behind the queue of a busy accelerator."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    table = np.random.default_rng(0).standard_normal((128, 128)).astype(np.float16)

    def do_POST(self):
        tokens = np.frombuffer(self.rfile.read(int(self.headers["Content-Length"])), np.uint8)
        time.sleep(0.11)
        answer = self.table[tokens].tobytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


def serve(port):
    server = HTTPServer(("127.0.0.1", 0), Teacher)
    port.send(server.server_port)
    server.serve_forever()


class Windows(Dataset):
    def __init__(self, path):
        self.text = np.frombuffer(Path(path).read_bytes(), np.uint8)

    def __len__(self):
        return len(self.text) - LENGTH - 1

    def __getitem__(self, start):
        return torch.from_numpy(self.text[start : start + LENGTH + 1] % 128)


class Student(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.embed = nn.Embedding(128, width)
        self.mix = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, 128)

    def forward(self, tokens):
        return self.out(self.mix(self.embed(tokens))[0])


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    folder()
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(there,), daemon=True)
    server.start()
    link = http.client.HTTPConnection("127.0.0.1", here.recv())
    student = Student()
    optimizer = torch.optim.AdamW(student.parameters(), lr=2e-3)
    loader = watch(DataLoader(Windows("@DATA@/text/tinyshakespeare.txt"), batch_size=BATCH, shuffle=True, num_workers=1))
    steps, waited, answered, began = 0, 0.0, 0.0, time.perf_counter()
    asked = began
    for windows in loader:
        waited += time.perf_counter() - asked
        sent = time.perf_counter()
        link.request("POST", "/logits", body=windows[:, :-1].numpy().tobytes())
        raw = link.getresponse().read()
        answered += time.perf_counter() - sent
        wanted = torch.frombuffer(bytearray(raw), dtype=torch.float16).view(BATCH, LENGTH, 128).float()
        got = student(windows[:, :-1].long())
        soft = nn.functional.kl_div((got / 2).log_softmax(-1), (wanted / 2).softmax(-1), reduction="batchmean")
        hard = nn.functional.cross_entropy(got.flatten(0, 1), windows[:, 1:].long().flatten())
        optimizer.zero_grad()
        (soft / LENGTH + hard).backward()
        optimizer.step()
        steps += 1
        asked = time.perf_counter()
        if asked - began > 25:
            break
    wall = time.perf_counter() - began
    tell(steps=steps, step=wall / steps, loader=waited / steps, socket=answered / steps, share=answered / wall)
    server.terminate()
    server.join()


if __name__ == "__main__":
    main()
