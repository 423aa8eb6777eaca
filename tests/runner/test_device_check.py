"""What `doctor --device` works out by itself: exposed communication in a trace, and readers of a known pace."""

import gzip
import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchsuite.runner.device_check import BEHIND_S, PACED, exposed_s
from benchsuite.trial.io_observer import ACTIVE_STEPS


def kernel(name: str, begin_us: float, duration_us: float) -> dict[str, object]:
    return {"cat": "kernel", "name": name, "ts": begin_us, "dur": duration_us}


def test_exposed_is_where_nccl_runs_alone(tmp_path: Path) -> None:
    """An all-reduce from 100 to 400 beside a product that ends at 300, one within a product, and one with nothing."""
    events = [
        kernel("sm90_xmma_gemm", 0, 300),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 100, 300),
        kernel("sm90_xmma_gemm", 500, 200),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 550, 50),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 800, 50),
        {"cat": "cpu_op", "name": "nccl:all_reduce", "ts": 0, "dur": 5000},
        {"ph": "M", "name": "process_name"},
    ]
    trace = tmp_path / "torch-rank-0.json.gz"
    trace.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    assert exposed_s(trace) == pytest.approx((100 + 50) / 1e6 / ACTIVE_STEPS)


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
