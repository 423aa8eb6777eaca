"""The section `predict`: series of ranks predicted beside what anyone does by hand, on published and simulated series.

Rulers: the last point times ranks, Amdahl's law, the Universal Scalability Law, a straight line through logarithms.
The last three are fitted by least squares of log rates; each has its own interval (`Ruler`).
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.optimize import least_squares
from scipy.stats import norm
from scipy.stats import t as student

from bench.tables import goal
from benchsuite.predict.average import fit
from benchsuite.predict.curve import Kind
from benchsuite.predict.theory.arrays import Floats

MAX_BEYOND = 8
MOST_OVER = 1.1
"""How many times the error of the best single ruler ours may be, pooled."""
LEAST_COVERED = 0.85
LEVEL, LEAST_NOISE, STEP = 0.9, 0.01, 1e-6
ERRORS = {"off": "|log(predicted / measured)|", "relative": "|predicted / measured - 1|"}
"""Errors of a step: twice and half as long are errors alike by the first, 100 and 50 % by the second."""
SEED = 20260101
NOISES, SEEDS = (0.01, 0.02, 0.05), 5
SCALES = ((1, 2, 4), (1, 2, 4, 8), (8, 16, 32))
VTRAIN_LAYOUT = [
    "hidden size",
    "attention heads",
    "# layers",
    "sequence length",
    "micro batch",
    "tensor parallelism",
    "pipeline parallelism",
]


@dataclass(frozen=True)
class Series:
    """Steps by ranks, of a table or simulated; `fitted`: how many of the smallest scales are known."""

    family: str
    kind: Kind
    ranks: Floats
    seconds: Floats
    fitted: int


@dataclass(frozen=True)
class Held:
    """A step predicted by one of the predictors, as logarithms of the ratio to what was measured."""

    family: str
    series: int
    name: str
    error: float
    low: float
    high: float

    @property
    def score(self) -> float:
        """Interval score of Gneiting and Raftery 2007 (eq. 43), in logarithms: width, and 2 / (1 - LEVEL) a miss."""
        return self.high - self.low + 2 / (1 - LEVEL) * (max(self.low, 0.0) + max(-self.high, 0.0))


def _usl(n: Floats, place: Floats) -> Floats:
    return np.asarray(place[0] + np.log(n) - np.log1p(place[1] * (n - 1) + place[2] * n * (n - 1)))


Law = tuple[Callable[[Floats, Floats], Floats], Floats, Floats]
RULERS: Mapping[str, Law] = {
    "amdahl": (
        lambda n, x: x[0] + np.log(n) - np.log1p(x[1] * (n - 1)),
        np.array([-np.inf, 0.0]),
        np.array([0.0, 0.01]),
    ),
    "usl": (_usl, np.array([-np.inf, 0.0, 0.0]), np.array([0.0, 0.01, 1e-4])),
    "log-linear": (lambda n, x: x[0] + x[1] * np.log(n), np.array([-np.inf, -np.inf]), np.array([0.0, 1.0])),
}
"""Log rates by ranks and constants, the least that each may be, and where a search begins."""


def last_point(known: Series, wanted: Floats) -> NDArray[np.float64]:
    """(3, m) log rates: those of the last point's ranks; ends by t of the changes from scale to scale, per doubling."""
    rates = _log_rates(known)
    changes = np.diff(rates - np.log(known.ranks)) / np.sqrt(np.diff(np.log2(known.ranks)))
    beyond = np.log2(wanted / known.ranks[-1])
    half = _reach(changes, len(changes)) * np.sqrt(np.maximum(beyond, 0.0))
    middle = rates[-1] + np.log(wanted / known.ranks[-1])
    return np.stack([middle, middle - half, middle + half])


def fitted_law(name: str, known: Series, wanted: Floats) -> NDArray[np.float64]:
    """(3, m) log rates: the law fitted to all points; ends by t of its residuals and the spread of its constants."""
    law, least, start = RULERS[name]
    rates = _log_rates(known)
    start = np.array([rates[0] - np.log(known.ranks[0]), *start[1:]])
    scale = [1, 0.01, 1e-4][: len(start)]
    found = least_squares(lambda x: law(known.ranks, x) - rates, start, bounds=(least, np.inf), x_scale=scale)
    steps = np.eye(len(start)) * STEP
    slope = np.array([(law(wanted, found.x + step) - law(wanted, found.x)) / STEP for step in steps])
    spread = np.linalg.pinv(found.jac.T @ found.jac)
    half = _reach(found.fun, len(rates) - len(start)) * np.sqrt(1 + np.einsum("im,ij,jm->m", slope, spread, slope))
    middle = law(wanted, found.x)
    return np.stack([middle, middle - half, middle + half])


