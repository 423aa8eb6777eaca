"""After how many epochs staging pays, against arithmetic done by hand."""

from typing import Any

import pytest

from benchsuite.results.scaling.staging import in_words, lines, pairs


def point(staging: str, rate: float | None, **changes: Any) -> dict[str, Any]:
    """A point over 1000 samples."""
    fields: dict[str, Any] = {
        "status": "ok",
        "session": "default",
        "label": f"{staging} 2 ranks",
        "samples_per_s": rate,
        "samples_per_s_min": rate,
        "samples_per_s_max": rate,
        "repeats": 3,
        "stage_s": None,
        "stage_bytes_per_s": None,
        "dataset.dataset_id": "a",
        "dataset.num_samples": 1000,
        "spec.world_size": 2,
        "spec.data.staging": staging,
        "spec.data.staging_dir": None if staging == "none" else "/nvme",
    }
    return fields | changes


UNSTAGED = point("none", 10.0)
COPIED = point("copy", 20.0, stage_s=75.0, stage_bytes_per_s=2e9)
"""100 s an epoch unstaged, 50 s staged, 75 s to stage: 1.5 epochs."""


def test_epochs_until_staging_has_paid() -> None:
    (pair,) = pairs([UNSTAGED, COPIED])
    assert (pair.unstaged_epoch_s, pair.epoch_s, pair.stage_s) == (100.0, 50.0, 75.0)
    assert pair.break_even_epochs == pytest.approx(1.5)
    # 1.5 epochs either way take 150 s
    assert 1.5 * pair.unstaged_epoch_s == 75.0 + 1.5 * pair.epoch_s
    assert in_words(pair) == (
        "staging: copy 2 ranks: stage-in 75 s (2 GB/s), an epoch 50 s, unstaged 100 s: pays after 1.5 epochs"
    )


@pytest.mark.parametrize("rate", [10.0, 5.0])
def test_what_saves_nothing_never_pays(rate: float) -> None:
    (pair,) = pairs([UNSTAGED, COPIED | {"samples_per_s": rate, "samples_per_s_min": rate, "samples_per_s_max": rate}])
    assert pair.break_even_epochs is None


def test_repeats_that_overlap_are_not_told_apart() -> None:
    (pair,) = pairs([UNSTAGED | {"samples_per_s_max": 16.0}, COPIED | {"samples_per_s_min": 15.0}])
    assert pair.told_apart is False and pair.break_even_epochs is None
    assert in_words(pair).endswith("repeats overlap, so whether it pays is not told")
    (single,) = pairs([UNSTAGED | {"repeats": 1}, COPIED])
    assert single.told_apart is None and single.break_even_epochs == pytest.approx(1.5)


def test_lazy_staging_has_no_time_of_its_own() -> None:
    (pair,) = pairs([UNSTAGED, point("lazy", 9.0)])
    assert (pair.stage_s, pair.break_even_epochs) == (None, None)
    assert "fills the copy" in in_words(pair)


@pytest.mark.parametrize(
    "change",
    [
        {"spec.world_size": 4},
        {"session": "other"},
        {"dataset.dataset_id": "b"},
        {"spec.data.num_workers": 4},
        {"status": "failed"},
        {"samples_per_s": None},
        {"dataset.num_samples": None},
    ],
)
def test_only_what_differs_in_nothing_else_is_compared(change: dict[str, Any]) -> None:
    assert pairs([UNSTAGED, COPIED | change]) == []
    assert pairs([UNSTAGED]) == pairs([COPIED]) == pairs([]) == []


def test_each_staged_point_has_its_pair() -> None:
    four = {"spec.world_size": 4}
    points = [UNSTAGED, COPIED, UNSTAGED | four, COPIED | four | {"stage_s": 25.0}, point("lazy", 8.0)]
    assert [pair.break_even_epochs for pair in pairs(points)] == [1.5, 0.5, None]
    assert len(lines(points)) == 3


def test_records_from_before_there_was_staging_are_unstaged() -> None:
    old = {name: value for name, value in UNSTAGED.items() if not name.startswith("spec.data.staging")}
    assert len(pairs([old, COPIED])) == 1
