"""A stream of Hugging Face datasets with shuffle(buffer_size=16000) of which an epoch takes 192 samples: each epoch
fills the buffer anew before its first batch."""
CAUSE = "preprocessing/shuffle_buffer"
RANKS = 1
BORDERLINE = False

import os
import random
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

from case import folder, tell, watch

TEXT = "@DATA@/text/tinyshakespeare.txt"
CONTEXT, BATCH, STEPS_PER_EPOCH, BUFFER = 256, 16, 12, 16_000


def windows(path):
    text = Path(path).read_text()
    index = {c: i for i, c in enumerate(sorted(set(text)))}
    rng = random.Random(4)
    while True:
        at = rng.randrange(len(text) - CONTEXT - 1)
        yield {"ids": [index[c] for c in text[at : at + CONTEXT + 1]]}


def stack(samples):
    return torch.tensor([sample["ids"] for sample in samples])


class CausalConv(nn.Module):
    def __init__(self, words=65, width=48):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.convs = nn.ModuleList([nn.Conv1d(width, width, 4, dilation=d) for d in (1, 4, 16)])
        self.out = nn.Linear(width, words)

    def forward(self, ids):
        x = self.words(ids).transpose(1, 2)
        for conv in self.convs:
            x = x + torch.relu(conv(nn.functional.pad(x, (3 * conv.dilation[0], 0))))
        return self.out(x.transpose(1, 2))


def main():
    torch.set_num_threads(1)
    os.environ["HF_HOME"] = str(folder() / "hf")
    os.environ["HF_HUB_OFFLINE"] = "1"
    from datasets import IterableDataset

    stream = IterableDataset.from_generator(windows, gen_kwargs={"path": TEXT})
    stream = stream.shuffle(seed=1, buffer_size=BUFFER).take(STEPS_PER_EPOCH * BATCH)
    loader = DataLoader(stream, batch_size=BATCH, collate_fn=stack, num_workers=1, persistent_workers=True)
    loader = watch(loader)
    model = CausalConv()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    steps = epochs = 0
    step_s = first_s = later_s = 0.0
    start = time.perf_counter()
    while time.perf_counter() - start < 24 or steps < 60:
        epochs += 1
        before = time.perf_counter()
        for i, ids in enumerate(loader):
            now = time.perf_counter()
            if i == 0:
                first_s += now - before
            else:
                later_s += now - before
            logits = model(ids[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            before = time.perf_counter()
            step_s += before - now
    wall = time.perf_counter() - start
    tell(steps=steps, epochs=epochs, wall_s=wall, step_s=step_s, wait_s=first_s + later_s, first_batches_s=first_s)


if __name__ == "__main__":
    main()
