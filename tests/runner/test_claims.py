"""Claims: one holder at a time, taken over when it gives no sign, whatever clocks say and without locks."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchsuite.runner.claims import (
    Claims,
    HeldElsewhere,
    Holder,
    Holding,
    Turns,
    read_claim,
    running_claims,
    this_process,
)

ELSEWHERE = Holder("n0417", 4711, "991", "another boot")
LEASE_S = 0.4


@pytest.fixture(autouse=True)
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on file systems without them."""

    def refuse(*_: object) -> None:
        raise OSError("locks are not supported")

    for name in ("flock", "lockf", "fcntl"):
        monkeypatch.setattr(fcntl, name, refuse)
    monkeypatch.setattr(os, "lockf", refuse)


class Clock:
    """Time that passes only where a test says so: a busy machine makes nobody silent."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def passes(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    told = SimpleNamespace(monotonic=lambda: made.now_s, sleep=time.sleep)
    monkeypatch.setattr("benchsuite.runner.claims.time", told)
    return made


def claims(folder: Path, holder: Holder = ELSEWHERE, lease_s: float = LEASE_S) -> Claims:
    return Claims(folder / "claims" / "s", lease_s, holder)


def taken(found: object) -> Holding:
    assert isinstance(found, Holding)
    return found


def held(found: object) -> HeldElsewhere:
    assert isinstance(found, HeldElsewhere)
    return found


def ended() -> str:
    """A process of this host whose number went to another."""
    host, pid, started = this_process().process.split("-")
    return f"{host}-{pid}-{int(started) - 5}"


def test_one_of_two_has_a_trial_and_the_other_is_told_who(tmp_path: Path) -> None:
    mine, other = claims(tmp_path), claims(tmp_path, this_process())
    with taken(mine.take("t")):
        claim = held(other.take("t")).claim
        assert claim is not None and str(claim.holder) == "n0417, process 4711, job 991"
        assert [*running_claims(tmp_path / "claims" / "s")] == ["t"]
        taken(other.take("u"))


def test_a_finished_trial_is_free_to_nobody_whose_plan_is_older(tmp_path: Path) -> None:
    mine, other = claims(tmp_path), claims(tmp_path)
    with taken(mine.take("t")) as holding:
        holding.finish()
    assert other.take("t") is None
    assert running_claims(tmp_path / "claims" / "s") == {}


def test_a_plan_made_later_may_run_it_again(tmp_path: Path) -> None:
    with taken(claims(tmp_path).take("t")) as holding:
        holding.finish()
    later = claims(tmp_path)
    assert later.find_unseen({"t": "", "u": ""}) == set()
    with taken(later.take("t")) as again:
        again.finish()
    assert later.take("u") is not None
    later = claims(tmp_path)
    assert later.find_unseen({"t": ""}) == set()
    taken(later.take("t"))


def test_a_trial_whose_record_is_seen_late_is_not_measured_again(tmp_path: Path, clock: Clock) -> None:
    """What was finished may be seen in the claims, and not yet in the store, as on network file systems."""
    with taken(claims(tmp_path).take("t")) as holding:
        holding.finish("2031-05-06T07:00:00+00:00")
    later = claims(tmp_path)
    assert later.find_unseen({"t": "2031-05-06T06:00:00+00:00"}) == {"t"}, "the store is to be read again"
    assert not held(later.take("t")).alive, "its holder is waited for"
    clock.passes(1.2 * LEASE_S)
    assert taken(later.take("t")).taken_over, "the store tells by now whether the record is there or was removed"
    assert claims(tmp_path).find_unseen({"t": "2031-05-06T07:00:00+00:00"}) == set()
    seen = claims(tmp_path / "other")
    with taken(seen.take("t")) as holding:
        holding.finish("2031-05-06T07:00:00+00:00")
    again = claims(tmp_path / "other")
    assert again.find_unseen({"t": "2031-05-06T07:00:00+00:00"}) == set()
    assert not taken(again.take("t")).taken_over, "it is asked for again, with its record in sight"


def test_what_a_holder_has_written_is_told_to_the_next(tmp_path: Path) -> None:
    """The clock of who was interrupted may be hours ahead, and its record may be seen late."""
    with taken(claims(tmp_path).take("t")) as holding:
        holding.note_record("2031-05-06T07:00:00+00:00")
    with taken(claims(tmp_path).take("t")) as next_one:
        assert next_one.finished_at == "2031-05-06T07:00:00+00:00"
    assert taken(claims(tmp_path).take("t")).finished_at == "2031-05-06T07:00:00+00:00", "told on by who wrote none"


@pytest.mark.parametrize("moment", ["soon", "2031-05-06T07:00:00"])
def test_a_claim_that_tells_no_moment_is_none(tmp_path: Path, moment: str) -> None:
    with taken(claims(tmp_path).take("t")) as holding:
        holding.note_record(moment)
    assert read_claim(tmp_path / "claims" / "s" / "t.0") is None


def test_one_that_was_silent_makes_sure_of_its_trial_before_others_take_it(tmp_path: Path, clock: Clock) -> None:
    """Others see late that it beats again, and it sees late what others have made: the next claim is one's alone."""
    silent, other = taken(claims(tmp_path).take("t")), claims(tmp_path, this_process())
    assert not held(other.take("t")).alive
    clock.passes(0.8 * LEASE_S)
    assert not silent.is_lost()
    clock.passes(0.4 * LEASE_S)
    assert held(other.take("t")).generation == 1
    silent.finish()
    assert other.take("t") is None


