"""A table of layouts with times: the model of layouts fitted to all of it, and each layout predicted at more ranks."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchsuite.contract.errors import UserError
from benchsuite.predict.more_ranks import check_beyond, summary, tested
from benchsuite.predict.table import families, samples_per_step, words
from benchsuite_plan.layout.step import Constants, Cost, step
from benchsuite_plan.tables.configurations import Configurations
from benchsuite_plan.tables.layout_fit import (
    MIN_ROWS,
    UNKNOWN,
    Prediction,
    Predictor,
    errors_out_of_sample,
    fit,
    mean_off,
    priors,
    priors_for,
)
from benchsuite_plan.tables.table_input import configurations, sources
from benchsuite_plan.theory.interval import DRIFT_PER_DOUBLING, Z_95, conformal_quantile

TRIED, CLEARLY = 10, 0.005
"""Layouts by which series and the model of layouts are compared; how much smaller the error of series must be."""
LEAST_SCALES = 3
"""Scales of a layout that is compared: two of them predict the largest."""
NETWORK = ("link_bytes_per_s", "node_bytes_per_s")


@dataclass(frozen=True)
class LayoutCurves:
    """Rows of a table as configurations, by layout."""

    name: str
    frame: pd.DataFrame
    runs: Configurations
    family: "pd.Series[int]"
    assumed: Sequence[str]
    network: float = 1.0
    node_bytes_per_s: float | None = None
    """Between nodes, all devices of one together, where its user knows it."""

    @classmethod
    def of(
        cls, frame: pd.DataFrame, name: str, network: float = 1.0, node_bytes_per_s: float | None = None
    ) -> "LayoutCurves":
        """Make them of a table (`table_input.read`).

        Raises:
            UserError: a row without a time, or with degrees that do not fit.
        """
        if not (frame["step_s"] > 0).all():
            line = int(np.flatnonzero(~(frame["step_s"] > 0))[0])
            raise UserError(f"table {name}: row {line + 1} has no time above 0")
        runs, assumed = configurations(frame)
        return cls(name, frame, runs, families(frame), assumed, network, node_bytes_per_s)

    @property
    def seconds(self) -> Any:
        """Measured steps, (n,)."""
        return self.frame["step_s"].to_numpy(dtype=np.float64)

    def check_reach(self, ranks: Sequence[int], far: bool) -> None:
        """Refuse ranks too far beyond those of the table.

        Raises:
            UserError: more than MAX_BEYOND times its most, and `far` is not set.
        """
        if not far:
            check_beyond(f"table {self.name}", ranks, int(self.runs.ranks.max()))

    @cached_property
    def predictor(self) -> Predictor:
        """Fitted to all rows; layouts are left out as a whole where its interval is found."""
        return fit(self.runs, self.seconds, groups=self.family, known=self._known)

    @property
    def _known(self) -> dict[str, float]:
        return {} if self.node_bytes_per_s is None else {"node_bytes_per_s": self.node_bytes_per_s}

    def outlooks(self, ranks: Sequence[int], scaling: str) -> list[dict[str, Any]]:
        """Rows for each layout, from its largest scale; ranks at which it cannot be are left out.

        Raises:
            UserError: no layout can be at any of the ranks.
        """
        samples = samples_per_step(self.frame).to_numpy(dtype=np.float64)
        found = []
        for family in self.family.unique().tolist():
            places = np.flatnonzero(self.family == family)
            place = int(places[np.argmax(self.runs.ranks[places])])
            made = [self._row(place, samples[place], count, scaling) for count in ranks]
            label = words(self.frame, place, range(len(self.frame)))
            found += [{"label": label, **row} for row in made if row is not None]
        if not found:
            raise UserError(f"table {self.name}: no layout of it can be at {', '.join(map(str, ranks))} ranks")
        return found

    def of_rows(self, rows: pd.DataFrame) -> list[dict[str, Any]]:
        """A prediction for each row of another table, which needs no times (`table_input.read`).

        Raises:
            UserError: degrees that do not fit.
        """
        wanted, _ = configurations(rows)
        shared = [name for name in self.frame.columns if name in rows]
        together = families(pd.concat([self.frame[shared], rows[shared]], ignore_index=True)).to_numpy()
        samples = samples_per_step(rows).to_numpy(dtype=np.float64)
        found = []
        for place, family in enumerate(together[len(self.frame) :].tolist()):
            like = np.flatnonzero(together[: len(self.frame)] == family)
            one = wanted.take(np.array([place]))
            row = _as_row(*self._said(one, like), int(one.ranks[0]), samples[place], None)
            found.append({"label": words(rows, place, range(len(rows))), **row})
        return found

    def _said(self, wanted: Configurations, like: "NDArray[np.intp]") -> tuple[Prediction, float | None]:
        """The prediction of one configuration, and what was measured of it; `like`: rows of the same layout.

        What was measured is said. Else the model's ratio to the nearest row of the layout goes on from that row's
        measurement, where ratios hold better than the model itself (`ratio_width`).
        """
        found = self._any_network(wanted)
        if not like.size:
            return found, None
        rows = self.runs.take(like)
        away = np.abs(np.log2(rows.ranks / wanted.ranks)) + np.abs(
            np.log2(rows.num_microbatches / wanted.num_microbatches)
        )
        nearest = int(like[np.argmin(away)])
        same = like[away == 0]
        if same.size and self.network == 1:
            measured = float(np.median(self.seconds[same]))
            return _scaled(
                found, measured / float(found.step_s[0]), min(self.ratio_width, self.predictor.half_width)
            ), measured
        if self.ratio_width >= self.predictor.half_width:
            return found, None
        fitted = step(self.runs.work.take(np.array([nearest])), self.predictor.fitted.constants).step_s
        half = float(np.hypot(self.ratio_width, DRIFT_PER_DOUBLING * away.min()))
        if self._assumes_network(wanted):
            half = max(half, float(np.log(found.high_s / found.low_s)[0]) / 2)
        return _scaled(found, float(self.seconds[nearest] / fitted[0]), half), None

    @cached_property
    def ratio_width(self) -> float:
        """Half of a 90 % interval of log time, of rows predicted by the model's ratio to another of their layout.

        Infinite where no layout has two rows.
        """
        missed = np.log(self.seconds) - np.log(step(self.runs.work, self.predictor.fitted.constants).step_s)
        apart_by = []
        for family in self.family.unique().tolist():
            errors = missed[np.flatnonzero(self.family == family)]
            apart_by += np.abs(np.diff(errors)).tolist()
        return conformal_quantile(apart_by) if apart_by else float("inf")

    def _any_network(self, wanted: Configurations) -> Prediction:
        """The model's prediction on the network that is asked for; between nodes as wide as nothing tells of it."""
        shown = replace(self.predictor, fitted=replace(self.predictor.fitted, constants=self._faster(self.predictor)))
        found = shown.predict(wanted)
        return _with_any_network(shown, wanted, found) if self._assumes_network(wanted) else found

    def _assumes_network(self, wanted: Configurations) -> bool:
        """Whether it needs a network between nodes that nothing tells of."""
        beyond = bool(wanted.ranks[0] > wanted.ranks_per_node[0])
        return self.one_node and self.node_bytes_per_s is None and beyond

    def _faster(self, predictor: Predictor) -> Constants:
        constants = predictor.fitted.constants
        return replace(constants, **{name: getattr(constants, name) * self.network for name in NETWORK})

    def _row(self, place: int, samples: float, ranks: int, scaling: str) -> dict[str, Any] | None:
        """The layout of a measured row at other ranks: data-parallel ranks follow. Its efficiency is over that row."""
        one = self.runs.take(np.array([place]))
        data = ranks / float(one.tensor[0] * one.pipeline[0])
        grown = data / float(one.data[0]) if scaling == "weak" else 1.0
        batches = samples * grown / data / float(one.microbatch[0])
        if data % 1 or data < 1 or batches < 1 or abs(batches % 1) > 1e-9:
            return None
        wanted = replace(one, data=np.array([data]), num_microbatches=np.array([round(batches)]))
        found, measured = self._said(wanted, np.flatnonzero(self.family == self.family.iloc[place]))
        ideal = samples / float(self.seconds[place]) * ranks / float(one.ranks[0])
        baseline = {"baseline_ranks": int(one.ranks[0]), "baseline_s": float(self.seconds[place])}
        return _as_row(found, measured, ranks, samples * grown, ideal) | baseline

    def assumptions(self, scaling: str | None) -> list[str]:
        """What the predictions of all layouts rest on; `scaling` None: of rows that stand for themselves."""
        predictor = self.predictor
        learnt = [name for name, known in predictor.fitted.learnt.items() if known]
        kept = [name for name in priors() if name not in (*learnt, *self._known)]
        batch = "the batch of a data-parallel rank stays" if scaling == "weak" else "the batch of all ranks stays"
        return [
            f"one model fitted to {len(self.frame)} rows{f'; {batch}' if scaling else ''}",
            *(
                [f"efficiency: over the step that was measured at each layout's most ranks ({self._baselines()})"]
                * bool(scaling)
            ),
            f"{self._of_sources()}; intervals are quantiles of errors of layouts left out, wider beyond "
            f"{predictor.most_ranks:g} ranks and the sizes of the table",
            *self._of_ratios(),
            f"learnt from the table: {', '.join(learnt) or 'nothing'}",
            f"not learnt from the table, so taken at about the values that are assumed of any machine (rows that "
            f"differ in what such a constant acts on would tell it): {', '.join(kept) or 'nothing'}",
            *self._of_nodes(predictor),
            *self.assumed,
        ]

    def _of_sources(self) -> str:
        """The error to expect: that of models (or what words tell apart) that are left out as a whole."""
        groups = sources(self.frame)
        if groups.nunique() < 2:
            return "one model from one source: how far others would be off is not known"
        given = priors_for(self.runs, self.seconds, self._known)
        errors = errors_out_of_sample(
            self.runs.work, self.seconds, self.predictor.fitted, given, groups.to_numpy(), seed=0
        )
        return f"rows of models or sources not seen are off by {mean_off(errors):.1%} on average"

    def _of_ratios(self) -> list[str]:
        if self.ratio_width >= self.predictor.half_width:
            return []
        return ["a layout of the table goes on from its nearest measured row, by the ratio that the model gives"]

    @property
    def one_node(self) -> bool:
        """Whether no row has ranks on several nodes."""
        return bool(np.all(self.runs.ranks <= self.runs.ranks_per_node))

    def _of_nodes(self, predictor: Predictor) -> list[str]:
        if not self.one_node:
            return []
        if self.node_bytes_per_s is not None:
            return [
                "no row has ranks on several nodes: between nodes each is taken to get about "
                f"{self.node_bytes_per_s / 1e9:.4g} GB/s, as given"
            ]
        taken, most = predictor.fitted.constants.node_bytes_per_s, _times_off()
        return [
            f"warning: every row fits on one node of {self.runs.ranks_per_node.max():g} ranks: the network between "
            f"nodes is assumed ({taken / 1e9:.3g} GB/s a node), not measured; intervals beyond a node hold "
            f"1/{most:.2g} to {most:.2g} times that; give yours with --node-bandwidth"
        ]

    def _baselines(self) -> str:
        """The least and the most of all layouts' most ranks."""
        found = sorted({float(self.runs.ranks[self.family == family].max()) for family in self.family.unique()})
        return " to ".join(f"{ranks:g}" for ranks in dict.fromkeys((found[0], found[-1])))

    def back_test(self) -> tuple[list[dict[str, Any]], list[str]]:
        """Predict rows above half of the table's most ranks from the others.

        Raises:
            UserError: too few rows are left to fit.
        """
        half = float(self.runs.ranks.max()) / 2
        held = self.runs.ranks > half
        if (~held).sum() < MIN_ROWS:
            raise UserError(
                f"table {self.name}: a back-test leaves out rows above {half:g} ranks; {(~held).sum()} are left, it "
                f"needs {MIN_ROWS}"
            )
        fitted = fit(self.runs.take(~held), self.seconds[~held], groups=self.family[~held], known=self._known)
        found = fitted.predict(self.runs.take(held))
        rows = [
            tested(
                words(self.frame, place, range(len(self.frame))),
                int(self.runs.ranks[place]),
                *self._pair(found, n, place),
            )
            for n, place in enumerate(np.flatnonzero(held).tolist())
        ]
        return rows, [
            f"fitted to the {(~held).sum()} rows of up to {self.runs.ranks[~held].max():g} ranks",
            summary(rows),
        ]

    def _pair(self, found: Prediction, number: int, place: int) -> tuple[float, tuple[float, float, float]]:
        ends = (float(found.step_s[number]), float(found.low_s[number]), float(found.high_s[number]))
        return float(self.seconds[place]), ends


