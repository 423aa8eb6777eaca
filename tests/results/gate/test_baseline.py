"""The gate on stores: what `baseline set` pins, and what `check` says of the newest session."""

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchsuite.results.compare.nights import value_of
from benchsuite.results.gate.alarms import MIN_NIGHTS
from benchsuite.results.gate.baseline import FILE, baseline_of, check, set_baseline
from benchsuite.results.render.words import counted
from benchsuite.results.report.compare import check_json, check_lines
from benchsuite.results.store.store import ResultsStore, StoreError
from tests.results.nightly import fill, night_name, trial

NIGHTS = 44
STEP = 41


def at_the_step(night: int, point: int) -> dict[str, Any]:
    """Point 2 loads longer from the step on, and its file system's client is another."""
    if night < STEP or point != 2:
        return {}
    env = {"host": "node0", "cores": 2, "devices": [], "lustre_client": "2.15.5"}
    return {"slower": 0.12, "env": env}


def pinned(store: ResultsStore) -> ResultsStore:
    set_baseline(store, dates=f"{night_name(0)}..{night_name(29)}")
    return store


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> ResultsStore:
    return pinned(fill(tmp_path_factory.mktemp("stepped"), NIGHTS, change=at_the_step))


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> ResultsStore:
    return pinned(fill(tmp_path_factory.mktemp("quiet"), NIGHTS))


def test_quiet_nights_are_one_line(quiet: ResultsStore):
    found = check(quiet)
    assert found.regressions == [] and found.num_judged == 6
    assert check_lines(found) == [f"ok: no regression in 6 series of session {night_name(43)}, 44 nights"]


def test_a_step_is_told_with_what_how_much_since_when_and_why(stepped: ResultsStore):
    (found,) = check(stepped).regressions
    assert (found.label, found.metric, found.since) == ("point 2", "samples_per_s", night_name(STEP))
    assert found.worse == pytest.approx(1 - 1 / 1.12, abs=0.02)
    assert found.worse_low < 1 - 1 / 1.12 < found.worse_high
    assert found.noise == pytest.approx(0.01, rel=0.4)
    assert found.before == pytest.approx(1 / 0.076, rel=0.02)
    assert found.cause.layer == "input"
    assert [one.part for one in found.cause.grown] == ["load_s"]
    assert [(one.fact, one.before, one.after) for one in found.cause.changed] == [("lustre_client", "2.15.4", "2.15.5")]


def test_the_text_of_a_regression(stepped: ResultsStore):
    head, first, *rest = check_lines(check(stepped))
    assert head == f"regression: 1 of 6 series of session {night_name(43)}, 44 nights"
    assert first.startswith("point 2: samples_per_s 13.") and f"since {night_name(STEP)}" in first
    assert rest[0].startswith("  likely layer: input: load 9.8 -> 18.9 ms") and rest[0].endswith("ms a step")
    assert rest[1] == "  verdict: none before, none since"
    assert rest[2] == "  changed with it: lustre_client 2.15.4 -> 2.15.5, node0 only"
    assert json.loads(json.dumps(check_json(check(stepped))))["regression"] is True


def test_changed_facts_beyond_six_are_counted(tmp_path: Path):
    def change(night: int, point: int) -> Mapping[str, Any]:
        now = "new" if night >= STEP else "old"
        env = {"host": "node0", "cores": 2, "devices": [], "lustre_client": now} | {f"fact{n}": now for n in range(8)}
        return {"slower": 0.2 if night >= STEP else 0.0, "env": env}

    told = [line for line in check_lines(check(pinned(fill(tmp_path, NIGHTS, 1, change=change)))) if "changed" in line]
    facts = ["lustre_client", *(f"fact{n}" for n in range(5))]
    assert told == ["  changed with it: " + "; ".join([*(f"{name} old -> new" for name in facts), "and 3 more"])]


def test_hosts_are_named_where_only_some_are_slow(tmp_path: Path):
    def change(night: int, point: int) -> Mapping[str, Any]:
        """Every point runs on three hosts in turn; from the step on two of them have a new client and are slow."""
        host = f"node{(night + point) % 3}"
        slow = night >= STEP - 4 and host != "node1"
        env = {"host": host, "cores": 2, "devices": [], "lustre_client": "2.15.5" if slow else "2.15.4"}
        return {"slower": 0.12 if slow else 0.0, "env": env}

    found = check(pinned(fill(tmp_path, NIGHTS, change=change))).regressions
    causes = [one.cause for one in found]
    assert causes and all([*cause.hosts] == ["node0", "node2"] for cause in causes)
    assert all(
        [(one.fact, [*one.hosts]) for one in cause.changed] == [("lustre_client", ["node0", "node2"])]
        for cause in causes
    )


