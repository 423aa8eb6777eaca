"""What a plan says runs, `trial --validate` passes; what it says does not, that refuses in the same words."""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchsuite.contract.errors import UserError
from benchsuite.contract.trial_spec import parse_trial
from benchsuite.runner import validate
from benchsuite_plan.layout import machines, models
from benchsuite_plan.layout.candidates import Choices, Job
from benchsuite_plan.layout.layout_search import Plan, plan
from benchsuite_plan.layout.models import Model, parse
from benchsuite_plan.layout.runnable import trained

Run = Callable[..., tuple[int, str, str]]
UNTRAINED = {
    "bloom-176b": "no variant of gpt_neox has rms_norm false, gated_mlp false, bias true, tied_embeddings true, "
    "learned_positions false",
    "nemotron-4-340b": "no variant of gpt_neox has rms_norm false, gated_mlp false, bias false, tied_embeddings false, "
    "learned_positions false",
    "openfold": "workloads are resnet50, unet3d, bert, gpt_neox",
    "t5-11b": "no workload is of kind encoder-decoder",
    "vit-h": "no workload is of kind vision-transformer",
}
"""Models that no trial trains, and what is lacking."""
VARIANTS = {
    "gpt-neox-20b": "reference",
    "bert-large": "reference",
    "resnet50": "reference",
    "unet3d": "reference",
    "llama2-70b": "llama2-70b",
}
"""Models that a variant of a workload is."""
PYTHIA = (768, 12, 12)
SHOWN = 6
CHUNKS = "schedule interleaved holds 2 stages a rank"
"""What a trial has no word for: other numbers of chunks a stage."""
EQUAL_STAGES = "trials count the embedding and the head as a layer each"
"""Nor for stages of equally many layers."""


def decoder(name: str, hidden: int, layers: int, heads: int, **more: Any) -> Model:
    ends = {"vocab": 50304, "seq_len": 2048, "tied_embeddings": False}
    return parse(
        {"name": name, "kind": "decoder", "hidden": hidden, "layers": layers, "heads": heads} | ends | more, "here"
    )