def _reach(residuals: Floats, freedom: int) -> float:
    """Half of a 90 % t-interval of one more: at least 1 % of noise and one degree of freedom, where none is left."""
    freedom = max(freedom, 1)
    noise = max(float(np.sqrt(residuals @ residuals / freedom)), LEAST_NOISE)
    return noise * float(student.ppf(0.5 + LEVEL / 2, freedom))


def ours(known: Series, wanted: Floats) -> NDArray[np.float64]:
    """(3, m) log rates: those of `benchsuite predict`."""
    average = fit(known.kind, known.ranks.tolist(), known.seconds.tolist(), [0.0] * len(known.ranks))
    value, low, high = average.seconds(wanted.tolist())
    return np.asarray(np.log(wanted if known.kind == "weak" else 1.0) - np.log([value, high, low]))


def _log_rates(series: Series) -> Floats:
    return np.asarray(np.log(series.ranks if series.kind == "weak" else 1.0) - np.log(series.seconds))


def predicted(every: Sequence[Series], rulers: bool = True) -> list[Held]:
    """Each series' scales beyond those known, up to MAX_BEYOND times, by all predictors; or by ours alone."""
    found = []
    for number, series in enumerate(every):
        count = series.fitted
        known = Series(series.family, series.kind, series.ranks[:count], series.seconds[:count], count)
        held = (series.ranks > known.ranks[-1]) & (series.ranks <= MAX_BEYOND * known.ranks[-1])
        wanted, measured = series.ranks[held], _log_rates(series)[held]
        by = {"ours": ours(known, wanted)}
        if rulers:
            by["last point"] = last_point(known, wanted)
            by |= {name: fitted_law(name, known, wanted) for name in RULERS}
        for name, rates in by.items():
            # a step's error is that of a rate with its sign turned, and so are its ends
            value, low, high = measured - rates[0], measured - rates[2], measured - rates[1]
            found += [Held(series.family, number, name, *map(float, one)) for one in zip(value, low, high, strict=True)]
    return found


def known_in_turn(family: str, kind: Kind, steps: Mapping[float, float]) -> Iterator[Series]:
    """A series as it was known at each of its scales, from two on, that has larger ones."""
    ranks = np.array(sorted(steps), dtype=np.float64)
    seconds = np.array([steps[n] for n in ranks])
    for count in range(2, len(ranks)):
        if ranks[count] <= MAX_BEYOND * ranks[count - 1]:
            yield Series(family, kind, ranks, seconds, count)


def tables(path: Path) -> dict[str, pd.DataFrame]:
    """Every table of a file of published figures, which are no part of this repository, by its id."""
    found = json.loads(path.read_text())["tables"]
    entries = found.values() if isinstance(found, dict) else found
    return {table["id"]: pd.DataFrame(table["rows"], columns=table["columns"]) for table in entries}


def published_series(found: Mapping[str, pd.DataFrame]) -> Iterator[Series]:
    """Every series of three scales or more in the published tables."""
    single = found["vtrain_single_node"]
    single = single.assign(slots=single["global batch"] / single["data parallelism"] / single["micro batch"])
    batches: Mapping[Kind, str] = {"weak": "slots", "strong": "global batch"}
    for kind, batch in batches.items():
        for _, rows in single.groupby([*VTRAIN_LAYOUT, batch]):
            steps = dict(zip(rows["# GPUs"], rows["iteration time (ms)"] / 1e3, strict=True))
            yield from known_in_turn(f"vTrain {kind}", kind, steps)
    storage = found["mlperf_storage_v1_results"]
    for _, rows in storage.groupby(["org", "system", "workload", "acc"]):
        steps = dict(zip(rows["n_acc"], rows["n_acc"] / rows["samples_per_s"], strict=True))
        yield from known_in_turn("MLPerf Storage", "weak", steps)
    bert = found["bert_large_multinode_strong"]
    for _, rows in bert.groupby("seq"):
        for column in ("mixed_seq_s", "tf32_seq_s"):
            steps = dict(zip(rows["nodes(8xA100-80)"] * 8, 1 / rows[column], strict=True))
            yield from known_in_turn("BERT-large", "strong", steps)
    fsdp = found["llmfoundry_fsdp"]
    for _, rows in fsdp.groupby(["gpu", "model", "seq", "precision", "sharding"]):
        steps = dict(zip(rows["gpus"], 1 / rows["tokens_per_s_gpu"], strict=True))
        yield from known_in_turn("llm-foundry", "weak", steps)


@cache
def of_slowest(ranks: float) -> float:
    """How many standard deviations the slowest of N normal times lies behind the mean, on average."""
    return float(quad(lambda z: z * ranks * norm.pdf(z) * norm.cdf(z) ** (ranks - 1), -12, 12, limit=200)[0])


