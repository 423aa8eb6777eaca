"""What devices can do at most: dense peak of matrix products, by device and precision.

Operations per second of dense matrix products (one multiply-add is two), from the makers' data sheets, without the
factor of two for structured sparsity. A device that is not here has no peak, and its trials no utilization of it.
"""

import re
from collections.abc import Mapping

from benchsuite.workloads.spec import Precision

PEAKS: Mapping[str, Mapping[str, float]] = {
    "B200": {"fp32": 75e12, "tf32": 1.125e15, "half": 2.25e15},
    "GH200": {"fp32": 66.9e12, "tf32": 494.7e12, "half": 989.4e12},
    "H200 NVL": {"fp32": 60e12, "tf32": 417.5e12, "half": 835.5e12},
    "H200": {"fp32": 66.9e12, "tf32": 494.7e12, "half": 989.4e12},
    "H100 NVL": {"fp32": 60e12, "tf32": 417.5e12, "half": 835.5e12},
    "H100 PCIe": {"fp32": 51.2e12, "tf32": 378e12, "half": 756e12},
    "H100": {"fp32": 66.9e12, "tf32": 494.7e12, "half": 989.4e12},
    "L40S": {"fp32": 91.6e12, "tf32": 183e12, "half": 362.05e12},
    "A100": {"fp32": 19.5e12, "tf32": 156e12, "half": 312e12},
    "A30": {"fp32": 10.3e12, "tf32": 82e12, "half": 165e12},
    "A10": {"fp32": 31.2e12, "tf32": 62.5e12, "half": 125e12},
    "V100": {"fp32": 15.7e12, "half": 125e12},
    "T4": {"fp32": 8.1e12, "half": 65e12},
}
"""Peak FLOP/s by words of the device's name, longer ones first; `half` is float16 and bfloat16."""
KIND: Mapping[Precision, str] = {"fp32": "fp32", "tf32": "tf32", "bf16": "half", "fp16": "half", "pure_bf16": "half"}


def peak_flops(device_name: str | None, precision: Precision) -> float | None:
    """Dense peak of a device at a precision, operations per second; None where none is known.

    V100 has no bfloat16 and no TF32. A part of a device (MIG) has a part of its peak, which its name does not tell.
    """
    if device_name and " MIG " in device_name:
        return None
    for name, peaks in PEAKS.items():
        if device_name and re.search(rf"\b{name}\b", device_name):
            known = peaks.get(KIND[precision])
            return None if name in ("V100", "T4") and "bf16" in precision else known
    return None
