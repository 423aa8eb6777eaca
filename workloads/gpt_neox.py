"""GPT-NeoX-style decoder: rotary positions on a quarter of each head, attention and MLP in parallel.

Black et al., "GPT-NeoX-20B" (2022); the smaller shapes are those of Pythia (Biderman et al. 2023). No dropout, as both
were trained. With experts, the MLPs are mixtures (see moe.py).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

from benchsuite.workloads.facts import GPT_NEOX, ROTARY_SHARE, gpt_neox_divisible
from benchsuite.workloads.moe import Experts, MoE
from benchsuite.workloads.spec import Variant
from benchsuite.workloads.workload import Batch, Pipeline, Plan, Stage, TensorParallel, Workload

MLP_FACTOR = 4
ROTARY_BASE = 10_000.0
LEARNING_RATE = 3e-4
"""Low enough for a benchmark's small batches; Pythia trained its sizes at 1e-3 to 1.2e-4, in batches of 2M tokens."""


def rotary_table(length: int, dims: int, device: torch.device) -> Tensor:
    """Cosines and sines of positions 0 to length - 1, (2, length, dims / 2) in float32.

    Made on the device in every step: a copy kept from before would not survive a model built on the meta device.
    """
    frequency = 1.0 / ROTARY_BASE ** (torch.arange(0, dims, 2, dtype=torch.float32, device=device) / dims)
    angle = torch.arange(length, dtype=torch.float32, device=device)[:, None] * frequency
    return torch.stack((angle.cos(), angle.sin()))


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Turn the first dimensions of (..., length, head_dim) by their position (Su et al., "RoFormer", 2021)."""
    half = table.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cos, sin = table.unbind()
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
    return torch.cat((turned.to(x.dtype), rest), -1)


class Attention(nn.Module):
    """Causal self-attention; the fused projection's output is laid out [heads, query key value, head_dim]."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.head_dim = hidden // heads
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        fused = self.qkv(x).unflatten(-1, (-1, 3, self.head_dim))  # under tensor parallelism, this rank's heads
        query, key, value = fused.transpose(1, 2).unbind(3)
        query, key = rotate(query, table), rotate(key, table)
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        return cast(Tensor, self.out(mixed.transpose(1, 2).flatten(2)))


class Mlp(nn.Module):
    """hidden -> 4 hidden -> hidden."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, MLP_FACTOR * hidden)
        self.down = nn.Linear(MLP_FACTOR * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.down(gelu(self.up(x))))


class Layer(nn.Module):
    """Attention and MLP, each with its own norm, both read the layer's input: (N, length, hidden) -> the same."""

    def __init__(self, hidden: int, heads: int, num_experts: int, top_k: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden)
        self.attention = Attention(hidden, heads)
        self.mlp_norm = nn.LayerNorm(hidden)
        self.mlp = MoE(hidden, MLP_FACTOR * hidden, num_experts, top_k) if num_experts else Mlp(hidden)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        mixed = self.attention(self.attention_norm(x), table)
        return cast(Tensor, self.mlp(self.mlp_norm(x)) + mixed + x)