def test_a_caveat_alone_makes_no_regression(tmp_path: Path):
    def loaded(night: int, point: int) -> Mapping[str, Any]:
        return {"slower": 0.5, "caveats": ["foreign_load"]} if night == NIGHTS - 1 and point == 1 else {}

    found = check(pinned(fill(tmp_path, NIGHTS, change=loaded)))
    assert found.regressions == [] and found.num_judged == 5
    assert check_lines(found)[1:] == ["  not judged, doubtful: point 1: foreign_load"]


def test_a_caveat_that_all_nights_bear_does_not_hide_one(tmp_path: Path):
    def change(night: int, point: int) -> Mapping[str, Any]:
        return {"slower": 0.12 if night >= STEP and point == 1 else 0.0, "caveats": ["not_steady"]}

    (found,) = check(pinned(fill(tmp_path, NIGHTS, change=change))).regressions
    assert found.label == "point 1"


def test_utilization_above_one_is_no_value_of_a_night_and_the_throughput_is():
    figures = {"samples_per_s": 10.0, "au": 1.2}
    above = [trial(0, 0, n, 0.0, figures=figures, caveats=["au_above_one"]) for n in range(2)]
    assert (value_of(above, "au"), value_of(above, "samples_per_s")) == (None, 10.0)
    whole = trial(0, 0, 2, 0.0, figures=figures | {"au": 0.9})
    assert value_of([*above, whole], "au") == 0.9


def test_points_that_are_new_or_gone_are_told(tmp_path: Path):
    store = pinned(fill(tmp_path, NIGHTS - 1, num_points=3))
    last = NIGHTS - 1
    for point in (0, 1, 7):
        for repeat in range(3):
            store.append(trial(last, point, repeat, 0.0))
    found = check(store)
    assert ([*found.too_young], [*found.missing], found.num_judged) == (["point 7 (has 0)"], ["point 2"], 3)


WHY = "tp 2: what it sends has 16 bits"


def revised(night: int, point: int) -> dict[str, Any]:
    """What a point's trials say from night MENDED on, when points 0 and 1 measure half of what they did."""
    known: dict[str, Any] = {"match_id": f"m{point}", "point_id": f"p{point}"}
    if night < MENDED or point > 1:
        return known
    now = {"match_id": f"m{point}-2", "point_id": f"p{point}-2", "former_match_id": f"m{point}"}
    return now | {"revision": "tp 2", "revision_reason": WHY, "slower": 1.0 + (0.5 if night >= WORSE else 0.0)}


MENDED, WORSE = 31, 31 + MIN_NIGHTS + 8


def test_the_baseline_of_points_that_measure_something_else_begins_anew(tmp_path: Path):
    begun = f"point 0, point 1 ({WHY})"
    found = check(pinned(fill(tmp_path / "some", MENDED + 1, num_points=3, change=revised)))
    assert ([*found.missing], found.replaced, found.regressions, found.num_judged) == ([], "", [], 1)
    assert f"  baseline begins anew, as what is measured is not what it was: {begun}" in check_lines(found)
    alone = check(pinned(fill(tmp_path / "all", MENDED + 1, num_points=2, change=revised)))
    head, *notes = check_lines(alone)
    assert head == "nothing judged: the baseline of 2 points begins anew"
    assert notes == [f"  baseline begins anew, as what is measured is not what it was: {begun}"]


def test_points_that_measure_something_else_are_judged_by_their_own_nights(tmp_path: Path):
    quiet = check(pinned(fill(tmp_path / "quiet", WORSE, num_points=2, change=revised)))
    assert (quiet.num_judged, [*quiet.regressions], [*quiet.begun_anew]) == (2, [], [])
    (found, _) = check(pinned(fill(tmp_path / "worse", WORSE + 3, num_points=2, change=revised))).regressions
    assert found.since == night_name(WORSE) and found.worse < 0.5


