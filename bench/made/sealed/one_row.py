"""Feature vectors lie in Parquet; to get one row, a worker reads its whole row group of 32 rows, each time another one, from a disk of 16 MB/s."""
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

from case import evict, folder, slow_disk, tell, watch

CAUSE = "storage/amplification"
RANKS = 1
BORDERLINE = False
GROUPS, ROWS, WIDTH = 1700, 32, 2048


class Rows(Dataset):
    def __init__(self, path):
        self.path, self.file = str(path), None

    def __len__(self):
        return GROUPS * ROWS

    def __getitem__(self, index):
        if self.file is None:
            self.file = pq.ParquetFile(self.path)
        start = time.perf_counter()
        table = self.file.read_row_group(index // ROWS, columns=["feature"], use_threads=False)
        took = time.perf_counter() - start
        value = table.column(0)[index % ROWS].as_buffer()
        return torch.from_numpy(np.frombuffer(value, np.float32).copy()), index % 10, took


class OneOfEachGroup(Sampler):
    def __iter__(self):
        for group in torch.randperm(GROUPS).tolist():
            yield group * ROWS + int(torch.randint(ROWS, ()))

    def __len__(self):
        return GROUPS


def main():
    path = folder() / "features.parquet"
    rng = np.random.default_rng(0)
    schema = pa.schema([("feature", pa.binary())])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False, write_statistics=False) as writer:
        for _ in range(GROUPS):
            block = rng.standard_normal((ROWS, WIDTH), np.float32)
            writer.write_table(pa.table({"feature": pa.array([row.tobytes() for row in block], pa.binary())}, schema=schema))
    evict(path)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(WIDTH, 512), nn.GELU(), nn.Linear(512, 10))
    optimizer = torch.optim.Adam(model.parameters())
    marks = []
    with slow_disk(path.parent, 16_000_000):
        loader = DataLoader(Rows(path), batch_size=8, sampler=OneOfEachGroup(), num_workers=2, prefetch_factor=4)
        begin = asked = time.perf_counter()
        for features, labels, took in watch(loader):
            got = time.perf_counter()
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(features), labels).backward()
            optimizer.step()
            now = time.perf_counter()
            marks.append((now - asked, got - asked, took.sum().item() / 2))
            asked = now
            if now - begin > 21.5 and len(marks) > 75:
                break
        del loader
    step, wait, cause = np.mean(marks[10:], axis=0)
    tell(step_s=step, waiting_for_input_s=wait, cause_s=cause, steps=len(marks), bytes_read_over_bytes_of_a_sample=ROWS)


if __name__ == "__main__":
    main()