def beside_series(frame: pd.DataFrame, name: str) -> list[str]:
    """A line where each layout alone, as a series of ranks, foretells its largest scale better than the model does.

    The largest scale of each layout of LEAST_SCALES or more is held back, of TRIED layouts at most. The layout alone
    predicts it by a power of the ranks through the two scales before it.
    """
    family, ranks = families(frame), frame["ranks"]
    scales = ranks.groupby(family).nunique()
    tried = scales[scales >= LEAST_SCALES].nlargest(TRIED).index
    held = family.isin(tried) & (ranks == ranks.groupby(family).transform("max"))
    if scales.min() < 2 or not held.any() or (~held).sum() < MIN_ROWS:
        return []
    by_series = [_missed_by_series(frame[family == each]) for each in tried]
    known = LayoutCurves.of(frame[~held].reset_index(drop=True), name)
    found = known.of_rows(frame[held].drop(columns=["step_s"]).reset_index(drop=True))
    by_model = [abs(row["step_s"] / step_s - 1) for row, step_s in zip(found, frame["step_s"][held], strict=True)]
    if np.mean(by_series) > np.mean(by_model) - CLEARLY:
        return []
    return [
        f"warning: held back, the largest scales are off by {np.mean(by_model):.1%} with the model of layouts, by "
        f"{np.mean(by_series):.1%} with each layout as a series of ranks: `benchsuite predict --table` predicts series "
        "of ranks, from a table without the model's shape"
    ]


