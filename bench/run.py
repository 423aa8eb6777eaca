"""What `benchsuite run` costs: a training below it over the same one without, and what processes take to start."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import torch

from bench.pairs import Ratio, over_processes, pairs
from bench.tables import goal
from benchsuite.watcher.run_folder import Options, Run

MAX_RATIO, MAX_START_S, MAX_BESIDE_S = 1.01, 0.3, 0.01
TRAINING = """
import itertools, sys, time, torch
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
device, width, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
layers = [torch.nn.Linear(width, width), torch.nn.ReLU()] * 4
net = torch.nn.Sequential(*layers, torch.nn.Linear(width, 1)).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(torch.randn(4096, width), torch.randn(4096, 1)), 32, shuffle=True, drop_last=True)
batches = itertools.chain.from_iterable(itertools.repeat(loader))
settle = torch.cuda.synchronize if device == "cuda" else bool
for line in sys.stdin:
    job = sys.modules.get("_benchsuite_inside.job")
    if job is not None and job._job is not None:
        job._job.guard.is_off = line.strip() == "off"
    began_s = time.perf_counter()
    for x, y in itertools.islice(batches, steps):
        loss = (net(x.to(device)) - y.to(device)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    settle()
    print(time.perf_counter() - began_s, flush=True)
"""
"""A training that does so many steps each time it is told to, measured or not, and says how long they took. That of one
process and another differs by more than is looked for here."""
WIDTHS = {"cpu": 832, "cuda": 4096}
"""With which a step takes about 10 ms on a core of 2020, or some on a device."""
STEPS, PROCESSES, PAIRS, WARM_UP = 128, 3, 16, 3
STARTS, OTHERS = 11, 21
ONE_STEP = TRAINING.replace("sys.stdin:", "['on']:").replace("perf_counter() - began_s", "time()")
"""A training of one step, which says when it has ended."""
OTHER_PROCESSES = {"Python alone": "pass", "with torch imported": "import torch.utils.data, torch.optim"}


def below_run(folder: Path, *command: str) -> list[str]:
    """A command below `benchsuite run`."""
    return [str(Path(sys.executable).with_name("benchsuite")), "run", "--store", str(folder / "store"), "--", *command]


@contextmanager
def trained(*command: str) -> Iterator[Callable[[str], float]]:
    """A training that has begun; each call has it do some steps, measured (`on`) or not, and returns their seconds."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        tell, told = process.stdin, process.stdout

        def steps(how: str) -> float:
            print(how, file=tell, flush=True)
            return float(told.readline())

        for _ in range(WARM_UP):
            steps("on")
        yield steps
        tell.close()


def cost(folder: Path, device: str) -> dict[str, Ratio]:
    """Ratios of blocks of steps, a pass each, in interleaved pairs within processes."""
    command = below_run(folder, sys.executable, "-c", TRAINING, device, str(WIDTHS[device]), str(STEPS))
    compared = {"measured / not": "on", "null run: not / not": "off"}
    ratios: dict[str, list[list[float]]] = {name: [] for name in compared}
    for _ in range(PROCESSES):
        with trained(*command) as steps:
            for name, how in compared.items():
                ratios[name].append(pairs(partial(steps, how), partial(steps, "off"), PAIRS))
    return {name: over_processes(found) for name, found in ratios.items()}


def seconds(command: list[str], env: Mapping[str, str] | None = None) -> float:
    """How long a command takes."""
    began_s = time.perf_counter()
    subprocess.run(command, env=env, check=True, capture_output=True)
    return time.perf_counter() - began_s


def until_first_step_s(command: list[str]) -> float:
    """How long it takes until a training has done its first step."""
    began_s = time.time()
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) - began_s


def more_s(ours: Callable[[], float], plain: Callable[[], float], times: int) -> float:
    """By how much one takes longer than the other: the median over pairs, the order of each swapped."""
    found = []
    for number in range(times):
        first, second = (ours, plain) if number % 2 else (plain, ours)
        one_s, other_s = first(), second()
        found.append(one_s - other_s if number % 2 else other_s - one_s)
    return median(found)


def show(folder: Path) -> None:
    """Print ratios and seconds."""
    print(f"a training below `benchsuite run` over the same without: passes of {STEPS} steps")
    for device in ("cpu", "cuda"):
        if device == "cuda" and not torch.cuda.is_available():
            print("    cuda: no device here")
            continue
        for name, ratio in cost(folder, device).items():
            print(f"    {device}, {name}: {ratio}")
            if name.startswith("measured"):
                print(goal(ratio.low <= MAX_RATIO, f"lower bound <= {MAX_RATIO}"))
    once = [sys.executable, "-c", ONE_STEP, "cpu", "64", "1"]
    start_s = more_s(lambda: until_first_step_s(below_run(folder, *once)), lambda: until_first_step_s(once), STARTS)
    print(f"    the first step has ended {start_s * 1e3:.0f} ms later")
    print(goal(start_s <= MAX_START_S, f"<= {MAX_START_S * 1e3:.0f} ms"))
    env = {**os.environ, **Run(Options(folder / "store")).environment()}
    for name, code in OTHER_PROCESSES.items():
        other = [sys.executable, "-c", code]
        beside_s = more_s(lambda other=other: seconds(other, env), lambda other=other: seconds(other), OTHERS)  # type: ignore[misc]
        print(f"    a process that does not train, {name}: {beside_s * 1e3:.1f} ms more")
        print(goal(beside_s <= MAX_BESIDE_S, f"<= {MAX_BESIDE_S * 1e3:.0f} ms"))
