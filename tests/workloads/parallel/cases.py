"""Which spreads are compared with a single process: in full every valid (workload, mode, ranks), and techniques."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import Any

from benchsuite import workloads
from benchsuite.workloads.facts import FACTS
from benchsuite.workloads.layout import LayoutError, layout_of
from benchsuite.workloads.parallel.check import Case
from benchsuite.workloads.spec import ComputeSpec, Parallelism
from benchsuite.workloads.validity import problem
from benchsuite.workloads.workload import Workload

DECODERS = ("nano", "nano_moe", "nano_gpt2", "nano_llama")
MODELS = (("resnet50", "nano"), ("unet3d", "nano"), ("bert", "nano"), *(("gpt_neox", variant) for variant in DECODERS))
NAMED = ("none", "ddp", "zero1", "zero2", "fsdp", "hsdp", "tp", "pp", "cp", "ep")
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
    {"tp": 4},
    {"tp": 2, "pp": 2},
    {"tp": 2, "pp": 2, "schedule": "interleaved"},
    {"tp": 2, "pp": 2, "loss_parallel": True},
    {"tp": 2, "pp": 2, "sequence_parallel": True},
    {"tp": 2, "zero": 1},
    {"pp": 2, "zero": 1, "schedule": "zero_bubble"},
    {"pp": 2, "zero": 2, "schedule": "zero_bubble"},
    {"pp": 2, "zero": 2, "schedule": "interleaved", "microbatches": 4},
    {"pp": 2, "zero": 3, "schedule": "naive"},
    {"pp": 2, "zero": 3, "schedule": "gpipe", "microbatches": 4},
    {"pp": 2, "zero": 3, "schedule": "1f1b", "microbatches": 4},
    {"pp": 2, "zero": 3, "schedule": "interleaved"},
    {"pp": 2, "zero": 3, "schedule": "zero_bubble"},
    {"pp": 2, "zero": 3, "dp_replicate": 2},
    {"tp": 2, "pp": 2, "zero": 1, "sequence_parallel": True, "loss_parallel": True},
    {"tp": 2, "pp": 2, "zero": 2},
    {"tp": 2, "pp": 2, "zero": 3, "schedule": "interleaved", "sequence_parallel": True},
    {"cp": 2, "cp_attention": "all_to_all"},
    {"cp": 4, "cp_attention": "all_to_all"},
    {"cp": 4},
    {"cp": 2},
    {"cp": 2, "zero": 1},
    {"cp": 2, "zero": 2},
    {"cp": 2, "zero": 3, "cp_attention": "all_to_all"},
    {"cp": 2, "zero": 3, "dp_replicate": 2},
    {"cp": 2, "tp": 2, "sequence_parallel": True},
    {"cp": 2, "tp": 2, "loss_parallel": True, "cp_attention": "all_to_all"},
    {"cp": 2, "pp": 2},
    {"cp": 2, "pp": 2, "schedule": "interleaved", "cp_attention": "all_to_all"},
    {"cp": 2, "pp": 2, "schedule": "zero_bubble", "zero": 2},
    {"cp": 2, "tp": 2, "pp": 2},
    {"ep": 2},
    {"ep": 4},
    {"engine": "broadcast"},
    {"engine": "parameter_server"},
    {"engine": "parameter_server", "num_servers": 3},
)
INSTALLED: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"engine": "horovod"}, {}),
    ({"engine": "horovod"}, {"comm_hook": "fp16", "optimizer": "adamw"}),
    ({"engine": "horovod"}, {"grad_accum": 2, "precision": "bf16", "optimizer": "sgd"}),
    ({"engine": "horovod"}, {"lr_warmup_steps": 3, "optimizer": "adafactor"}),
    ({"engine": "deepspeed"}, {}),
    ({"engine": "deepspeed"}, {"optimizer": "adafactor", "lr_warmup_steps": 3}),
    ({"engine": "deepspeed", "zero": 1}, {"optimizer": "adamw", "reduce_bucket_size": 10_000}),
    ({"engine": "deepspeed", "zero": 1}, {"grad_accum": 2, "contiguous_gradients": False}),
    ({"engine": "deepspeed", "zero": 2}, {"contiguous_gradients": True, "optimizer": "sgd"}),
    ({"engine": "deepspeed", "zero": 2}, {"overlap_comm": True, "activation_checkpointing": "full"}),
    ({"engine": "deepspeed", "zero": 2}, {"cpu_offload": True, "optimizer": "adamw"}),
    ({"engine": "deepspeed", "zero": 1}, {"precision": "bf16", "optimizer": "momentum"}),
    ({"engine": "deepspeed", "zero": 2}, {"precision": "bf16", "optimizer": "sgd"}),
    ({"engine": "deepspeed", "zero": 3}, {"prefetch_bucket_size": 10_000, "param_persistence_threshold": 100}),
    ({"engine": "deepspeed", "zero": 3}, {"grad_accum": 2, "activation_checkpointing": "full", "optimizer": "adamw"}),
    ({"engine": "deepspeed", "zero": 3}, {"cpu_offload": True, "optimizer": "sgd"}),
    ({"engine": "deepspeed", "zero": 3}, {"precision": "bf16", "optimizer": "sgd"}),
)
"""Engines that must be installed: `make test-all`."""
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
    ({"tp": 2, "zero": 1}, {"grad_accum": 2, "optimizer": "adamw"}),
    ({"pp": 2, "zero": 1}, {"optimizer": "adam", "fused": True, "precision": "bf16"}),
    ({"pp": 2, "zero": 3}, {"activation_checkpointing": "full", "precision": "bf16", "optimizer": "sgd"}),
    ({"pp": 2, "zero": 3}, {"cpu_offload": True, "prefetch_blocks": 1, "optimizer": "adam"}),
    ({"pp": 2, "zero": 3}, {"reshard_after_forward": True}),
    ({"pp": 2, "zero": 2}, {"activation_checkpointing": "selective", "reshard_after_forward": True}),
    ("cp", {"activation_checkpointing": "full", "precision": "bf16", "optimizer": "sgd"}),
    ("cp", {"activation_checkpointing": "selective", "grad_accum": 2, "optimizer": "adam"}),
    ("cp", {"precision": "fp16", "optimizer": "sgd", "bucket_cap_mb": 1}),
    ("cp", {"precision": "pure_bf16", "optimizer": "sgd", "comm_hook": "bf16"}),
    ({"cp": 2, "cp_attention": "all_to_all"}, {"activation_checkpointing": "selective", "precision": "bf16"}),
    ("ddp", {"optimizer": "adam"}),
    ("fsdp", {"optimizer": "adam", "fused": True}),
    ("tp", {"optimizer": "adam"}),
    ("ddp", {"compile": True, "optimizer": "sgd"}),
    ("tp", {"compile": True}),
    ("pp", {"compile": True}),
    ("cp", {"compile": True}),
    ({"engine": "broadcast"}, {"grad_accum": 2, "precision": "bf16", "optimizer": "adamw"}),
    ({"engine": "broadcast"}, {"precision": "pure_bf16", "optimizer": "sgd"}),
    ({"engine": "parameter_server"}, {"grad_accum": 2, "precision": "bf16", "optimizer": "sgd"}),
    ({"engine": "parameter_server"}, {"lr_warmup_steps": 3, "optimizer": "adafactor"}),
    ({"engine": "parameter_server"}, {"activation_checkpointing": "full", "optimizer": "adamw"}),
)
RANK_BATCH = 4
RANKS = (2, 4, 8)
FEW_RANKS, MOST_RANKS = 2, 8
STEPS, FEW_STEPS = 5, 3
"""Two have been taken with momentum when the third one's loss is compared, and then the weights are."""
HEAVY = "unet3d"
"""Its volumes take most of the time, and a rank more tells nothing new of it."""
SEES_MODELS = ("ddp", "fsdp", "tp", "pp", "cp")
"""Each model is tried with these, by name or composed; other modes only see weights and gradients as they are."""


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
    def model(self) -> tuple[str, str]:
        """Which model."""
        return self.workload, self.variant

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
        return self.problem() is None

    def problem(self) -> str | None:
        """Why it cannot run."""
        try:
            case = self.case()
        except LayoutError as error:
            return str(error)
        return problem(FACTS[self.workload], case.variant, case.layout, case.compute, RANK_BATCH, "cpu")


