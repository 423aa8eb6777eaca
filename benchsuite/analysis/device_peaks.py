"""What devices can do at most: dense peaks of matrix products, of `device_peaks.yaml` and a site's own.

A device that is in neither has no peak, and its trials no utilization of it.
"""

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

import yaml

from benchsuite.host.site import site_peaks
from benchsuite.workloads.spec import Precision

KIND: Mapping[Precision, str] = {"fp32": "fp32", "tf32": "tf32", "bf16": "bf16", "fp16": "half", "pure_bf16": "bf16"}
Peaks = Mapping[str, float | None]
"""TFLOP/s by `fp32`, `tf32`, `half` and `bf16`."""


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
    if not device_name or " MIG " in device_name:
        return None
    known = known_peaks()
    names = [name for name in known if re.search(rf"\b{re.escape(name)}\b", device_name)]
    if not names:
        return None
    peaks, kind = known[max(names, key=len)], KIND[precision]
    tflops = peaks.get("half") if kind == "bf16" and "bf16" not in peaks else peaks.get(kind)
    return None if tflops is None else float(round(tflops * 1e12))
