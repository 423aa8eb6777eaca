"""Columns of the table that `plan` prints, and what they are. Imports nothing, so that help can tell them."""

from collections.abc import Iterable, Mapping

COLUMNS: Mapping[str, str] = {
    "tp": "tensor-parallel ranks",
    "pp": "pipeline stages",
    "dp": "data-parallel replicas",
    "zero": "ZeRO stage, what replicas keep a share of only (1 optimizer, 2 gradients too, 3 weights too)",
    "mb": "samples a microbatch x microbatches a step",
    "v": "chunks a stage (interleaving)",
    "recompute": "which activations the backward pass computes again",
    "s/step": "seconds a step",
    "TFLOP/s": "of one device, without what is computed again",
    "MFU": "that over the device's peak",
    "memory GB": "of the fullest device, of what it has (> where activations are not known)",
    "bubble": "share of the step that stages wait for each other",
    "comm": "share of the step that goes to exchange which computation does not hide",
    "input": "share of the step that waits for input",
    "days": "the whole training",
    "device-h": "the same in hours of one device",
    "kWh": "energy of it, hosts included",
}
"""Headings, and what stands below them."""
INTERVAL = "[ ]: 90 % interval over the ranges of what is assumed (--format json lists them)"


def explained(headings: Iterable[str] = COLUMNS) -> str:
    """Headings with what they are, as one paragraph."""
    return "; ".join([*(f"{heading}: {COLUMNS[heading]}" for heading in headings), INTERVAL]) + "."
