"""The sentences around a table."""

from typing import Any

from benchsuite.results.compare.nights import DISTRUSTED
from benchsuite.results.render.caveats import CAVEATS
from benchsuite.results.render.tables import utilization
from benchsuite.results.report.mlperf import DISQUALIFYING
from benchsuite.results.report.ranking import DISTURBING
from benchsuite.results.report.summary import arithmetic, remedies, trust
from benchsuite.results.scaling.series import EXCLUDED


def test_the_arithmetic_is_of_the_commonest_details():
    trials = [trial(caveat_details=["a: b"]), trial(caveat_details=["c: d", "a: b"]), trial("failed")]
    assert arithmetic(trials) == ["a: b (in 2 trials)", "c: d"]


def test_each_caveat_is_told_once():
    trials = [trial(caveat_details=[f"foreign_load: {cores} of 2 cores"]) for cores in (1.5, 1.6, 1.6)]
    assert arithmetic([*trials, trial(caveat_details=["c: d"])]) == [
        "foreign_load: 1.6 of 2 cores (the commonest of 3 such remarks)",
        "c: d",
    ]


def test_what_helps_comes_first_and_each_caveat_once():
    rows = [
        trial(caveats=("not_steady",)),
        trial(caveats=("foreign_load", "not_steady")),
        trial("failed", ("not_cold",)),
    ]
    assert remedies([*rows, trial(unstable=True)]) == [
        "not_steady: More steps, or an idle machine. "
        "The rate changed within the trial, or the queue filled or drained.",
        "foreign_load: An idle machine. Other processes used the cores.",
        "unstable: More repeats, an idle machine. Repeats spread by more than 10 %.",
    ]


def test_caveats_that_decide_are_documented():
    assert {*DISQUALIFYING, *DISTURBING, *DISTRUSTED, *EXCLUDED} <= CAVEATS.keys()


def trial(status: str = "ok", caveats: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    return {"status": status, "caveats": list(caveats), **more}


def cold(resident: float | None, **more: Any) -> dict[str, Any]:
    asked = {"spec.data.cache": "cold", "spec.data.source": "storage", "cache_resident_before": resident}
    return trial(**(asked | more))


def test_trust_counts_trials_caveats_and_skips():
    trials = [trial(caveats=("not_steady",)), trial(caveats=("not_steady", "oversubscribed")), trial("oom")]
    assert trust([*trials, trial("skipped")]) == (
        "trust: 2 of 3 trials ok · not_steady in 2 · oversubscribed in 1 · 1 skipped"
    )


def test_trust_says_how_often_the_cache_state_was_verified():
    trials = [cold(0.0), cold(0.01), cold(0.02), cold(None), cold(0.0, status="failed")]
    assert trust(trials) == "trust: 4 of 5 trials ok · cold verified by mincore in 2 of 4"


def test_trust_names_the_readers_and_their_libraries():
    def read(reader: str | None, told: str | None, **more: Any) -> dict[str, Any]:
        return cold(0.0, **{"spec.data.reader": reader, "env.reader": told, "status": "ok", **more})

    trials = [read("stock", "pillow 13"), read("stock", "h5py 3"), read("stock", "pillow 13"), read("tuned", None)]
    trials += [read("a/mine.py:READER", "sha256:1"), read(None, None), read("stock", "lmdb 1", status="failed")]
    trials.append(read("stock", "lmdb 1", **{"spec.data.source": "memory"}))
    assert " · read by stock (pillow 13, h5py 3), tuned and mine.py:READER · cold" in trust(trials)


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
    assert [utilization({"au": au}) for au in (0.5, 1.04, 1.06, None)] == [
        "0.50",
        "1.04",
        "not measurable",
        "-",
    ]
