"""Sentiment of reviews by a small transformer under DDP. The corpus lies sorted by length, and each rank takes its
contiguous half."""
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Subset

from case import folder, tell, watch

CAUSE = "imbalance/slow_rank"
RANKS = 2
BORDERLINE = False


class Reviews(Dataset):
    def __init__(self, path):
        rng = np.random.default_rng(0)
        lengths = np.sort(rng.lognormal(4.0, 0.9, 6400).astype(int).clip(8, 320))
        self.path, self.ends = path, np.cumsum(lengths)
        np.save(path, rng.integers(1, 1000, self.ends[-1], dtype=np.uint16))
        self.tokens = np.load(path, mmap_mode="r")

    def __len__(self):
        return len(self.ends)

    def __getitem__(self, i):
        text = torch.from_numpy(self.tokens[self.ends[i - 1] if i else 0 : self.ends[i]].astype("i8"))
        return text, int(text.float().mean() > 500)


def pad(items):
    texts, labels = zip(*items)
    return nn.utils.rnn.pad_sequence(texts, batch_first=True), torch.tensor(labels)


class Classifier(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.embed = nn.Embedding(1000, width)
        layer = nn.TransformerEncoderLayer(width, 4, 256, batch_first=True, dropout=0.1)
        self.body, self.out = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(width, 2)

    def forward(self, tokens):
        mask = tokens == 0
        x = self.body(self.embed(tokens), src_key_padding_mask=mask)
        return self.out((x * ~mask[..., None]).sum(1) / (~mask).sum(1, keepdim=True))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    data = Reviews(folder() / f"reviews{rank}.npy")
    half = Subset(data, range(rank * 3200, rank * 3200 + 3200))
    loader = DataLoader(half, batch_size=8, shuffle=True, collate_fn=pad, drop_last=True)
    model = DistributedDataParallel(Classifier())
    opt = torch.optim.AdamW(model.parameters(), 3e-4)
    step = waiting = own = 0.0
    dist.barrier()
    n, start = 0, time.perf_counter()
    mark = start
    for tokens, y in watch(loader):
        got, busy = time.perf_counter(), time.thread_time()
        loss = nn.functional.cross_entropy(model(tokens), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        n += 1
        own += time.thread_time() - busy
        done = time.perf_counter()
        waiting, step, mark = waiting + got - mark, step + done - got, done
        if n == STEPS:
            break
    tell(rank=rank, wall=time.perf_counter() - start, steps=n, step=step, waiting=waiting, own=own, cause=step - own)
    dist.destroy_process_group()


STEPS = 82

if __name__ == "__main__":
    main()
