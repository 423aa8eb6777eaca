"""The tiles of a step's matrix products: the products are those that the real model runs, the figure is by hand."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchsuite import workloads
from benchsuite.contract.trial_spec import parse_trial
from benchsuite.predict.theory.roofline import products_efficiency
from benchsuite.results.store.record import TrialRecord
from benchsuite.runner.roofline import Product, products, tile_efficiency, with_tiles
from benchsuite.workloads.facts import GPT_NEOX
from benchsuite.workloads.workload import Workload

SAMPLES = 3


class Seen(TorchDispatchMode):
    """Notes M, N and K of every product of two matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[Product] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            left, right = args[-2:]
            self.found[left.shape[0], right.shape[1], left.shape[1]] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("name", "variant"),
    [("gpt_neox", "nano"), ("gpt_neox", "nano_gpt2"), ("gpt_neox", "nano_llama"), ("bert", "nano"), ("bert", "tiny")],
)
def test_products_are_those_of_a_real_step(name: str, variant: str) -> None:
    workload: Workload = workloads.load(workloads.WORKLOADS, name)
    of = workload.variants[variant]
    model, batch = workload.build(of), workload.synthetic(of, SAMPLES, torch.device("cpu"))
    with Seen() as seen:
        workload.loss(model, batch).backward()
    told = Counter(products(of, SAMPLES))
    if name == "bert":  # besides: what its two heads do before they tell words and sentences
        assert not told - seen.found and sum((seen.found - told).values()) == 9
    else:
        assert told == seen.found


def spec_of(**changes: Any) -> Any:
    return parse_trial({"workload": "gpt_neox", "variant": "gpt2", "batch_size": 4, "precision": "bf16", **changes})


def test_context_parallel_ranks_have_a_part_of_the_tokens_and_stages_are_not_judged() -> None:
    a_quarter = spec_of(model={"seq_len": 256}, data={"source": "synthetic"})
    assert tile_efficiency(spec_of(parallelism={"cp": 4}), 132) == tile_efficiency(a_quarter, 132)
    assert tile_efficiency(spec_of(parallelism={"pp": 2}), 132) is None


def test_one_product_by_hand() -> None:
    """4,096 rows of 768 make 50,257 words: 16 x 393 tiles of 256 x 128 over 132 SMs are 48 waves."""
    tokens, vocab = 4096, 50257
    forward = tokens * vocab / (48 * 132 * 256 * 128)
    inputs = tokens * 768 / (16 * 6 * 256 * 128 * 132 / 96)  # 96 tiles, in one wave of 132
    weights = vocab * 768 / (9 * 132 * 256 * 128)  # 197 x 6 tiles
    head = [product for product in products(spec_of().variant_in(GPT_NEOX.variants), 4) if vocab in product]
    assert head == [(tokens, vocab, 768), (tokens, 768, vocab), (vocab, 768, tokens)]
    by_hand = 3 / (1 / forward + 1 / inputs + 1 / weights)
    assert float(products_efficiency(*zip(*head, strict=True), 132)) == pytest.approx(by_hand)


def test_a_shape_that_fills_every_wave_wastes_nothing() -> None:
    """On 6 SMs: 256 rows of 768, in all products tiles that fill their waves."""
    sizes = {"hidden_size": 768, "num_layers": 2, "num_heads": 8, "seq_len": 256, "vocab_size": 768}
    assert tile_efficiency(spec_of(batch_size=1, model=sizes), 6) == 1
    assert tile_efficiency(spec_of(batch_size=1, model={**sizes, "vocab_size": 769}), 6) < 1


def test_ranks_that_share_a_layer_and_pieces_of_a_batch_have_smaller_products() -> None:
    variant = spec_of().variant_in(GPT_NEOX.variants)
    assert [*products(variant, 4, tp=2)][:3] == [(4096, 1152, 768), (4096, 768, 1152), (1152, 768, 4096)]
    assert tile_efficiency(spec_of(grad_accum=4), 132) == tile_efficiency(spec_of(batch_size=1), 132)


@pytest.mark.parametrize(
    ("changes", "multiprocessors"),
    [
        ({}, None),
        ({"precision": "fp32"}, 132),
        ({"variant": "moe"}, 132),
        ({"workload": "resnet50", "variant": "tiny"}, 132),
        ({"workload": "mine.py:WORKLOAD", "variant": "tiny"}, 132),
    ],
)
def test_what_is_not_known_is_null(changes: dict[str, Any], multiprocessors: int | None) -> None:
    assert tile_efficiency(spec_of(**changes), multiprocessors) is None


def test_a_record_has_it_where_its_device_is_known() -> None:
    spec = spec_of()
    moment = "2026-11-26T00:00:00.000000+00:00"
    names = {"record_id": "a", "trial_id": "a.default.0", "point_id": "a", "session": "default", "repeat": 0}
    times = {"started_at": moment, "finished_at": moment, "wall_s": 1.0}
    record = TrialRecord(
        **names, **times, sweep="made", status="ok", caveats=[], label="gpt2", spec=spec.model_dump(), env={}
    )
    assert with_tiles(record, spec, None) is record
    assert with_tiles(record, spec, {"ranks": [{"num_multiprocessors": None}]}) is record
    found = with_tiles(record, spec, {"ranks": [{"num_multiprocessors": 132}]})
    assert found.figures.tile_efficiency == tile_efficiency(spec, 132) and 0 < found.figures.tile_efficiency < 1
