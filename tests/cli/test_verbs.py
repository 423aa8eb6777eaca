"""The table of verbs, which help prints before any verb is imported, is true of each."""

import pytest

from benchsuite.cli.app import VERBS, load_verb


@pytest.mark.parametrize("name", VERBS)
def test_the_line_of_help_is_how_the_verbs_own_help_begins(name: str):
    line = VERBS[name][1]
    assert line.endswith(".") and load_verb(name).help.startswith(line.removesuffix("."))
    assert len(line) <= 80 - len("  baseline  ")


def test_help_imports_no_verb(run_python):
    code = "import sys; from benchsuite.cli.app import run_command; run_command(['--help']); "
    print(run_python(code))
