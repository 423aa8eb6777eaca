"""What `doctor --device` works out by itself: readers of a known pace."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchsuite.runner.device_check import BEHIND_S, PACED


def test_a_paced_reader_makes_up_for_what_comes_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of its own: ten samples of 10 ms, then 30 ms of collating, over and over, are 100 ms a batch."""
    file = tmp_path / "paced.py"
    file.write_text(PACED.format(pace_s=0.01, behind_s=BEHIND_S))
    spec = importlib.util.spec_from_file_location("paced", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    now = [1000.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now[0], sleep=sleep))
    reader = module.READER(SimpleNamespace(index={"label": [0] * 10}))
    ends = []
    for _ in range(20):
        for row in range(10):
            reader[row]
        now[0] += 0.03
        ends.append(now[0])
    assert ends[-1] - ends[0] == pytest.approx(19 * 0.1, abs=0.001)
