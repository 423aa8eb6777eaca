"""What ranks leave behind: results by rename, and heartbeats."""

from pathlib import Path

import pytest

from benchsuite.contract.rank_samples import PHASES, Heartbeat, Progress, RankIdentity, read_progress, read_result
from benchsuite.inside.samples import Block, RankSamples
from tests.helpers.made import made_result


def test_a_result_is_read_as_it_was_written(tmp_path: Path):
    result = made_result(1, device_name="µ200")
    result.write(tmp_path / "rank-1.json")
    assert read_result(tmp_path / "rank-1.json") == result


def test_a_failure_is_read_as_it_was_written(tmp_path: Path):
    result = RankSamples(0, "failed", reason='OSError: "no\nsuch" file', phase="load")
    result.write(tmp_path / "rank-0.json")
    assert read_result(tmp_path / "rank-0.json") == result


def test_writing_leaves_nothing_else(tmp_path: Path):
    made_result().write(tmp_path / "rank-0.json")
    assert [path.name for path in tmp_path.iterdir()] == ["rank-0.json"]


def test_an_interrupted_write_shows_the_old_result_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "rank-0.json"

    def stop(_self: Path, _target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", stop)
        with pytest.raises(KeyboardInterrupt):
            made_result().write(path)
    assert read_result(path) is None
    made_result().write(path)
    assert read_result(path) == made_result()


def test_a_result_is_written_whole(tmp_path: Path):
    (tmp_path / "rank-1.json").write_text('{"rank": 1, "sta')
    made_result(1).write(tmp_path / "rank-1.json")
    assert read_result(tmp_path / "rank-1.json") == made_result(1)


@pytest.mark.parametrize("text", ["", "{", '{"rank": 0, "sta', "\x00\x00"])
def test_a_damaged_result_is_none(tmp_path: Path, text: str):
    (tmp_path / "rank-0.json").write_text(text)
    assert read_result(tmp_path / "rank-0.json") is None


def test_paths_of_a_rank(tmp_path: Path):
    me = RankIdentity(3, 4, 3, tmp_path, 0.0)
    assert (me.result_path, me.log_path) == (tmp_path / "rank-3.json", tmp_path / "rank-3.log")


def test_steps_are_the_sum_of_their_parts():
    block = Block("loader", 0.0, 10.0, {"load": [1.0, 2.0], "forward": [3.0, 4.0]})
    assert block.step_s() == [4.0, 6.0]
    assert block.num_steps == 2
    assert Block("plain", 0.0, 0.0, {}).num_steps == 0


def test_a_thinned_block_keeps_its_sums():
    block = Block("loader", 0.0, 21.0, {"load": [1.0, 2.0, 3.0], "other": [5.0, 5.0, 5.0]})
    thin = block.thinned(1)
    assert (thin.parts, thin.every) == ({"load": [1.0], "other": [5.0]}, 4)
    assert (thin.num_steps, thin.steps_s, thin.parts_s()) == (3, 21.0, {"load": 6.0, "other": 15.0})
    assert block.thinned(3) is block


def test_heartbeat(tmp_path: Path):
    assert read_progress(tmp_path, 0) is None
    heart = Heartbeat(tmp_path, 0)
    heart.phase("warmup")
    heart.total(12)
    heart.step()
    heart.step()
    assert read_progress(tmp_path, 0) == Progress("warmup", 2, 12, None)
    heart.au(0.75)
    heart.step()
    assert read_progress(tmp_path, 0) == Progress("warmup", 3, 12, 0.75)


def test_a_heartbeat_at_birth(tmp_path: Path):
    heart = Heartbeat(tmp_path, 0)
    assert read_progress(tmp_path, 0) == Progress("start", 0, 0, None)
    heart.phase("start")


def test_heartbeats_know_every_phase(tmp_path: Path):
    heart = Heartbeat(tmp_path, 0)
    seen = []
    for phase in PHASES:
        heart.phase(phase)
        progress = read_progress(tmp_path, 0)
        assert progress is not None
        seen.append(progress.phase)
    assert tuple(seen) == PHASES


def test_ranks_have_heartbeats_of_their_own(tmp_path: Path):
    first, second = Heartbeat(tmp_path, 0), Heartbeat(tmp_path, 1)
    first.step()
    second.phase("build")
    assert read_progress(tmp_path, 0) == Progress("start", 1, 0, None)
    assert read_progress(tmp_path, 1) == Progress("build", 0, 0, None)


def test_a_zero_utilization_is_not_unknown(tmp_path: Path):
    heart = Heartbeat(tmp_path, 0)
    heart.au(0.0)
    heart.step()
    progress = read_progress(tmp_path, 0)
    assert progress is not None and progress.au == 0.0


@pytest.mark.parametrize("size", [0, 7])
def test_a_heartbeat_not_yet_written_is_none(tmp_path: Path, size: int):
    (tmp_path / "progress-0").write_bytes(b"x" * size)
    assert read_progress(tmp_path, 0) is None
