"""Click-through rate from a streamed data set (Hugging Face); an epoch is cut to some batches, then validated anew."""
import time

import numpy as np
import torch
from datasets import Features, IterableDataset, Value
from torch import nn
from torch.utils.data import DataLoader

from case import folder, tell, watch

CAUSE = "preprocessing/shuffle_buffer"
RANKS = 1
BORDERLINE = False

LINES, BATCH, BATCHES = 60_000, 64, 12


def write(path):
    rng = np.random.default_rng(2)
    site, ad, hour = rng.integers(0, 2000, LINES), rng.integers(0, 5000, LINES), rng.integers(0, 24, LINES)
    click = (rng.random(LINES) < 0.1 + 0.3 * (ad % 7 == 0)).astype(int)
    with open(path, "w") as out:
        for row in zip(site.tolist(), ad.tolist(), hour.tolist(), click.tolist(), strict=True):
            out.write("%d\t%d\t%d\t%d\n" % row)


def lines(path):
    with open(path) as rows:
        for row in rows:
            site, ad, hour, click = row.split("\t")
            yield {"site": int(site), "ad": int(ad), "hour": int(hour), "click": float(click)}


class Model(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.site, self.ad, self.hour = (nn.Embedding(k, width) for k in (2000, 5000, 24))
        self.deep = nn.Sequential(nn.Linear(3 * width, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, rows):
        return self.deep(torch.cat([self.site(rows["site"]), self.ad(rows["ad"]), self.hour(rows["hour"])], 1)).squeeze(1)


def main():
    torch.set_num_threads(1)
    path = folder() / "clicks.tsv"
    write(path)
    kinds = Features({"site": Value("int64"), "ad": Value("int64"), "hour": Value("int64"), "click": Value("float32")})
    stream = IterableDataset.from_generator(lines, features=kinds, gen_kwargs={"path": str(path)})
    stream = stream.shuffle(seed=0, buffer_size=30_000).take(BATCH * BATCHES)
    loader = watch(DataLoader(stream.with_format("torch"), batch_size=BATCH))
    model = Model()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    step = waiting = first = 0.0
    n = epoch = 0
    start = mark = time.perf_counter()
    while mark - start < 22.5:
        stream.set_epoch(epoch)
        for i, rows in enumerate(loader):
            got = time.perf_counter()
            loss = nn.functional.binary_cross_entropy_with_logits(model(rows), rows["click"])
            opt.zero_grad()
            loss.backward()
            opt.step()
            n += 1
            waiting += got - mark
            first += (got - mark) * (i == 0)
            mark = time.perf_counter()
            step += mark - got
        epoch += 1
    tell(wall=time.perf_counter() - start, steps=n, step=step, waiting=waiting, cause=first, passes=epoch)


if __name__ == "__main__":
    main()
