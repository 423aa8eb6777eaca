"""What sections print: sentences, goals and tables; and the same as data, from which the documentation is made."""

import contextlib
import io
import json
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from benchsuite.host.machine import this_machine

RESULTS = Path("bench/results")
"""A JSON file for each section, as its last whole run left it."""
GOAL = re.compile(r"^\s*goal: (?P<goal>.*): (?P<met>met|MISSED)$")
LIST = re.compile(r'\[\n((?:\s*"(?:[^"\\]|\\.)*",?\n)+)\s*\]')
"""A list of strings as `json.dumps` indents it."""
RULE = re.compile(r"^\|[-:| ]+\|$")


def goal(met: bool, text: str) -> str:
    """A goal and whether it was met."""
    return f"   goal: {text}: {'met' if met else 'MISSED'}"


def spread(values: list[float]) -> str:
    """Median, least and most."""
    return f"median {median(values):.3f} s ({min(values):.3f}..{max(values):.3f}, n={len(values)})"


class _Tee(io.StringIO):
    """What is printed, kept besides."""

    def write(self, text: str) -> int:
        sys.__stdout__.write(text)  # type: ignore[union-attr]
        return super().write(text)


@contextlib.contextmanager
def kept(section: str, options: str = "") -> Iterator[None]:
    """Keep what a section prints as RESULTS/SECTION.json, once it has come to its end and has measured something."""
    printed = _Tee()
    with contextlib.redirect_stdout(printed):
        yield
    found = parts(printed.getvalue())
    if not any("rows" in part or "goal" in part for part in found):
        return  # it says why it could not run here: what was measured elsewhere stays
    name = " ".join(filter(None, (section, options)))
    result = {
        "section": section,
        "command": f'make bench SECTIONS="{name}"' if options else f"make bench SECTIONS={name}",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": _machine(),
        "parts": found,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{section}.json").write_text(as_json(result))


def as_json(result: Mapping[str, Any]) -> str:
    """A section's result, with a line for each row of a table."""
    text = json.dumps(result, indent=1, ensure_ascii=False)
    return LIST.sub(lambda found: f"[{' '.join(each.strip() for each in found[1].splitlines())}]", text) + "\n"


def _machine() -> str:
    """Where it was measured, in words."""
    import torch  # here, so that `plan`, whose process tells its own memory, can import this module

    devices = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    words = f"{this_machine().cores} cores, {devices}"
    return f"{words}, Linux {platform.release()}, Python {platform.python_version()}, torch {torch.__version__}"


def parts(text: str) -> list[dict[str, Any]]:
    """Printed text as data: tables with columns and rows, goals with whether they were met, and sentences."""
    found: list[dict[str, Any]] = []
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    for number, line in enumerate(lines):
        if line.lstrip().startswith("|"):
            _add_to_table(found, line, RULE.match(lines[number + 1].strip()) if number + 1 < len(lines) else None)
        elif told := GOAL.match(line):
            found.append({"goal": told["goal"], "met": told["met"] == "met"})
        else:
            found.append({"text": re.sub(r"\*\*(.*?)\*\*", r"\1", line.strip())})
    return found


def _add_to_table(found: list[dict[str, Any]], line: str, begins: object) -> None:
    """Put a line of a table into the last one, or begin another with it."""
    if RULE.match(line.strip()):
        return
    cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
    if begins or not (found and "rows" in found[-1]):
        found.append({"columns": cells, "rows": []})
    else:
        found[-1]["rows"].append(cells)