def cases(world_size: int, which: str) -> Iterator[Asked]:
    """Every composed mode once, on the fewest ranks where all of its parts have work, and each setting of techniques.

    Where `which` is full, every mode with every model on any number of ranks, techniques too, and all steps. Where it
    is bf16, modes for one step, whose weights tell the gradients: those that differ in more than their schedule; or
    every bf16 one. Where it is smoke, each named mode once, on the fewest ranks it can have; a normal one has only
    those that add a model. What takes eight ranks is compared in bf16 alone, where it is not full.
    """
    if which == "smoke":
        yield from _smoke(world_size)
        return
    if "engines" in which:
        asked_for = list(engine_cases(world_size))
        first = {str(asked.mode): asked for asked in reversed(asked_for)}  # of each engine and stage
        yield from first.values() if which == "few engines" else asked_for
        return
    if which == "waits":
        return
    if which in ("bf16", "every bf16"):
        modes = in_bf16() if which == "bf16" else every_in_bf16()
        yield from (asked for asked in modes if asked.world_size == world_size)
        return
    for asked in _every(world_size) if which == "full" else _normal():
        if asked.world_size != world_size:
            continue
        late = {"lr_warmup_steps", "comm_hook"} & {*asked.compute}  # which change after some steps
        short = which != "full" and (world_size > FEW_RANKS or not late)
        yield replace(asked, steps=FEW_STEPS) if short else asked


