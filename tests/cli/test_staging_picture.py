"""The table and the figure of the bench `staging`."""

from bench.staging import Line, figure, table


def test_table_and_figure_of_it() -> None:
    lines = [
        Line("unet3d", "none", (1, 2), (1.0, 0.614), "storage", None),
        Line("unet3d", "copy", (1, 2), (1.0, 0.996), "none", 2.5),
    ]
    assert table(lines).splitlines() == [
        "| workload | read from | AU at 1 | AU at 2 | verdict at most |",
        "| --- | --- | --- | --- | --- |",
        "| unet3d | shared disk | 1.00 | 0.61 | storage |",
        "| unet3d | node-local copy | 1.00 | 1.00 | none |",
    ]
    drawn = figure(lines)
    assert drawn.count("<polyline") == 2 and drawn.count("<circle") == 4 and "unet3d, node-local copy" in drawn
