"""The roof above a step: a probe of the same host and threads, else what the data sheet states, else none."""

from pathlib import Path
from typing import Any

import pytest

from benchsuite.analysis.record_builder import Measuring
from benchsuite.contract.trial_spec import TrialSpec, parse_trial
from benchsuite.results.store.record import DeviceFigures, TrialFigures, TrialRecord
from benchsuite.results.store.store import ResultsStore
from benchsuite.runner.roofline import with_roof

STEP = TrialFigures(arithmetic_intensity=10.0, attained_flops_per_s=40e12)
A100 = "NVIDIA A100-SXM4-80GB"


def spec_of(**changes: Any) -> TrialSpec:
    return parse_trial({"workload": "bert", "batch_size": 2, "device": "cuda", "precision": "bf16", **changes})


def record_of(spec: TrialSpec, figures: TrialFigures = STEP, *devices: str) -> TrialRecord:
    env = {"host": "n1", "devices": [{"name": name} for name in devices]}
    found = Measuring("trial", spec.model_dump(), "bert", "default", env).record("ok", figures=figures)
    assert isinstance(found, TrialRecord)
    return found


def probed(folder: Path, host: str, device: str, **figures: float) -> ResultsStore:
    store = ResultsStore(folder)
    spec = {"device": device, "device_name": "X", "threads": 2}
    measuring = Measuring("device", spec, f"{device} X", "default", {"host": host, "devices": []})
    store.append(measuring.record("ok", figures=DeviceFigures(**figures)))
    return store


def roof_of(spec: TrialSpec, record: TrialRecord, store: ResultsStore | None = None) -> tuple[Any, ...]:
    found = with_roof(spec, record, store).figures
    return found.ridge_intensity, found.roof_flops_per_s, found.roof_fraction, found.roof_source


def test_published() -> None:
    """An A100 of 80 GB: 10 FLOPs a byte x 2039 GB/s = 20.39 TFLOP/s, left of the ridge at 312e12 / 2039e9 = 153."""
    ridge, roof, share, source = roof_of(spec_of(), record_of(spec_of(), STEP, A100))
    assert (ridge, roof) == (pytest.approx(153.0, abs=0.05), pytest.approx(20.39e12))
    assert share == pytest.approx(40 / 20.39), "bytes are an upper bound, so a share may lie above 1"
    assert source == f"published: {A100}"


def test_unknown() -> None:
    assert roof_of(spec_of(), record_of(spec_of(), STEP, "Some Future Card")) == (None,) * 4
    assert roof_of(spec_of(), record_of(spec_of(), TrialFigures(), A100)) == (None,) * 4
    cpu = spec_of(device="cpu", precision="fp32", threads_per_rank=2)
    assert roof_of(cpu, record_of(cpu, STEP, A100)) == (None,) * 4, "it did not compute there"


def test_measured_on_the_host_comes_before_published(tmp_path: Path) -> None:
    record = record_of(spec_of(), STEP, A100)
    store = probed(tmp_path / "n1", "n1", "cuda:0", gemm_bf16_tflops=250.0, memory_bytes_per_s=1.6e12)
    ridge, roof, share, source = roof_of(spec_of(), record, store)
    assert (ridge, roof, share) == pytest.approx((156.25, 16e12, 2.5))
    assert source.startswith("measured: probe device, cuda:0 X")
    other = probed(tmp_path / "n2", "n2", "cuda:0", gemm_bf16_tflops=250.0, memory_bytes_per_s=1.6e12)
    assert roof_of(spec_of(), record, other)[3].startswith("published"), "another host"
    lacking = probed(tmp_path / "n3", "n1", "cuda:0", gemm_fp32_tflops=50.0, memory_bytes_per_s=1.6e12)
    assert roof_of(spec_of(), record, lacking)[3].startswith("published"), "another precision"


@pytest.mark.parametrize(("ranks", "threads", "divisor"), [(1, 2, 1), (2, 1, 2), (1, 1, None), (2, 2, None)])
def test_ranks_of_a_host_share_its_cores_and_memory(
    tmp_path: Path, ranks: int, threads: int, divisor: int | None
) -> None:
    store = probed(tmp_path, "n1", "cpu", gemm_fp32_tflops=0.2, memory_bytes_per_s=20e9)
    mode = {"parallelism": "ddp", "world_size": ranks}
    spec = spec_of(device="cpu", precision="fp32", threads_per_rank=threads, **mode)
    ridge, roof, _, source = roof_of(spec, record_of(spec), store)
    if divisor is None:
        assert source is None, "the probe used 2 threads"
        return
    assert (ridge, roof) == pytest.approx((10, 0.2e12 / divisor))
    assert source.endswith(", shared by 2 ranks") == (ranks == 2)
