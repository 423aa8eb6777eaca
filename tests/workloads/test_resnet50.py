"""ResNet-50 against transformers' implementation, and against the published counts."""

import copy
import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from benchsuite.storage.create.photos import image_sample
from benchsuite.storage.dataset.kinds import IMAGE, decode_one, sample_rng
from benchsuite.workloads.resnet50 import WORKLOAD, ResNet
from benchsuite.workloads.spec import Variant

CPU = torch.device("cpu")
TINY, REFERENCE = WORKLOAD.variants["tiny"], WORKLOAD.variants["reference"]


FAMILY = {
    "resnet18": ((2, 2, 2, 2), 1, 122, 11_689_512),
    "reference": ((3, 4, 6, 3), 4, 320, 25_557_032),
    "resnet101": ((3, 4, 23, 3), 4, 626, 44_549_160),
}
"""Depths, expansion, entries of the state dict and parameters of torchvision's published weights."""


def on_meta(variant: Variant) -> nn.Module:
    with torch.device("meta"):
        return WORKLOAD.build(variant)


def convolution_and_norm(names: tuple[str, str], shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    norm = {f"{names[1]}.{leaf}": shape[:1] for leaf in ("weight", "bias", "running_mean", "running_var")}
    return {f"{names[0]}.weight": shape, **norm, f"{names[1]}.num_batches_tracked": ()}


def published(depths: tuple[int, ...], expansion: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of torchvision's weights, in its order."""
    shapes, channels = convolution_and_norm(("conv1", "bn1"), (64, 3, 7, 7)), 64
    for stage, depth in enumerate(depths):
        width = 64 * 2**stage
        out = width * expansion
        for block in range(depth):
            own = [(width, channels, 3, 3), (width, width, 3, 3)]
            if expansion == 4:
                own = [(width, channels, 1, 1), (width, width, 3, 3), (out, width, 1, 1)]
            name = f"layer{stage + 1}.{block}"
            for number, shape in enumerate(own, 1):
                shapes |= convolution_and_norm((f"{name}.conv{number}", f"{name}.bn{number}"), shape)
            if block == 0 and channels != out:
                names = (f"{name}.downsample.0", f"{name}.downsample.1")
                shapes |= convolution_and_norm(names, (out, channels, 1, 1))
            channels = out
    return shapes | {"fc.weight": (1000, channels), "fc.bias": (1000,)}


@pytest.mark.parametrize("name", FAMILY)
def test_names_and_shapes_are_those_of_published_weights(name: str) -> None:
    depths, expansion, num_entries, num_parameters = FAMILY[name]
    model = on_meta(WORKLOAD.variants[name])
    found = [(key, tuple(value.shape)) for key, value in model.state_dict().items()]
    assert found == list(published(depths, expansion).items())
    assert len(found) == num_entries
    assert sum(parameter.numel() for parameter in model.parameters()) == num_parameters


@pytest.mark.parametrize("name", ["nano", "tiny", "resnet18"])
def test_every_parameter_takes_part(name: str) -> None:
    torch.manual_seed(0)
    model = WORKLOAD.build(WORKLOAD.variants[name])
    WORKLOAD.loss(model, WORKLOAD.synthetic(WORKLOAD.variants[name], 2, CPU)).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, key


def theirs_by_name(model: nn.Module, layers: list[int]) -> dict[str, str]:
    """Names of our parameters and buffers -> those in transformers' ResNetForImageClassification."""
    pairs = {
        "conv1": "resnet.embedder.embedder.convolution",
        "bn1": "resnet.embedder.embedder.normalization",
        "fc": "classifier.1",
    }
    for stage, depth in enumerate(layers):
        for block in range(depth):
            ours, theirs = f"layer{stage + 1}.{block}", f"resnet.encoder.stages.{stage}.layers.{block}"
            for number in range(3):  # of which basic blocks have two
                pairs[f"{ours}.conv{number + 1}"] = f"{theirs}.layer.{number}.convolution"
                pairs[f"{ours}.bn{number + 1}"] = f"{theirs}.layer.{number}.normalization"
            pairs[f"{ours}.downsample.0"] = f"{theirs}.shortcut.convolution"
            pairs[f"{ours}.downsample.1"] = f"{theirs}.shortcut.normalization"
    split = {name: name.rpartition(".") for name in model.state_dict()}
    return {name: f"{pairs[module]}.{leaf}" for name, (module, _, leaf) in split.items()}


@pytest.fixture(params=["nano", "tiny", "resnet18", "resnet101", "reference"])
def twins(request: pytest.FixtureRequest) -> Iterator[tuple[nn.Module, nn.Module, dict[str, str], Variant]]:
    """Our model and transformers', with the same weights and the same, not trivial, running statistics."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")
    variant = WORKLOAD.variants[request.param]
    if request.param == "resnet101":
        variant = replace(variant, model={**variant.model, "width": 16})
    width, bottleneck = variant.model["width"], variant.model["bottleneck"]
    layers = [depth for depth in variant.model["layers"] if depth]
    torch.manual_seed(0)
    ours = WORKLOAD.build(variant)
    for module in ours.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.2)
            module.running_var.uniform_(0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1)
            nn.init.normal_(module.bias, 0, 0.1)
    config = transformers.ResNetConfig(
        num_channels=3,
        embedding_size=width,
        hidden_sizes=[width * (4 if bottleneck else 1) << stage for stage in range(len(layers))],
        depths=layers,
        layer_type="bottleneck" if bottleneck else "basic",
        hidden_act="relu",
        downsample_in_first_stage=False,
        downsample_in_bottleneck=False,
        num_labels=1000,
    )
    theirs = transformers.ResNetForImageClassification(config)
    names = theirs_by_name(ours, layers)
    theirs.load_state_dict({names[name]: value.clone() for name, value in ours.state_dict().items()}, strict=True)
    yield ours, theirs, names, variant


def apart(one: Tensor, other: Tensor) -> float:
    """Relative distance of two tensors."""
    return float((one - other).norm() / other.norm().clamp(min=1e-12))


def test_logits_are_those_of_transformers(twins: tuple[nn.Module, nn.Module, dict[str, str], Variant]) -> None:
    ours, theirs, _, _ = twins
    image = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        logits = ours.eval()(image)
        expected = theirs.eval()(image).logits
    assert logits.shape == (2, 1000)
    assert expected.std() > 0.01
    assert apart(logits, expected) < 1e-5


def test_gradients_and_statistics_are_those_of_transformers(
    twins: tuple[nn.Module, nn.Module, dict[str, str], Variant],
) -> None:
    ours, theirs, names, variant = twins
    batch = {**WORKLOAD.synthetic(variant, 4, CPU), "image": torch.randn(4, 3, 64, 64)}
    loss = WORKLOAD.loss(ours.train(), batch)
    expected = theirs.train()(batch["image"], labels=batch["label"]).loss
    loss.backward()
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        assert apart(parameter.grad, gradients[names[name]]) < 1e-4, name
    buffers = dict(theirs.named_buffers())
    for name, buffer in ours.named_buffers():
        assert apart(buffer.double(), buffers[names[name]].double()) < 1e-5, name


def test_stride_sits_in_the_3x3_convolution() -> None:
    strided = [
        name
        for name, module in on_meta(REFERENCE).named_modules()
        if isinstance(module, nn.Conv2d) and module.stride == (2, 2)
    ]
    blocks = [f"layer{stage}.0.{part}" for stage in (2, 3, 4) for part in ("conv2", "downsample.0")]
    assert strided == ["conv1", *blocks]


def test_initial_weights_have_the_spread_of_he_et_al() -> None:
    torch.manual_seed(0)
    model = WORKLOAD.build(REFERENCE)
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * math.prod(module.kernel_size)
            assert module.weight.std().item() == pytest.approx(math.sqrt(2 / fan_out), rel=0.05), name
        if isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all() and (module.bias == 0).all(), name


def test_the_same_seed_builds_the_same_model() -> None:
    states = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        states.append(WORKLOAD.build(TINY).state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not torch.equal(states[0]["conv1.weight"], states[2]["conv1.weight"])


def test_tiny_learns_a_batch() -> None:
    torch.manual_seed(0)
    model = WORKLOAD.build(TINY)
    batch = WORKLOAD.synthetic(TINY, 32, CPU)
    optimizer = WORKLOAD.optimizer(model.parameters())
    losses = []
    for _ in range(10):
        loss = WORKLOAD.loss(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(1000), rel=0.15)
    assert losses[-1] < 0.7 * losses[0]


def test_loss_is_the_mean_cross_entropy() -> None:
    torch.manual_seed(0)
    model = ResNet((1, 1, 1, 1), 8, 10).eval()
    batch = {"image": torch.randn(3, 3, 32, 32), "label": torch.tensor([1, 9, 4])}
    with torch.no_grad():
        probability = model(batch["image"]).double().softmax(1)
        expected = -sum(math.log(probability[row, label]) for row, label in enumerate([1, 9, 4])) / 3
        assert WORKLOAD.loss(model, batch).item() == pytest.approx(expected, rel=1e-5)


def test_optimizer_is_that_of_the_reference_but_for_its_rate() -> None:
    (group,) = WORKLOAD.optimizer([nn.Parameter(torch.zeros(1))]).param_groups
    assert (group["lr"], group["momentum"], group["weight_decay"], group["nesterov"]) == (0.01, 0.9, 1e-4, False)
    assert WORKLOAD.learning_rate == 0.01


@pytest.mark.parametrize("name", ["nano", "tiny", "resnet18"])
def test_stages_of_a_pipeline_are_the_model(name: str) -> None:
    torch.manual_seed(0)
    model, batch = WORKLOAD.build(WORKLOAD.variants[name]), WORKLOAD.synthetic(WORKLOAD.variants[name], 2, CPU)
    twin = copy.deepcopy(model)
    value = None
    for module, call in WORKLOAD.pipeline.stages(twin):
        value = call(module, value, batch)
    expected = WORKLOAD.loss(model, batch)
    found = WORKLOAD.pipeline.criterion(value, batch)
    found.backward()
    expected.backward()
    assert torch.equal(found, expected)
    for (key, one), (_, other) in zip(twin.named_parameters(), model.named_parameters(), strict=True):
        assert torch.equal(one.grad, other.grad), key


@pytest.mark.parametrize(("name", "num_blocks"), [("nano", 6), ("tiny", 16), ("resnet18", 8), ("resnet101", 33)])
def test_stages_are_stem_blocks_and_head(name: str, num_blocks: int) -> None:
    model = on_meta(WORKLOAD.variants[name])
    (stem, _), *middle, (head, _) = WORKLOAD.pipeline.stages(model)
    units = WORKLOAD.blocks(model)
    assert len(units) == num_blocks
    assert all(piece is unit for (piece, _), unit in zip(middle, units, strict=True))
    places = {id(module): key for key, module in model.named_modules()}
    names = [f"{places[id(unit)]}.{key}" for unit in units for key in unit.state_dict()]
    assert [*stem.state_dict(), *names, *head.state_dict()] == list(model.state_dict())


@pytest.mark.parametrize("variant", WORKLOAD.variants.values(), ids=WORKLOAD.variants)
def test_synthetic_batches_look_like_the_loaders(variant: Variant) -> None:
    torch.manual_seed(0)
    sample = image_sample(0, 0, variant.num_classes)
    decoded = decode_one(IMAGE, sample, variant.sample, sample_rng(0, 0, sample.key))
    batch = WORKLOAD.synthetic(variant, 6, CPU)
    assert batch.keys() == decoded.keys()
    for name, value in batch.items():
        assert (value.shape, value.dtype) == ((6, *decoded[name].shape), decoded[name].dtype)
    assert batch["image"].mean().abs() < 0.05 and 0.95 < batch["image"].std() < 1.05
    assert batch["label"].min() >= 0 and batch["label"].max() < variant.num_classes
    assert batch["label"].unique().numel() > 1