def test_what_a_killed_holder_had_begun_to_write_is_ended(tmp_path: Path) -> None:
    folder = tmp_path / "claims" / "s"
    for trial in ("t", "u"):
        taken(claims(tmp_path).take(trial))
    for trial, cut in (("t", None), ("u", 20)):
        value = json.loads((folder / f"{trial}.0").read_text())
        value["holder"]["process"] = ended()
        (folder / f"{trial}.0").write_text(json.dumps(value))
        done = json.dumps(value | {"state": "done", "finished_at": "2031-05-06T07:00:00+00:00"})
        (folder / f".{trial}.0.{value['token']}").write_text(done[:cut])
    alive = taken(claims(tmp_path).take("v"))
    (folder / f".v.0.{alive._claim.token}").touch()
    assert claims(tmp_path).find_unseen({"t": "", "u": "", "v": ""}) == {"t"}
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == [f".v.0.{alive._claim.token}"]
    assert read_claim(folder / "u.0").state == "running"  # type: ignore[union-attr]


def test_claims_of_other_versions_are_read(tmp_path: Path) -> None:
    taken(claims(tmp_path).take("t"))
    path = tmp_path / "claims" / "s" / "t.0"
    value = json.loads(path.read_text())
    del value["finished_at"], value["holder"]["process"]
    value["holder"] |= {"place": "boot/pid", "born_s": 17.0}
    path.write_text(json.dumps(value | {"colour": "blue"}))
    claim = read_claim(path)
    assert claim is not None and claim.token == value["token"] and not claim.holder.is_gone()


def test_whether_a_holder_is_gone_does_not_depend_on_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's boot time follows the clock, by whole hours where that is set."""
    holder = this_process()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: 1.0)
    assert not holder.is_gone()


def test_a_trial_that_was_dropped_is_free_at_once(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), taken(claims(tmp_path).take("t")):
        raise KeyboardInterrupt
    taken(claims(tmp_path, lease_s=1e6).take("t"))


def test_a_holder_that_beats_keeps_its_trial_and_is_seen_to_live(tmp_path: Path) -> None:
    other = claims(tmp_path, this_process())
    with taken(claims(tmp_path).take("t")) as holding:
        while not held(other.take("t")).alive:
            time.sleep(LEASE_S / 20)
        assert not holding.is_lost()


def test_one_that_gives_no_sign_is_relieved_and_finds_out(tmp_path: Path, clock: Clock) -> None:
    silent = taken(claims(tmp_path).take("t"))  # never entered: it does not beat
    other = claims(tmp_path, this_process())
    assert not held(other.take("t")).alive
    clock.passes(1.2 * LEASE_S)
    with taken(other.take("t")) as mine:
        assert mine.taken_over and silent.is_lost() and not mine.is_lost()
        third = claims(tmp_path, lease_s=1e6)
        assert held(third.take("t")).generation == 1
        mine.finish()
    with silent:  # it wakes up, and what it writes changes nothing
        pass
    assert claims(tmp_path).take("t") is None


def test_clocks_do_not_matter(tmp_path: Path, clock: Clock) -> None:
    """A claim from tomorrow, on a file from last year, is one like others."""
    silent = taken(claims(tmp_path).take("t"))
    path = tmp_path / "claims" / "s" / "t.0"
    os.utime(path, (1.0, 1.0))
    assert held(claims(tmp_path, lease_s=60).take("t"))
    os.utime(path, (4e9, 4e9))
    other = claims(tmp_path)
    held(other.take("t"))
    clock.passes(1.2 * LEASE_S)
    taken(other.take("t"))
    assert silent.is_lost()


def test_a_claim_that_was_never_written_is_taken_over_after_the_lease(tmp_path: Path, clock: Clock) -> None:
    folder = tmp_path / "claims" / "s"
    folder.mkdir(parents=True)
    (folder / "t.0").touch()
    other = claims(tmp_path)
    assert held(other.take("t")).claim is None
    clock.passes(1.2 * LEASE_S)
    taken(other.take("t"))


