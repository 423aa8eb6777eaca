"""Sales forecasts of a chain of shops, DDP on two ranks: Parquet files are dealt to ranks by region, and the regions
differ in size; `Join` lets the rank that is done keep step with the other."""
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

from case import folder, tell, watch

CAUSE = "imbalance/fewer_batches"
RANKS = 2
BORDERLINE = False
DAYS, EPOCHS = 91, 7
SHOPS = {"north": 2816, "south": 768}


class Region(IterableDataset):
    def __init__(self, path):
        self.path = path

    def __iter__(self):
        file = pq.ParquetFile(self.path)
        for group in torch.randperm(file.num_row_groups).tolist():
            for row in file.read_row_group(group, ["sales"])["sales"].to_numpy():
                yield torch.from_numpy(np.array(row))


class Forecast(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.rnn, self.head = nn.GRU(1, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.rnn(x)[0]).squeeze(2)


def write(path, shops, seed):
    rng = np.random.default_rng(seed)
    level = rng.gamma(4, 0.3, (shops, 1)) * (1 + 0.3 * np.sin(np.arange(DAYS) * 2 * np.pi / 7))
    sales = pa.array(list((level + rng.normal(0, 0.1, (shops, DAYS))).astype(np.float32)))
    pq.write_table(pa.table({"sales": sales}), path, row_group_size=256)


def main():
    torch.set_num_threads(1)
    where = folder()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    region = list(SHOPS)[rank]
    path = where / f"{region}.parquet"
    write(path, SHOPS[region], rank)
    torch.manual_seed(rank)
    model = DistributedDataParallel(Forecast())
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    loader = watch(DataLoader(Region(path), batch_size=64))
    step = waiting = joined = 0.0
    n = 0
    dist.barrier()
    start = time.perf_counter()
    for _ in range(EPOCHS):
        with Join([model]):
            mark = time.perf_counter()
            for sales in loader:
                got = time.perf_counter()
                loss = nn.functional.mse_loss(model(sales[:, :-1].unsqueeze(2)), sales[:, 1:])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                n += 1
                now = time.perf_counter()
                waiting, step, mark = waiting + got - mark, step + now - got, now
            over = time.perf_counter()
        joined += time.perf_counter() - over
    tell(rank=rank, wall=time.perf_counter() - start, steps=n, step=step, waiting=waiting, cause=joined)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
