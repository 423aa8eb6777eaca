"""Fills pages with what the code says: verbs, fields, figures, caveats, exit codes."""

import json
import re
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from benchsuite.cli.app import VERBS, added_verbs, load_verb
from benchsuite.contract import exit_codes
from benchsuite.contract.trial_spec import SweepSpec, TrialSpec
from benchsuite.results.render.caveats import CAVEATS
from benchsuite.results.store.record import TrialFigures


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by MkDocs for each page."""
    return filled(markdown)


def filled(markdown: str) -> str:
    """The page with a text in place of each line with a comment, which tells readers of the source where to look."""
    return re.sub(r"^.*<!-- ([a-z ]+) -->$", lambda found: PARTS[found[1]](), markdown, flags=re.MULTILINE)


def verbs() -> str:
    """A section for each verb, and for each verb of a group: what it does, and its options."""
    return "\n\n".join(text for name in (*VERBS, *added_verbs()) for text in _verb(load_verb(name), name))


def _verb(command: Any, name: str) -> Iterator[str]:
    inner = getattr(command, "commands", None)
    if inner:
        yield from _alone(command, name) if command.invoke_without_command else ()
        for word, one in inner.items():
            yield from _verb(one, f"{name} {word}")
    else:
        yield from _alone(command, name)


def _alone(command: Any, name: str) -> Iterator[str]:
    """A section for a verb."""
    help_ = (command.help or VERBS.get(name, ("", ""))[1]).strip()
    given = [one.name for one in command.params if one.param_type_name == "argument"]
    usage = " ".join(["benchsuite", name, *(word.upper() for word in given)])
    rows = [
        f"| `{', '.join(one.opts)}` | {_cell(one.help or '')} |"
        for one in command.params
        if one.param_type_name == "option" and not one.hidden
    ]
    table = ["| option | |", "|---|---|", *rows] if rows else []
    yield "\n".join([f"### `{usage}`", "", help_, "", *table])


def fields(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Dotted name, type, default and description of each field."""
    for name, field in model.model_fields.items():
        inner = next((one for one in (field.annotation, *get_args(field.annotation)) if _is_model(one)), None)
        if inner is not None:
            yield from fields(inner, f"{prefix}{name}.")
            continue
        kind = re.sub(r"typing\.|<class '|'>|\bannotated_types\.", "", str(field.annotation)).replace(
            "NoneType", "null"
        )
        default = "required" if field.is_required() else str(field.get_default(call_default_factory=True))
        yield f"{prefix}{name}", _type(kind), default, field.description or ""


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _type(text: str) -> str:
    """A type without what only the code needs."""
    text = re.sub(r"Annotated\[([a-zA-Z]+), .*?\]", r"\1", text)
    return text if len(text) <= 60 else text.partition("[")[0]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _table(heads: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    return "\n".join([*lines, *(f"| {' | '.join(map(_cell, row))} |" for row in rows)])


def _spec(model: type[BaseModel]) -> str:
    rows = ((f"`{name}`", f"`{kind}`", f"`{default}`", text) for name, kind, default, text in fields(model))
    return _table(("field", "type", "default", ""), rows)


def record() -> str:
    """The figures of a trial."""
    return _table(("figure", ""), ((f"`{name}`", text) for name, _, _, text in fields(TrialFigures)))


def codes() -> str:
    """Exit codes and their meanings."""
    return _table(("code", "when"), ((str(code), text) for code, text in exit_codes.MEANINGS.items()))


def caveats() -> str:
    """What each caveat means, and what helps."""
    rows = ((f"`{name}`", cause, helps) for name, (cause, helps) in CAVEATS.items())
    return _table(("caveat", "cause", "what helps"), rows)


ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"


def claims() -> str:
    """BENCHMARKS.md without its title; what links to a section's figures there leads to its tables here."""
    text = (ROOT / "BENCHMARKS.md").read_text().partition("\n")[2]
    return re.sub(r"\(bench/results/([a-z]+)\.json\)", r"(#\1)", text).replace("(docs/", "(")


def benchmark_tables() -> str:
    """What each section of the benchmarks printed when it last ran."""
    return "\n\n".join(_benchmark(json.loads(path.read_text())) for path in sorted(RESULTS.glob("*.json")))


def _benchmark(result: dict[str, Any]) -> str:
    ran = f"`{result['command']}`, {result['date']}, {result['machine']}"
    told = groupby(result["parts"], lambda part: "text" in part)
    parts = (text for are_lines, some in told for text in (_lines([*some]) if are_lines else map(_part, some)))
    return "\n\n".join([f"### {result['section']}", ran, *parts])


def _lines(parts: list[dict[str, Any]]) -> list[str]:
    """Lines as they were printed, where there are several; one is a sentence."""
    lines = [part["text"] for part in parts]
    return lines if len(lines) == 1 else ["\n".join(["```", *lines, "```"])]


def _part(part: dict[str, Any]) -> str:
    """A table, or a goal and whether it was met."""
    if "rows" in part:
        return _table(tuple(part["columns"]), (tuple(row) for row in part["rows"]))
    return f"Goal: {_cell(part['goal'])}: {'met' if part['met'] else '**missed**'}."


PARTS: dict[str, Callable[[], str]] = {
    "verbs": verbs,
    "sweep": lambda: _spec(SweepSpec),
    "trial": lambda: _spec(TrialSpec),
    "record": record,
    "exit codes": codes,
    "caveats": caveats,
    "claims": claims,
    "benchmark tables": benchmark_tables,
}
