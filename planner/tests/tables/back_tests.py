"""Back-tests of the predictor on published measurements: fitted to some rows, held to the others."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from benchsuite.predict.theory.arrays import Floats
from benchsuite_plan.tables.configurations import Configurations
from benchsuite_plan.tables.layout_fit import fit
from planner.tests.tables.published import mpt, vtrain

NETWORK = {"a100_40gb": 0.8 * 200e9, "a100_80gb": 0.8 * 200e9, "h100_80gb": 0.8 * 400e9}
"""Bytes/s of a node: 80 % of 1600 Gb/s, as llm-foundry says of its A100-40GB hosts, taken for those of 80 GB too, and
of 3200 Gb/s as of DGX H100."""
LEFT_OUT = "amp_fp8"
"""Precision of rows that are neither fitted nor predicted: the model has one rate of products a device."""


@dataclass(frozen=True)
class BackTest:
    """Rows that a model had not seen."""

    predicted_s: Floats
    measured_s: Floats
    low_s: Floats
    high_s: Floats

    @property
    def errors(self) -> Floats:
        """|predicted / measured - 1|."""
        return np.asarray(np.abs(self.predicted_s / self.measured_s - 1), dtype=np.float64)

    @property
    def covered(self) -> float:
        """Share of measurements within their 90 % intervals."""
        return float(np.mean((self.measured_s >= self.low_s) & (self.measured_s <= self.high_s)))

    def __str__(self) -> str:
        errors = self.errors
        return (
            f"{len(errors)} rows: MAPE {errors.mean():.2%}, median {np.median(errors):.2%}, worst {errors.max():.1%}; "
            f"{self.covered:.0%} within 90 % intervals"
        )


def halves(table: pd.DataFrame, seeds: int) -> list[BackTest]:
    """Fit to a random half of vTrain's rows and predict the other, once per seed."""
    runs, seconds = vtrain(table)
    found = []
    for seed in range(seeds):
        chosen = np.random.default_rng(seed).permutation(len(seconds)) < len(seconds) // 2
        found.append(held_out(runs, seconds, chosen))
    return found


def held_out(
    runs: Configurations, seconds: Floats, chosen: "np.ndarray[tuple[int], np.dtype[np.bool_]]", **options: object
) -> BackTest:
    """Fit to the chosen rows, predict the rest."""
    fitted = fit(runs.take(chosen), seconds[chosen], **options)  # type: ignore[arg-type]
    found = fitted.predict(runs.take(~chosen))
    return BackTest(found.step_s, seconds[~chosen], found.low_s, found.high_s)


def joined(tests: Sequence[BackTest]) -> BackTest:
    """All their rows."""
    names = ("predicted_s", "measured_s", "low_s", "high_s")
    return BackTest(*(np.concatenate([getattr(test, name) for test in tests]) for name in names))


def mpt_scales(table: pd.DataFrame) -> Iterator[tuple[str, BackTest, Floats]]:
    """By device: FSDP rows of more than half of the most devices, fitted to the others.

    The third is the error of keeping tokens per second and device, where a row has the same model at a smaller scale.
    """
    for device, network in NETWORK.items():
        rows = table[(table["gpu"] == device) & (table["precision"] != LEFT_OUT)].reset_index(drop=True)
        runs, seconds = mpt(rows)
        small = (rows["gpus"] <= rows["gpus"].max() / 2).to_numpy()
        groups = (rows["model"] + rows["seq"].astype(str)).to_numpy()[small]
        test = held_out(runs, seconds, small, groups=groups, known={"node_bytes_per_s": network})
        yield device, test, constant_rate(rows, small)


LAYOUT = ("microbatch", "hidden_size", "num_layers", "seq_len", "tensor", "pipeline", "zero", "recompute")
MODEL = ("hidden_size", "num_layers")


def constant_rate(rows: pd.DataFrame, small: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> Floats:
    """|error| of the rate per device of the largest smaller scale of the same model and length."""
    errors = []
    for _, row in rows[~small].iterrows():
        same = rows[small & (rows["model"] == row["model"]).to_numpy() & (rows["seq"] == row["seq"]).to_numpy()]
        if len(same):
            before = same.sort_values("gpus")["tokens_per_s_gpu"].iloc[-1]
            errors.append(abs(row["tokens_per_s_gpu"] / before - 1))
    return np.array(errors)
