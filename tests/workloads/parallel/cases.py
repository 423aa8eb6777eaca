"""Which spreads are compared with a single process: every valid (workload, mode, ranks), techniques pairwise."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from benchsuite import workloads
from benchsuite.workloads.facts import FACTS
from benchsuite.workloads.layout import LayoutError, layout_of
from benchsuite.workloads.parallel.check import Case
from benchsuite.workloads.spec import ComputeSpec, Parallelism
from benchsuite.workloads.validity import problem
from benchsuite.workloads.workload import Workload

MODELS = (("resnet50", "nano"), ("unet3d", "nano"), ("bert", "nano"), ("gpt_neox", "nano"), ("gpt_neox", "nano_moe"))
NAMED = ("none", "ddp", "zero1", "zero2", "fsdp", "hsdp", "tp", "pp", "ep")
DEGREES: tuple[dict[str, Any], ...] = (
    {"tp": 2, "sequence_parallel": True},
    {"tp": 2, "loss_parallel": True},
    {"tp": 2, "sequence_parallel": True, "loss_parallel": True},
    {"tp": 2, "zero": 3},
    {"tp": 2, "zero": 2, "sequence_parallel": True},
    {"pp": 2, "schedule": "naive"},
    {"pp": 2, "schedule": "gpipe", "microbatches": 4},
    {"pp": 2, "schedule": "1f1b", "microbatches": 4},
    {"pp": 2, "schedule": "interleaved", "microbatches": 4},
    {"pp": 2, "schedule": "zero_bubble", "microbatches": 4},
    {"pp": 4, "schedule": "gpipe"},
    {"pp": 4, "schedule": "1f1b"},
    {"tp": 2, "pp": 2},
    {"tp": 2, "pp": 2, "schedule": "interleaved"},
    {"tp": 2, "pp": 2, "loss_parallel": True},
    {"tp": 2, "pp": 2, "sequence_parallel": True},
    {"ep": 2},
    {"ep": 4},
)
TECHNIQUES: tuple[tuple[Any, dict[str, Any]], ...] = (
    ("ddp", {"bucket_cap_mb": 1, "gradient_as_bucket_view": True}),
    ("ddp", {"static_graph": True, "optimizer": "sgd"}),
    ("ddp", {"comm_hook": "fp16"}),
    ("ddp", {"comm_hook": "bf16", "optimizer": "momentum"}),
    ("ddp", {"comm_hook": "powersgd"}),
    ("ddp", {"activation_checkpointing": "full", "optimizer": "adamw", "fused": True}),
    ("ddp", {"activation_checkpointing": "selective", "grad_accum": 4}),
    ("ddp", {"channels_last": True, "precision": "bf16"}),
    ("ddp", {"precision": "fp16", "optimizer": "sgd"}),
    ("ddp", {"precision": "pure_bf16", "optimizer": "sgd"}),
    ("ddp", {"lr_scaling": "linear", "lr_warmup_steps": 3, "optimizer": "adafactor"}),
    ("zero1", {"grad_accum": 2, "optimizer": "adamw"}),
    ("zero1", {"optimizer": "momentum", "fused": True, "precision": "bf16"}),
    ("zero2", {"grad_accum": 2, "activation_checkpointing": "full", "optimizer": "adamw"}),
    ("zero2", {"precision": "bf16", "optimizer": "momentum"}),
    ("fsdp", {"reshard_after_forward": False, "grad_accum": 2, "optimizer": "momentum"}),
    ("fsdp", {"prefetch_blocks": 2, "activation_checkpointing": "selective", "optimizer": "sgd"}),
    ("fsdp", {"cpu_offload": True, "optimizer": "adamw"}),
    ("fsdp", {"fused": True, "optimizer": "adamw"}),
    ("fsdp", {"precision": "pure_bf16", "channels_last": True, "optimizer": "sgd"}),
    ("hsdp", {"grad_accum": 2, "precision": "bf16", "optimizer": "adamw"}),
    ("tp", {"grad_accum": 2, "optimizer": "momentum"}),
    (
        {"tp": 2, "sequence_parallel": True},
        {"activation_checkpointing": "full", "precision": "bf16", "optimizer": "sgd"},
    ),
    ({"tp": 2, "zero": 3}, {"activation_checkpointing": "selective", "optimizer": "momentum"}),
    ({"pp": 2, "microbatches": 4}, {"activation_checkpointing": "full", "precision": "bf16", "optimizer": "sgd"}),
    ({"pp": 2, "schedule": "interleaved"}, {"optimizer": "momentum"}),
    ({"ep": 2}, {"activation_checkpointing": "full", "grad_accum": 2, "optimizer": "momentum"}),
    ("ddp", {"compile": True, "optimizer": "sgd"}),
)
RANK_BATCH = 4
FEW_RANKS, MANY_RANKS = 2, 8
STEPS, STEPS_OF_MORE_RANKS = 5, 3
"""Two have been taken with momentum when the third one's loss is compared, and then the weights are."""
HEAVY = "unet3d"
"""Its volumes take most of the time, and a rank more tells nothing new of it."""


