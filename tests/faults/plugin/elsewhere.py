"""A launcher whose agent runs the source in OTHER_SOURCE, as a node does on which something else is installed."""

import os

from benchsuite.launch.agents import AgentConfig, AgentLauncher


def elsewhere() -> AgentLauncher:
    return AgentLauncher(AgentConfig("elsewhere", starter=("env", f"PYTHONPATH={os.environ['OTHER_SOURCE']}")))
