"""`benchsuite doctor --device`: are the figures of this node's devices right? Each is measured in a second way.

It measures what devices give, whether each rank has its own device, exposed communication beside Kineto's, steps beside
the plainest loop over the same model, AU with readers of a known pace, and every loader.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchsuite import storage, workloads
from benchsuite.contract.scratch import scratch
from benchsuite.grid.expand import plan_trial
from benchsuite.host.environment import environment
from benchsuite.inside.files import write_new
from benchsuite.probe import device as probe
from benchsuite.results.store.record import TrialRecord
from benchsuite.runner.single_trial import run_in_processes, run_trial
from benchsuite.storage.create.convert import Wanted, generate_dataset
from benchsuite.trial.io_observer import ACTIVE_STEPS
from benchsuite.trial.kineto import exposed_s
from benchsuite.workloads.precision import autocast
from benchsuite.workloads.workload import Batch, Workload

STEPS, WARMUP_STEPS = 30, 10
MAX_RATIO, MAX_AU_ERROR = 1.03, 0.02
"""A step may take 1.03 times as long as that of the plainest loop; AU may be 0.02 off."""
TRUTHS = (0.5, 0.9)
PHOTOGRAPHS, BATCH = 512, 64
PACED_WORKERS = max(1, min(12, (os.cpu_count() or 2) - 2))
"""So many workers that decoding and transforming an image takes less time than the pace."""
BEHIND_S = 0.1
"""How far a paced reader may fall behind and catch up: more than collating takes, far less than a block of steps."""
PACED = '''"""Samples at a known pace, one every {pace_s!r} s: what collating a batch takes is made up for."""

import time

from PIL import Image


class _Paced:
    def __init__(self, dataset):
        self.index, self.next_s = dataset.index, 0.0
        self.image = Image.new("RGB", (224, 224))

    def __getitem__(self, row):
        now = time.perf_counter()
        self.next_s = max(self.next_s, now - {behind_s!r}) + {pace_s!r}
        time.sleep(max(0.0, self.next_s - now))
        return {{"image": self.image, "label": int(self.index["label"][row])}}


READER = _Paced
'''
MODELS: Mapping[str, Mapping[str, Any]] = {
    "resnet50": {"batch_size": 256, "channels_last": True},
    "unet3d": {"batch_size": 4, "channels_last": True},
    "bert": {"batch_size": 32},
    "gpt_neox": {"batch_size": 16},
}
"""Settings of the four workloads' `reference` models; a batch that does not fit is halved."""
MAX_EXPOSED_ERROR = 0.02
"""Share of a step."""


@dataclass(frozen=True)
class Finding:
    """The answer to one question."""

    level: str
    """`ok`, `warn`, `fail`, or `skip`."""
    question: str
    text: str


