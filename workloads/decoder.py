"""The decoder of GPT-NeoX, GPT-2 and LLaMA: which of their parts it has is settings of its shape.

Black et al., "GPT-NeoX-20B" (2022): rotary positions on a quarter of each head, attention and MLP in parallel. Radford
et al., "GPT-2" (2019): a table of positions, and a head that shares the embedding's weight. Touvron et al., "LLaMA"
(2023): rotary positions on whole heads, RMSNorm, SwiGLU, no biases; grouped heads since LLaMA 2. No dropout. With
experts, the MLPs are mixtures (see moe.py).
"""

import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, scaled_dot_product_attention, silu

from benchsuite.workloads.facts import ROTARY_BASE, DecoderShape
from benchsuite.workloads.moe import MoE
from benchsuite.workloads.residual import Embedding, LayerNorm, RMSNorm

NORM_EPS = 1e-5


def rotary_table(positions: Tensor, dims: int, base: float = ROTARY_BASE) -> Tensor:
    """Cosines and sines of positions in a sequence (length), (2, length, dims / 2) in float32.

    Made on the device in every step: a copy kept from before would not survive a model built on the meta device.
    """
    frequency = 1.0 / base ** (torch.arange(0, dims, 2, dtype=torch.float32, device=positions.device) / dims)
    angle = positions.float()[:, None] * frequency
    return torch.stack((angle.cos(), angle.sin()))


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Turn the first dimensions of (..., length, head_dim) by their position (Su et al., "RoFormer", 2021)."""
    half = table.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cos, sin = table.unbind()
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
    return torch.cat((turned.to(x.dtype), rest), -1)


def _norm(shape: DecoderShape) -> nn.Module:
    return (RMSNorm if shape.rms_norm else LayerNorm)(shape.hidden_size, eps=NORM_EPS)


def attend_causally(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention over whole sequences, (N, heads, length, head_dim); keys and values may have fewer heads."""
    return scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=query.shape[1] != key.shape[1])


class Attention(nn.Module):
    """Causal self-attention, of a key and a value for each group of queries (Ainslie et al., "GQA", 2023).

    The fused projection's output is laid out [groups, queries key value, head_dim].
    """

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.queries = shape.num_heads // shape.kv_heads
        self.qkv = nn.Linear(shape.hidden_size, (self.queries + 2) * shape.kv_heads * self.head_dim, bias=shape.bias)
        self.out = nn.Linear(shape.hidden_size, shape.hidden_size, bias=shape.bias)
        self.attend: Callable[[Tensor, Tensor, Tensor], Tensor] = attend_causally  # context parallelism has its own

    def forward(self, x: Tensor, table: Tensor | None) -> Tensor:
        fused = self.qkv(x).unflatten(-1, (-1, self.queries + 2, self.head_dim))  # under tp, this rank's groups
        query, key, value = (part.flatten(2, 3).transpose(1, 2) for part in fused.split((self.queries, 1, 1), 3))
        if table is not None:
            query, key = rotate(query, table), rotate(key, table)
        mixed = self.attend(query, key, value)
        return cast(Tensor, self.out(mixed.transpose(1, 2).flatten(2)))


class Mlp(nn.Module):
    """hidden_size -> ffn_size -> hidden_size."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.up = nn.Linear(shape.hidden_size, shape.inner, bias=shape.bias)
        self.down = nn.Linear(shape.inner, shape.hidden_size, bias=shape.bias)
        self.approximate = "tanh" if shape.tanh_gelu else "none"

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.down(gelu(self.up(x), approximate=self.approximate)))


class GatedMlp(nn.Module):
    """An MLP with a gate (Shazeer, "GLU variants improve transformer", 2020): SwiGLU."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.hidden_size, shape.inner, bias=shape.bias)
        self.up = nn.Linear(shape.hidden_size, shape.inner, bias=shape.bias)
        self.down = nn.Linear(shape.inner, shape.hidden_size, bias=shape.bias)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.down(silu(self.gate(x)) * self.up(x)))


def _mlp(shape: DecoderShape) -> nn.Module:
    if shape.num_experts:
        return MoE(shape.hidden_size, shape.inner, shape.num_experts, shape.top_k)
    return GatedMlp(shape) if shape.gated_mlp else Mlp(shape)


class Layer(nn.Module):
    """Attention and MLP, each with its own norm: (N, length, hidden_size) -> the same.

    Both read the layer's input where the residual is parallel; else the MLP reads what attention has added to it.
    """

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.parallel_residual = shape.parallel_residual
        self.attention_norm = _norm(shape)
        self.attention = Attention(shape)
        self.mlp_norm = _norm(shape)
        self.mlp = _mlp(shape)

    def forward(self, x: Tensor, table: Tensor | None) -> Tensor:
        mixed = self.attention(self.attention_norm(x), table)
        if self.parallel_residual:
            return cast(Tensor, self.mlp(self.mlp_norm(x)) + mixed + x)
        x = mixed + x
        return cast(Tensor, self.mlp(self.mlp_norm(x)) + x)


class TiedLogits(nn.Module):
    """Logits by a weight that belongs to another module, which tensor parallelism splits there."""

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return linear(x, weight)


class Head(nn.Module):
    """Final norm and the logits of every word: by weights of its own, or by the embedding's."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.norm = _norm(shape)
        own = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False) if not shape.tied_embeddings else None
        self.logits = own or TiedLogits()

    def forward(self, x: Tensor, *tied: Tensor) -> Tensor:
        return cast(Tensor, self.logits(self.norm(x), *tied))


class Decoder(nn.Module):
    """Tokens (N, length) -> logits of the token that follows each, (N, length, vocab_size)."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.shape = shape
        self.embed = Embedding(shape.vocab_size, shape.hidden_size)
        if shape.learned_positions:
            self.positions = Embedding(shape.seq_len, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_layers))
        self.head = Head(shape)
        initialise(self)

    def table(self, positions: Tensor) -> Tensor | None:
        """What turns queries and keys at these positions; None where positions are learned."""
        dims = self.shape.rotary_dims
        return rotary_table(positions, dims, self.shape.rope_theta) if dims else None

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        x = self.embed(tokens)
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)
        if self.shape.learned_positions:
            x = placed(self.positions, x, positions)
        table = self.table(positions)
        for layer in self.layers:
            x = layer(x, table)
        return cast(Tensor, self.head(x, *((self.embed.weight,) if self.shape.tied_embeddings else ())))


def placed(table: nn.Module, x: Tensor, positions: Tensor) -> Tensor:
    """Embedded tokens with their positions' rows of a table added."""
    return cast(Tensor, x + table(positions[None]))


def initialise(model: Decoder) -> None:
    """Normal weights as GPT-NeoX-20B's: "small init" (Nguyen and Salazar 2019), and Wang's for what ends a residual."""
    hidden = model.embed.embedding_dim
    small, wang = math.sqrt(2 / (5 * hidden)), 2 / (len(model.layers) * math.sqrt(hidden))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif "norm" in name:
            nn.init.ones_(parameter)
        else:
            ends = name.endswith(("attention.out.weight", "mlp.down.weight", "experts.down"))
            nn.init.normal_(parameter, std=wang if ends else small)
