"""(p) A plan of 100,000 trials: expanding and checking it, and finding what a session still lacks of it."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.tables import goal

MAX_S, MAX_BYTES = 10.0, 1e9
POINTS, DONE = 100_000, 90_000
CHILD = "import sys; from bench.plan import child; child(sys.argv[1])"


@dataclass(frozen=True)
class Planned:
    """Seconds without imports, and the most memory of the process."""

    expand_s: float
    resume_s: float
    left: int
    memory_bytes: int


def measure(folder: Path) -> Planned:
    """Measure in a process of its own."""
    done = subprocess.run([sys.executable, "-c", CHILD, str(folder)], check=True, capture_output=True, text=True)
    return Planned(**json.loads(done.stdout.splitlines()[-1]))


def child(folder: str) -> None:
    """Expand, fill a store with records of nine tenths in another process, resume, and print what it took."""
    import resource
    import time

    from benchsuite.contract.trial_spec import parse_sweep
    from benchsuite.grid import expand
    from benchsuite.host.machine import this_machine
    from benchsuite.results.store.store import ResultsStore
    from benchsuite.runner import sweep

    asked = parse_sweep(big_sweep())
    start = time.perf_counter()
    plan = expand.expand(asked, this_machine())
    expand_s = time.perf_counter() - start
    fill = "import sys; from bench.plan import fill; fill(sys.argv[1])"
    subprocess.run([sys.executable, "-c", fill, folder], check=True, stdout=subprocess.DEVNULL)
    start = time.perf_counter()
    state = sweep.session_status(plan, ResultsStore(Path(folder) / "store"), "default")
    found = Planned(
        expand_s=expand_s,
        resume_s=time.perf_counter() - start,
        left=len(state.todo),
        memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )
    print(json.dumps(vars(found)))


def big_sweep() -> dict[str, object]:
    """100 batches x 2 optimizers x 500 seeds."""
    base = {
        "workload": "resnet50",
        "variant": "tiny",
        "data": {"source": "synthetic"},
        "device": "cpu",
        "measure": {"repeats": 1},
    }
    values = {
        "batch_size": [*range(1, 101)],
        "optimizer": ["sgd", "momentum"],
        "measure.seed": [*range(POINTS // 200)],
    }
    return {"name": "big", "base": base, "grid": values}


def fill(folder: str) -> None:
    """A segment with a record of each trial that is done."""
    from benchsuite.analysis.record_builder import new_attempt
    from benchsuite.contract.trial_spec import parse_sweep
    from benchsuite.grid import expand
    from benchsuite.host.machine import this_machine

    plan = expand.expand(parse_sweep(big_sweep()), this_machine())
    attempt = new_attempt(plan.points[0], "default", 0, "big", None)
    segments = Path(folder) / "store" / "segments"
    segments.mkdir(parents=True)
    with (segments / "made.jsonl").open("w") as file:
        for point in plan.points[:DONE]:
            file.write(attempt.of(point).record("ok").model_dump_json() + "\n")


def show(folder: Path) -> None:
    """Print seconds and memory."""
    print(f"(p) a plan of {POINTS:,} trials")
    found = measure(folder)
    print(f"    expanded and checked in {found.expand_s:.1f} s; {found.left:,} found left in {found.resume_s:.1f} s")
    print(f"    {found.memory_bytes / 1e9:.2f} GB of memory")
    print(goal(found.expand_s + found.resume_s <= MAX_S, f"<= {MAX_S:.0f} s in all"))
    print(goal(found.memory_bytes <= MAX_BYTES, f"<= {MAX_BYTES / 1e9:.0f} GB"))
