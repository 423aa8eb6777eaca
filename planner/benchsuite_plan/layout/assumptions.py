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
from benchsuite_plan.theory.interval import Z_95

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
class Measured:
    """Ranges that were measured of a recipe, and where."""

    ranges: dict[str, Range]
    sources: tuple[str, ...]


@dataclass(frozen=True)
class _File:
    ranges: dict[str, Range]
    sources: tuple[str, ...]
    generations: dict[str, Generation]
    recipes: dict[str, Measured]


@dataclass(frozen=True)
class Assumptions:
    """A value of each range of `assumptions.yaml`: a number, or an array of draws that broadcasts."""

    matrix_efficiency: Number
    attention_efficiency: Number
    half_area: Number
    head_weight: Number
    unaligned_efficiency: Number
    dispatch_weight: Number
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
    text = (files("benchsuite_plan.layout") / "assumptions.yaml").read_text(encoding="utf-8")
    return TypeAdapter(_File).validate_python(parse_yaml(text, "assumptions"))


def generation_of(device: str) -> str | None:
    """The generation that a device's name begins with, such as H100-SXM5-80GB; None where none is known."""
    every = _file().generations.items()
    return next((name for name, of in every if device.startswith(of.devices)), None)


def _own(device: str, recipe: str) -> list[Generation | Measured]:
    """What is known of a device's generation and of a recipe beside what holds for all."""
    file, name = _file(), generation_of(device)
    found: list[Generation | Measured] = [file.generations[name]] if name else []
    return found + ([file.recipes[recipe]] if recipe in file.recipes else [])


def ranges(device: str = "", recipe: str = "") -> Mapping[str, Range]:
    """The range of each constant for a device, and for who trains."""
    every = dict(_file().ranges)
    for own in _own(device, recipe):
        every |= {key: Range(of.typical, of.low, of.high, every[key].about) for key, of in own.ranges.items()}
    return every


def sources(device: str = "", recipe: str = "") -> list[str]:
    """What the ranges were fitted on."""
    return [*_file().sources, *(source for own in _own(device, recipe) for source in own.sources)]


@cache
def typical(device: str = "", recipe: str = "") -> Assumptions:
    """The typical value of each constant."""
    return Assumptions(**{name: of.typical for name, of in ranges(device, recipe).items()})


def drawn(count: int, seed: int = 0, device: str = "", recipe: str = "") -> Assumptions:
    """`count` draws as columns, so that they broadcast over candidates; the same seed gives the same.

    Each constant independently of the others: below its typical value in half of the draws, and beyond low and beyond
    high in 5 % each; normal on either side with its own width, cut at half of low and, for shares, at 1.
    """
    generator, of = np.random.default_rng(seed), ranges(device, recipe)
    normal = {each.name: generator.standard_normal(count) for each in fields(Assumptions)}
    found: dict[str, Any] = {name: _two_sided(of[name], draws)[:, None] for name, draws in normal.items()}
    return Assumptions(**found)


def _two_sided(of: Range, normal: Floats) -> Floats:
    width = np.where(normal < 0, of.typical - of.low, of.high - of.typical) / Z_95
    most = 1.0 if of.high <= 1 else np.inf
    return np.clip(of.typical + width * normal, of.low / 2, most)
