"""Facts of environments that differ, in a line: the most telling ones by name, and how many more there are."""

from collections.abc import Sequence

from benchsuite.results.compare.environments import IDENTITY
from benchsuite.results.render.words import and_

MAX_FACTS = 6
"""Facts that are told by name."""
TELLING = ("os", "kernel", "driver", "mount", "client")
"""Words of facts that are told first, after those of identity."""
LIBRARIES = "libraries."


def told_facts(found: Sequence[tuple[str, str]], separator: str = " ") -> list[str]:
    """Facts with what is said of each: the most telling first, all libraries as one, and how many more there are."""
    joined: dict[str, list[str]] = {}
    for name, text in sorted(found, key=lambda one: _telling(one[0])):
        key = LIBRARIES if name.startswith(LIBRARIES) else f"{name} {text}"
        joined.setdefault(key, []).append(f"{name.removeprefix(LIBRARIES)}{separator}{text}")
    told = [texts[0] if name != LIBRARIES else f"{name}{and_(texts)}" for name, texts in joined.items()]
    return [*told[:MAX_FACTS], *([f"and {len(told) - MAX_FACTS} more"] if len(told) > MAX_FACTS else [])]


def _telling(name: str) -> tuple[bool, bool, bool, str]:
    """Orders facts: of identity, then what reads and drives, the host and libraries last."""
    words = name.replace(".", "_").split("_")
    return name not in IDENTITY, not {*TELLING} & {*words}, name == "host", name
