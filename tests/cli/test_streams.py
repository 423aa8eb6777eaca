"""Standard streams that are full, closed, unread, or of another encoding: no traceback, and the documented codes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from benchsuite.contract.exit_codes import OK, USAGE
from benchsuite.results.store.store import ResultsStore
from tests.helpers.commands import VERBS, filled, forked, ran, through_shell, written

SOME = (
    ("--help",),
    ("list",),
    ("report", "--store", "{store}"),
    ("results", "query", "select label, au from trials", "--store", "{store}"),
    ("sweep", "{sweep}", "--dry-run", "--store", "{store}"),
)
"""One of each way to print."""
FULL = b"error: standard output: No space left on device"


@pytest.mark.parametrize("verbs", [SOME, pytest.param(VERBS, marks=pytest.mark.full)], ids=["some", "all"])
def test_a_full_disk_is_one_line(tmp_path: Path, store: ResultsStore, verbs: tuple[tuple[str, ...], ...]):
    commands = [filled(verb, tmp_path, store.path) for verb in verbs]
    for verb, ended in zip(verbs, forked(commands, "/dev/full", tmp_path), strict=True):
        assert ended.stderr.splitlines()[-1] == FULL, (verb, ended.stderr.decode())
        assert b"Traceback" not in ended.stderr and ended.stderr.count(b"error:") == 1, verb
        assert ended.returncode == USAGE, verb


ENDINGS = (">&-", "2>&-", ">&- 2>&-", "| head -c 1 >&2; exit ${PIPESTATUS[0]}", "2>/dev/full")


@pytest.mark.parametrize(
    ("verb", "ending"),
    [
        pytest.param(verb, ending, id=f"{' '.join(verb)} {ending}", marks=[] if a == b else pytest.mark.full)
        for a, verb in enumerate(SOME)
        for b, ending in enumerate(ENDINGS)
    ],
)
def test_closed_and_unread_streams_change_no_exit_code(
    tmp_path: Path, store: ResultsStore, verb: tuple[str, ...], ending: str
):
    ended = through_shell(filled(verb, tmp_path, store.path), ending)
    assert ended.returncode == OK
    assert b"Traceback" not in ended.stderr and b"rror" not in ended.stderr.replace(b"errors", b"")


def test_a_mistake_is_told_by_its_code_alone_where_standard_error_is_closed(tmp_path: Path):
    assert through_shell(["sweep", str(tmp_path / "none.yaml")], "2>&-").returncode == USAGE


def test_a_closed_stream_does_not_pass_its_number_to_a_file(
    tmp_path: Path, run_cli: Callable[..., tuple[int, str, str]]
):
    """What a library then prints would be written into that file."""
    words = ["data", "generate", str(tmp_path / "made"), "--samples", "8", "--variant", "tiny"]
    assert through_shell(words, ">&- 2>&-").returncode == OK
    assert run_cli("data", "verify", tmp_path / "made")[0] == OK


ENCODINGS = (
    {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "iso-8859-1"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
)
LOCALES = ("ascii", "latin-1", "C")


@pytest.mark.parametrize(
    ("verb", "changes"),
    [
        pytest.param(verb, changes, id=f"{' '.join(verb)} {locale}", marks=[] if a == b else pytest.mark.full)
        for a, verb in enumerate(SOME[2:])
        for b, (changes, locale) in enumerate(zip(ENCODINGS, LOCALES, strict=True))
    ],
)
def test_characters_that_an_encoding_lacks_are_replaced(
    tmp_path: Path, store: ResultsStore, verb: tuple[str, ...], changes: dict[str, str]
):
    folder = tmp_path / "мышь ± 速"
    folder.mkdir()
    ended = ran(filled(verb, folder, store.path), changes)
    assert ended.returncode == OK, ended.stderr.decode(errors="replace")
    assert ended.stdout


@pytest.mark.parametrize(
    "changes",
    [*(pytest.param(changes, marks=pytest.mark.full) for changes in ENCODINGS[:2]), ENCODINGS[2]],
    ids=LOCALES,
)
def test_a_sweep_ends_well_whatever_its_log_can_hold(tmp_path: Path, changes: dict[str, str]):
    base = {"workload": "resnet50", "variant": "nano", "batch_size": 1, "data": {"source": "synthetic"}}
    base["measure"] = {"steps": 2, "warmup_steps": 1, "repeats": 1}
    file = written(tmp_path, "sweep.yaml", {"name": "small", "question": "Wie schnell → 速い", "base": base})
    with (tmp_path / "log").open("wb") as log:
        ended = ran(["sweep", str(file), "--store", str(tmp_path / "магазин")], changes, stdout=log, stderr=log)
    said = (tmp_path / "log").read_bytes()
    assert ended.returncode == OK, said.decode(errors="replace")
    assert b"written: " in said
    assert ResultsStore(tmp_path / "магазин").records()[0].question == "Wie schnell → 速い"


def test_files_are_utf_8_whatever_the_locale(tmp_path: Path):
    text = 'name: maß\nquestion: "Größe → мышь"\nbase: {workload: resnet50}\n'
    (tmp_path / "sweep.yaml").write_text(text, encoding="utf-8")
    ended = ran(["sweep", str(tmp_path / "sweep.yaml"), "--show-config", "--format", "json"], ENCODINGS[2])
    assert b"UnicodeDecodeError" not in ended.stderr