def test_failed_trials_are_no_values(tmp_path: Path):
    store = pinned(fill(tmp_path, NIGHTS, num_points=2))
    store.append(trial(NIGHTS, 0, 0, 0.0))
    store.append(trial(NIGHTS, 1, 0, 0.0).model_copy(update={"status": "failed", "reason": "EIO"}))
    assert [*check(store).missing] == ["point 1: failed, EIO"]


def test_a_night_on_which_all_fails_is_no_good_night(tmp_path: Path):
    store = pinned(fill(tmp_path, NIGHTS, num_points=2))
    for point in (0, 1):
        store.append(trial(NIGHTS, point, 0, 0.0).model_copy(update={"status": "failed", "reason": "EIO"}))
    found = check(store)
    assert (found.session, found.num_judged) == (night_name(NIGHTS), 0)
    head, *rest = check_lines(found)
    assert head == f"nothing judged: no series of session {night_name(NIGHTS)}, {NIGHTS + 1} nights"
    assert rest == ["  no ok trial in this session: point 0: failed, EIO, point 1: failed, EIO"]


def skipped(point: int) -> Any:
    """What is left of a point of the last night but one when its dataset is gone: its key is another."""
    spec = {"workload": "resnet50", "batch_size": 8 + point, "data": {"source": "storage", "format": "gone"}}
    reason = "/data: no dataset there"
    return trial(NIGHTS, point, 0, 0.0, status="skipped", reason=reason, figures={}, spec=spec)


def test_a_night_on_which_all_is_skipped_is_no_good_night(tmp_path: Path):
    store = pinned(fill(tmp_path, NIGHTS, num_points=2))
    for point in (0, 1):
        store.append(skipped(point))
    found = check(store)
    assert (found.session, found.regressions) == (night_name(NIGHTS), [])
    assert [*found.missing] == [f"point {n}: skipped, /data: no dataset there" for n in (0, 1)]
    head = check_lines(found)[0]
    assert head.startswith("2 points have no ok trial; no regression in 2 series of 2 sessions, the newest 2026-02-17")


def test_a_skip_says_why_where_others_ran_and_points_that_never_ran_may_be_skipped(tmp_path: Path):
    store = pinned(fill(tmp_path, NIGHTS, num_points=2))
    store.append(skipped(7))
    assert (check(store).session, [*check(store).missing]) == (night_name(NIGHTS - 1), [])
    store.append(trial(NIGHTS, 0, 0, 0.0))
    store.append(skipped(1))
    found = check(store)
    assert (found.session, found.num_judged) == (night_name(NIGHTS), 2)
    assert [*found.missing] == ["point 1: skipped, /data: no dataset there"]


def test_a_point_that_keeps_failing_is_told_every_night(tmp_path: Path):
    store = pinned(fill(tmp_path, NIGHTS, num_points=1))
    for night in (NIGHTS - 2, NIGHTS - 1):
        for one in (1, 2):
            failed = trial(night, one, 0, 0.0).model_copy(update={"status": "failed", "reason": "EIO"})
            store.append(failed)
    found = check(store)
    assert [*found.missing] == ["point 1: failed, EIO", "point 2: failed, EIO"] and found.num_judged == 1
    assert check_lines(found)[0].startswith("2 points have no ok trial; no regression in 1 series")
    one = check_lines(replace(found, missing=found.missing[:1], num_nights=1))[0]
    assert one.startswith("1 point has no ok trial; ") and one.endswith(", 1 night")


def test_another_sweep_later_that_night_changes_nothing(stepped: ResultsStore, tmp_path: Path):
    shutil.copytree(stepped.path, tmp_path / "store")
    store = ResultsStore(tmp_path / "store")
    other = {"spec": {"workload": "bert", "batch_size": 1}, "session": "demo", "trial_id": "d", "sweep": "demo"}
    store.append(trial(NIGHTS, 9, 0, 0.0, **other))
    assert check(store).session == night_name(NIGHTS - 1) and check(store).regressions


def test_one_very_bad_night_is_told_and_no_regression_yet(tmp_path: Path):
    store = pinned(
        fill(tmp_path, NIGHTS, num_points=2, change=lambda night, _: {"slower": 0.8 * (night == NIGHTS - 1)})
    )
    found = check(store)
    told = [line for line in check_lines(found) if "far outside its nights" in line]
    assert bool(found.regressions) != bool(told) and not found.halved
    assert not told or "point 0: samples_per_s 44% worse" in told[0]


