"""The sentences around a table."""

from typing import Any

import pytest

from benchsuite.results.render.tables import utilization
from benchsuite.results.report.summary import answer, remedies, trust


def point(label: str, au: float | None, bottleneck: str | None = "storage", rate: float = 100.0) -> dict[str, Any]:
    found = {"label": label, "status": "ok", "au": au, "bottleneck": bottleneck, "samples_per_s": rate}
    return found | {"caveats": []}


def test_a_doubtful_point_is_neither_best_nor_worst():
    points = [point("files", 0.5), point("tar", 0.7), point("odd", 0.98) | {"caveats": ["not_steady"]}]
    assert "Best AU 0.70 (tar), worst 0.50 (files)" in answer(points)
    assert "Best AU 0.98 (odd)" in answer(points[2:])


def test_utilization_above_one_is_never_the_best():
    points = [point("files", 0.5), point("tar", 1.05), point("hdf5", 1.88)]
    assert "Best AU 1.05 (tar), worst 0.50 (files). 1 au_above_one point is not considered" in answer(points)
    steadier = point("lmdb", 0.9) | {"caveats": ["not_steady"]}
    said = answer([points[2], steadier])
    assert "Best AU 0.90 (lmdb), worst 0.90 (lmdb). 1 au_above_one point is not considered" in said
    assert "every one is doubtful (au_above_one, not_steady)" in said
    said = answer([points[2], point("files", 1.62)])
    assert "every one is doubtful (au_above_one)" in said and "No best AU: each is above 1" in said
    assert "1.88" not in said and "1.62" not in said


def test_evidence_of_another_utilization_says_whose_it_is():
    """Two repeats of AU 0.83 and 1.01: the point has 0.92, the evidence is that of one."""
    points = [point("threads", 0.92) | {"bottleneck_evidence": "AU 0.83; 1% waits"}, point("tar", 0.95)]
    assert answer(points).endswith("worst 0.92 (threads); in one of its repeats: AU 0.83; 1% waits.")
    points[0]["bottleneck_evidence"] = "AU 0.92; 1% waits"
    assert answer(points).endswith("worst 0.92 (threads): AU 0.92; 1% waits.")


def test_the_worst_point_comes_with_its_evidence():
    points = [point("files", 0.5) | {"bottleneck_evidence": "12 % of this"}, point("tar", 0.7)]
    assert answer(points).endswith("worst 0.50 (files): 12 % of this.")


def test_points_without_verdict_are_told_apart():
    points = [point("files", 0.5), point("tar", 0.7), point("odd", 0.6, "cannot_tell")]
    assert answer(points).startswith("Held back by storage in 2 of 3 points; what holds 1 of 3 points back cannot be")
    waiting = point("mine", None, "cannot_tell") | {"input_stall_fraction": 0.9, "bottleneck_evidence": "too short"}
    assert answer([waiting]) == "What holds 1 of 1 point back cannot be told. mine: too short."


def test_remedies_are_the_commonest_details():
    trials = [trial(caveat_details=["a: b"]), trial(caveat_details=["c: d", "a: b"]), trial("failed")]
    assert remedies(trials) == ["a: b (in 2 trials)", "c: d"]


def test_each_caveat_is_told_once():
    trials = [trial(caveat_details=[f"foreign_load: {cores} of 2 cores"]) for cores in (1.5, 1.6, 1.6)]
    assert remedies([*trials, trial(caveat_details=["c: d"])]) == [
        "foreign_load: 1.6 of 2 cores (the commonest of 3 such remarks)",
        "c: d",
    ]


def test_doubt_about_every_point_stands_in_the_sentence():
    doubtful = [point("files", 1.8) | {"caveats": ["foreign_load"]}, point("tar", 0.7) | {"caveats": ["not_steady"]}]
    assert "of 2 points; every one is doubtful (" in answer(doubtful)
    assert "doubtful" not in answer([*doubtful, point("lmdb", 0.6)])


def test_what_is_left_out_is_counted_with_the_reason():
    points = [point("one", None, None, 50.0), point("two", None, None, 60.0), point("odd", None, None, 90.0)]
    points[2]["unstable"] = True
    told = "Fastest is two: 60 samples/s; 1 unstable point is not considered, 1 of them faster. No point read from "
    assert answer(points) == told + "storage."
    points.append(point("busy", None, None, 80.0) | {"caveats": ["foreign_load", "not_cold"]})
    assert "two: 60 samples/s; 2 foreign_load or unstable points are not considered, 2 of them faster. " in answer(
        points
    )