class Head(nn.Module):
    """Final norm and the logits of every word, by weights of its own."""

    def __init__(self, hidden: int, vocab_size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.logits = nn.Linear(hidden, vocab_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.logits(self.norm(x)))


class GPTNeoX(nn.Module):
    """Tokens (N, length) -> logits of the token that follows each, (N, length, vocab_size)."""

    def __init__(self, hidden: int, layers: int, heads: int, num_experts: int, top_k: int, vocab_size: int) -> None:
        super().__init__()
        self.rotary_dims = hidden // heads // ROTARY_SHARE
        self.embed = nn.Embedding(vocab_size, hidden)
        self.layers = nn.ModuleList(Layer(hidden, heads, num_experts, top_k) for _ in range(layers))
        self.head = Head(hidden, vocab_size)
        initialise(self)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        table = rotary_table(tokens.shape[1], self.rotary_dims, tokens.device)
        for layer in self.layers:
            x = layer(x, table)
        return cast(Tensor, self.head(x))


def initialise(model: GPTNeoX) -> None:
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


def build(variant: Variant) -> nn.Module:
    """The model of a variant, on the default device."""
    return GPTNeoX(**cast(Mapping[str, int], variant.model), vocab_size=variant.sample["vocab_size"])


def criterion(logits: Tensor, batch: Batch) -> Tensor:
    """Mean cross-entropy of each next token. Logits may be a DTensor split by word, under `loss_parallel()`."""
    return cross_entropy(logits.flatten(0, 1), batch["tokens"][:, 1:].flatten())


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross-entropy of each next token."""
    return criterion(model(batch["tokens"][:, :-1]), batch)


def synthetic(variant: Variant, batch_size: int, device: torch.device) -> Batch:
    """Uniform tokens, made on the device."""
    length, vocab_size = variant.sample["seq_len"] + 1, variant.sample["vocab_size"]
    return {"tokens": torch.randint(vocab_size, (batch_size, length), device=device)}


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW with the reference's betas and weight decay; it decays norms and biases too, which the reference spares."""
    return torch.optim.AdamW(parameters, lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.1)


def blocks(model: nn.Module) -> Sequence[nn.Module]:
    """The layers."""
    return list(cast(GPTNeoX, model).layers)


def experts(model: nn.Module) -> Sequence[nn.Module]:
    """Return the experts of each layer with a mixture (and not their router, which all ranks hold)."""
    return [module for module in model.modules() if isinstance(module, Experts)]


def stages(model: nn.Module) -> list[Stage]:
    """Embedding, each layer, final norm and head."""

    def run_layer(layer: nn.Module, x: Any, batch: Batch) -> Tensor:
        tokens = batch["tokens"]
        return cast(Tensor, layer(x, rotary_table(tokens.shape[1] - 1, dims, tokens.device)))

    whole = cast(GPTNeoX, model)
    dims = whole.rotary_dims
    embedding: Stage = (whole.embed, lambda embed, _, batch: embed(batch["tokens"][:, :-1]))
    return [embedding, *((layer, run_layer) for layer in whole.layers), (whole.head, lambda head, x, _: head(x))]


def tensor_parallel_plan(model: nn.Module, sequence_parallel: bool, loss_parallel: bool) -> Plan:
    """Heads, the MLP's inner width and the vocabulary are split (Shoeybi et al., "Megatron-LM", 2019).

    `sequence_parallel`: between those, each rank holds its part of the sequence (Korthikanti et al. 2022).
    `loss_parallel`: logits stay split by word, a DTensor. Experts are not split: every rank computes all of them.
    """
    from torch.distributed.tensor import Replicate, Shard, parallel

    between = Shard(1) if sequence_parallel else Replicate()
    logits = Shard(-1) if loss_parallel else Replicate()
    plan: dict[str, parallel.ParallelStyle] = {
        "embed": parallel.RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "layers.*.attention.qkv": parallel.ColwiseParallel(input_layouts=between),
        "layers.*.attention.out": parallel.RowwiseParallel(output_layouts=between),
        "head.logits": parallel.ColwiseParallel(
            input_layouts=between, output_layouts=logits, use_local_output=not loss_parallel
        ),
    }
    if sequence_parallel:
        norms = ("layers.*.attention_norm", "layers.*.mlp_norm", "head.norm")
        plan |= {norm: parallel.SequenceParallel() for norm in norms}
    if not experts(model):
        plan["layers.*.mlp.up"] = parallel.ColwiseParallel(input_layouts=between)
        plan["layers.*.mlp.down"] = parallel.RowwiseParallel(output_layouts=between)
    elif sequence_parallel:
        gathered: dict[str, Any] = {"input_layouts": between, "desired_input_layouts": Replicate()}
        split: dict[str, Any] = {"output_layouts": Replicate(), "desired_output_layouts": between}
        plan["layers.*.mlp"] = parallel.PrepareModuleInputOutput(**gathered, use_local_input=True, **split)
    return plan


WORKLOAD = Workload(
    name=GPT_NEOX.name,
    kind=GPT_NEOX.kind,
    variants=GPT_NEOX.variants,
    build=build,
    loss=loss,
    synthetic=synthetic,
    optimizer=optimizer,
    learning_rate=LEARNING_RATE,
    blocks=blocks,
    tensor_parallel=TensorParallel(tensor_parallel_plan, gpt_neox_divisible),
    pipeline=Pipeline(stages, criterion),
    experts=experts,
)
