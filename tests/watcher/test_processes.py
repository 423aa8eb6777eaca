"""Watched loops of several processes: workers, forks, ranks, and interpreters that end."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch.utils.data import DataLoader, Dataset

from benchsuite.inside.processes import tree_cpu_s
from benchsuite.results.store.store import ResultsStore
from tests.helpers.watching import Files, watched

SPIN = "while True: pass"
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("persistent", [True, False])
def test_bytes_of_workers(tmp_path: Path, persistent: bool):
    loader = DataLoader(Files(tmp_path, 40), batch_size=2, num_workers=2, persistent_workers=persistent)
    watch = watched(loader)
    for _ in range(3):
        for _ in watch:
            pass
    loop = watch._ending.loop
    watch.close()
    read = loop.counted.read_call_bytes
    starts = 2 if persistent else 6  # a worker's start reads some hundred kB itself
    assert read is not None and 3 * 40 * 100_000 <= read < 3 * 40 * 100_000 + starts * 1_000_000
    assert watch.figures["read_call_bytes_per_s"] == pytest.approx(read / loop.counted.wall_s)
    assert loop.readers.num_readers == 2


@pytest.mark.weekly
def test_busy_and_waiting_workers_are_told_apart():
    found = {}
    for name in ("preprocessing", "storage"):
        loader = DataLoader(_Samples(busy=name == "preprocessing"), batch_size=1, num_workers=1)
        watch = watched(loader)
        for _ in watch:
            pass
        watch.close()
        found[name] = watch.figures
    assert [figures["bottleneck"] for figures in found.values()] == ["preprocessing", "waiting"]
    assert found["preprocessing"]["worker_busy_fraction"] > 0.7 > 0.2 > found["storage"]["worker_busy_fraction"]


def test_own_cpu_time_stays_when_a_child_is_reaped():
    before = tree_cpu_s()
    child = subprocess.Popen([sys.executable, "-c", SPIN])
    while tree_cpu_s() - before < 0.05:
        time.sleep(0.01)
    child.kill()
    alive = tree_cpu_s()
    child.wait()
    assert tree_cpu_s() >= alive >= before + 0.05


@pytest.mark.weekly
def test_who_else_keeps_cores_busy_is_told():
    """A process that is no child of ours spins beside a loop that sleeps; what the loop has begun itself is its own."""
    found = []
    for starts in (subprocess.Popen, orphan):
        spinning = starts([sys.executable, "-c", SPIN])
        watch = watched([0] * 80)
        try:
            for _ in watch:
                time.sleep(0.01)
        finally:
            os.kill(spinning if isinstance(spinning, int) else spinning.pid, signal.SIGKILL)
        watch.close()
        found.append(watch.figures["foreign_cpu_cores"])
    assert found[1] - found[0] > 0.1


def orphan(command: list[str]) -> int:
    """A process that is nobody's child here; its id."""
    code = f"import subprocess; print(subprocess.Popen({command!r}, stdout=subprocess.DEVNULL).pid)"
    return int(subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True).stdout)


class _Samples(Dataset[int]):
    """Samples of 10 ms: of work, or of waiting."""

    def __init__(self, busy: bool) -> None:
        self.busy = busy

    def __len__(self) -> int:
        return 60

    def __getitem__(self, row: int) -> int:
        until = time.perf_counter() + 0.01
        while self.busy and time.perf_counter() < until:
            pass
        time.sleep(0 if self.busy else 0.01)
        return row


def in_new_process(code: str, expect: int = 0) -> str:
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == expect, result.stderr
    return result.stderr + result.stdout


def test_import_stays_light():
    assert in_new_process("import sys, benchsuite; print({'torch', 'numpy'} & {*sys.modules})") == "set()\n"


def test_the_name_stays_a_function_whatever_is_imported_first():
    said = in_new_process("import benchsuite.watcher.watch, benchsuite; print(callable(benchsuite.watch))")
    assert said == "True\n"


