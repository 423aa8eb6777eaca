"""The CUDA paths: events on the device's timeline, pinned memory, non-blocking copies, NCCL, one device per rank."""

import gzip
import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from benchsuite.grid.expand import plan_trial
from benchsuite.results.store.record import TrialRecord
from benchsuite.runner.single_trial import TRACES, run_in_processes, run_trial
from benchsuite.trial.clock import CudaClock
from benchsuite.workloads.precision import float32_kept

PARTS = ("load_s", "h2d_s", "forward_s", "backward_s", "communication_s", "optimizer_s")


def spec_of(root: Path, **changes: object) -> dict[str, object]:
    return {
        "workload": "resnet50",
        "variant": "tiny",
        "data": {"root": str(root), "cache": "warm", "num_workers": 2},
        "device": "cuda",
        "batch_size": 8,
        "measure": {"steps": 24, "warmup_steps": 5, "timeout_s": 120},
        **changes,
    }


def check(record: TrialRecord) -> None:
    assert record.status == "ok", record.reason
    figures = record.figures.model_dump()
    parts = [figures[name] for name in PARTS if figures[name] is not None]
    assert sum(parts) == pytest.approx(figures["step_s_mean"], rel=1e-6)
    assert figures["forward_s"] > 0 and figures["backward_s"] > 0
    assert figures["peak_memory_bytes"] > 1e6
    assert figures["final_loss"] > 0


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("source", ["storage", "memory", "synthetic"])
def test_a_trial_on_the_device(dataset_root: Path, source: str, precision: str) -> None:
    data = {"root": str(dataset_root), "cache": "warm", "num_workers": 2, "source": source}
    record = run_in_processes(plan_trial(spec_of(dataset_root, data=data, precision=precision)))[0]
    check(record)
    assert (record.figures.au is not None) == (source == "storage")


def test_the_driver_tells_of_energy_clocks_and_memory(dataset_root: Path) -> None:
    spec = spec_of(dataset_root, measure={"steps": 60, "warmup_steps": 5, "timeout_s": 120})
    record, samples = run_in_processes(plan_trial(spec))
    check(record)
    found = record.figures
    assert samples is not None
    assert found.energy_j and found.energy_j_per_sample and found.energy_j > 1
    assert found.gpu_busy_fraction is not None and 0 < found.gpu_busy_fraction <= 1
    assert all(0 <= share <= 1 for share in (found.power_capped_fraction, found.too_hot_fraction))  # type: ignore[operator]
    assert found.reserved_memory_bytes >= found.peak_memory_bytes  # type: ignore[operator]
    beyond = found.device_memory_bytes  # null where a test beside this one freed memory meanwhile
    assert beyond is None or beyond >= found.reserved_memory_bytes  # type: ignore[operator]
    assert {"cuda", "nccl", "cudnn"} <= record.env["libraries"].keys()
    (device, *_) = record.env["devices"]
    assert device["pcie"] and device["driver"]
    sent = found.nvlink_bytes_per_s  # null without links, and of a driver that does not count
    assert sent is None or sent >= 0
    assert found.peak_memory_bytes < device["memory_bytes"]  # type: ignore[operator]


def test_the_agent_reads_the_device_once_a_second_from_launch_to_end(dataset_root: Path) -> None:
    data = {"root": str(dataset_root), "cache": "warm", "num_workers": 2}
    spec = spec_of(dataset_root, data=data, measure={"steps": 400, "warmup_steps": 5, "timeout_s": 120})
    record, samples = run_in_processes(plan_trial(spec))
    check(record)
    assert samples is not None
    (rank,), (device,) = samples["ranks"], samples["devices"]
    assert device["device_uuid"] == rank["device_uuid"]
    assert 2 <= len(device["at_s"]) <= device["at_s"][-1] - device["at_s"][0] + 2, "no more than one a second"
    assert all(earlier < later for earlier, later in pairwise(device["at_s"]))
    assert device["at_s"][0] < rank["blocks"][0]["start_s"], "it begins before the steps"
    assert all(power > 10 for power in device["power_w"]) and all(mhz > 100 for mhz in device["sm_mhz"])
    assert all(10 < degrees < 110 for degrees in device["temperature_c"])
    assert all(0 <= share <= 1 for share in device["busy_fraction"])


