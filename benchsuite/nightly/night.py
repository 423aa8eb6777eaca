"""`benchsuite nightly run`: a whole night, from its sweeps to what `check` says. Again goes on where it stopped.

A night is a commit of the site's results repository, which asv takes its results by: one file of facts, so that the
repository's log is the site's history of changes.
"""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from benchsuite.contract.errors import UserError
from benchsuite.contract.exit_codes import INTERRUPTED, NOTHING_RAN, OK, REQUEUE, SOME_FAILED
from benchsuite.contract.terminal import echo
from benchsuite.contract.version import VERSION
from benchsuite.nightly import pages
from benchsuite.nightly.measuring import CONFIG, Nightly, nightly_of, run_sweeps, run_verb, trials_of
from benchsuite.results.compare.environments import is_momentary, told_of
from benchsuite.results.render.words import typed
from benchsuite.results.store.record import TrialRecord

FACTS = "night.json"
UNFINISHED = "unfinished-night"
"""The file in .asv that holds the session of a night until it is concluded."""


def run(folder: Path, session: str | None, machine: str | None, words: Sequence[str] = ()) -> int:
    """Measure, commit, export, publish and check a night; the exit code.

    Args:
        folder: of the site's results repository.
        session: of the night; default: that of the night that is unfinished, else today's date (UTC).
        machine: whose name the results get in asv; default: the folder's name, so that the nights are one history
            wherever they ran.
        words: more options of its sweeps, as they are typed.
    """
    if not (folder / CONFIG).is_file():
        raise UserError(f"{folder}: no results repository; make one: {typed('benchsuite', 'nightly', 'init', folder)}")
    nightly = nightly_of(folder / "benchmarks")
    name = session or _begun(nightly)
    codes = run_sweeps(nightly, name, words)
    stopped = [code for code in codes if code in (REQUEUE, INTERRUPTED)]
    if stopped:
        echo(f"night {name} stopped early: the same command goes on", err=True)
        return stopped[0]
    if not any(code in (OK, SOME_FAILED) for code in codes):
        return codes[0]
    with _alone(nightly):
        commit = _commit(nightly, name)
        _export(nightly, name, commit, machine or nightly.folder.resolve().name)
        publish(nightly.folder)
    _marker(nightly).unlink(missing_ok=True)
    judged = run_verb(["check", "--store", str(nightly.store_folder)], nightly.folder)
    nights = git(nightly.folder, "log", "--format=%H", "--grep=^night ").split()
    if judged != OK and not (judged == NOTHING_RAN and len(nights) == 1):  # the first night is judged by none
        return judged
    return next((code for code in codes if code != OK), OK)


def _marker(nightly: Nightly) -> Path:
    return nightly.folder / ".asv" / UNFINISHED


def _begun(nightly: Nightly) -> str:
    """The session of a night that did not end, or a new one, which is noted."""
    marker = _marker(nightly)
    marker.parent.mkdir(exist_ok=True)
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    try:
        with marker.open("x") as file:
            file.write(today)
    except FileExistsError:
        return marker.read_text().strip() or today
    return today


@contextmanager
def _alone(nightly: Nightly) -> Iterator[None]:
    """Hold others back that would commit and export at the same time."""
    with (nightly.folder / ".asv" / "lock").open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield


def _commit(nightly: Nightly, session: str) -> str:
    """The commit of a night; made where there is none yet, at the moment at which the night began."""
    trials = trials_of(nightly, session)
    if not trials:
        raise UserError(f"{nightly.store_folder}: session {session} has no trials")
    made = git(nightly.folder, "log", "--format=%H", f"--grep=^night {session}:", "-1")
    if made:
        return made
    told = {"session": session, "benchsuite": VERSION, "facts": facts(trials)}
    (nightly.folder / FACTS).write_text(json.dumps(told, indent=1, sort_keys=True) + "\n")
    began = min(trial.started_at for trial in trials)
    git(nightly.folder, "add", "-A")
    message = f"night {session}: {len(trials)} trials by benchsuite {VERSION}"
    git(nightly.folder, "commit", "-q", "--allow-empty", "-m", message, moment=_moment(session, began))
    return git(nightly.folder, "rev-parse", "HEAD")


def _moment(session: str, began: str) -> str:
    """When a night was, which is asv's date of it: the day that its session names, at the time at which it began."""
    try:
        day = date.fromisoformat(session)
    except ValueError:
        return began
    return datetime.combine(day, datetime.fromisoformat(began).timetz()).isoformat()


def facts(trials: Sequence[TrialRecord]) -> dict[str, Any]:
    """What records tell of libraries, drivers, firmware, file systems and hosts; a list where hosts differ."""
    told: dict[str, set[str]] = {}
    for trial in trials:
        for env in (trial.env, *(node.get("facts") or {} for node in trial.env.get("nodes") or ())):
            for fact, value in told_of({name: value for name, value in env.items() if name != "nodes"}).items():
                if not is_momentary(fact):
                    told.setdefault(fact, set()).add(str(value))
        told.setdefault("host", set()).update(str(node["node"]) for node in trial.env.get("nodes") or ())
    return {fact: values.pop() if len(values) == 1 else sorted(values) for fact, values in told.items()}


def _export(nightly: Nightly, session: str, commit: str, machine: str) -> None:
    words = ["results", "export", "asv", "--store", str(nightly.store_folder), "--asv-machine", machine]
    if run_verb([*words, "--session", session, "--commit", commit], nightly.folder):
        raise UserError(f"night {session}: the export to asv failed")


def publish(folder: Path) -> None:
    """Have asv write its pages, which then load nothing from the internet.

    Raises:
        UserError: asv fails.
    """
    command = [sys.executable, "-m", "asv", "publish", "--no-pull"]
    found = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if found.returncode:
        raise UserError(f"asv publish: {(found.stderr or found.stdout).strip().splitlines()[-1]}")
    html = folder / ".asv" / "html"
    pages.bundle(html)
    echo(f"pages: {html} (asv preview shows them)", err=True)


def git(folder: Path, *words: str, moment: str | None = None) -> str:
    """What git says; who commits is benchsuite where nobody else is named.

    Raises:
        UserError: it failed.
    """
    dates = {"GIT_AUTHOR_DATE": moment, "GIT_COMMITTER_DATE": moment} if moment else {}
    nobody = words[0] == "commit" and _said_by_git(folder, ["config", "user.email"], {}).returncode
    who = ["-c", "user.name=benchsuite", "-c", "user.email=benchsuite@localhost"] if nobody else []
    found = _said_by_git(folder, [*who, *words], dates)
    if found.returncode:
        raise UserError(f"git {words[0]} in {folder}: {found.stderr.strip() or found.stdout.strip()}")
    return found.stdout.strip()


def _said_by_git(folder: Path, words: Sequence[str], more: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    command, env = ["git", "-C", str(folder), *words], {**os.environ, **more}
    try:
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UserError(f"git: {error.strerror}: nights are kept in a git repository; install git") from error
