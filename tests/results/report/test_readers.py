"""What a report says of stock readers beside our own."""

from typing import Any

import pytest

from benchsuite.results.report.readers import UNRANKED, lines


def point(form: str, reader: str | None, rate: float, **changes: Any) -> dict[str, Any]:
    found = {
        "label": f"{form} {reader} 2 workers",
        "status": "ok",
        "session": "s",
        "samples_per_s": rate,
        "au": rate / 1000,
        "bottleneck": "preprocessing",
        "caveats": [],
        "spec.data.format": form,
        "spec.data.reader": reader,
        "spec.data.num_workers": 2,
    }
    return found | changes


def test_what_a_library_holds_back_is_told_beside_what_storage_does() -> None:
    points = [
        point("hdf5", "stock", 606.0),
        point("hdf5", "tuned", 650.0),
        point("webdataset", "stock", 99.4),
        point("webdataset", "tuned", 816.0),
        point("lmdb", "stock", 192.0),
    ]
    assert lines(points) == [
        "webdataset 2 workers, in training: stock 99, tuned 816 samples/s: tuned gives 8.2 x: held back by its "
        "library, not by the format or the storage",
        "hdf5 2 workers, in training: stock 606, tuned 650 samples/s: tuned gives 1.1 x: its library gives what the "
        "format and the storage have to give",
        UNRANKED,
    ]


def test_our_own_reader_has_a_loader_of_its_own() -> None:
    by_library = point("files", "stock", 100.0, **{"spec.data.loader": "torch"})
    ours = point("files", "tuned", 200.0, **{"spec.data.loader": "threads"})
    assert lines([by_library, ours])[0].startswith("files 2 workers, in training: stock 100, tuned 200 samples/s")
    before = point("files", "tuned", 150.0, **{"spec.data.loader": "torch"})
    assert lines([by_library, before, ours])[0].startswith("files 2 workers, in training: stock 100, tuned 150")


def test_loaders_alone_are_compared_where_both_are_known() -> None:
    alone = [point("files", reader, 100.0, loader_only_samples_per_s=rate) for reader, rate in STOCK_AND_TUNED]
    assert lines(alone)[0].startswith("files 2 workers, the loader alone: stock 200, tuned 500 samples/s: tuned gives")
    unnamed = [{**row, "label": row["spec.data.reader"]} for row in alone]
    assert lines(unnamed)[0].startswith("the loader alone: stock 200")
    assert "stock 100, tuned 100 samples/s" in lines([{**alone[0], "loader_only_samples_per_s": None}, alone[1]])[0]


def test_a_library_that_training_does_not_wait_for_is_said_to_hold_it_back_in_nothing() -> None:
    alone = [point("files", reader, 48.0, loader_only_samples_per_s=rate) for reader, rate in STOCK_AND_TUNED]
    no_matter = "; training is not held back by it (stock 48, tuned 48 samples/s)"
    assert lines(alone)[0].endswith(f"not by the format or the storage{no_matter}")
    assert lines([alone[0], {**alone[1], "samples_per_s": 60.0}])[0].endswith("not by the format or the storage")


STOCK_AND_TUNED = (("stock", 200.0), ("tuned", 500.0))


def test_our_own_reading_has_no_rank_where_another_reader_reads_another_format() -> None:
    assert lines([point("hdf5", "stock", 606.0), point("files", "tuned", 800.0)]) == [UNRANKED]
    assert lines([point("hdf5", "tuned", 650.0), point("files", "tuned", 800.0)]) == []


@pytest.mark.parametrize(
    "other",
    [
        {"spec.data.num_workers": 4},
        {"session": "t"},
        {"status": "failed"},
        {"samples_per_s": None},
        {"spec.data.reader": "stock"},
    ],
)
def test_only_points_that_differ_in_nothing_else_are_compared(other: dict[str, Any]) -> None:
    found = lines([point("files", "stock", 100.0), point("files", "tuned", 200.0, **other)])
    assert [line for line in found if line != UNRANKED] == []
