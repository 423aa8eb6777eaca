"""Operator classes and the roofline of trials that PyTorch's profile was asked for, as a table and in words."""

from collections.abc import Sequence
from typing import Any

from benchsuite.results.render.tables import ABSENT, Column, Row, is_missing

CLASSES = {
    "contraction": "contraction",
    "normalisation": "normalisation",
    "element_wise": "element-wise",
    "other": "other",
}
"""Classes of operators (Ivanov et al. 2021, arXiv:2007.00072) as figures have them, and in words."""
LEGEND = (
    "operators: share of the FLOPs / of the operators' own time · FLOP/B: FLOPs over operator-level bytes, which each "
    "operator reads and writes; caches and fused kernels spare memory a part of these · ridge: where the device's peak "
    "becomes the bound"
)


def counted(points: Sequence[Row]) -> list[Row]:
    """The points whose operators were counted."""
    return [row for row in points if not is_missing(row.get("arithmetic_intensity"))]


def sources(points: Sequence[Row]) -> list[str]:
    """Where the roofs are from, each once."""
    known = dict.fromkeys(str(row["roof_source"]) for row in points if not is_missing(row.get("roof_source")))
    return [f"roof {source}" for source in known]


def lines(row: Row) -> list[str]:
    """The operators of one trial in words; nothing where its operators were not counted."""
    if not counted([row]):
        return []
    classes = "; ".join(f"{word} {_in_words(row, name)}" for name, word in CLASSES.items())
    point = f"{row['arithmetic_intensity']:.3g} FLOPs a byte (operator-level), {_rate(row, 'attained_flops_per_s')}"
    if is_missing(row.get("roof_flops_per_s")):
        return [f"operator classes: {classes}", f"roofline: {point}; the device's roof is not known"]
    bound = "memory" if row["arithmetic_intensity"] < row["ridge_intensity"] else "compute"
    roof = f"{_share(row, 'roof_fraction')} of the roof of {_rate(row, 'roof_flops_per_s')}, where {bound} is the bound"
    ridge = f"ridge at {row['ridge_intensity']:.3g}; {row['roof_source']}"
    return [f"operator classes: {classes}", f"roofline: {point}, {roof} ({ridge})"]


def _in_words(row: Row, name: str) -> str:
    shares = (
        (_share(row, f"{name}_flops_fraction"), "of FLOPs"),
        (_share(row, f"{name}_time_fraction"), "of the time"),
    )
    return ", ".join(f"{share} {of}" for share, of in shares if share != ABSENT) or ABSENT


def _share(row: Row, name: str) -> str:
    value: Any = row.get(name)
    return ABSENT if is_missing(value) else f"{value * 100:.1f} %"


def _plain(row: Row, name: str) -> str:
    value: Any = row.get(name)
    return ABSENT if is_missing(value) else f"{value:.3g}"


def _rate(row: Row, name: str) -> str:
    value: Any = row.get(name)
    if is_missing(value):
        return ABSENT
    return f"{value / 1e12:.3g} TFLOP/s" if value >= 1e12 else f"{value / 1e9:.3g} GFLOP/s"


def _shares(name: str) -> Column:
    shares = [f"{name}_{of}_fraction" for of in ("flops", "time")]
    return Column(CLASSES[name], lambda row: " / ".join(_share(row, share) for share in shares))


COLUMNS: tuple[Column, ...] = (
    Column("", lambda row: str(row["label"]), right=False),
    *map(_shares, CLASSES),
    Column("FLOP/B", lambda row: _plain(row, "arithmetic_intensity")),
    Column("ridge", lambda row: _plain(row, "ridge_intensity")),
    Column("attained", lambda row: _rate(row, "attained_flops_per_s")),
    Column("of roof", lambda row: _share(row, "roof_fraction")),
)