def drawn_model(draw: random.Random) -> Model:
    """A shipped one, or a decoder of any shape, whose parts need not be those of any workload."""
    if draw.random() < 0.5:
        return models.load(draw.choice(models.names()))
    heads = draw.choice([4, 6, 12, 16, 20])
    llama = {"gated_mlp": True, "rms_norm": True, "bias": False, "ffn_hidden": heads * draw.choice([100, 172])}
    odd: dict[str, Any] = {"seq_len": draw.choice([512, 1000, 4096]), "vocab": draw.choice([1000, 50257])}
    odd |= draw.choice([llama | {"kv_heads": heads // 2}, {"ffn_hidden": 999}, {"gated_mlp": True}, {}, {}])
    return decoder("mine", heads * draw.choice([64, 66]), draw.randint(2, 48), heads, **odd)


def drawn_job(draw: random.Random) -> Job:
    machine = machines.load(draw.choice(machines.names()))
    each, limit = machine.devices_per_node, machine.nodes or 1024
    devices = draw.choice([draw.randint(1, each), each * draw.randint(1, min(limit, 32))])
    return Job(
        drawn_model(draw),
        machine,
        devices,
        devices * draw.choice([1, 2, 3, 4, 8, 16]),
        draw.choice([*machine.device.peak_flops]),
        sequence_parallel=draw.random() < 0.7,
    )


def drawn_choices(draw: random.Random) -> Choices:
    """Often free; else some axes are fixed, by which layouts come up that are never the fastest."""
    fixed: dict[str, Any] = {
        "zero": (draw.randint(0, 3),),
        "microbatch": (draw.choice([1, 2, 3]),),
        "interleave": (draw.choice([1, 2]),),
        "tensor_parallel": (draw.choice([2, 3, 4]),),
        "pipeline_parallel": (draw.choice([2, 3, 4, 6]),),
    }
    return Choices(**{name: value for name, value in fixed.items() if draw.random() < 0.2})


def drawn_plans(seed: int) -> Iterator[tuple[Job, Plan]]:
    """Plans without end; jobs that nothing fits are drawn again."""
    draw = random.Random(seed)
    while True:
        job, fixed = drawn_job(draw), drawn_choices(draw)
        try:
            yield job, plan(job, fixed, top=SHOWN)
        except UserError:
            continue


@pytest.fixture
def uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a trial is valid is asked, not what it would hold: accounts and counts of large models take minutes."""

    def none(spec: object, workload: object) -> object:
        raise NotImplementedError("not asked for")

    monkeypatch.setattr(validate, "_count_fullest_rank", none)
    monkeypatch.setattr(validate, "num_parameters", lambda spec: 0)


@pytest.mark.usefixtures("uncounted")
@pytest.mark.parametrize("num_plans", [50, pytest.param(500, marks=pytest.mark.full)])
def test_hundreds_of_plans_say_what_trials_say(num_plans: int) -> None:
    seen = Counter[str]()
    for (job, found), _ in zip(drawn_plans(seed=7), range(num_plans), strict=False):
        lacking = trained(job.model).lacking
        assert not (lacking and found.best)
        for each in found.best:
            assert each.trial is not None and each.runnable and each.reason is None
            point, told = validate.examine(parse_trial(each.trial))
            assert told["reason"] is None, each
            layout = point.spec.layout
            assert (layout.dp, layout.tp, layout.pp, layout.zero) == (each.dp, each.tp, each.pp, each.zero)
            assert (layout.cp, layout.ep) == (each.cp, each.ep)
            assert (layout.world_size, layout.stages_per_rank) == (job.devices, each.interleave)
            assert point.spec.global_batch == job.batch
            seen["runs"] += 1
        for each in found.refused:
            assert each.reason and not each.runnable
            if each.trial is None:
                assert each.reason == lacking or (not lacking and (each.interleave > 2 or each.pp > 1))
                seen["nothing trains it" if lacking else each.reason.partition(" ")[0]] += 1
                continue
            assert each.trial not in [one.trial for one in found.best], "one trial does not both run and not run"
            try:
                reason = validate.examine(parse_trial(each.trial))[1]["reason"]
            except UserError as error:
                reason = str(error)
            ours = (each.interleave != 2 and CHUNKS in each.reason) or (each.pp > 1 and EQUAL_STAGES in each.reason)
            assert reason == each.reason or (reason is None and ours)
            seen[each.reason.partition(" ")[0]] += 1
    assert seen["runs"] > num_plans and {"nothing trains it", "interleave", "tied", "precision"} <= {*seen}, seen


@pytest.mark.parametrize("name", models.names())
def test_what_trains_a_model_is_that_model_or_says_what_is_lacking(name: str) -> None:
    found = trained(models.load(name))
    assert found.lacking == (f"no trial trains {name}: {UNTRAINED[name]}" if name in UNTRAINED else None)
    if name in VARIANTS:
        assert found.values["variant"] == VARIANTS[name] and "model" not in found.values


def test_what_is_lacking_is_told() -> None:
    assert trained(decoder("pythia-160m", *PYTHIA)).values == {"workload": "gpt_neox", "variant": "pythia-160m"}
    larger = trained(decoder("mine", 768, 13, 12, seq_len=512, vocab=None)).values
    assert (larger["variant"], larger["model"]) == ("pythia-160m", {"num_layers": 13, "seq_len": 512})
    gated = trained(decoder("mine", 768, 12, 12, gated_mlp=True))
    parts = "rms_norm false, gated_mlp true, bias true, tied_embeddings false, learned_positions false"
    assert gated.lacking == f"no trial trains mine: no variant of gpt_neox has {parts}"
    wide = trained(decoder("mine", 768, 12, 12, head_dim=128))
    assert str(wide.lacking).endswith("gpt_neox has no heads of another width (128) than hidden / heads")
    grouped = parse(
        {"name": "bert", "kind": "encoder", "layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "seq_len": 64}
        | {"vocab": 1000, "learned_positions": True},
        "here",
    )
    assert trained(grouped).lacking == "no trial trains bert: bert has no num_kv_heads"


@pytest.mark.full
def test_the_best_is_validated_as_a_user_would(run_cli: Run, tmp_path: Path) -> None:
    """Of a model that trials have, with all that `--validate` counts."""
    job = Job(decoder("pythia-160m", *PYTHIA), machines.load("dgx-a100"), 8, 64)
    found = plan(job, Choices(interleave=(1,), ends_count=(True,)), top=3)
    for code, rows in ((0, found.best), (2, found.refused)):
        for each in rows:
            (tmp_path / "trial.yaml").write_text(yaml.safe_dump(each.trial))
            got, _, err = run_cli("trial", tmp_path / "trial.yaml", "--validate")
            assert got == code and (code == 0 or str(each.reason) in err)


def test_the_best_ten_as_a_sweep(run_cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchsuite.grid.validity._own_memory_bytes", lambda: 10**14)  # 96 ranks on this host
    asked = ("--model", "gpt-neox-20b", "--machine", "polaris", "--devices", 96, "--batch", 1536)
    file = tmp_path / "best.yaml"
    code, out, err = run_cli("plan", *asked, "--top", 2, "--format", "json", "--write-sweep", file)
    assert (code, err) == (0, f"sweep of 10 layouts: {file}\n") and len(json.loads(out)["layouts"]) == 2
    code, out, _ = run_cli("sweep", file, "--dry-run", "--store", tmp_path / "store", "-o", "measure.repeats=1")
    assert code == 0
    lines = out.splitlines()
    assert len(lines) == 10 and all(line.startswith("run ") for line in lines)
    job = Job(models.load("gpt-neox-20b"), machines.load("polaris"), 96, 1536, recipe="trial")
    for line, each in zip(lines, plan(job, Choices()).best, strict=True):
        degrees = {"dp": each.dp, "tp": each.tp, "pp": each.pp, "zero": each.zero}
        usual = {"zero": 0}
        told = [f"{name} {degree}" for name, degree in degrees.items() if degree != usual.get(name, 1)]
        assert f" {' '.join(told)} " in f"{line} "
        assert f"batch_size {each.microbatch * each.num_microbatches} " in line


def test_no_sweep_of_what_does_not_run(run_cli: Run, tmp_path: Path) -> None:
    asked = ("--model", "vit-h", "--machine", "polaris", "--devices", 8, "--batch", 64)
    code, out, err = run_cli("plan", *asked, "--write-sweep", tmp_path / "best.yaml")
    assert (code, out, [*tmp_path.iterdir()]) == (2, "", [])
    assert "No layout that fits can run as a trial: no trial trains vit-h: no workload is of kind vision-" in err