@dataclass
class Examination:
    """The questions about devices; each yields findings and keeps the records of its trials."""

    folder: Path
    records: list[dict[str, Any]] = field(default_factory=list)

    @cached_property
    def photographs(self) -> Path:
        """The root of a dataset of JPEGs, which is made on first use."""
        root = self.folder / "photographs"
        generate_dataset(
            root / "files", Wanted("resnet50", "reference", "files", params={"image_size": 224}), PHOTOGRAPHS
        )
        return root

    def keep(self, record: TrialRecord) -> TrialRecord:
        """Keep a record for the report, and return it."""
        self.records.append(record.model_dump(mode="json"))
        return record

    def devices(self) -> Iterator[Finding]:
        """Measure what matrix units, memory and copies give."""
        for device in probe.devices_of("cuda"):
            cells = probe.measured(device, 0.3)
            self.records.append({"device": str(device), "cells": [asdict(cell) for cell in cells]})
            yield Finding("ok", "device", f"{device} {probe.name_of(device)}: {probe.sentence(cells)}")

    def placement(self) -> Iterator[Finding]:
        """Check that each rank has its own device."""
        ranks = torch.cuda.device_count()
        spec = _spec("resnet50", variant="tiny", batch_size=8, parallelism="ddp", world_size=ranks)
        record, samples = run_in_processes(plan_trial(spec))
        self.keep(record)
        if record.status != "ok" or samples is None:
            yield Finding("fail", "placement", str(record.reason))
            return
        uuids = [rank["device_uuid"] for rank in samples["ranks"]]
        level = "ok" if None not in uuids and len({*uuids}) == ranks else "fail"
        text = f"{ranks} ranks of DDP on {len({*uuids})} devices"
        communication_s = record.figures.communication_s
        if communication_s is not None:
            text += f", {communication_s * 1e3:.2f} ms of exposed communication per step"
        yield Finding(level, "placement", text)

    def communication(self) -> Iterator[Finding]:
        """Compare DDP's exposed communication by the step's marks with that of Kineto's kernels in later steps."""
        ranks = torch.cuda.device_count()
        if ranks < 2:
            yield Finding("skip", "communication", "it needs 2 devices")
            return
        measure = {"steps": 40, "warmup_steps": 10, "profile": "torch"}
        spec = _spec("bert", batch_size=8, parallelism="ddp", world_size=ranks, gradient_as_bucket_view=True)
        record = self.keep(run_in_processes(plan_trial({**spec, "measure": measure}))[0])
        if record.status != "ok":
            yield Finding("fail", "communication", str(record.reason))
            return
        traces = [Path(trace) for trace in record.traces]
        kineto_s = min(exposed_s(trace, ACTIVE_STEPS) for trace in traces)
        shutil.rmtree(traces[0].parent)
        marked_s = record.figures.communication_min_s or 0.0
        level = "ok" if abs(marked_s - kineto_s) <= MAX_EXPOSED_ERROR * (record.figures.step_s_mean or 0.0) else "warn"
        text = f"{marked_s * 1e3:.2f} ms per step on the rank that waits least; Kineto: {kineto_s * 1e3:.2f} ms"
        yield Finding(level, "communication", text)

    def steps(self) -> Iterator[Finding]:
        """Compare a trial's step with that of the plainest loop over the same model."""
        for name, settings in MODELS.items():
            yield self._step(name, settings)

    def _step(self, name: str, settings: Mapping[str, Any]) -> Finding:
        batch = int(settings["batch_size"])
        while batch:
            spec = _spec(name, **{**settings, "batch_size": batch})
            record = self.keep(run_trial(spec))
            if record.status != "oom":
                break
            batch //= 2
        if record.status != "ok":
            return Finding("fail", f"step {name}", str(record.reason))
        # trial and plain loop alternate, so that a clock that changes meanwhile concerns both
        trial_s, plain_s = [float(record.figures.step_s_p50 or 0)], [plain_step_s(spec)]
        trial_s.append(float(self.keep(run_trial(spec)).figures.step_s_p50 or 0))
        plain_s.append(plain_step_s(spec))
        ratio, mfu = min(trial_s) / min(plain_s), record.figures.mfu
        text = f"batch {batch}, bf16: {min(trial_s) * 1e3:.2f} ms, {ratio:.3f} times the {min(plain_s) * 1e3:.2f} ms"
        text += " of the plainest loop"
        if mfu is not None:
            text += f"; MFU {mfu:.1%}"
        return Finding("ok" if ratio <= MAX_RATIO else "warn", f"step {name}", text)

    def utilization(self) -> Iterator[Finding]:
        """Compare the AU of real steps with the truth, which readers of a known pace set."""
        spec = _spec("resnet50", batch_size=BATCH)  # a batch so large that the device takes the time, and not the host
        step_s = plain_step_s(spec, from_host=True)
        for truth in TRUTHS:
            reader = self.folder / f"paced_{truth}.py"
            write_new(reader, PACED.format(pace_s=step_s / truth / BATCH * PACED_WORKERS, behind_s=BEHIND_S))
            data = {"root": str(self.photographs), "cache": "warm", "num_workers": PACED_WORKERS}
            data |= {"reader": f"{reader}:READER", "image_dtype": "uint8"}
            measure = {"steps": 100, "warmup_steps": 10, "ceilings": False}
            record = self.keep(run_trial({**spec, "data": data, "measure": measure}))
            au = record.figures.au
            if au is None:
                yield Finding("fail", "AU", f"truth {truth:.2f}: {record.reason or record.caveat_details}")
                continue
            level = "ok" if abs(au - truth) <= MAX_AU_ERROR else "warn"
            steps = f"{step_s * 1e3:.2f} ms per step, {1e3 * (record.figures.step_s_mean or 0):.2f} with its input"
            yield Finding(level, "AU", f"truth {truth:.2f} ({steps}): measured {au:.3f}")

    def loaders(self) -> Iterator[Finding]:
        """Measure every loader that is installed, on photographs in memory."""
        missing = storage.missing_loaders()
        for loader in storage.LOADERS:
            question = f"loader {loader} ({storage.default_reader(loader)})"
            if loader in missing:
                yield Finding("skip", question, missing[loader])
                continue
            workers = min(8, max(1, (os.cpu_count() or 2) - 1))
            data = {"root": str(self.photographs), "cache": "warm", "loader": loader}
            spec = _spec("resnet50", batch_size=BATCH)
            spec |= {"data": data | {"num_workers": workers}, "measure": {"steps": 60, "ceilings": False}}
            record = self.keep(run_trial(spec))
            if record.status != "ok":
                yield Finding("fail", question, str(record.reason))
                continue
            figures = record.figures
            rate = f"{figures.samples_per_s:,.0f} images/s with {workers} workers, AU {figures.au or float('nan'):.2f}"
            yield Finding("ok", question, f"{rate}, copies to the device {1e3 * (figures.h2d_s or 0):.2f} ms per step")

    def counters(self) -> Iterator[Finding]:
        """Check that the driver's counters are in the records of trials so far."""
        trials = [record["figures"] for record in self.records if record.get("kind") == "trial"]
        names = ("energy_j", "gpu_busy_fraction", "power_capped_fraction", "too_hot_fraction", "device_memory_bytes")
        missing = [name for name in names if not any(figures.get(name) is not None for figures in trials)]
        energies = [figures["energy_j"] for figures in trials if figures.get("energy_j")]
        if missing:
            yield Finding("warn", "counters", f"the driver does not give {', '.join(missing)}")
        if energies:
            yield Finding(
                "ok", "counters", f"energy of a trial's counted steps: {min(energies):,.1f} to {max(energies):,.1f} J"
            )


