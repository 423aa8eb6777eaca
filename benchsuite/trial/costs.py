"""What a rank's steps cost beside their time: memory, FLOPs, bytes held and sent, and the harness's own share.

Looked at when all steps are measured. Counting a model's FLOPs takes torch and 0.1 to 1.5 s, and the process of a sweep
imports no torch: rank 0 of the first trial that has the model counts them, later trials are told.
"""

import json
import os
import resource
import time
from collections.abc import Sequence
from dataclasses import asdict, fields
from statistics import median
from typing import Any

import numpy as np
import psutil
import torch

from benchsuite.contract.rank_samples import FLOPS_FILE, Heartbeat, RankIdentity
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.inside.processes import children
from benchsuite.inside.readers import LoadTimes
from benchsuite.inside.samples import Block
from benchsuite.storage.loaders import Batch
from benchsuite.trial.clock import Clock, on_device_s
from benchsuite.trial.emulated import EmulatedDevice
from benchsuite.workloads.flops import count
from benchsuite.workloads.parallel.account import Account, account
from benchsuite.workloads.parallel.step import Training
from benchsuite.workloads.spec import Variant
from benchsuite.workloads.workload import Workload

ACCOUNTED = {one.name for one in fields(Account)}
EMPTY_BLOCKS, EMPTY_STEPS = 5, 100
"""Steps that do nothing, of which the harness's own share is taken."""


def of_model(spec: TrialSpec, workload: Workload, training: Training | EmulatedDevice, batch: Batch) -> dict[str, Any]:
    """What is known of the model and its samples without counting; an emulated device has no model."""
    variant = spec.variant_in(workload.variants)
    decoded = sum(value.nbytes for value in batch.values()) // spec.rank_batch
    found = {"decoded_sample_bytes": decoded, "tokens_per_sample": variant.sample.get("seq_len")}
    if isinstance(training, EmulatedDevice):
        return found
    on_cuda = spec.device == "cuda"
    return {
        **found,
        "skipped_steps": training.scaler.skipped_steps if spec.precision == "fp16" else None,
        "device_name": torch.cuda.get_device_name() if on_cuda else None,
        "num_multiprocessors": torch.cuda.get_device_properties().multi_processor_count if on_cuda else None,
        "num_devices": torch.cuda.device_count() if spec.parallelism == "data_parallel" else 1,
    }


COPIED_BYTES, COPY_ROUNDS = 64 << 20, 3
SUSPICIOUS_BYTES_PER_S = 2e9
"""A reader that reads no faster may have copied: no core is so slow."""


