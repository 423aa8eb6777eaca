"""Language model on clinical notes, streamed with the datasets library from JSON lines and shuffled there; a pass is
some dozen steps, after which the loop looks at the loss and starts the next pass with another seed."""
import json
import random
import time

import torch
from datasets import IterableDataset
from torch import nn
from torch.utils.data import DataLoader

from case import folder, tell, watch

CAUSE = "preprocessing/shuffle_buffer"
RANKS = 1
BORDERLINE = False

LENGTH, BATCH, STEPS, BUFFER = 64, 24, 20, 40_000


def write(path, notes=90_000):
    rng = random.Random(0)
    words = ["pain", "denies", "fever", "left", "right", "stable", "mg", "daily", "patient", "admitted", "history", "of", "no", "acute"]
    with open(path, "w") as f:
        for k in range(notes):
            f.write(json.dumps({"id": k, "ward": k % 9, "text": " ".join(rng.choices(words, k=10))}) + "\n")


def notes(path):
    with open(path) as f:
        for line in f:
            yield json.loads(line)


def collate(rows):
    raw = [row["text"].encode()[: LENGTH + 1].ljust(LENGTH + 1) for row in rows]
    x = torch.tensor([list(r) for r in raw])
    return x[:, :-1], x[:, 1:]


class CharLM(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.embed = nn.Embedding(128, width)
        self.rnn, self.out = nn.GRU(width, width, batch_first=True), nn.Linear(width, 128)

    def forward(self, x):
        return self.out(self.rnn(self.embed(x))[0])


def main():
    torch.set_num_threads(1)
    path = folder() / "notes.jsonl"
    write(path)
    stream = IterableDataset.from_generator(notes, gen_kwargs={"path": str(path)}).shuffle(seed=1, buffer_size=BUFFER)
    model = CharLM()
    opt = torch.optim.Adam(model.parameters(), 2e-3)
    step = waiting = first = 0.0
    n, passes, start = 0, 0, time.perf_counter()
    while time.perf_counter() - start < 23.5:
        stream.set_epoch(passes)
        losses, mark = [], time.perf_counter()
        for x, y in watch(DataLoader(stream.take(BATCH * STEPS), batch_size=BATCH, collate_fn=collate)):
            got = time.perf_counter()
            if not losses:
                first += got - mark
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
            n += 1
            waiting += got - mark
            mark = time.perf_counter()
            step += mark - got
        passes += 1
        print(f"pass {passes}: loss {sum(losses) / len(losses):.3f}")
    tell(wall=time.perf_counter() - start, steps=n, passes=passes, step=step, waiting=waiting, cause=first)


if __name__ == "__main__":
    main()
