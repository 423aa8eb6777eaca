"""Runs the examples of each page when the documentation is built, and sets what they print below them.

They run in order, in a folder of the page's own: a block that begins with ```run holds command lines, one that begins
with ```python runs a program, and ```yaml file=NAME is written as that file. Python blocks of prompts are checked as
doctests. Figures (SVG) that examples have drawn are the page's to show. An example that fails fails the build. All are
forked from one process, which has done their imports.
"""

import doctest
import json
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mkdocs.structure.files import File

BLOCK = re.compile(r"^```(run|python runs|yaml file=\S+|python)\n(.*?)^```$", re.M | re.S)
LIMIT_S = 300
FORKING = """
import gc, json, os, runpy, signal, sys
import scipy.stats
import torch
from benchsuite.cli import data
from benchsuite.cli.app import main
from benchsuite_plan.cli import app

gc.freeze()  # else each would go through all that is imported as it ends
for line in iter(sys.stdin.readline, ""):
    words, folder, out = json.loads(line)
    if child := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    signal.alarm(int(sys.argv[1]))
    os.chdir(folder)
    printed = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    sys.argv = words
    if words[0] == "benchsuite":
        main()
    else:
        runpy.run_path(words[0], run_name="__main__")
    break
"""
"""Runs command lines and programs, each in a process of its own that ends as an interpreter does."""


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Called by MkDocs for each page."""
    with TemporaryDirectory(prefix="benchsuite-docs-") as folder:
        made = BLOCK.sub(lambda found: _done(found[1], found[2], Path(folder), page.file.src_uri), markdown)
        for figure in sorted(Path(folder).glob("*.svg")):
            files.append(File.generated(config, figure.name, content=figure.read_text()))
    return made


def _done(kind: str, text: str, folder: Path, page: str) -> str:
    """A block as the page shows it, once it has run."""
    if kind == "run":
        told = [f"$ {line}\n{_printed(_command(line), folder, page)}" for line in text.splitlines() if line.strip()]
        return f"```\n{''.join(told).rstrip()}\n```"
    if kind == "python runs":
        (folder / "train.py").write_text(text)
        printed = _printed(["train.py"], folder, page).rstrip()
        return f"```python\n{text}```" + (f"\n\n```\n{printed}\n```" if printed else "")
    if kind.startswith("yaml"):
        (folder / kind.partition("=")[2]).write_text(text)
        return f"```yaml\n{text}```"
    if text.startswith(">>> "):
        _check(text, page)
    return f"```python\n{text}```"


def _command(line: str) -> list[str]:
    """The words of a command line of ours."""
    program, *words = shlex.split(line)
    if program != "benchsuite":
        raise ValueError(f"{line}: only benchsuite can be run")
    return ["benchsuite", *words]


def _printed(command: list[str], folder: Path, page: str) -> str:
    """What a program (train.py) or a command line of ours prints."""
    forks = _forks()
    assert forks.stdin is not None and forks.stdout is not None
    out = folder / ".printed"
    forks.stdin.write(json.dumps([command, str(folder), str(out)]) + "\n")
    forks.stdin.flush()
    code, printed = int(forks.stdout.readline()), out.read_text(encoding="utf-8")
    out.unlink()
    if code:
        raise RuntimeError(f"{page}: {shlex.join(command)} ended with {code}: {printed[-2000:]}")
    return printed


@cache
def _forks() -> "subprocess.Popen[str]":
    """The process that all examples are forked from; it ends as its input does."""
    return subprocess.Popen(
        [sys.executable, "-c", FORKING, str(LIMIT_S)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        env=os.environ | {"COLUMNS": "100"},
    )


def _check(text: str, page: str) -> None:
    test = doctest.DocTestParser().get_doctest(text, {}, page, None, 0)
    told: list[str] = []
    if doctest.DocTestRunner(verbose=False).run(test, out=told.append).failed:
        raise RuntimeError(f"{page}: {''.join(told)}")
