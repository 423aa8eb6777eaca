"""Engine `horovod`: gradients are averaged as they become ready, by Horovod (Sergeev and Del Balso, 2018).

Its processes meet by a server of addresses that rank 0 runs, as those do that `horovodrun --gloo` starts.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchsuite.workloads.parallel.account import wire_bytes
from benchsuite.workloads.parallel.recipe import Make, Parallelized, Recipe, first_address
from benchsuite.workloads.parallel.step import Training, stepping_of


@dataclass
class Counted:
    """A compressor of gradients that counts what it makes of them; Horovod asks one for every gradient it sends."""

    inner: Any
    sent: list[int]

    def compress(self, tensor: Tensor) -> tuple[Tensor, Any]:
        """A gradient as it is sent, and what is needed to restore it."""
        made, context = self.inner.compress(tensor)
        self.sent.append(made.nbytes)
        return made, context

    def decompress(self, tensor: Tensor, context: Any) -> Tensor:
        """A gradient as it was."""
        restored: Tensor = self.inner.decompress(tensor, context)
        return restored


def train(model: nn.Module, recipe: Recipe, global_batch: int) -> Training:
    """Replicas that begin from the weights of rank 0."""
    group, compute = recipe.ranks.data_group(), recipe.compute
    hvd = joined(group, compute.fusion_threshold_mb)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    counted = Counted(hvd.Compression.fp16 if compute.comm_hook == "fp16" else hvd.Compression.none, [])
    keep = ExitStack()

    def distributed(parameters: Sequence[nn.Parameter], make: Make) -> torch.optim.Optimizer:
        made: torch.optim.Optimizer = hvd.DistributedOptimizer(
            make(parameters),
            named_parameters=model.named_parameters(),
            compression=counted,
            backward_passes_per_step=compute.grad_accum,
        )
        keep.enter_context(made.skip_synchronize())  # type: ignore[attr-defined]  # `average` waits, and is timed
        return made

    parallelized = Parallelized(model, average=lambda: stepping.update.optimizer.synchronize(), optimizer=distributed)  # type: ignore[attr-defined]
    stepping = stepping_of(parallelized, recipe, global_batch)
    training = stepping.training(stepping.step, model, model, keep)
    return replace(training, told=lambda: told(counted.sent, model, group.size()))


def told(sent: Sequence[int], model: nn.Module, ranks: int) -> dict[str, Any]:
    """What the last step sent: an all-reduce for every gradient, which Horovod fuses to larger messages."""
    last = sent[-sum(parameter.requires_grad for parameter in model.parameters()) :]
    return {
        "wire_bytes": sum(wire_bytes("all_reduce", size, ranks) for size in last),
        "collectives": {"all_reduce": len(last)},
    }


@cache
def joined(group: dist.ProcessGroup, fusion_threshold_mb: int | None) -> Any:
    """Horovod, once its processes have met."""
    import horovod.torch as hvd

    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    address: list[Any] = [_addresses(ranks) if rank == 0 else None]
    dist.broadcast_object_list(address, group_src=0, group=group)
    host, port = address[0]
    found = {
        "HOROVOD_RANK": rank,
        "HOROVOD_SIZE": ranks,
        "HOROVOD_LOCAL_RANK": rank,
        "HOROVOD_LOCAL_SIZE": ranks,
        "HOROVOD_CROSS_RANK": 0,
        "HOROVOD_CROSS_SIZE": 1,
        "HOROVOD_HOSTNAME": "all",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }
    if fusion_threshold_mb is not None:
        found["HOROVOD_FUSION_THRESHOLD"] = fusion_threshold_mb << 20
    if "GLOO_SOCKET_IFNAME" in os.environ:
        found["HOROVOD_GLOO_IFACE"] = os.environ["GLOO_SOCKET_IFNAME"]
    os.environ |= {name: str(value) for name, value in found.items()}
    hvd.init()
    return hvd


def _addresses(ranks: int) -> tuple[str, int]:
    """Run the server at which processes leave their addresses; where it is."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer(0)
    port = server.start()
    server.init(get_host_assignments(parse_hosts(f"all:{ranks}"), ranks))
    return first_address(), int(port)
