"""A wheelhouse: all that an installation needs, as wheels, for places without an index."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NO_INDEX = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" and not name.startswith("PIP_")}
"""An environment in which nothing tells pip or Python of what is installed here."""


def wheelhouse(folder: Path, *asked: str) -> Path:
    """Wheels of what is asked for and of all that it needs, in the versions that were tested together."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "-w", str(folder), "-c", str(ROOT / "constraints.txt")]
    made = subprocess.run([*command, *asked], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no wheels can be had here: {made.stderr.splitlines()[-1]}")
    return folder
