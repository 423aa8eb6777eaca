"""BERT against transformers' implementation, the published counts, and storage's samples."""

import copy
import math
import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from benchsuite.storage.dataset.kinds import mlm_tensors
from benchsuite.workloads.bert import CLS, MASK, PAD, SEP, WORKLOAD, blocks
from benchsuite.workloads.spec import Variant
from benchsuite.workloads.workload import Batch
from tests.workloads import transformers_names

CPU = torch.device("cpu")
NANO, TINY, REFERENCE = (WORKLOAD.variants[name] for name in ("nano", "tiny", "reference"))
OTHER = TINY.resized({"hidden_size": 60, "num_layers": 2, "num_heads": 6, "ffn_size": 100, "seq_len": 48})
COUNTS = {"base": 110_106_428, "reference": 336_226_108}


def without_dropout(variant: Variant) -> Variant:
    return replace(variant, model={**variant.model, "dropout": 0.0})


def roughened(model: nn.Module) -> nn.Module:
    """The model with weights so large, and biases and norms so uneven, that every part shows in what comes out."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def batch_of(variant: Variant, batch_size: int = 4) -> Batch:
    torch.manual_seed(1)
    return WORKLOAD.synthetic(variant, batch_size, CPU)


def predictions(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    tokens, next_sentence = model(batch["input_ids"], batch["segment_ids"], batch["masked_lm_positions"])
    return tokens, next_sentence


def apart(one: Tensor, other: Tensor) -> float:
    """Relative distance of two tensors."""
    return float((one - other).detach().norm() / other.detach().norm().clamp(min=1e-12))


@pytest.mark.parametrize("variant", COUNTS)
def test_published_numbers_of_parameters(variant: str) -> None:
    with torch.device("meta"):
        model = WORKLOAD.build(WORKLOAD.variants[variant])
    assert sum(parameter.numel() for parameter in model.parameters()) == COUNTS[variant]


def twin(variant: Variant, attention: str) -> tuple[nn.Module, nn.Module]:
    """Our model and transformers', with the same weights."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")
    hidden = variant.model["hidden_size"]
    assert isinstance(hidden, int)
    config = transformers.BertConfig(
        vocab_size=variant.sample["vocab_size"],
        hidden_size=hidden,
        num_hidden_layers=variant.model["num_layers"],
        num_attention_heads=variant.model["num_heads"],
        intermediate_size=variant.model["ffn_size"] or 4 * hidden,
        max_position_embeddings=variant.sample["seq_len"],
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation=attention,
    )
    theirs = roughened(transformers.BertForPreTraining(config))
    ours = WORKLOAD.build(without_dropout(variant))
    ours.load_state_dict(transformers_names.to_ours(theirs.state_dict(), transformers_names.BERT), strict=True)
    return ours, theirs


def labelled(batch: Batch) -> dict[str, Tensor]:
    """The batch as transformers takes it: labels at every position, -100 where nothing is predicted."""
    labels = torch.full_like(batch["input_ids"], -100)
    for row, (positions, ids) in enumerate(zip(batch["masked_lm_positions"], batch["masked_lm_ids"], strict=True)):
        labels[row, positions[ids != PAD]] = ids[ids != PAD]
    return {
        "input_ids": batch["input_ids"],
        "attention_mask": (batch["input_ids"] != PAD).long(),
        "token_type_ids": batch["segment_ids"],
        "labels": labels,
        "next_sentence_label": batch["next_sentence_label"],
    }


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("variant", [NANO, TINY, OTHER], ids=["nano", "tiny", "other"])
def test_predictions_loss_and_gradients_are_those_of_transformers(variant: Variant, attention: str) -> None:
    ours, theirs = twin(variant, attention)
    batch = batch_of(variant)
    assert (batch["input_ids"] == PAD).any()
    tokens, next_sentence = predictions(ours, batch)
    expected = theirs(**labelled(batch))
    rows = torch.arange(len(tokens))[:, None]
    assert apart(tokens, expected.prediction_logits[rows, batch["masked_lm_positions"]]) < 1e-5
    assert apart(next_sentence, expected.seq_relationship_logits) < 1e-5
    loss = WORKLOAD.loss(ours, batch)
    assert loss.item() == pytest.approx(expected.loss.item(), rel=1e-6)
    loss.backward()
    expected.loss.backward()
    given = {name: value.grad for name, value in theirs.named_parameters()}
    gradients = transformers_names.to_ours(given, transformers_names.BERT)
    for name, parameter in ours.named_parameters():
        # A key's bias adds the same to all of a query's scores: its gradient is zero but for rounding.
        tolerance = 1e-6 * loss.item() if name.endswith("key.bias") else 1e-5 * float(gradients[name].norm())
        assert (parameter.grad - gradients[name]).norm() <= tolerance, name


