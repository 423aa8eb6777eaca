"""What a plan says a trial holds, beside what `trial --validate` counts."""

from typing import Any

import pytest

from benchsuite.contract.trial_spec import parse_trial
from benchsuite.runner import validate
from benchsuite_plan.layout import machines
from benchsuite_plan.layout.candidates import Job
from benchsuite_plan.layout.memory import footprint
from benchsuite_plan.layout.models import parse
from planner.tests.small import layout

LLAMA = {"gated_mlp": True, "rms_norm": True, "bias": False, "tied_embeddings": False}
GPT2 = {"learned_positions": True, "tied_embeddings": True}
SHAPE = {"hidden": 512, "layers": 4, "heads": 8, "ffn_hidden": 1536, "seq_len": 512, "vocab": 2048}
SIZES = {"hidden_size": 512, "num_layers": 4, "num_heads": 8, "ffn_size": 1536, "seq_len": 512, "vocab_size": 2048}
CASES: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("nano_llama", LLAMA, "bf16", {"tp": 2, "sequence_parallel": True}),
    ("nano_llama", LLAMA, "pure_bf16", {"tp": 2, "sequence_parallel": True}),
    ("nano_llama", LLAMA, "bf16", {"dp": 4, "zero": 1}),
    ("nano_llama", LLAMA, "bf16", {"cp": 2}),
    ("nano", {"tied_embeddings": False}, "bf16", {"pp": 2, "microbatches": 4}),
    ("nano_gpt2", GPT2, "fp32", {"tp": 2}),
]


@pytest.mark.parametrize(("variant", "parts", "precision", "degrees"), CASES)
def test_states_and_activations(variant: str, parts: dict[str, Any], precision: str, degrees: dict[str, Any]) -> None:
    samples = degrees.get("microbatches", 1)
    grouped = {"num_kv_heads": 8} if variant == "nano_llama" else {}
    values = {"workload": "gpt_neox", "variant": variant, "model": SIZES | grouped, "data": {"source": "synthetic"}}
    spec = parse_trial(
        {**values, "device": "cuda", "precision": precision, "batch_size": samples, "parallelism": degrees}
    )
    account = validate.examine(spec)[1]["account"]
    model = parse({"name": "m", "kind": "decoder"} | SHAPE | parts, "here")
    of = {name: degrees.get(name, 1) for name in ("dp", "tp", "pp", "cp")}
    split = degrees.get("sequence_parallel", False)
    job = Job(model, machines.load("dgx-h100"), spec.ranks, samples * of["dp"], precision, split, recipe="trial")
    zero, ends = degrees.get("zero", 0), int(of["pp"] > 1)
    found = footprint(job, layout(**of, zero=zero, num_microbatches=samples, ends_count=ends))
    states = sum(account[f"{name}_bytes"] for name in ("weights", "gradients", "optimizer"))
    assert found.states[0] == pytest.approx(states, rel=0.03)
    assert found.activations[0] == pytest.approx(account["activations_bytes"], rel=0.05)


@pytest.mark.parametrize(
    "precision", ["bf16", *(pytest.param(each, marks=pytest.mark.weekly) for each in ("pure_bf16", "fp32"))]
)
def test_an_encoder_with_dropout_stores_no_scores_on_a_device(precision: str) -> None:
    sizes = {"hidden_size": 512, "num_layers": 4, "num_heads": 8, "ffn_size": 1536, "seq_len": 512}
    values = {"workload": "bert", "variant": "tiny", "model": sizes, "data": {"source": "synthetic"}, "batch_size": 1}
    account = validate.examine(parse_trial({**values, "device": "cuda", "precision": precision}))[1]["account"]
    on_host = validate.examine(parse_trial({**values, "device": "cpu", "precision": precision}))[1]["account"]
    assert on_host["activations_bytes"] > 2 * account["activations_bytes"], "whose kernel stores them under dropout"
    more = {"vocab": 512, "predictions": 20, "bias": True, "tied_embeddings": True, "learned_positions": True}
    model = parse({"name": "m", "kind": "encoder"} | SHAPE | more, "here")
    found = footprint(Job(model, machines.load("dgx-h100"), 1, 1, precision, recipe="trial"), layout())
    assert found.activations[0] == pytest.approx(account["activations_bytes"], rel=0.12), (
        "a mask is as wide as what it hides on a CPU"
    )
