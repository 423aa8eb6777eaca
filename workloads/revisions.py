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


def _in_bf16(subject: Subject) -> bool:
    return subject.compute.precision in ("bf16", "fp8")


def _adds_up_in_float32(subject: Subject) -> bool:
    """Whether autocast left what a decoder adds up, or gathers over tp, in float32: weights had more than 16 bits."""
    layout = subject.layout
    has_half_weights = layout.engine == "deepspeed" or (layout.engine == "torch" and layout.zero > 1)
    return _in_bf16(subject) and (not has_half_weights or layout.tp > 1)


def _is_fully_sharded(subject: Subject) -> bool:
    """By torch, and as its mode does where nothing is asked."""
    layout = subject.layout
    return layout.engine == "torch" and layout.zero == 3 and subject.compute.reshard_after_forward is None


REVISIONS: tuple[Revision, ...] = (
    Revision(
        "gpt_neox",
        2,
        "under bf16 what its layers add up, send and gather has 16 bits in every mode",
        lambda subject: subject.workload == "gpt_neox" and _adds_up_in_float32(subject),
    ),
    Revision(
        "bert",
        2,
        "under bf16 what its layers add up, send and gather has 16 bits",
        lambda subject: subject.workload == "bert" and _in_bf16(subject),
    ),
    Revision(
        "fsdp",
        2,
        "weights of no block stay whole from forward to backward",
        lambda subject: _is_fully_sharded(subject) and subject.layout.pp == 1,
    ),
    Revision(
        "fsdp",
        2,
        "in a pipeline weights are gathered once a step, not for every microbatch",
        lambda subject: _is_fully_sharded(subject) and subject.layout.pp > 1,
    ),
    Revision(
        "hsdp",
        2,
        "it has a replica on each node, no longer two in all",
        lambda subject: subject.layout.name == "hsdp" and subject.layout.dp_replicate != HSDP_REPLICAS,
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
