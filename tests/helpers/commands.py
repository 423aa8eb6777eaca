"""The command line as a process of its own, and every verb that prints and soon ends."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

COMMAND = (sys.executable, "-c", "from benchsuite.cli.app import main; main()")
VERBS = (
    ("--help",),
    ("--version",),
    ("list",),
    ("list", "--format", "json"),
    ("schema", "record"),
    ("doctor", "{folder}"),
    ("sweep", "{sweep}", "--dry-run", "--store", "{store}"),
    ("sweep", "{sweep}", "--show-config"),
    ("report", "--store", "{store}"),
    ("report", "--format", "md", "--store", "{store}"),
    ("results", "query", "select label, au from trials", "--store", "{store}"),
    ("results", "compact", "--store", "{store}"),
    ("results", "export", "junit", "--store", "{store}"),
    ("status", "{sweep}", "--store", "{store}"),
    ("baseline", "set", "--store", "{store}"),
)
"""Words of command lines; `filled` puts in what stands in braces."""


def written(folder: Path, name: str, value: Mapping[str, Any]) -> Path:
    """A YAML file."""
    path = folder / name
    path.write_text(yaml.safe_dump(dict(value)), encoding="utf-8")
    return path


def filled(verb: tuple[str, ...], folder: Path, store: Path) -> list[str]:
    """A command line with paths for what stands in braces; a small sweep is written for it."""
    base = {"workload": "resnet50", "variant": "tiny", "batch_size": 1, "data": {"source": "synthetic"}}
    names = {
        "folder": folder,
        "store": store,
        "sweep": written(folder, "sweep.yaml", {"name": "small", "base": base, "grid": {"world_size": [1, 2]}}),
    }
    return [word.format(**names) for word in verb]


def environment(changes: Mapping[str, str]) -> dict[str, str]:
    """This process's, changed, and without what it says about encodings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "PYTHONIO", "PYTHONUTF8"))}
    return kept | dict(changes)


def ran(words: list[str], changes: Mapping[str, str] | None = None, **how: Any) -> subprocess.CompletedProcess[bytes]:
    """The ended process of a command line."""
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "timeout": 120} | how
    return subprocess.run([*COMMAND, *words], env=environment(changes or {}), check=False, **how)


def through_shell(words: list[str], ending: str) -> subprocess.CompletedProcess[bytes]:
    """The same with redirections of a shell, whose own exit code is the command's."""
    return subprocess.run(
        ["bash", "-c", f'"$@" {ending}', "bash", *COMMAND, *words], capture_output=True, timeout=120, check=False
    )


FORKING = """
import gc, json, os, sys
import scipy.stats
from benchsuite.cli import inspect, report, sweep
from benchsuite.cli.app import main

asked = json.load(sys.stdin)
gc.freeze()  # else each would go through all that is imported as it ends
for words, out, err in asked:
    if child := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    for descriptor, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
    sys.argv[1:] = words
    main()
"""


def forked(commands: Sequence[list[str]], out: str, folder: Path) -> list[subprocess.CompletedProcess[bytes]]:
    """The ended processes of several command lines, all forked from one that has done their imports.

    Standard output of each leads to `out`. It ends as a process of its own does, by its interpreter's end.
    """
    asked = [(words, out, str(folder / f"stderr-{number}")) for number, words in enumerate(commands)]
    ended = subprocess.run(
        [sys.executable, "-c", FORKING],
        input=json.dumps(asked),
        env=environment({}),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    codes = [int(line) for line in ended.stdout.splitlines()]
    return [
        subprocess.CompletedProcess(words, code, None, Path(err).read_bytes())
        for (words, _, err), code in zip(asked, codes, strict=True)
    ]
