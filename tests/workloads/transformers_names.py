"""What transformers calls the parameters of our BERT and decoders, so that both can be given the same weights."""

import re
from collections.abc import Mapping

import torch
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
GPT2 = {
    "embed": "transformer.wte",
    "positions": "transformer.wpe",
    "layers.#.attention_norm": "transformer.h.#.ln_1",
    "layers.#.attention.q+k+v": "transformer.h.#.attn.c_attn",
    "layers.#.attention.out": "transformer.h.#.attn.c_proj",
    "layers.#.mlp_norm": "transformer.h.#.ln_2",
    "layers.#.mlp.up": "transformer.h.#.mlp.c_fc",
    "layers.#.mlp.down": "transformer.h.#.mlp.c_proj",
    "head.norm": "transformer.ln_f",
}
"""Our modules -> those of GPT2LMHeadModel, whose lm_head has no weight of its own; `with_parts` makes q+k+v."""
GPT2_TRANSPOSED = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")
"""Ends of names of weights that GPT2LMHeadModel holds as inputs by outputs."""
LLAMA = {
    "embed": "model.embed_tokens",
    "layers.#.attention_norm": "model.layers.#.input_layernorm",
    "layers.#.attention.q": "model.layers.#.self_attn.q_proj",
    "layers.#.attention.k": "model.layers.#.self_attn.k_proj",
    "layers.#.attention.v": "model.layers.#.self_attn.v_proj",
    "layers.#.attention.out": "model.layers.#.self_attn.o_proj",
    "layers.#.mlp_norm": "model.layers.#.post_attention_layernorm",
    "layers.#.mlp.gate": "model.layers.#.mlp.gate_proj",
    "layers.#.mlp.up": "model.layers.#.mlp.up_proj",
    "layers.#.mlp.down": "model.layers.#.mlp.down_proj",
    "head.norm": "model.norm",
    "head.logits": "lm_head",
}
"""Our modules -> those of LlamaForCausalLM; `with_parts` makes q, k and v."""


def to_theirs(state: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """Our state under their names."""
    return {_renamed(name, names): value for name, value in state.items()}


def with_parts(state: Mapping[str, Tensor], queries: int, head_dim: int, joined: bool) -> dict[str, Tensor]:
    """Our state with q, k and v apart in place of qkv, all heads of each together; or those one after the other."""
    found = {}
    for name, value in state.items():
        module, _, leaf = name.rpartition(".")
        if not module.endswith(".qkv"):
            found[name] = value
            continue
        groups = value.unflatten(0, (-1, queries + 2, head_dim)).split((queries, 1, 1), 1)
        parts = dict(zip("qkv", (part.flatten(0, 2) for part in groups), strict=True))
        parts = {"q+k+v": torch.cat([*parts.values()])} if joined else parts
        found |= {f"{module.removesuffix('qkv')}{part}.{leaf}": value for part, value in parts.items()}
    return found


def as_gpt2(state: Mapping[str, Tensor], head_dim: int) -> dict[str, Tensor]:
    """Our state, or our gradients, as GPT2LMHeadModel's."""
    renamed = to_theirs(with_parts(state, 1, head_dim, joined=True), GPT2)
    return {name: value.T if name.endswith(GPT2_TRANSPOSED) else value for name, value in renamed.items()}


def as_llama(state: Mapping[str, Tensor], queries: int, head_dim: int) -> dict[str, Tensor]:
    """Our state, or our gradients, as LlamaForCausalLM's; `queries` share a key."""
    return to_theirs(with_parts(state, queries, head_dim, joined=False), LLAMA)


def to_ours(state: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """Their state under our names."""
    back = {theirs: ours for ours, theirs in names.items()}
    return {_renamed(name, back): value for name, value in state.items() if not name.endswith(BERT_DOUBLES)}


def _renamed(name: str, modules: Mapping[str, str]) -> str:
    module, _, leaf = name.rpartition(".")
    number = "".join(re.findall(r"\.(\d+)\.", module))
    found = modules[re.sub(r"\.\d+\.", ".#.", module)]
    return f"{found.replace('#', number)}.{leaf}"
