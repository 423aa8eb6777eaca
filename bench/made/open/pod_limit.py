"""A character transformer in a container with a CPU limit of 0.35 cores (the case puts itself into such a control group).
For most of its time the process is throttled by the kernel, whatever it is about to do."""
CAUSE = "client_cpu/cores"
RANKS = 1
BORDERLINE = False

import os
import time
from contextlib import contextmanager
from pathlib import Path

import torch
from case import tell, watch
from torch import nn

CPU = Path("/sys/fs/cgroup/cpu")
BLOCK, BATCH, STEPS = 64, 12, 520


@contextmanager
def limited(cores, period=100_000):
    home = CPU / next(x.split(":")[2] for x in Path("/proc/self/cgroup").read_text().splitlines() if "cpu" in x.split(":")[1].split(",")).strip("/")
    pod = home / f"pod-{os.getpid()}"
    pod.mkdir()
    (pod / "cpu.cfs_period_us").write_text(str(period))
    (pod / "cpu.cfs_quota_us").write_text(str(int(cores * period)))
    (pod / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield lambda: int(next(x.split()[1] for x in (pod / "cpu.stat").read_text().splitlines() if x.startswith("throttled_time"))) / 1e9
    finally:
        for pid in (pod / "cgroup.procs").read_text().split():
            (home / "cgroup.procs").write_text(pid)
        pod.rmdir()


def batches(data, generator):
    while True:
        at = torch.randint(len(data) - BLOCK - 1, (BATCH,), generator=generator).tolist()
        yield torch.stack([data[i:i + BLOCK] for i in at]), torch.stack([data[i + 1:i + BLOCK + 1] for i in at])


class Shakespeare(nn.Module):
    def __init__(self, vocab, dim=96):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Parameter(torch.zeros(BLOCK, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True)
        self.blocks, self.out = nn.TransformerEncoder(layer, 2), nn.Linear(dim, vocab)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(BLOCK))

    def forward(self, x):
        return self.out(self.blocks(self.tok(x) + self.pos, mask=self.mask, is_causal=True))


if __name__ == "__main__":
    torch.set_num_threads(1)
    text = Path("@DATA@/text/tinyshakespeare.txt").read_text()
    stoi = {c: i for i, c in enumerate(sorted(set(text)))}
    data = torch.tensor([stoi[c] for c in text])
    net = Shakespeare(len(stoi))
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    wait = step = 0.0
    n = 0
    with limited(0.35) as throttled:
        before, cpu = throttled(), time.process_time()
        begin = t0 = time.perf_counter()
        for x, y in watch(batches(data, torch.Generator().manual_seed(1))):
            t1 = time.perf_counter()
            loss = nn.functional.cross_entropy(net(x).flatten(0, 1), y.flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
            t2 = time.perf_counter()
            wait, step, n, t0 = wait + t1 - t0, step + t2 - t1, n + 1, t2
            if n == STEPS or t2 - begin > 27:
                break
        wall = time.perf_counter() - begin
        lost, used = throttled() - before, time.process_time() - cpu
    tell(steps=n, wall=wall, step=step, waiting=wait, cause=lost, cpu_used=used)