def test_points_of_one_label_are_told_apart(tmp_path: Path):
    store = pinned(fill(tmp_path, NIGHTS, num_points=2, change=lambda night, point: {"label": "fp32"}))
    store.append(trial(NIGHTS, 0, 0, 0.0, label="fp32"))
    (missing,) = check(store).missing
    assert re.fullmatch(r"fp32 \([0-9a-f]{6}\)", missing)


def two_sweeps(path: Path, nights: int = NIGHTS) -> ResultsStore:
    """Points 0 and 1 are of sweep a, 2 and 3 of sweep b, each in a session of its own; 1 has a step."""

    def change(night: int, point: int) -> Mapping[str, Any]:
        name, hour = ("a", "01") if point < 2 else ("b", "05")
        moment = f"{night_name(night)}T{hour}:00:00.000000+00:00"
        slower = 0.23 if night >= STEP and point == 1 else 0.0
        return {"slower": slower, "sweep": name, "session": f"{name}-{night_name(night)}", "started_at": moment}

    store = fill(path, nights, num_points=4, change=change)
    set_baseline(store, dates=f"{night_name(0)}..{night_name(29)}")
    return store


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory: pytest.TempPathFactory) -> ResultsStore:
    return two_sweeps(tmp_path_factory.mktemp("sweeps"))


class TestSweepsInSessionsOfTheirOwn:
    def test_a_newer_session_of_another_sweep_hides_no_regression(self, sweeps: ResultsStore):
        found = check(sweeps)
        assert (found.session, [*found.sessions]) == (f"b-{night_name(43)}", [f"{n}-{night_name(43)}" for n in "ab"])
        (one,) = found.regressions
        assert (one.label, one.session, one.since) == ("point 1", f"a-{night_name(43)}", f"a-{night_name(STEP)}")
        assert one.worse == pytest.approx(1 - 1 / 1.23, abs=0.02)
        assert (found.num_judged, [*found.missing], [*found.not_run]) == (4, [], [])
        head, *rest = check_lines(found)
        assert head.startswith(f"regression: 1 of 4 series of 2 sessions, the newest b-{night_name(43)}, 88 nights")
        assert f"  judged in session a-{night_name(43)}" in rest

    def test_one_session_alone(self, sweeps: ResultsStore):
        found = check(sweeps, session=f"b-{night_name(43)}")
        assert (found.num_judged, [*found.regressions], [*found.missing]) == (2, [], [])
        assert check(sweeps, session="latest") == found
        before = check(sweeps, session=f"a-{night_name(40)}")
        assert (before.session, before.num_judged, [*before.regressions]) == (f"a-{night_name(40)}", 2, [])
        with pytest.raises(StoreError, match=r"'b-2026-02-99' has no points .*; nearest: b-2026-02-"):
            check(sweeps, session="b-2026-02-99")

    def test_filters(self, sweeps: ResultsStore):
        assert [one.label for one in check(sweeps, where=["sweep=a"]).regressions] == ["point 1"]
        assert check(sweeps, where=["sweep=b"]).regressions == []
        with pytest.raises(StoreError, match=r"filter key 'swep' is unknown.*nearest: sweep"):
            check(sweeps, where=["swep=b"])

    def test_a_sweep_that_no_longer_runs_is_not_missing(self, tmp_path: Path):
        store = two_sweeps(tmp_path, 30)
        changes = {"sweep": "b", "session": "b-new"}
        for point in (2, 3):
            store.append(trial(31, point, 0, 0.0, **changes))
        found = check(store)
        assert ([*found.missing], [*found.not_run], found.num_judged) == ([], ["point 0", "point 1"], 2)

    def test_a_point_that_its_sweep_ran_without_is_missing_and_keeps_its_regression(self, tmp_path: Path):
        store = two_sweeps(tmp_path)
        store.append(trial(NIGHTS, 0, 0, 0.0, sweep="a", session="a-new"))
        found = check(store)
        assert ([*found.missing], [one.label for one in found.regressions]) == (["point 1"], ["point 1"])


