"""Which layouts of a plan trials can run: by the rules that refuse points of a sweep, asked and not repeated here."""

from dataclasses import dataclass, replace
from typing import Any

from benchsuite.contract.errors import UserError
from benchsuite.contract.trial_spec import parse_trial
from benchsuite.grid.validity import why_unfit
from benchsuite.host.machine import Machine
from benchsuite.predict.layout.candidates import RECOMPUTE, Layouts
from benchsuite.predict.layout.job import Job
from benchsuite.predict.layout.models import Model
from benchsuite.predict.layout.shape import ffn
from benchsuite.workloads.facts import BERT, FACTS, GPT_NEOX, RESNET50, Facts
from benchsuite.workloads.spec import Variant


@dataclass(frozen=True)
class Judged:
    """By which workload's rules a model's layouts are judged, and in which shape."""

    facts: Facts
    variant: Variant
    own: str | None
    """The variant that is the model itself; None where no trial trains it."""


def judged(model: Model) -> Judged:
    """The workload that a model is, or the nearest: a decoder, but for encoders and networks without such layers."""
    if not model.shaped:
        facts, own = FACTS.get(model.name, RESNET50), "reference" if model.name in FACTS else None
        return Judged(facts, facts.variants["reference"], own)
    facts = BERT if model.kind == "encoder" else GPT_NEOX
    shape = {"hidden": model.width, "layers": model.num_layers, "heads": model.kv_heads or model.num_heads}
    of, sample = facts.variants["reference"], {"seq_len": model.tokens, "vocab_size": model.vocab or 1}
    alike = replace(of, model={**of.model, **shape}, sample={**of.sample, **sample})
    own = next((name for name, each in facts.variants.items() if each == alike), None)
    return Judged(facts, alike, own if _is_plain(model) else None)


def _is_plain(model: Model) -> bool:
    """Whether its layers are those of the workloads; of both, BERT alone has a table of positions and ties its ends."""
    grouped, wide = model.kv_heads not in (None, model.heads), ffn(model) != 4 * model.width
    odd = grouped or wide or model.gated_mlp or model.rms_norm or not model.bias or model.head_dim is not None
    ends = (model.kind, model.learned_positions, model.tied_embeddings)
    return not odd and ends in (("decoder", False, False), ("encoder", True, True))


def note(model: Model) -> str | None:
    """That a model has no trial, and what stands for it; None where it has."""
    stand = judged(model)
    if stand.own is not None:
        return None
    whose = f"of a {stand.facts.name} of its shape" if model.shaped else f"of {stand.facts.name}"
    return f"no trial trains {model.name} itself: which layouts run is judged by the rules {whose}"


def _trial_of(job: Job, of: Layouts, at: int, stand: Judged) -> dict[str, Any]:
    """One layout as a trial's values, on made-up samples."""
    tp, pp, size, count = (int(getattr(of, name)[at]) for name in ("tp", "pp", "microbatch", "num_microbatches"))
    parallelism: dict[str, Any] = {"dp": int(of.dp[at]), "tp": tp, "pp": pp, "zero": int(of.zero[at])}
    parallelism["sequence_parallel"] = tp > 1 and job.sequence_parallel
    if pp > 1:
        parallelism |= {"microbatches": count, "schedule": "interleaved" if of.interleave[at] > 1 else "1f1b"}
    return {
        "workload": stand.facts.name,
        "variant": stand.own or "reference",
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
    stand, each = judged(job.model), job.machine.devices_per_node
    machine = Machine(each, each, job.nodes)
    return [_why(_trial_of(job, of, at, stand), int(of.interleave[at]), stand, machine) for at in range(len(of))]


def _why(values: dict[str, Any], chunks: int, stand: Judged, machine: Machine) -> str | None:
    try:
        spec = parse_trial(values)
    except UserError as error:
        return str(error)
    unfit = why_unfit(spec, stand.facts, stand.variant, machine)
    if unfit is None and spec.layout.stages_per_rank != chunks:
        return f"interleave {chunks}: schedule interleaved holds {spec.layout.stages_per_rank} stages a rank"
    return unfit
