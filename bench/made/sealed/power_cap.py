"""A Trainer with callbacks, of which one pauses after each optimizer step to keep a laptop cool: a bit longer than the step itself takes."""
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from case import folder, tell, watch

CAUSE = "waiting/sleep"
RANKS = 1
BORDERLINE = True


class Callback:
    def on_step_end(self, trainer):
        pass


class History(Callback):
    def __init__(self):
        self.losses = []

    def on_step_end(self, trainer):
        self.losses.append(trainer.loss)


class DutyCycle(Callback):
    """Rest 60 % of the time, as `nice` does not help against heat."""

    def __init__(self, rest):
        self.rest, self.seconds = rest, []

    def on_step_end(self, trainer):
        busy = time.perf_counter() - trainer.step_began
        start = time.perf_counter()
        time.sleep(busy * self.rest / (1 - self.rest))
        self.seconds.append(time.perf_counter() - start)


class Trainer:
    def __init__(self, model, callbacks):
        self.model, self.callbacks = model, callbacks
        self.optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        self.steps, self.waits = [], []

    def training_step(self, batch):
        x, y = batch
        self.step_began = time.perf_counter()
        loss = nn.functional.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.loss = loss.item()

    def fit(self, loader, seconds):
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds:
            last = time.perf_counter()
            for batch in loader:
                self.waits.append(time.perf_counter() - last)
                self.training_step(batch)
                for callback in self.callbacks:
                    callback.on_step_end(self)
                now = time.perf_counter()
                self.steps.append(now - last)
                last = now
                if now - begin > seconds:
                    break


def main():
    folder()
    data = TensorDataset(torch.randn(2048, 3, 48, 48), torch.randint(0, 10, (2048,)))
    model = nn.Sequential(nn.Conv2d(3, 32, 3, 2), nn.ReLU(), nn.Conv2d(32, 48, 3, 2), nn.ReLU(), nn.Conv2d(48, 48, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10))
    cool = DutyCycle(0.6)
    trainer = Trainer(model, [History(), cool])
    trainer.fit(watch(DataLoader(data, batch_size=64, shuffle=True)), 21.5)
    n = len(trainer.steps) - 10
    tell(step_s=sum(trainer.steps[10:]) / n, waiting_for_input_s=sum(trainer.waits[10:]) / n, cause_s=sum(cool.seconds[10:]) / n, steps=n + 10)


if __name__ == "__main__":
    main()
