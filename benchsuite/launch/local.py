"""Launcher `local`: ranks on this machine, forked from a zygote that has torch imported."""

from benchsuite.launch.agents import TRIAL, AgentLauncher
from benchsuite.launch.crew import Crew


class LocalLauncher(AgentLauncher):
    """One agent, on this machine."""

    def __init__(self, task: str = TRIAL) -> None:
        super().__init__(Crew(words="ranks are forked here"), task)
