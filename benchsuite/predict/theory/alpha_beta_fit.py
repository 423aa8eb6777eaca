"""Time of a collective against its size: alpha + beta x bytes, in one to three pieces, with intervals.

One line over all sizes is wrong where a library switches its protocol (NCCL: LL, LL128, Simple) or where a floor of
latency lies under small sizes; so pieces, and as few as the measured times ask for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from scipy.optimize import nnls

from benchsuite.contract.errors import UserError
from benchsuite.results.report.probes import DDP_STEP

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]

MIN_SIZES = 3
"""Different sizes that a fit needs; a piece has at least two and shares its noise with the others."""
MAX_PIECES = 3
MAX_CANDIDATES = 24
"""Sizes after which a piece may end; of more, evenly spread ones are tried."""
MAX_BEYOND = 16.0
"""How many times outside the measured sizes a time is still given."""
LEVEL = 0.95
"""Level of the intervals of alpha and beta."""
LEAST_NOISE = 1e-3
"""Relative; clocks, and a median of a few dozen iterations, tell no less."""


class Key(NamedTuple):
    """What one fit is of."""

    op: str
    algorithm: str
    dtype: str
    backend: str
    ranks: int
    nodes: int = 1
    host: str = ""
    machine: str = ""
    """Processor, devices and torch, as far as they are known."""


@dataclass(frozen=True)
class Piece:
    """alpha + beta x bytes over a range of sizes; neither is negative."""

    from_bytes: float
    to_bytes: float
    alpha_s: float
    beta_s_per_byte: float
    alpha_interval_s: tuple[float, float]
    beta_interval_s_per_byte: tuple[float, float]
    num_points: int

    def time_s(self, num_bytes: Floats) -> Floats:
        """The line's value."""
        return self.alpha_s + self.beta_s_per_byte * num_bytes


@dataclass(frozen=True)
class AlphaBeta:
    """A fitted time against size. `fit` makes it."""

    pieces: tuple[Piece, ...]
    relative_error: float
    """Standard deviation of measured over fitted, around one."""

    @property
    def max_bytes(self) -> float:
        """The largest size measured."""
        return self.pieces[-1].to_bytes

    def time_s(self, num_bytes: ArrayLike) -> Floats:
        """Seconds that a collective of these sizes takes; the shape of what was given.

        Raises:
            UserError: a size lies too far outside what was measured.
        """
        sizes = self._checked(num_bytes)
        return np.choose(self._piece_of(sizes), [piece.time_s(sizes) for piece in self.pieces])

    def _piece_of(self, sizes: Floats) -> NDArray[np.intp]:
        """Which piece a size belongs to; the switch is put halfway, by ratio, between the sizes around it."""
        switches = [np.sqrt(max(left.to_bytes, 1.0) * right.from_bytes) for left, right in pairwise(self.pieces)]
        return np.searchsorted(np.array(switches), sizes, side="left")

    def _checked(self, num_bytes: ArrayLike) -> Floats:
        sizes: Floats = np.asarray(num_bytes, dtype=np.float64)
        most = self.max_bytes * MAX_BEYOND
        if sizes.size and not (np.all(np.isfinite(sizes)) and sizes.min() >= 0):
            raise UserError(f"num_bytes {sizes.min():g}: allowed: from 0 on")
        if sizes.size and sizes.max() > most:
            beyond = f"{sizes.max() / max(self.max_bytes, 1):.3g} times the largest size measured"
            raise UserError(f"num_bytes {sizes.max():.0f} is {beyond}; allowed: up to {MAX_BEYOND:.0f} times")
        return sizes


