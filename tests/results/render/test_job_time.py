"""Where the wall time of jobs went, in words: shares are of all runs' time, what lies between runs is told apart."""

from typing import Any

from benchsuite.results.render.job_time import differing_rank, lines, of_job, where_it_went


def run(record: str, began: str, job: str | None = None, **parts: float) -> dict[str, Any]:
    told = {f"wall_time_s.{part}": seconds for part, seconds in parts.items()}
    return {"record_id": record, "started_at": f"2026-11-20T{began}+00:00", "label": "train.py", "job": job, **told}


def test_shares_of_the_whole_the_most_first_without_what_hardly_counts() -> None:
    said = where_it_went({"start_up": 20.0, "training": 50.0, "logging": 0.1, "end": 9.9})
    assert said == "where the 80 s went: training 62 %, start-up 25 %, after the last step 12 %"


def test_runs_of_one_name_are_one_job_with_the_time_between_them() -> None:
    first = run("a", "10:00:00", "llama", start_up=600.0, training=3000.0)
    second = run("b", "11:30:00", "llama", start_up=600.0, training=3000.0)
    other, plain = run("c", "10:00:00", start_up=40.0, training=60.0), {"record_id": "d"}
    assert lines([first, other, second, plain]) == [
        "where the 2.0 h of 2 runs of train.py went: training 83 %, start-up 17 %; another 30 min lay between the runs",
        "where the 2 min of train.py went: training 60 %, start-up 40 %",
    ]


def test_a_run_alone_has_nothing_between() -> None:
    assert of_job([run("a", "10:00:00", "llama", training=100.0)]) == "where the 2 min went: training 100 %"


def test_a_rank_that_spends_its_time_otherwise() -> None:
    usual = {"training": 90.0, "input": 10.0}
    writing = {"training": 60.0, "input": 10.0, "checkpoints": 30.0}
    assert differing_rank({0: writing, 1: usual, 2: usual}) == (
        "rank 0 spent 30 % of its time on checkpoints, other ranks 0 %"
    )
    assert differing_rank({0: usual, 1: {"training": 92.0, "input": 8.0}}) is None, "within noise"
    assert differing_rank({0: usual, 1: {"training": 100.0}}) == (
        "rank 0 spent 10 % of its time on waiting for input, other ranks 0 %"
    )
    assert differing_rank({0: usual}) is None and differing_rank({0: usual, 1: {}}) is None
