"""ResNet-50 against transformers' implementation, and against the published counts."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from storage.generate import image_sample
from storage.kinds import IMAGE, decode_one, sample_rng
from workloads.resnet50 import WORKLOAD, ResNet
from workloads.spec import Variant

CPU = torch.device("cpu")
TINY, REFERENCE = WORKLOAD.variants["tiny"], WORKLOAD.variants["reference"]


def test_reference_has_the_published_number_of_parameters() -> None:
    with torch.device("meta"):
        model = WORKLOAD.build(REFERENCE)
    assert sum(parameter.numel() for parameter in model.parameters()) == 25_557_032


def test_reference_costs_the_published_flops() -> None:
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model = WORKLOAD.build(REFERENCE)
        model(torch.empty(1, 3, 224, 224))
    assert counter.get_total_flops() == pytest.approx(8.18e9, rel=0.01)


def test_reference_backward_costs_the_published_flops() -> None:
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model = WORKLOAD.build(REFERENCE)
        model(torch.empty(1, 3, 224, 224)).sum().backward()
    assert counter.get_total_flops() == pytest.approx(24.30e9, rel=0.01)


def test_every_parameter_takes_part() -> None:
    torch.manual_seed(0)
    model = WORKLOAD.build(TINY)
    WORKLOAD.loss(model, WORKLOAD.synthetic(TINY, 4, CPU)).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def theirs_by_name(model: nn.Module, layers: tuple[int, ...]) -> dict[str, str]:
    """Names of our parameters and buffers -> those in transformers' ResNetForImageClassification."""
    pairs = {
        "conv1": "resnet.embedder.embedder.convolution",
        "bn1": "resnet.embedder.embedder.normalization",
        "fc": "classifier.1",
    }
    for stage, depth in enumerate(layers):
        for block in range(depth):
            ours, theirs = f"layer{stage + 1}.{block}", f"resnet.encoder.stages.{stage}.layers.{block}"
            for number in range(3):
                pairs[f"{ours}.conv{number + 1}"] = f"{theirs}.layer.{number}.convolution"
                pairs[f"{ours}.bn{number + 1}"] = f"{theirs}.layer.{number}.normalization"
            pairs[f"{ours}.downsample.0"] = f"{theirs}.shortcut.convolution"
            pairs[f"{ours}.downsample.1"] = f"{theirs}.shortcut.normalization"
    split = {name: name.rpartition(".") for name in model.state_dict()}
    return {name: f"{pairs[module]}.{leaf}" for name, (module, _, leaf) in split.items()}


@pytest.fixture(params=["tiny", "reference"])
def twins(request: pytest.FixtureRequest) -> Iterator[tuple[nn.Module, nn.Module, dict[str, str], Variant]]:
    """Our model and transformers', with the same weights and the same, not trivial, running statistics."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")
    variant = WORKLOAD.variants[request.param]
    width, layers = variant.model["width"], variant.model["layers"]
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
        hidden_sizes=[width * 4 << stage for stage in range(4)],
        depths=list(layers),
        layer_type="bottleneck",
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
    with torch.device("meta"):
        model = WORKLOAD.build(REFERENCE)
    strided = [
        name for name, module in model.named_modules() if isinstance(module, nn.Conv2d) and module.stride == (2, 2)
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


@pytest.mark.parametrize("variant", [TINY, REFERENCE], ids=["tiny", "reference"])
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
