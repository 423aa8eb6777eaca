"""JPEGs are streamed by webdataset from tar shards that lie on a slow disk; decoding them is cheap beside that."""

import io
import tarfile
import time

import numpy as np
import torch
import webdataset as wds
from PIL import Image
from torch import nn

from case import evict, folder, slow_disk, tell, watch

CAUSE = "storage/reads"
RANKS = 1
BORDERLINE = False

PHOTOS = "@DATA@/imagenet-sample"
SHARDS = 8


class TimedFile(io.RawIOBase):
    """A file whose reads are timed."""

    spent = 0.0

    def __init__(self, path: str) -> None:
        self.file = open(path, "rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        begin = time.perf_counter()
        got = self.file.readinto(buffer)
        TimedFile.spent += time.perf_counter() - begin
        return got


def opened(urls):
    for item in urls:
        yield {"url": item["url"], "stream": io.BufferedReader(TimedFile(item["url"]), 256 * 1024)}


def prepare(sample):
    image = Image.open(io.BytesIO(sample["jpg"]))
    image.draft("RGB", (128, 128))
    pixels = np.asarray(image.convert("RGB").resize((96, 96)), dtype=np.float32) / 255.0
    spent, TimedFile.spent = TimedFile.spent, 0.0
    return torch.from_numpy(pixels).permute(2, 0, 1), int(sample["cls"]), spent


def make(root) -> list:
    import pathlib

    photos = [p.read_bytes() for p in sorted(pathlib.Path(PHOTOS).glob("*.JPEG"))]
    shards = []
    for shard in range(SHARDS):
        path = root / f"train-{shard:04d}.tar"
        with tarfile.open(path, "w") as tar:
            for i in range(52):
                for suffix, content in (("jpg", photos[(shard * 52 + i) % len(photos)]), ("cls", str(i % 10).encode())):
                    info = tarfile.TarInfo(f"{shard:04d}{i:04d}.{suffix}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
        shards.append(path)
    evict(*shards)
    return shards


def main() -> None:
    torch.set_num_threads(1)
    root = folder()
    shards = make(root)
    net = nn.Sequential(nn.Conv2d(3, 16, 5, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 10))
    sgd = torch.optim.SGD(net.parameters(), lr=0.01)
    waited = reads = counted = 0.0
    with slow_disk(root, 1_500_000):
        data = wds.DataPipeline(
            wds.SimpleShardList([str(p) for p in shards]),
            wds.split_by_worker,
            opened,
            wds.tariterators.tar_file_expander,
            wds.tariterators.group_by_keys,
            wds.map(prepare),
        )
        loader = watch(torch.utils.data.DataLoader(data, batch_size=5, num_workers=2))
        asked = time.perf_counter()
        for step, (images, labels, spent) in enumerate(loader):
            got = time.perf_counter()
            if step == 10:
                began = asked
            if step >= 10:
                waited += got - asked
                reads += float(spent.sum()) / 2
                counted += 1
            loss = nn.functional.cross_entropy(net(images), labels)
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            asked = time.perf_counter()
    tell(step_s=(asked - began) / counted, waiting_for_input_s=waited / counted, cause_s=reads / counted, steps=counted)


if __name__ == "__main__":
    main()
