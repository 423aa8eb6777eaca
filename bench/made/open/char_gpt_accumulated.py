"""A character GPT with gradient accumulation, whose single worker of pure Python prepares its batches in time."""

import pathlib
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "compute/compute"
RANKS = 1
BORDERLINE = False

CONTEXT = 96


class Characters(Dataset):
    def __init__(self, path) -> None:
        self.text = path.read_text()
        self.vocabulary = {c: i for i, c in enumerate(sorted(set(self.text)))}

    def __len__(self) -> int:
        return 24 * 400

    def __getitem__(self, i):
        start = (i * 7919) % (len(self.text) - CONTEXT * 40)
        # the rarest of forty windows, so that rare words are seen more often
        best, score = None, -1
        for k in range(40):
            window = self.text[start + k * CONTEXT : start + (k + 1) * CONTEXT + 1]
            kinds = len({self.vocabulary[c] for c in window})
            if kinds > score:
                best, score = window, kinds
        ids = torch.tensor([self.vocabulary[c] for c in best])
        return ids[:-1], ids[1:]


class Gpt(nn.Module):
    def __init__(self, words: int, width: int = 128, depth: int = 3) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.zeros(CONTEXT, width))
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True) for _ in range(depth))
        self.head = nn.Linear(width, words)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def forward(self, x):
        h = self.words(x) + self.places
        for layer in self.blocks:
            h = layer(h, src_mask=self.mask, is_causal=True)
        return self.head(h)


def main() -> None:
    torch.set_num_threads(1)
    path = folder() / "input.txt"
    path.write_text(pathlib.Path("@DATA@/text/tinyshakespeare.txt").read_text())
    data = Characters(path)
    model = Gpt(len(data.vocabulary))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    loader = DataLoader(data, batch_size=24, shuffle=True, num_workers=1)
    rows = []
    begun = last = time.perf_counter()
    for step, (x, y) in enumerate(watch(loader)):
        got = time.perf_counter()
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()) / 4
        loss.backward()
        if step % 4 == 3:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        now = time.perf_counter()
        rows.append((now - last, got - last, now - got))
        last = now
        if len(rows) >= 90 and now - begun > 22:
            break
    rows = torch.tensor(rows[10:], dtype=torch.float64)
    step_s, wait_s, compute_s = rows.mean(0).tolist()
    tell(step_s=step_s, waiting_for_input_s=wait_s, cause_s=compute_s, steps=len(rows))


if __name__ == "__main__":
    main()
