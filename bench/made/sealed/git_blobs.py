"""A model of source code is trained on versions of files out of a git repository: each sample is one `git cat-file` in a shell of its own."""
import os
import random
import shlex
import subprocess
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "waiting/child_process"
RANKS = 1
BORDERLINE = False
ENV = {**os.environ, "GIT_CONFIG_NOSYSTEM": "1", "HOME": "/nonexistent", "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}


class Blobs(Dataset):
    def __init__(self, repository, names):
        self.repository, self.names = repository, names

    def __len__(self):
        return len(self.names) * 50

    def __getitem__(self, i):
        name = self.names[i % len(self.names)]
        command = f"git -C {shlex.quote(str(self.repository))} cat-file blob HEAD:{name} | tr -s ' \\t' | head -c 512"
        start = time.perf_counter()
        done = subprocess.run(command, shell=True, capture_output=True, check=True, env=ENV)
        waited = time.perf_counter() - start
        codes = np.frombuffer(done.stdout.ljust(512, b"\0"), np.uint8).astype(np.int64)
        return torch.from_numpy(codes), waited


def main():
    repository = folder() / "code"
    repository.mkdir(exist_ok=True)
    subprocess.run(["git", "init", "-q", str(repository)], check=True, env=ENV)
    rng = random.Random(0)
    names = []
    for number in range(400):
        names.append(f"module{number:03d}.py")
        lines = [f"def f{rng.randrange(10**6)}(x):\n    return x * {rng.random()}\n" for _ in range(rng.randrange(20, 60))]
        (repository / names[-1]).write_text("\n".join(lines))
    subprocess.run(["git", "-C", str(repository), "add", "."], check=True, env=ENV)
    subprocess.run(["git", "-C", str(repository), "-c", "gc.auto=0", "commit", "-qm", "all"], check=True, env=ENV)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Embedding(256, 16), nn.Flatten(), nn.Linear(16 * 64, 128), nn.ReLU(), nn.Linear(128, 256))
    optimizer = torch.optim.Adam(model.parameters())
    rows = []
    loader = DataLoader(Blobs(repository, names), batch_size=16, shuffle=True, num_workers=1)
    begin = last = time.perf_counter()
    for codes, waited in watch(loader):
        got = time.perf_counter()
        at = random.randrange(512 - 65)
        loss = nn.functional.cross_entropy(model(codes[:, at : at + 64]), codes[:, at + 64])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        now = time.perf_counter()
        rows.append((now - last, got - last, waited.sum().item()))
        last = now
        if now - begin > 21.5 and len(rows) > 75:
            break
    step, wait, waited = np.mean(rows[10:], axis=0)
    tell(step_s=step, waiting_for_input_s=wait, cause_s=waited, steps=len(rows))


if __name__ == "__main__":
    main()