def _missed_by_series(rows: pd.DataFrame) -> float:
    """How far a layout's largest scale is from the power of the ranks through the two before it, as a share."""
    middle = rows.groupby("ranks")["step_s"].median()
    ranks, seconds = np.log(middle.index.to_numpy(dtype=np.float64))[-3:], np.log(middle.to_numpy())[-3:]
    slope = (seconds[1] - seconds[0]) / (ranks[1] - ranks[0])
    return float(abs(np.expm1(seconds[1] + slope * (ranks[2] - ranks[1]) - seconds[2])))


def _times_off() -> float:
    """How many times the network between nodes may be slower or faster than assumed, with 90 %."""
    return float(np.exp(Z_95 * UNKNOWN))


def _with_any_network(predictor: Predictor, wanted: Configurations, found: Prediction) -> Prediction:
    """The prediction with ends that hold the network between nodes as its prior has it."""

    def ends(factor: float) -> Prediction:
        taken = predictor.fitted.constants
        changed = replace(taken, node_bytes_per_s=factor * taken.node_bytes_per_s)
        return replace(predictor, fitted=replace(predictor.fitted, constants=changed)).predict(wanted)

    fast, slow = ends(_times_off()), ends(1 / _times_off())
    return replace(found, low_s=np.minimum(found.low_s, fast.low_s), high_s=np.maximum(found.high_s, slow.high_s))


