"""Phonemes: frames of speech with the phonemes of their words, which the readers look up in a lexicon. The passes are short, since each
speaker is a pass of its own."""
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import SECONDS, applied, folder, tell, watch

CAUSE = "waiting/worker_start"
RANKS = 1

ENTRIES, FRAMES, WIDTH, BATCH, STEPS, SOUNDS = 160_000, 60, 40, 16, 12, 39
LOOKED_UP = applied("cheaper_data", False)
SMALL = applied("smaller_tensors", False)


class Frames(Dataset):
    def __init__(self, path):
        self.path, self.lexicon = path, None
        self.sound = np.random.default_rng(0).normal(size=(200, FRAMES, WIDTH)).astype(np.float16 if SMALL else np.float32)
        if LOOKED_UP:
            lexicon = read_lexicon(path)
            self.known = [lexicon[word_of(i)] for i in range(BATCH * STEPS)]

    def __len__(self):
        return BATCH * STEPS

    def __getitem__(self, i):
        if LOOKED_UP:
            sounds = self.known[i]
        else:
            if self.lexicon is None:
                self.lexicon = read_lexicon(self.path)
            sounds = self.lexicon[word_of(i)]
        return torch.from_numpy(self.sound[i % 200]), torch.tensor(np.resize(sounds, 6))


def word_of(i):
    return f"word{i * 733 % ENTRIES}"


def read_lexicon(path):
    lexicon = {}
    for line in path.read_text().splitlines():
        word, *sounds = line.split()
        lexicon[word] = [int(sound) for sound in sounds]
    return lexicon


def write_lexicon(path):
    sounds = np.random.default_rng(1).integers(0, SOUNDS, (ENTRIES, 6)).tolist()
    path.write_text("".join(f"word{i} {' '.join(map(str, s))}\n" for i, s in enumerate(sounds)))


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(WIDTH, 96, batch_first=True), nn.Linear(96, SOUNDS)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, 9::10])


def main():
    torch.set_num_threads(applied("fewer_threads", 1))
    torch.manual_seed(0)
    path = folder() / "lexicon.txt"
    write_lexicon(path)
    if applied("staging", False):
        import atexit
        import shutil
        import tempfile

        fast = Path(tempfile.mkdtemp(dir="/dev/shm"))
        atexit.register(shutil.rmtree, fast, True)
        path = Path(shutil.copy(path, fast))
    workers = applied("more_workers", 2)
    loader = watch(DataLoader(
        Frames(path), batch_size=BATCH, shuffle=True, num_workers=workers, prefetch_factor=applied("longer_queue", 2) if workers else None,
        persistent_workers=applied("staying_workers", False) and workers > 0,
    ))  # fmt: skip
    model = Recogniser()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    ends = []
    while len(ends) < 8 or ends[-1] - ends[0] < SECONDS:
        for frames, sounds in loader:
            loss = nn.functional.cross_entropy(model(frames.float()).flatten(0, 1), sounds.flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
        ends.append(time.perf_counter())
    steps = STEPS * (len(ends) - 1)
    tell(step_s=(ends[-1] - ends[0]) / steps, steps=steps)


if __name__ == "__main__":
    main()
