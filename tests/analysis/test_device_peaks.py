"""Peaks of devices by the names that drivers give them."""

import re

import pytest

from benchsuite.analysis.device_peaks import known_peaks, memory_bytes_per_s, peak_flops
from tests.helpers.configured import files

__all__ = ["files"]


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
        ("NVIDIA A10G", "bf16", 70),
        ("Tesla V100-PCIE-32GB", "fp16", 112),
        ("NVIDIA A100-SXM-64GB", "bf16", 358),
        ("Tesla P40", "fp32", 12),
        ("Tesla P40", "fp16", None),
        ("NVIDIA L40", "bf16", 181.05),
        ("NVIDIA L40S", "bf16", 362.05),
        ("NVIDIA L4", "tf32", 60),
        ("NVIDIA H20", "bf16", 148),
        ("NVIDIA B200", "bf16", 2250),
        ("NVIDIA GH200 480GB", "pure_bf16", 989.4),
        ("NVIDIA H100 80GB HBM3", "fp8", 1978.9),
        ("NVIDIA A100-SXM4-80GB", "fp8", None),
        ("NVIDIA B200", "fp8", 4500),
        ("NVIDIA GB200", "fp8", 5000),
        ("NVIDIA GB200", "bf16", 2500),
        ("NVIDIA B300 SXM6 AC", "fp8", 4500),
        ("NVIDIA B300 SXM6 AC", "bf16", 2250),
        ("NVIDIA GH200 480GB", "fp8", 1978.9),
        ("NVIDIA H200 NVL", "fp8", 1670.5),
        ("NVIDIA H100 NVL", "fp8", 1670.5),
        ("NVIDIA H100 PCIe", "fp8", 1513),
        ("NVIDIA L40S", "fp8", 733),
        ("NVIDIA L4", "fp8", 242.5),
        ("Some Future Card", "bf16", None),
        (None, "bf16", None),
    ],
)
def test_dense_peaks(name: str | None, precision: str, tflops: float | None) -> None:
    found = peak_flops(name, precision)  # type: ignore[arg-type]
    assert found == (None if tflops is None else pytest.approx(tflops * 1e12))


def test_every_card_says_where_its_peaks_are_from() -> None:
    assert all(card["source"] for card in known_peaks().values())


def test_a_card_whose_tensor_cores_know_float8_says_how_fast() -> None:
    """Twice half precision, within the rounding of data sheets."""
    later = {name: card for name, card in known_peaks().items() if re.search(r"[HB]\d00|L4|H20\b", name)}
    assert {"B200", "B300", "GB200", "GH200", "H100 PCIe", "L40S"} <= later.keys()
    for name, card in later.items():
        assert card["fp8"] == pytest.approx(2 * card["half"], rel=0.02), name


def test_a_part_of_a_device_has_no_known_peak() -> None:
    assert peak_flops("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16") is None


@pytest.mark.parametrize(
    ("name", "gb_per_s"),
    [
        ("NVIDIA A100-SXM4-80GB", 2039),
        ("NVIDIA A100 80GB PCIe", 1935),
        ("NVIDIA A100-SXM4-40GB", 1555),
        ("NVIDIA A100-PCIE-40GB", 1555),
        ("NVIDIA A100-SXM-64GB", 1640),
        ("NVIDIA H100 80GB HBM3", 3350),
        ("NVIDIA H100 PCIe", 2000),
        ("NVIDIA H200", 4800),
        ("Tesla P100-PCIE-12GB", 549),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("Some Future Card", None),
        (None, None),
    ],
)
def test_memory(name: str | None, gb_per_s: float | None) -> None:
    """As the data sheets state it; of a card that is sold with several memories, the one of its name."""
    assert memory_bytes_per_s(name) == (None if gb_per_s is None else gb_per_s * 1e9)
