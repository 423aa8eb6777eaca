"""What samples each workload takes: the references' figures, and that tiny ones can be made and decoded."""

import random

import pytest

from benchsuite.storage import KINDS, load
from benchsuite.storage.create.convert import _recipe
from benchsuite.storage.dataset.kinds import decode_one
from benchsuite.storage.dataset.sample import fresh
from benchsuite.workloads.samples import SAMPLES

PAIRS = [(workload, variant) for workload, spec in SAMPLES.items() for variant in spec.variants]


def test_every_workload_has_a_tiny_and_a_reference_variant() -> None:
    assert all({"tiny", "reference"} <= set(spec.variants) for spec in SAMPLES.values())


def test_kinds_are_registered_and_each_is_taken_by_one_workload() -> None:
    assert sorted(spec.kind for spec in SAMPLES.values()) == sorted(KINDS)


@pytest.mark.parametrize(("workload", "variant"), PAIRS)
def test_variants_of_a_workload_name_the_same_parameters(workload: str, variant: str) -> None:
    spec = SAMPLES[workload]
    assert spec.variants[variant].keys() == spec.variants["reference"].keys()
    assert all(value > 0 for value in spec.variants[variant].values())


def test_figures_are_those_of_the_references() -> None:
    """MLPerf Training and Storage, BERT's second phase, GPT-NeoX."""
    reference = {name: spec.variants["reference"] for name, spec in SAMPLES.items()}
    assert reference["resnet50"] == {"image_size": 224}
    assert reference["unet3d"] == {"patch_size": 128, "mean_bytes": 146_600_628, "stdev_bytes": 68_341_808}
    assert reference["bert"] == {"seq_len": 512, "max_predictions": 76, "vocab_size": 30522}
    assert reference["gpt_neox"] == {"seq_len": 2048, "vocab_size": 50432}


@pytest.mark.parametrize("workload", SAMPLES)
def test_a_tiny_sample_can_be_made_and_decoded(workload: str) -> None:
    spec = SAMPLES[workload]
    params = spec.variants["tiny"]
    kind = load(KINDS, spec.kind)
    make, size = _recipe(spec.kind, 1, 0, params, "jpeg")
    sample = make(0, fresh)
    decoded = decode_one(kind, sample, params, random.Random(0))
    assert {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in decoded.items()} == kind.tensors(params)
    assert 0.3 < sample.stored_bytes / size < 3
