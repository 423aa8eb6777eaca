"""The YAML files that come with the planner."""

from importlib.resources import files
from typing import Any

Values = dict[str, Any]


def shipped_files(folder: str) -> dict[str, str]:
    """The text of every YAML file of a folder of this package, by name without its ending."""
    found = (files("benchsuite.predict") / folder).iterdir()
    return {file.name.removesuffix(".yaml"): file.read_text() for file in found if file.name.endswith(".yaml")}
