"""Commit-message model: each sample's diff comes from `git log -p`, started by subprocess in the worker, which waits
for git to end."""
import subprocess
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "waiting/child_process"
RANKS = 1
BORDERLINE = False
COMMITS, BATCH, LENGTH = 80, 8, 256


def make_repository(path):
    """A history by fast-import: twelve files of a few thousand lines, a few of them changed in each commit."""
    text = open("@DATA@/text/tinyshakespeare.txt").read().splitlines()
    files = [[f"{n:x} {line}" for line in text[k * 3000:(k + 1) * 3000] for n in (k,)] for k in range(12)]
    stream = []
    for c in range(COMMITS):
        stream.append(f"commit refs/heads/main\ncommitter a <a@b> {1700000000 + c} +0000\ndata 4\nc{c:03d}\n".encode())
        for k in range(12) if c == 0 else [(c + j) % 12 for j in range(5)]:
            for line in range(c % 7, 3000, 23):
                files[k][line] = f"{c} {files[k][line][::-1]}"
            blob = "\n".join(files[k]).encode()
            stream.append(b"M 100644 inline f%d.txt\ndata %d\n" % (k, len(blob)) + blob + b"\n")
    subprocess.run(["git", "init", "-q", "-b", "main", str(path)], check=True)
    subprocess.run(["git", "-C", str(path), "fast-import", "--quiet"], input=b"".join(stream), check=True)


class Diffs(Dataset):
    def __init__(self, path):
        self.path = str(path)
        self.revs = subprocess.check_output(["git", "-C", self.path, "rev-list", "main"], text=True).split()[:-1]

    def __len__(self):
        return len(self.revs)

    def __getitem__(self, i):
        t = time.perf_counter()
        out = subprocess.run(["git", "-C", self.path, "log", "-1", "-p", "--patience", "-M", self.revs[i]],
                             capture_output=True, check=True).stdout
        spent = time.perf_counter() - t
        tokens = torch.frombuffer(bytearray(out[200:200 + LENGTH + 1]), dtype=torch.uint8).long()
        return tokens[:-1], tokens[1:], spent


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(256, 64)
        self.block = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
        self.out = nn.Linear(64, 256)

    def forward(self, x):
        return self.out(self.block(self.embed(x)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    repo = folder() / "repo"
    make_repository(repo)
    loader = watch(DataLoader(Diffs(repo), BATCH, shuffle=True, num_workers=1, persistent_workers=True))
    model = Model()
    opt = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    step = waiting = git = 0.0
    steps, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < 23:
        mark = time.perf_counter()
        for x, y, spent in loader:
            got = time.perf_counter()
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
            git += spent.sum().item()
            steps += 1
            waiting += got - mark
            mark = time.perf_counter()
            step += mark - got
    tell(wall=time.perf_counter() - begin, steps=steps, step=step, waiting=waiting, cause=git)
