"""What a plan presents as best is what `trial --validate` passes; what it marks, that refuses, in the same words."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchsuite.contract.trial_spec import parse_trial
from benchsuite.predict.layout import machines, models
from benchsuite.predict.layout.candidates import Choices
from benchsuite.predict.layout.job import Job
from benchsuite.predict.layout.layout_search import Planned, plan
from benchsuite.predict.layout.models import Model, parse
from benchsuite.predict.layout.runnable import judged, note
from benchsuite.runner import validate

Run = Callable[..., tuple[int, str, str]]
MANY, FEWER = 40, 8
OWN_SHAPE = """
from dataclasses import replace
from benchsuite.workloads.facts import gpt_neox_shape
from benchsuite.workloads.gpt_neox import WORKLOAD as NEOX

SHAPE = gpt_neox_shape({hidden}, {layers}, {heads}, vocab_size={vocab}, seq_len={seq_len})
WORKLOAD = replace(NEOX, variants={{"own": SHAPE}})
"""
"""How one trains another decoder: a file with a workload of that shape."""
TRAINED = {"gpt-neox-20b": "gpt_neox", "bert-large": "bert", "resnet50": "resnet50", "unet3d": "unet3d"}
JOBS = [
    ("gpt-neox-20b", "polaris", 96, 1536, {}),
    ("gpt-neox-20b", "berzelius", 96, 1536, {"precision": "fp16", "sequence_parallel": False}),
    ("gpt-neox-20b", "dgx-h100", 64, 192, {"precision": "fp32"}),
    ("bert-large", "dgx-a100", 16, 256, {}),
    ("bert-large", "power8-p100", 4, 64, {"precision": "fp16"}),
    ("resnet50", "polaris", 64, 8192, {}),
    ("unet3d", "dgx-h200", 8, 16, {}),
    ("gpt3-125m", "leonardo", 12, 96, {}),
    ("gpt3-175b", "dgx-a100", 384, 1536, {}),
    ("megatron-3.6b", "dgx-a100", 64, 512, {}),
    ("megatron-39.1b", "dgx-a100", 512, 1536, {}),
    ("megatron-1t", "dgx-a100", 3072, 3072, {}),
    ("llama2-70b", "dgx-h100", 128, 512, {}),
    ("vit-h", "berzelius", 32, 1024, {}),
    ("t5-11b", "dgx-a100", 64, 512, {}),
]


def workload_of(model: Model, folder: Path) -> dict[str, str]:
    """The workload and variant that train a model, or a decoder of its shape."""
    if model.name in TRAINED:
        return {"workload": TRAINED[model.name], "variant": "reference"}
    shape = {"hidden": model.width, "layers": model.num_layers, "heads": model.kv_heads or model.heads}
    path = folder / "own.py"
    path.write_text(OWN_SHAPE.format(**shape, vocab=model.vocab or 1, seq_len=model.tokens))
    return {"workload": f"{path}:WORKLOAD", "variant": "own"}


def as_trial(job: Job, of: Planned, workload: dict[str, str]) -> dict[str, Any]:
    """What a user would write to try a layout of the table."""
    found: dict[str, Any] = {
        **workload,
        "data": {"source": "synthetic"},
        "device": "cuda",
        "precision": job.precision,
        "batch_size": of.microbatch * of.num_microbatches,
        "activation_checkpointing": of.recompute,
        "parallelism": {"dp": of.dp, "tp": of.tp, "pp": of.pp, "zero": of.zero},
    }
    if of.tp > 1:
        found["parallelism"]["sequence_parallel"] = job.sequence_parallel
    if of.pp == 1:
        return found | {"grad_accum": of.num_microbatches}
    found["parallelism"] |= {"microbatches": of.num_microbatches}
    found["parallelism"] |= {"schedule": "interleaved"} if of.interleave > 1 else {}
    return found


@pytest.fixture
def uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a trial is valid is asked, not what it would hold: accounts of large models take minutes."""

    def none(spec: object, workload: object) -> object:
        raise NotImplementedError("not asked for")

    monkeypatch.setattr(validate, "_fullest", none)


@pytest.mark.usefixtures("uncounted")
@pytest.mark.parametrize(("name", "machine", "devices", "batch", "more"), JOBS)
def test_what_is_best_runs_and_what_does_not_is_marked(
    name: str, machine: str, devices: int, batch: int, more: dict[str, Any], tmp_path: Path
) -> None:
    job = Job(models.load(name), machines.load(machine), devices, batch, **more)
    found, workload = plan(job, Choices(), top=MANY), workload_of(job.model, tmp_path)
    every = 1 if name in TRAINED else FEWER  # each time another's pieces are counted, its model is built
    for each in found.best[::every]:
        point, told = validate.examine(parse_trial(as_trial(job, each, workload)))
        assert told["reason"] is None, each
        layout = point.spec.layout
        assert (layout.world_size, layout.stages_per_rank) == (devices, each.interleave)
        assert point.spec.global_batch == batch
    assert all(each.runnable and each.reason is None for each in found.best)
    assert bool(found.best) != found.why.startswith("No layout that fits can run as a trial")
    for each in found.refused[::every]:
        _, told = validate.examine(parse_trial(as_trial(job, each, workload)))
        assert not each.runnable and (told["reason"] or each.interleave > 2) and each.reason
        assert told["reason"] in (None, each.reason)


def test_the_best_is_validated_as_a_user_would(run_cli: Run, tmp_path: Path) -> None:
    """Of a model that trials have, with all that `--validate` counts."""
    model = parse(
        {"name": "pythia-160m", "kind": "decoder", "layers": 12, "hidden": 768, "heads": 12, "seq_len": 2048}
        | {"vocab": 50304, "tied_embeddings": False},
        "here",
    )
    assert judged(model).own == "pythia-160m" and note(model) is None
    job = Job(model, machines.load("dgx-a100"), 8, 64)
    found = plan(job, Choices(interleave=(1,)), top=3)
    for code, rows in ((0, found.best), (2, found.refused)):
        for each in rows:
            (tmp_path / "trial.yaml").write_text(
                yaml.safe_dump(as_trial(job, each, {"workload": "gpt_neox", "variant": "pythia-160m"}))
            )
            got, _, err = run_cli("trial", tmp_path / "trial.yaml", "--validate")
            assert got == code and (code == 0 or str(each.reason) in err)


@pytest.mark.parametrize("name", models.names())
def test_whose_rules_count(name: str) -> None:
    model = models.load(name)
    stand = judged(model)
    assert (stand.own is not None) == (name in TRAINED)
    if name in TRAINED:
        assert stand.facts.name == TRAINED[name] and stand.facts.variants[str(stand.own)] == stand.variant
    else:
        assert name in str(note(model)) and stand.facts.name in str(note(model))
    if model.shaped and name not in TRAINED:
        assert stand.variant.model["hidden"] == model.hidden and stand.variant.sample["seq_len"] == model.seq_len
