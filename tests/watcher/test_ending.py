"""What ends a watch, and what goes on: loops over epochs that watch their loader anew in each."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import benchsuite
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore


def ended(script: str, folder: Path) -> tuple[list[TrialRecord], str]:
    """The records of a script in whose end nothing is held, and what it printed to stderr."""
    path = folder / "train.py"
    path.write_text(textwrap.dedent(script))
    command = [sys.executable, str(path), str(folder / "store")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return [*ResultsStore(folder / "store").trials()], done.stdout + done.stderr


EPOCHS = """
    import sys, time
    import benchsuite

    def batches():
        for number in range(20):
            time.sleep(0.002)
            yield number

    def epoch(**asked):
        for _ in benchsuite.watch(batches(), store=sys.argv[1], **asked):
            time.sleep(0.002)
"""


def test_epochs_that_watch_anew_are_one_loop(tmp_path: Path) -> None:
    records, said = ended(f"{EPOCHS}\n    for _ in range(5):\n        epoch()\n", tmp_path)
    assert len(records) == 1
    heads = [line for line in said.splitlines() if "steps counted" in line]
    assert [head.split(" · ")[1] for head in heads] == [
        "15 steps counted so far. The steps of the next loader watched here are added. "
        "The answer comes with 30 steps, or at the end.",
        "2 passes, 35 steps counted, 5 before",
        "4 passes, 75 steps counted, 5 before",
        "5 passes, 95 steps counted, 5 before",
    ]


@pytest.mark.parametrize("calls", ['epoch(name="b")', "epoch(warmup_steps=2)"])
def test_what_is_asked_for_otherwise_is_a_loop_of_its_own(tmp_path: Path, calls: str) -> None:
    records, _ = ended(f"{EPOCHS}\n    for _ in range(2):\n        epoch()\n    {calls}\n", tmp_path)
    assert len(records) == 2


def test_loops_of_two_callers_are_two(tmp_path: Path) -> None:
    records, _ = ended(f"{EPOCHS}\n    epoch()\n    epoch()\n", tmp_path)
    assert len(records) == 2


def test_a_pass_of_enough_steps_but_few_seconds_is_one_epoch_of_many(tmp_path: Path) -> None:
    """In so short a time its threads are looked at too rarely."""
    script = EPOCHS.replace("range(20)", "range(40)")
    records, said = ended(f"{script}\n    for _ in range(2):\n        epoch()\n", tmp_path)
    assert len(records) == 1
    assert [f"{passes}{steps} steps counted" in said for passes, steps in (("", 35), ("2 passes, ", 75))] == [True] * 2


def test_a_long_loop_ends_with_its_pass(tmp_path: Path) -> None:
    script = EPOCHS.replace("range(20)", "range(40)")
    script += "\n    import benchsuite.watcher.ending\n    benchsuite.watcher.ending.SHORT_S = 0.0\n"
    records, _ = ended(f"{script}\n    for _ in range(2):\n        epoch()\n", tmp_path)
    assert len(records) == 2


def test_workers_that_stay_do_so_though_each_epoch_watches_anew(tmp_path: Path) -> None:
    """As they do where nothing is watched."""
    script = """
        import os, sys
        import torch
        import benchsuite
        from torch.utils.data import DataLoader, Dataset

        class Pids(Dataset):
            def __len__(self):
                return 24

            def __getitem__(self, index):
                return os.getpid()

        loader = DataLoader(Pids(), batch_size=1, num_workers=2, persistent_workers=True)
        for _ in range(3):
            print(sorted({int(pid) for pid in benchsuite.watch(loader, store=sys.argv[1])}))
    """
    records, said = ended(script, tmp_path)
    assert len(records) == 1
    assert len({line for line in said.splitlines() if line.startswith("[")}) == 1


def test_at_a_prompt_the_answer_comes_at_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    for _ in range(2):
        for _ in benchsuite.watch(range(20)):
            pass
    said = capsys.readouterr().err
    assert said.count("Only 15 steps were counted") == 2 and said.count("loader = benchsuite.watch(loader)") == 1
