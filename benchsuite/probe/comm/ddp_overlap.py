"""DDP's overlap, on and off: the same backward with buckets of several sizes, exchanged meanwhile or after it.

Exposed communication is what backward() takes longer than its computation: an engine callback, queued from a hook on
the loss, runs when that is done and before DDP waits. The same buckets exchanged with nothing else to do are its
reference. The batch is chosen so that backward takes about as long as they do: far less would hide nothing, far more
everything.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchsuite.probe.comm.rank_group import Ranks, Timed
from benchsuite.probe.comm.request import DDP_MODES, GRADIENT_DTYPE, LAYERS, OVERLAP, WIDTH, Request
from benchsuite.trial.clock import Clock, clock_for

WARMUP_STEPS = 3
"""DDP lays its buckets out anew after the first."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
MIN_BATCH, MAX_BATCH = 8, 1 << 16
BALANCED = 1.5
"""Backward is as long as the exchange where neither takes so many times the other."""
BALANCING_CALLS = 3
PARTS = ("forward", "backward", "communication")


@dataclass
class Deferred:
    """A communication hook that holds every bucket back until the last gradient is there."""

    device: torch.device
    on_computed: Callable[[], None] = lambda: None
    sizes: list[int] = field(default_factory=list)
    """Elements of each bucket, in the order of exchange."""
    _held: list[tuple[Tensor, Any]] = field(default_factory=list)

    def hook(
        self,
        _state: object,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(
            devices=[self.device] if self.device.type == "cuda" else None
        )
        self._held.append((bucket.buffer(), future))
        if bucket.is_last():
            self.on_computed()
            held, self._held = self._held, []
            self.sizes = [buffer.numel() for buffer, _ in held]
            exchange([buffer.div_(dist.get_world_size()) for buffer, _ in held])
            for buffer, done in held:
                done.set_result(buffer)
        return future


def exchange(buffers: list[Tensor]) -> None:
    """All-reduce one after the other, all posted before the first is waited for, as DDP does."""
    works = [dist.all_reduce(buffer, async_op=True) for buffer in buffers]
    for work in works:
        assert work is not None
        work.wait()


@dataclass
class Replica:
    """A model under DDP in one of the modes."""

    mode: str
    model: DistributedDataParallel
    batch: Tensor
    clock: Clock
    deferred: Deferred | None = None

    def step(self) -> dict[str, float]:
        """Forward and backward; seconds by part."""
        self.model.zero_grad(set_to_none=False)
        self.clock.start()
        loss = self.model(self.batch).square().mean()
        self.clock.mark("forward")
        if self.deferred is None:
            loss.register_hook(self._queue)
        else:
            self.deferred.on_computed = self._computed
        loss.backward()
        self.clock.mark("communication")
        return {f"{name}_s": values[0] for name, values in self.clock.stop().parts.items()}

    def _queue(self, _gradient: Tensor) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(self._computed)

    def _computed(self) -> None:
        self.clock.mark("backward")


def chain(device: torch.device) -> nn.Sequential:
    """Layers with the same weights on all ranks."""
    torch.manual_seed(0)
    width, dtype = WIDTH[device.type], DTYPES[GRADIENT_DTYPE[device.type]]
    layers = (nn.Linear(width, width, bias=False, device=device, dtype=dtype) for _ in range(LAYERS[device.type]))
    return nn.Sequential(*layers)


def rows_for(device: torch.device, batch: int, rank: int) -> Tensor:
    """A batch of a rank's own: (batch, width)."""
    torch.manual_seed(1 + rank)
    return torch.randn(batch, WIDTH[device.type], device=device, dtype=DTYPES[GRADIENT_DTYPE[device.type]])


def balanced_batch(ranks: Ranks, bucket_bytes: int) -> int:
    """The rows, a power of two, whose backward pass takes about as long as the exchange of all gradients alone.

    `bucket_bytes` are those of a bucket. The same on all ranks, by the slowest of them.
    """
    model = chain(ranks.device)
    weights = list(model.parameters())
    gradients = torch.zeros(sum(weight.numel() for weight in weights), device=ranks.device, dtype=weights[0].dtype)
    buffers = list(torch.split(gradients, max(1, bucket_bytes // gradients.element_size())))

    def taken_s(call: Callable[[], object]) -> float:
        ranks.sample_s(call, 1)
        return ranks.most(ranks.sample_s(call, BALANCING_CALLS)) / BALANCING_CALLS

    def backward_s(batch: int) -> float:
        rows = rows_for(ranks.device, batch, ranks.rank)
        both_s = taken_s(lambda: model(rows).square().mean().backward())
        with torch.no_grad():
            return both_s - taken_s(lambda: model(rows).square().mean())

    exchange_s, batch = taken_s(lambda: exchange(buffers)), MIN_BATCH
    while batch < MAX_BATCH and backward_s(batch) * BALANCED < exchange_s:
        batch *= 2
    return batch


def replica(mode: str, bucket_bytes: int, batch: int, ranks: Ranks) -> Replica:
    """A chain of layers with the same weights on all ranks and a batch of each rank's own."""
    device = ranks.device
    model = chain(device)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        wrapped = DistributedDataParallel(
            model,
            device_ids=[device] if device.type == "cuda" else None,
            broadcast_buffers=False,
            bucket_cap_mb=bucket_bytes / (1 << 20),
            gradient_as_bucket_view=True,
        )
    deferred = None
    if mode != OVERLAP:
        deferred = Deferred(device)
        wrapped.register_comm_hook(None, deferred.hook)
    return Replica(mode, wrapped, rows_for(device, batch, ranks.rank), clock_for(device), deferred)


def measure_ddp(request: Request, ranks: Ranks, keep: list[object]) -> Iterator[Timed]:
    """Measure each mode, in the order of `DDP_MODES`, for each size of bucket; numbers follow those of the cells."""
    number = len(request.cells)
    batch = balanced_batch(ranks, max(request.bucket_bytes)) if request.bucket_bytes else 0
    for bucket_bytes in request.bucket_bytes:
        replicas = [replica(mode, bucket_bytes, batch, ranks) for mode in DDP_MODES]
        keep.append(replicas)
        yield from _of_buckets(number, replicas, request.iterations, ranks)
        number += len(replicas)


def _of_buckets(number: int, replicas: list[Replica], iterations: int, ranks: Ranks) -> list[Timed]:
    """Both modes and the exchange alone, in turns, so that what else goes on meets them alike."""
    for each in replicas:
        for _ in range(WARMUP_STEPS):
            each.step()
    if ranks.most(float(not _agree(replicas))):
        reason = "gradients differ between the modes, or from the mean of all ranks' own"
        return [Timed(number + place, "failed", reason) for place in range(len(replicas))]
    sizes = next(each.deferred.sizes for each in replicas if each.deferred is not None)
    dtype = next(replicas[0].model.parameters()).dtype
    buffers = [torch.zeros(size, device=ranks.device, dtype=dtype) for size in sizes]
    ranks.sample_s(lambda: exchange(buffers), WARMUP_STEPS)
    steps: dict[str, list[dict[str, float]]] = {each.mode: [] for each in replicas}
    alone = []
    for _ in range(iterations):
        for each in replicas:
            dist.barrier(ranks.control)
            steps[each.mode].append(each.step())
        alone.append(ranks.sample_s(lambda: exchange(buffers), 1))
    bucket_bytes = [dtype.itemsize * size for size in sizes]
    batch = len(replicas[0].batch)
    return [_told(number + place, steps[each.mode], alone, bucket_bytes, batch) for place, each in enumerate(replicas)]


def _told(number: int, steps: list[dict[str, float]], alone: list[float], bucket_bytes: list[int], batch: int) -> Timed:
    parts = {f"{name}_s": [step[f"{name}_s"] for step in steps] for name in PARTS}
    seconds = [sum(step.values()) for step in steps]
    return Timed(
        number, "ok", None, 1, seconds, extra={**parts, "alone_s": alone, "bucket_bytes": bucket_bytes, "batch": batch}
    )


def _agree(replicas: list[Replica]) -> bool:
    """Whether both modes have the mean of what each rank computes by itself."""
    tolerance = TOLERANCE[replicas[0].batch.dtype]
    own = [parameter.grad.clone() for parameter in _plain(replicas[0])]
    for gradient in own:
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()
    return all(
        parameter.grad is not None
        and torch.allclose(parameter.grad, gradient, rtol=tolerance, atol=tolerance * float(gradient.abs().max()))
        for each in replicas
        for parameter, gradient in zip(each.model.parameters(), own, strict=True)
    )


def _plain(of: Replica) -> list[Any]:
    """Parameters of a copy of its model, with the gradients of this rank's batch alone."""
    copy = chain(of.batch.device)
    copy.load_state_dict(of.model.module.state_dict())
    copy(of.batch).square().mean().backward()
    return list(copy.parameters())