KINDS: Sequence[Kind] = ("weak", "strong")
Growth = Callable[[Floats, float], Floats]
GROWTHS: Mapping[str, Growth] = {
    "linear": lambda n, share: 0 * n,
    "contention": lambda n, share: 0.7 * (n - 1) + 0.3 * n * (n - 1) / 32,
    "latency": lambda n, share: (n - 1) if share < 0.5 else np.log2(n),
    "bandwidth": lambda n, share: (n - 1) / n,
    "stragglers": lambda n, share: np.array([of_slowest(float(one)) for one in n]),
}
"""What a step grows by with ranks, in any unit; of latency, whether by a ring or a tree (a number from 0 to 1)."""


def simulated(seed: int = SEED) -> Iterator[Series]:
    """Series of known truths, up to 30 % of the largest step lost, with noise on every step."""
    chosen = np.random.default_rng(seed)
    for family in (*GROWTHS, "input knee"):
        for kind in KINDS:
            for scales in SCALES:
                for noise in NOISES:
                    for _ in range(SEEDS):
                        ranks = np.array([*scales, *(scales[-1] * np.array([2, 4, 8]))], dtype=np.float64)
                        clean = _truth(family, kind, ranks, scales[-1], chosen)
                        noisy = clean * np.exp(noise * chosen.standard_normal(len(ranks)))
                        yield Series(family, kind, ranks, noisy, len(scales))


def _truth(family: str, kind: str, ranks: Floats, most: int, chosen: np.random.Generator) -> Floats:
    work = ranks / most if kind == "strong" else np.ones(len(ranks))
    lost, form = chosen.uniform(0.02, 0.3), chosen.uniform()
    if family == "input knee":  # in strong scaling all that is read stays, and so does the time it takes
        knee = most * 2 ** chosen.uniform(-1.5, 3)
        return np.asarray(np.maximum(1.0, ranks / knee) / work)
    grown = GROWTHS[family](ranks, form)
    scale = GROWTHS[family](np.array([float(most)]), form)[0] or 1.0
    if family == "contention":  # of throughput: it divides both
        return np.asarray((1 + lost / (1 - lost) * grown / scale) / work)
    return np.asarray((1 - lost) / work + lost * grown / scale)


def frame(every: Sequence[Series]) -> pd.DataFrame:
    """A row for each step that was predicted, by each predictor."""
    rows = pd.DataFrame([vars(held) | {"score": held.score} for held in predicted(every)])
    rows["off"], rows["relative"] = np.abs(rows["error"]), np.abs(np.expm1(rows["error"]))
    rows["held"] = (rows["low"] <= 0) & (rows["high"] >= 0)
    rows["width"] = rows["high"] - rows["low"]
    return rows


def show(_folder: Path) -> None:
    """(w)"""
    path = os.environ.get("PUBLISHED_TABLES")
    print("(w) series of ranks beside rulers: mean and median |log(predicted / measured)|, mean |ratio - 1|; intervals")
    every = {"simulated": frame([*simulated()])}
    if path:
        every["published"] = frame([*published_series(tables(Path(path)))])
        every["all"] = pd.concat(every.values())
    else:
        print("    published tables: not run; give a JSON file of them as PUBLISHED_TABLES=FILE")
    for family, rows in next(reversed(every.values())).groupby("family", sort=False):
        _table(str(family), rows)
    for name, rows in every.items():
        _table(f"{name}, pooled", rows)
        for what, words in ERRORS.items():
            ratio = over_best(rows, what)
            most = f"{MOST_OVER} times the best single ruler's ({ratio:.2f})"
            print(goal(ratio <= MOST_OVER, f"pooled mean {words} <= {most}"))
        covered = float(rows[rows["name"] == "ours"]["held"].mean())
        print(goal(covered >= LEAST_COVERED, f"90 % intervals hold >= {LEAST_COVERED:.0%} ({covered:.1%})"))


def over_best(rows: pd.DataFrame, what: str) -> float:
    """Our pooled error over that of the best single ruler, every prediction counting alike."""
    means = rows.groupby("name")[what].mean()
    return float(means["ours"] / means.drop("ours").min())


def _table(title: str, rows: pd.DataFrame) -> None:
    print(f"    {title}: {rows.groupby('family')['series'].nunique().sum()} series")
    for name, one in rows.groupby("name", sort=False):
        errors = (one["off"].mean(), one["off"].median(), one["relative"].mean())
        intervals = (
            f"{one['held'].mean():4.0%} held, width {one['width'].median():.3f}, score {one['score'].mean():.3f}"
        )
        print(f"      {name:<12}{''.join(f'{error:8.2%}' for error in errors)}   {intervals}")
