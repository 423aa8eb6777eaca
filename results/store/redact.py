"""A copy of a store in which hosts, users, jobs, paths and programs have other names, so that it can be shown."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchsuite.results.store.store import ResultsStore

PATH = re.compile(r"(?:s3:/|(?<![\w.:/~-])(?:~|/)[^\s:,;'\"()\[\]{}<>|]*)/[^\s:,;'\"()\[\]{}<>|]+")
"""A path of at least two parts, or what s3:// names, wherever it stands in a text."""
PROGRAM = re.compile(r"\b(process \d+ \().*?\)(?= keeps | holds |$)")
"""What a process is called (`benchsuite.host.processes.Process`), in facts and caveats."""
HIDDEN = "[hidden]"
PLAIN_WORD = re.compile(r"-.*|\+?[\d.]+[a-zA-Z]{0,3}|(?!data\.(root|staging_dir)=)[\w.]+=[^/]*", re.DOTALL)
"""A word of a command that names nothing of the user's: an option, a number, a setting that is no path."""
HOSTS, USERS = ("host", "node", "hosts", "hostname"), ("user", "users")
LEFT_OUT: Any = {"env": {"scheduler"}, "samples_file": True, "work_folder": True}
"""Facts of the batch system (names of jobs, accounts and clusters), and where files lie in the store."""


def redacted(store: ResultsStore, folder: Path) -> ResultsStore:
    """Copy a store's records and raw samples to a folder; the same host, user and path has the same new name in all.

    Args:
        store: what is read, with the session that it was opened for.
        folder: where the copy is written; empty.
    """
    records = store.records()
    names = Names(record.model_dump(mode="json") for record in records)
    copy = ResultsStore(folder)
    copy.writer = "node"
    for record in records:
        hidden = names.hidden(record.model_dump(mode="json", exclude=LEFT_OUT))
        copy.append(type(record).model_validate(hidden), store.samples(record))
    return ResultsStore(folder, store.session)


class Names:
    """New names of what must not be told, by their order of appearance."""

    def __init__(self, records: Iterable[Mapping[str, Any]]) -> None:
        found: dict[str, dict[str, None]] = {"node": {}, "user": {}, "path": {}}
        for kind, text in (pair for record in records for pair in _secrets(record, "")):
            found[kind].setdefault(text)
        self._names = {
            text: f"{kind}-{number}" for kind, texts in found.items() for number, text in enumerate(texts, 1) if text
        }
        longest = sorted(self._names, key=len, reverse=True)
        self._any = re.compile("|".join(rf"(?<!\w){re.escape(text)}(?!\w)" for text in longest)) if longest else None

    def hidden(self, value: Any) -> Any:
        """A nested value with every name replaced; keys are names of fields."""
        if isinstance(value, str):
            value = PROGRAM.sub(r"\1program)", value)
            return self._any.sub(lambda found: self._names[found[0]], value) if self._any else value
        if isinstance(value, Mapping):
            return {key: self.hidden(_told(item) if key == "command" else item) for key, item in value.items()}
        return [self.hidden(item) for item in value] if isinstance(value, list) else value


def _told(command: Any) -> Any:
    """A command without what may be a name of the user's own: a relative path, a file, a session."""
    if not isinstance(command, list):
        return command
    program, rest = command[:2], command[2:]
    return [*program, *(word if PLAIN_WORD.fullmatch(word) else HIDDEN for word in rest)]


def _secrets(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """What must not be told: its kind, and the text."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _secrets(item, str(name))
    elif isinstance(value, list):
        for item in value:
            yield from _secrets(item, key)
    elif isinstance(value, str):
        if key in HOSTS:
            yield "node", value
            yield "node", value.partition(".")[0]
        elif key in USERS:
            yield "user", value
        yield from (("path", path) for path in PATH.findall(value))
