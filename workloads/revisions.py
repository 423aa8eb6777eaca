"""Which points measure something else than in earlier versions, and why: a part of their identity (no torch).

A mend that changes what a mode or a workload computes, sends or holds adds a line to REVISIONS, and a sentence to the
changelog. Points to which none applies keep their ids.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchsuite.workloads.layout import HSDP_REPLICAS, Layout
from benchsuite.workloads.spec import ComputeSpec


@dataclass(frozen=True)
class Subject:
    """What decides whether a point is revised. Steps of an emulated device run no mode, and are never."""

    workload: str
    layout: Layout
    compute: ComputeSpec
    nodes: int = 1


@dataclass(frozen=True)
class Revision:
    """A mode or workload as it is now: `of` names it, `number` counts from 2, `why` says what it does otherwise."""

    of: str
    number: int
    why: str
    applies: Callable[[Subject], bool]

    @property
    def name(self) -> str:
        """Such as `fsdp 2`."""
        return f"{self.of} {self.number}"


REVISIONS: tuple[Revision, ...] = (
    Revision(
        "hsdp",
        2,
        "it has a replica on each node, no longer two in all",
        lambda point: point.layout.name == "hsdp" and point.layout.dp_replicate != HSDP_REPLICAS,
    ),
)


def revisions_of(subject: Subject) -> list[Revision]:
    """The newest revision of each mode and workload that a point has, in order of their names; none where all are 1."""
    newest: dict[str, Revision] = {}
    for one in sorted(REVISIONS, key=lambda one: (one.of, one.number)):
        if one.applies(subject):
            newest[one.of] = one
    return [*newest.values()]


def in_words(revisions: Sequence[Revision]) -> str | None:
    """Their names, such as `fsdp 2, tp 2`; None where there are none."""
    return ", ".join(one.name for one in revisions) or None
