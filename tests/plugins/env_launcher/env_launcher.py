"""Someone else's launcher: agents started by `env`, as a site's own wrapper would start them."""

from benchsuite.launch.agents import AgentConfig, AgentLauncher


def launcher() -> AgentLauncher:
    return AgentLauncher(AgentConfig("env", starter=("env", "SITE_WRAPPER=1")))
