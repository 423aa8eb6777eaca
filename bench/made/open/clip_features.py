"""Action recognition on features of clips that another job extracted into one .pt file; too large to load, so it is
opened with torch.load(mmap=True) in the worker. The extraction has shuffled the clips; they are taken in their order."""
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import evict, folder, slow_disk, tell, watch
from t_timers import Timers

CAUSE = "storage/mapped_pages"
RANKS = 1
BORDERLINE = False

CLIPS, FRAMES, WIDTH = 440, 128, 1024


class ClipFeatures(Dataset):
    def __init__(self, path, labels):
        self.path, self.labels, self.features = path, labels, None

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        if self.features is None:
            self.features = torch.load(self.path, mmap=True)["features"]
            self.timers = Timers()
        with self.timers.part("pages"):
            clip = self.features[i].clone()
        self.timers.sample()
        return clip, self.labels[i]


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(WIDTH, 64)
        self.conv = nn.Conv1d(64, 64, 5, padding=2)
        self.out = nn.Linear(64, 12)

    def forward(self, x):
        x = torch.relu(self.inp(x)).transpose(1, 2)
        return self.out(torch.relu(self.conv(x)).amax(2))


def main():
    torch.set_num_threads(1)
    root = folder()
    path = root / "k400_features.pt"
    g = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 12, (CLIPS,), generator=g)
    features = torch.rand(CLIPS, FRAMES, WIDTH, generator=g) + 0.02 * labels[:, None, None]
    torch.save({"features": features}, path)
    torch.save({"labels": labels}, root / "k400_labels.pt")
    del features
    evict(path)
    labels = torch.load(root / "k400_labels.pt")["labels"]
    model = Head()
    opt = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
    model(torch.zeros(1, FRAMES, WIDTH)).mean().backward()
    opt.step()
    step = waiting = 0.0
    n = 0
    with slow_disk(root, 9_000_000):
        loader = DataLoader(ClipFeatures(path, labels), batch_size=4, num_workers=1)
        start = mark = time.perf_counter()
        for x, y in watch(loader):
            got = time.perf_counter()
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            n += 1
            waiting += got - mark
            mark = time.perf_counter()
            step += mark - got
            if mark - start > 24:
                break
        wall = time.perf_counter() - start
    tell(wall=wall, steps=n, step=step, waiting=waiting)


if __name__ == "__main__":
    main()