def _scaled(found: Prediction, factor: float, half: float) -> Prediction:
    """The prediction times a factor, with ends so far away in log time."""
    seconds = found.step_s * factor
    scaled = {field.name: getattr(found.parts, field.name) * factor for field in fields(found.parts)}
    return Prediction(seconds, seconds * np.exp(-half), seconds * np.exp(half), Cost(**scaled))


def _as_row(
    found: Prediction, measured: float | None, ranks: int, samples: float, ideal: float | None
) -> dict[str, Any]:
    seconds = [float(found.step_s[0]), float(found.low_s[0]), float(found.high_s[0])]
    rates = [samples / seconds[0], samples / seconds[2], samples / seconds[1]]
    row: dict[str, Any] = {"ranks": ranks, "measured_s": measured}
    efficiency = [None if ideal is None else rate / ideal for rate in rates]
    for name, values in (("step_s", seconds), ("samples_per_s", rates), ("efficiency", efficiency)):
        row |= {f"{name}{end}": value for end, value in zip(("", "_low", "_high"), values, strict=True)}
    of = found.parts
    busy = of.compute_s + of.recompute_s + of.optimizer_s + of.straggling_s
    shares = {"compute": busy, "communication": of.communication_s, "bubble": of.bubble_s}
    return row | {f"{name}_share": float(share[0]) / seconds[0] for name, share in shares.items()}
