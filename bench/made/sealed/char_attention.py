"""A small transformer on letters, with gradient accumulation over four batches; the batches are slices of a tensor in memory."""
import shutil
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from case import folder, tell, watch

CAUSE = "compute/compute"
RANKS = 1
BORDERLINE = False


class Letters(nn.Module):
    def __init__(self, size, width=96, length=64):
        super().__init__()
        self.embed, self.place = nn.Embedding(size, width), nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, norm_first=True, dropout=0.0)
        self.body, self.head = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), nn.Linear(width, size)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, x):
        return self.head(self.body(self.embed(x) + self.place, mask=self.mask, is_causal=True))


def main():
    path = folder() / "text.txt"
    shutil.copy("@DATA@/text/tinyshakespeare.txt", path)
    text = path.read_text()
    letters = {letter: i for i, letter in enumerate(sorted(set(text)))}
    ids = torch.tensor([letters[letter] for letter in text])
    windows = ids[: len(ids) // 65 * 65].view(-1, 65)
    model = Letters(len(letters))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    rows = []
    begin = last = time.perf_counter()
    for number, (batch,) in enumerate(watch(DataLoader(TensorDataset(windows), batch_size=32, shuffle=True))):
        got = time.perf_counter()
        logits = model(batch[:, :-1])
        (nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()) / 4).backward()
        if number % 4 == 3:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        now = time.perf_counter()
        rows.append((now - last, got - last, now - got))
        last = now
        if now - begin > 21.5 and len(rows) > 75:
            break
    step, wait, body = torch.tensor(rows[10:]).mean(0).tolist()
    tell(step_s=step, waiting_for_input_s=wait, cause_s=body, steps=len(rows))


if __name__ == "__main__":
    main()
