"""Launchers that need nothing but this machine."""

import pytest

from benchsuite.launch.agents import AgentLauncher
from benchsuite.launch.local import LocalLauncher
from benchsuite.launch.starters import torchrun
from tests.benchsuite.launchers import LauncherConformance


class TestLocal(LauncherConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def made(cls) -> AgentLauncher:
        return LocalLauncher()


class TestTorchrun(LauncherConformance):
    name = "torchrun"

    @pytest.fixture(scope="class")
    @classmethod
    def made(cls) -> AgentLauncher:
        return torchrun()
