"""What every launcher has to do, whatever starts its agents; run by tests of each of them."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchsuite.analysis.record_builder import conclude, new_attempt
from benchsuite.contract.errors import UserError
from benchsuite.contract.outcome import Outcome
from benchsuite.contract.rank_samples import Progress, RankIdentity
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.grid.expand import plan_trial
from benchsuite.inside.samples import RankSamples
from benchsuite.launch.agents import AgentLauncher

GONE_S = 10.0
"""What mpiexec has started on other nodes may outlive it for a moment."""
TOLD = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "TMPDIR")


def tell(_spec: TrialSpec, _dataset: Path | None, me: RankIdentity, _keep: list[object]) -> RankSamples:
    """A rank that writes down what it was given."""
    told = {name: os.environ.get(name) for name in TOLD} | {"cpus": sorted(os.sched_getaffinity(0)), "pid": os.getpid()}
    (me.folder / f"told-{me.rank}").write_text(json.dumps(told))
    return RankSamples(me.rank, "ok")


def die(_spec: TrialSpec, _dataset: Path | None, me: RankIdentity, _keep: list[object]) -> RankSamples:
    """A last rank that is killed, of a trial whose other ranks wait for ever."""
    if me.rank == me.world_size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(3600)
    return RankSamples(me.rank, "ok")


def hang(_spec: TrialSpec, _dataset: Path | None, me: RankIdentity, _keep: list[object]) -> RankSamples:
    """A rank that never ends and has a child."""
    (me.folder / f"hung-{me.rank}").write_text(str(os.getpid()))
    if os.fork() == 0:
        os.setsid()
    time.sleep(3600)
    return RankSamples(me.rank, "ok")


def spec(world_size: int, timeout_s: float = 60, ranks_per_node: int | None = None) -> TrialSpec:
    """A trial of ranks without data, planned for more nodes than this process may see."""
    planned = plan_trial(
        {
            "workload": "gpt_neox",
            "variant": "nano",
            "data": {"source": "synthetic"},
            "parallelism": "ddp",
            "world_size": world_size,
            "batch_size": 2,
            "device": "cpu",
            "measure": {"steps": 4, "warmup_steps": 1, "timeout_s": timeout_s},
        }
    ).spec
    return planned.model_copy(update={"ranks_per_node": ranks_per_node})


def marked(mark: str) -> list[psutil.Process]:
    """Processes that carry a mark in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("BENCHSUITE_TEST_MARK") == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return [process for process in found if process.pid != os.getpid()]


