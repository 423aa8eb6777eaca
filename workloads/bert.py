"""BERT with both pre-training heads: masked tokens (the decoder shares the word embedding) and next sentence.

Devlin et al., "BERT: pre-training of deep bidirectional transformers" (2018). As in MLPerf Training's reference, logits
are computed at masked_lm_positions only.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, PrepareModuleInput, RowwiseParallel
from torch.nn.functional import cross_entropy, gelu, linear, scaled_dot_product_attention

from benchsuite.workloads.facts import BERT, MLP_FACTOR, bert_divisible
from benchsuite.workloads.residual import Embedding, LayerNorm
from benchsuite.workloads.spec import Variant
from benchsuite.workloads.workload import Batch, Plan, TensorParallel, Workload

PAD, CLS, SEP, MASK = 0, 101, 102, 103
"""Ids of BERT's special tokens; those of words follow."""
LEARNING_RATE = 1e-4
"""Learning rate of Devlin et al., for batches of 256; low enough for small ones without warm-up."""
SHORT_SHARE = 0.1
"""Share of synthetic samples that are padded."""


class Embeddings(nn.Module):
    """Sum of word, position and segment, normalised: (N, S) twice -> (N, S, hidden)."""

    def __init__(self, vocab: int, positions: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.word = Embedding(vocab, hidden)
        self.position = Embedding(positions, hidden)
        self.segment = Embedding(2, hidden)
        self.norm = LayerNorm(hidden, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, input_ids: Tensor, segment_ids: Tensor) -> Tensor:
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        x = self.word(input_ids) + self.segment(segment_ids) + self.position(positions)
        return cast(Tensor, self.dropout(self.norm(x)))


class Attention(nn.Module):
    """Attention to what `mask` lets be seen. How many heads lie here follows from the width of the projections."""

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.output = nn.Linear(hidden, hidden)
        self.head_dim = hidden // heads
        self.dropout = dropout

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        projected = (self.query(x), self.key(x), self.value(x))
        query, key, value = (y.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for y in projected)
        dropout = self.dropout if self.training else 0.0
        y = scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        return cast(Tensor, self.output(y.transpose(1, 2).flatten(2)))


class Layer(nn.Module):
    """Attention and two-layer perceptron, each added to its input and then normalised: (N, S, hidden) -> same."""

    def __init__(self, hidden: int, heads: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(hidden, heads, dropout)
        self.attention_norm = LayerNorm(hidden, eps=1e-12)
        self.up = nn.Linear(hidden, inner)
        self.down = nn.Linear(inner, hidden)
        self.norm = LayerNorm(hidden, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x, mask)))
        return cast(Tensor, self.norm(x + self.dropout(self.down(gelu(self.up(x))))))


class Decoder(nn.Module):
    """Logits of the vocabulary, by the word embedding's weight."""

    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(vocab))

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return linear(x, weight, self.bias)


