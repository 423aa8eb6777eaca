"""The verdict: what holds a trial back, from its own figures, with the evidence in one sentence of numbers."""

from collections.abc import Mapping
from typing import Any

HELD_BACK_AU = 0.95
"""From this utilization on the input keeps up: AU tops out near it on CPU machines."""
MAIN_SHARE = 0.65
"""A cause with this share of the readers' time is the cause; between the two it is mixed."""
COMMUNICATION_SHARE = 0.20
"""Exposed exchange, or a pipeline's bubble, above this share of the step is what holds the job back."""


def verdict(figures: Mapping[str, Any]) -> tuple[str, str] | None:
    """(bottleneck, evidence) of a trial; None where it has no steps.

    Input first: what separates a step from its ceiling is the input pipeline. Where the model waits for it, readers
    that mostly read are held by storage, readers that mostly decode by the client; where it does not wait, readers
    take cores from the computation, which is the client too. Otherwise exposed communication, or the computation.
    """
    au, step = figures.get("au"), figures.get("step_s_mean")
    if not step:
        return None
    if au is not None and au < HELD_BACK_AU:
        return _input_verdict(figures, au)
    source = "input in memory" if au is None else f"AU {au:.2f}: input keeps up"
    exchange = (figures.get("exchange_min_s") or 0.0) / step
    if exchange > COMMUNICATION_SHARE:
        return "communication", f"{source}; exposed exchange is {exchange:.0%} of the step, stragglers aside"
    bubble = (figures.get("bubble_s") or 0.0) / step
    if bubble > COMMUNICATION_SHARE:
        return "communication", f"{source}; waiting for other stages of the pipeline is {bubble:.0%} of the step"
    return "compute", f"{source}; load is {figures['load_s'] / step:.0%} of the step, exposed exchange {exchange:.0%}"


def _input_verdict(figures: Mapping[str, Any], au: float) -> tuple[str, str]:
    read, decode = figures.get("read_s_per_sample") or 0.0, figures.get("decode_s_per_sample") or 0.0
    stall, contention = figures["input_stall_fraction"], figures.get("cpu_contention_fraction") or 0.0
    evidence = (
        f"AU {au:.2f}; {stall:.0%} of the step waits for input, {contention:.0%} for a core; "
        f"a reader reads {read * 1e3:.2f} ms and decodes {decode * 1e3:.2f} ms a sample"
    )
    if stall < (1 - au) / 2:
        return "client", f"{evidence}; readers take cores from the computation"
    share = read / (read + decode) if read + decode else 0.0
    cached = figures.get("cache_hit_fraction") or 0.0
    if cached > MAIN_SHARE:
        return "client", f"{evidence}; {cached:.0%} of the bytes came from memory"
    if share >= MAIN_SHARE:
        return "storage", evidence
    return ("client", evidence) if share <= 1 - MAIN_SHARE else ("mixed", evidence)
