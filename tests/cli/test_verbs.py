"""The table of verbs, which help prints before any verb is imported, is true of each."""

import subprocess
import sys

import pytest

from benchsuite.cli.app import VERBS, load_verb

WIDTH = 80 - 2 - 6 - len("baseline") - 1


@pytest.mark.parametrize("name", VERBS)
def test_the_line_of_help_is_how_the_verbs_own_help_begins(name: str):
    line = VERBS[name][1]
    assert line.endswith(".")
    assert load_verb(name).help.startswith(line.removesuffix("."))
    assert len(line) <= WIDTH


def test_help_imports_no_verb_and_tells_of_all():
    code = "import sys; from benchsuite.cli.app import run_command; run_command(['--help']); print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    told, _, imported = out.rstrip().rpartition("\n")
    assert all(line in told for _, line in VERBS.values())
    assert [name for name in imported.split() if name.startswith("benchsuite.cli.")] == ["benchsuite.cli.app"]
