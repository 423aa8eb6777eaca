"""Back-tests of the predictor on published measurements: fitted to some rows, held to the others."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bench.published import mpt, vtrain
from benchsuite.predict.theory.arrays import Floats
from benchsuite.predict.theory.input import samples_per_s
from benchsuite.predict.theory.interval import coverage
from benchsuite_plan.tables.configurations import Configurations
from benchsuite_plan.tables.layout_fit import errors_out_of_sample, fit, fit_constants, priors_for

SEEDS_SINGLE, SEEDS_MULTI = 5, 20
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
        return coverage(self.measured_s, self.low_s, self.high_s)

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


def unseen_shapes(table: pd.DataFrame) -> BackTest:
    """vTrain's rows of each width, degree of tensor parallelism and microbatch, fitted to those of all others."""
    runs, seconds = vtrain(table)
    kernels = runs.hidden_size * 1e4 + runs.tensor * 1e2 + runs.microbatch
    folds = np.random.default_rng(0).permutation(np.unique(kernels))
    return joined([held_out(runs, seconds, ~np.isin(kernels, folds[k::8])) for k in range(8)])


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


def groups_left_out(found: Mapping[str, pd.DataFrame], columns: Sequence[str]) -> dict[str, Floats]:
    """By table, log errors of rows whose whole group, of equal `columns`, the model was not fitted to; ten folds."""
    every = {name: (*vtrain(found[name]), None) for name in ("vtrain_single_node", "vtrain_multi_node")}
    for device, network in NETWORK.items():
        table = found["llmfoundry_fsdp"]
        rows = table[(table["gpu"] == device) & (table["precision"] != LEFT_OUT)].reset_index(drop=True)
        every[device] = (*mpt(rows), {"node_bytes_per_s": network})
    errors = {}
    for name, (runs, seconds, known) in every.items():
        given = priors_for(runs, seconds, known)
        whole = fit_constants(runs.work, seconds, given)
        groups = np.unique(np.stack([getattr(runs, each) for each in columns], axis=1), axis=0, return_inverse=True)[1]
        errors[name] = errors_out_of_sample(runs.work, seconds, whole, given, groups, seed=0)
    return errors


def one_source_from_the_other(found: Mapping[str, pd.DataFrame]) -> list[BackTest]:
    """vTrain's rows of several nodes by a fit to those of one, and the other way round."""
    one, several = vtrain(found["vtrain_single_node"]), vtrain(found["vtrain_multi_node"])
    tests = []
    for (runs, seconds), (wanted, measured) in ((one, several), (several, one)):
        told = fit(runs, seconds).predict(wanted)
        tests.append(BackTest(told.step_s, measured, told.low_s, told.high_s))
    return tests


def constant_rate(rows: pd.DataFrame, small: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> Floats:
    """|error| of the rate per device of the largest smaller scale of the same model and length."""
    errors = []
    for _, row in rows[~small].iterrows():
        same = rows[small & (rows["model"] == row["model"]).to_numpy() & (rows["seq"] == row["seq"]).to_numpy()]
        if len(same):
            before = same.sort_values("gpus")["tokens_per_s_gpu"].iloc[-1]
            errors.append(abs(row["tokens_per_s_gpu"] / before - 1))
    return np.array(errors)


def storage_errors(results: pd.DataFrame, configs: pd.DataFrame) -> dict[str, Floats]:
    """By workload, |error| of N AU batch / t_c against the samples per second that MLPerf Storage v1.0 published."""
    given = configs.assign(acc=configs["accelerator"].str.lower())
    rows = results.merge(given, on=["workload", "acc"], validate="many_to_one")
    rate = samples_per_s(rows["n_acc"], rows["AU_pct"] / 100, rows["batch"], rows["computation_time_s"])
    errors = np.abs(rate / rows["samples_per_s"].to_numpy() - 1)
    return {name: errors[(rows["workload"] == name).to_numpy()] for name in sorted(set(rows["workload"]))}
