"""What has no effect is refused; a shuffle buffer that mixes nothing plans one point, with the id it always had."""

from pathlib import Path

import pytest

from benchsuite.contract.trial_spec import parse_trial
from benchsuite.grid.expand import expand
from benchsuite.grid.point import Point
from benchsuite.storage import LOADERS
from tests.helpers.grids import TWO_CORES, in_folder, load, plan, reasons, refused, storage_base

__all__ = ["in_folder"]
BUFFERS = [4, 8]


def buffers(points: list[Point]) -> list[int]:
    return [point.spec.data.shuffle_buffer for point in points]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({"format": "files"}, "format files"),
        ({"format": "lmdb", "shuffle": False}, "format lmdb"),
        ({"format": "webdataset", "shuffle": False}, "shuffle false"),
    ],
)
def test_without_effect_the_first_is_planned_and_the_rest_skipped(
    dataset_root: Path, data: dict[str, object], why: str
) -> None:
    base = storage_base(dataset_root, cache="warm", **data)
    found = plan(base, grid={"data.shuffle_buffer": [*BUFFERS, 16]})
    assert buffers(found.points) == [4]
    assert reasons(found) == [
        f"data.shuffle_buffer has no effect with {why}: {other} measures the same as 4" for other in (8, 16)
    ]


@pytest.mark.parametrize("loader", LOADERS)
def test_where_it_mixes_every_value_is_a_point(dataset_root: Path, loader: str) -> None:
    base = storage_base(dataset_root, cache="warm", format="webdataset", loader=loader)
    found = plan(base, grid={"data.shuffle_buffer": BUFFERS})
    assert (buffers(found.points), found.skipped) == (BUFFERS, [])


def test_other_axes_still_make_points(dataset_root: Path) -> None:
    axes = {"data.num_workers": [0, 1], "data.format": ["files", "webdataset"], "data.shuffle_buffer": BUFFERS}
    found = plan(storage_base(dataset_root, cache="warm"), grid=axes)
    told = [(point.spec.data.format, point.spec.data.num_workers) for point in found.points]
    assert told == [(name, n) for n in (0, 1) for name in ("files", "webdataset", "webdataset")]
    assert len(found.skipped) == 2


def test_the_point_that_is_planned_keeps_the_id_of_its_buffer(dataset_root: Path) -> None:
    base = storage_base(dataset_root, cache="warm")
    alone = [plan(base, grid={"data.shuffle_buffer": [size]}).points[0].point_id for size in BUFFERS]
    (point,) = plan(base, grid={"data.shuffle_buffer": BUFFERS}).points
    assert alone[0] == point.point_id != alone[1]


@pytest.mark.parametrize("kind", ["ring", "all_to_all"])
def test_attention_over_ranks_that_share_sequences_needs_such_ranks(kind: str) -> None:
    asked = f"parallelism={{cp_attention: {kind}}}"
    assert refused(asked) == "parallelism.cp_attention is of ranks that share sequences: give cp, the number of them"
    (point,) = expand(load("parallelism={cp_attention: ring, cp: 1}"), TWO_CORES).points
    assert parse_trial(point.spec.model_dump()) == point.spec, "as records have it"
