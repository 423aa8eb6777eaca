"""Where the wall time of jobs went, in words: shares are of all runs' time, what lies between runs is told apart."""

from benchsuite.results.render.job_time import differing_rank, of_job, where_it_went


def test_shares_of_the_whole_the_most_first_without_what_hardly_counts() -> None:
    said = where_it_went({"start_up": 20.0, "training": 50.0, "logging": 0.1, "end": 9.9})
    assert said == "where the 80 s went: training 62 %, start-up 25 %, after the last step 12 %"


def test_a_run_alone_has_nothing_between() -> None:
    assert of_job([("2026-11-20T10:00:00+00:00", {"training": 100.0})]) == "where the 2 min went: training 100 %"


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
