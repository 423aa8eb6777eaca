"""From what ranks left behind to a record: which cause is told."""

import multiprocessing
import os
import signal
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from benchsuite.analysis.failure import failure
from benchsuite.analysis.record_builder import Attempt, _setting, conclude, measured, now
from benchsuite.contract.failed_rank import failed_result
from benchsuite.contract.outcome import Outcome, RankExit
from benchsuite.contract.rank_samples import ENDED_COUNTING, Heartbeat
from benchsuite.grid.point import Point
from benchsuite.inside.samples import RankSamples
from benchsuite.launch.work_folder import kept_work, remove_left_work, work_folder
from benchsuite.storage.dataset.manifest import DatasetError
from tests.helpers.made import CEILING, LOADER, made_block, made_result, made_spec

PEER = "RuntimeError: [gloo] Connection closed by peer"


def made_attempt(spec: Any = None, **changes: Any) -> Attempt:
    point = Point(spec or made_spec(), "0123456789ab", None, None, {"data.format": "files"}, order=7)
    env = {"host": "here", "data": {"file_system": "ext4"}}
    values = {"session": "s", "repeat": 1, "sweep": "w", "question": "Why?", "env": env | {"cores": 2}}
    return Attempt(kind="trial", spec={}, label="", point=point, **(values | changes)).of(point)


def failed(rank: int, reason: str, status: str = "failed") -> RankSamples:
    return RankSamples(rank, status, reason=reason)


def told(folder: Path, exits: list[RankExit], results: list[RankSamples | None], **outcome: Any) -> tuple[str, str]:
    return failure(Outcome(exits, **outcome), results, folder)


def test_a_peers_report_is_told_last(tmp_path: Path):
    exits = [RankExit(0, 1), RankExit(1, 1)]
    status, reason = told(tmp_path, exits, [failed(0, PEER), failed(1, "/data/a.jpg: not a whole JPEG")])
    assert status == "failed"
    assert reason.startswith("rank 1") and reason.endswith("/data/a.jpg: not a whole JPEG")


def test_a_peers_report_is_better_than_nothing(tmp_path: Path):
    status, reason = told(tmp_path, [RankExit(0, 1)], [failed(0, PEER), None])
    assert (status, reason.endswith(PEER)) == ("failed", True)


def test_a_killed_rank_is_told_before_exceptions(tmp_path: Path):
    exits = [RankExit(0, 1), RankExit(1, signal=9), RankExit(2, 1)]
    status, reason = told(tmp_path, exits, [failed(0, PEER), None, failed(2, "RuntimeError: lost")])
    assert (status, reason) == ("failed", "rank 1, before it started: killed by SIGKILL")


def test_out_of_memory_is_told_first(tmp_path: Path):
    exits = [RankExit(0, signal=9), RankExit(1, 1)]
    status, reason = told(tmp_path, exits, [None, failed(1, "MemoryError", status="oom")])
    assert status == "oom"
    assert reason.startswith("rank 1") and "memory" in reason.lower()


def test_a_kill_by_the_kernels_oom_killer_is_oom(tmp_path: Path):
    status, reason = told(tmp_path, [RankExit(0, signal=9)], [None], out_of_memory=True)
    assert status == "oom"
    assert "SIGKILL" in reason and "out of memory" in reason


def test_a_loader_worker_killed_for_memory_is_oom(tmp_path: Path):
    reason = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed."
    assert told(tmp_path, [RankExit(0, 1)], [failed(0, reason)], out_of_memory=True)[0] == "oom"
    assert told(tmp_path, [RankExit(0, 1)], [failed(0, reason)], out_of_memory=False)[0] == "failed"


def test_memory_that_ran_out_elsewhere_is_not_blamed_on_an_exception(tmp_path: Path):
    status, reason = told(tmp_path, [RankExit(0, 1)], [failed(0, "/data: gone")], out_of_memory=True)
    assert (status, "memory" in reason) == ("failed", False)


def test_memory_that_ran_out_elsewhere_is_not_blamed_on_a_crash(tmp_path: Path):
    assert told(tmp_path, [RankExit(0, signal=11)], [None], out_of_memory=True)[0] == "failed"


def test_an_exit_without_a_result_tells_the_last_line_of_its_log(tmp_path: Path):
    (tmp_path / "rank-0.log").write_text("warming up\nFatal Python error: no luck\n")
    status, reason = told(tmp_path, [RankExit(0, 7)], [None])
    assert (status, reason) == ("failed", "rank 0, before it started: exit status 7: Fatal Python error: no luck")


