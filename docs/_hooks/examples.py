"""Runs the examples of each page when the documentation is built, and sets what they print below them.

They run in order, in a folder of the page's own: a block that begins with ```run holds command lines, one that begins
with ```python runs a program, and ```yaml file=NAME is written as that file. Python blocks of prompts are checked as
doctests. Figures (SVG) that examples have drawn are the page's to show. An example that fails fails the build.
"""

import doctest
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mkdocs.structure.files import File

BLOCK = re.compile(r"^```(run|python runs|yaml file=\S+|python)\n(.*?)^```$", re.M | re.S)
LIMIT_S = 300


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
        printed = _printed([sys.executable, "train.py"], folder, page).rstrip()
        return f"```python\n{text}```" + (f"\n\n```\n{printed}\n```" if printed else "")
    if kind.startswith("yaml"):
        (folder / kind.partition("=")[2]).write_text(text)
        return f"```yaml\n{text}```"
    if text.startswith(">>> "):
        _check(text, page)
    return f"```python\n{text}```"


def _command(line: str) -> list[str]:
    """A command line of ours, for the interpreter that builds."""
    program, *words = shlex.split(line)
    if program != "benchsuite":
        raise ValueError(f"{line}: only benchsuite can be run")
    return [sys.executable, "-m", "benchsuite", *words]


def _printed(command: list[str], folder: Path, page: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=LIMIT_S,
        check=False,
        env=os.environ | {"COLUMNS": "100"},
    )
    if done.returncode:
        raise RuntimeError(f"{page}: {shlex.join(command)} ended with {done.returncode}: {done.stdout[-2000:]}")
    return done.stdout


def _check(text: str, page: str) -> None:
    test = doctest.DocTestParser().get_doctest(text, {}, page, None, 0)
    told: list[str] = []
    if doctest.DocTestRunner(verbose=False).run(test, out=told.append).failed:
        raise RuntimeError(f"{page}: {''.join(told)}")