def copy_bytes_per_s(blocks: Sequence[Block]) -> float | None:
    """Measure how fast a core copies samples as large as these; None where readers were so slow that none need ask."""
    read = [block for block in blocks if block.kind == "loader" and block.produced_samples]
    produced, read_s = sum(block.produced_bytes for block in read), sum(block.read_s for block in read)
    if not read or (read_s and produced / read_s < SUSPICIOUS_BYTES_PER_S):
        return None
    size = max(1, min(COPIED_BYTES, produced // sum(block.produced_samples or 0 for block in read)))
    source, target = np.ones(COPIED_BYTES, np.uint8), np.empty(size, np.uint8)
    rounds = []
    for _ in range(COPY_ROUNDS):
        began = time.perf_counter()
        for start in range(0, COPIED_BYTES - size + 1, size):
            np.copyto(target, source[start : start + size])
        rounds.append(COPIED_BYTES // size * size / (time.perf_counter() - began))
    return max(rounds)


def gradient_copy_s(spec: TrialSpec, training: Training | EmulatedDevice) -> float | None:
    """Seconds of copying all gradients once, as DDP does from its buckets after the exchange of a step.

    That is part of the step's communication, and not of the network. None where gradients lie in the buckets, and in
    other modes. Measured by itself when all steps are done: the least of some copies.
    """
    if isinstance(training, EmulatedDevice):
        return None
    if spec.gradient_as_bucket_view or not spec.layout.needs_group or spec.layout.zero > 1:
        return None
    if spec.layout.engine != "torch":
        return None
    if spec.layout.tp * spec.layout.pp * spec.layout.ep > 1:
        return None
    weights = [weight for weight in training.model.parameters() if weight.requires_grad]
    largest = max(weights, key=lambda weight: weight.numel())
    source, target = (torch.zeros_like(largest).flatten() for _ in range(2))
    sizes = [weight.numel() for weight in weights]
    return min(_copying_s(source, target, sizes) for _ in range(COPY_ROUNDS))


def _copying_s(source: torch.Tensor, target: torch.Tensor, sizes: Sequence[int]) -> float:
    def copy() -> None:
        for size in sizes:
            target[:size].copy_(source[:size])

    if source.is_cuda:
        return on_device_s(copy, 1)
    began_s = time.perf_counter()
    copy()
    return time.perf_counter() - began_s


def of_step(training: Training | EmulatedDevice, batch: Batch, compiled: bool) -> dict[str, Any]:
    """What a step holds and sends, by torch and by what an engine adds to it, and the engine's own figures.

    All ranks take that step together. It runs uncompiled, so what a compiled step keeps is not known.
    """
    if isinstance(training, EmulatedDevice):
        return {}
    found = asdict(account(training, batch)) | ({"activations_bytes": None} if compiled else {})
    told = dict(training.told())
    own = {name: value for name, value in told.items() if name not in ACCOUNTED}
    return {"account": found | {name: told[name] for name in told.keys() - own}, "engine": own or None}


def peak_memory(devices: Sequence[torch.device]) -> int:
    """Bytes allocated on CUDA devices at most, summed over them; where there are none this process's peak RSS."""
    if devices:
        return sum(torch.cuda.max_memory_allocated(device) for device in devices)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def host_memory() -> int | None:
    """Proportional set size of this rank and its workers: shared pages are split among their users."""
    me = os.getpid()
    try:
        return sum(int(psutil.Process(pid).memory_full_info().pss) for pid in (me, *children(me)))
    except psutil.Error:
        return None


def flops_by_rank(spec: TrialSpec, workload: Workload, me: RankIdentity) -> dict[str, Any] | None:
    """What rank 0 was told, or counts: empty where a model cannot be counted; None of other ranks and emulations."""
    if me.rank or spec.emulated:
        return None
    try:
        told: dict[str, Any] = json.loads((me.folder / FLOPS_FILE).read_text())
        return told
    except (OSError, ValueError):
        return _counted(workload, spec.variant_in(workload.variants))


def _counted(workload: Workload, variant: Variant) -> dict[str, Any]:
    try:
        return asdict(count(workload, variant))
    except Exception:  # models need values in many ways, and this one's trial has been measured all the same
        return {}


def instrument_s_per_step(clock: Clock, heart: Heartbeat, blocks: Sequence[Block]) -> float | None:
    """Return host seconds per step of marking as many parts as the steps in `blocks` had, and of the heartbeat.

    The median over blocks of start, marks, heartbeats and stop. Caches are warm here, and what a mark on a CUDA stream
    costs the device is not seen. The heartbeat is the rank's own, in its own file; the count of its steps stays.
    """
    parts = tuple(next((block.parts for block in reversed(blocks) if block.parts), {}))
    if not parts:
        return None
    loads = LoadTimes()
    loads.open(())
    try:
        return median(_empty_block(clock, heart, loads, parts) for _ in range(EMPTY_BLOCKS)) / EMPTY_STEPS
    finally:
        loads.close()


def _empty_block(clock: Clock, heart: Heartbeat, loads: LoadTimes, parts: Sequence[str]) -> float:
    """Seconds of one block of empty steps."""
    began_s = time.perf_counter()
    clock.start()
    for _ in range(EMPTY_STEPS):
        if "load" in parts:
            loads.begin()
            loads.end()
        for part in parts:
            clock.mark(part)
        heart.beat()
    clock.stop()
    return time.perf_counter() - began_s
