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

from bench.pairs import Ratio, interleaved, over_processes, pairs
from bench.tables import goal
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore
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
"""Of the layers; the CPU's is scaled until a step takes `STEP_S` here."""
STEP_S = 0.01
STEPS, PROCESSES, PAIRS, WARM_UP = 32, 3, 64, 12
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


def training(device: str, width: int) -> list[str]:
    return [sys.executable, "-c", TRAINING, device, str(width), str(STEPS)]


def step_s(command: list[str]) -> float:
    """Seconds of a step of a training."""
    with trained(*command) as steps:
        return median(steps("off") for _ in range(WARM_UP)) / STEPS


def width_of(device: str) -> int:
    """The width with which a step takes about as long as is asked for; its time grows with the square."""
    width = WIDTHS[device]
    return width if device == "cuda" else round(width * (STEP_S / step_s(training(device, width))) ** 0.5)


def cost(folder: Path, device: str) -> dict[str, Ratio]:
    """Ratios of blocks of steps, a pass each, in interleaved pairs within processes."""
    plain = training(device, width_of(device))
    print(f"    {device}: a step takes {step_s(plain) * 1e3:.1f} ms")
    print(f"    {device}: `run` says that it takes {own_fraction(folder / 'own', plain):.2%} of it")
    command = below_run(folder, *plain)
    compared = {"measured / not": "on", "null run: not / not": "off"}
    ratios: dict[str, list[list[float]]] = {name: [] for name in compared}
    for _ in range(PROCESSES):
        with trained(*command) as steps:
            for name, how in compared.items():
                ratios[name].append(pairs(partial(steps, how), partial(steps, "off"), PAIRS))
    return {name: over_processes(found) for name, found in ratios.items()}


def own_fraction(folder: Path, plain: list[str]) -> float:
    """Share of the step that `run` itself says it takes."""
    with trained(*below_run(folder, *plain)) as steps:
        for _ in range(WARM_UP):
            steps("on")
    (record,) = ResultsStore(folder / "store").records()
    assert isinstance(record, TrialRecord) and record.figures.overhead_fraction is not None
    return record.figures.overhead_fraction


def seconds(command: list[str], env: Mapping[str, str] | None = None) -> float:
    """How long a command takes."""
    began_s = time.perf_counter()
    subprocess.run(command, env=env, check=True, capture_output=True)
    return time.perf_counter() - began_s


def until_first_step_s(command: list[str]) -> float:
    """How long it takes until a training has done its first step."""
    began_s = time.time()
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) - began_s


def show_more(what: str, ours: Callable[[], float], plain: Callable[[], float], times: int, most_s: float) -> None:
    """Print by how much one takes longer than the other, with its interval."""
    ratio, plain_s = interleaved(ours, plain, times), plain()
    more_ms = [(each - 1) * plain_s * 1e3 for each in (ratio.median, ratio.low, ratio.high)]
    print(f"    {what}: {more_ms[0]:.1f} ms more [{more_ms[1]:.1f} {more_ms[2]:.1f}]")
    print(goal(more_ms[1] <= most_s * 1e3, f"lower bound <= {most_s * 1e3:.0f} ms"))


def show(folder: Path) -> None:
    """Print ratios and seconds."""
    print(f"a training below `benchsuite run` over the same without: {STEPS} steps in turn")
    for device in ("cpu", "cuda"):
        if device == "cuda" and not torch.cuda.is_available():
            print("    cuda: no device here")
            continue
        for name, ratio in cost(folder, device).items():
            print(f"    {device}, {name}: {ratio}")
            if name.startswith("measured"):
                print(goal(ratio.low <= MAX_RATIO, f"lower bound <= {MAX_RATIO}"))
    once = [sys.executable, "-c", ONE_STEP, "cpu", "64", "1"]
    below = below_run(folder, *once)
    until_s = until_first_step_s
    show_more("until the end of the first step", lambda: until_s(below), lambda: until_s(once), STARTS, MAX_START_S)
    env = {**os.environ, **Run(Options(folder / "store")).environment()}
    for name, code in OTHER_PROCESSES.items():
        other = partial(seconds, [sys.executable, "-c", code])
        show_more(f"a process that does not train, {name}", partial(other, env), other, OTHERS, MAX_BESIDE_S)
