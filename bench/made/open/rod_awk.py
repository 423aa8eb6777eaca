"""A surrogate of an old simulator: each sample starts the simulator (an awk script of a heated rod) as a program of its
own, and the loop waits until it has printed its answer."""
CAUSE = "waiting/child_process"
RANKS = 1
BORDERLINE = False

import random
import subprocess
import time

import torch
from torch import nn

from case import folder, tell, watch

SIMULATOR = """
BEGIN {
  n = 64
  for (i = 0; i <= n + 1; i++) t[i] = 0
  for (s = 0; s < 900; s++) {
    t[0] = left; t[n + 1] = right
    for (i = 1; i <= n; i++) u[i] = t[i] + k * (t[i - 1] - 2 * t[i] + t[i + 1])
    for (i = 1; i <= n; i++) t[i] = u[i]
  }
  for (i = 1; i <= n; i++) printf "%.5f ", t[i]
}
"""


class Simulations:
    def __init__(self, script, batches, size):
        self.script, self.batches, self.size = script, batches, size
        self.child_s = 0.0

    def simulate(self, k, left, right):
        began = time.perf_counter()
        done = subprocess.run(
            ["awk", "-v", f"k={k}", "-v", f"left={left}", "-v", f"right={right}", "-f", self.script],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        self.child_s += time.perf_counter() - began
        return [float(word) for word in done.stdout.split()]

    def __iter__(self):
        rng = random.Random(9)
        for _ in range(self.batches):
            inputs = [[rng.uniform(0.1, 0.5), rng.uniform(-1, 1), rng.uniform(-1, 1)] for _ in range(self.size)]
            yield torch.tensor(inputs), torch.tensor([self.simulate(*values) for values in inputs])


def main():
    torch.set_num_threads(1)
    script = folder() / "rod.awk"
    script.write_text(SIMULATOR)
    source = Simulations(str(script), batches=1000, size=4)
    model = nn.Sequential(nn.Linear(3, 256), nn.SiLU(), nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, 64))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step_s = wait_s = 0.0
    steps, start = 0, time.perf_counter()
    last = start
    for inputs, rods in watch(source):
        got = time.perf_counter()
        wait_s += got - last
        loss = nn.functional.mse_loss(model(inputs), rods)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
        last = time.perf_counter()
        step_s += last - got
        if steps >= 100 and last - start > 24:
            break
    tell(steps=steps, wall_s=time.perf_counter() - start, step_s=step_s, wait_s=wait_s, child_s=source.child_s)


if __name__ == "__main__":
    main()