def test_the_phase_reached_is_told(tmp_path: Path):
    heart = Heartbeat(tmp_path, 0)
    heart.phase("measure")
    heart.total(12)
    heart.step()
    _, reason = told(tmp_path, [RankExit(0, signal=15)], [None])
    assert reason == "rank 0, in phase measure, step 1 of 12: killed by SIGTERM"


def test_a_time_limit_tells_where_it_hung(tmp_path: Path):
    Heartbeat(tmp_path, 0).phase("load")
    (tmp_path / "rank-0.log").write_text(
        'Current thread 0x1 (most recent call first):\n  File "x.py", line 3 in read\n'
    )
    status, reason = told(tmp_path, [], [None], timed_out=True)
    assert status == "timeout"
    assert "time limit in phase load" in reason and 'File "x.py", line 3 in read' in reason


WATCHDOG = "[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE)\n"
GLOO = "RuntimeError: [/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 900ms for recv operation"


@pytest.mark.parametrize("how", ["gloo", "nccl"])
def test_a_rank_that_others_waited_for_in_vain_is_the_one_that_is_named(tmp_path: Path, how: str):
    """gloo raises; NCCL's watchdog ends the process after it has written what it saw."""
    Heartbeat(tmp_path, 0).phase("measure")
    waited = failed_result(0, RuntimeError(GLOO)) if how == "gloo" else None
    (tmp_path / "rank-0.log").write_text(WATCHDOG if how == "nccl" else "")
    (tmp_path / "rank-1.log").write_text(
        'Current thread 0x1 (most recent call first):\n  File "x.py", line 3 in read\n'
    )
    ended = RankExit(0, code=1) if how == "gloo" else RankExit(0, signal=6)
    status, reason = told(tmp_path, [ended], [waited, None])
    assert status == "timeout"
    assert reason.startswith('ranks waited in vain in phase measure, rank 1 at File "x.py", line 3 in read; rank 0')


def test_an_interrupt_and_a_broken_launcher(tmp_path: Path):
    assert told(tmp_path, [], [None], interrupted=True)[0] == "interrupted"
    assert told(tmp_path, [], [None], launcher_error="no more processes") == ("failed", "no more processes")


def test_ranks_that_left_nothing(tmp_path: Path):
    status, reason = told(tmp_path, [RankExit(0, 0)], [None])
    assert status == "failed" and "without a result" in reason


def test_reasons_are_one_line(tmp_path: Path):
    result = failed_result(0, DatasetError("/data: bad"))
    assert "\n" not in told(tmp_path, [RankExit(0, 1)], [result])[1]


def test_conclude_measures_when_every_rank_is_ok(tmp_path: Path):
    spec = made_spec(world_size=2, parallelism="ddp")
    for rank in range(2):
        made_result(rank).write(tmp_path / f"rank-{rank}.json")
    record, samples = conclude(made_attempt(spec), Outcome([RankExit(0, 0), RankExit(1, 0)]), tmp_path)
    assert (record.status, record.phase, record.reason) == ("ok", "done", None)
    assert record.figures.au == pytest.approx(0.5)
    assert samples is not None
    assert [rank["rank"] for rank in samples["ranks"]] == [0, 1]
    assert samples["ranks"][1]["blocks"][1]["parts"]["load"] == [0.04] * 4, "raw samples are kept"


@pytest.mark.parametrize(
    "exits",
    [[RankExit(0, 0)], [RankExit(0, 0), RankExit(1, 1)], [RankExit(0, 0), RankExit(1, signal=9)]],
)
def test_conclude_fails_unless_every_rank_ended_well(tmp_path: Path, exits: list[RankExit]):
    for rank in range(2):
        made_result(rank).write(tmp_path / f"rank-{rank}.json")
    record, samples = conclude(made_attempt(made_spec(world_size=2, parallelism="ddp")), Outcome(exits), tmp_path)
    assert record.status == "failed" and record.reason
    assert samples is None
    assert record.figures.samples_per_s is None


