"""Which waits are marked: those that a step blocks in, by whatever name torch has for them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchsuite.inside import collectives
from benchsuite.workloads.parallel import context
from benchsuite.workloads.parallel.waits import Waits, mark_waits


class Marks:
    """A clock that keeps the names of parts."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def mark(self, part: str) -> None:
        self.names.append(part)


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Waits]:
    """Waits of a group of two ranks whose collectives, as NCCL's, give no work where their caller blocks: a stub."""
    replaced = [(dist.Work, "wait"), (_functional_collectives, "wait_tensor"), (context, "wait_for")]
    for owner, name in replaced:
        monkeypatch.setattr(owner, name, getattr(owner, name))  # given back in the end
    for name in collectives.COLLECTIVES:
        if hasattr(dist.ProcessGroup, name):
            monkeypatch.setattr(dist.ProcessGroup, name, lambda *_given, **_named: None)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield mark_waits()
    dist.destroy_process_group()


def one() -> torch.Tensor:
    return torch.zeros(2)


COLLECTIVES: dict[str, Callable[..., Any]] = {
    "all_reduce": lambda **how: dist.all_reduce(one(), **how),
    "broadcast": lambda **how: dist.broadcast(one(), 0, **how),
    "reduce": lambda **how: dist.reduce(one(), 0, **how),
    "all_gather": lambda **how: dist.all_gather([one(), one()], one(), **how),
    "all_gather_into_tensor": lambda **how: dist.all_gather_into_tensor(torch.zeros(4), one(), **how),
    "reduce_scatter": lambda **how: dist.reduce_scatter(one(), [one(), one()], **how),
    "reduce_scatter_tensor": lambda **how: dist.reduce_scatter_tensor(one(), torch.zeros(4), **how),
    "all_to_all": lambda **how: dist.all_to_all([one(), one()], [one(), one()], **how),
    "all_to_all_single": lambda **how: dist.all_to_all_single(one(), one(), **how),
    "barrier": lambda **how: dist.barrier(**how),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_collective_that_blocks_is_communication(marked: Waits, name: str) -> None:
    clock = Marks()
    marked.begin(clock, "backward")
    COLLECTIVES[name](async_op=True)
    assert clock.names == [], "who does not block waits for the work, later"
    COLLECTIVES[name](async_op=False)
    assert clock.names == ["backward", "communication"]
    marked.end()
    COLLECTIVES[name]()
    assert len(clock.names) == 2