def test_padding_is_not_seen() -> None:
    model = roughened(WORKLOAD.build(NANO))
    batch = batch_of(NANO, 1)
    length = int((batch["input_ids"] != PAD).sum())
    assert length < NANO.sample["seq_len"]
    cut = {**batch, "input_ids": batch["input_ids"][:, :length], "segment_ids": batch["segment_ids"][:, :length]}
    for one, other in zip(predictions(model, batch), predictions(model, cut), strict=True):
        torch.testing.assert_close(one, other)


def test_loss_is_a_mean_over_tokens_and_one_over_samples() -> None:
    model = roughened(WORKLOAD.build(NANO))
    batch = batch_of(NANO, 3)
    tokens, sentences = (logits.detach().double().log_softmax(-1) for logits in predictions(model, batch))
    of_tokens = [
        -float(tokens[row, place, word])
        for row in range(3)
        for place, word in enumerate(batch["masked_lm_ids"][row])
        if word
    ]
    of_sentences = [-float(sentences[row, label]) for row, label in enumerate(batch["next_sentence_label"])]
    expected = sum(of_tokens) / len(of_tokens) + sum(of_sentences) / 3
    assert WORKLOAD.loss(model, batch).item() == pytest.approx(expected, rel=1e-5)


def test_targets_make_microbatches_weigh_by_their_tokens() -> None:
    assert WORKLOAD.targets is not None
    model = roughened(WORKLOAD.build(NANO))
    batch = batch_of(NANO, 8)
    halves = [{name: value[part] for name, value in batch.items()} for part in (slice(4), slice(4, 8))]
    counts = [WORKLOAD.targets(half)["num_masked"] for half in halves]
    assert counts[0] != counts[1] and counts[0].is_floating_point()
    assert sum(counts) == WORKLOAD.targets(batch)["num_masked"] == (batch["masked_lm_ids"] != 0).sum()
    mean = {"num_masked": sum(counts, torch.zeros(())) / 2}
    whole = WORKLOAD.loss(model, batch).item()
    assert sum(WORKLOAD.loss(model, half | mean).item() for half in halves) / 2 == pytest.approx(whole, rel=1e-5)
    assert sum(WORKLOAD.loss(model, half).item() for half in halves) / 2 != pytest.approx(whole, rel=1e-3)


def test_a_batch_without_predictions_has_a_finite_loss() -> None:
    batch = batch_of(NANO) | {"masked_lm_ids": torch.zeros(4, 4, dtype=torch.int64)}
    assert WORKLOAD.loss(WORKLOAD.build(NANO), batch).isfinite()


def test_every_parameter_takes_part() -> None:
    model = roughened(WORKLOAD.build(NANO))
    WORKLOAD.loss(model, batch_of(NANO)).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_dropout_is_the_variants() -> None:
    batch = batch_of(TINY)
    for variant, is_random in ((TINY, True), (without_dropout(TINY), False)):
        model = WORKLOAD.build(variant)
        assert (WORKLOAD.loss(model, batch) != WORKLOAD.loss(model, batch)).item() is is_random
        assert WORKLOAD.loss(model.eval(), batch) == WORKLOAD.loss(model, batch)


def test_tiny_learns_a_batch() -> None:
    torch.manual_seed(0)
    model, batch = WORKLOAD.build(TINY), batch_of(TINY, 8)
    optimizer = WORKLOAD.optimizer(model.parameters())
    losses = []
    for _ in range(12):
        loss = WORKLOAD.loss(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(512) + math.log(2), rel=0.05)
    assert losses[-1] < losses[0] - 0.3


def test_weights_decay_but_biases_and_norms_do_not() -> None:
    model = WORKLOAD.build(NANO)
    decayed, others = WORKLOAD.optimizer(model.parameters()).param_groups
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.01, 0.0)
    assert decayed["lr"] == others["lr"] == WORKLOAD.learning_rate
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    kept = {names[id(parameter)] for parameter in others["params"]}
    assert kept == {name for name in names.values() if name.endswith("bias") or "norm" in name}
    assert len(kept) + len(decayed["params"]) == len(names)


