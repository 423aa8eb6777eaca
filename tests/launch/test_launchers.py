"""Launchers that need nothing but this machine."""

import socket
from pathlib import Path

import pytest

from benchsuite.launch import zygote
from benchsuite.launch.agents import AgentLauncher
from benchsuite.launch.link import Link
from benchsuite.launch.rendezvous import Invitation
from benchsuite.launch.starters import LocalLauncher, torchrun
from tests.helpers.launchers import LauncherConformance, spec


class TestLocal(LauncherConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def made(cls) -> AgentLauncher:
        return LocalLauncher()

    def test_an_agent_that_is_killed_between_trials_costs_none(self, launcher: AgentLauncher, tmp_path: Path) -> None:
        for trial in ("first", "second"):
            (tmp_path / trial).mkdir()
            outcome = self.run(launcher, "tell", spec(1), tmp_path / trial)
            assert [(ended.rank, ended.code) for ended in outcome.exits] == [(0, 0)]
            assert launcher._process is not None
            if trial == "first":
                launcher._process.kill()
                launcher._process.wait()


def test_a_node_that_does_not_see_the_store_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zygote, "VISIBLE_S", 0.1)
    ours, theirs = (Link(end) for end in socket.socketpair())
    agent = zygote.Agent(theirs, everywhere=False)
    assert zygote.run_trial({"first": {"folder": "/nowhere/to/be/seen"}}, agent), "it goes on"
    told = ours.receive(5)
    assert told is not None
    assert told["error"].endswith(" does not see /nowhere/to/be/seen: all nodes must see the store")


def test_an_agent_that_finds_no_launcher_tells_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last words stand in logs and records, which others may read."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setattr(zygote, "MEET_S", 0.1)
    monkeypatch.setattr("sys.argv", ["zygote"])
    monkeypatch.setenv("BENCHSUITE_AGENT", Invitation("secret", ("127.0.0.1",), port).text())
    with pytest.raises(ConnectionError, match=str(port)) as found:
        zygote.meet(again=False)
    assert "secret" not in str(found.value)


class TestTorchrun(LauncherConformance):
    name = "torchrun"

    @pytest.fixture(scope="class")
    @classmethod
    def made(cls) -> AgentLauncher:
        return torchrun()