def test_a_profile_is_of_one_run(dataset_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    measure = {"steps": 12, "warmup_steps": 3, "timeout_s": 120, "profile": "torch"}
    record = run_trial(spec_of(dataset_root, measure=measure))
    check(record)
    (trace,) = record.traces
    events = json.loads(gzip.decompress((TRACES / record.record_id / Path(trace).name).read_bytes()))["traceEvents"]
    assert sum(event.get("cat") == "kernel" for event in events) > 100
    waits = [event for event in events if "cudaDeviceSynchronize" in str(event.get("name"))]
    assert len(waits) <= 2, "the device is waited for at its end, and not between steps"
    found = record.figures
    times = [found.get(f"{name}_time_fraction") for name in ("contraction", "normalisation", "element_wise", "other")]
    assert sum(times) == pytest.approx(1) and all(0 < share < 1 for share in times), "of kernels, by their operators"
    assert found.arithmetic_intensity and found.attained_flops_per_s and found.contraction_flops_fraction


@pytest.mark.parametrize("loader", ["torch", "threads"])
def test_images_as_bytes_are_normalised_on_the_device(dataset_root: Path, loader: str) -> None:
    """The same samples: the same loss of weights that hardly move, with a quarter of the bytes copied."""
    records = []
    for dtype in ("float32", "uint8"):
        data = {"root": str(dataset_root), "cache": "warm", "num_workers": 1, "loader": loader}
        still = {"lr_scaling": "linear", "lr_warmup_steps": 100_000}  # a device does not add up twice in one order
        data |= {"image_dtype": dtype, "source": "memory"}
        spec = spec_of(dataset_root, data=data, measure={"steps": 4, "warmup_steps": 1}, **still)
        records.append(run_in_processes(plan_trial(spec))[0])
        check(records[-1])
    wide, narrow = (record.figures for record in records)
    assert narrow.final_loss == pytest.approx(wide.final_loss, rel=1e-2)
    bytes_each = [found.decoded_bytes_per_s / found.samples_per_s for found in (narrow, wide)]  # type: ignore[operator]
    assert bytes_each[0] < bytes_each[1] / 3.9


def test_algorithms_by_trying_ranges_for_nsight_and_cores_near_the_device(dataset_root: Path) -> None:
    measure = {"steps": 12, "warmup_steps": 3, "timeout_s": 120, "profile": "nvtx"}
    record = run_in_processes(plan_trial(spec_of(dataset_root, measure=measure, cudnn_benchmark=True)))[0]
    check(record)
    assert record.spec["cpu_binding"] == "device"
    (cpus,) = record.env.get("rank_cpus", [""])  # one rank keeps to them where all cores are near
    assert set(cpus) <= set("0123456789,-")


def test_causal_attention_has_two_utilizations() -> None:
    spec = spec_of(Path(), workload="gpt_neox", data={"source": "synthetic"}, precision="bf16")
    record = run_in_processes(plan_trial(spec))[0]
    check(record)
    if record.figures.mfu is not None:
        assert 0 < record.figures.mfu_causal < record.figures.mfu  # type: ignore[operator]


def test_a_batch_that_fits_is_found_with_the_real_loader(dataset_root: Path) -> None:
    """With a wide model, so that few tries are needed; the trial with what was found runs."""
    spec = spec_of(dataset_root, batch_size="auto", variant="reference", measure={"steps": 4, "warmup_steps": 1})
    record = run_in_processes(plan_trial(spec))[0]
    check(record)
    found = record.spec["batch_size"]
    total = torch.cuda.mem_get_info()[1]
    assert found > 8 and record.figures.peak_memory_bytes > total / 2  # type: ignore[operator]


def test_a_choice_by_fp32_precision_stays() -> None:
    with float32_kept():
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        check(run_trial(spec_of(Path(), data={"source": "synthetic"})))
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"


def test_ddp_over_nccl_with_every_device(dataset_root: Path) -> None:
    ranks = min(torch.cuda.device_count(), 2)
    data = {"root": str(dataset_root), "cache": "warm", "num_workers": 1}
    record = run_in_processes(plan_trial(spec_of(dataset_root, data=data, parallelism="ddp", world_size=ranks)))[0]
    if ranks == 1:
        assert record.status == "ok", record.reason
        return
    check(record)
    assert record.figures.communication_s is not None


def test_in_this_process(dataset_root: Path) -> None:
    check(run_trial(spec_of(dataset_root)))


def test_out_of_device_memory_is_oom(dataset_root: Path) -> None:
    record = run_in_processes(plan_trial(spec_of(dataset_root, data={"source": "synthetic"}, batch_size=10**8)))[0]
    assert record.status == "oom"
    assert record.reason is not None and "out of memory" in record.reason


def test_the_clock_sees_what_the_device_does() -> None:
    clock = CudaClock()
    matrix = torch.randn(4096, 4096, device="cuda")
    for _ in range(3):
        matrix @ matrix
    clock.start()
    for _ in range(4):
        clock.mark("load")
        matrix @ matrix
        clock.mark("forward")
    times = clock.stop()
    device_s = sum(map(sum, times.parts.values()))
    assert len(times.parts["forward"]) == 4
    assert 0 < device_s <= (times.end_s - times.start_s) * 1.01
    assert sum(times.parts["forward"]) > 10 * sum(times.parts["load"])