def fit(num_bytes: ArrayLike, seconds: ArrayLike, max_pieces: int = MAX_PIECES) -> AlphaBeta:
    """Fit seconds = alpha + beta x bytes in pieces, by least squares of relative errors; their number by BIC.

    Condition: errors are about the same share of the time at all sizes. A size may come several times.

    Args:
        num_bytes: sizes of the collectives, one a measurement.
        seconds: what each took; above zero.
        max_pieces: 1, 2 or 3.

    Raises:
        UserError: fewer than three different sizes, lengths that differ, or values that are no times or sizes.
    """
    sizes, times = _sorted(num_bytes, seconds)
    if not 1 <= max_pieces <= MAX_PIECES:
        raise UserError(f"max_pieces {max_pieces}: allowed: 1 to {MAX_PIECES}")
    splits = _best_splits(sizes, times, max_pieces)
    lines = [_reweighted(sizes[start:end], times[start:end]) for start, end in splits]
    residuals = np.concatenate(
        [_residuals(line, sizes[start:end], times[start:end]) for line, (start, end) in zip(lines, splits, strict=True)]
    )
    freedom = max(len(sizes) - _parameters(len(splits)), 1)
    error = max(float(np.sqrt(residuals @ residuals / freedom)), LEAST_NOISE)
    reach = error * float(stats.t.ppf(0.5 + LEVEL / 2, freedom))
    pieces = [_piece(line, sizes[start:end], reach) for line, (start, end) in zip(lines, splits, strict=True)]
    return AlphaBeta(tuple(pieces), error)


def from_rows(frame: "pd.DataFrame") -> dict[Key, AlphaBeta]:
    """One fit for each op, algorithm, dtype, backend, number of ranks and nodes, and machine in rows of kind comm.

    Left out: rows that failed or were skipped, those of more ranks than cores, and what has fewer than three sizes.
    """
    columns = [f"spec.{name}" for name in ("op", "algorithm", "dtype", "backend", "world_size", "nodes")]
    if frame.empty or not {*columns, "spec.num_bytes", "comm_s", "status"} <= {*frame.columns}:
        return {}
    known = frame["comm_s"].notna() & frame["spec.num_bytes"].notna() & (frame["spec.op"] != DDP_STEP)
    crowded = frame["caveats"].map(lambda names: "oversubscribed" in list(names)) if "caveats" in frame else False
    good = frame[(frame["status"] == "ok") & known & ~np.asarray(crowded, dtype=bool)]
    where = [[read(row) for _, row in good.iterrows()] for read in (host_of, machine_of)]
    found = {}
    for values, rows in good.groupby([*(good[name] for name in columns), *map(np.array, where)] if len(good) else []):
        op, algorithm, dtype, backend, ranks, nodes, host, machine = cast(tuple[Any, ...], values)
        if rows["spec.num_bytes"].nunique() >= MIN_SIZES:
            key = Key(op, algorithm, dtype, backend, int(ranks), int(nodes), str(host), str(machine))
            found[key] = fit(rows["spec.num_bytes"], rows["comm_s"])
    return found


def host_of(row: "Mapping[str, Any] | pd.Series[Any]") -> str:
    """The host that a store's row tells; empty where it tells none."""
    return _text(row.get("env.host"))


def machine_of(row: "Mapping[str, Any] | pd.Series[Any]") -> str:
    """Processor, devices and torch of a store's row, as far as it tells them."""
    devices = row.get("env.devices")
    names = (
        {_text(one.get("name") if isinstance(one, Mapping) else one) for one in devices}
        if isinstance(devices, list)
        else set()
    )
    told = (_text(row.get("env.cpu")), *sorted(names), _text(row.get("env.libraries.torch")))
    return ", ".join(filter(None, told))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _sorted(num_bytes: ArrayLike, seconds: ArrayLike) -> tuple[Floats, Floats]:
    sizes: Floats = np.asarray(num_bytes, dtype=np.float64).ravel()
    times: Floats = np.asarray(seconds, dtype=np.float64).ravel()
    if len(sizes) != len(times):
        raise UserError(f"{len(sizes)} sizes and {len(times)} times: allowed: as many of one as of the other")
    if not np.all(np.isfinite(sizes) & np.isfinite(times) & (sizes >= 0) & (times > 0)):
        raise UserError("a size or a time is not a number, or not positive: allowed: sizes from 0, times above 0")
    if len(np.unique(sizes)) < MIN_SIZES:
        raise UserError(f"{len(np.unique(sizes))} different sizes: a fit needs at least {MIN_SIZES}")
    order = np.argsort(sizes, kind="stable")
    return sizes[order], times[order]


Line = tuple[float, float]


