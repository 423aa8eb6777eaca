"""What a store had, read straight from its files while sweeps write: the truth that is asked of it afterwards."""

import json
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

FINISHED = ("ok", "failed", "oom", "timeout")


@dataclass(frozen=True)
class Line:
    """A record, where it stands and when it was first seen."""

    segment: str
    at_s: float
    record: dict[str, Any]

    def __str__(self) -> str:
        own = self.record
        return f"{own['status']} of trial {own['trial_id']} ({own['label']}, repeat {own['repeat']}) in {self.segment}"


class Seen:
    """Records by id, as they came; what is in the store now may be compared with them."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.lines: dict[str, Line] = {}
        self.torn: dict[str, str] = {}
        """Of segments whose last line is not whole: what it is."""
        self.wrong: list[str] = []
        self._read: dict[str, int] = {}

    def look(self, at_s: float | None = None) -> None:
        """Read what has been appended."""
        for path in sorted((self.store / "segments").glob("*.jsonl")):
            if not path.name.endswith(".samples.jsonl"):
                self._go_on(path, datetime.now().timestamp() if at_s is None else at_s)

    def _go_on(self, path: Path, at_s: float) -> None:
        with path.open("rb") as file:
            file.seek(self._read.get(path.name, 0))
            data = file.read()
        whole, _, self.torn[path.name] = (part.decode(errors="replace") for part in data.rpartition(b"\n"))
        for text in whole.splitlines():
            try:
                record = json.loads(text)
            except ValueError:
                self.wrong.append(f"{path.name} has a damaged line that is not its last: {text[:200]}")
                continue
            if record["record_id"] in self.lines:
                self.wrong.append(f"record {record['record_id']} is there twice: {path.name}")
            self.lines[record["record_id"]] = Line(path.name, at_s, record)
        self._read[path.name] = self._read.get(path.name, 0) + len(data) - len(data.rpartition(b"\n")[2])

    def trials(self) -> list[Line]:
        return [line for line in self.lines.values() if line.record["kind"] == "trial"]

    def session(self, name: str) -> dict[str, str]:
        """The finished trials of a session with their last status."""
        own = [line.record for line in self.trials() if line.record["session"] == name]
        own.sort(key=lambda record: record["finished_at"])
        return {record["trial_id"]: record["status"] for record in own if record["status"] in FINISHED}

    def statuses(self) -> Counter[str]:
        return Counter(line.record["status"] for line in self.trials())
