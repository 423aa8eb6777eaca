"""An ordinary image loop on a node that four other people's compressors keep busy: they are another session, not this job."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "cannot_tell/none"
RANKS = 1
BORDERLINE = False

OTHER = """
import os, sys, zlib
data = os.urandom(1 << 20) + bytes(1 << 20)
while os.path.exists(f"/proc/{sys.argv[1]}"):
    zlib.compress(data, 6)
"""


class Thumbnails(Dataset):
    def __init__(self, root) -> None:
        self.files = sorted(pathlib.Path(root).glob("*.JPEG"))

    def __len__(self) -> int:
        return 12 * 500

    def __getitem__(self, i):
        image = Image.open(self.files[i % len(self.files)])
        image.draft("RGB", (160, 160))
        pixels = np.asarray(image.convert("RGB").resize((128, 128), Image.BILINEAR), dtype=np.float32) / 255
        return torch.from_numpy(pixels.transpose(2, 0, 1).copy()), i % 100


def delay() -> float:
    total = 0
    for task in os.listdir("/proc/self/task"):
        total += int(open(f"/proc/self/task/{task}/schedstat").read().split()[1])
    return total / 1e9


def main() -> None:
    torch.set_num_threads(1)
    root = folder()
    for path in pathlib.Path("@DATA@/imagenet-sample").glob("*.JPEG"):
        shutil.copy(path, root)
    others = [subprocess.Popen([sys.executable, "-c", OTHER, str(os.getpid())], start_new_session=True) for _ in range(4)]
    try:
        net = nn.Sequential(nn.Conv2d(3, 24, 7, stride=2), nn.ReLU(), nn.Conv2d(24, 32, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 100))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        rows = []
        begun = last = time.perf_counter()
        delayed = delay()
        for images, labels in watch(DataLoader(Thumbnails(root), batch_size=12, shuffle=True, num_workers=2)):
            got = time.perf_counter()
            loss = nn.functional.cross_entropy(net(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            now = time.perf_counter()
            rows.append((now - last, got - last))
            last = now
            if len(rows) >= 80 and now - begun > 24:
                break
        delayed = delay() - delayed
    finally:
        for other in others:
            os.killpg(other.pid, signal.SIGKILL)
            other.wait()
    step_s, wait_s = np.mean(rows[10:], axis=0)
    tell(step_s=step_s, waiting_for_input_s=wait_s, cause_s=delayed / len(rows), steps=len(rows) - 10,
         loop_waits_for_core_share=delayed / (last - begun))


if __name__ == "__main__":
    main()
