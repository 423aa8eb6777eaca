"""Claims on trials: any number of sweeps share one session of a store, without locks and without trusting clocks.

STORE/claims/SESSION/TRIAL.N is made with O_EXCL: whoever makes it holds the trial. The holder replaces it now and then
by renaming, with a higher beat. Who wants the trial watches the beat: when it has stood still for the lease, by the
watcher's own monotonic clock, TRIAL.N+1 is free to be made, and the old holder, should it wake, finds it and drops
what it measured. A finished trial's claim stays, so that a plan made before does not measure it again.

`Turns` gives the trials of a plan that no other sweep of the session holds, until none is left to wait for.
"""

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Generic, Literal, Self, TypeVar

from pydantic import TypeAdapter

from benchsuite.contract.errors import UserError
from benchsuite.results.store.place import folder_in, is_same, share_open
from benchsuite.storage.dataset import partial as writers
from benchsuite.storage.dataset.owned_files import read_plain, write_new
from benchsuite.storage.dataset.partial import has_ended

State = Literal["running", "done", "released"]
CLAIMS = "claims"
LEASE_S = 120.0
"""A holder that gave no sign for so long has lost its trial. File systems may show files late by up to a minute."""
BEATS_PER_LEASE = 6
MAX_BEATS_APART = 2
"""A holder whose beats were further apart has to make sure of its claim: others see beats late."""
JOB_ID_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")


@dataclass(frozen=True)
class Holder:
    """Who holds a trial."""

    host: str
    pid: int
    job: str | None = None
    process: str = ""
    """What no other process is called, on any host; whether it has ended can be told on its own."""
    job_starts: int = 0
    """How often its job had been started again: a job's earlier start has ended on all its nodes."""

    def __str__(self) -> str:
        return f"{self.host}, process {self.pid}" + (f", job {self.job}" if self.job else "")

    def is_gone(self) -> bool:
        """Whether it was a process of this place, or of an earlier start of this job; False where it may still run."""
        if self.job is not None and self.job == _job() and self.job_starts < _job_starts():
            return True
        return has_ended(self.process)


@dataclass(frozen=True)
class Claim:
    """What a claim's file says."""

    token: str
    holder: Holder
    state: State = "running"
    beat: int = 0
    since: str = ""
    """UTC by the holder's clock: for people."""
    finished_at: str = ""
    """When the last record of its holders was finished, by the clock of whoever wrote it; empty: there is none."""


CLAIM = TypeAdapter(Claim)
"""Reads what anyone may have written; what other versions say besides is left out."""


@dataclass(frozen=True)
class Held:
    """Another sweep has the trial."""

    claim: Claim | None
    """None while its file is being written."""
    generation: int
    alive: bool
    """Whether its beat has moved since it was first looked at."""


@dataclass
class _Seen:
    generation: int
    beat: tuple[str, int] | None
    at_s: float
    moved: bool = False


def this_process() -> Holder:
    """This process as a holder."""
    return Holder(socket.gethostname(), os.getpid(), _job(), writers.this_process(), _job_starts())


def _job() -> str | None:
    return next((os.environ[name] for name in JOB_ID_VARIABLES if os.environ.get(name)), None)


def _job_starts() -> int:
    text = os.environ.get("SLURM_RESTART_COUNT", "")
    return int(text) if text.isdigit() else 0


