"""A probe's ranks: who starts them, what they are asked for, and what each has found, line by line."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from pydantic import TypeAdapter

from benchsuite.contract.errors import UserError
from benchsuite.launch.agents import AgentLauncher
from benchsuite.launch.launcher import load_launcher
from benchsuite.launch.registry import LAUNCHERS
from benchsuite.results.store.store import ResultsStore

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

REQUEST = "request.json"
Request = TypeVar("Request")


@contextmanager
def agents_for(task: str, launcher: str, store: Path | None) -> Iterator[AgentLauncher]:
    """A launcher whose ranks do a task of a probe; they leave what they found in the store where they are elsewhere.

    Raises:
        UserError: the launcher runs trials only, or its ranks have nowhere to leave what they found.
    """
    chosen = load_launcher(launcher)
    if not isinstance(chosen, AgentLauncher):
        raise UserError(f"--launcher {launcher}: runs trials only; allowed: {', '.join(LAUNCHERS)}")
    if store is None and not chosen.agent_config.only_here:
        raise UserError(
            f"--launcher {launcher}: give --store in a folder that all nodes see: ranks leave results there"
        )
    chosen.task = task
    with closing(chosen):
        if store is not None:
            chosen.meet_in(store)
            ResultsStore(store).check_writable()
        yield chosen


def leave_request(request: "DataclassInstance", folder: Path) -> None:
    """Leave where ranks look what they are asked for besides their spec."""
    (folder / REQUEST).write_text(json.dumps(asdict(request)))


def request_in(folder: Path, kind: type[Request]) -> Request:
    """What was left there."""
    return TypeAdapter(kind).validate_json((folder / REQUEST).read_text())


def findings_of(folder: Path, rank: int) -> Path:
    """The file in which a rank leaves a line for each thing it has found, as soon as it is known."""
    return folder / f"found-{rank}.jsonl"


def leave(found: "DataclassInstance", out: TextIO) -> None:
    """Leave a line of what was found, so that a rank which dies later has not measured in vain."""
    out.write(json.dumps(asdict(found)) + "\n")
    out.flush()


def found_by(folder: Path, rank: int) -> list[dict[str, Any]]:
    """What a rank has found so far; a torn last line is left out."""
    found: list[dict[str, Any]] = []
    try:
        for line in findings_of(folder, rank).read_text(encoding="utf-8").splitlines():
            found.append(json.loads(line))
    except (OSError, ValueError):
        pass
    return found
