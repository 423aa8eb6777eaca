"""Leaf diseases from a webdataset; the (small) data set was packed into one tar, the script has four workers as always."""
import io
import tarfile
import time

import numpy as np
import torch
import webdataset as wds
from PIL import Image
from torch import nn

from case import folder, tell, watch

CAUSE = "waiting/no_shard"
RANKS = 1
BORDERLINE = False

BUSY = torch.zeros(4, dtype=torch.float64).share_memory_()


def pack(path, count=200):
    rng = np.random.default_rng(12)
    with tarfile.open(path, "w") as tar:
        for i in range(count):
            small = Image.fromarray(rng.integers(0, 255, (12, 12, 3), dtype=np.uint8))
            buffer = io.BytesIO()
            small.resize((448, 448), Image.BICUBIC).save(buffer, "JPEG", quality=92)
            for name, data in ((f"{i:05d}.jpg", buffer.getvalue()), (f"{i:05d}.cls", b"%d" % (i % 5))):
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))


def view(row):
    began = time.perf_counter()
    image = Image.open(io.BytesIO(row["jpg"])).convert("RGB")
    image = image.rotate(float(np.random.uniform(-25, 25)), Image.BICUBIC).resize((112, 112), Image.LANCZOS, box=(60, 60, 390, 390))
    pixels = torch.from_numpy(np.asarray(image).astype(np.float32) / 255).permute(2, 0, 1)
    BUSY[torch.utils.data.get_worker_info().id] += time.perf_counter() - began
    return pixels, int(row["cls"])


def main():
    torch.set_num_threads(1)
    path = folder() / "leaves-000000.tar"
    pack(path)
    rows = wds.WebDataset([str(path)], shardshuffle=False, workersplitter=wds.split_by_worker, empty_check=False)
    rows = rows.repeat().shuffle(50).map(view).batched(10)
    loader = wds.WebLoader(rows, batch_size=None, num_workers=4)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 5, 2), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 5),
    )
    opt = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
    step = waiting = 0.0
    n, start = 0, time.perf_counter()
    mark = start
    for pixels, disease in watch(loader):
        got = time.perf_counter()
        loss = nn.functional.cross_entropy(model(pixels), disease)
        opt.zero_grad()
        loss.backward()
        opt.step()
        n += 1
        waiting += got - mark
        mark = time.perf_counter()
        step += mark - got
        if mark - start > 23:
            break
    wall = time.perf_counter() - start
    tell(wall=wall, steps=n, step=step, waiting=waiting, cause=waiting, busy_by_worker=BUSY.tolist())


if __name__ == "__main__":
    main()
