"""What transformers calls the parameters of our BERT and GPT-NeoX, so that both can be given the same weights."""

import re
from collections.abc import Mapping

from torch import Tensor

BERT = {
    "embeddings.word": "bert.embeddings.word_embeddings",
    "embeddings.position": "bert.embeddings.position_embeddings",
    "embeddings.segment": "bert.embeddings.token_type_embeddings",
    "embeddings.norm": "bert.embeddings.LayerNorm",
    "layers.#.attention.query": "bert.encoder.layer.#.attention.self.query",
    "layers.#.attention.key": "bert.encoder.layer.#.attention.self.key",
    "layers.#.attention.value": "bert.encoder.layer.#.attention.self.value",
    "layers.#.attention.output": "bert.encoder.layer.#.attention.output.dense",
    "layers.#.attention_norm": "bert.encoder.layer.#.attention.output.LayerNorm",
    "layers.#.up": "bert.encoder.layer.#.intermediate.dense",
    "layers.#.down": "bert.encoder.layer.#.output.dense",
    "layers.#.norm": "bert.encoder.layer.#.output.LayerNorm",
    "heads.pooler": "bert.pooler.dense",
    "heads.next_sentence": "cls.seq_relationship",
    "heads.transform": "cls.predictions.transform.dense",
    "heads.norm": "cls.predictions.transform.LayerNorm",
    "heads.decoder": "cls.predictions",
}
"""Our modules -> those of BertForPreTraining; # is the number of a layer."""
BERT_DOUBLES = (".decoder.weight", ".decoder.bias")
"""Ends of names under which BertForPreTraining has what it has under another name as well."""
GPT_NEOX = {
    "embed": "gpt_neox.embed_in",
    "layers.#.attention_norm": "gpt_neox.layers.#.input_layernorm",
    "layers.#.attention.qkv": "gpt_neox.layers.#.attention.query_key_value",
    "layers.#.attention.out": "gpt_neox.layers.#.attention.dense",
    "layers.#.mlp_norm": "gpt_neox.layers.#.post_attention_layernorm",
    "layers.#.mlp.up": "gpt_neox.layers.#.mlp.dense_h_to_4h",
    "layers.#.mlp.down": "gpt_neox.layers.#.mlp.dense_4h_to_h",
    "head.norm": "gpt_neox.final_layer_norm",
    "head.logits": "lm_head",
}
"""Our modules -> those of GPTNeoXForCausalLM."""


def to_theirs(state: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """Our state under their names."""
    return {_renamed(name, names): value for name, value in state.items()}


def to_ours(state: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """Their state under our names."""
    back = {theirs: ours for ours, theirs in names.items()}
    return {_renamed(name, back): value for name, value in state.items() if not name.endswith(BERT_DOUBLES)}


def _renamed(name: str, modules: Mapping[str, str]) -> str:
    module, _, leaf = name.rpartition(".")
    number = "".join(re.findall(r"\.(\d+)\.", module))
    found = modules[re.sub(r"\.\d+\.", ".#.", module)]
    return f"{found.replace('#', number)}.{leaf}"
