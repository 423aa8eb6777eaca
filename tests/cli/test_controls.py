"""Names that others chose move no cursor, hide no text and forge no line, wherever they are printed."""

import os
import pty
import re
import shutil
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from benchsuite.contract.terminal import one_line, visible
from benchsuite.results.store.store import ResultsStore
from tests.helpers.commands import environment, filled
from tests.results.made import made_record

RunCli = Callable[..., tuple[int, str, str]]
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eabc\u2066\rgone\x08"
FORGED = f"{EVIL}\nerror: forged"
OWN = re.compile(r"\x1b\[[0-9;]*m")
"""Colours and weights, as rich writes them on a terminal."""


def harmful(text: str) -> set[str]:
    """Characters that a terminal acts on."""
    return {letter for letter in text if unicodedata.category(letter) in ("Cc", "Cf") and letter not in "\n\t"}


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    """A store whose records are someone else's."""
    store = ResultsStore(tmp_path / "evil")
    texts = {"sweep": "made", "session": FORGED, "question": FORGED, "label": FORGED, "caveats": [FORGED]}
    texts |= {
        "caveat_details": [FORGED],
        "env": {"host": FORGED, "cores": 2, "libraries": {"torch": FORGED}},
    }
    ok = {"figures": {"samples_per_s": 1.0, "au": 0.5, "bottleneck": "storage", "step_s_mean": 0.02, "load_s": 0.01}}
    store.append(made_record(0, **texts, **ok))
    store.append(made_record(1, **texts | {"label": EVIL}, **ok))
    store.append(made_record(2, **texts, status="failed", reason=FORGED, figures={}))
    return store.path


READING = (
    ("report", "--store", "{store}"),
    ("report", "--format", "md", "--store", "{store}"),
    ("results", "show", "--store", "{store}"),
    ("results", "query", "select label, reason from trials", "--store", "{store}"),
    ("results", "export", "latex", "--store", "{store}"),
    ("compare", "date=2026-01-01", "date=2026-01-01", "--store", "{store}"),
    ("baseline", "set", "--store", "{store}"),
    ("scaling", "--store", "{store}"),
    ("status", "--store", "{store}"),
)
DATA = (
    ("results", "show", "--format", "csv", "--store", "{store}"),
    ("results", "query", "select label from trials", "--format", "json", "--store", "{store}"),
    ("results", "query", "select label from trials", "--format", "csv", "--store", "{store}"),
    ("results", "export", "csv", "--store", "{store}"),
)


@pytest.mark.parametrize("verb", READING, ids=" ".join)
def test_records_of_others_are_printed_without_controls(
    tmp_path: Path, evil: Path, run_cli: RunCli, verb: tuple[str, ...]
):
    said = "".join(run_cli(*filled(verb, tmp_path, evil))[1:])
    assert "Traceback" not in said
    assert not harmful(said)
    assert not any(line.startswith("error: forged") for line in said.splitlines())


EACH = """
import sys
from benchsuite.cli.app import run_command
from benchsuite.contract import terminal

terminal.ready()
for line in sys.argv[1:]:
    run_command(line.split("|"))
    print("ended", flush=True)
"""


def on_a_terminal(commands: list[list[str]]) -> list[str]:
    """What each of several command lines prints where it has a terminal, one after the other in one process."""
    ours, theirs = pty.openpty()
    words = [sys.executable, "-c", EACH, *map("|".join, commands)]
    with subprocess.Popen(words, stdout=theirs, stderr=theirs, env=environment({})) as process:
        os.close(theirs)
        said = b""
        try:
            while chunk := os.read(ours, 1 << 16):
                said += chunk
        except OSError:  # the other end is closed
            pass
    os.close(ours)
    assert process.returncode == 0, said.decode()
    *each, rest = said.decode().replace("\r\n", "\n").split("ended\n")
    assert rest == ""
    return each


def test_on_a_terminal_only_our_own_colours_are_controls(tmp_path: Path, evil: Path):
    verbs = [READING[0], READING[1], *DATA]
    for verb, said in zip(verbs, on_a_terminal([filled(verb, tmp_path, evil) for verb in verbs]), strict=True):
        assert "abc" in said, verb
        assert not harmful(OWN.sub("", said)), verb


def test_data_for_programs_is_kept_in_a_pipe(tmp_path: Path, evil: Path, run_cli: RunCli):
    assert EVIL in run_cli(*filled(DATA[2], tmp_path, evil))[1]


MISTAKES = (
    ("list", EVIL),
    ("doctor", f"/nowhere/{EVIL}"),
    ("sweep", f"/nowhere/{FORGED}.yaml"),
    ("sweep", "{sweep}", "--dry-run", "-o", f"data.root={EVIL}", "--store", "{store}"),
    ("sweep", "{sweep}", "--session", FORGED),
    ("sweep", "{sweep}", f"--{EVIL}"),
    (EVIL,),
    ("report", "--store", f"/nowhere/{FORGED}"),
    ("report", "--session", FORGED, "--store", "{store}"),
    ("results", "query", f"select '{FORGED}' from nowhere", "--store", "{store}"),
    ("data", "verify", f"/nowhere/{FORGED}"),
    ("data", "convert", f"/nowhere/{FORGED}", "{folder}/out"),
    ("data", "stage", f"/nowhere/{FORGED}"),
)


@pytest.mark.parametrize("verb", MISTAKES, ids=lambda verb: " ".join(verb[:2]).encode("unicode_escape").decode()[:40])
def test_a_mistake_is_told_without_controls(
    tmp_path: Path, store: ResultsStore, run_cli: RunCli, verb: tuple[str, ...]
):
    code, out, err = run_cli(*filled(verb, tmp_path, store.path))
    said = out + err
    assert code in (2, 4), said
    assert not harmful(said)
    assert not any(line.startswith("error: forged") for line in said.splitlines())


def test_names_of_samples_and_files(tmp_path: Path, dataset_root: Path, run_cli: RunCli):
    source = tmp_path / "source"
    source.mkdir()
    image = next((dataset_root / "files").glob("*/*.jpg"))
    for name in ("a", EVIL.replace("/", "_")):
        shutil.copy(image, source / f"{name}.jpg")
    made = tmp_path / f"made{EVIL}"
    for words in (["convert", source, made], ["verify", made], ["stage", made, "--to", made]):
        code, out, err = run_cli("data", *words)
        assert code == 0, err
        assert not harmful(out + err)
    for file in made.rglob("*.jpg"):
        file.write_bytes(b"damaged")
    code, _, err = run_cli("data", "verify", made)
    assert code == 2
    assert "owned" in err and not harmful(err)


def test_what_is_escaped():
    assert visible("a\tb\nc") == "a\tb\nc"
    assert visible("\x1b[31m\x9b\u202e\udcff\r") == "\\x1b[31m\\x9b\\u202e\\udcff\\r"
    assert visible("速い → é 👩\u200d🔬") == "速い → é 👩\u200d🔬"
    assert one_line("a question\nover lines\n") == "a question over lines"