def engine_cases(world_size: int) -> Iterator[Asked]:
    """Engines that must be installed, each setting with the next model, and none with each on the fewest ranks.

    Whether they are installed is not asked.
    """
    models = [model for model in MODELS if model[1] != "nano_moe"]
    for number, (mode, compute) in enumerate(INSTALLED):
        plain = len(compute) == 0
        if world_size > FEW_RANKS and not plain:
            continue  # a rank more tells nothing new of a setting
        # One step of 16-bit weights and batch norm in one process, too, goes half as far apart as the step is long.
        fit = models[1:] if (mode["engine"], compute.get("precision")) == ("deepspeed", "bf16") else models
        for model in models if plain and world_size == FEW_RANKS else fit[number % len(fit) :][:1]:
            yield Asked(*model, mode, world_size, compute, FEW_STEPS if world_size > FEW_RANKS else STEPS)


def in_bf16() -> tuple[Asked, ...]:
    """Of those that differ in their schedule or in how many ranks share what alone, the first."""
    degrees, left_out = ("tp", "pp", "cp", "ep", "dp_replicate"), ("schedule", "microbatches")
    kinds_: dict[object, Asked] = {}
    for asked in every_in_bf16():
        given = asked.mode if isinstance(asked.mode, dict) else {asked.mode: 2}
        kind = {name: 2 if name in degrees else value for name, value in given.items() if name not in left_out}
        kinds_.setdefault(frozenset(kind.items()), asked)
    return tuple(kinds_.values())


@cache
def every_in_bf16() -> tuple[Asked, ...]:
    """Every mode of torch's on the fewest ranks: after one step of SGD weights differ as gradients did."""
    compute = {"precision": "bf16", "optimizer": "sgd"}
    asked = [_valid(mode, fewest_ranks(mode), compute) for mode in (*NAMED[1:], *DEGREES) if "engine" not in mode]
    return tuple(replace(next(one for one in found if one.workload == "gpt_neox"), steps=1) for found in asked)


