"""Whether a parallelized model trains as one process would: losses and final weights, from the same weights and data.

The reference handles the same per-rank microbatches one after another and averages their gradients, since splitting a
batch changes what BatchNorm and Dice see. Dropout is off on both sides. What is asked for in float32 is computed in
float64: sums in another order round differently, a rounding can flip a ReLU, and a flip is not the mode's mistake.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchsuite.workloads import optim
from benchsuite.workloads.layout import Layout
from benchsuite.workloads.parallel.apply import prepare, to_channels_last
from benchsuite.workloads.parallel.first_weights import FirstWeights, built_on_meta
from benchsuite.workloads.parallel.recipe import Ranks, Recipe
from benchsuite.workloads.parallel.step import add_mean_targets, microbatches, on_device
from benchsuite.workloads.parallel.waits import NoClock
from benchsuite.workloads.precision import Scaler, autocast, convert
from benchsuite.workloads.spec import ComputeSpec, Variant
from benchsuite.workloads.workload import Batch, Workload

TOLERANCE = 2e-5
"""Relative difference of a loss: that of float32, which losses are computed in."""
LOOSER: Mapping[str, float] = {"tf32": 1e-2, "bf16": 3e-2, "fp16": 2e-2, "pure_bf16": 1e-1, "fp8": 1e-1}
"""Tolerance by precision: values are rounded to 3 (fp8) to 11 bits."""
COMPRESSED: Mapping[str, float] = {"fp16": 1e-2, "bf16": 2e-2, "powersgd": 5e-2}
"""Tolerance by how gradients are compressed."""
MAX_SINGLE_DISTANCE = 0.01
"""Where it is computed in float32, weights must be as near to where one process takes them, as a share of their way."""
MAX_ROUNDED_DISTANCE = 0.5
"""Where values are rounded or compressed, weights must have moved to the same place, as far as half the way there.

Not so for pure_bf16, whose weights are too coarse for the small changes of a few steps.
"""


ROUNDINGS = 4
"""Roundings of a weight, in its own type, that are no difference."""
WEIGHT_FACTOR = 10
"""Weights may differ by so much more than losses, which are means."""
ADAPTIVE = ("adam", "adamw", "adafactor")
"""Optimizers that divide gradients by their size: what rounding leaves of a zero moves its weight as far as any."""


@dataclass(frozen=True)
class Case:
    """What is trained, how it is parallelized, and for how long."""

    workload: Workload
    variant: Variant
    layout: Layout
    compute: ComputeSpec
    rank_batch: int
    steps: int = 5
    seed: int = 0

    @property
    def is_double(self) -> bool:
        """Whether it is computed in float64: DeepSpeed steps weights of 32 bits, whatever it is given."""
        return self.compute.precision == "fp32" and self.layout.engine != "deepspeed"

    @property
    def global_batch(self) -> int:
        """Samples of all data-parallel ranks per step."""
        return self.rank_batch * self.layout.dp


@dataclass(frozen=True)
class Trained:
    """Mean loss over all samples of each step, and the weights after the last."""

    losses: list[float]
    state: dict[str, Tensor]


@dataclass(frozen=True)
class Compared:
    """How far a parallelized model is from the reference, and how far it may be."""

    losses: list[float]
    reference_losses: list[float]
    loss_difference: float
    """Largest relative difference of a step's losses."""
    weight_difference: float
    """Largest difference of a weight, over the largest change that training made to a weight of the same tensor."""
    distance: float
    """Euclidean distance of all weights, over the distance that training moved them."""
    tolerance: float
    max_distance: float = MAX_ROUNDED_DISTANCE
    max_weight_difference: float = WEIGHT_FACTOR * TOLERANCE
    rounded: bool = False
    """Whether values are rounded or compressed: single weights then go astray, and all together are compared."""
    moved: bool = True
    """Whether training changed any weight of the reference: else there is nothing to compare."""

    @property
    def equal(self) -> bool:
        """Whether the differences are within the tolerance."""
        if not self.moved or self.loss_difference > self.tolerance:
            return False
        if self.rounded:
            return self.distance <= self.max_distance
        return self.weight_difference <= self.max_weight_difference


def sample_batch(case: Case, dp: int, step: int, device: torch.device) -> Batch:
    """What a data-parallel rank sees in a step."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1_000_003 * case.seed + 1_009 * step + dp)
        made = case.workload.synthetic(case.variant, case.rank_batch, torch.device("cpu"))
    moved = {name: value.to(device) for name, value in made.items()}
    if not case.is_double:
        return moved
    return {name: value.double() if value.is_floating_point() else value for name, value in moved.items()}


def new_model(case: Case, device: torch.device) -> nn.Module:
    """The model with the case's first weights, without dropout."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case.seed)
        model = case.workload.build(case.variant).to(device)
    _without_dropout(model)
    if case.layout.engine == "deepspeed" and case.compute.precision == "bf16":
        model.bfloat16().float()  # its masters begin from weights of 16 bits
    return model.double() if case.is_double else model


