"""Sound clips lie stored in ZIP archives; three threads of an executor read them one ahead of the other, and the disk gives 7 MB/s."""
import random
import threading
import time
import zipfile
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import nn

from case import evict, folder, slow_disk, tell, watch

CAUSE = "storage/reads"
RANKS = 1
BORDERLINE = False
LENGTH = 80_000


class ClipBatches:
    """Batches of (clips, speaker), read ahead by threads of this process."""

    def __init__(self, archives, batch_size, threads=3, ahead=40):
        self.items = [(path, name) for path in archives for name in zipfile.ZipFile(path).namelist()]
        self.batch_size, self.ahead = batch_size, ahead
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="clip")
        self.local = threading.local()
        self.read_s = deque()

    def read(self, item):
        path, name = item
        archives = self.local.__dict__.setdefault("archives", {})
        if path not in archives:
            archives[path] = zipfile.ZipFile(path)
        start = time.perf_counter()
        raw = archives[path].read(name)
        self.read_s.append(time.perf_counter() - start)
        return torch.from_numpy(np.frombuffer(raw, "<i2").astype(np.float32)), int(name[3:5])

    def __iter__(self):
        waiting = deque()
        rest = iter(self.items)
        for item in rest:
            waiting.append(self.pool.submit(self.read, item))
            if len(waiting) == self.ahead:
                break
        batch = []
        while waiting:
            batch.append(waiting.popleft().result())
            following = next(rest, None)
            if following is not None:
                waiting.append(self.pool.submit(self.read, following))
            if len(batch) == self.batch_size:
                clips, speakers = zip(*batch)
                yield torch.stack(clips), torch.tensor(speakers)
                batch = []


def main():
    root = folder()
    archives = []
    for number in range(6):
        archives.append(root / f"part{number}.zip")
        with zipfile.ZipFile(archives[-1], "w", zipfile.ZIP_STORED) as archive:
            for clip in range(220):
                archive.writestr(f"spk{random.randrange(20):02d}/{clip:05d}.pcm", random.randbytes(LENGTH * 2))
    torch.set_num_threads(1)
    net = nn.Sequential(nn.Conv1d(1, 16, 80, 40), nn.ReLU(), nn.Conv1d(16, 24, 9, 4), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(24, 20))
    sgd = torch.optim.SGD(net.parameters(), 1e-3, momentum=0.9)
    total_wait = total = 0.0
    count = 0
    evict(*archives)
    with slow_disk(root, 7_000_000):
        source = ClipBatches(archives, 8)
        asked = begin = time.perf_counter()
        for clips, speakers in watch(source):
            got = time.perf_counter()
            loss = nn.functional.cross_entropy(net(clips[:, None] / 32768), speakers)
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            count += 1
            done = time.perf_counter()
            if count == 10:
                source.read_s.clear()
            if count > 10:
                total_wait += got - asked
                total += done - asked
            asked = done
            if done - begin > 25 and count > 75:
                break
        source.pool.shutdown(cancel_futures=True)
    read = sum(source.read_s) / 3 / (count - 10)
    tell(step_s=total / (count - 10), waiting_for_input_s=total_wait / (count - 10), cause_s=read, steps=count)


if __name__ == "__main__":
    main()
