"""First weights of models that are built on the meta device, whole and by parts, and of those that cannot be.

Ranks of a layout stand alone here, in a group of which nobody else exists: nothing is sent to draw weights. That all
of them together hold the weights of one process, `test_modes` sees in every mode.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchsuite import workloads
from benchsuite.workloads import facts, gpt_neox
from benchsuite.workloads.layout import Layout, layout_of
from benchsuite.workloads.parallel import first_weights, modes
from benchsuite.workloads.parallel.apply import prepare
from benchsuite.workloads.parallel.dry import _alone_among
from benchsuite.workloads.parallel.first_weights import NotWrittenDown, begun, built_on_meta, cuts_of
from benchsuite.workloads.spec import ComputeSpec, Parallelism, Variant
from benchsuite.workloads.workload import Workload

CPU, SEED = torch.device("cpu"), 3
EVERY = [(name, variant) for name, known in facts.FACTS.items() for variant in known.variants]
SMALL = [(name, variant) for name, variant in EVERY if variant.startswith(("nano", "tiny"))]
MODES: dict[str, Any] = {
    "ddp": "ddp",
    "zero1": "zero1",
    "fsdp": "fsdp",
    "hsdp": Parallelism(dp=4, dp_replicate=2, zero=3),
    "tp": "tp",
    "tp and fsdp": Parallelism(dp=2, tp=2, zero=3),
    "pp": "pp",
    "pp and fsdp": Parallelism(dp=2, pp=2, zero=3),
    "cp": "cp",
    "ep": "ep",
}


def loaded(name: str) -> Workload:
    workload: Workload = workloads.load(workloads.WORKLOADS, name)
    return workload


def whole(workload: Workload, variant: Variant) -> dict[str, Tensor]:
    """The weights and buffers that one process draws."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return workload.build(variant).state_dict()


def held_by(layout: Layout, rank: int, precision: str = "fp32") -> nn.Module:
    """What a rank holds of a decoder, of which others hold the rest."""
    workload = gpt_neox.WORKLOAD
    variant = workload.variants["nano_moe" if layout.ep > 1 else "nano"]
    compute = ComputeSpec.model_validate({"precision": precision, "optimizer": "sgd"})
    modes.expert_groups.cache_clear()  # groups do not last here
    with _alone_among(layout, rank):
        model, first = built_on_meta(workload, variant, SEED)
        prepare(workload, model, layout, compute, CPU, layout.dp * layout.microbatches, first)
    modes.expert_groups.cache_clear()
    return model


@pytest.mark.parametrize(("name", "variant"), SMALL)
def test_small_models_have_the_weights_that_one_process_draws(name: str, variant: str) -> None:
    workload = loaded(name)
    expected = whole(workload, workload.variants[variant])
    before = torch.random.get_rng_state()
    model, first = built_on_meta(workload, workload.variants[variant], SEED)
    assert first.is_exact and all(one.is_meta for one in model.state_dict().values())
    model.to_empty(device="cpu")
    first.fill(model, {})
    found = model.state_dict()
    assert list(found) == list(expected)
    assert [key for key, value in expected.items() if not torch.equal(found[key], value)] == []
    assert torch.equal(torch.random.get_rng_state(), before), "what is drawn next does not depend on it"


@pytest.mark.parametrize(("name", "variant"), EVERY)
def test_buffers_are_those_that_one_process_has(monkeypatch: pytest.MonkeyPatch, name: str, variant: str) -> None:
    """Of large models, too, whose weights are drawn by parts."""
    workload = loaded(name)
    model, first = built_on_meta(workload, workload.variants[variant], SEED)
    expected = dict(workload.build(workload.variants[variant]).named_buffers()) if [*model.buffers()] else {}
    monkeypatch.setattr(first_weights, "EXACT_PARAMETERS", 0)
    for module in model.modules():
        for key, buffer in module.named_buffers(recurse=False):
            setattr(module, key, torch.empty_like(buffer, device="cpu"))
    first.fill(model, {})
    found = dict(model.named_buffers())
    assert list(found) == list(expected)
    for key, value in expected.items():
        assert torch.equal(found[key], value) and found[key].dtype == value.dtype, key


