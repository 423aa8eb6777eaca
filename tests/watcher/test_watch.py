"""Loops of anyone's own: what is timed, what ends a watch, what is told and stored, and what is left alone."""

import errno
import gc
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch.utils.data import DataLoader

import benchsuite
from benchsuite.cli.app import run_command
from benchsuite.contract.errors import UserError
from benchsuite.inside.loop import CEILING_BLOCKS, CEILING_STEPS, SETTLING_STEPS, StepLog, kinds_of_steps
from benchsuite.inside.rank_file import Reporter
from benchsuite.results.store.segments import Segment
from benchsuite.results.store.store import ResultsStore, StoreError
from benchsuite.watcher import watch as watching
from tests.helpers.watching import Clock, Slow, watched

FULL = OSError(errno.ENOSPC, "No space left on device")


def test_batches_pass_through_and_the_loader_stays_in_reach():
    loader = DataLoader(torch.arange(12).float(), batch_size=4)  # type: ignore[arg-type]
    watch = watched(loader)
    assert [batch.tolist() for batch in watch] == [batch.tolist() for batch in loader]
    assert len(watch) == 3
    assert watch.batch_size == 4 and watch.dataset is loader.dataset and watch.loader is loader
    with pytest.raises(AttributeError):
        _ = watch.no_such_thing


def test_a_watched_loader_is_as_true_as_the_loader():
    """`if loader:` and `loader or other` stand in training scripts; a generator has no length."""
    assert watched(iter(range(3))) and watched([1]) and not watched([])


def test_parts_of_the_step(clock: Clock):
    watch = watched(Slow(clock, 10, 2.0))
    for _ in watch:
        clock.passes(1.0)
        watch.mark("forward")
        clock.passes(4.0)
        watch.mark("backward")
        clock.passes(1.0)
    watch.close()
    found = watch.figures
    assert (found["load_s"], found["forward_s"], found["backward_s"], found["other_s"]) == (2.0, 1.0, 4.0, 1.0)
    assert found["step_s_mean"] == found["step_s_p50"] == 8.0
    assert found["input_stall_fraction"] == 0.25 and found["utilization"] == 0.75 and found.get("au") is None
    assert found["samples_per_s"] == 4 / 8.0
    assert found["steps"] == 10


def test_a_notebook_shows_the_table_so_far(clock: Clock):
    watch = watched(Slow(clock, 40, 2.0), name="<mine>")
    assert watch._repr_html_() == "<p>&lt;mine&gt;: no step has counted yet</p>"
    for _ in watch:
        clock.passes(6.0)
    watch.close()
    shown = watch._repr_html_()
    rows = [[cell.text for cell in row] for row in ElementTree.fromstring(shown.replace("<br>", "<br/>")).iter("tr")]
    assert rows[0][1:] == ["ms/step", "share"]
    assert rows[1:] == [
        ["waiting for input", "2000.0", "25%"],
        ["loop body", "6000.0", "75%"],
        ["step", "8000.0", "100%"],
    ]
    assert "&lt;mine&gt; · 40 steps counted<br" in shown and "waits for input" in shown


def test_without_marks_the_body_is_one_part(clock: Clock, capsys: pytest.CaptureFixture[str]):
    for _ in benchsuite.watch(Slow(clock, 40, 0.001), warmup_steps=0):
        clock.passes(0.099)
    said = capsys.readouterr().err
    assert "loop body" in said and "99.0" in said


def test_a_part_begins_where_it_is_opened(clock: Clock):
    watch = watched(Slow(clock, 4, 1.0))
    for _ in watch:
        clock.passes(2.0)
        with watch.part("communication"):
            clock.passes(4.0)
    assert (watch.figures["communication_s"], watch.figures["other_s"]) == (4.0, 2.0)
    assert watch.figures["bottleneck"] == "preprocessing" or watch.figures["input_stall_fraction"] > 0.05


def test_a_marked_exchange_is_told_as_such(clock: Clock):
    watch = watched(Slow(clock, 40, 0.1))
    for _ in watch:
        clock.passes(5.0)
        with watch.part("communication"):
            clock.passes(4.9)
    assert watch.figures["evidence"]["communication/communication_fraction"] == pytest.approx(0.49)


def test_an_unknown_mark_is_refused():
    with pytest.raises(UserError, match=r"mark 'fowards' is unknown; nearest: forward; allowed: h2d, forward"):
        watched([]).mark("fowards")


