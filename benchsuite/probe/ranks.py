"""What passes between a probe and its ranks: what they are asked for, and what each has found, line by line."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from pydantic import TypeAdapter

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

REQUEST = "request.json"
Request = TypeVar("Request")


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
