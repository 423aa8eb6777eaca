"""Claims: one holder at a time, taken over when it gives no sign, whatever clocks say and without locks."""

import fcntl
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchsuite.claims import Claims, Held, Holder, Holding, read_claim, running, this_process
from benchsuite.turns import Turns

ELSEWHERE = Holder("n0417", 4711, "991", "another boot", 1.0)
LEASE_S = 0.4


@pytest.fixture(autouse=True)
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on file systems without them."""

    def refuse(*_: object) -> None:
        raise OSError("locks are not supported")

    for name in ("flock", "lockf", "fcntl"):
        monkeypatch.setattr(fcntl, name, refuse)
    monkeypatch.setattr(os, "lockf", refuse)


def claims(folder: Path, holder: Holder = ELSEWHERE, lease_s: float = LEASE_S) -> Claims:
    return Claims(folder / "claims" / "s", lease_s, holder)


def taken(found: object) -> Holding:
    assert isinstance(found, Holding)
    return found


def held(found: object) -> Held:
    assert isinstance(found, Held)
    return found


def test_one_of_two_has_a_trial_and_the_other_is_told_who(tmp_path: Path) -> None:
    mine, other = claims(tmp_path), claims(tmp_path, this_process())
    with taken(mine.take("t")):
        claim = held(other.take("t")).claim
        assert claim is not None and str(claim.holder) == "n0417, process 4711, job 991"
        assert [*running(tmp_path / "claims" / "s")] == ["t"]
        taken(other.take("u"))


def test_a_finished_trial_is_free_to_nobody_whose_plan_is_older(tmp_path: Path) -> None:
    mine, other = claims(tmp_path), claims(tmp_path)
    with taken(mine.take("t")) as holding:
        holding.done()
    assert other.take("t") is None
    assert running(tmp_path / "claims" / "s") == {}


def test_a_plan_made_later_may_run_it_again(tmp_path: Path) -> None:
    with taken(claims(tmp_path).take("t")) as holding:
        holding.done()
    later = claims(tmp_path)
    assert later.over(["t", "u"]) == {"t"}
    with taken(later.take("t")) as again:
        again.done()
    assert later.take("u") is not None
    later = claims(tmp_path)
    assert later.over(["t"]) == {"t"}
    taken(later.take("t"))


def test_a_trial_that_was_dropped_is_free_at_once(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), taken(claims(tmp_path).take("t")):
        raise KeyboardInterrupt
    taken(claims(tmp_path, lease_s=1e6).take("t"))


def test_a_holder_that_beats_keeps_its_trial_and_is_seen_to_live(tmp_path: Path) -> None:
    other = claims(tmp_path, this_process())
    with taken(claims(tmp_path).take("t")) as holding:
        until = time.monotonic() + 3 * LEASE_S
        while time.monotonic() < until:
            found = held(other.take("t"))
            time.sleep(LEASE_S / 20)
        assert found.alive and not holding.is_lost()


def test_one_that_gives_no_sign_is_relieved_and_finds_out(tmp_path: Path) -> None:
    silent = taken(claims(tmp_path).take("t"))  # never entered: it does not beat
    other = claims(tmp_path, this_process())
    assert not held(other.take("t")).alive
    time.sleep(1.2 * LEASE_S)
    assert not silent.is_lost()
    with taken(other.take("t")) as mine:
        assert mine.taken_over and silent.is_lost() and not mine.is_lost()
        third = claims(tmp_path, lease_s=1e6)
        assert held(third.take("t")).generation == 1
        mine.done()
    with silent:  # it wakes up, and what it writes changes nothing
        pass
    assert claims(tmp_path).take("t") is None


def test_clocks_do_not_matter(tmp_path: Path) -> None:
    """A claim from tomorrow, on a file from last year, is one like others."""
    silent = taken(claims(tmp_path).take("t"))
    path = tmp_path / "claims" / "s" / "t.0"
    os.utime(path, (1.0, 1.0))
    assert held(claims(tmp_path, lease_s=60).take("t"))
    os.utime(path, (4e9, 4e9))
    other = claims(tmp_path)
    held(other.take("t"))
    time.sleep(1.2 * LEASE_S)
    taken(other.take("t"))
    assert silent.is_lost()


def test_a_claim_that_was_never_written_is_taken_over_after_the_lease(tmp_path: Path) -> None:
    folder = tmp_path / "claims" / "s"
    folder.mkdir(parents=True)
    (folder / "t.0").touch()
    other = claims(tmp_path)
    assert held(other.take("t")).claim is None
    time.sleep(1.2 * LEASE_S)
    taken(other.take("t"))


def test_a_process_of_this_machine_that_has_ended_need_not_be_waited_for(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as ended:
        ended.wait()
    mine = this_process()
    taken(claims(tmp_path, replace(mine, pid=ended.pid)).take("t"))
    taken(claims(tmp_path, replace(mine, born_s=mine.born_s - 5)).take("u"))  # its number went to another process
    taken(claims(tmp_path, mine).take("v"))
    other = claims(tmp_path, lease_s=1e6)
    assert [type(other.take(name)) for name in "tuv"] == [Holding, Holding, Held]


def test_a_damaged_claim_is_no_claim_of_anyone(tmp_path: Path) -> None:
    folder = tmp_path / "claims" / "s"
    folder.mkdir(parents=True)
    (folder / "t.0").write_text('{"token": "x", "holder": 7}')
    assert read_claim(folder / "t.0") is None
    assert held(claims(tmp_path).take("t")).claim is None


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
        holding.done()
    assert mine.look("t") is None
    taken(other.take("u")).release()
    assert mine.look("u") == "free" and read_claim(tmp_path / "claims" / "s" / "u.1") is None


def test_all_that_is_still_held_is_left_and_what_has_ended_is_forgotten(tmp_path: Path) -> None:
    mine = claims(tmp_path, this_process())
    done, left, *open_ones = (taken(mine.take(name)) for name in "abcde")
    done.done()
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
            holding.done()
    assert (ran, turns.late, turns.held) == ([(0, "a"), (2, "c")], ["b", "d"], [])
    assert sorted(path.name for path in (tmp_path / "claims" / "s").iterdir()) == ["a.0", "c.0"]