@dataclass
class Claims:
    """The claims of a session, as one sweep sees and makes them."""

    folder: Path
    lease_s: float = LEASE_S
    holder: Holder = field(default_factory=this_process)
    _known: dict[str, int] = field(default_factory=dict)
    """The first generation of a trial's claim that was made after this sweep had planned."""
    _unseen: dict[str, int] = field(default_factory=dict)
    """Claims that say their trial is done, while this sweep has looked for its record and not found it yet."""
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _open: "set[Holding]" = field(default_factory=set)
    """Made, and neither done nor left."""

    @classmethod
    def of(cls, store: Path, session: str, lease_s: float = LEASE_S) -> "Claims":
        """The claims of a session of a store."""
        return cls(store / CLAIMS / session, lease_s)

    def over(self, trials: Mapping[str, str]) -> set[str]:
        """Which of these trials are done by a record that was not seen in the store: it is to be read again.

        What is still not seen then is either late, as it is on network file systems, or was removed: such a trial may
        be taken like one whose holder gave no sign.

        Args:
            trials: each with the moment at which its last record was finished, as far as it was seen; empty: none.
        """
        generations = latest_generations(self.folder)
        self._end_replacing(generations)
        found = set()
        for trial in trials.keys() & generations.keys():
            self._known[trial] = generation = generations[trial]
            claim = read_claim(self.folder / f"{trial}.{generation}")
            if claim is None or claim.state != "done":
                continue
            if claim.finished_at <= trials[trial]:
                self._known[trial] = generation + 1
            else:
                found.add(trial)
                self._unseen[trial] = generation
        return found

    def _end_replacing(self, generations: Mapping[str, int]) -> None:
        """End what holders had begun that were killed while they replaced their claim."""
        for fresh in self.folder.glob(".*.*.*"):
            name = fresh.name[1:].rpartition(".")[0]
            trial, _, generation = name.rpartition(".")
            claim, begun = read_claim(fresh.with_name(name)), read_claim(fresh)
            with suppress(OSError):
                if generation != str(generations.get(trial)):
                    fresh.unlink()
                elif claim is not None and claim.holder.is_gone():
                    whole = begun is not None and begun.token == claim.token
                    fresh.replace(fresh.with_name(name)) if whole else fresh.unlink()

    def take(self, trial: str) -> "Holding | Held | None":
        """The trial, if it is free; who has it otherwise; None where another sweep has finished it meanwhile.

        Raises:
            UserError: the store cannot be written.
        """
        generation = self._known.get(trial, 0)
        while True:
            if (holding := self._make(trial, generation)) is not None:
                return holding
            found = self._after(trial, generation)
            if not isinstance(found, int):
                return found
            generation = found

    def look(self, trial: str) -> Literal["free"] | Held | None:
        """What `take` would find, without taking it."""
        generation = self._known.get(trial, 0)
        while (self.folder / f"{trial}.{generation}").exists():
            found = self._after(trial, generation)
            if not isinstance(found, int):
                return found
            generation = found
        return "free"

    def _after(self, trial: str, generation: int) -> int | Held | None:
        """What another's claim leads to: the generation to try next, who holds it, or None where the trial is done."""
        if (self.folder / f"{trial}.{generation + 1}").exists():
            return generation + 1
        claim = read_claim(self.folder / f"{trial}.{generation}")
        if claim is not None and claim.state == "done" and self._unseen.get(trial) != generation:
            return None
        if (claim is not None and claim.state == "released") or self._is_abandoned(trial, generation, claim):
            return generation + 1
        return Held(claim, generation, self._seen[trial].moved)

    def _make(self, trial: str, generation: int) -> "Holding | None":
        path = self.folder / f"{trial}.{generation}"
        before = read_claim(path.with_name(f"{trial}.{generation - 1}")) if generation else None
        since, written = datetime.now(UTC).isoformat(timespec="seconds"), before.finished_at if before else ""
        claim = Claim(secrets.token_hex(8), self.holder, since=since, finished_at=written)
        store = self.folder.parent.parent
        try:
            folder_in(store, *self.folder.parts[-2:])
            if not _made(path, claim):
                return None
        except OSError as error:
            raise UserError(f"store {store}: cannot be written: {error.strerror}") from error
        taken_over = generation > self._known.get(trial, 0)
        holding = Holding(path, claim, self.lease_s / BEATS_PER_LEASE, taken_over, self._open.discard)
        self._open.add(holding)
        return holding

    def release(self) -> None:
        """Leave what is still held: an interrupt may come before a claim just made is entered."""
        for holding in list(self._open):
            holding.release()

    def _is_abandoned(self, trial: str, generation: int, claim: Claim | None) -> bool:
        now, beat = time.monotonic(), (claim.token, claim.beat) if claim else None
        seen = self._seen.get(trial)
        if seen is None or seen.generation != generation:
            self._seen[trial] = seen = _Seen(generation, beat, now)
        elif seen.beat != beat:
            moved = seen.beat is not None
            self._seen[trial] = seen = _Seen(generation, beat, now, moved)
        return now - seen.at_s >= self.lease_s or (claim is not None and claim.holder.is_gone())


