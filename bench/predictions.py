"""The section `predict`: back-tests on published measurements, each with its goal."""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import bdtr

from bench import predict
from bench.published import tables
from benchsuite.predict.theory.arrays import Floats
from benchsuite_plan.tables.layout_fit import mean_off

MAX_SINGLE, MAX_MULTI, MAX_SCALES = 0.06, 0.08, 0.025
MAX_STORAGE, MAX_UNET3D = 0.01, 0.05
COVERED = (0.80, 0.97)


def told(met: bool | np.bool, text: str) -> None:
    """A goal and whether it was met."""
    print(f"   goal: {text}: {'met' if met else 'MISSED'}")


def show(_folder: Path) -> None:
    """(t)"""
    path = os.environ.get("PUBLISHED_TABLES")
    if path:
        show_published(tables(Path(path)))
    else:
        print("(t) predictor on published tables: not run; give a JSON file of them as PUBLISHED_TABLES=FILE")


def show_published(found: Mapping[str, pd.DataFrame]) -> None:
    """Goals b to e."""
    print("(t) predictor, fitted to some published rows and held to the others")
    tests = []
    for name, seeds, most in (
        ("vtrain_single_node", predict.SEEDS_SINGLE, MAX_SINGLE),
        ("vtrain_multi_node", predict.SEEDS_MULTI, MAX_MULTI),
    ):
        halves = predict.halves(found[name], seeds)
        means = [float(test.errors.mean()) for test in halves]
        tests.append(predict.joined(halves))
        print(f"    {name}, random halves by {seeds} seeds: {tests[-1]}")
        print(f"    MAPE by seed: median {np.median(means):.2%}, {min(means):.2%} to {max(means):.2%}")
        told(tests[-1].errors.mean() <= most, f"MAPE of all seeds <= {most:.1%}")
        covers(tests[-1])
    print(f"    vtrain_single_node, shapes of kernels not seen: {predict.unseen_shapes(found['vtrain_single_node'])}")
    for words, columns in (("layouts", predict.LAYOUT), ("models", predict.MODEL)):
        errors = predict.groups_left_out(found, columns)
        told_of = ", ".join(f"{name} {mean_off(each):.2%}" for name, each in errors.items())
        print(f"    {words} left out: all {mean_off(np.concatenate([*errors.values()])):.2%} MAPE; {told_of}")
    several, one = predict.one_source_from_the_other(found)
    print(f"    vTrain's several nodes from one: {several}; one from several: {one}")
    show_scales(found["llmfoundry_fsdp"])
    show_storage(found["mlperf_storage_v1_results"], found["mlperf_storage_configs"])


def covers(test: predict.BackTest) -> None:
    """Whether as many intervals hold as should; missed where so many or few had a chance below 5 % at both ends."""
    count, held = len(test.errors), round(test.covered * len(test.errors))
    few, many = bdtr(held, count, COVERED[0]), 1 - bdtr(held - 1, count, COVERED[1]) if held else 1.0
    told(
        min(few, many) >= 0.05,
        f"90 % intervals hold in {COVERED[0]:.0%} to {COVERED[1]:.0%} (as {count} rows can tell)",
    )


def show_scales(table: pd.DataFrame) -> None:
    """Goal d."""
    every = []
    left_out = int((table["precision"] == predict.LEFT_OUT).sum())
    print(
        f"    llm-foundry FSDP: {left_out} of {len(table)} rows left out: precision {predict.LEFT_OUT} is not modelled"
    )
    for device, test, constant in predict.mpt_scales(table):
        every.append(test)
        print(f"    llm-foundry FSDP, {device}: {test}; {_kept(constant)}")
    print(f"    all: {predict.joined(every)}")
    told(predict.joined(every).errors.mean() <= MAX_SCALES, f"MAPE <= {MAX_SCALES:.1%}")
    covers(predict.joined(every))


def _kept(constant: Floats) -> str:
    if not len(constant):
        return "no smaller scale of the same model to keep tokens/s/device of"
    return f"keeping tokens/s/device {constant.mean():.2%}"


def show_storage(results: pd.DataFrame, configs: pd.DataFrame) -> None:
    """Goal e."""
    for workload, errors in predict.storage_errors(results, configs).items():
        most = MAX_UNET3D if workload == "unet3d" else MAX_STORAGE
        median = float(np.median(errors))
        print(f"    MLPerf Storage v1.0 {workload}: samples/s from AU off by {median:.2%} (median of {len(errors)})")
        told(median <= most, f"<= {most:.0%}")
