"""What a planner assumes where nothing is measured: constants with their ranges, by the generation of the device.

They stand with their sources in `assumptions.yaml`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from benchsuite.contract.yaml_file import parse_yaml
from benchsuite.predict.theory.arrays import Floats
from benchsuite.predict.theory.interval import Z_95

Number = float | Floats


@dataclass(frozen=True)
class Range:
    """A typical value, and the bounds that 9 of 10 systems are thought to lie between."""

    typical: float
    low: float
    high: float
    about: str = ""


@dataclass(frozen=True)
class Generation:
    """Ranges of devices of one generation, where published steps show that they differ, and those steps' sources."""

    devices: tuple[str, ...]
    """How the names of such devices begin."""
    ranges: dict[str, Range]
    sources: tuple[str, ...]


@dataclass(frozen=True)
class _File:
    ranges: dict[str, Range]
    sources: tuple[str, ...]
    generations: dict[str, Generation]


@dataclass(frozen=True)
class Assumptions:
    """A value of each range of `assumptions.yaml`: a number, or an array of draws that broadcasts."""

    matrix_efficiency: Number
    attention_efficiency: Number
    half_area: Number
    head_weight: Number
    memory_efficiency: Number
    memory_passes: Number
    conv_efficiency: Number
    fp8_efficiency: Number
    layer_launch_s: Number
    link_efficiency: Number
    link_growth: Number
    network_efficiency: Number
    link_latency_s: Number
    network_latency_s: Number
    storage_efficiency: Number
    data_overlap: Number
    pipeline_overlap: Number
    optimizer_bytes: Number
    jitter: Number
    unexplained: Number
    power_load: Number
    host_power: Number


@cache
def _file() -> _File:
    text = (files("benchsuite.predict.layout") / "assumptions.yaml").read_text(encoding="utf-8")
    return TypeAdapter(_File).validate_python(parse_yaml(text, "assumptions"))


def generation_of(device: str) -> str | None:
    """The generation that a device's name begins with, such as H100-SXM5-80GB; None where none is known."""
    every = _file().generations.items()
    return next((name for name, of in every if device.startswith(of.devices)), None)


def ranges(device: str = "") -> Mapping[str, Range]:
    """The range of each constant for a device."""
    name, every = generation_of(device), _file().ranges
    if name is None:
        return every
    own = _file().generations[name].ranges
    return every | {key: Range(of.typical, of.low, of.high, every[key].about) for key, of in own.items()}


def sources(device: str = "") -> list[str]:
    """What the ranges for a device were fitted on."""
    name = generation_of(device)
    return [*_file().sources, *(_file().generations[name].sources if name else ())]


@cache
def typical(device: str = "") -> Assumptions:
    """The typical value of each constant for a device."""
    return Assumptions(**{name: of.typical for name, of in ranges(device).items()})


def drawn(count: int, seed: int = 0, device: str = "") -> Assumptions:
    """`count` draws as columns, so that they broadcast over candidates; the same seed gives the same.

    Each constant independently of the others: below its typical value in half of the draws, and beyond low and beyond
    high in 5 % each; normal on either side with its own width, cut at half of low and, for shares, at 1.
    """
    generator, of = np.random.default_rng(seed), ranges(device)
    normal = {each.name: generator.standard_normal(count) for each in fields(Assumptions)}
    found: dict[str, Any] = {name: _two_sided(of[name], draws)[:, None] for name, draws in normal.items()}
    return Assumptions(**found)


def _two_sided(of: Range, normal: Floats) -> Floats:
    width = np.where(normal < 0, of.typical - of.low, of.high - of.typical) / Z_95
    most = 1.0 if of.high <= 1 else np.inf
    return np.clip(of.typical + width * normal, of.low / 2, most)