@pytest.mark.parametrize(
    "ended", [{"exits": [RankExit(1, 1)]}, {"timed_out": True}, {"exits": [RankExit(0, signal=9)]}]
)
def test_a_trial_whose_steps_were_done_is_kept_however_counting_ended(tmp_path: Path, ended: dict[str, Any]):
    told = [ENDED_COUNTING, PEER, "OutOfMemoryError: CUDA out of memory"]
    for rank, why in enumerate(told):
        made_result(rank, phase="count", not_counted=why).write(tmp_path / f"rank-{rank}.json")
    attempt = made_attempt(made_spec(world_size=3, parallelism="ddp"))
    record, samples = conclude(attempt, Outcome(**ended), tmp_path)
    assert (record.status, record.reason) == ("ok", None)
    assert samples is not None and record.figures.au == pytest.approx(0.5)
    assert (
        "not_counted: rank 2, when its steps were done: OutOfMemoryError: CUDA out of memory" in record.caveat_details
    )
    assert conclude(attempt, Outcome(interrupted=True), tmp_path)[0].status == "interrupted"


def test_conclude_fails_when_a_rank_left_nothing(tmp_path: Path):
    record, _ = conclude(made_attempt(), Outcome([RankExit(0, 0)]), tmp_path)
    assert (record.status, record.phase) == ("failed", "start")


def test_measured_flags_utilization_above_one():
    """Ceiling blocks of 80 ms a step, loader blocks of 40 ms."""
    kinds = ("ceiling", "loader", "ceiling", "loader", "ceiling")
    blocks = [made_block(kind, 10.0 * n, CEILING if kind == "loader" else LOADER) for n, kind in enumerate(kinds)]
    record, _ = measured(made_attempt(), [made_result(blocks=blocks)], None)
    assert record.figures.au == pytest.approx(2.0) and record.caveats == ["au_above_one"]
    assert record.caveat_details[0].startswith("au_above_one: AU 2.00 = 80 ms a step with its input in memory / 40 ms")


def test_measured_has_verdict_and_caveats():
    blocks = [replace(block, decode_s=1.0) for block in made_result().blocks]
    record, _ = measured(made_attempt(), [made_result(blocks=blocks, cache_resident_before=0.5)], None)
    assert (record.figures.bottleneck, record.figures.cause) == ("preprocessing", None), "20 steps are few"
    assert record.evidence is not None and record.evidence["au"] == pytest.approx(0.5)
    assert record.alternatives == ["preprocessing/decode"] and record.remedies
    assert record.figures.bottleneck_evidence is not None and "AU 0.50" in record.figures.bottleneck_evidence
    assert record.caveats == ["not_cold"]
    assert record.caveat_details == ["not_cold: 50% of the trial's files stayed in the page cache"]


@pytest.mark.parametrize(("cores", "helps"), [(16, "more_workers"), (4, "more_cores")])
def test_the_verdict_counts_ranks_and_cores_of_one_node(cores: int, helps: str):
    """Eight ranks with two workers each fill two nodes of 16 cores to three quarters, and overfill those of 4."""
    nodes = [{"node": f"n{n}", "ranks": [4 * n, 4 * n + 3], "cores": cores} for n in range(2)]
    spec = made_spec(world_size=8, parallelism="ddp", data={"num_workers": 2})
    attempt = made_attempt(spec, env={"cores": 16, "nodes": nodes, "data": {"file_system": "ext4"}})
    blocks = [replace(block, decode_s=1.0) for block in made_result().blocks]
    found = measured(attempt, [made_result(rank, blocks) for rank in range(8)], None)[0]
    assert found.figures.bottleneck == "preprocessing" and found.remedies is not None
    assert helps in found.remedies


def test_the_verdict_knows_what_is_staged():
    env = {"cores": 2, "staging": {"file_system": "ext4"}, "data": {"file_system": "ext4"}}
    attempt = made_attempt(made_spec(data={"staging": "copy", "reader": "tuned", "loader": "threads"}), env=env)
    blocks = [replace(block, read_s=1.0) for block in made_result().blocks]
    found = measured(attempt, [made_result(0, blocks)], None)[0]
    assert (found.figures.bottleneck, found.remedies) == ("storage", ["shards", "more_workers", "faster_storage"])


def test_measured_doubts_a_cache_it_cannot_see():
    attempt = made_attempt(env={"cores": 2, "data": {"file_system": "gpfs"}})
    assert measured(attempt, [made_result()], None)[0].caveats == ["cache_unverified"]
    figures = measured(attempt, [made_result()], None)[0].figures
    assert figures.storage_bytes_per_s is None and figures.cache_hit_fraction is None, "its reads are not counted"


