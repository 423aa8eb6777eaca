"""A Trainer that saves model and optimizer after each step and syncs the file before it goes on."""

import os
import time
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "waiting/checkpoint"
RANKS = 1
BORDERLINE = False


class Series(Dataset):
    def __len__(self) -> int:
        return 32 * 1000

    def __getitem__(self, i):
        t = torch.linspace(i, i + 8, 96)
        wave = torch.sin(t) + 0.1 * torch.randn(96)
        return wave[:64], wave[64:]


@dataclass
class Trainer:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    root: object
    every: int = 1
    keep: int = 2
    step: int = 0
    saved_s: float = 0.0
    rows: list = field(default_factory=list)

    def save(self) -> None:
        path = self.root / f"checkpoint-{self.step}.pt"
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step}
        with open(path, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        for old in sorted(self.root.glob("checkpoint-*.pt"), key=os.path.getmtime)[: -self.keep]:
            old.unlink()

    def fit(self, loader, least_s: float) -> None:
        begun = last = time.perf_counter()
        for past, future in loader:
            got = time.perf_counter()
            self.optimizer.zero_grad()
            loss = nn.functional.huber_loss(self.model(past), future)
            loss.backward()
            self.optimizer.step()
            self.step += 1
            saved = time.perf_counter()
            if self.step % self.every == 0:
                self.save()
            now = time.perf_counter()
            self.rows.append((now - last, got - last, now - saved))
            last = now
            if self.step >= 80 and now - begun > least_s:
                break


def main() -> None:
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 1536), nn.GELU(), nn.Linear(1536, 1536), nn.GELU(), nn.Linear(1536, 1536), nn.GELU(), nn.Linear(1536, 32))
    trainer = Trainer(model, torch.optim.AdamW(model.parameters()), folder())
    trainer.fit(watch(DataLoader(Series(), batch_size=8, num_workers=1)), 23)
    kept = trainer.rows[10:]
    step_s, wait_s, save_s = (sum(row[k] for row in kept) / len(kept) for k in range(3))
    tell(step_s=step_s, waiting_for_input_s=wait_s, cause_s=save_s, steps=len(kept))


if __name__ == "__main__":
    main()