def test_a_mark_outside_of_a_step_is_nothing(clock: Clock):
    watch = watched(Slow(clock, 2, 1.0))
    watch.mark("forward")
    for _ in watch:
        clock.passes(1.0)
    watch.mark("backward")
    watch.close()
    assert set(watch._ending.loop.steps.parts_s) == {"load", "other"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "tpu"}, "device 'tpu' is unknown; nearest: cpu; allowed: cpu, cuda, cuda:N"),
        ({"ceiling": "again"}, "ceiling 'again' is unknown; allowed: replay"),
        ({"warmup_steps": -1}, "warmup_steps -1: at least 0"),
        ({"batch_size": 0}, "batch_size 0: at least 1"),
        ({"session": "a b"}, "session 'a b'"),
        ({"session": None}, "^session None: a NoneType; allowed: a text$"),
        ({"name": 7}, "^name 7: a int; allowed: a text$"),
        ({"data": ["photos"]}, r"^data \['photos'\]: a list; allowed: one path$"),
        ({"store": 3}, "^store 3: a int; allowed: one path$"),
        ({"warmup_steps": "3"}, "^warmup_steps '3': a str; allowed: a whole number, at least 0$"),
        ({"batch_size": "x"}, "^batch_size 'x': a str; allowed: a whole number, at least 1$"),
        ({"batch_size": 2.5}, "^batch_size 2.5: a float; allowed: a whole number, at least 1$"),
        ({"batch_size": True}, "^batch_size True: a bool; allowed"),
        ({"batch_size": [1]}, r"^batch_size \[1\]: a list; allowed"),
        ({"data": "/nope/x"}, "^data '/nope/x': no such file or folder; name where the samples lie, or leave it out$"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(changes: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message):
        watched([], **changes)


def test_a_loader_that_cannot_be_iterated_is_refused():
    with pytest.raises(UserError, match=r"^loader None: a NoneType; allowed: an iterable of batches$"):
        watched(None)


@pytest.mark.parametrize("loader", [[1, 2], DataLoader([1, 2])])  # type: ignore[arg-type]
def test_a_watch_is_not_watched_again(loader: Any):
    again = watched(loader)
    with pytest.raises(
        UserError, match=r"^loader: it is watched already; iterate over it as it is, or watch its .load"
    ):
        watched(again)
    assert len(list(watched(again.loader))) == 2


def test_a_cuda_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        UserError, match=r"^device 'cuda:0': CUDA is not available here; allowed: cpu, or leave it out$"
    ):
        watched([], device="cuda:0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    watched([], device="cuda:1")
    for device in ("cuda:2", "cuda:x"):
        with pytest.raises(UserError, match=f"^device '{device}': allowed: cpu, cuda, or cuda:N with N from 0 to 1$"):
            watched([], device=device)


def test_loops_in_step_say_that_one_waits_in_the_others_body(capsys: pytest.CaptureFixture[str]):
    def slow() -> Iterator[int]:
        for number in range(30):
            time.sleep(0.01)
            yield number

    watches = [benchsuite.watch(slow(), name=name, warmup_steps=2) for name in ("left", "right")]
    for _ in zip(*watches, strict=True):
        pass
    for one in watches:
        one.close()
    assert capsys.readouterr().err.count("this loop's body includes waiting for another watched loader, ") == 2
    first, second = (benchsuite.watch(slow(), name=name, warmup_steps=2) for name in ("train", "validate"))
    for one in (first, second):
        for _ in one:
            pass
        one.close()
    said = capsys.readouterr().err
    assert said.count("steps counted") == 2 and "another watched loader" not in said


def test_known_sleeps_give_known_fractions():
    def loader() -> Iterator[int]:
        for number in range(60):
            time.sleep(0.006)
            yield number

    watch = watched(loader())
    for _ in watch:
        time.sleep(0.018)
    assert watch.figures["input_stall_fraction"] == pytest.approx(0.25, abs=0.08)
    looks = watch._ending.mine().looks
    assert looks is not None and looks.body["sleep"] > 0.8 * sum(looks.body.values())


def test_what_has_to_be_handed_over_is_counted():
    watch = watched([{"text": ["ab", "c"], "boxes": [torch.zeros(3, 4), torch.zeros(5, 4)], "rows": torch.zeros(2)}])
    assert len([*watch]) == 1
    readers = watch._ending.mine().seen_readers
    assert readers is not None
    assert (readers.batch_arrays, readers.batch_bytes) == (3, (12 + 20 + 2) * 4 + 3)


def test_a_step_that_is_broken_off_does_not_count(clock: Clock):
    watch = watched(Slow(clock, 10, 1.0))
    for number, _ in enumerate(watch):
        if number == 4:
            break
        clock.passes(1.0)
    assert watch.figures["steps"] == 4 and watch.figures["step_s_mean"] == 2.0


def test_a_pass_that_its_loop_ends_counts_its_last_step_and_nothing_that_follows(clock: Clock):
    watch = watched(Slow(clock, 8, load_s=0.1))
    for _ in range(2):
        batches = iter(watch)
        for _ in range(4):
            next(batches)
            clock.passes(0.3)
        watch.end_pass()
        watch.mark("forward")
        clock.passes(100.0)  # as validation does
    next(batches)
    clock.passes(0.3)
    watch.end_pass()
    watch.end_pass()
    watch.close()
    steps = watch._ending.loop.steps
    assert steps.num_steps == 9
    assert steps.parts_s == {"load": pytest.approx(0.9), "other": pytest.approx(2.7)}


def test_an_exception_ends_the_watch_and_is_told(clock: Clock, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(KeyboardInterrupt), benchsuite.watch(Slow(clock, 40, 1.0), warmup_steps=0, store=tmp_path) as w:
        for number, _ in enumerate(w):
            clock.passes(1.0)
            if number == 24:
                raise KeyboardInterrupt
    said = capsys.readouterr().err
    assert "caveat: cut_short: the loop ended by KeyboardInterrupt" in said
    (record,) = ResultsStore(tmp_path).records()
    assert record.status == "ok" and record.caveats == ["cut_short"] and w.record == record


@pytest.mark.parametrize("ended_by", ["its end", "break", "ValueError"])
def test_a_watch_that_nobody_holds_ends_with_its_loop(clock: Clock, ended_by: str, capsys: pytest.CaptureFixture[str]):
    try:
        for number, _ in enumerate(benchsuite.watch(Slow(clock, 40, 1.0), warmup_steps=0)):
            clock.passes(1.0)
            if number == 30 and ended_by == "break":
                break
            if number == 30 and ended_by == "ValueError":
                raise ValueError
    except ValueError:
        pass
    assert f"{40 if ended_by == 'its end' else 30} steps counted" in capsys.readouterr().err


def test_the_loaders_failure_is_the_users(clock: Clock):
    def loader() -> Iterator[int]:
        yield from range(3)
        raise OSError("disk on fire")

    watch = watched(loader())
    with pytest.raises(OSError, match="disk on fire"):
        for _ in watch:
            clock.passes(1.0)
    assert watch.figures["steps"] == 3


def test_passes_add_up_and_are_told_once(clock: Clock, capsys: pytest.CaptureFixture[str]):
    watch = benchsuite.watch(Slow(clock, 20, 1.0, end_s=2.0), warmup_steps=1)
    for _ in range(3):
        for _ in watch:
            clock.passes(1.0)
        clock.passes(500.0)  # validation: no part of any step
    assert capsys.readouterr().err == ""
    watch.close()
    watch.close()
    assert capsys.readouterr().err.count("3 passes, 59 steps counted, 1 before") == 1
    # The end of a pass took 2 s, twice before a pass that followed.
    assert watch.figures["load_s"] == pytest.approx((59 * 1.0 + 2 * 2.0) / 59)
    assert watch.figures["refill_fraction"] == pytest.approx((2 * 1.0 + 2 * 2.0) / 63)


def test_after_its_end_batches_still_pass(clock: Clock):
    watch = watched(Slow(clock, 4, 1.0))
    assert len(list(watch)) == 4
    watch.close()
    assert len(list(watch)) == 4
    assert watch.figures["steps"] == 4


def test_warm_up_covers_the_loaders_queue():
    loader = DataLoader(torch.zeros(80), batch_size=1, num_workers=2, prefetch_factor=3)  # type: ignore[arg-type]
    watch = benchsuite.watch(loader, quiet=True)
    for _ in watch:
        pass
    watch.close()
    assert watch.figures["steps"] == 80 - 5 - (2 * 3 + 1)
    assert watch.record is not None and "not_steady" not in watch.record.caveats


def test_a_loop_too_short_has_no_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with benchsuite.watch([1, 2, 3], store=tmp_path, name="short") as watch:
        assert [*watch] == [1, 2, 3]
    assert (
        "short · no step counted: 3 steps ended, all of them warm-up (warmup_steps=5); train" in capsys.readouterr().err
    )
    (record,) = ResultsStore(tmp_path).records()
    assert record.status == "failed" and record.figures.step_s_mean is None
    assert run_command(["report", "--store", str(tmp_path)]) == 0


def test_replayed_batches_give_a_ceiling(clock: Clock):
    watch = watched(Slow(clock, 400, 3.0), ceiling="replay")
    loaded, last, again = 0, None, 0
    for batch in watch:
        again += batch is last
        loaded += batch is not last
        last = batch
        clock.passes(2.0)
    assert loaded == 400 and again == CEILING_BLOCKS * (CEILING_STEPS + SETTLING_STEPS)
    assert watch.figures["au"] == watch.figures["utilization"] == pytest.approx(0.4)
    assert watch.figures["ceiling_step_s"] == 2.0 and watch.figures["step_s_mean"] == 5.0
    assert watch.figures["samples_per_s"] == pytest.approx(4 / 5)


def test_a_pass_too_short_to_replay_in_goes_on_in_the_next(clock: Clock):
    watch = watched(Slow(clock, 7, 3.0), ceiling="replay")
    batches = 0
    for _ in range(40):
        for _ in watch:
            batches += 1
            clock.passes(2.0)
    assert batches == 7 * 40 + CEILING_BLOCKS * (CEILING_STEPS + SETTLING_STEPS)
    assert watch.figures["au"] == pytest.approx(0.4)


def test_kinds_of_steps_interleave():
    kinds = kinds_of_steps(1, replayed_beside=2)
    first = [next(kinds) for _ in range(1 + CEILING_BLOCKS * 13 + (CEILING_BLOCKS - 1) * 32 + 5)]
    runs = [kind for number, kind in enumerate(first) if number == 0 or kind != first[number - 1]]
    block = ["settling", "ceiling", "uncounted"]
    assert runs == ["uncounted", *[*block, "between"] * (CEILING_BLOCKS - 1), *block, "counted"]


def test_reads_that_nobody_counts_are_not_zero(clock: Clock):
    watch = watched(Slow(clock, 4, 1.0))
    for _ in watch:
        pass
    assert watch.figures["storage_bytes_per_s"] is None and watch.figures["cache_hit_fraction"] is None


def test_a_stored_record_is_read_by_report_and_show(clock: Clock, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for _ in range(2):
        for _ in benchsuite.watch(Slow(clock, 40, 1.0), store=tmp_path, name="mine", warmup_steps=0):
            clock.passes(3.0)
    store = ResultsStore(tmp_path)
    first, second = store.latest()
    assert first.point_id == second.point_id and first.trial_id != second.trial_id
    assert (first.kind, first.sweep, first.label, first.session) == ("trial", "watch", "mine", "default")
    assert first.spec["workload"] == "mine" and first.spec["data"]["loader"] == "Slow"
    samples = store.samples(first)
    assert samples is not None
    (block,) = samples["ranks"][0]["blocks"]
    assert block["parts"] == {"load": [1.0] * 40, "other": [3.0] * 40} and block["totals"][0] == 40
    assert store.frame(by="point").loc[0, "repeats"] == 2
    capsys.readouterr()
    for arguments in (
        ["report"],
        ["report", "--format", "md"],
        ["results", "show"],
        ["results", "show", "--by", "point"],
    ):
        assert run_command([*arguments, "--store", str(tmp_path)]) == 0
        assert "25%" in capsys.readouterr().out
    assert run_command(["report", "--why", "--store", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "What holds the watched loops back?" in said and "the loop waits for input 25 % of the time" in said
    assert "No point read from storage" not in said


def test_reports_before_any_step_counts(tmp_path: Path):
    """Readers that cannot be seen, as children that come and go, are told by their time: there is none yet."""

    def batches() -> Iterator[int]:
        for number in range(8):
            subprocess.run([sys.executable, "-c", ""], check=True)
            yield number

    with benchsuite.watch(batches(), store=tmp_path, warmup_steps=5, batch_size=1) as watch:
        assert len([*watch]) == 8
    assert [record.status for record in ResultsStore(tmp_path).trials()] == ["ok"]


def test_an_error_of_ours_ends_no_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def fails(*_: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(Reporter, "_make", fails)
    watch = benchsuite.watch(range(40), store=tmp_path, name="mine", batch_size=1)
    assert len([*watch]) == 40
    watch.close()
    assert capsys.readouterr().err.count("mine is no longer measured while it trains: ZeroDivisionError: ours") == 1
    assert [record.status for record in ResultsStore(tmp_path).trials()] == ["ok"]


def test_a_store_that_cannot_be_written_is_said_before_training(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        watched([], store=tmp_path / "file")


def test_what_goes_wrong_at_the_end_is_a_warning(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    watch = watched(Slow(clock, 4, 1.0), store=tmp_path)
    monkeypatch.setattr(ResultsStore, "append", lambda *_: (_ for _ in ()).throw(StoreError("disk full")))
    for _ in watch:
        pass
    watch.close()
    assert capsys.readouterr().err == "warning: benchsuite.watch: not stored: disk full\n"
    assert watch.figures["steps"] == 4


def test_a_store_that_fills_up_costs_the_record_and_not_the_answer(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    watch = watched(Slow(clock, 40, 1.0), store=tmp_path, quiet=False)
    monkeypatch.setattr(Segment, "append", lambda *_: (_ for _ in ()).throw(FULL))
    for _ in watch:
        clock.passes(3.0)
    watch.close()
    said = capsys.readouterr().err.splitlines()
    assert any("waits for input" in line for line in said) and any("loop body" in line for line in said)
    assert said[-1] == f"warning: benchsuite.watch: not stored: store {tmp_path}: cannot append: {FULL.strerror}"
    assert watch.record is not None and watch.record.figures.input_stall_fraction == 0.25


def test_a_disk_that_is_full_at_the_start_does_not_stop_the_training(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    store = tmp_path / "s"
    with monkeypatch.context() as now:
        now.setattr(Path, "mkdir", lambda *_, **__: (_ for _ in ()).throw(FULL))
        watch = watched(Slow(clock, 4, 1.0), store=store)
    [said] = capsys.readouterr().err.splitlines()
    assert said.startswith(f"warning: benchsuite.watch: store {store}: cannot be written: {FULL.strerror}; what is")
    for _ in watch:
        clock.passes(3.0)
    watch.close()
    assert len(ResultsStore(store).records()) == 1


def test_batches_are_not_held_while_the_next_is_loaded(clock: Clock):
    held: list[weakref.ref[torch.Tensor]] = []
    for batch in watched(Slow(clock, 3, 1.0)):
        assert all(ref() is None for ref in held)
        held.append(weakref.ref(batch))
        del batch
        gc.collect()
        assert held[-1]() is None


class Device:
    """A timeline of its own that comes to a moment only when it is waited for, or `runs` is set."""

    device = "made up"

    def __init__(self, clock: Clock) -> None:
        self.clock, self.runs, self.waits = clock, False, 0

    def now(self) -> float:
        return self.clock()

    def passed(self, stamp: float) -> bool:
        return self.runs

    def wait(self, stamp: float) -> None:
        self.runs, self.waits = True, self.waits + 1

    def seconds(self, before: float, after: float) -> float:
        assert self.runs, "read before it has passed"
        return after - before


def test_the_device_is_waited_for_once_at_the_end(clock: Clock, monkeypatch: pytest.MonkeyPatch):
    device = Device(clock)
    monkeypatch.setattr(watching, "stamps_for", lambda asked: device)
    monkeypatch.setattr(watching.Ending, "mine", _without_cuda(watching.Ending.mine))
    watch = watched(Slow(clock, 50, 1.0))
    for _ in watch:
        clock.passes(1.0)
    assert (device.waits, watch._ending.loop.steps.num_steps) == (0, 0)
    watch.close()
    assert device.waits == 1 and watch.figures["steps"] == 50 and watch.figures["load_s"] == 1.0


def _without_cuda(mine: Any) -> Any:
    """Peak memory is asked of torch, which has no such device."""

    def patched(ending: Any) -> Any:
        original, torch.cuda.max_memory_allocated = torch.cuda.max_memory_allocated, lambda: 7
        try:
            return mine(ending)
        finally:
            torch.cuda.max_memory_allocated = original

    return patched


def test_single_steps_are_thinned_evenly():
    log = StepLog(max_kept=10)
    for number in range(100):
        log.add({"load": float(number)}, 2)
    assert log.num_steps == 100 and log.samples == 200 and log.seconds == sum(range(100))
    assert [parts["load"] for parts in log.kept] == [float(n) for n in range(0, 100, log.stride)]
    assert 5 <= len(log.kept) <= 10