def _without_dropout(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0  # type: ignore[assignment]


def begun_model(case: Case, device: torch.device) -> tuple[nn.Module, FirstWeights | None]:
    """The same model as trials begin large ones: its weights are drawn when it has been split."""
    if case.layout.engine == "deepspeed" and case.compute.precision == "bf16":
        return new_model(case, device), None
    model, first = built_on_meta(case.workload, case.variant, case.seed)
    _without_dropout(model)
    return model.double() if case.is_double else model, first


def train_parallelized(case: Case, device: torch.device, keep: list[object]) -> Trained:
    """Train over the process group's ranks; all must call it. What must live on is put into `keep`."""
    model, first = begun_model(case, device)
    training = prepare(case.workload, model, case.layout, case.compute, device, case.global_batch, first)
    keep.append(training)
    rank = dist.get_rank() if dist.is_initialized() else 0
    losses = []
    for step in range(case.steps):
        loss = training.step(sample_batch(case, case.layout.place(rank).dp, step, device), NoClock())
        losses.append(None if loss is None else float(loss))
    return Trained(_means(case, losses), training.gather_state())


def _means(case: Case, own: list[float | None]) -> list[float]:
    """The mean of each step's losses over the ranks that have one; ranks of equal samples have equal losses."""
    if case.layout.world_size == 1:
        return [loss for loss in own if loss is not None]
    everyone: list[list[float | None]] = [[] for _ in range(case.layout.world_size)]
    dist.all_gather_object(everyone, own)
    steps = [[loss for loss in step if loss is not None] for step in zip(*everyone, strict=True)]
    return [sum(step) / len(step) for step in steps]


def train_alone(case: Case, device: torch.device) -> Trained:
    """Train in this process what the ranks train together."""
    recipe = Recipe(case.workload, Ranks(Layout("none"), device), case.compute)
    model = convert(new_model(case, device), case.compute.precision)
    if case.compute.channels_last:
        to_channels_last(model)
    optimizer = optim.make(case.workload, case.compute, list(model.parameters()))
    update = optim.update_of(optimizer, case.compute, case.global_batch, device)
    losses = []
    for step in range(case.steps):
        losses.append(_step_alone(case, step, model, recipe, update.scaler))
        update()
    return Trained(losses, {name: value.detach().cpu() for name, value in model.state_dict().items()})


def _step_alone(case: Case, step: int, model: nn.Module, recipe: Recipe, scaler: Scaler) -> float:
    """Gradients of every rank's microbatches, added up; their mean loss."""
    number, ranks = case.layout.microbatches * case.compute.grad_accum, case.layout.dp
    micros = []
    for dp in range(ranks):
        batch = on_device(sample_batch(case, dp, step, recipe.ranks.device), recipe, NoClock())
        micros += microbatches(batch, number)
    if case.workload.targets is not None:
        add_mean_targets(micros, recipe)
    total = 0.0
    for micro in micros:
        with autocast(case.compute.precision, recipe.ranks.device):
            loss = case.workload.loss(model, micro) / number
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach()) / ranks
    for parameter in model.parameters():  # after backward, as ranks do: fp16's range is not scaled away
        if parameter.grad is not None:
            parameter.grad /= ranks
    return total


def compare(case: Case, parallelized: Trained, alone: Trained, device: torch.device) -> Compared:
    """How far the two are apart."""
    both = zip(parallelized.losses, alone.losses, strict=True)
    loss_difference = max(abs(ours - theirs) / max(abs(theirs), 1e-9) for ours, theirs in both)
    first = new_model(case, device)
    start = {name: value.detach().cpu() for name, value in first.named_parameters()}
    missing = sorted(set(start) - set(parallelized.state))
    if missing:
        raise KeyError(f"weights that no rank holds: {', '.join(missing[:3])}")
    triples = [(parallelized.state[name], alone.state[name], value) for name, value in start.items()]
    differences = [_difference(*triple) for triple in triples]
    tolerance = tolerance_of(case.compute)
    is_rounded = tolerance > TOLERANCE
    coarse = 2 * MAX_ROUNDED_DISTANCE if case.compute.precision == "pure_bf16" else MAX_ROUNDED_DISTANCE
    return Compared(
        parallelized.losses,
        alone.losses,
        loss_difference,
        max(differences),
        _distance(triples),
        tolerance,
        max_distance=coarse if is_rounded else MAX_SINGLE_DISTANCE,
        max_weight_difference=TOLERANCE * WEIGHT_FACTOR * (10 if case.compute.optimizer in ADAPTIVE else 1),
        rounded=is_rounded or not case.is_double,
        moved=any(not torch.equal(theirs, value.to(theirs.dtype)) for _, theirs, value in triples),
    )


def _distance(triples: Sequence[tuple[Tensor, Tensor, Tensor]]) -> float:
    apart = sum(float((ours.double() - theirs.double()).square().sum()) for ours, theirs, _ in triples)
    moved = sum(float((theirs.double() - start.double()).square().sum()) for _, theirs, start in triples)
    return math.sqrt(apart / moved) if moved else math.sqrt(apart)


def _difference(ours: Tensor, theirs: Tensor, start: Tensor) -> float:
    rounding = ROUNDINGS * torch.finfo(theirs.dtype).eps * float(theirs.abs().max())
    ours, theirs, start = ours.float(), theirs.float(), start.float()
    change = float((theirs - start).abs().max())
    return max(0.0, float((ours - theirs).abs().max()) - rounding) / max(change, 1e-6)


def tolerance_of(compute: ComputeSpec) -> float:
    """How far apart losses may be, as a share."""
    return max(TOLERANCE, LOOSER.get(compute.precision, 0.0), COMPRESSED.get(compute.comm_hook or "", 0.0))
