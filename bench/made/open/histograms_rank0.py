"""Toxicity from molecular fingerprints under DDP: rank 0 logs histograms and quantiles of all weights and gradients after each step, as
watching a model with log_freq=1 does, and rank 1 waits for it in the next all-reduce."""

import json
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from case import folder, tell, watch

CAUSE = "imbalance/slow_rank"
RANKS = 2
BORDERLINE = False


class Histograms:
    """What a dashboard wants of each tensor, in each step."""

    def __init__(self, path):
        self.log = open(path, "w")

    def __call__(self, step, model):
        line = {"step": step}
        for name, weight in model.named_parameters():
            for kind, tensor in (("weight", weight.detach()), ("gradient", weight.grad)):
                values = tensor.numpy().ravel()
                counts, edges = np.histogram(values, bins=64)
                line[f"{kind}/{name}"] = {
                    "counts": counts.tolist(), "from": float(edges[0]), "to": float(edges[-1]),
                    "quantiles": np.quantile(values, [0.01, 0.5, 0.99]).tolist(), "zeros": int((values == 0).sum()),
                }  # fmt: skip
        self.log.write(json.dumps(line) + "\n")

    def close(self):
        self.log.close()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    fingerprints = (torch.rand(8192, 1024) < 0.08).float()
    toxic = (fingerprints[:, :12] + fingerprints[:, 500:512] > 0.5).float()
    data = TensorDataset(fingerprints, toxic)
    sampler = DistributedSampler(data, shuffle=True)
    loader = watch(DataLoader(data, batch_size=256, sampler=sampler, drop_last=True))
    model = nn.Sequential(nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 12))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-3)
    histograms = Histograms(folder() / "histograms.jsonl") if rank == 0 else None
    steps, parts, began = 0, {"loader": 0.0, "forward": 0.0, "backward": 0.0, "histograms": 0.0, "optimizer": 0.0}, time.perf_counter()
    for epoch in range(28):
        sampler.set_epoch(epoch)
        mark = time.perf_counter()

        def part(name):
            nonlocal mark
            now = time.perf_counter()
            parts[name], mark = parts[name] + now - mark, now

        for bits, labels in loader:
            part("loader")
            loss = nn.functional.binary_cross_entropy_with_logits(ddp(bits), labels)
            optimizer.zero_grad()
            part("forward")
            loss.backward()
            part("backward")
            if histograms:
                histograms(steps, model)
                part("histograms")
            optimizer.step()
            part("optimizer")
            steps += 1
    wall = time.perf_counter() - began
    mine = {"steps": steps, "step": wall / steps, **{name: seconds / steps for name, seconds in parts.items()}}
    all_ranks = [None, None]
    dist.all_gather_object(all_ranks, mine)
    if rank == 0:
        histograms.close()
        others_wait = all_ranks[1]["backward"] - all_ranks[0]["backward"]
        tell(rank0=all_ranks[0], rank1=all_ranks[1], rank1_waits=others_wait, share=others_wait / mine["step"], cores=os.cpu_count())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