def _smoke(world_size: int) -> Iterator[Asked]:
    for number, mode in enumerate(NAMED):
        light = [asked for asked in _valid(mode, world_size) if asked.workload != HEAVY]
        if light and not (world_size > FEW_RANKS and _valid(mode, world_size // 2)):
            yield light[number % len(light)]


def _every(world_size: int) -> Iterator[Asked]:
    for mode in (*NAMED, *DEGREES):
        yield from _valid(mode, world_size)
    for mode, compute in TECHNIQUES:
        yield from _valid(mode, world_size, compute)


@cache
def _normal() -> tuple[Asked, ...]:
    """Of every number of ranks."""
    asked = [_spread(number, mode, {}) for number, mode in enumerate(DEGREES)]
    asked += [_spread(number, mode, compute) for number, (mode, compute) in enumerate(_new_techniques())]
    had = {(kind, one.model) for one in (*asked, *_smoke(FEW_RANKS)) for kind in kinds(one)}
    named = [one for mode in SEES_MODELS for one in _valid(mode, FEW_RANKS) if (mode, one.model) not in had]
    return (*named, *(one for one in asked if one.world_size < MOST_RANKS))


def _spread(number: int, mode: Any, compute: dict[str, Any]) -> Asked:
    """A mode with one model, the next mode with another."""
    light = [asked for asked in _valid(mode, fewest_ranks(mode), compute) if asked.workload != HEAVY]
    return light[number % len(light)]


def kinds(asked: Asked) -> set[str]:
    """Which of the named modes that see a model are in what is asked."""
    if isinstance(asked.mode, str):
        return {asked.mode} & {*SEES_MODELS}
    return {*SEES_MODELS} & {*asked.mode} | ({"fsdp"} if asked.mode.get("zero") == 3 else set())


def fewest_ranks(mode: Any) -> int:
    """The fewest ranks a mode can have; where it shards in more than one dimension, as many as leave some to share."""
    valid = [each[0] for ranks in RANKS if (each := _valid(mode, ranks))]
    if isinstance(mode, dict) and mode.get("zero") == 3:
        valid = [asked for asked in valid if asked.case().layout.dp > 1 or "cp" in mode]
    return valid[0].world_size


def _new_techniques() -> Iterator[tuple[Any, dict[str, Any]]]:
    """Those with a setting, or a kind of mode, that none before has."""
    seen: set[object] = set()
    for mode, compute in TECHNIQUES:
        kind = mode if isinstance(mode, str) else mode.get("engine") or next(iter(mode))
        told = {kind, *compute.items()} - seen
        if told and not (compute.get("compile") and mode != "cp"):  # which takes a minute, and has DDP around blocks
            yield mode, compute
            seen |= told


def _valid(mode: Any, world_size: int, compute: Mapping[str, Any] = MappingProxyType({})) -> list[Asked]:
    """Each model that can be trained so."""
    every = (Asked(workload, variant, mode, world_size, {**compute}) for workload, variant in MODELS)
    return [asked for asked in every if not _rounds_otherwise(asked) and asked.valid()]


def _rounds_otherwise(asked: Asked) -> bool:
    """Whether what is compared is further apart than the tolerance, and for a reason that is known."""
    if asked.variant == "nano_moe":
        # A router, which computes in float32, gets tokens together that one process does not, or compiled code.
        composed_cp = not isinstance(asked.mode, str) and "cp" in asked.mode and not asked.compute
        return composed_cp or bool(asked.compute.get("compile"))
    # Rank 1 of these gradients, of random tokens, leaves a little more than half of the way that is compared.
    return asked.variant == "nano_llama" and asked.compute.get("comm_hook") == "powersgd"