def test_samples_that_give_no_figures_are_a_failed_record_that_keeps_them(tmp_path: Path):
    odd = replace(made_result(), blocks=[])
    odd.write(tmp_path / "rank-0.json")
    record, samples = conclude(made_attempt(), Outcome([RankExit(0, 0)]), tmp_path)
    assert record.status == "failed"
    assert record.reason is not None and record.reason.startswith("the samples give no figures: ")
    assert samples is not None and samples["ranks"][0]["rank"] == 0


def test_measured_notes_what_others_did_meanwhile():
    record, _ = measured(made_attempt(), [made_result()], 0.75)
    assert record.figures.foreign_cpu_cores == 0.75
    assert record.caveats == ["foreign_load"]
    assert measured(made_attempt(), [made_result()], None)[0].figures.foreign_cpu_cores is None


def test_a_record_says_whose_it_is():
    record = made_attempt().record("skipped", reason="no shards")
    assert (record.trial_id, record.point_id) == ("0123456789ab.s.1", "0123456789ab")
    assert (record.sweep, record.question, record.label, record.repeat) == ("w", "Why?", "files", 1)
    assert record.spec["measure"]["steps"] == 8
    assert record.order == 7
    assert record.started_at <= record.finished_at
    assert made_attempt().record("skipped").record_id != record.record_id


def test_moments_sort_as_text():
    moments = [now() for _ in range(5)]
    assert moments == sorted(moments)
    assert all(moment.endswith("+00:00") and len(moment) == 32 for moment in moments)


def test_every_attempt_has_a_folder_of_its_own_that_does_not_outlive_it(tmp_path: Path):
    with work_folder(tmp_path, "point.s.0") as first, work_folder(tmp_path, "point.s.0") as second:
        assert first != second and {first.parent, second.parent} == {tmp_path / "work" / "point.s.0"}
        (first / "rank-0.log").write_text("what it said")
        kept = kept_work(first, tmp_path)
    assert not second.exists() and (kept / "rank-0.log").read_text() == "what it said"
    assert [*kept.parent.iterdir()] == [kept] and not kept.name.startswith(".")


def test_the_folder_of_a_killed_attempt_is_removed_and_none_else(tmp_path: Path):
    def killed() -> None:
        with work_folder(tmp_path, "point.s.0") as folder:
            (folder / "progress-0").write_text("")
            os.kill(os.getpid(), signal.SIGKILL)

    process = multiprocessing.get_context("fork").Process(target=killed)
    process.start()
    process.join()
    assert len([*(tmp_path / "work" / "point.s.0").iterdir()]) == 1
    with work_folder(tmp_path, "point.s.1") as mine:
        remove_left_work(tmp_path)
        assert [*(tmp_path / "work").iterdir()] == [mine.parent] and mine.is_dir()


@pytest.mark.parametrize(
    ("parallelism", "cache", "readers"),
    [({"tp": 4}, "cold", 4), ({"tp": 2, "dp": 2}, "cold", 2), ({"tp": 4}, "direct", 1), ("ddp", "cold", 1)],
)
def test_how_many_ranks_read_a_sample(parallelism: Any, cache: str, readers: int):
    spec = made_spec(workload="bert", world_size=4, parallelism=parallelism, data={"cache": cache})
    assert _setting(made_attempt(spec)).readers_of_a_sample == readers


@pytest.mark.parametrize(
    ("later_s", "wall_s", "said"),
    [
        (0.0, 0.0, None),
        (60.0, 60.0, None),
        (60.0, 65.0, None),
        (3600.0, 60.0, None),
        (-3540.0, 60.0, "the clock went back by about 3600 s in 60 s"),
        (40.0, 60.0, "the clock went back by about 20 s in 60 s"),
        (-1.0, 2.0, "the clock went back by about 3 s in 2 s"),
    ],
)
def test_a_clock_that_is_set_back_is_a_caveat(later_s: float, wall_s: float, said: str | None) -> None:
    began = datetime.now(UTC) - timedelta(seconds=later_s)
    started_s = time.perf_counter() - wall_s
    record = made_attempt(started_at=began.isoformat(timespec="microseconds"), started_s=started_s).record("ok")
    assert record.caveats == ([] if said is None else ["clock_set_back"])
    assert said is None or said in record.caveat_details[0]