def test_what_is_left_out_of_best_and_worst_is_counted_too():
    points = [point("files", 0.5), point("tar", 0.7), point("odd", 0.98) | {"caveats": ["not_steady"]}]
    points.append(point("lmdb", 0.1) | {"unstable": True})
    said = "worst 0.50 (files). 2 not_steady or unstable points are not considered for best and worst."
    assert answer(points).endswith(said)
    assert "considered" not in answer(points[:2])


def test_points_that_are_all_unstable_are_all_doubtful():
    points = [point("one", None, None, 50.0) | {"unstable": True}, point("two", None, None, 60.0) | {"unstable": True}]
    assert answer(points).startswith("Fastest is two: 60 samples/s; every one is doubtful (unstable): see below.")


def trial(status: str = "ok", caveats: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    return {"status": status, "caveats": list(caveats), **more}


def cold(resident: float | None, **more: Any) -> dict[str, Any]:
    asked = {"spec.data.cache": "cold", "spec.data.source": "storage", "cache_resident_before": resident}
    return trial(**(asked | more))


def test_answer_names_verdicts_best_and_worst():
    points = [point("files", 0.5), point("tar", 0.9, "preprocessing"), point("lmdb", 0.7)]
    assert answer(points) == (
        "Held back by storage in 2, preprocessing in 1 of 3 points. Best AU 0.90 (tar), worst 0.50 (files)."
    )


def test_answer_of_one_point_has_no_worst():
    assert answer([point("files", 0.5)]) == "Held back by storage in 1 of 1 point. Best AU 0.50 (files)."


def test_answer_leaves_out_what_failed_and_what_has_no_au():
    points = [point("files", 0.5), point("memory", None, None), {"label": "tar", "status": "failed", "au": 0.1}]
    assert answer(points) == "Held back by storage in 1 of 1 point. Best AU 0.50 (files)."


def test_answer_without_a_pipeline_names_the_fastest():
    points = [point("one", None, None, 50.0), point("two", float("nan"), None, 123.4)]
    assert answer(points) == "Fastest is two: 123 samples/s. No point read from storage."


@pytest.mark.parametrize("points", [[], [{"label": "tar", "status": "failed", "au": None}]])
def test_answer_without_results(points: list[dict[str, Any]]):
    assert answer(points) == "No point has a result."


def test_trust_counts_trials_caveats_and_skips():
    trials = [trial(caveats=("not_steady",)), trial(caveats=("not_steady", "oversubscribed")), trial("oom")]
    assert trust([*trials, trial("skipped")]) == (
        "trust: 2 of 3 trials ok · not_steady in 2 · oversubscribed in 1 · 1 skipped"
    )


def test_trust_says_how_often_the_cache_state_was_verified():
    trials = [cold(0.0), cold(0.01), cold(0.02), cold(None), cold(0.0, status="failed")]
    assert trust(trials) == "trust: 4 of 5 trials ok · cold verified by mincore in 2 of 4"


def test_residency_counts_where_the_device_was_read_by_others_too():
    trials = [cold(0.0), cold(0.0, caveats=("counters_disagree",))]
    assert "cold verified by mincore in 2 of 2 (and by counters in 1)" in trust(trials)


def test_trust_verifies_warm_at_the_other_end():
    warm = [cold(resident, **{"spec.data.cache": "warm"}) for resident in (1.0, 0.99, 0.9, None)]
    assert trust(warm) == "trust: 4 of 4 trials ok · warm verified by mincore in 2 of 4"


def test_trust_asks_no_cache_state_of_other_sources():
    assert trust([cold(None, **{"spec.data.source": "memory"})]) == "trust: 1 of 1 trials ok"


def test_trust_believes_no_residency_of_a_hidden_cache():
    assert "verified by mincore in 0 of 1" in trust([cold(0.0, caveats=("cache_unverified",))])


def test_a_utilization_above_one_is_printed_as_none() -> None:
    assert [utilization(point("files", au)) for au in (0.5, 1.04, 1.06, None)] == [
        "0.50",
        "1.04",
        "not measurable",
        "-",
    ]
