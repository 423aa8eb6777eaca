"""Sizes of a model as axes of a sweep: which variant a point means, what is skipped and refused, which data fit."""

from pathlib import Path
from typing import Any

import pytest

from benchsuite.grid.expand import expand, load_sweep
from benchsuite.host.machine import Machine
from benchsuite.runner.single_trial import run_trial
from benchsuite.storage.create.convert import Wanted, generate_dataset
from benchsuite.workloads.facts import FACTS
from tests.helpers.grids import TWO_CORES, in_folder, labels, plan, reasons, refused

__all__ = ["in_folder"]
SWEEPS = Path(__file__).parents[2] / "benchsuite" / "sweeps"
GPT: dict[str, Any] = {"workload": "gpt_neox", "variant": "nano", "batch_size": 2, "data": {"source": "synthetic"}}


def sizes_of(found: Any) -> list[int]:
    variants = FACTS["gpt_neox"].variants
    return [point.spec.variant_in(variants).model["hidden_size"] for point in found.points]


def test_sizes_are_axes():
    found = plan(GPT, grid={"model.hidden_size": [None, 128, 192], "model.num_layers": [1]})
    assert labels(found)[1:] == ["hidden_size 128 num_layers 1", "hidden_size 192 num_layers 1"]
    assert sizes_of(found) == [64, 128, 192]
    assert len({point.point_id for point in found.points}) == 3


def test_a_shape_that_no_model_has_is_skipped_with_its_arithmetic():
    found = plan(GPT, grid={"model.hidden_size": [64, 100], "model.num_heads": [8, 5]})
    assert sizes_of(found) == [64]
    assert reasons(found) == [
        "hidden_size 64 is not a multiple of num_heads 5",
        "hidden_size 100 is not a multiple of num_heads 8",
        "hidden_size 100 / num_heads 5 = 20, of which 0.25 is turned by position: 5 dimensions are no pairs",
    ]


def test_degrees_must_divide_the_sizes_that_are_given():
    base = {**GPT, "variant": "nano_llama", "parallelism": {"tp": 4}}
    found = plan(base, grid={"model.num_kv_heads": [4, 2], "model.ffn_size": [192, 190]})
    assert len(found.points) == 1
    assert reasons(found) == [
        "ffn_size 190 is not a multiple of tp 4",
        "num_kv_heads 2 is not a multiple of tp 4",
        "num_kv_heads 2 is not a multiple of tp 4",
    ]


@pytest.mark.parametrize(
    ("base", "words"),
    [
        ({"workload": "resnet50", "model.hidden_size": 64}, "model.hidden_size: resnet50 tiny has no such size"),
        ({"workload": "bert", "model.num_kv_heads": 4}, "nearest: num_heads; allowed: hidden_size, num_layers"),
    ],
)
def test_a_size_that_a_workload_lacks_is_refused(base: dict[str, Any], words: str):
    line = refused(base={"variant": "tiny", "batch_size": 4, "data": {"source": "synthetic"}, **base})
    assert words in line


def test_tokens_of_another_window_are_skipped_and_a_smaller_vocabulary_is_read(tmp_path: Path):
    params = FACTS["gpt_neox"].variants["tiny"].sample
    generate_dataset(tmp_path / "tokens", Wanted("gpt_neox", "tiny", "tokens", "tokens", params), 64, seed=1)
    data = {"root": str(tmp_path), "format": "tokens", "cache": "warm", "num_workers": 0}
    base = {"workload": "gpt_neox", "variant": "tiny", "batch_size": 2, "data": data}
    found = plan(base, grid={"model.vocab_size": [None, 400, 640], "model.seq_len": [None, 64]})
    read = [(point.spec.model.vocab_size, point.spec.model.seq_len) for point in found.points]
    assert read == [(None, None), (640, None)]
    told = reasons(found)
    assert [reason.split(", ")[0].split("has ")[1] for reason in told] == [
        "seq_len 128",
        "a vocabulary of 512",
        "seq_len 128",
        "seq_len 128",
    ]
    assert told[0].endswith(
        "gpt_neox tiny takes 64; leave model.seq_len out, read a dataset of a variant with as many, or take "
        "data.source synthetic"
    )


def test_a_trial_trains_the_sizes_that_it_is_given():
    """Parameters by hand: embedding and head, and of one layer 12 h^2 + 13 h, and the last norm."""
    sizes = {"hidden_size": 48, "num_layers": 1, "num_heads": 2, "vocab_size": 200, "seq_len": 12}
    record = run_trial({**GPT, "model": sizes, "device": "cpu", "measure": {"steps": 2, "warmup_steps": 1}})
    assert record.status == "ok", record.reason
    assert record.figures.parameters == 2 * 200 * 48 + 12 * 48**2 + 13 * 48 + 2 * 48
    assert record.figures.tokens_per_s == pytest.approx(12 * (record.figures.samples_per_s or 0))
    assert record.spec["model"]["hidden_size"] == 48 and record.figures.tile_efficiency is None


def test_the_alignment_sweep_varies_the_vocabulary_and_the_width_of_gpt2():
    found = expand(load_sweep(SWEEPS / "alignment.yaml", []), TWO_CORES)
    whole = expand(
        load_sweep(SWEEPS / "alignment.yaml", ["model.num_layers=null", "model.seq_len=null", "precision=bf16"]),
        Machine(16, 1),
    )
    for each in (found, whole):
        assert not each.skipped and each.sweep.rank_by == "tflops"
        of = [point.spec.variant_in(FACTS["gpt_neox"].variants) for point in each.points]
        assert [(one.model["hidden_size"], one.sample["vocab_size"]) for one in of] == [
            (width, words) for width in (756, 768, 792) for words in (50257, 50304)
        ]
    assert whole.points[2].spec.variant_in(FACTS["gpt_neox"].variants) == FACTS["gpt_neox"].variants["gpt2"]
