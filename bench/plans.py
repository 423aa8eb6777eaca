"""The section `plans`: published training steps beside what the planner predicts of them, and where it ranks them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from bench.tables import goal
from benchsuite.contract.errors import UserError
from benchsuite_plan.layout import machines, models
from benchsuite_plan.layout.candidates import Choices, Job, Layouts, valid_layouts
from benchsuite_plan.layout.cost import cost
from benchsuite_plan.layout.layout_search import NUM_DRAWS, QUANTILES, ranked
from benchsuite_plan.layout.models import train_flops_per_sample
from benchsuite_plan.theory.flops import transformer_flops

RUNS = Path(__file__).parent / "published_runs.yaml"
MAX_HALF_WIDTH = 0.25
"""Half of an interval over the prediction, the median of the rows that count."""
MAX_SLOWER = 0.05
"""How much slower the layout may be that the planner chooses among timed ones, over the fastest of them."""
MISS = 2 / (1 - (QUANTILES[1] - QUANTILES[0]))
"""What an interval score of 90 % intervals takes for a miss, times how far it misses (Gneiting and Raftery 2007)."""


@dataclass(frozen=True)
class Run:
    """A published step: the job, its layout as choices, seconds, and its source."""

    job: Job
    choices: Choices
    step_s: float
    source: str
    calibration: bool


@dataclass(frozen=True)
class Forecast:
    """What is predicted of a run; `rank` of its degrees among all layouts of the recipe that fit, None: it does not."""

    run: Run
    layout: Layouts
    step_s: float
    low_s: float
    high_s: float
    rank: int | None

    @property
    def half_width(self) -> float:
        """Half of the interval's width over the prediction."""
        return (self.high_s - self.low_s) / 2 / self.step_s

    @property
    def holds(self) -> bool:
        """Whether the published time lies in the interval."""
        return self.low_s <= self.run.step_s <= self.high_s

    @property
    def name(self) -> str:
        """The run in words."""
        of, job = self.layout, self.run.job
        degrees = " ".join(f"{name} {int(getattr(of, name)[0])}" for name in ("tp", "cp", "pp", "dp"))
        device = job.machine.device.name.partition("-")[0]
        return f"{job.model.name} {job.precision} {job.devices} x {device}, {degrees} zero {int(of.zero[0])}"


def score(low_s: float, high_s: float, published_s: float) -> float:
    """Interval score over the published time: the width, and MISS times how far it misses."""
    missed = max(low_s - published_s, 0.0) + max(published_s - high_s, 0.0)
    return (high_s - low_s + MISS * missed) / published_s


def runs() -> Iterator[Run]:
    """Every row of the table."""
    table = yaml.safe_load(RUNS.read_text(encoding="utf-8"))
    for row in table["runs"]:
        yield _run({**table["defaults"].get(row.get("as"), {}), **row})


def _run(row: Mapping[str, Any]) -> Run:
    model, machine = models.load(row["model"]), machines.load(row["machine"])
    model = model.changed(**{name: row[name] for name in ("heads", "layers", "hidden") if name in row})
    if "network" in row:
        machine = machine.changed(inter_node=machine.inter_node.changed(**row["network"]))
    options = {name: row[name] for name in ("sequence_parallel", "flash_attention", "recipe") if name in row}
    job = Job(model, machine, row["devices"], row["batch"], row["precision"], **options)
    fixed = {
        "tensor_parallel": row.get("tp"),
        "pipeline_parallel": row.get("pp"),
        "context_parallel": row.get("cp", 1),
        "zero": row["zero"],
        "recompute": row["recompute"],
        "microbatch": row.get("microbatch"),
        "interleave": row.get("interleave"),
        "ends_count": row.get("ends_count"),
    }
    choices = Choices(**{name: (value,) for name, value in fixed.items() if value is not None})
    return Run(job, choices, _step_s(job, row), row["source"], row.get("calibration", False))


def _step_s(job: Job, row: Mapping[str, Any]) -> float:
    """Published seconds of a step."""
    if "step_s" in row:
        return float(row["step_s"])
    if "tokens_per_s_per_gpu" in row:
        return job.batch * job.model.tokens / row["tokens_per_s_per_gpu"] / job.devices
    model, rate = job.model, row["tflops_per_gpu"] * 1e12 * job.devices
    if row["flops"] == "recomputed":
        assert model.layers and model.hidden and model.vocab
        return float(transformer_flops(job.batch, model.tokens, model.layers, model.hidden, model.vocab)) / rate
    return job.batch * (train_flops_per_sample(model) or 0.0) / rate


