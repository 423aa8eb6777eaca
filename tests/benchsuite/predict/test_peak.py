"""Peak memory against torch's own account of a step, and sums by hand."""

import pytest

from bench.peak import measured
from benchsuite.errors import UserError
from benchsuite.predict.peak import peak_of
from workloads.facts import BERT, GPT_NEOX
from workloads.spec import Variant

TINY = {"gpt_neox": GPT_NEOX.variants["tiny"], "bert": BERT.variants["tiny"]}
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
    ],
    ids=["gpt_neox", "bert", "bert, most in its head", "gpt_neox, one sequence"],
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


def test_variants_that_are_not_counted():
    moe = GPT_NEOX.variants["nano_moe"]
    with pytest.raises(UserError, match="gpt_neox with 8 experts: not counted; allowed: num_experts 0"):
        peak_of("gpt_neox", 1, moe.model, moe.sample, 1)  # type: ignore[arg-type]
    nano = BERT.variants["nano"]
    with pytest.raises(UserError, match=r"bert with dropout 0: not counted, .*; allowed: above 0"):
        peak_of("bert", 1, nano.model, nano.sample, 1)  # type: ignore[arg-type]


def test_error_line():
    with pytest.raises(UserError, match="workload 'berts' is unknown; allowed: gpt_neox, bert; nearest: bert"):
        peak_of("berts", 1, {}, {}, 1)
