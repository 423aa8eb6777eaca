"""Peaks of devices by the names that drivers give them."""

import pytest

from benchsuite.analysis.device_peaks import PEAKS, peak_flops


@pytest.mark.parametrize(
    ("name", "precision", "tflops"),
    [
        ("NVIDIA H200", "bf16", 989.4),
        ("NVIDIA H100 80GB HBM3", "fp16", 989.4),
        ("NVIDIA H100 PCIe", "bf16", 756),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156),
        ("NVIDIA A100-SXM4-80GB", "fp32", 19.5),
        ("Tesla V100-SXM2-16GB", "fp16", 125),
        ("Tesla V100-SXM2-16GB", "bf16", None),
        ("Tesla V100-SXM2-16GB", "tf32", None),
        ("NVIDIA A10", "bf16", 125),
        ("NVIDIA A10G", "bf16", None),
        ("NVIDIA GH200 480GB", "pure_bf16", 989.4),
        ("Some Future Card", "bf16", None),
        (None, "bf16", None),
    ],
)
def test_dense_peaks(name: str | None, precision: str, tflops: float | None) -> None:
    found = peak_flops(name, precision)  # type: ignore[arg-type]
    assert found == (None if tflops is None else pytest.approx(tflops * 1e12))


def test_no_name_hides_a_longer_one() -> None:
    names = list(PEAKS)
    for number, name in enumerate(names):
        assert not any(later.startswith(f"{name} ") for later in names[number + 1 :]), name


def test_a_part_of_a_device_has_no_known_peak() -> None:
    assert peak_flops("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16") is None