class _Table(nn.Module):
    """Buffers that are worked out from nothing but their shape, and a weight that is clipped."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("positions", torch.arange(6, dtype=torch.float32), persistent=False)
        self.register_buffer("steps", torch.linspace(0, 1, 5))
        self.weight = nn.Parameter(torch.full((64, 4), 2.0))
        self.clipped = nn.Parameter(torch.empty(50, 20))
        with torch.no_grad():
            self.clipped.normal_(std=0.02).clamp_(-0.04, 0.04)


@pytest.mark.parametrize("largest", [first_weights.EXACT_PARAMETERS, 0])
def test_what_constructors_make_is_made_again(monkeypatch: pytest.MonkeyPatch, largest: int) -> None:
    monkeypatch.setattr(first_weights, "EXACT_PARAMETERS", largest)
    workload = replace(gpt_neox.WORKLOAD, build=lambda _variant: _Table())
    model, first = built_on_meta(workload, workload.variants["nano"], SEED)
    model.to_empty(device="cpu")
    first.fill(model, {})
    assert isinstance(model, _Table)
    torch.manual_seed(SEED)
    expected = _Table()
    assert torch.equal(model.get_buffer("positions"), expected.get_buffer("positions"))
    assert torch.equal(model.get_buffer("steps"), expected.get_buffer("steps"))
    assert torch.equal(model.weight, expected.weight)
    assert torch.equal(model.clipped, expected.clipped) == bool(largest)
    assert model.clipped.std().item() == pytest.approx(expected.clipped.std().item(), rel=0.1)
    assert model.clipped.abs().max() <= 0.04


@pytest.mark.parametrize("mode", MODES)
def test_each_rank_holds_its_part_of_those_weights(mode: str) -> None:
    layout = layout_of(MODES[mode], 4)
    expected = whole(gpt_neox.WORKLOAD, gpt_neox.WORKLOAD.variants["nano_moe" if layout.ep > 1 else "nano"])
    elements: dict[str, set[int]] = {}
    for rank in range(layout.world_size):
        for name, one in held_by(layout, rank).named_parameters():
            if one.is_meta:
                continue
            local = first_weights._local(one)
            cuts = cuts_of(one) or (((0, layout.ep, rank),) if ".experts." in name and layout.ep > 1 else ())
            assert torch.equal(local, first_weights._part(expected[name], cuts)), (name, cuts)
            numbers = torch.arange(expected[name].numel()).view_as(expected[name])
            elements.setdefault(name, set()).update(first_weights._part(numbers, cuts).flatten().tolist())
    assert {name: len(seen) for name, seen in elements.items()} == {
        name: value.numel() for name, value in expected.items()
    }, "every element is held by someone"


@pytest.mark.parametrize("mode", MODES)
def test_parts_of_large_models_differ_and_their_copies_do_not(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """Each is drawn by itself, of the distribution that the whole has."""
    monkeypatch.setattr(first_weights, "EXACT_PARAMETERS", 0)
    layout = layout_of(MODES[mode], 4)
    expected = whole(gpt_neox.WORKLOAD, gpt_neox.WORKLOAD.variants["nano_moe" if layout.ep > 1 else "nano"])
    parts: dict[str, dict[Any, Tensor]] = {}
    for rank in range(layout.world_size):
        for name, one in held_by(layout, rank).named_parameters():
            if one.is_meta or not first_weights._local(one).numel():
                continue
            local = first_weights._local(one).detach()
            cuts = cuts_of(one) or ((rank,) if ".experts." in name and layout.ep > 1 else ())
            assert torch.equal(parts.setdefault(name, {}).setdefault(cuts, local), local), "copies are equal"
    assert parts.keys() == expected.keys()
    for name, each in parts.items():
        spread = expected[name].std(correction=0)
        together = torch.cat([one.flatten() for one in each.values()])
        assert together.numel() >= expected[name].numel()
        torch.testing.assert_close(together.mean(), expected[name].mean(), rtol=0.1, atol=4 * float(spread) / 30)
        torch.testing.assert_close(together.std(correction=0), spread, rtol=0.15, atol=0)
        if spread:
            assert len({tuple(one.flatten()[:8].tolist()) for one in each.values()}) == len(each), "parts differ"


def test_weights_of_half_precision_are_rounded_after_they_are_drawn() -> None:
    expected = whole(gpt_neox.WORKLOAD, gpt_neox.WORKLOAD.variants["nano"])
    found = held_by(layout_of("none", 1), 0, precision="pure_bf16").state_dict()
    assert {key for key, value in expected.items() if not torch.equal(found[key], value.bfloat16())} == set()


def _tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    return model


def _copied() -> nn.Module:
    model = nn.Linear(4, 4)
    with torch.no_grad():
        model.weight.copy_(torch.eye(4))
    return model


def _partly_filled() -> nn.Module:
    model = nn.Embedding(4, 4)
    with torch.no_grad():
        model.weight[0].zero_()
    return model


def _multiplied() -> nn.Module:
    model = nn.Linear(4, 4)
    model.weight = nn.Parameter(torch.ones(4, 4) * 0.5)
    return model


def _orthogonal() -> nn.Module:
    model = nn.Linear(4, 4)
    nn.init.orthogonal_(model.weight)
    return model


def _shuffled() -> nn.Module:
    model = nn.Linear(4, 4)
    torch.randperm(4)
    return model


def _clipped() -> nn.Module:
    """On the meta device torch's initialiser would do nothing, in silence."""
    model = nn.Linear(4, 4)
    nn.init.trunc_normal_(model.weight)
    return model


