"""Messages of a family, kept as one page that a reviewer reads: tests/snapshots/FAMILY.txt."""

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "snapshots"
WRITE = "BENCHSUITE_TEST_WRITE_SNAPSHOTS"
WRITES = bool(os.environ.get(WRITE))
"""Asked when tests are collected: some of them clear the environment."""


MANY = {r"(allowed here: (?:[\w.]+, ){3})(?:[\w.]+, ){6,}[\w.]+": r"\1..."}
"""Long lists of keys are cut, so that a key which is added changes no page."""


def name_of(case: Any) -> str:
    """Words as they are typed, other values as Python writes them."""
    parts = case if isinstance(case, tuple | list) else (case,)
    return " ".join(part if isinstance(part, str) and part else repr(part) for part in parts)


def page(messages: Iterable[tuple[str, str]], masks: Mapping[str, str]) -> str:
    """Return each case's name with its message, in which what each pattern matches stands as its mask."""
    text = "\n".join(f"# {name}\n{message.strip()}\n" for name, message in messages)
    for pattern, mask in {**MANY, **masks}.items():
        text = re.sub(pattern, mask, text)
    return text


def compare_messages(
    family: str,
    cases: Mapping[str, Any] | Iterable[Any],
    message_of: Callable[..., object],
    masks: Mapping[str, str] | None = None,
) -> None:
    """Compare the messages of all cases with the family's page.

    Cases are values or tuples of arguments for `message_of`, which a mapping names; else their arguments are the name.
    """
    named = cases.items() if isinstance(cases, Mapping) else [(name_of(case), case) for case in cases]
    messages = [(name, message_of(*case) if isinstance(case, tuple) else message_of(case)) for name, case in named]
    silent = [name for name, message in messages if not message]
    assert not silent, f"cases without a message: {silent}"
    made, path = page([(name, str(message)) for name, message in messages], masks or {}), FOLDER / f"{family}.txt"
    if WRITES:
        path.write_text(made, encoding="utf-8")
    stored = path.read_text(encoding="utf-8") if path.exists() else ""
    changes = difflib.unified_diff(stored.splitlines(), made.splitlines(), "stored", "made", lineterm="", n=1)
    if made != stored:
        pytest.fail(f"{path.name} differs; {WRITE}=1 writes it anew:\n" + "\n".join(changes), pytrace=False)