class Holding:
    """A trial that this process holds: its claim is renewed in the background until it is left."""

    def __init__(
        self, path: Path, claim: Claim, every_s: float, taken_over: bool, on_end: Callable[["Holding"], None]
    ) -> None:
        self.taken_over = taken_over
        """Whether it comes from a sweep that gave no sign: what that finished last may be in the store."""
        self._path, self._store, self._claim, self._on_end = path, _store_of(path), claim, on_end
        self._every_s, self._beat_at_s, self._was_silent = every_s, time.monotonic(), False
        self._stop, self._writing = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def finished_at(self) -> str:
        """When the last record of the trial was finished, as far as its holders have told; empty: there is none."""
        return self._claim.finished_at

    def wrote(self, finished_at: str) -> None:
        """A record that was finished at that moment is in the store: the next one has to be later, by any clock."""
        with self._writing:
            self._claim = replace(self._claim, finished_at=finished_at)

    @property
    def is_open(self) -> bool:
        """Whether the trial is neither done nor left."""
        return self._claim.state == "running"

    def release(self) -> None:
        """Leave a trial that is not done to others."""
        if self.is_open:
            self._end("released")

    def is_lost(self) -> bool:
        """Whether another sweep has taken the trial over, because this one gave no sign for too long.

        To look is not enough: what another has made may be seen late. So one that was silent makes the next claim
        itself, which is granted to one alone.
        """
        with self._writing:
            stem, _, generation = self._path.name.rpartition(".")
            following = self._path.with_name(f"{stem}.{int(generation) + 1}")
            if not is_same(self._store):  # what is appended there is refused
                return False
            if self._is_silent():
                folder_in(self._store, *following.parent.parts[-2:])  # it may have been removed meanwhile
                if _made(following, self._claim):
                    self._path, self._was_silent, self._beat_at_s = following, False, time.monotonic()
                    return False
            return following.exists()

    def done(self, finished_at: str = "") -> None:
        """The trial's record, finished at that moment, is in the store."""
        if finished_at:
            self.wrote(finished_at)
        self._end("done")

    def _end(self, state: State) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._replace(state)
        self._on_end(self)

    def _beat(self) -> None:
        while not self._stop.wait(self._every_s):
            self._replace("running")

    def _is_silent(self) -> bool:
        """Whether it gave no sign for so long, since it has the claim, that others may take it for gone."""
        self._was_silent |= time.monotonic() - self._beat_at_s > MAX_BEATS_APART * self._every_s
        return self._was_silent

    def _replace(self, state: State) -> None:
        with self._writing, suppress(OSError):  # a full disk costs the claim at worst, never the trial
            self._is_silent()
            self._claim = replace(self._claim, state=state, beat=self._claim.beat + 1)
            if is_same(self._store):
                write_new(self._path, json.dumps(asdict(self._claim)), made=partial(share_open, store=self._store))
                self._beat_at_s = time.monotonic()


def _store_of(path: Path) -> Path:
    """The store of a claim's file."""
    return path.parent.parent.parent


def _made(path: Path, claim: Claim) -> bool:
    """Make a claim's file, if no other has made it.

    Raises:
        OSError: it cannot be made.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return False
    share_open(descriptor, _store_of(path))
    with os.fdopen(descriptor, "w", encoding="utf-8") as file, suppress(OSError):  # a full disk: the record will tell
        file.write(json.dumps(asdict(claim)))
    return True


def read_claim(path: Path) -> Claim | None:
    """A claim, whoever made it: those who share a store share its trials.

    None while it is being written, or where it is gone, damaged, or no file.
    """
    try:
        claim = CLAIM.validate_json(read_plain(path, own=False))
        if claim.finished_at and datetime.fromisoformat(claim.finished_at).tzinfo is None:
            return None
        return claim
    except (OSError, ValueError):
        return None


def latest_generations(folder: Path) -> dict[str, int]:
    """The last claim of each trial, by trial."""
    found: dict[str, int] = {}
    for trial, generation in _files(folder):
        found[trial] = max(generation, found.get(trial, 0))
    return found


def _files(folder: Path) -> Iterator[tuple[str, int]]:
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        trial, _, generation = name.rpartition(".")
        if trial and not name.startswith(".") and generation.isascii() and generation.isdigit():
            yield trial, int(generation)


def running(folder: Path) -> dict[str, Claim]:
    """Trials that are held, with their claims."""
    claims = {
        trial: read_claim(folder / f"{trial}.{generation}") for trial, generation in latest_generations(folder).items()
    }
    return {trial: claim for trial, claim in claims.items() if claim is not None and claim.state == "running"}


T = TypeVar("T")
POLLS_PER_LEASE = 60
MAX_POLL_S = 1.0


class Turns(Generic[T]):
    """Items with the trials that they stand for, each with the claim that was taken on it.

    What others hold is asked for again after all else, and in the end until its holder either moves, and is left alone
    with it, or does not for as long as its lease, and is relieved of it. Items that are not allowed when their turn
    comes are never claimed.
    """

    def __init__(
        self, todo: list[tuple[int, T, str]], claims: Claims, allows: Callable[[T], bool] = lambda item: True
    ) -> None:
        self._todo, self._claims, self._allows = todo, claims, allows
        self.held: list[Held] = []
        """What was left to others, once all turns are over."""
        self.late: list[T] = []
        """What nobody had when its turn came, and was not allowed."""

    def __iter__(self) -> Iterator[tuple[int, T, Holding]]:
        waiting = self._todo
        while waiting:
            taken, others = False, []
            for number, item, trial in waiting:
                found = self._claims.take(trial) if self._allows(item) else self._claims.look(trial)
                if isinstance(found, Holding):
                    taken = True
                    yield number, item, found
                elif found == "free":
                    self.late.append(item)
                elif found is not None:
                    others.append(((number, item, trial), found))
            if not taken:
                self.held += [held for _, held in others if held.alive]
                others = [(each, held) for each, held in others if not held.alive]
                if others:
                    time.sleep(min(MAX_POLL_S, self._claims.lease_s / POLLS_PER_LEASE))
            waiting = [each for each, _ in others]