class Heads(nn.Module):
    """What is predicted: logits of the tokens at `positions` (N, P, vocab), and of the next sentence (N, 2)."""

    def __init__(self, vocab: int, hidden: int) -> None:
        super().__init__()
        self.transform = nn.Linear(hidden, hidden)
        self.norm = LayerNorm(hidden, eps=1e-12)
        self.decoder = Decoder(vocab)
        self.pooler = nn.Linear(hidden, hidden)
        self.next_sentence = nn.Linear(hidden, 2)

    def forward(self, x: Tensor, positions: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        masked = x.gather(1, positions[:, :, None].expand(-1, -1, x.shape[2]))
        tokens = self.decoder(self.norm(gelu(self.transform(masked))), weight)
        return tokens, self.next_sentence(self.pooler(x[:, 0]).tanh())


class Bert(nn.Module):
    """Embeddings, encoder layers, heads."""

    def __init__(
        self,
        vocab_size: int,
        seq_len: int,
        hidden_size: int,
        num_layers: int,
        num_heads: int,
        ffn_size: int,
        dropout: float,
    ) -> None:
        super().__init__()
        inner = ffn_size or MLP_FACTOR * hidden_size
        self.embeddings = Embeddings(vocab_size, seq_len, hidden_size, dropout)
        self.layers = nn.ModuleList(Layer(hidden_size, num_heads, inner, dropout) for _ in range(num_layers))
        self.heads = Heads(vocab_size, hidden_size)
        self.apply(_initialise)

    def forward(self, input_ids: Tensor, segment_ids: Tensor, masked_lm_positions: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embeddings(input_ids, segment_ids)
        mask = (input_ids != PAD)[:, None, None]
        for layer in self.layers:
            x = layer(x, mask)
        return cast(tuple[Tensor, Tensor], self.heads(x, masked_lm_positions, self.embeddings.word.weight))


def _initialise(module: nn.Module) -> None:
    """Normal weights of deviation 0.02, no bias."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


def build(variant: Variant) -> nn.Module:
    """The model of a variant, on the default device."""
    sizes = cast(Mapping[str, Any], variant.model)
    return Bert(variant.sample["vocab_size"], variant.sample["seq_len"], **sizes)


def blocks(model: nn.Module) -> Sequence[nn.Module]:
    """The encoder layers."""
    return list(cast(nn.ModuleList, model.get_submodule("layers")))


def targets(batch: Batch) -> dict[str, Tensor]:
    """How many masked tokens are to be predicted: ids of 0 fill up."""
    return {"num_masked": (batch["masked_lm_ids"] != PAD).sum().float()}


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of the masked tokens, a mean over these, plus that of the next sentence, a mean over samples."""
    logits, next_sentence = model(batch["input_ids"], batch["segment_ids"], batch["masked_lm_positions"])
    ids = batch["masked_lm_ids"].flatten()
    masked = cross_entropy(logits.flatten(0, 1), ids, ignore_index=PAD, reduction="sum")
    if isinstance(masked, DTensor):
        masked = masked.full_tensor()
    num_masked = batch["num_masked"] if "num_masked" in batch else targets(batch)["num_masked"]
    return masked / num_masked.clamp(min=1) + cross_entropy(next_sentence, batch["next_sentence_label"])


def synthetic(variant: Variant, batch_size: int, device: torch.device) -> Batch:
    """Uniform words in two segments, made on the device; the last sample at least is padded.

    The number of predictions is uniform, unlike the loader's, so that a mean over tokens is no mean of means.
    """
    seq_len, vocab = variant.sample["seq_len"], variant.sample["vocab_size"]
    at, rows = torch.arange(seq_len, device=device), torch.arange(batch_size, device=device)[:, None]
    is_short = (rows == batch_size - 1) | (torch.rand(batch_size, 1, device=device) < SHORT_SHARE)
    length = torch.randint(min(11, seq_len - 1), seq_len, (batch_size, 1), device=device).where(is_short, seq_len)
    split = 2 + (torch.rand(batch_size, 1, device=device) * (length - 4)).long()
    words = torch.randint(MASK + 1, vocab, (batch_size, seq_len), device=device)
    ids = torch.where((at == split) | (at == length - 1), SEP, words).where(at < length, PAD).where(at > 0, CLS)
    return {
        **_masked(ids, length - 3, variant.sample["max_predictions"], vocab),
        "segment_ids": ((at > split) & (at < length)).long(),
        "next_sentence_label": torch.randint(2, (batch_size,), device=device),
    }


def _masked(ids: Tensor, num_words: Tensor, max_predictions: int, vocab: int) -> Batch:
    """Up to max_predictions words of each row to be predicted: 80 % masked, 10 % replaced at random, 10 % left."""
    drawn = torch.rand(ids.shape, device=ids.device).masked_fill(ids <= MASK, 2).argsort(1)[:, :max_predictions]
    limit = num_words.clamp(max=max_predictions)
    count = 1 + (torch.rand(limit.shape, device=ids.device) * limit).long()
    positions = drawn.where(torch.arange(drawn.shape[1], device=ids.device) < count, 0)
    words, fate = ids.gather(1, positions), torch.rand(positions.shape, device=ids.device)
    shown = torch.where(fate < 0.8, MASK, torch.where(fate < 0.9, torch.randint_like(words, MASK + 1, vocab), words))
    return {
        "input_ids": ids.scatter(1, positions, shown.where(positions > 0, CLS)),
        "masked_lm_positions": positions,
        "masked_lm_ids": words.where(positions > 0, PAD),
    }


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW as BERT trains with: weight decay 0.01, but none for biases and norms (what has one dimension)."""
    every = list(parameters)
    decayed, others = [[one for one in every if (one.ndim > 1) is many] for many in (True, False)]
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=LEARNING_RATE, eps=1e-6, weight_decay=0.01)


class _Laid(ParallelStyle):
    """Layouts of a module's parameters, of its first input and of its output, which with None stays a DTensor."""

    def __init__(self, parameters: Placement, inputs: Placement, outputs: Placement | None) -> None:
        self.parameters, self.inputs, self.outputs = parameters, inputs, outputs

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh, self._distribute, self._enter, self._leave)

    def _distribute(self, _name: str, module: nn.Module, mesh: DeviceMesh) -> None:
        for name, parameter in list(module.named_parameters(recurse=False)):
            module.register_parameter(name, nn.Parameter(distribute_tensor(parameter, mesh, [self.parameters])))

    def _enter(self, _module: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> Any:
        return DTensor.from_local(inputs[0], mesh, [self.inputs], run_check=False), *inputs[1:]

    def _leave(self, _module: nn.Module, output: DTensor, _mesh: DeviceMesh) -> Any:
        return output if self.outputs is None else output.redistribute(placements=[self.outputs]).to_local()


def _plan(model: nn.Module, sequence_parallel: bool, loss_parallel: bool) -> Plan:
    """Layers by heads and columns, embedding and decoder by the vocabulary, the rest replicated (Shoeybi et al. 2019).

    With `sequence_parallel`, what lies between is split along the sequence (Korthikanti et al. 2022). Every parameter
    becomes a DTensor, as optimizers do not mix them. Ranks need the same seed: they drop out the same activations.
    """
    whole = Replicate()
    between: Placement = Shard(1) if sequence_parallel else whole
    norm, table, head = _Laid(whole, between, between), _Laid(whole, whole, between), _Laid(whole, whole, whole)
    layer: dict[str, ParallelStyle] = {
        "attention": PrepareModuleInput(input_layouts=(between, None), desired_input_layouts=(whole, None)),
        **{f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
        "attention.output": RowwiseParallel(output_layouts=between),
        "attention_norm": norm,
        "up": ColwiseParallel(input_layouts=between),
        "down": RowwiseParallel(output_layouts=between),
        "norm": norm,
    }
    return {
        "embeddings.word": RowwiseParallel(input_layouts=whole, output_layouts=between),
        **{f"embeddings.{name}": table for name in ("position", "segment")},
        "embeddings.norm": norm,
        **{f"layers.*.{name}": style for name, style in layer.items()},
        "heads": PrepareModuleInput(
            input_layouts=(between, None, None), desired_input_layouts=(whole, None, None), use_local_output=True
        ),
        **{f"heads.{name}": head for name in ("transform", "norm", "pooler", "next_sentence")},
        "heads.decoder": _Laid(Shard(0), whole, None if loss_parallel else whole),
    }


WORKLOAD = Workload(
    name=BERT.name,
    kind=BERT.kind,
    variants=BERT.variants,
    build=build,
    loss=loss,
    synthetic=synthetic,
    optimizer=optimizer,
    learning_rate=LEARNING_RATE,
    targets=targets,
    blocks=blocks,
    tensor_parallel=TensorParallel(_plan, bert_divisible),
)
