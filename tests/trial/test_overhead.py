"""The harness's own share of a step: calibrated with the steps' own marks, and put over the step."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from benchsuite.analysis.metrics import figures, overhead
from benchsuite.contract.rank_samples import Heartbeat
from benchsuite.inside.samples import Block
from benchsuite.runner.single_trial import run_trial
from benchsuite.trial import costs
from benchsuite.trial.clock import HostClock
from benchsuite.trial.costs import EMPTY_BLOCKS, EMPTY_STEPS, instrument_s_per_step
from tests.helpers.made import made_block, made_result, made_spec

BLOCK = made_block("loader", 0.0, {"load": 0.01, "forward": 0.01, "backward": 0.02, "optimizer": 0.01})


@pytest.fixture
def heart(tmp_path: Path) -> Heartbeat:
    return Heartbeat(tmp_path, 0)


def test_it_costs_something_and_leaves_the_heartbeat_as_it_was(heart: Heartbeat):
    heart.phase("measure")
    before = heart.path.read_bytes()
    found = instrument_s_per_step(HostClock(), heart, [BLOCK])
    assert found is not None and found > 0
    assert heart.path.read_bytes() == before
    assert list(heart.path.parent.iterdir()) == [heart.path]


def test_a_slow_mark_is_counted_as_often_as_the_steps_have_parts(heart: Heartbeat, monkeypatch: pytest.MonkeyPatch):
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(costs, "time", SimpleNamespace(perf_counter=lambda: now.seconds))

    class Slow(HostClock):
        def mark(self, part: str) -> None:
            now.seconds += 20e-6

        def stop(self) -> Block:
            now.seconds += 100e-6
            return Block("plain", 0.0, 0.0, {})

    assert instrument_s_per_step(Slow(), heart, [BLOCK]) == pytest.approx(4 * 20e-6 + 100e-6 / EMPTY_STEPS)


def test_marks_heartbeats_starts_and_stops_are_what_is_counted(heart: Heartbeat, monkeypatch: pytest.MonkeyPatch):
    seen: list[str] = []

    class Noted(HostClock):
        def start(self) -> None:
            seen.append("start")
            super().start()

        def mark(self, part: str) -> None:
            seen.append(part)
            super().mark(part)

    monkeypatch.setattr(Heartbeat, "beat", lambda heart: seen.append("beat"))
    instrument_s_per_step(Noted(), heart, [made_block("ceiling", 0.0, {"load": 1.0}), BLOCK])
    step = ["load", "forward", "backward", "optimizer", "beat"]
    assert seen == (["start"] + step * EMPTY_STEPS) * EMPTY_BLOCKS


def test_without_steps_there_is_nothing_to_tell(heart: Heartbeat):
    assert instrument_s_per_step(HostClock(), heart, []) is None


def test_the_fraction_is_that_of_the_costliest_rank():
    results = [made_result(0, instrument_s_per_step=2e-6), made_result(1, instrument_s_per_step=8e-6)]
    assert figures(made_spec(world_size=2, parallelism="ddp"), results)["overhead_fraction"] == pytest.approx(1e-4)
    assert overhead(results[0]) == pytest.approx(2e-6 / 0.08)
    assert overhead(made_result()) is None


def test_a_trial_has_its_own():
    spec = {"workload": "resnet50", "variant": "nano", "batch_size": 2, "device": "cpu", "threads_per_rank": 1}
    record = run_trial({**spec, "data": {"source": "synthetic"}, "measure": {"steps": 4, "warmup_steps": 1}})
    assert record.status == "ok", record.reason
    assert record.figures.overhead_fraction is not None and record.figures.overhead_fraction > 0