def test_a_process_of_this_machine_that_has_ended_need_not_be_waited_for(tmp_path: Path) -> None:
    mine = this_process()
    host, _, started = mine.process.split("-")
    with subprocess.Popen([sys.executable, "-c", "pass"]) as child:
        child.wait()
    taken(claims(tmp_path, replace(mine, process=f"{host}-{child.pid}-{started}")).take("t"))
    taken(claims(tmp_path, replace(mine, process=ended())).take("u"))
    taken(claims(tmp_path, mine).take("v"))
    other = claims(tmp_path, lease_s=1e6)
    assert [type(other.take(name)) for name in "tuv"] == [Holding, Holding, HeldElsewhere]


@pytest.mark.parametrize(
    "text",
    [
        '{"token": "x", "holder": 7}',
        "[" * 60_000,
        '{"a":' * 60_000,
        "9" * 5_000,
        '{"token": "x", "holder": {"host": ["h"], "pid": 1}}',
        '{"token": "x", "holder": {"host": "h", "pid": 1, "process": 5}}',
        '{"token": "x", "holder": {"host": "h", "pid": 1, "job": "991", "job_starts": "many"}}',
        '{"token": "x", "holder": {"host": "h", "pid": 1}, "state": "done", "finished_at": 5}',
    ],
    ids=lambda text: text[:70],
)
def test_a_damaged_claim_is_no_claim_of_anyone(tmp_path: Path, text: str) -> None:
    mine = claims(tmp_path)
    mine.folder.mkdir(parents=True)
    (mine.folder / "t.0").write_text(text)
    assert read_claim(mine.folder / "t.0") is None and running_claims(mine.folder) == {}
    assert mine.find_unseen({"t": ""}) == set()
    assert held(mine.take("t")).claim is None


def test_an_earlier_start_of_this_job_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that its scheduler has started again need not wait for the lease of its own former processes."""
    monkeypatch.setenv("SLURM_JOB_ID", "991")
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    assert not ELSEWHERE.is_gone(), "another node of this start, perhaps"
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert ELSEWHERE.is_gone()
    assert not replace(ELSEWHERE, job_starts=1).is_gone() and not replace(ELSEWHERE, job="992").is_gone()
    assert this_process().job_starts == 1


def test_looking_at_a_trial_takes_nothing(tmp_path: Path) -> None:
    mine, other = claims(tmp_path), claims(tmp_path, this_process())
    assert mine.look("t") == "free" and not (tmp_path / "claims").exists()
    with taken(other.take("t")) as holding:
        assert held(mine.look("t")).generation == 0
        holding.finish()
    assert mine.look("t") is None
    taken(other.take("u")).release()
    assert mine.look("u") == "free" and read_claim(tmp_path / "claims" / "s" / "u.1") is None


def test_all_that_is_still_held_is_left_and_what_has_ended_is_forgotten(tmp_path: Path) -> None:
    mine = claims(tmp_path, this_process())
    done, left, *open_ones = (taken(mine.take(name)) for name in "abcde")
    done.finish()
    left.release()
    assert mine._open == {*open_ones}
    mine.release()
    assert mine._open == set()
    states = {path.name: read_claim(path) for path in (tmp_path / "claims" / "s").iterdir()}
    assert {name: claim and claim.state for name, claim in states.items()} == {
        "a.0": "done",
        **dict.fromkeys(("b.0", "c.0", "d.0", "e.0"), "released"),
    }


def test_making_a_claim_looks_at_no_other_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    monkeypatch.setattr(Holding, "is_open", property(lambda holding: looked.append(holding) or True))
    mine = claims(tmp_path)
    for number in range(50):
        taken(mine.take(f"t{number}"))
    assert looked == []


def test_turns_that_are_not_allowed_are_not_claimed(tmp_path: Path) -> None:
    items = [(number, name, name) for number, name in enumerate("abcd")]
    turns = Turns(items, claims(tmp_path), lambda item: item in "ac")
    ran = []
    for number, item, holding in turns:
        with holding:
            ran.append((number, item))
            holding.finish()
    assert (ran, turns.late, turns.held) == ([(0, "a"), (2, "c")], ["b", "d"], [])
    assert sorted(path.name for path in (tmp_path / "claims" / "s").iterdir()) == ["a.0", "c.0"]


def test_one_that_was_silent_keeps_its_trial_where_the_claims_were_removed(tmp_path: Path, clock: Clock) -> None:
    silent = taken(claims(tmp_path).take("t"))
    clock.passes(LEASE_S)
    shutil.rmtree(tmp_path / "claims")
    assert not silent.is_lost()
    assert [*running_claims(tmp_path / "claims" / "s")] == ["t"]
