"""A parameter server: keeps some of a model's weights, and steps the optimizer by gradients that workers send.

`python -m benchsuite.workloads.engines.server`, with an `Assignment` as JSON on its input, started by a rank. It ends
with that rank, and when a worker's connection closes.
"""

import ctypes
import json
import math
import pkgutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

from benchsuite.workloads import optim
from benchsuite.workloads.spec import ComputeSpec

NOTES = 3
"""Numbers beside the weights: which gradient it answers, how many were applied, bytes received and sent."""
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Assignment:
    """What a server is to do."""

    host: str
    port: int
    rank: int
    workers: int
    num_servers: int
    timeout_s: float
    shapes: list[list[int]]
    dtype: str
    optimizer: str
    """The optimizer's class, as module:name."""
    groups: list[dict[str, Any]]
    """The optimizer's options for each group of parameters; `params` are numbers of shapes."""
    compute: dict[str, Any]
    global_batch: int
    max_staleness: int | None


def ready(rank: int) -> str:
    """The key by which a server says that it is about to join."""
    return f"ready-{rank}"


def join(store: TCPStore, rank: int, size: int, timeout: timedelta) -> Any:
    """Join the group of workers and servers; all of them must."""
    return ProcessGroupGloo(PrefixStore("gloo", store), rank, size, timeout)


class Server:
    """The weights of one server, its optimizer, and its place in the group."""

    def __init__(self, given: Assignment) -> None:
        dtype = getattr(torch, given.dtype)
        sizes = [math.prod(shape) for shape in given.shapes]
        self.weights, self.gradient = (torch.zeros(sum(sizes), dtype=dtype) for _ in range(2))
        self.arrived = torch.zeros(given.workers, sum(sizes), dtype=dtype)
        store = TCPStore(given.host, given.port, is_master=False)
        size = given.workers + given.num_servers
        store.set(ready(given.rank), "")
        self._group = join(store, given.rank, size, timedelta(seconds=given.timeout_s))
        self._group.recv([self.weights], 0, 0).wait()
        parameters = []
        for shape, weight, gradient in zip(
            given.shapes, torch.split(self.weights, sizes), torch.split(self.gradient, sizes), strict=True
        ):
            parameters.append(nn.Parameter(weight.view(shape)))
            parameters[-1].grad = gradient.view(shape)
        groups = [group | {"params": [parameters[at] for at in group["params"]]} for group in given.groups]
        self._optimizer = pkgutil.resolve_name(given.optimizer)(groups)
        self._rates = optim.schedule(self._optimizer, ComputeSpec(**given.compute), given.global_batch)
        self.workers = given.workers
        self.updates = self._bytes = 0

    def receive_all(self) -> None:
        """Wait for the gradients of every worker."""
        works = [self._group.recv([self.arrived[worker]], worker, 0) for worker in range(self.workers)]
        for work in works:
            work.wait()
        self._bytes += self.arrived.nbytes

    def receive(self) -> tuple[int, Tensor]:
        """Wait for the gradient of any worker; which one, and the gradient."""
        buffer = self.arrived[0]
        work = self._group.recv_anysource([buffer], 0)
        work.wait()
        self._bytes += buffer.nbytes
        return int(work._source_rank()), buffer

    def apply(self, gradients: Sequence[Tensor]) -> None:
        """Step the optimizer by the sum of some workers' gradients over the number of all."""
        self.gradient.copy_(gradients[0])
        for gradient in gradients[1:]:
            self.gradient += gradient
        self.gradient /= self.workers
        self._optimizer.step()
        before = self.updates
        self.updates += len(gradients)
        if self._rates is not None and self.updates // self.workers > before // self.workers:
            self._rates.step()  # a round of all workers is a step

    def answer(self, worker: int, number: int) -> None:
        """Send the weights to a worker, whose gradient was the so many-th."""
        self._bytes += self.weights.nbytes + NOTES * torch.int64.itemsize
        notes = torch.tensor([number, self.updates, self._bytes])
        self._group.send([self.weights], worker, 0).wait()
        self._group.send([notes], worker, 0).wait()


def synchronous(server: Server) -> None:
    """Take a gradient of every worker, update, answer all; for ever."""
    while True:
        server.receive_all()
        before = server.updates
        server.apply(list(server.arrived))
        for worker in range(server.workers):
            server.answer(worker, before + 1)


def asynchronous(server: Server, max_staleness: int) -> None:
    """Apply each gradient when it comes, and hold back who is too far ahead of the slowest; for ever."""
    steps = [0] * server.workers
    waiting: dict[int, int] = {}
    while True:
        worker, gradient = server.receive()
        server.apply([gradient])
        steps[worker] += 1
        waiting[worker] = server.updates
        for ready in [one for one in waiting if steps[one] - min(steps) <= max_staleness]:
            server.answer(ready, waiting.pop(ready))


def main() -> None:
    """Serve until a worker is gone."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    torch.set_num_threads(1)
    given = Assignment(**json.load(sys.stdin))
    server = Server(given)
    try:
        with torch.no_grad():
            synchronous(server) if given.max_staleness is None else asynchronous(server, given.max_staleness)
    except RuntimeError as error:
        if "peer" not in str(error):  # gloo's words where a worker's connection is closed
            raise


if __name__ == "__main__":
    main()
