"""Layouts of a table at more ranks: efficiencies over what was measured, networks, back-tests."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchsuite.contract.errors import UserError
from benchsuite_plan.tables.layout_fit import priors
from benchsuite_plan.tables.table_input import read
from benchsuite_plan.tables.table_layouts import LayoutCurves, beside_series

ROWS = [
    # ranks, microbatch, samples of all, tensor, seconds
    (2, 1, 32, 1, 0.81), (4, 1, 64, 1, 0.82), (8, 1, 128, 1, 1.20),
    (2, 1, 16, 2, 0.42), (4, 1, 32, 2, 0.43), (8, 1, 64, 2, 0.44),
    (4, 2, 128, 1, 1.61), (2, 2, 32, 2, 0.83),
]  # fmt: skip


def of(folder: Path, rows: list[tuple[float, ...]]) -> LayoutCurves:
    lines = ["gpus,microbatch,global_batch,hidden,layers,seq,tp,step_s"]
    lines += [f"{n},{micro},{batch},1024,24,1024,{tp},{step}" for n, micro, batch, tp, step in rows]
    (folder / "t.csv").write_text("\n".join(lines))
    return LayoutCurves.of(read(folder / "t.csv"), "t.csv")


@pytest.fixture(scope="module")
def curves(tmp_path_factory: pytest.TempPathFactory) -> LayoutCurves:
    return of(tmp_path_factory.mktemp("made"), ROWS)


def regular(count: int) -> list[tuple[float, ...]]:
    """Layouts on 2, 4 and 8 ranks whose steps are straight lines in the work."""
    found = []
    for n in range(count):
        gpus, tp, micro = 2 ** (1 + n % 3), 1 + n % 2, 2 ** (n // 3 % 3)
        found.append((gpus, micro, micro * 16 * gpus // tp, tp, 0.05 * micro * 16 / tp + 0.01 * tp))
    return found


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> LayoutCurves:
    return of(tmp_path_factory.mktemp("made"), regular(12))


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


def test_weak_keeps_microbatches_and_strong_divides_them(straight: LayoutCurves):
    weak, strong = straight.outlooks((32,), "weak"), straight.outlooks((32,), "strong")
    assert {row["ranks"] for row in (*weak, *strong)} == {32}
    assert weak[0]["samples_per_s"] > strong[0]["samples_per_s"]
    assert 0.3 < weak[0]["efficiency"] <= 1.0
    assert weak[0]["step_s_low"] < weak[0]["step_s"] < weak[0]["step_s_high"]
    shares = [weak[0][f"{name}_share"] for name in ("compute", "communication", "bubble")]
    assert sum(shares) == pytest.approx(1)


def test_a_layout_that_cannot_be_is_left_out(straight: LayoutCurves):
    assert all("tensor 2" not in row["label"] for row in straight.outlooks((17,), "weak"))
    with pytest.raises(UserError, match=r"t\.csv: no layout of it can be at 1024 ranks"):
        straight.outlooks((1024,), "strong")


def test_one_layout_alone_is_predicted(tmp_path: Path):
    curves = of(tmp_path, [(n, 2, 32 * n, 1, 0.5 + 0.01 * n) for n in (1, 2, 3, 4, 6, 8)])
    (row,) = curves.outlooks((16,), "weak")
    assert 0.4 < row["step_s_low"] < row["step_s"] < row["step_s_high"] < 1.0
    assert any(line.startswith("one model from one source: how far others") for line in curves.assumptions("weak"))


def test_refuses_too_far(straight: LayoutCurves):
    straight.check_reach([64], far=False)
    straight.check_reach([128], far=True)
    with pytest.raises(UserError, match=r"65 ranks are 8\.12 times the 8 measured; allowed: up to 8 times \(64\)"):
        straight.check_reach([16, 65], far=False)


def test_back_test_holds_the_largest_back(tmp_path: Path):
    rows, (fitted, summary) = of(tmp_path, regular(24)).back_test()
    assert {row["ranks"] for row in rows} == {8} and len(rows) == 8
    assert fitted == "fitted to the 16 rows of up to 4 ranks"
    assert np.median([abs(row["error"]) for row in rows]) < 0.1
    assert summary.startswith("8 predicted: error median ")


def test_a_faster_network_shortens_the_exchange(straight: LayoutCurves):
    slow, fast = (replace(straight, network=factor).outlooks((16,), "weak") for factor in (0.1, 10.0))
    assert slow[1]["communication_share"] > fast[1]["communication_share"]


def test_series_that_foretell_better_are_told(tmp_path: Path, curves: LayoutCurves):
    """Strong scaling by a power of the ranks that no wire explains, with layouts that no model of them joins."""
    rows = [(n, 1, 1024, 1 + k % 2, (1 + 9 * (k % 3)) * n**-0.8) for k in range(3) for n in (8, 16, 32)]
    (line,) = beside_series(of(tmp_path, rows).frame, "t.csv")
    assert line.startswith("warning: held back, the largest scales are off by ")
    assert "by 0.0% with each layout as a series of ranks: `benchsuite predict --table`" in line
    assert beside_series(curves.frame, "t.csv") == [], "some layouts have one scale"