@dataclass(frozen=True)
class Asked:
    """A case by names, so that it can be told to other processes."""

    workload: str
    variant: str
    mode: Any
    world_size: int
    compute: dict[str, Any] = field(default_factory=dict)
    steps: int = STEPS

    @property
    def name(self) -> str:
        """For people."""
        mode = (
            self.mode if isinstance(self.mode, str) else " ".join(f"{key}={value}" for key, value in self.mode.items())
        )
        words = [self.workload, self.variant, f"{self.world_size} ranks", mode]
        return ", ".join([*words, *(f"{key}={value}" for key, value in self.compute.items())])

    def case(self) -> Case:
        """The case.

        Raises:
            LayoutError: it cannot be laid out.
        """
        workload: Workload = workloads.load(workloads.WORKLOADS, self.workload)
        mode = self.mode if isinstance(self.mode, str) else Parallelism(**self.mode)
        layout = layout_of(mode, self.world_size)
        compute = ComputeSpec(**{"optimizer": "momentum", **self.compute})
        return Case(workload, workload.variants[self.variant], layout, compute, RANK_BATCH, self.steps)

    def valid(self) -> bool:
        """Whether it can run."""
        try:
            case = self.case()
        except LayoutError:
            return False
        return not problem(FACTS[self.workload], case.variant, case.layout, case.compute, RANK_BATCH, "cpu")


def cases(world_size: int, which: str) -> Iterator[Asked]:
    """Every valid mode, with every model on the fewest ranks it can have and with one on more; techniques on few.

    On more than the fewest ranks fewer steps are taken. Where `which` is full, every one with every model on any number
    of ranks, and all steps. Where it is smoke, each named mode once, on the fewest ranks it can have.
    """
    if which == "smoke":
        yield from _smoke(world_size)
        return
    short = which != "full" and world_size > FEW_RANKS
    for asked in _cases(world_size, which):
        yield replace(asked, steps=STEPS_OF_MORE_RANKS) if short else asked


def _smoke(world_size: int) -> Iterator[Asked]:
    for number, mode in enumerate(NAMED):
        light = [asked for asked in _valid(mode, world_size) if asked.workload != HEAVY]
        if light and not (world_size > FEW_RANKS and _valid(mode, world_size // 2)):
            yield light[number % len(light)]


def _cases(world_size: int, which: str) -> Iterator[Asked]:
    for number, mode in enumerate((*NAMED, *DEGREES)):
        valid = _valid(mode, world_size)
        fewer_can = world_size > FEW_RANKS and _valid(mode, world_size // 2)
        if which == "full" or (world_size < MANY_RANKS and not fewer_can):
            yield from valid
        elif valid:
            light = [asked for asked in valid if asked.workload != HEAVY]
            yield light[number % len(light)]
    if which == "full" or world_size < MANY_RANKS:
        yield from _techniques(world_size, which)


def _valid(mode: Any, world_size: int) -> list[Asked]:
    every = (Asked(workload, variant, mode, world_size) for workload, variant in MODELS)
    return [asked for asked in every if asked.valid()]


def _techniques(world_size: int, which: str) -> Iterator[Asked]:
    for number, (mode, compute) in enumerate(TECHNIQUES):
        compiled = compute.get("compile", False)
        if compiled and which != "full" and world_size > FEW_RANKS:
            continue  # compiling takes a minute
        fewer_can = any(Asked(*model, mode, world_size // 2, compute).valid() for model in MODELS)
        if which != "full" and world_size > FEW_RANKS and fewer_can:
            continue
        valid = [
            asked
            for workload, variant in MODELS
            if not (
                compiled and variant == "nano_moe"
            )  # its router computes in float32, which compilers round otherwise
            and (asked := Asked(workload, variant, mode, world_size, compute)).valid()
        ]
        if which == "full":
            yield from valid
        elif valid:
            yield valid[(number + world_size) % len(valid)]
    batch_norm = Asked("resnet50", "nano", "zero2", world_size, {"precision": "bf16"})
    if which != "full" and batch_norm.valid():
        yield batch_norm
