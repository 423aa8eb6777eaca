"""Engine `parameter_server`: workers send gradients to servers, which update the weights and send them back.

Servers are processes besides the ranks, each with whole parameters of about the same size (Li et al., "Scaling
distributed machine learning with the parameter server", 2014). Rank i N / S starts the i-th of S servers. They meet
in a gloo group of their own; on CUDA devices gradients and weights are copied to the host for it.

Synchronous: servers wait for all workers. With `max_staleness` each gradient is applied when it comes, and a worker is
held back that would be more than so many steps ahead of the slowest (Ho et al., "Stale synchronous parallel", 2013).
"""

import inspect
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from benchsuite.workloads import optim
from benchsuite.workloads.engines.server import NOTES, Assignment, join, ready
from benchsuite.workloads.parallel.recipe import Make, Parallelized, Recipe, dealt, first_address
from benchsuite.workloads.parallel.step import Training, stepping_of
from benchsuite.workloads.spec import ComputeSpec

READY_PAUSE_S = 0.02
ENDING_S = 1.0
SERVER = "benchsuite.workloads.engines.server"


@dataclass
class Shard:
    """The parameters that one server keeps, as messages to and from it."""

    server: int
    """The server's rank in the group of workers and servers."""
    parameters: Sequence[nn.Parameter]
    version: int = 0
    """Gradients that the server had applied when it sent the weights that are here."""
    staleness: list[int] = field(default_factory=list)
    """For each gradient that was sent, how many others the server applied since it sent the weights it is of."""
    applied: list[tuple[int, int]] = field(default_factory=list)
    """For each gradient, the version of its weights and its own number among all that the server applied."""
    server_bytes: int = 0
    """What the server has received and sent until now."""

    @cached_property
    def buffer(self) -> Tensor:
        """Where messages lie, in host memory."""
        size = sum(parameter.numel() for parameter in self.parameters)
        pinned = self.parameters[0].is_cuda
        return torch.empty(size, dtype=self.parameters[0].dtype, pin_memory=pinned)

    def send_weights(self, group: Any) -> None:
        """Give the server the weights to begin with."""
        self.buffer.copy_(torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters]))
        group.send([self.buffer], self.server, 0).wait()

    def fill(self) -> None:
        """Put the gradients into the buffer; a parameter that had no part in the loss has gradients of zero."""
        for parameter, part in self._parts():
            part.zero_() if parameter.grad is None else part.copy_(parameter.grad)

    def take(self, notes: Tensor) -> None:
        """Take the weights out of the buffer, and what the server notes beside them."""
        for parameter, part in self._parts():
            parameter.copy_(part)
        number, version, self.server_bytes = notes.tolist()
        self.staleness.append(number - 1 - self.version)
        self.applied.append((self.version, number))
        self.version = version

    def _parts(self) -> list[tuple[nn.Parameter, Tensor]]:
        parts = torch.split(self.buffer, [parameter.numel() for parameter in self.parameters])
        return [(parameter, part.view_as(parameter)) for parameter, part in zip(self.parameters, parts, strict=True)]


class RemoteOptimizer(torch.optim.Optimizer):
    """What a worker has in place of an optimizer: servers step theirs."""

    def __init__(self, like: torch.optim.Optimizer, shards: Sequence[Shard], group: Any, servers: "Servers") -> None:
        super().__init__(like.param_groups, like.defaults)
        self.shards, self.servers, self._group = shards, servers, group

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Send gradients, and wait for new weights."""
        notes = [torch.empty(NOTES, dtype=torch.int64) for _ in self.shards]
        with self.servers:
            for shard in self.shards:
                shard.fill()
                self._group.send([shard.buffer], shard.server, 0).wait()
            for shard, note in zip(self.shards, notes, strict=True):
                self._group.recv([shard.buffer], shard.server, 0).wait()
                self._group.recv([note], shard.server, 0).wait()
                shard.take(note)


@dataclass(frozen=True)
class Servers:
    """The servers that this rank has started; as a context it explains a broken connection by the end of one."""

    started: dict[int, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    """Servers by their ranks in the group of workers and servers."""

    def wait(self, store: TCPStore) -> None:
        """Wait until they are about to join, or raise that one has ended."""
        with self:
            while not all(store.check([ready(rank)]) for rank in self.started):
                if any(server.poll() is not None for server in self.started.values()):
                    raise RuntimeError("a server has ended before it began")
                time.sleep(READY_PAUSE_S)

    def __enter__(self) -> None:
        """Begin to talk to servers."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        deadline_s = time.monotonic() + ENDING_S  # a connection may close before the process that had it is gone
        while not (ended := [code for server in self.started.values() if (code := server.poll()) is not None]):
            if time.monotonic() > deadline_s:
                return
            time.sleep(READY_PAUSE_S)
        if ended:
            raise RuntimeError(f"a parameter server of this rank has ended with exit code {ended[0]}") from error


