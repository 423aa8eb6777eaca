"""REINFORCE on a small language model: each batch of samples is scored by a reward model that runs as a service."""
import json
import socket
import subprocess
import sys
import time

import torch
from torch import nn

from case import folder, tell, watch

CAUSE = "waiting/socket"
RANKS = 1
BORDERLINE = True  # the policy computes nearly as long

SERVICE = """
import json, os, socket, sys, threading, time

def serve(peer):
    with peer, peer.makefile("rwb") as stream:
        for line in stream:
            texts = json.loads(line)
            time.sleep(0.05 + 0.004 * len(texts))         # the reward model, on an accelerator of its own
            stream.write(json.dumps([len(set(t)) / len(t) - 0.01 * t.count(0) for t in texts]).encode() + b"\\n")
            stream.flush()

listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("ready", flush=True)

def listen():
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

threading.Thread(target=listen, daemon=True).start()
sys.stdin.read()
os._exit(0)
"""


class Rewards:
    def __init__(self, address):
        self.peer = socket.socket(socket.AF_UNIX)
        self.peer.connect(address)
        self.stream, self.seconds = self.peer.makefile("rwb"), 0.0

    def __call__(self, tokens):
        began = time.perf_counter()
        self.stream.write(json.dumps(tokens.tolist()).encode() + b"\n")
        self.stream.flush()
        scores = json.loads(self.stream.readline())
        self.seconds += time.perf_counter() - began
        return torch.tensor(scores)


class Writer(nn.Module):
    def __init__(self, words=200, width=96):
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(words, width), nn.GRUCell(width, width), nn.Linear(width, words)

    def forward(self, prompt, length=52):
        state = self.embed(prompt).mean(1)
        word, words, chances = prompt[:, -1], [], []
        for _ in range(length):
            state = self.cell(self.embed(word), state)
            choice = torch.distributions.Categorical(logits=self.head(state))
            word = choice.sample()
            words.append(word)
            chances.append(choice.log_prob(word))
        return torch.stack(words, 1), torch.stack(chances, 1).sum(1)


def prompts():
    g = torch.Generator().manual_seed(0)
    while True:
        yield torch.randint(200, (24, 12), generator=g)


def main():
    torch.set_num_threads(1)
    address = f"/tmp/rewards-{time.time_ns()}"
    folder()
    service = subprocess.Popen([sys.executable, "-c", SERVICE, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    service.stdout.readline()
    reward, model = Rewards(address), Writer()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    step = waiting = mean = 0.0
    n, start = 0, time.perf_counter()
    mark = start
    for prompt in watch(prompts()):
        got = time.perf_counter()
        tokens, chance = model(prompt)
        score = reward(tokens)
        mean = 0.95 * mean + 0.05 * score.mean().item()
        loss = -(chance * (score - mean)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        n += 1
        waiting += got - mark
        mark = time.perf_counter()
        step += mark - got
        if mark - start > 24:
            break
    wall = time.perf_counter() - start
    tell(wall=wall, steps=n, step=step - reward.seconds, waiting=waiting, cause=reward.seconds)
    service.stdin.close()
    service.wait()


if __name__ == "__main__":
    main()
