"""What `probe comm` is asked for: its cells, and bandwidths as nccl-tests defines them. Imports no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchsuite.contract.errors import UserError, refuse
from benchsuite.predict.theory.collectives import BACKEND
from benchsuite.predict.theory.collectives import BUSBW as ALL_BUSBW
from benchsuite.probe.comm.step_tables import ALGORITHMS, STEP_TABLES

ELEMENT_BYTES: Mapping[str, int] = {"fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2, "int64": 8, "int32": 4, "int8": 1}
OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send_recv")
BUSBW = {op: ALL_BUSBW[op] for op in OPS}
"""What algbw is times, so that it tells of the hardware whatever the number of ranks."""
DIVIDED = ("all_gather", "reduce_scatter", "all_to_all")
"""Ops whose array has a part for each rank."""
IN_PLACE = ("all_reduce", "broadcast", "reduce")
"""Ops whose result lies where the input was; those of step tables all are."""
OVERLAP = "overlapped"
DDP_MODES = (OVERLAP, "after_backward")
"""How DDP exchanges gradients in the steps whose overlap is measured."""
LAYERS: Mapping[str, int] = {"cpu": 64, "cuda": 24}
WIDTH: Mapping[str, int] = {"cpu": 256, "cuda": 2048}
GRADIENT_DTYPE: Mapping[str, str] = {"cpu": "fp32", "cuda": "bf16"}
"""Precision of weights and gradients of a chain of square linear layers without bias."""


def gradient_bytes(device: str) -> int:
    """All gradients."""
    return ELEMENT_BYTES[GRADIENT_DTYPE[device]] * LAYERS[device] * WIDTH[device] ** 2


@dataclass(frozen=True)
class Cell:
    """One thing to measure."""

    op: str
    algorithm: str
    dtype: str
    num_bytes: int
    """The whole array, as nccl-tests counts it."""
    num_ranks: int

    @property
    def in_place(self) -> bool:
        """Whether the result overwrites the input."""
        return self.algorithm != BACKEND or self.op in IN_PLACE


@dataclass(frozen=True)
class Request:
    """What the ranks are asked for besides their spec."""

    cells: tuple[Cell, ...]
    iterations: int
    """The least number of samples of each cell."""
    seconds: float
    """The least time that each cell is measured for."""
    bucket_bytes: tuple[int, ...] = ()
    """DDP's buckets, where its overlap is measured."""


def busbw_bytes_per_s(op: str, num_ranks: int, num_bytes: int, comm_s: float) -> float:
    """algbw x the factor of the op."""
    return num_bytes / comm_s * float(BUSBW[op](num_ranks))


def parse_names(text: str, option: str, allowed: Sequence[str]) -> tuple[str, ...]:
    """Names with commas between, or `all`.

    Raises:
        UserError: one is unknown.
    """
    names = [name.strip() for name in text.split(",")]
    if names == ["all"]:
        return tuple(allowed)
    for name in names:
        if name not in allowed:
            raise refuse(option, name, allowed)
    return tuple(dict.fromkeys(names))


def cells(
    ops: Sequence[str],
    algorithms: Sequence[str],
    dtypes: Sequence[str],
    sizes: Sequence[int],
    num_ranks: int,
) -> list[Cell]:
    """Every cell for a number of ranks; sizes are rounded down to what the ranks can share, at least one element each.

    A step table is asked for only of ops that have it.
    """
    found = []
    for op in ops:
        for algorithm in algorithms:
            if algorithm != BACKEND and algorithm not in STEP_TABLES.get(op, {}):
                continue
            for dtype in dtypes:
                unit = ELEMENT_BYTES[dtype] * (num_ranks if op in DIVIDED else 1)
                rounded = dict.fromkeys(max(size // unit, 1) * unit for size in sizes)
                found += [Cell(op, algorithm, dtype, size, num_ranks) for size in rounded]
    return found


def check_algorithms(ops: Sequence[str], algorithms: Sequence[str]) -> None:
    """Refuse an algorithm that none of the ops has.

    Raises:
        UserError: with the ops that have it.
    """
    for algorithm in algorithms:
        having = [op for op, found in STEP_TABLES.items() if algorithm in found]
        if algorithm != BACKEND and not set(having) & set(ops):
            raise UserError(f"--algorithm {algorithm}: not of {', '.join(ops)}; allowed with --op {', '.join(having)}")


def lacking(ops: Sequence[str], algorithms: Sequence[str]) -> tuple[str, ...]:
    """Which ops do not have which step table, in words."""
    return tuple(
        f"{op} has no step table {algorithm}"
        for op in ops
        for algorithm in algorithms
        if algorithm != BACKEND and algorithm not in STEP_TABLES.get(op, {})
    )


ALLOWED_ALGORITHMS = (BACKEND, *ALGORITHMS)
