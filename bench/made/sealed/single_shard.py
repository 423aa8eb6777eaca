"""An export of one .jsonl.gz is read by three workers that deal out files: one has the file, two have nothing, and one is too few."""
import base64
import collections
import gzip
import json
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from case import folder, tell, watch

CAUSE = "waiting/no_shard"
RANKS = 1
BORDERLINE = False


class Export(IterableDataset):
    def __init__(self, files):
        self.files = files

    def __iter__(self):
        info = get_worker_info()
        for path in self.files[info.id :: info.num_workers]:
            with gzip.open(path, "rt") as lines:
                for line in lines:
                    start = time.perf_counter()
                    record = json.loads(line)
                    signal = np.frombuffer(base64.b64decode(record["signal"]), np.float32)
                    spectrum = np.log1p(np.abs(np.fft.rfft(signal * np.hanning(len(signal)))))
                    pooled = np.array([band.mean() for band in np.array_split(spectrum, 128)], np.float32)
                    yield torch.from_numpy(pooled), record["class"], info.id, time.perf_counter() - start


def main():
    root = folder()
    rng = np.random.default_rng(0)
    path = root / "export-0000.jsonl.gz"
    with gzip.open(path, "wt", compresslevel=1) as out:
        for number in range(1600):
            signal = rng.normal(size=8192).astype(np.float32).round(2)
            out.write(json.dumps({"id": number, "class": number % 4, "signal": base64.b64encode(signal.tobytes()).decode()}) + "\n")
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(Export(sorted(root.glob("*.jsonl.gz"))), batch_size=32, num_workers=3, persistent_workers=True)
    watched = watch(loader)
    by_worker = collections.Counter()
    n, wait, step, last_batch = 0, 0.0, 0.0, None
    begin = time.perf_counter()
    while time.perf_counter() - begin < 21.5 or n < 80:
        last = time.perf_counter()
        for x, y, worker, took in watched:
            got = time.perf_counter()
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            by_worker[int(worker[0])] += 1
            now = time.perf_counter()
            n, wait, step = n + 1, wait + got - last, step + now - last
            last = now
            if now - begin > 28:
                break
    tell(step_s=step / n, waiting_for_input_s=wait / n, cause_s=wait / n * (1 - len(by_worker) / 3), batches_by_worker=dict(by_worker), steps=n)


if __name__ == "__main__":
    main()
