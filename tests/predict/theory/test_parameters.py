"""Exact parameter counts of published models."""

import pytest

from benchsuite.predict.theory import flops
from benchsuite.predict.theory.flops import transformer_params
from tests.predict.published_tables import all_rows

FOUND = {
    "BERT-base": (flops.bert_params(12, 768), 109_482_240),
    "BERT-large with heads": (flops.bert_params(24, 1024, heads=True), 336_226_108),
    "GPT-2 124M": (flops.gpt2_params(12, 768, 50257, 1024), 124_439_808),
    "GPT-NeoX-20B": (flops.neox_params(44, 6144, 50432), 20_554_567_680),
    "pythia-160m": (flops.neox_params(12, 768, 50304), 162_322_944),
    "LLaMA-2 7B": (flops.llama_params(32, 4096, 11008, 32000, 32, 32), 6_738_415_616),
    "LLaMA-2 70B": (flops.llama_params(80, 8192, 28672, 32000, 64, 8), 68_976_648_192),
    "ViT-H/14": (flops.vit_params(32, 1280, 14), 632_045_800),
}
"""Those of the models' published weights."""


@pytest.mark.parametrize("name", FOUND)
def test_published(name: str) -> None:
    found, published = FOUND[name]
    assert found == published


def test_all_rows_of_transformers() -> None:
    rows = {row["model"]: row["params"] for row in all_rows("params_and_flops")}
    ours = {name: found for name, (found, _) in FOUND.items() if name in rows}
    assert ours == {name: rows[name] for name in ours} and len(ours) == 6


def test_the_counted_model_has_as_many() -> None:
    from benchsuite.workloads import gpt_neox
    from benchsuite.workloads.flops import count

    variant = gpt_neox.WORKLOAD.variants["pythia-70m"]
    model, sample = variant.model, variant.sample
    counted = count(gpt_neox.WORKLOAD, variant).parameters
    assert flops.neox_params(model["layers"], model["hidden"], sample["vocab_size"]) == counted


def test_megatron_form_leaves_out_the_final_norm() -> None:
    assert flops.gpt2_params(12, 768, 50257, 1024) - transformer_params(12, 768, 50257, 1024) == 2 * 768


def test_arrays() -> None:
    found = flops.llama_params([32, 80], [4096, 8192], [11008, 28672], 32000, [32, 64], [32, 8])
    assert found.tolist() == [6_738_415_616, 68_976_648_192]


def test_heads_are_whole() -> None:
    with pytest.raises(ValueError, match=r"num_kv_heads 2\.5 is not allowed; allowed: a whole number, 1 or above"):
        flops.llama_params(1, 64, 128, 100, 8, 2.5)
