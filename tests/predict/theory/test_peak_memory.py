"""Peak memory against torch's own account of a step, and sums by hand."""

import pytest

from bench.peak import measured
from benchsuite.contract.errors import UserError
from benchsuite.predict.theory.peak_memory import peak_of
from benchsuite.workloads.facts import BERT, GPT_NEOX, RESNET50
from benchsuite.workloads.spec import Variant

TINY = {facts.name: facts.variants["tiny"] for facts in (GPT_NEOX, BERT, RESNET50)}
WIDE_HEAD = Variant(
    {"hidden": 64, "layers": 2, "heads": 2, "dropout": 0.1}, {"seq_len": 32, "max_predictions": 16, "vocab_size": 8192}
)


@pytest.mark.parametrize(
    ("workload", "variant", "batch_size"),
    [
        ("gpt_neox", TINY["gpt_neox"], 8),
        ("bert", TINY["bert"], 8),
        ("bert", WIDE_HEAD, 8),
        ("gpt_neox", TINY["gpt_neox"], 1),
        ("resnet50", TINY["resnet50"], 4),
        ("resnet50", TINY["resnet50"], 32),
    ],
    ids=["gpt_neox", "bert", "bert, most in its head", "gpt_neox, one sequence", "resnet50", "resnet50, 32"],
)
def test_states_and_peak_are_what_torch_allocates(workload: str, variant: Variant, batch_size: int):
    states, peak, params, largest = measured(workload, variant, batch_size)
    found = peak_of(workload, params, variant.model, variant.sample, batch_size, largest)  # type: ignore[arg-type]
    assert found.states == pytest.approx(states, rel=0.01)
    assert found.peak == pytest.approx(peak, rel=0.05)


def test_by_hand():
    """One layer of 2 wide, 1 head, 1 token of 3 words: (18 x 2 + 1 + 4) + 2 x 2 + 2 + 3 x 3 = 56 elements."""
    sizes, sample = {"hidden": 2, "heads": 1, "layers": 1}, {"seq_len": 1, "vocab_size": 3}
    found = peak_of("gpt_neox", 10, sizes, sample, 1)
    assert (found.states, found.kept, found.peak) == (160, 4 * 50, 120 + 4 * 56)
    assert peak_of("gpt_neox", 1000, sizes, sample, 1, largest=7).peak == 16_000 + 8 * 7, "the optimizer's"


def test_resnet50_by_hand():
    """Width 1, images of 4 x 4, one block a stage, no classifier's share. The stem has 2 x 2 outputs, pooled to 1 x 1:
    2 x 4 and 3 kept; the blocks have sides of 1, so that 2 w + 2 w + 2 x 4 w + 4 w are kept for w = 1, 2, 4, 8.
    """
    sizes = {"layers": (1, 1, 1, 1), "width": 1, "bottleneck": True}
    found = peak_of("resnet50", 0, sizes, {"image_size": 4}, 2)  # type: ignore[dict-item]
    assert found.states == 0
    assert found.kept == 4 * 2 * (8 + 3 + 16 * (1 + 2 + 4 + 8))


def test_variants_that_are_not_counted():
    with pytest.raises(UserError, match="resnet50 with bottleneck false: not counted; allowed: true"):
        peak_of("resnet50", 1, {"bottleneck": False}, {"image_size": 32}, 1)
    moe = GPT_NEOX.variants["nano_moe"]
    with pytest.raises(UserError, match="gpt_neox with 8 experts: not counted; allowed: num_experts 0"):
        peak_of("gpt_neox", 1, moe.model, moe.sample, 1)  # type: ignore[arg-type]
    nano = BERT.variants["nano"]
    with pytest.raises(UserError, match=r"bert with dropout 0: not counted, .*; allowed: above 0"):
        peak_of("bert", 1, nano.model, nano.sample, 1)  # type: ignore[arg-type]


def test_error_line():
    with pytest.raises(
        UserError, match="workload 'berts' is unknown; nearest: bert; allowed: gpt_neox, bert, resnet50"
    ):
        peak_of("berts", 1, {}, {}, 1)
