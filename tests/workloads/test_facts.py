"""What a plan is told of a workload is what the model says of itself; its samples have the references' sizes."""

import random
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from benchsuite import workloads
from benchsuite.storage import KINDS, load
from benchsuite.storage.create.convert import Wanted, _recipe
from benchsuite.storage.dataset.kinds import decode_one
from benchsuite.storage.dataset.sample import fresh
from benchsuite.storage.errors import DatasetError
from benchsuite.workloads import WORKLOADS
from benchsuite.workloads.facts import FACTS, DecoderShape, gpt_neox_shape, shape_problem
from benchsuite.workloads.spec import ModelSpec, Variant
from benchsuite.workloads.workload import Workload

PAIRS = [(name, variant) for name, facts in FACTS.items() for variant in facts.variants]
BUILT = {"nano", "nano_moe", "nano_gpt2", "nano_llama", "tiny", "pythia-70m", "pythia-160m", "gpt2", "moe"}
"""Decoders that are built in a moment."""
TOO_BIG = {*FACTS["gpt_neox"].variants} - BUILT
"""Built in more than 0.1 s, even without memory; their depth is that of the formula all the same."""


def loaded(name: str) -> Workload:
    workload: Workload = workloads.load(WORKLOADS, name)
    return workload


def test_every_workload_of_the_registry_is_told() -> None:
    assert sorted(FACTS) == sorted(WORKLOADS)
    assert [facts.name for facts in FACTS.values()] == list(FACTS)


@pytest.mark.parametrize("name", FACTS)
def test_what_is_told_is_what_the_workload_says(name: str) -> None:
    told, said = FACTS[name], loaded(name).facts
    assert (told.name, told.kind, told.variants) == (said.name, said.kind, said.variants)
    assert (told.has_targets, told.has_experts) == (said.has_targets, said.has_experts)
    assert (told.divisible is None, told.num_pieces is None) == (said.divisible is None, said.num_pieces is None)


@pytest.mark.parametrize(("name", "variant"), PAIRS)
def test_degrees_must_divide_what_the_workload_says(name: str, variant: str) -> None:
    told, said = FACTS[name], loaded(name).facts
    if told.divisible is not None and said.divisible is not None:
        assert told.divisible(told.variants[variant]) == said.divisible(said.variants[variant])


@pytest.mark.parametrize(("name", "variant"), [pair for pair in PAIRS if pair[1] not in TOO_BIG])
def test_parameters_are_those_of_the_model(name: str, variant: str) -> None:
    told, workload = FACTS[name], loaded(name)
    assert told.parameters(told.variants[variant]) == workload.count_parameters(workload.variants[variant]) > 0
    assert workload.facts.parameters is told.parameters


@pytest.mark.parametrize(("name", "variant"), [pair for pair in PAIRS if pair[1] not in TOO_BIG])
def test_pieces_are_those_of_the_model(name: str, variant: str) -> None:
    told, said = FACTS[name], loaded(name).facts
    if told.num_pieces is not None and said.num_pieces is not None:
        assert told.num_pieces(told.variants[variant]) == said.num_pieces(said.variants[variant])


@pytest.mark.parametrize(
    ("name", "variant", "pieces"),
    [
        ("resnet50", "reference", 18),  # 3 + 4 + 6 + 3 blocks, a stem and a head
        ("resnet50", "resnet101", 35),
        ("gpt_neox", "reference", 46),  # 44 layers, an embedding and a head
        ("gpt_neox", "nano_moe", 6),
    ],
)
def test_pieces_by_hand(name: str, variant: str, pieces: int) -> None:
    num_pieces = FACTS[name].num_pieces
    assert num_pieces is not None and num_pieces(FACTS[name].variants[variant]) == pieces


def test_every_workload_has_a_tiny_and_a_reference_variant() -> None:
    assert all({"tiny", "reference"} <= set(spec.variants) for spec in FACTS.values())


def test_kinds_are_registered_and_each_is_taken_by_a_workload() -> None:
    assert {spec.kind for spec in FACTS.values()} == {*KINDS}


@pytest.mark.parametrize(("workload", "variant"), PAIRS)
def test_variants_of_a_workload_name_the_same_parameters(workload: str, variant: str) -> None:
    spec = FACTS[workload]
    assert spec.variants[variant].sample.keys() == spec.variants["reference"].sample.keys()
    assert all(value > 0 for value in spec.variants[variant].sample.values())


def test_figures_are_those_of_the_references() -> None:
    """MLPerf Training and Storage, BERT's second phase, GPT-NeoX."""
    reference = {name: spec.variants["reference"].sample for name, spec in FACTS.items()}
    assert reference["resnet50"] == {"image_size": 224}
    assert reference["unet3d"] == {"patch_size": 128, "mean_bytes": 146_600_628, "stdev_bytes": 68_341_808}
    assert reference["bert"] == {"seq_len": 512, "max_predictions": 76, "vocab_size": 30522}
    assert reference["gpt_neox"] == {"seq_len": 2048, "vocab_size": 50432}


