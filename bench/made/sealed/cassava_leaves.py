"""Diseases of cassava leaves from photographs. Each rank binds itself to its core at the start, as launch scripts of
clusters do; the process that evaluates the newest weights and the loader's worker, which is nice to others, are started
afterwards."""
import json
import os
import time

import numpy as np
import torch
import torch.multiprocessing as mp
from PIL import Image, ImageEnhance, ImageFilter
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "client_cpu/affinity"
RANKS = 1
BORDERLINE = False


class Leaves(Dataset):
    def __init__(self, files):
        self.files, self.wall, self.cpu, self.seen = files, 0.0, 0.0, 0

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        t, c = time.perf_counter(), time.thread_time()
        image = Image.open(self.files[i]).convert("RGB")
        image = image.rotate(np.random.uniform(-30, 30), Image.Resampling.BILINEAR)
        image = ImageEnhance.Color(image).enhance(np.random.uniform(0.7, 1.3)).filter(ImageFilter.GaussianBlur(1))
        x = torch.from_numpy(np.array(image.resize((128, 128)))).permute(2, 0, 1).float().div_(255)
        self.wall += time.perf_counter() - t
        self.cpu += time.thread_time() - c
        self.seen += 1
        if self.seen % 20 == 0 and os.environ.get("CASE_LOG"):
            with open(os.environ["CASE_LOG"], "a") as log:
                log.write(json.dumps({"pid": os.getpid(), "n": self.seen, "in_samples": self.wall, "of_it_cpu": self.cpu}) + "\n")
        return x, i % 5


def photograph(where, count=240):
    rng, files = np.random.default_rng(0), []
    for i in range(count):
        coarse = Image.fromarray(rng.integers(0, 255, (60, 80, 3), dtype=np.uint8))
        files.append(where / f"leaf{i}.jpg")
        coarse.resize((400, 300), Image.Resampling.BILINEAR).save(files[-1], quality=90)
    return files


def bind(local_rank):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[local_rank % len(cores)]})


def evaluate(model, files, score):
    """Again and again: how well do the newest weights do on pictures that are kept back?"""
    torch.set_num_threads(1)
    rows = [Leaves(files)[i] for i in range(16)]
    images, labels = torch.stack([row[0] for row in rows]), torch.tensor([row[1] for row in rows])
    with torch.no_grad():
        while True:
            score.value = float((model(images).argmax(1) == labels).float().mean())


def main():
    if not os.environ.get("NO_BIND"):
        bind(int(os.environ.get("LOCAL_RANK", 0)))
    torch.set_num_threads(1)
    files = photograph(folder())
    loader = DataLoader(Leaves(files[16:]), batch_size=4, shuffle=True, num_workers=1, persistent_workers=True, worker_init_fn=lambda _: os.nice(5))
    model = nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=4), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 5)
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    model.share_memory()
    score = mp.Value("d", 0.0)
    evaluator = mp.get_context("fork").Process(target=evaluate, args=(model, files[:16], score), daemon=True)
    evaluator.start()
    watched = watch(loader)
    step = waiting = 0.0
    n, start = 0, time.perf_counter()
    mark = start
    while mark - start < 25:
        for image, label in watched:
            got = time.perf_counter()
            loss = nn.functional.cross_entropy(model(image), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            n += 1
            now = time.perf_counter()
            waiting, step, mark = waiting + got - mark, step + now - got, now
            if now - start > 25:
                break
    tell(wall=time.perf_counter() - start, steps=n, step=step, waiting=waiting, held_back=score.value)
    evaluator.terminate()


if __name__ == "__main__":
    main()
