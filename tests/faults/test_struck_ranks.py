"""Ranks, workers, memory and data struck in mid-trial, in one sweep: named, survived, and nothing of them is left."""

import shutil
from pathlib import Path

from benchsuite.analysis.failure import hung
from tests.faults.conftest import Bench
from tests.faults.enclosure import NEEDS_ROOT, host
from tests.faults.plugin.struck import DATASET, FILLER, WARMUP_STEPS

MEMORY_BYTES = 2_500_000_000
EXPECTED = {
    "in_warmup": ("failed", "warmup", "rank 1, in phase warmup, step 1 of ", "killed by SIGKILL"),
    "in_loader": ("failed", "measure", "rank 1, in phase measure, step ", "killed by SIGKILL"),
    "in_collective": ("failed", "measure", "rank 1, in phase measure, step ", "killed by SIGKILL"),
    "worker": ("failed", "measure", "rank 1, in phase measure, step ", "is killed by signal: Killed."),
    "eats": ("oom", "measure", "rank 1, in phase measure, step ", "killed by SIGKILL (out of memory)"),
    "removes_data": ("failed", "measure", "rank ", f"{DATASET}/"),
    "removed": ("failed", "start", "rank ", DATASET),
    "fills_shm": ("ok", "done", "", ""),
    "no_shared_memory": ("failed", "load", "rank ", "No space left on device: /dev/shm is full"),
    "frees_shm": ("ok", "done", "", ""),
    "nothing": ("ok", "done", "", ""),
}


def sweep_of(root: Path, folder: Path, with_limit: bool) -> dict[str, object]:
    base = {
        "workload": "struck",
        "variant": "nothing",
        "data": {"root": str(root / "files"), "format": "files", "cache": "warm", "num_workers": 1},
        "parallelism": "ddp",
        "world_size": 2,
        "batch_size": 2,
        "device": "cpu",
        "threads_per_rank": 1,
        "measure": {"steps": 12, "warmup_steps": WARMUP_STEPS, "repeats": 1, "ceilings": False, "timeout_s": 60},
    }
    struck = [{"variant": name} for name in ("in_warmup", "in_collective", "worker")]
    struck += [{"variant": "eats"}] if with_limit else []  # else it would take all memory of this host
    struck.append({"variant": "in_loader", "data.num_workers": 0})
    gone = {"data.root": str(folder / DATASET)}
    struck += [{"variant": "removes_data", **gone}, {"variant": "nothing", **gone}]
    struck += [{"variant": "fills_shm", "data.num_workers": 0}, {"variant": "nothing", "batch_size": 4}]
    struck += [{"variant": "frees_shm", "data.num_workers": 0}, {"variant": "nothing"}]
    return {"name": "struck", "base": base, "grid": {"variant": ["in_warmup"]}, "include": struck}


def name_of(record: dict[str, object]) -> str:
    spec = record["spec"]
    assert isinstance(spec, dict)
    if spec["batch_size"] == 4:
        return "no_shared_memory"
    gone = spec["data"]["root"].endswith(DATASET) and spec["variant"] == "nothing"
    return "removed" if gone else str(spec["variant"])


@NEEDS_ROOT
def test_each_strike_is_a_record_that_names_its_cause(bench: Bench, dataset_root: Path) -> None:
    shutil.copytree(dataset_root / "files", bench.folder / DATASET)
    with host(bench.folder, shm="1m", memory_bytes=MEMORY_BYTES) as small:
        bench.before = small.before
        code, out, err = bench.sweep(bench.write(sweep_of(dataset_root, bench.folder, small.limits_memory)))
        assert bench.wait_gone() == []
    assert code == 3 and "Traceback" not in out + err, err
    assert small.left.read_text() == "", "shared memory or ports were left"
    assert bench.leftovers() == []
    records = bench.records()
    assert [name_of(record) for record in records][-1] == "nothing", "the sweep went on to its last point"
    found = {name_of(record): record for record in records}
    expected = {name: of_it for name, of_it in EXPECTED.items() if name != "eats" or small.limits_memory}
    assert found.keys() == expected.keys() and len(records) == len(expected)
    for name, (status, phase, start, words) in expected.items():
        record = found[name]
        reason = record["reason"] or ""
        assert record["status"] == status, (name, reason)
        assert reason.startswith(start) and words in reason and "\n" not in reason, (name, reason)
        assert phase in record["phase"], (name, record["phase"])
        left = [text for text in record["caveat_details"] if text.startswith("left_behind")]
        assert left == ([f"left_behind: {FILLER} (1.0 MB)"] if name == "fills_shm" else [])
        assert (record["figures"]["samples_per_s"] is None) == (status != "ok")


def test_a_rank_that_is_silent_where_others_tell_their_stack_is_named(tmp_path: Path) -> None:
    """A stopped process cannot write where it hangs."""
    stack = 'Current thread 0x1 (most recent call first):\n  File "graph.py", line 979 in _engine_run_backward\n'
    assert hung(tmp_path, range(2), 2) == "", "nobody tells: nothing is known"
    (tmp_path / "rank-0.log").write_text(stack)
    at = ', at File "graph.py", line 979 in _engine_run_backward'
    assert hung(tmp_path, range(1), 1) == at
    at = at.replace(", at", ", rank 0 at")
    assert hung(tmp_path, range(2), 2) == f"{at}; rank 1 gave no sign of life: stopped, or stuck in the kernel"
    (tmp_path / "rank-2.log").write_text("a warning\n")
    assert hung(tmp_path, range(3), 3) == f"{at}; ranks 1, 2 gave no sign of life: stopped, or stuck in the kernel"


def test_of_ranks_that_tell_their_stack_one_that_is_not_in_torch_is_named(tmp_path: Path) -> None:
    """Ranks that wait for another stand in a collective, or in backward."""
    head = "Current thread 0x1 (most recent call first):\n"
    waiting = f'{head}  File "/env/lib/torch/autograd/graph.py", line 979 in _engine_run_backward\n'
    for rank, stack in enumerate((waiting, waiting, f'{head}  File "/mine/data.py", line 3 in __getitem__\n')):
        (tmp_path / f"rank-{rank}.log").write_text(stack)
    assert hung(tmp_path, range(3), 3) == ', rank 2 at File "/mine/data.py", line 3 in __getitem__'
    assert hung(tmp_path, range(2), 3).startswith(', rank 0 at File "/env/lib/torch/autograd')