def examine(out: Path) -> Iterator[Finding]:
    """Answer one question after another; findings, records and environment are written to `out`, however it ends.

    Raises:
        UserError: there is no CUDA device.
    """
    probe.devices_of("cuda")
    findings: list[Finding] = []
    with scratch() as folder:
        examination = Examination(folder)
        questions = [examination.devices, examination.placement, examination.communication, examination.steps]
        questions += [examination.utilization, examination.loaders, examination.counters]
        try:
            for question in questions:
                for finding in question():
                    findings.append(finding)
                    yield finding
                torch.cuda.empty_cache()
        finally:
            report = {
                "findings": [asdict(finding) for finding in findings],
                "env": environment(),
                "records": examination.records,
            }
            write_new(out, json.dumps(report, indent=1, default=str))


def _spec(workload: str, **settings: Any) -> dict[str, Any]:
    """Return the spec of a trial of a workload's `reference` on synthetic samples, with other settings."""
    measure = {"steps": STEPS, "warmup_steps": WARMUP_STEPS}
    common = {"variant": "reference", "device": "cuda", "precision": "bf16", "data": {"source": "synthetic"}}
    return {"workload": workload, **common, "measure": measure, **settings}


def plain_step_s(spec: Mapping[str, Any], from_host: bool = False) -> float:
    """Return the median seconds of a step of the plainest loop over a trial's model in bf16, by CUDA events.

    With `from_host` images lie in page-locked memory as bytes, and each step copies them and converts them to numbers.
    """
    workload: Workload = workloads.load(workloads.WORKLOADS, spec["workload"], "benchsuite.workloads")
    variant, device = workload.variants[spec["variant"]], torch.device("cuda")
    torch.manual_seed(0)
    model: nn.Module = workload.build(variant).to(device)
    batch = workload.synthetic(variant, spec["batch_size"], device)
    if spec.get("channels_last"):
        model, batch = _channels_last(model, batch)
    optimizer = workload.optimizer(list(model.parameters()))
    host = {name: _as_bytes(value).cpu().pin_memory() for name, value in batch.items()} if from_host else {}
    events = [torch.cuda.Event(enable_timing=True) for _ in range(STEPS + 1)]  # type: ignore[no-untyped-call]
    for step in range(WARMUP_STEPS + STEPS):
        if step >= WARMUP_STEPS:
            events[step - WARMUP_STEPS].record()
        for name, value in host.items():
            batch[name] = value.to(device, non_blocking=True).to(batch[name].dtype)
        with autocast("bf16", device):
            loss = workload.loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    events[-1].record()
    torch.cuda.synchronize()
    steps_s = sorted(first.elapsed_time(last) / 1e3 for first, last in pairwise(events))
    return float(steps_s[len(steps_s) // 2])


def _as_bytes(values: torch.Tensor) -> torch.Tensor:
    """Return images with a byte for each number; labels unchanged."""
    return values.mul(255).to(torch.uint8) if values.is_floating_point() else values


def _channels_last(model: nn.Module, batch: Batch) -> tuple[nn.Module, Batch]:
    """Return model and images, or volumes, with their channels innermost."""
    volumes = any(value.ndim == 5 for value in batch.values())
    memory_format = torch.channels_last_3d if volumes else torch.channels_last
    converted = {
        name: value.to(memory_format=memory_format) if value.ndim in (4, 5) else value for name, value in batch.items()
    }
    return model.to(memory_format=memory_format), converted  # type: ignore[call-overload]