@pytest.mark.parametrize("workload", FACTS)
def test_a_tiny_sample_can_be_made_and_decoded(workload: str) -> None:
    spec = FACTS[workload]
    params = spec.variants["tiny"].sample
    kind = load(KINDS, spec.kind)
    make, size = _recipe(Wanted(workload, "tiny", "files", spec.kind, params), 1, 0, "jpeg")
    sample = make(0, fresh)
    decoded = decode_one(kind, sample, params, random.Random(0))
    assert {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in decoded.items()} == kind.tensors(params)
    assert 0.3 < sample.stored_bytes / size < 3


def test_a_vocabulary_without_words_is_refused() -> None:
    params = FACTS["bert"].variants["nano"].sample
    with pytest.raises(DatasetError, match="vocab_size 128: ids of generated words begin at 256"):
        _recipe(Wanted("bert", "nano", "files", "mlm", params), 1, 0, "jpeg")[0](0, fresh)


LLAMA, BERT = FACTS["gpt_neox"].variants["llama3-8b"], FACTS["bert"].variants["reference"]


def test_sizes_replace_those_of_a_variant_and_defaults_follow() -> None:
    wide = FACTS["gpt_neox"].variants["gpt2"].resized({"hidden_size": 1536, "vocab_size": 50304})
    assert wide == DecoderShape.of(wide).variant
    shape = DecoderShape.of(wide)
    assert (shape.inner, shape.kv_heads, shape.head_dim, shape.vocab_size, shape.num_layers) == (
        6144,
        12,
        128,
        50304,
        12,
    )
    assert DecoderShape.of(LLAMA.resized({"hidden_size": 8192})).inner == 14336, "LLaMA has a width of its own"


def test_masked_tokens_stay_in_proportion_unless_they_are_given() -> None:
    assert BERT.resized({"seq_len": 128}).sample == {"seq_len": 128, "max_predictions": 19, "vocab_size": 30522}
    assert BERT.resized({"seq_len": 128, "max_predictions": 20}).sample["max_predictions"] == 20
    assert BERT.resized({"seq_len": 512}) == BERT


def test_a_variant_has_the_sizes_of_its_model_and_samples() -> None:
    bert = ["hidden_size", "num_layers", "num_heads", "ffn_size", "vocab_size", "seq_len", "max_predictions"]
    decoder = [name for name in ModelSpec.model_fields if name != "max_predictions"]
    sizes = {name: facts.variants["reference"].sizes for name, facts in FACTS.items()}
    assert sizes == {"bert": bert, "gpt_neox": decoder, "resnet50": [], "unet3d": []}


@pytest.mark.parametrize(
    ("variant", "sizes", "reason"),
    [
        (LLAMA, {"hidden_size": 4100}, "hidden_size 4100 is not a multiple of num_heads 32"),
        (LLAMA, {"num_heads": 4, "num_kv_heads": 8}, "num_heads 4 is not a multiple of num_kv_heads 8"),
        (
            LLAMA,
            {"hidden_size": 96},
            "hidden_size 96 / num_heads 32 = 3, of which 1 is turned by position: 3 dimensions",
        ),
        (LLAMA, {"num_experts": 8, "top_k": 2}, "num_experts 8 in a model with gated MLPs"),
        (FACTS["gpt_neox"].variants["tiny"], {"num_experts": 8}, "top_k 0 of num_experts 8"),
        (FACTS["gpt_neox"].variants["moe"], {"num_experts": 1}, "top_k 2 of num_experts 1"),
        (BERT, {"num_heads": 15}, "hidden_size 1024 is not a multiple of num_heads 15"),
        (BERT, {"max_predictions": 512}, "max_predictions 512 > seq_len 512 - 3 special tokens"),
    ],
)
def test_shapes_that_no_model_has(variant: Variant, sizes: dict[str, int], reason: str) -> None:
    assert str(shape_problem(variant.resized(sizes))).startswith(reason)


@pytest.mark.parametrize(("workload", "variant"), PAIRS)
def test_every_variant_is_a_shape(workload: str, variant: str) -> None:
    assert shape_problem(FACTS[workload].variants[variant]) is None


def test_other_workloads_say_it_themselves() -> None:
    """A third party's constant: its facts follow from what it can do, not from its name."""
    neox = loaded("gpt_neox")
    shallow = {"mine": gpt_neox_shape(64, 3, 4, vocab_size=32, seq_len=8)}
    mine = replace(neox, name="mine", variants=shallow).facts
    assert mine.num_pieces is not None and mine.divisible is not None
    assert (mine.name, mine.num_pieces(shallow["mine"]), mine.divisible(shallow["mine"])["num_heads"]) == ("mine", 5, 4)
    none: dict[str, Any] = dict.fromkeys(("pipeline", "tensor_parallel", "experts"))
    bare = replace(neox, **none).facts
    assert (bare.num_pieces, bare.divisible, bare.has_experts, bare.has_targets) == (None, None, False, False)
    assert replace(neox, targets=lambda batch: {}).facts.has_targets


def test_facts_and_reasons_need_no_torch() -> None:
    code = "import sys; from benchsuite.workloads import facts, flops, validity; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
