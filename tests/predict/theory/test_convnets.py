"""Convolution nets summed over layers, against published figures and the counted models."""

import pytest

from benchsuite.predict.theory import flops
from benchsuite.predict.theory.flops import RESNET_DEPTHS, Layer
from tests.predict.published_tables import all_rows

PUBLISHED = [
    ("ResNet-18", flops.resnet_layers(*RESNET_DEPTHS["resnet18"]), 11_689_512, 3.628, 10.648),
    ("ResNet-50 v1.5", flops.resnet_layers(), 25_557_032, 8.178, 24.299),
    ("ResNet-101", flops.resnet_layers(*RESNET_DEPTHS["resnet101"]), 44_549_160, 15.60, 46.57),
    ("VGG-16", flops.vgg16_layers(), 138_357_544, 30.941, 92.648),
    ("UNet3D 128^3", flops.unet3d_layers(), 31_190_243, 954.6, 2860.2),
]
"""Parameters, GFLOP a sample forward, and forward and backward: torch's counter on the models that are published."""


@pytest.mark.parametrize(("name", "layers", "params", "forward", "both"), PUBLISHED)
def test_published(name: str, layers: list[Layer], params: int, forward: float, both: float) -> None:
    assert flops.params(layers) == params
    assert flops.forward_flops(layers) / 1e9 == pytest.approx(forward, rel=2e-4)
    assert flops.training_flops(layers) / 1e9 == pytest.approx(both, rel=2e-4)


@pytest.mark.parametrize(("name", "params"), [("resnet34", 21_797_672), ("resnet152", 60_192_808)])
def test_depths_of_torchvision(name: str, params: int) -> None:
    assert flops.params(flops.resnet_layers(*RESNET_DEPTHS[name])) == params


def test_all_rows() -> None:
    ours = {name: layers for name, layers, *_ in PUBLISHED}
    rows = [row for row in all_rows("params_and_flops") if row["model"] in ours]
    for row in rows:
        found = row["fwd_GFLOP_per_sample"], row["fwd+bwd_GFLOP_per_sample"]
        test_published(row["model"], ours[row["model"]], row["params"], *found)
    assert len(rows) == 3


@pytest.mark.parametrize("variant", ["nano", "tiny", "resnet18", "reference"])
def test_resnet_is_what_the_real_model_counts(variant: str) -> None:
    from benchsuite.workloads import resnet50
    from benchsuite.workloads.flops import count

    shape = resnet50.WORKLOAD.variants[variant]
    counted = count(resnet50.WORKLOAD, shape)
    model = shape.model
    layers = flops.resnet_layers(
        model["layers"], model["bottleneck"], model["width"], shape.num_classes, shape.sample["image_size"]
    )
    assert flops.params(layers) == counted.parameters
    assert flops.forward_flops(layers) == counted.forward_flops
    assert flops.training_flops(layers) == counted.forward_flops + counted.backward_flops


@pytest.mark.parametrize("variant", ["nano", "tiny", "reference"])
def test_unet3d_is_what_the_real_model_counts(variant: str) -> None:
    from benchsuite.workloads import unet3d
    from benchsuite.workloads.flops import count

    shape = unet3d.WORKLOAD.variants[variant]
    counted = count(unet3d.WORKLOAD, shape)
    layers = flops.unet3d_layers(shape.model["filters"], shape.sample["patch_size"])
    assert flops.params(layers) == counted.parameters
    assert flops.forward_flops(layers) == counted.forward_flops
    assert flops.training_flops(layers) == counted.forward_flops + counted.backward_flops


def test_a_layer_by_hand() -> None:
    """3 x 3 kernels from 2 to 5 channels over 4 x 4 places with a bias."""
    layer = Layer(2, 5, 9, 16, 5)
    assert (layer.params, layer.forward_flops) == (2 * 5 * 9 + 5, 2 * 2 * 5 * 9 * 16)


def test_a_batch_costs_as_often() -> None:
    layers = flops.resnet_layers()
    assert (flops.training_flops(layers, [1, 256]) / flops.training_flops(layers)).tolist() == [1, 256]
    with pytest.raises(ValueError, match="batch_size 0 is not allowed"):
        flops.training_flops(layers, 0)