def _line(sizes: Floats, times: Floats, weights: Floats) -> Line:
    """Weighted least squares with neither part negative."""
    design = np.stack([weights, weights * sizes], axis=1)
    scale = np.linalg.norm(design, axis=0)  # seconds and seconds per byte are far apart
    alpha, beta = nnls(design / scale, weights * times)[0] / scale
    return float(alpha), float(beta)


def _reweighted(sizes: Floats, times: Floats) -> Line:
    """Weighted by the fitted time at last: weights by the measured one favour what came out too fast."""
    line = _line(sizes, times, 1 / times)
    for _ in range(3):
        line = _line(sizes, times, 1 / (line[0] + line[1] * sizes))
    return line


def _residuals(line: Line, sizes: Floats, times: Floats) -> Floats:
    return times / (line[0] + line[1] * sizes) - 1


def _parameters(num_pieces: int) -> int:
    """Two a piece, and a switch costs as much as it is free to choose from."""
    return 2 * num_pieces + 3 * (num_pieces - 1)


def _best_splits(sizes: Floats, times: Floats, max_pieces: int) -> list[tuple[int, int]]:
    """First and last index of each piece, for the number of pieces with the least BIC."""
    num = len(sizes)
    starts = np.flatnonzero(np.diff(sizes)) + 1  # where another size begins
    inner = starts[1:-1] if len(starts) > 2 else starts[:0]
    if len(inner) > MAX_CANDIDATES:
        inner = inner[np.linspace(0, len(inner) - 1, MAX_CANDIDATES).round().astype(int)]
    costs: dict[tuple[int, int], float] = {}

    def cost(start: int, end: int) -> float:
        if (start, end) not in costs:
            part, took = sizes[start:end], times[start:end]
            if len(np.unique(part)) < 2:
                costs[start, end] = np.inf
            else:
                found = _residuals(_reweighted(part, took), part, took)
                costs[start, end] = float(found @ found)
        return costs[start, end]

    best: tuple[float, list[tuple[int, int]]] = (np.inf, [(0, num)])
    for pieces in range(1, max_pieces + 1):
        if num <= _parameters(pieces) and pieces > 1:
            break
        for cuts in combinations(inner.tolist(), pieces - 1):
            spans = list(pairwise([0, *cuts, num]))
            error = max(sum(cost(*span) for span in spans) / num, LEAST_NOISE**2)
            score = num * np.log(error) + _parameters(pieces) * np.log(num)
            if score < best[0] - 1e-9:
                best = (score, spans)
    return best[1]


def _piece(line: Line, sizes: Floats, reach: float) -> Piece:
    """A line with the interval of both parts: `reach` for relative errors of one."""
    alpha, beta = line
    weights = 1 / (alpha + beta * sizes)
    half = reach * np.sqrt(np.diag(_inverse(np.stack([weights, weights * sizes], axis=1))))
    return Piece(
        from_bytes=float(sizes[0]),
        to_bytes=float(sizes[-1]),
        alpha_s=alpha,
        beta_s_per_byte=beta,
        alpha_interval_s=(max(alpha - float(half[0]), 0.0), alpha + float(half[0])),
        beta_interval_s_per_byte=(max(beta - float(half[1]), 0.0), beta + float(half[1])),
        num_points=len(sizes),
    )


def _inverse(design: Floats) -> Floats:
    """Inverse of design' design; columns are brought to one scale, as seconds and seconds per byte are far apart."""
    scale = np.linalg.norm(design, axis=0)
    scaled = design / scale
    found: Floats = np.linalg.pinv(scaled.T @ scaled) / np.outer(scale, scale)
    return found


def in_words(found: AlphaBeta) -> Sequence[str]:
    """A line a piece: its sizes, alpha and beta with their intervals."""
    return [
        f"{piece.from_bytes:.0f} to {piece.to_bytes:.0f} B: alpha {piece.alpha_s * 1e6:.1f} us "
        f"[{piece.alpha_interval_s[0] * 1e6:.1f}, {piece.alpha_interval_s[1] * 1e6:.1f}], beta "
        f"{piece.beta_s_per_byte * 1e9:.4g} ns/B [{piece.beta_interval_s_per_byte[0] * 1e9:.4g}, "
        f"{piece.beta_interval_s_per_byte[1] * 1e9:.4g}]"
        for piece in found.pieces
    ]
