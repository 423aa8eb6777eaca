"""What devices can do at most: dense peaks of matrix products and memory bandwidth, `device_peaks.yaml`'s and a site's.

A device that is in neither has no peak, and its trials no utilization of it.
"""

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from benchsuite.host.site import site_peaks
from benchsuite.workloads.spec import Precision

KIND: Mapping[Precision, str] = {
    "fp32": "fp32",
    "tf32": "tf32",
    "bf16": "bf16",
    "fp16": "half",
    "pure_bf16": "bf16",
    "fp8": "fp8",
}
Peaks = Mapping[str, Any]
"""TFLOP/s by `fp32`, `tf32`, `half`, `bf16`, `fp8`; and `memory_gb_per_s`, of some cards by more of the name."""


@cache
def known_peaks() -> dict[str, Peaks]:
    """Peaks by words of a device's name."""
    text = (files("benchsuite.analysis") / "device_peaks.yaml").read_text(encoding="utf-8")
    shipped = {card.pop("name"): card for card in yaml.safe_load(text)}
    return {**shipped, **site_peaks()}


def peak_flops(device_name: str | None, precision: Precision) -> float | None:
    """Dense peak of a device at a precision, operations per second; None where none is known.

    A part of a device (MIG) has a part of its peak, which its name does not tell.
    """
    peaks, kind = _of_device(device_name), KIND[precision]
    tflops = peaks.get("half") if kind == "bf16" and "bf16" not in peaks else peaks.get(kind)
    return None if tflops is None else float(round(tflops * 1e12))


def memory_bytes_per_s(device_name: str | None) -> float | None:
    """Stated bandwidth of a device's memory; None where none is known."""
    stated = _of_device(device_name).get("memory_gb_per_s")
    if isinstance(stated, Mapping):
        stated = next((rate for words, rate in stated.items() if words in str(device_name)), None)
    return None if stated is None else stated * 1e9


def _of_device(device_name: str | None) -> Peaks:
    """What is known of the device whose words fit best; of no device and of a part of one nothing."""
    if not device_name or " MIG " in device_name:
        return {}
    known = known_peaks()
    names = [name for name in known if re.search(rf"\b{re.escape(name)}\b", device_name)]
    return known[max(names, key=len)] if names else {}