class TestBaseline:
    def test_by_date(self, quiet: ResultsStore):
        assert baseline_of(quiet)["sessions"] == [night_name(night) for night in range(30)]

    def test_by_name_and_anew(self, tmp_path: Path):
        store = fill(tmp_path, 5, num_points=1)
        assert set_baseline(store)["sessions"] == [night_name(night) for night in range(5)]
        set_baseline(store, [night_name(2), night_name(1)])
        assert baseline_of(store)["sessions"] == [night_name(1), night_name(2)]
        assert sorted(path.name for path in tmp_path.iterdir()) == [FILE, "segments"], "written by rename"

    def test_sessions_between_are_left_out(self, tmp_path: Path):
        """What lies before the baseline's end and is not of it is nobody's history."""
        store = fill(tmp_path, 12, num_points=2)
        set_baseline(store, [night_name(night) for night in range(9) if night != 4])
        found = check(store)
        assert (len(found.baseline), found.num_nights) == (8, 11)

    @pytest.mark.parametrize(
        ("sessions", "dates", "words"),
        [
            (["2026-01-99"], "", "session '2026-01-99' has no ok trial; there are: 2026-01-01, 2026-01-02"),
            ([], "2025", r"no session there; there are: 2026-01-01\.\.2026-01-02"),
        ],
    )
    def test_mistakes(self, tmp_path: Path, sessions: list[str], dates: str, words: str):
        with pytest.raises(StoreError, match=words):
            set_baseline(fill(tmp_path, 2, num_points=1), sessions, dates)

    def test_none_is_the_first_nights(self, tmp_path: Path):
        store = fill(tmp_path, MIN_NIGHTS + 3, num_points=1)
        assert [*check(store).baseline] == [night_name(night) for night in range(MIN_NIGHTS)]
        with pytest.raises(StoreError, match="has no baseline; set one: benchsuite baseline set"):
            baseline_of(store)

    @pytest.mark.parametrize(
        "text",
        [
            *("{", "[]", '{"sessions": []}', '{"sessions": "all"}', '{"sessions": [1, ["x"], {}]}'),
            *('{"sessions": ["2026-01-01"], "set_at": 5}', "[" * 60_000, '{"a":' * 60_000, "9" * 5_000),
        ],
        ids=lambda text: text[:70],
    )
    def test_damaged(self, tmp_path: Path, text: str):
        store = fill(tmp_path, 2, num_points=1)
        (tmp_path / FILE).write_text(text)
        for read in (check, baseline_of):
            with pytest.raises(StoreError, match="set it anew"):
                read(store)

    def test_a_pipe_is_none(self, tmp_path: Path):
        store = fill(tmp_path, 2, num_points=1)
        os.mkfifo(tmp_path / FILE)
        with pytest.raises(StoreError, match="not a regular file; set it anew"):
            baseline_of(store)
        set_baseline(store)
        assert baseline_of(store)["sessions"] == ["2026-01-01", "2026-01-02"]

    def test_nothing_newer(self, tmp_path: Path):
        store = fill(tmp_path, 3, num_points=1)
        set_baseline(store)
        with pytest.raises(StoreError, match="no session with points of the baseline is newer than it"):
            check(store)


class TestFewNights:
    """With so few nights that what is usual is not known, the newest is compared with them."""

    def test_one_night_is_compared_with_nothing(self, tmp_path: Path):
        with pytest.raises(StoreError, match="one night so far, with which the next one will be compared"):
            check(fill(tmp_path, 1, num_points=1))

    @pytest.mark.parametrize("num_nights", [2, 4, MIN_NIGHTS])
    def test_a_slow_down_is_a_hint_and_no_alarm(self, tmp_path: Path, num_nights: int):
        def change(night: int, point: int) -> dict[str, float]:
            return {"slower": 0.4} if night == num_nights - 1 and point == 1 else {}

        found = check(fill(tmp_path, num_nights, num_points=2, change=change))
        assert (found.num_judged, [*found.regressions], found.nights_missing) == (0, [], MIN_NIGHTS + 1 - num_nights)
        assert [told.split(":")[0] for told in found.compared if "samples_per_s" in told] == ["point 1"]
        head, *rest = check_lines(found)
        missing = found.nights_missing
        assert head.startswith(f"compared with {counted(num_nights - 1, 'night')} before: ")
        assert head.endswith(f"series worse; judged alone after {counted(missing, 'more night')}")
        assert any("which is no alarm yet: look at it, or measure again: point 1" in line for line in rest)

    def test_nights_alike_say_so_in_a_line(self, tmp_path: Path):
        found = replace(check(fill(tmp_path, 3, num_points=2)), compared=())
        (line,) = check_lines(found)
        assert line == "compared with 2 nights before: nothing is worse; judged alone after 4 more nights"