def contests() -> Iterator[tuple[str, list[Run]]]:
    """Jobs of which several layouts were timed, with those."""
    table = yaml.safe_load(RUNS.read_text(encoding="utf-8"))
    for one in table["contests"]:
        row = {**table["defaults"].get(one["job"].get("as"), {}), **one["job"]}
        found = [
            _run({**row, "tp": tp, "pp": pp, "microbatch": microbatch, "step_s": seconds})
            for tp, pp, microbatch, seconds in one["layouts"]
        ]
        yield one["told"], found


def fastest_of(run: Run) -> Layouts:
    """The layout of a run, what its source does not tell as is fastest."""
    job = run.job
    found = valid_layouts(job.model, job.machine, job.devices, job.batch, run.choices)
    return found.take(np.array([int(np.argmin(cost(job, found, job.typical).step_s))]))


def forecast(run: Run, seed: int = 0) -> Forecast:
    """The prediction of a run's layout, and its rank among the layouts of the same ZeRO stage and recomputation."""
    job, one = run.job, fastest_of(run)
    low, high = np.quantile(cost(job, one, job.drawn(NUM_DRAWS, seed)).step_s, QUANTILES)
    step = float(cost(job, one, job.typical).step_s[0])
    degrees = {name: int(getattr(one, name)[0]) for name in ("tp", "cp", "pp", "dp")}
    try:
        order = ranked(job, Choices(zero=run.choices.zero, recompute=run.choices.recompute))
    except UserError:
        return Forecast(run, one, step, float(low), float(high), None)
    return Forecast(run, one, step, float(low), float(high), order.rank_of(**degrees))


def ruler_score(found: Sequence[Forecast]) -> float:
    """Mean interval score of a ruler: the median utilization of the calibration rows of the same devices and precision,
    and around it the width that scores best on the very rows that count.
    """
    counted = [each.run for each in found if not each.run.calibration]
    middle = {}
    for kind in {_kind(run.job) for run in counted}:
        fitted = [each.run for each in found if each.run.calibration and _kind(each.run.job) == kind]
        middle[kind] = float(np.median([_ideal_s(run.job) / run.step_s for run in fitted]))

    def mean(width: float) -> float:
        at = [(_ideal_s(run.job) / middle[_kind(run.job)], run.step_s) for run in counted]
        return float(np.mean([score(step * (1 - width), step * (1 + width), published) for step, published in at]))

    return min(mean(width) for width in np.linspace(0.02, 0.8, 40))


def _kind(job: Job) -> tuple[str, bool]:
    return job.machine.device.name[:4], job.precision == "fp8"


def _ideal_s(job: Job) -> float:
    """Seconds of a step at the devices' peak."""
    return job.batch * (train_flops_per_sample(job.model) or 0.0) / job.devices / job.peak_flops


def show(_folder: Path) -> None:
    """(x)"""
    found = [forecast(run) for run in runs()]
    print("(x) published training steps beside the planner's 90 % intervals (* calibration rows, which do not count)")
    for each in found:
        mark, rank = "*" if each.run.calibration else " ", "none" if each.rank is None else str(each.rank)
        seconds = f"{each.run.step_s:7.2f} s, {each.step_s:7.2f} [{each.low_s:.2f}, {each.high_s:.2f}]"
        print(f"   {mark}{each.name:76} {seconds:34} rank {rank:4} ({each.run.source})")
    counted = [each for each in found if not each.run.calibration]
    width = float(np.median([each.half_width for each in counted]))
    error = float(np.median([abs(each.step_s / each.run.step_s - 1) for each in counted]))
    held = float(np.mean([each.holds for each in counted]))
    print(f"    {len(counted)} rows count: median error {error:.1%}, {held:.0%} within their intervals")
    print(goal(width <= MAX_HALF_WIDTH, f"median half-width {width:.0%} <= {MAX_HALF_WIDTH:.0%}"))
    ours = float(np.mean([score(each.low_s, each.high_s, each.run.step_s) for each in counted]))
    theirs = ruler_score(found)
    best = f"interval score {ours:.2f} < {theirs:.2f} of constant utilizations, at the width that suits them best"
    print(goal(ours < theirs, best))
    for words, timed in contests():
        chosen = min(timed, key=lambda run: float(cost(run.job, fastest_of(run), run.job.typical).step_s[0]))
        fastest = min(run.step_s for run in timed)
        lost = chosen.step_s / fastest - 1
        print(f"    {len(timed)} layouts of {chosen.job.model.name} timed together ({words})")
        print(goal(lost <= MAX_SLOWER, f"the chosen one takes {lost:.1%} longer than the fastest, <= {MAX_SLOWER:.0%}"))