class LauncherConformance:
    """Inherit, and give the fixture `made`: a launcher that has not started its agents, and `nodes` of them."""

    nodes = 1
    name = "local"

    @pytest.fixture(scope="class")
    @classmethod
    def made(cls) -> AgentLauncher:
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def launcher(cls, made: AgentLauncher) -> Iterator[AgentLauncher]:
        before = {name: os.environ.get(name) for name in ("BENCHSUITE_TEST_MARK", "CUDA_VISIBLE_DEVICES")}
        os.environ |= {"BENCHSUITE_TEST_MARK": f"{os.getpid()}-{cls.name}", "CUDA_VISIBLE_DEVICES": "7,3"}
        with made as started:
            yield started
        deadline = time.monotonic() + GONE_S
        while (left := marked(os.environ["BENCHSUITE_TEST_MARK"])) and time.monotonic() < deadline:
            time.sleep(0.1)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        assert left == []

    def run(self, launcher: AgentLauncher, task: str, asked: TrialSpec, folder: Path) -> Outcome:
        launcher.task = f"tests.helpers.launchers:{task}"
        seen: list[Progress] = []
        return launcher.run(asked, None, folder, seen.append)

    def told(self, folder: Path, ranks: int) -> list[dict[str, Any]]:
        return [json.loads((folder / f"told-{rank}").read_text()) for rank in range(ranks)]

    def test_a_trial_is_measured(self, launcher: AgentLauncher, tmp_path: Path) -> None:
        launcher.task = "benchsuite.trial.rank:run_rank"
        point = plan_trial(spec(2))
        outcome = launcher.run(spec(2, ranks_per_node=2 // self.nodes), None, tmp_path, lambda progress: None)
        record, samples = conclude(new_attempt(point, "default", 0, "conformance", None), outcome, tmp_path)
        assert (record.status, record.reason) == ("ok", None)
        assert samples is not None and len(samples["ranks"]) == 2
        assert record.env["launcher"] == self.name
        assert [node["ranks"] for node in record.env["nodes"]] == ([[0, 1]] if self.nodes == 1 else [[0, 0], [1, 1]])
        assert len({node["node"] for node in record.env["nodes"]}) == self.nodes
        first, second = (rank["blocks"][0] for rank in samples["ranks"])
        assert first["start_s"] < second["end_s"] and second["start_s"] < first["end_s"], "on one clock"
        assert samples["ranks"][0]["final_loss"] != samples["ranks"][1]["final_loss"], "each had samples of its own"

    def test_ranks_are_told_who_they_are(self, launcher: AgentLauncher, tmp_path: Path) -> None:
        ranks = 2 * self.nodes
        outcome = self.run(launcher, "tell", spec(ranks, ranks_per_node=2), tmp_path)
        assert [(ended.rank, ended.code) for ended in outcome.exits] == [(rank, 0) for rank in range(ranks)]
        told = self.told(tmp_path, ranks)
        assert [int(one["RANK"]) for one in told] == list(range(ranks))
        assert [int(one["LOCAL_RANK"]) for one in told] == [0, 1] * self.nodes
        assert {one["WORLD_SIZE"] for one in told} == {str(ranks)}
        assert len({(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in told}) == 1
        assert {one["CUDA_VISIBLE_DEVICES"] for one in told} == {"7,3"}
        assert all(set(one["cpus"]) <= set(range(os.cpu_count() or 1)) for one in told)

    def test_every_trial_has_a_port_of_its_own(self, launcher: AgentLauncher, tmp_path: Path) -> None:
        ports = []
        for trial in ("first", "second"):
            (tmp_path / trial).mkdir()
            self.run(launcher, "tell", spec(1), tmp_path / trial)
            ports.append(self.told(tmp_path / trial, 1)[0]["MASTER_PORT"])
        assert ports[0] != ports[1]

    def test_a_killed_rank_ends_the_others_and_is_named(self, launcher: AgentLauncher, tmp_path: Path) -> None:
        outcome = self.run(launcher, "die", spec(2, ranks_per_node=2 // self.nodes), tmp_path)
        assert [(ended.rank, ended.signal) for ended in outcome.exits] == [(1, signal.SIGKILL)]
        assert not outcome.timed_out and outcome.launcher_error is None

    def test_a_trial_that_hangs_is_ended_with_its_whole_tree(self, launcher: AgentLauncher, tmp_path: Path) -> None:
        (first := tmp_path / "first").mkdir()
        (second := tmp_path / "second").mkdir()
        self.run(launcher, "tell", spec(1), first)  # the first trial starts the agents
        before = {process.pid for process in marked(os.environ["BENCHSUITE_TEST_MARK"])}  # some may be about to end
        outcome = self.run(launcher, "hang", spec(2, timeout_s=3, ranks_per_node=2 // self.nodes), second)
        assert outcome.timed_out and outcome.exits == []
        assert len(list(second.glob("hung-*"))) == 2
        assert {process.pid for process in marked(os.environ["BENCHSUITE_TEST_MARK"])} <= before

    def test_more_nodes_than_there_are_is_one_line(self, launcher: AgentLauncher, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=f"4 ranks, 1 a node, need 4 nodes; there are {self.nodes}"):
            self.run(launcher, "tell", spec(4, ranks_per_node=1), tmp_path)
        assert self.run(launcher, "tell", spec(1), tmp_path).exits[0].code == 0, "the launcher goes on"
