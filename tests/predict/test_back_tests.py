"""Predictions held to published measurements: a selection of rows here, all of them where PUBLISHED_TABLES has them."""

import numpy as np
import pandas as pd
import pytest

from bench import collectives, links
from bench.predict import storage_errors

STORAGE = [
    # workload, accelerator, number of them, AU %, samples per second
    ("cosmoflow", "a100", 15, 72.44, 1969.465),
    ("cosmoflow", "a100", 40, 70.673, 5108.641),
    ("cosmoflow", "h100", 1, 82.803, 236.366),
    ("cosmoflow", "h100", 13, 72.379, 2682.497),
    ("cosmoflow", "h100", 30, 84.526, 7204.172),
    ("cosmoflow", "h100", 120, 70.546, 23758.918),
    ("resnet50", "a100", 50, 97.734, 44923.502),
    ("resnet50", "a100", 500, 94.415, 433567.974),
    ("resnet50", "h100", 1, 99.437, 1775.606),
    ("resnet50", "h100", 58, 90.329, 93464.018),
    ("resnet50", "h100", 270, 97.394, 467608.659),
    ("resnet50", "h100", 1056, 92.883, 1747109.829),
    ("unet3d", "a100", 4, 96.002, 40.708),
    ("unet3d", "a100", 40, 93.137, 391.861),
    ("unet3d", "a100", 195, 93.713, 1954.334),
    ("unet3d", "h100", 1, 98.633, 21.239),
    ("unet3d", "h100", 5, 92.722, 99.811),
    ("unet3d", "h100", 12, 93.412, 232.108),
    ("unet3d", "h100", 60, 94.866, 1150.767),
    ("unet3d", "h100", 100, 91.559, 1881.077),
]
"""Closed results of MLPerf Storage v1.0 (mlcommons/storage_results_v1.0), means of five runs."""
CONFIGS = [
    ("unet3d", "A100", 7, 0.636),
    ("unet3d", "H100", 7, 0.323),
    ("resnet50", "A100", 400, 0.435),
    ("resnet50", "H100", 400, 0.224),
    ("cosmoflow", "A100", 1, 0.00551),
    ("cosmoflow", "H100", 1, 0.0035),
]
"""Batch and computation time (mlcommons/storage, configs/dlio/workload)."""


def storage_tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    results = pd.DataFrame(STORAGE, columns=["workload", "acc", "n_acc", "AU_pct", "samples_per_s"])
    return results, pd.DataFrame(CONFIGS, columns=["workload", "accelerator", "batch", "computation_time_s"])


def test_samples_per_second_from_utilization():
    errors = storage_errors(*storage_tables())
    assert [len(values) for values in errors.values()] == [6, 6, 8]
    assert np.median(errors["cosmoflow"]) < 0.01
    assert np.median(errors["resnet50"]) < 0.01
    assert np.median(errors["unet3d"]) < 0.05


def test_goals_of_links_tell_how_many_intervals_hold(capsys: pytest.CaptureFixture[str]):
    rows = [links.Held("ddp", 8, 1.0, 1.05, 0.9, 1.2), links.Held("tp", 8, 1.0, 1.2, 1.1, 1.3)]
    links.show_goals(rows)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "coverage: 1 of 2 90 % intervals hold what was measured (50%)"
    assert [line.strip() for line in lines[1:]] == [
        "goal: median error <= 8%: MISSED (12.5%)",
        "goal: worst error <= 15%: MISSED (20.0%)",
    ]


def test_goals_of_collectives_name_each_step_table(capsys: pytest.CaptureFixture[str]):
    times = {"backend": 1.02, "ring": 1.05, "tree": 1.3}
    collectives.show_gaps([collectives.Held(4, "all_reduce", name, 1 << 20, s, 1.0) for name, s in times.items()])
    assert [line.strip() for line in capsys.readouterr().out.splitlines()] == [
        "gloo's own against its wire: median 2.0%, worst 2.0%",
        "goal: gloo's own: median <= 10%: met",
        "ring against its wire: median 5.0%, worst 5.0%",
        "goal: ring: median <= 10%: met",
        "tree against its wire: median 30.0%, worst 30.0%",
        "goal: tree: median <= 10%: MISSED",
    ]


class TestAllRows:
    def test_storage(self, published: dict[str, pd.DataFrame]):
        errors = storage_errors(published["mlperf_storage_v1_results"], published["mlperf_storage_configs"])
        goals = {"cosmoflow": 0.01, "resnet50": 0.01, "unet3d": 0.05}
        assert {name for name, values in errors.items() if np.median(values) <= goals[name]} == {*goals}