def test_a_watch_that_is_still_open_ends_with_the_process(tmp_path: Path):
    said = in_new_process(
        f"""
import os, sys, benchsuite
watch = benchsuite.watch(range(40), warmup_steps=2, store={str(tmp_path)!r}, name="open")
for number in watch:
    if number == 5 and os.fork() == 0:
        sys.exit(0)
    if number == 32:
        raise ValueError("too bad")
""",
        expect=1,
    )
    assert said.count("open · 30 steps counted") == 1, said
    assert "the loop ended by ValueError" in said
    assert ResultsStore(tmp_path).records()[0].caveats == ["cut_short"]


@pytest.mark.parametrize("holds", ["", "sys.held = batches", "benchsuite.held = batches"])
def test_an_iterator_that_is_held_until_the_process_ends_costs_no_traceback(holds: str):
    """It would be closed when Python has torn down what its end uses."""
    said = in_new_process(f"""
import sys, time, benchsuite, torch
loader = torch.utils.data.DataLoader(range(60))
batches = iter(benchsuite.watch(loader, warmup_steps=2, name="held"))
{holds}
for _ in range(40):
    next(batches)
    time.sleep(0.02)
""")
    assert "held · 37 steps counted" in said
    assert "Traceback" not in said and "Exception ignored" not in said, said


RANKS = """
import os, sys, time
import torch.distributed as dist
import benchsuite
rank = int(os.fork() == 0)
dist.init_process_group("gloo", init_method="file://{folder}/meet", rank=rank, world_size=2)
for batch in benchsuite.watch([list(range(4))] * 20, store="{folder}/store", name="two", batch_size=4, warmup_steps=0):
    time.sleep(0.004 + 0.006 * rank)
    dist.barrier()
sys.stderr.flush()
if rank == 0:
    os.wait()
os._exit(0)
"""


def test_ranks_speak_with_one_voice(tmp_path: Path):
    said = in_new_process(RANKS.format(folder=tmp_path))
    assert said.count("two · 20 steps counted on each of 2 ranks") == 1, said
    (record,) = ResultsStore(tmp_path / "store").records()
    samples = ResultsStore(tmp_path / "store").samples(record)
    assert samples is not None and [rank["rank"] for rank in samples["ranks"]] == [0, 1]
    assert record.label == "two · 2 ranks" and record.spec["world_size"] == 2
    slowest = max(rank["blocks"][0]["end_s"] for rank in samples["ranks"])
    assert record.figures.samples_per_s == pytest.approx(2 * 20 * 4 / slowest)
    assert json.loads(json.dumps(samples["ranks"])) == samples["ranks"]


def test_an_iterator_that_is_still_held_leaves_its_counters(tmp_path: Path):
    """Training by numbers of steps asks for no more than it needs, and keeps the iterator."""
    watch = watched(DataLoader(Files(tmp_path, 60), batch_size=1))
    batches = iter(watch)
    for _ in range(50):
        next(batches)
        time.sleep(0.01)
    watch.close()
    counted = watch._ending.loop.counted
    assert counted.read_call_bytes >= 10 * 100_000 and counted.wall_s > 0.1
    assert watch.figures["read_call_bytes_per_s"] == counted.read_call_bytes / counted.wall_s


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody to whom the kernel shows less")
def test_a_process_to_which_the_kernel_hides_its_calls_is_seen_to_be_one():
    """After `setuid` it may not read what its own threads wait for: nothing follows from that."""
    said = in_new_process("""
import os, time, torch.utils.data
import benchsuite, benchsuite.watcher.watch, benchsuite.watcher.answer
os.environ["HOME"] = "/nonexistent"
os.setgid(65534), os.setuid(65534)

def batches():
    for number in range(60):
        time.sleep(0.02)
        yield number

with benchsuite.watch(batches(), name="hidden", quiet=True) as watch:
    for _ in watch:
        pass
    print({*watch._ending.loop.looker.tally.load})
""")
    assert said == "{'hidden'}\n"