def test_blocks_are_the_layers_in_order() -> None:
    model = WORKLOAD.build(NANO)
    assert [id(block) for block in blocks(model)] == [id(model.get_submodule(f"layers.{n}")) for n in range(4)]


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_tensor_parallel_plan_has_a_style_for_every_module_with_parameters(sequence_parallel: bool) -> None:
    assert WORKLOAD.tensor_parallel is not None
    model = WORKLOAD.build(NANO)
    plan = WORKLOAD.tensor_parallel.plan(model, sequence_parallel, False)
    owners = {name.rpartition(".")[0] for name, _ in model.named_parameters()}
    assert owners <= {re.sub(r"\*", str(number), name) for name in plan for number in range(4)}
    assert WORKLOAD.tensor_parallel.divisible(NANO) == {"num_heads": 8, "ffn_size": 128, "seq_len": 16}


def test_nothing_depends_on_the_data() -> None:
    with FakeTensorMode():
        model = WORKLOAD.build(NANO)
        loss = WORKLOAD.loss(model, WORKLOAD.synthetic(NANO, 2, CPU))
        loss.backward()
    assert loss.shape == ()


@pytest.mark.parametrize("variant", [NANO, TINY, REFERENCE], ids=["nano", "tiny", "reference"])
def test_synthetic_batches_look_like_the_loaders(variant: Variant) -> None:
    batch = batch_of(variant, 6)
    expected = {name: (dtype, (6, *shape)) for name, (dtype, shape) in mlm_tensors(variant.sample).items()}
    assert {name: (value.dtype, tuple(value.shape)) for name, value in batch.items()} == expected
    for row in range(6):
        check_sample({name: value[row] for name, value in batch.items()}, variant)
    assert batch["next_sentence_label"].unique().tolist() == [0, 1]


def check_sample(sample: Batch, variant: Variant) -> None:
    """[CLS] first [SEP] second [SEP] padding, and predictions at distinct places of words."""
    ids, length = sample["input_ids"], int((sample["input_ids"] != PAD).sum())
    ends = (ids == SEP).nonzero().flatten().tolist()
    assert ids[0] == CLS and (ids == CLS).sum() == 1 and ids.max() < variant.sample["vocab_size"]
    assert len(ends) == 2 and 1 < ends[0] < ends[1] - 1 and ends[1] == length - 1 and not ids[length:].any()
    assert sample["segment_ids"].nonzero().flatten().tolist() == list(range(ends[0] + 1, length))
    count = int((sample["masked_lm_ids"] != PAD).sum())
    positions, words = sample["masked_lm_positions"][:count], sample["masked_lm_ids"][:count]
    assert count > 0 and not sample["masked_lm_ids"][count:].any() and not sample["masked_lm_positions"][count:].any()
    assert positions.unique().numel() == count and positions.max() < length and (words > MASK).all()
    assert not set(positions.tolist()) & {0, *ends}


def test_synthetic_words_are_masked_replaced_and_left_in_the_known_shares() -> None:
    batch = batch_of(REFERENCE, 200)
    real = batch["masked_lm_ids"] != PAD
    shown = batch["input_ids"].gather(1, batch["masked_lm_positions"])[real]
    left = shown == batch["masked_lm_ids"][real]
    assert (shown == MASK).float().mean().item() == pytest.approx(0.8, abs=0.03)
    assert left.float().mean().item() == pytest.approx(0.1, abs=0.02)
    assert (batch["input_ids"] == MASK).sum() == (shown == MASK).sum()
    assert 0.03 < (batch["input_ids"][:, -1] == PAD).float().mean() < 0.2
    assert real.sum(1).unique().numel() > 30


def test_synthetic_batches_differ_in_their_predictions_and_hold_a_padded_sample() -> None:
    for size in (2, 4):
        batches = [WORKLOAD.synthetic(NANO, size, CPU) for _ in range(20)]
        assert all((batch["input_ids"][-1] == PAD).any() for batch in batches)
        assert len({int((batch["masked_lm_ids"] != PAD).sum()) for batch in batches}) > 2


def test_the_same_seed_builds_the_same_model() -> None:
    states = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        states.append(copy.deepcopy(WORKLOAD.build(NANO).state_dict()))
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not torch.equal(states[0]["embeddings.word.weight"], states[2]["embeddings.word.weight"])
