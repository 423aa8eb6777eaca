"""Layouts of a plan as trials: what a user would write to run one or several, and why trials refuse it.

The rules are those that `trial --validate` and sweeps ask; none is repeated here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchsuite.contract.errors import UserError
from benchsuite.contract.trial_spec import parse_trial
from benchsuite.grid.point import Point
from benchsuite.grid.validity import why_invalid
from benchsuite.host.machine import Machine
from benchsuite.workloads.facts import BERT, FACTS, GPT_NEOX, MLP_FACTOR
from benchsuite.workloads.spec import Variant
from benchsuite_plan.layout.candidates import RECOMPUTE, Job, Layouts
from benchsuite_plan.layout.models import Model, ffn

IN_SWEEP = 10
"""Layouts that a sweep file gets."""
MOST_CHUNKS = 2
"""Chunks of a rank in a trial: its schedule `interleaved` holds so many."""


PARTS = ("rms_norm", "gated_mlp", "bias", "tied_embeddings", "learned_positions")
"""What a stack of layers has or has not, in the words of models here and of variants."""
OF_BERT = {"rms_norm": False, "gated_mlp": False, "bias": True, "tied_embeddings": True, "learned_positions": True}
"""What its variants leave unsaid."""


@dataclass(frozen=True)
class Trained:
    """What trains a model, as a trial's file names it; or, where nothing does, what is lacking."""

    values: dict[str, Any]
    lacking: str | None = None


def trained(model: Model) -> Trained:
    """The workload and the variant that are this model, with the sizes in which it is another than the variant."""
    nobody = f"no trial trains {model.name}"
    if not model.shaped:
        if model.name in FACTS:
            return Trained({"workload": model.name, "variant": "reference"})
        return Trained({}, f"{nobody}: workloads are {', '.join(FACTS)}")
    facts = {"encoder": BERT, "decoder": GPT_NEOX}.get(model.kind)
    if facts is None:
        return Trained({}, f"{nobody}: no workload is of kind {model.kind}")
    if model.head_dim not in (None, model.width // model.num_heads):
        return Trained(
            {}, f"{nobody}: {facts.name} has no heads of another width ({model.head_dim}) than hidden / heads"
        )
    parts = {name: getattr(model, name) for name in PARTS} | {"experts": model.num_experts > 0}
    sizes = _sizes(model)
    alike = [name for name, each in facts.variants.items() if _parts_of(each) == parts]
    if not alike:
        told = ", ".join(f"{name} {str(has).lower()}" for name, has in parts.items() if has or name in PARTS)
        return Trained({}, f"{nobody}: no variant of {facts.name} has {told}")
    changes = {name: _changes(sizes, facts.variants[name]) for name in alike}
    nearest = min(reversed(alike), key=lambda name: len(changes[name]))
    lacks = [name for name in changes[nearest] if name not in facts.variants[nearest].sizes]
    if lacks:
        return Trained({}, f"{nobody}: {facts.name} has no {', '.join(lacks)}")
    own = {"model": changes[nearest]} if changes[nearest] else {}
    return Trained({"workload": facts.name, "variant": nearest, **own})


def _parts_of(variant: Variant) -> dict[str, bool]:
    """Parts of a variant, and whether it has experts."""
    parts = {name: bool(variant.model.get(name, OF_BERT[name])) for name in PARTS}
    return parts | {"experts": bool(variant.model.get("num_experts"))}


def _sizes(model: Model) -> dict[str, int]:
    """Sizes in the words of trials; a vocabulary where it is known."""
    more = {} if model.vocab is None else {"vocab_size": model.vocab}
    if model.num_experts:
        more |= {"num_experts": model.num_experts, "top_k": model.top_k}
    return {
        "hidden_size": model.width,
        "num_layers": model.num_layers,
        "num_heads": model.num_heads,
        "num_kv_heads": model.kv_heads or model.num_heads,
        "ffn_size": ffn(model),
        "seq_len": model.tokens,
        **more,
    }


def _changes(sizes: Mapping[str, int], variant: Variant) -> dict[str, int]:
    """The sizes that a variant has not. Its 0 stands for what follows from its width and heads."""
    own: dict[str, Any] = {**variant.model, **variant.sample}
    follows = {"num_kv_heads": sizes["num_heads"], "ffn_size": MLP_FACTOR * sizes["hidden_size"]}
    return {name: size for name, size in sizes.items() if size != (own.get(name) or follows.get(name))}


def trial_of(job: Job, of: Layouts, at: int) -> dict[str, Any] | None:
    """One layout as a trial's file has it, on made-up samples; None where no trial's file says it."""
    trains = trained(job.model)
    is_unsaid = of.interleave[at] > MOST_CHUNKS or (of.pp[at] > 1 and not of.ends_count[at])
    return None if trains.lacking or is_unsaid else _trial_of(trains.values, job, of, at)


def _trial_of(values: Mapping[str, Any], job: Job, of: Layouts, at: int) -> dict[str, Any]:
    tp, pp, size, count = (int(getattr(of, name)[at]) for name in ("tp", "pp", "microbatch", "num_microbatches"))
    parallelism: dict[str, Any] = {"dp": int(of.dp[at]), "tp": tp, "pp": pp, "zero": int(of.zero[at])}
    parallelism |= {name: int(getattr(of, name)[at]) for name in ("cp", "ep") if getattr(of, name)[at] > 1}
    if tp > 1:
        parallelism["sequence_parallel"] = job.sequence_parallel
    if pp > 1:
        parallelism |= {"microbatches": count, "schedule": "interleaved" if of.interleave[at] > 1 else "1f1b"}
    return {
        **values,
        "data": {"source": "synthetic"},
        "device": "cuda",
        "precision": job.precision,
        "activation_checkpointing": RECOMPUTE[of.recompute[at]],
        "batch_size": size * count,
        "grad_accum": 1 if pp > 1 else count,
        "parallelism": parallelism,
    }


def why_not(job: Job, of: Layouts) -> list[str | None]:
    """Why trials refuse each layout; None where they run it."""
    each = job.machine.devices_per_node
    machine, trains = Machine(each, each, job.nodes, elsewhere=True), trained(job.model)
    if trains.lacking is not None:
        return [trains.lacking] * len(of)
    return [_why(_trial_of(trains.values, job, of, at), of, at, machine) for at in range(len(of))]


def _why(values: dict[str, Any], of: Layouts, at: int, machine: Machine) -> str | None:
    chunks = int(of.interleave[at])
    try:
        spec = parse_trial(values)
        invalid = why_invalid(Point(spec, "", None, None, {}), machine)
    except UserError as error:
        return str(error)
    if invalid is None and spec.layout.stages_per_rank != chunks:
        return f"interleave {chunks}: schedule interleaved holds {spec.layout.stages_per_rank} stages a rank"
    if invalid is None and of.pp[at] > 1 and not of.ends_count[at]:
        return "stages of equally many layers: trials count the embedding and the head as a layer each"
    return invalid


def sweep_of(job: Job, name: str, trials: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A sweep of layouts, the first IN_SWEEP of these: on CUDA devices where it runs, if there are any."""
    varied = ("activation_checkpointing", "batch_size", "grad_accum", "parallelism")
    first = trials[0]
    return {
        "name": name,
        "question": f"Which layout of {job.model.name} is fastest on {job.devices} devices?",
        "base": {key: value for key, value in first.items() if key not in varied} | {"device": "auto"},
        "zip": {key: [each[key] for each in trials[:IN_SWEEP]] for key in varied},
    }