def _unregistered() -> nn.Module:
    model = nn.Linear(4, 4)
    model.scale = torch.ones(1)
    return model


def _by_value() -> nn.Module:
    return nn.Linear(4, 4 if float(torch.rand(1)) < 2 else 5)


@pytest.mark.parametrize(
    "build", [_tied, _copied, _partly_filled, _multiplied, _orthogonal, _clipped, _shuffled, _unregistered, _by_value]
)
def test_what_cannot_be_done_again_on_parts_is_built_whole(
    build: Callable[[], nn.Module], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "WHOLE_PARAMETERS", -1)
    workload = replace(gpt_neox.WORKLOAD, name="mine", build=lambda _variant: build())
    variant = workload.variants["nano"]
    with pytest.raises(NotWrittenDown):
        built_on_meta(workload, variant, SEED)
    with torch.random.fork_rng(devices=[]):
        model, first = begun(workload, variant, SEED)
    expected = whole(workload, variant)
    assert first is None and all(torch.equal(expected[key], value) for key, value in model.state_dict().items())
    assert capsys.readouterr().err.startswith("workload mine: every rank builds the whole model in host memory: ")


def test_a_large_model_is_built_without_memory_unless_its_workload_says_that_it_cannot_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []

    def build(variant: Variant) -> nn.Module:
        seen.append(type(torch.empty(0)).__name__)
        return gpt_neox.build(variant)

    mine = replace(gpt_neox.WORKLOAD, build=build)
    variant = mine.variants["nano"]
    monkeypatch.setattr(facts, "WHOLE_PARAMETERS", mine.facts.parameters(variant) - 1)
    with torch.random.fork_rng(devices=[]):
        assert begun(mine, variant, SEED)[1] is not None
        assert begun(replace(mine, built_whole=True), variant, SEED)[1] is None
        monkeypatch.setattr(facts, "WHOLE_PARAMETERS", mine.facts.parameters(variant))
        assert begun(mine, variant, SEED)[1] is None
    assert seen == ["FakeTensor", "Tensor", "Tensor"]
