"""A table of layouts with times: the model of layouts fitted to all of it, and each layout predicted at more ranks."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pandas as pd

from benchsuite.contract.errors import UserError
from benchsuite.predict.scaling.layout_fit import MIN_ROWS, Prediction, Predictor, fit
from benchsuite.predict.scaling.outlook import summary, tested
from benchsuite.predict.scaling.series import MAX_BEYOND
from benchsuite.predict.scaling.table_input import configurations, families, samples_per_step, words
from benchsuite.predict.theory.interval import Z_95
from benchsuite.predict.theory.transformer_step import PRIORS, Configurations

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
        """Of a table that `table_input.has_layouts`.

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
        most = int(self.runs.ranks.max())
        beyond = [number for number in ranks if number > MAX_BEYOND * most]
        if beyond and not far:
            raise UserError(
                f"table {self.name}: {beyond[0]} ranks are {beyond[0] / most:.3g} times the {most} measured; allowed: "
                f"up to {MAX_BEYOND} times ({MAX_BEYOND * most}), or give --far"
            )

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
        predictor = self.predictor()
        shown = replace(predictor, fitted=replace(predictor.fitted, constants=self._faster(predictor)))
        samples = samples_per_step(self.frame).to_numpy(dtype=np.float64)
        found = []
        for family in self.family.unique().tolist():
            places = np.flatnonzero(self.family == family)
            place = int(places[np.argmax(self.runs.ranks[places])])
            made = [self._row(shown, place, samples[place], count, scaling) for count in ranks]
            label = words(self.frame, place, range(len(self.frame)))
            found += [{"label": label, **row} for row in made if row is not None]
        if not found:
            raise UserError(f"table {self.name}: no layout of it can be at {', '.join(map(str, ranks))} ranks")
        return found

    def _faster(self, predictor: Predictor) -> dict[str, float]:
        constants = predictor.fitted.constants
        return {name: value * (self.network if name in NETWORK else 1.0) for name, value in constants.items()}

    def _row(self, predictor: Predictor, place: int, samples: float, ranks: int, scaling: str) -> dict[str, Any] | None:
        """The layout of a measured row at other ranks: data-parallel ranks follow. Its efficiency is over that row."""
        one = self.runs.take(np.array([place]))
        data = ranks / float(one.tensor[0] * one.pipeline[0])
        grown = data / float(one.data[0]) if scaling == "weak" else 1.0
        batches = samples * grown / data / float(one.microbatch[0])
        if data % 1 or data < 1 or batches < 1 or abs(batches % 1) > 1e-9:
            return None
        wanted = replace(one, data=np.array([data]), num_microbatches=np.array([round(batches)]))
        found = predictor.predict(wanted)
        if self.one_node and self.node_bytes_per_s is None and ranks > float(one.ranks_per_node[0]):
            found = _with_any_network(predictor, wanted, found)
        ideal = samples / float(self.seconds[place]) * ranks / float(one.ranks[0])
        baseline = {"baseline_ranks": int(one.ranks[0]), "baseline_s": float(self.seconds[place])}
        return _as_row(found, ranks, samples * grown, ideal) | baseline

    def assumptions(self, scaling: str) -> list[str]:
        """What the predictions of all layouts rest on."""
        predictor = self.predictor()
        learnt = [name for name, known in predictor.fitted.learnt.items() if known]
        kept = [name for name in PRIORS if name not in (*learnt, *self._known)]
        batch = "the batch of a data-parallel rank stays" if scaling == "weak" else "the batch of all ranks stays"
        unseen = "of layouts not seen" if self.family.nunique() > 1 else "not seen"
        return [
            f"one model fitted to {len(self.frame)} rows; {batch}",
            f"efficiency: over the step that was measured at each layout's most ranks ({self._baselines()})",
            f"rows {unseen} are off by {predictor.mape:.1%} on average; intervals are quantiles of these errors, wider "
            f"beyond {predictor.most_ranks:g} ranks and the sizes of the table",
            f"learnt from the table: {', '.join(learnt) or 'nothing'}",
            f"not learnt from the table, so taken at about the values that are assumed of any machine (rows that "
            f"differ in what such a constant acts on would tell it): {', '.join(kept) or 'nothing'}",
            *self._of_nodes(predictor),
            *self.assumed,
        ]

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
        taken, most = predictor.fitted.constants["node_bytes_per_s"], _times_off()
        return [
            f"warning: every row fits on one node of {self.runs.ranks_per_node.max():g} ranks: the network between "
            f"nodes is assumed ({taken / 1e9:.3g} GB/s a node), not measured; intervals beyond a node hold "
            f"1/{most:.2g} to {most:.2g} times that; give yours with --node-bandwidth"
        ]

    def _baselines(self) -> str:
        """Of all layouts: the least and the most of their most ranks."""
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


def _times_off() -> float:
    """How many times the network between nodes may be slower or faster than assumed, with 90 %."""
    return float(np.exp(Z_95 * PRIORS["node_bytes_per_s"].log_sd))


def _with_any_network(predictor: Predictor, wanted: Configurations, found: Prediction) -> Prediction:
    """The prediction with ends that hold the network between nodes as its prior has it."""

    def ends(factor: float) -> Prediction:
        taken = predictor.fitted.constants
        changed = {**taken, "node_bytes_per_s": factor * taken["node_bytes_per_s"]}
        return replace(predictor, fitted=replace(predictor.fitted, constants=changed)).predict(wanted)

    fast, slow = ends(_times_off()), ends(1 / _times_off())
    return replace(found, low_s=np.minimum(found.low_s, fast.low_s), high_s=np.maximum(found.high_s, slow.high_s))


def _as_row(found: Prediction, ranks: int, samples: float, ideal: float) -> dict[str, Any]:
    seconds = [float(found.step_s[0]), float(found.low_s[0]), float(found.high_s[0])]
    rates = [samples / seconds[0], samples / seconds[2], samples / seconds[1]]
    row: dict[str, Any] = {"ranks": ranks}
    for name, values in (("step_s", seconds), ("samples_per_s", rates), ("efficiency", [r / ideal for r in rates])):
        row |= {f"{name}{end}": value for end, value in zip(("", "_low", "_high"), values, strict=True)}
    parts = {field.name: float(getattr(found.parts, field.name)[0]) for field in fields(found.parts)}
    exchange = parts["tensor"] + parts["data"]
    shares = {"compute": parts["compute"] + parts["rest"], "communication": exchange, "bubble": parts["bubble"]}
    return row | {f"{name}_share": value / seconds[0] for name, value in shares.items()}
