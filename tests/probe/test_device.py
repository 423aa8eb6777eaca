"""`probe device` on a CPU: real products and copies, wrong ones refused, records and what is printed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchsuite.probe import device as probe
from benchsuite.results.store.store import ResultsStore


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small matrices, which take no time."""
    monkeypatch.setitem(probe.WIDTH, "cpu", 128)
    monkeypatch.setitem(probe.COPIED_BYTES, "cpu", 1 << 20)
    monkeypatch.setattr(probe, "WARMUP_S", 0.0)
    monkeypatch.setattr(probe, "MIN_SAMPLE_S", 1e-3)


def test_a_record_with_every_figure(run_cli: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    store = tmp_path / "store"
    code, out, err = run_cli("probe", "device", "--device", "cpu", "--seconds", "0.01", "--store", store)
    assert code == 0, err
    assert "matrix product fp32" in out and "TFLOP/s in" in out
    (record,) = ResultsStore(store).records()
    assert (record.kind, record.status, record.spec["device"]) == ("device", "ok", "cpu")
    figures = record.figures.model_dump()
    assert all(figures[name] > 0 for name in ("gemm_fp32_tflops", "gemm_bf16_tflops", "memory_bytes_per_s"))
    assert figures["h2d_bytes_per_s"] is None, "a CPU copies to no device"
    code, out, err = run_cli("results", "show", "--kind", "device", "--store", store)
    assert code == 0 and "fp32 TFLOP/s" in out, err


def test_rates_are_of_the_operations_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe.Timer, "samples_s", lambda self, call: [call() is None or 1e-3] * 5)
    cells = {cell.name: cell.median for cell in probe.measured(torch.device("cpu"), 0.0)}
    assert cells["gemm_fp32_tflops"] == pytest.approx(2 * 128**3 / 1e-3 / 1e12)
    assert cells["memory_bytes_per_s"] == pytest.approx(2 * (1 << 20) / 1e-3 / 1e9)


def test_a_wrong_product_is_a_failed_record(
    run_cli: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    product = torch.mm

    def wrong(one: torch.Tensor, other: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        found = product(one, other, out=out)
        out[len(out) // 3, 0] += 1000
        return found

    monkeypatch.setattr(torch, "mm", wrong)
    code, out, _ = run_cli("probe", "device", "--device", "cpu", "--seconds", "0", "--format", "json")
    (found,) = json.loads(out)
    assert code != 0 and found["status"] == "failed" and "computes wrongly" in found["reason"]


def test_samples_far_apart_are_told() -> None:
    steady: dict[str, Any] = {"name": "gemm_fp32_tflops", "unit": "TFLOP/s"}
    assert probe.caveats([probe.Cell(**steady, values=[10.0, 10.5, 9.9])]) == []
    (told,) = probe.caveats([probe.Cell(**steady, values=[10.0, 10.0, 7.0])])
    assert told == "not_steady: a sample of gemm_fp32_tflops lies 30% from their median"


def test_a_device_that_is_not_there(run_cli: Callable[..., tuple[int, str, str]]) -> None:
    code, _, err = run_cli("probe", "device", "--device", "cuda:9")
    assert code == 2 and "cuda:9" in err and "allowed: auto, cpu" in err
