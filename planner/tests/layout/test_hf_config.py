"""Models from config.json files of Hugging Face, as their repositories have them."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchsuite.contract.errors import UserError
from benchsuite_plan.layout import models
from benchsuite_plan.layout.models import from_config as read
from benchsuite_plan.layout.models import params

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rope_scaling": {"original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}
MIXTRAL: dict[str, Any] = LLAMA | {
    "architectures": ["MixtralForCausalLM"],
    "max_position_embeddings": 32768,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "rope_scaling": None,
    "vocab_size": 32000,
}
GPT2: dict[str, Any] = {
    "architectures": ["GPT2LMHeadModel"],
    "n_embd": 768,
    "n_head": 12,
    "n_inner": None,
    "n_layer": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}
NEOX: dict[str, Any] = {
    "architectures": ["GPTNeoXForCausalLM"],
    "hidden_size": 6144,
    "intermediate_size": 24576,
    "max_position_embeddings": 2048,
    "num_attention_heads": 64,
    "num_hidden_layers": 44,
    "tie_word_embeddings": False,
    "vocab_size": 50432,
}
QWEN3_MOE: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
    "vocab_size": 151936,
}


def written(folder: Path, values: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    return path


@pytest.mark.parametrize(("values", "name"), [(LLAMA, "llama3-8b"), (NEOX, "gpt-neox-20b")])
def test_it_is_the_model_that_is_shipped(tmp_path: Path, values: dict[str, Any], name: str) -> None:
    found, known = read(written(tmp_path, values)), models.load(name)
    for key in ("layers", "hidden", "heads", "kv_heads", "seq_len", "gated_mlp", "rms_norm", "bias", "tied_embeddings"):
        assert getattr(found, key) == getattr(known, key), key
    assert params(found) == pytest.approx(params(known), rel=1e-3)


@pytest.mark.parametrize(("values", "count"), [(GPT2, 124_439_808), (MIXTRAL, 46_702_792_704), (QWEN3_MOE, 30.5e9)])
def test_parameters_are_those_that_are_published(tmp_path: Path, values: dict[str, Any], count: float) -> None:
    """GPT-2: transformers' own count; Mixtral-8x7B: its index of safetensors; Qwen3-30B-A3B: its model card."""
    assert params(read(written(tmp_path, values))) == pytest.approx(count, rel=2e-3)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (LLAMA | {"architectures": ["LlamaForCausalML"]}, "'LlamaForCausalML' is unknown"),
        (LLAMA | {"architectures": []}, "has no architectures"),
        ([1], "has no architectures"),
        ({key: value for key, value in LLAMA.items() if key != "vocab_size"}, "LlamaForCausalLM without vocab_size"),
        (LLAMA | {"num_key_value_heads": 5}, "heads 32 is no multiple of kv_heads 5"),
    ],
)
def test_mistakes_are_told_in_one_line(tmp_path: Path, values: object, words: str) -> None:
    with pytest.raises(UserError) as raised:
        read(written(tmp_path, values))
    assert words in str(raised.value) and "\n" not in str(raised.value) and "config.json" in str(raised.value)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read(tmp_path / "config.json")