def train(model: nn.Module, recipe: Recipe, global_batch: int) -> Training:
    """Replicas whose weights come from servers."""
    layout, group = recipe.ranks.layout, recipe.ranks.data_group()
    workers, rank = layout.dp, dist.get_rank(group)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    shares = deal(trained, layout.num_servers)
    shards = [Shard(workers + number, parameters) for number, parameters in enumerate(shares)]
    store, timeout = _meeting_point(group), _timeout_of(group)
    like = optim.make(recipe.workload, recipe.compute, trained)
    servers = Servers()
    for number, parameters in enumerate(shares):
        if number * workers // layout.num_servers == rank:
            assignment = _assignment(number, parameters, like, store, recipe, global_batch, timeout)
            servers.started[assignment.rank] = _start(assignment)
    servers.wait(store)
    joined = join(store, rank, workers + layout.num_servers, timeout)
    for shard in shards if rank == 0 else ():
        shard.send_weights(joined)

    def remote(_parameters: Sequence[nn.Parameter], _make: Make) -> torch.optim.Optimizer:
        return RemoteOptimizer(like, shards, joined, servers)

    stepping = stepping_of(Parallelized(model, optimizer=remote), recipe, global_batch)
    training = stepping.training(stepping.step, model, model, store, joined, servers)
    return replace(training, told=lambda: told(shards, workers))


def deal(parameters: Sequence[nn.Parameter], servers: int) -> list[list[nn.Parameter]]:
    """Deal whole parameters to servers, the largest first, each to the one that has the least.

    Raises:
        ValueError: there are more servers than parameters.
    """
    if servers > len(parameters):
        raise ValueError(f"num_servers {servers}: the model has {len(parameters)} parameters, each server needs one")
    return dealt(parameters, nn.Parameter.numel, servers)


def told(shards: Sequence[Shard], workers: int) -> dict[str, Any]:
    """What a worker sends in a step, what the busiest server receives and sends in a step of all, and how stale it was.

    Servers count the bytes of their messages; a round of all workers is a step.
    """
    rounds = max(1.0, max(shard.version for shard in shards) / workers)
    stale = [count for shard in shards for count in shard.staleness]
    return {
        "wire_bytes": float(sum(shard.buffer.nbytes for shard in shards)),
        "collectives": {"send": len(shards)},
        "server_bytes_per_step": max(shard.server_bytes for shard in shards) / rounds,
        "staleness_mean": sum(stale) / len(stale) if stale else None,
        "staleness_max": max(stale, default=None),
    }


def _meeting_point(group: dist.ProcessGroup) -> TCPStore:
    """A store of rank 0 at which servers meet workers: theirs may be one that other processes cannot reach."""
    address: list[Any] = [None]
    store = None
    if dist.get_rank(group) == 0:
        store = TCPStore(first_address(), 0, is_master=True, wait_for_workers=False)
        address = [(store.host, store.port)]
    dist.broadcast_object_list(address, group_src=0, group=group)
    host, port = address[0]
    return store or TCPStore(host, port, is_master=False)


def _timeout_of(group: dist.ProcessGroup) -> timedelta:
    """How long this rank waits for others."""
    backend = group._get_backend(torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu"))
    found: timedelta = backend.options._timeout
    return found


def _assignment(
    number: int,
    parameters: Sequence[nn.Parameter],
    like: torch.optim.Optimizer,
    store: TCPStore,
    recipe: Recipe,
    global_batch: int,
    timeout: timedelta,
) -> Assignment:
    """What a server is to do: the optimizer is told by its class and options, since code is not sent."""
    layout, numbers = recipe.ranks.layout, {id(parameter): at for at, parameter in enumerate(parameters)}
    known = inspect.signature(type(like)).parameters
    groups = [
        {name: value for name, value in group.items() if name in known}
        | {"params": [numbers[id(one)] for one in group["params"] if id(one) in numbers]}
        for group in like.param_groups
    ]
    return Assignment(
        store.host,
        store.port,
        layout.dp + number,
        layout.dp,
        layout.num_servers,
        timeout.total_seconds(),
        [list(parameter.shape) for parameter in parameters],
        str(parameters[0].dtype).removeprefix("torch."),
        f"{type(like).__module__}:{type(like).__qualname__}",
        [group for group in groups if group["params"]],
        {name: getattr(recipe.compute, name) for name in ComputeSpec.model_fields},
        global_batch,
        layout.max_staleness,
    )


def _start(assignment: Assignment) -> "subprocess.Popen[bytes]":
    """Start a server, which ends with this process."""
    server = subprocess.Popen([sys.executable, "-m", SERVER], stdin=subprocess.PIPE)
    assert server.stdin is not None
    server.stdin.write(json.dumps(asdict(assignment)).encode())
    server.stdin.close()
    return server
