"""The sessions of a store, and a store of which one session is read."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from benchsuite.errors import refuse
from benchsuite.terminal import echo
from results.record import Kind, TrialRecord
from results.store import ResultsStore

if TYPE_CHECKING:
    import pandas as pd

LATEST = "latest"
"""What stands for the session that was measured last."""
MAX_TOLD = 5


class OneSession(ResultsStore):
    """A store as if it had the trials of one session only; records of other kinds are all there."""

    def __init__(self, path: Path, session: str) -> None:
        super().__init__(path)
        self.session = session

    def records(self) -> list[TrialRecord]:
        """Every record once, oldest first."""
        return [record for record in super().records() if self._is_meant(record)]

    def frame(
        self,
        by: Literal["trial", "point"] = "trial",
        where: Callable[[TrialRecord], bool] | str | None = None,
        kind: Kind = "trial",
        columns: Sequence[str] | None = None,
    ) -> "pd.DataFrame":
        """The same as of the whole store, with the session as one more condition."""
        if kind != "trial":
            return super().frame(by, where, kind, columns)
        if callable(where):
            asked = where
            return super().frame(by, lambda record: self._is_meant(record) and asked(record), kind, columns)
        mine = '"session" = \'' + self.session.replace("'", "''") + "'"
        return super().frame(by, f"({where}) AND {mine}" if where else mine, kind, columns)

    def _is_meant(self, record: TrialRecord) -> bool:
        return record.kind != "trial" or record.session == self.session


def sessions_of(store: ResultsStore) -> list[str]:
    """The sessions of a store's trials, the one that was measured last at the end."""
    found = store.frame(columns=["session", "finished_at"])
    last: dict[str, str] = {}
    for session, finished_at in zip(found["session"], found["finished_at"], strict=True):
        last[session] = max(last.get(session, ""), finished_at)
    return sorted(last, key=lambda session: last[session])


def chosen(path: Path, session: str | None) -> ResultsStore:
    """A store, or one session of it; who names none of several hears that all are shown, and how to choose.

    Raises:
        UserError: it has no such session.
    """
    store = ResultsStore(path)
    names = sessions_of(store) if store.exists() else []
    if session is None:
        if len(names) > 1:
            echo(_all_shown(path, names), err=True)
        return store
    if names and session == LATEST:
        return OneSession(path, names[-1])
    if store.exists() and session not in names:
        raise refuse("--session", session, [LATEST, *names])
    return OneSession(path, session)


def _all_shown(path: Path, names: Sequence[str]) -> str:
    told = ", ".join([*(["..."] if len(names) > MAX_TOLD else []), *names[-MAX_TOLD:]])
    return f"note: all {len(names)} sessions of {path} are shown ({told}); --session latest, or a name, shows one"
