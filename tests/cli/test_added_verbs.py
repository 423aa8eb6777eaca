"""Verbs that other packages add by the entry point group `benchsuite.verbs`."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchsuite.cli.app import VERBS, added_verbs

FOLDER = Path(__file__).parents[1] / "plugins" / "added_verbs"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(FOLDER))
    added_verbs.cache_clear()
    yield
    added_verbs.cache_clear()


def test_it_runs_as_ours_do(run_cli: Run, monkeypatch: pytest.MonkeyPatch):
    assert run_cli("greet", "--name", "you") == (0, "hello you, none\n", "")
    monkeypatch.setenv("BENCHSUITE_STORE", "mine")
    assert run_cli("greet", "--name", "you") == (0, "hello you, mine\n", "")
    assert run_cli("greet") == (2, "", "error: --name is missing\n")
    assert run_cli("greet", "--name", "http://x/y")[0] == 2, "URLs are refused"
    assert "-h, --help" in run_cli("greet", "-h")[1]
    code, _, err = run_cli("gret")
    assert code == 2 and "nearest: greet" in err and err.count("\n") == 1


def test_help_tells_of_it_and_imports_nothing_of_it():
    code = f"""
import sys
sys.path.insert(0, {str(FOLDER)!r})
from benchsuite.cli.app import run_command
assert run_command(["--help"]) == 0
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    told, _, imported = done.stdout.rstrip().rpartition("\n")
    others = told.partition("Of other packages:\n")[2]
    assert "  greet    Greet somebody.\n" in others and "\n  list " not in others
    assert not {"torch", "pandas", "added_verbs", "benchsuite_plan"} & {*imported.split()}


@pytest.mark.parametrize(
    ("name", "why"), [("broken", "ModuleNotFoundError: No module named 'no_such_module'"), ("leaving", "SystemExit: 3")]
)
def test_one_that_cannot_be_loaded_is_a_line_and_no_other_suffers(run_cli: Run, name: str, why: str):
    for words in ((name,), (name, "--help")):
        code, out, err = run_cli(*words)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"error: entry point {name} = ") and err.endswith(f": cannot be loaded: {why}\n")
    assert run_cli("greet", "--name", "you")[0] == 0


def test_none_takes_the_name_of_a_verb_of_ours(run_cli: Run):
    assert "list" in VERBS and "list" not in added_verbs()
    assert run_cli("list", "formats")[1].startswith("formats: files")


def test_words_of_the_planner_say_where_it_is(run_cli: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("benchsuite.cli.app.added_verbs", dict)
    for words in (
        ("plan", "--model", "gpt2"),
        ("list", "machines"),
        ("list", "models", "--yaml", "gpt2"),
        ("schema", "machine"),
        ("schema", "model"),
    ):
        code, out, err = run_cli(*words)
        assert (code, out, err.count("\n")) == (2, "", 1) and err.startswith("error: "), words
        assert "benchsuite-plan" in err and "`pip install ./planner`" in err, words
