"""Launchers that need a scheduler's job of two nodes: run within one by the tests of clusters."""

import pytest

from benchsuite.launch.agents import AgentLauncher
from benchsuite.launch.starters import mpiexec, srun
from tests.helpers.launchers import LauncherConformance


class TestSrun(LauncherConformance):
    name, nodes = "srun", 2

    @pytest.fixture(scope="class")
    @classmethod
    def made(cls) -> AgentLauncher:
        return srun()


class TestMpiexec(LauncherConformance):
    name, nodes = "mpiexec", 2

    @pytest.fixture(scope="class")
    @classmethod
    def made(cls) -> AgentLauncher:
        return mpiexec()
