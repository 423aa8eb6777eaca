"""Efficiencies of layouts are over what was measured."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchsuite.predict.scaling.table_input import read
from benchsuite_plan.tables.layout_fit import priors
from benchsuite_plan.tables.table_layouts import LayoutCurves

ROWS = [
    # ranks, microbatch, samples of all, tensor, seconds
    (2, 1, 32, 1, 0.81), (4, 1, 64, 1, 0.82), (8, 1, 128, 1, 1.20),
    (2, 1, 16, 2, 0.42), (4, 1, 32, 2, 0.43), (8, 1, 64, 2, 0.44),
    (4, 2, 128, 1, 1.61), (2, 2, 32, 2, 0.83),
]  # fmt: skip


@pytest.fixture
def curves(tmp_path: Path) -> LayoutCurves:
    lines = ["gpus,microbatch,global_batch,hidden,layers,seq,tp,step_s"]
    lines += [f"{n},{micro},{batch},1024,24,1024,{tp},{step}" for n, micro, batch, tp, step in ROWS]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    return LayoutCurves.of(read(tmp_path / "t.csv"), "t.csv")


def test_weak_efficiency_is_the_measured_step_over_the_predicted(curves: LayoutCurves):
    """The first layout's 8 ranks took half as long again as any model of 2 and 4 says."""
    rows = curves.outlooks((16,), "weak")
    baselines = [(row["baseline_ranks"], row["baseline_s"]) for row in rows]
    assert baselines == [(8, 1.20), (8, 0.44), (4, 1.61), (2, 0.83)]
    for row in rows:
        assert row["efficiency"] == pytest.approx(row["baseline_s"] / row["step_s"])
        assert row["efficiency_high"] == pytest.approx(row["baseline_s"] / row["step_s_low"])


def test_strong_efficiency_counts_the_ranks(curves: LayoutCurves):
    for row in curves.outlooks((16,), "strong"):
        grown = 16 / row["baseline_ranks"]
        assert row["efficiency"] == pytest.approx(row["baseline_s"] / row["step_s"] / grown)


def test_the_baseline_is_named(curves: LayoutCurves):
    wanted = "efficiency: over the step that was measured at each layout's most ranks (2 to 8)"
    assert wanted in curves.assumptions("weak")


def test_a_table_of_one_node_tells_nothing_of_the_network_between(curves: LayoutCurves):
    """Eight ranks a node: at 16 the network counts, which may be 3.4 times slower or faster than assumed."""
    rows = curves.outlooks((8, 16), "weak")
    widths = {n: [row["step_s_high"] / row["step_s"] for row in rows if row["ranks"] == n] for n in (8, 16)}
    assert min(widths[16]) > 1.01 * max(widths[8])
    (line,) = [line for line in curves.assumptions("weak") if line.startswith("warning: every row fits on one node of")]
    assert "GB/s a node), not measured; intervals beyond a node hold 1/3.4 to 3.4 times that; " in line
    assert line.endswith("give yours with --node-bandwidth")
    assert not replace(curves, runs=replace(curves.runs, ranks_per_node=np.full(len(ROWS), 4.0))).one_node


def test_a_network_that_is_given_is_not_assumed(curves: LayoutCurves):
    """Ranks of 16 exchange over 1 MB/s a node at once for seconds, over 1 TB/s for next to nothing."""
    slow, fast = (replace(curves, node_bytes_per_s=rate) for rate in (1e6, 1e12))
    for one, other in zip(slow.outlooks((16,), "weak"), fast.outlooks((16,), "weak"), strict=True):
        assert one["step_s"] > 5 * other["step_s"]
    as_assumed = replace(curves, node_bytes_per_s=priors()["node_bytes_per_s"].median).outlooks((16,), "weak")
    for one, other in zip(as_assumed, curves.outlooks((16,), "weak"), strict=True):
        assert one["step_s"] == pytest.approx(other["step_s"])
        assert one["step_s_high"] < 0.995 * other["step_s_high"], "no slower network is allowed for"
    lines = fast.assumptions("weak")
    assert "no row has ranks on several nodes: between nodes each is taken to get about 1000 GB/s, as given" in lines
    assert not any("node_bytes_per_s" in line or "is assumed (" in line for line in lines)


def test_a_back_test_knows_the_network_that_is_given(curves: LayoutCurves):
    """Four ranks a node: the rows of 8, which are held back, alone exchange over two."""
    two = replace(curves, runs=replace(curves.runs, ranks_per_node=np.full(len(ROWS), 4.0)))
    slow, fast = (replace(two, node_bytes_per_s=rate).back_test()[0] for rate in (1e7, 1e12))
    assert all(one["step_s"] > 2 * other["step_s"] for one, other in zip(slow, fast, strict=True))


def test_constants_that_the_table_does_not_tell_are_named(curves: LayoutCurves):
    (line,) = [line for line in curves.assumptions("weak") if line.startswith("not learnt from the table, so taken at")]
    assert "would tell it): " in line and "node_bytes_per_s" in line
