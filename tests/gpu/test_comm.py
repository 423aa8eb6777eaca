"""Collectives by NCCL: the same checks and clocks on a device; with several devices, between them."""

import time
from typing import Any

import pytest
import torch

from benchsuite.host.machine import this_machine
from benchsuite.launch.starters import LocalLauncher
from benchsuite.predict.theory.collectives import BACKEND
from benchsuite.probe.comm.collectives import DTYPES
from benchsuite.probe.comm.probe import TASK, Asked, measured, point_of
from benchsuite.probe.comm.rank_group import Ranks
from benchsuite.probe.comm.request import DDP_MODES, OPS
from benchsuite.results.store.record import TrialRecord
from benchsuite.trial.clock import on_device_s

Found = list[tuple[TrialRecord, dict[str, Any] | None]]


def found_on(ranks: int, **changes: Any) -> Found:
    base = {"ops": OPS, "algorithms": (BACKEND,), "dtypes": ("fp32", "bf16"), "sizes": (4096, 1 << 20)}
    base |= {"ranks": (ranks,), "backend": "nccl", "iterations": 3, "seconds": 0.0, "timeout_s": 120.0}
    asked = Asked(**{**base, **changes})
    with LocalLauncher(TASK) as launcher:
        return list(measured(asked, point_of(asked, ranks, this_machine()), launcher, None, "s"))


def test_one_device_runs_every_collective_and_dtype() -> None:
    """A group of one sends nothing, and still calls, checks and times."""
    found = found_on(1, dtypes=tuple(DTYPES))
    assert len(found) == 2 * len(OPS) * len(DTYPES)
    for record, _ in found:
        assert record.status == "ok" or record.spec["op"] == "send_recv", (record.spec, record.reason)
        assert record.spec["backend"] == "nccl" and record.spec["device"] == "cuda"


def test_overlap_on_a_device() -> None:
    found = found_on(1, ops=("all_reduce",), sizes=(4096,), dtypes=("fp32",), bucket_bytes=(25 << 20,))
    assert [record.spec["algorithm"] for record, _ in found[1:]] == list(DDP_MODES)
    for record, _ in found[1:]:
        assert record.status == "ok", record.reason
        assert record.figures.step_s_p50 and record.figures.communication_s is not None


@pytest.mark.parametrize("algorithm", [BACKEND, "ring", "recursive_doubling", "halving_doubling", "tree"])
def test_several_devices(algorithm: str) -> None:
    devices = torch.cuda.device_count()
    if devices < 2:
        pytest.skip(f"{devices} CUDA device; NCCL wants one for each rank")
    found = found_on(min(devices, 4), ops=("all_reduce",), algorithms=(algorithm,))
    assert {record.status for record, _ in found} == {"ok"}, [record.reason for record, _ in found]
    for record, _ in found:
        assert (record.figures.comm_messages is None) == (algorithm == BACKEND)


def test_events_time_the_device_and_not_the_host() -> None:
    matrix = torch.randn(4096, 4096, device="cuda")
    matrix @ matrix
    torch.cuda.synchronize()
    began_s = time.perf_counter()
    for _ in range(20):
        matrix @ matrix
    torch.cuda.synchronize()
    waited_s = time.perf_counter() - began_s
    assert on_device_s(lambda: matrix @ matrix, 20) == pytest.approx(waited_s, rel=0.5)


class Alone(Ranks):
    """A group of one, which needs nobody's consent."""

    def most(self, value: float) -> float:
        return value


def test_calls_are_replayed_as_one_graph() -> None:
    matrix, ranks = torch.zeros(64, device="cuda"), Alone(0, torch.device("cuda"), None)  # type: ignore[arg-type]
    together = ranks.replayed(lambda: matrix.add_(1), 100)
    assert together is not None and float(matrix[0]) == 0, "what is captured is not run"
    on_device_s(together, 10)
    assert float(matrix[0]) == 1000


def test_what_cannot_be_captured_is_no_graph() -> None:
    matrix, ranks = torch.zeros(64, device="cuda"), Alone(0, torch.device("cuda"), None)  # type: ignore[arg-type]
    assert ranks.replayed(lambda: matrix.add_(1).cpu(), 5) is None
    assert float(torch.ones(3, device="cuda").sum()) == 3, "and the device goes on"
