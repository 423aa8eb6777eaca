"""Workload `gpt_neox`: the decoders of GPT-NeoX and Pythia, GPT-2 and LLaMA, trained to tell the next token.

The smaller shapes of GPT-NeoX are those of Pythia (Biderman et al. 2023). All are trained and initialised as GPT-NeoX
was, and without dropout; what they compute is in decoder.py.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchsuite.workloads.decoder import Decoder, Layer, placed
from benchsuite.workloads.facts import GPT_NEOX, DecoderShape, gpt_neox_divisible
from benchsuite.workloads.moe import Experts
from benchsuite.workloads.spec import Variant
from benchsuite.workloads.workload import Batch, ContextParallel, Pipeline, Plan, Stage, TensorParallel, Workload

if TYPE_CHECKING:
    from torch.distributed.tensor import Placement

LEARNING_RATE = 3e-4
"""Low enough for a benchmark's small batches; Pythia trained its sizes at 1e-3 to 1.2e-4, in batches of 2M tokens."""


def build(variant: Variant) -> nn.Module:
    """The model of a variant, on the default device."""
    return Decoder(DecoderShape.of(variant))


def criterion(logits: Tensor, batch: Batch) -> Tensor:
    """Mean cross-entropy of each next token. Logits may be a DTensor split by word, under `loss_parallel()`."""
    return cross_entropy(logits.flatten(0, 1), uncut(batch)["next"].flatten())


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross-entropy of each next token."""
    parts = uncut(batch)
    return criterion(model(parts["tokens"], parts["positions"][0]), parts)


def uncut(batch: Batch) -> Batch:
    """Tokens, what follows each, and their positions, (N, length) each: of whole sequences, unless they are cut."""
    return batch if "next" in batch else cut(batch, lambda length, device: torch.arange(length, device=device))


def cut(batch: Batch, positions: Callable[[int, torch.device], Tensor]) -> Batch:
    """The tokens at some positions of each sequence, what follows each, and the positions."""
    tokens = batch["tokens"]
    at = positions(tokens.shape[1] - 1, tokens.device)
    return {"tokens": tokens[:, at], "next": tokens[:, at + 1], "positions": at.expand(len(tokens), -1)}


def synthetic(variant: Variant, batch_size: int, device: torch.device) -> Batch:
    """Uniform tokens, made on the device."""
    length, vocab_size = variant.sample["seq_len"] + 1, variant.sample["vocab_size"]
    return {"tokens": torch.randint(vocab_size, (batch_size, length), device=device)}


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW with the reference's betas and weight decay; it decays norms and biases too, which the reference spares."""
    return torch.optim.AdamW(parameters, lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.1)


def blocks(model: nn.Module) -> Sequence[nn.Module]:
    """The layers."""
    return list(cast(Decoder, model).layers)


def experts(model: nn.Module) -> Sequence[nn.Module]:
    """Return the experts of each layer with a mixture (and not their router, which all ranks hold)."""
    return [module for module in model.modules() if isinstance(module, Experts)]


def attentions(model: nn.Module) -> Sequence[nn.Module]:
    """Return the attention of each layer."""
    return [cast(Layer, layer).attention for layer in blocks(model)]


def stages(model: nn.Module) -> list[Stage]:
    """Embedding, a table of positions where there is one, each layer, final norm and head."""

    def place(positions: nn.Module, x: Any, batch: Batch) -> Tensor:
        return placed(positions, x, uncut(batch)["positions"][0])

    def run_layer(layer: nn.Module, x: Any, batch: Batch) -> Tensor:
        return cast(Tensor, layer(x, table(uncut(batch)["positions"][0])))

    whole = cast(Decoder, model)
    table, tied = whole.table, (whole.embed.weight,) if whole.shape.tied_embeddings else ()
    embedding: Stage = (whole.embed, lambda embed, _, batch: embed(uncut(batch)["tokens"]))
    positions: list[Stage] = [(whole.positions, place)] if whole.shape.learned_positions else []
    head: Stage = (whole.head, lambda head, x, _: head(x, *tied))
    return [embedding, *positions, *((layer, run_layer) for layer in whole.layers), head]


def tensor_parallel_plan(model: nn.Module, sequence_parallel: bool, loss_parallel: bool) -> Plan:
    """Heads, the MLP's inner width and the vocabulary are split (Shoeybi et al., "Megatron-LM", 2019).

    `sequence_parallel`: between those, each rank holds its part of the sequence (Korthikanti et al. 2022).
    `loss_parallel`: logits stay split by word, a DTensor. Experts are not split: every rank computes all of them.
    """
    from torch.distributed.tensor import Replicate, Shard, parallel

    whole = Replicate()
    between = Shard(1) if sequence_parallel else whole
    logits = Shard(-1) if loss_parallel else whole
    shape = cast(Decoder, model).shape
    table = parallel.RowwiseParallel(input_layouts=whole, output_layouts=between)
    plan: dict[str, parallel.ParallelStyle] = {
        "embed": table,
        "layers.*.attention.qkv": parallel.ColwiseParallel(input_layouts=between),
        "layers.*.attention.out": parallel.RowwiseParallel(output_layouts=between),
        "head.logits": parallel.ColwiseParallel(
            input_layouts=between, output_layouts=logits, use_local_output=not loss_parallel
        ),
    }
    if shape.tied_embeddings:  # the weight comes with the input, split where it is the embedding's
        plan["head.logits"] = parallel.PrepareModuleInputOutput(
            input_layouts=(between, None),
            desired_input_layouts=(whole, None),
            output_layouts=Shard(-1),
            desired_output_layouts=logits,
            use_local_output=not loss_parallel,
        )
    if shape.learned_positions:
        plan["positions"] = table
    if sequence_parallel:
        norms = ("layers.*.attention_norm", "layers.*.mlp_norm", "head.norm")
        plan |= {norm: parallel.SequenceParallel() for norm in norms}
    return {**plan, **_mlp_plan(shape, between)}


def _mlp_plan(shape: DecoderShape, between: "Placement") -> Plan:
    """Styles of the MLPs, which take and give activations laid out as `between`."""
    from torch.distributed.tensor import Replicate, parallel

    whole = Replicate()
    down = {"layers.*.mlp.down": parallel.RowwiseParallel(output_layouts=between)}
    if shape.gated_mlp:  # gate and up share one input, whose gradients are added before they are exchanged
        gathered = parallel.PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(whole,))
        split = {f"layers.*.mlp.{name}": parallel.ColwiseParallel() for name in ("gate", "up")}
        return {"layers.*.mlp": gathered, **split, **down}
    if not shape.num_experts:
        return {"layers.*.mlp.up": parallel.ColwiseParallel(input_layouts=between), **down}
    if between == whole:
        return {}
    inputs: dict[str, Any] = {"input_layouts": between, "desired_input_layouts": whole}
    outputs: dict[str, Any] = {"output_layouts": whole, "desired_output_layouts": between}
    return {"layers.*.mlp": parallel.PrepareModuleInputOutput(**inputs, use_local_input=True, **outputs)}


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
    context_parallel=ContextParallel(attentions, cut, gpt_neox_divisible),
    experts=experts,
)
