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

from benchsuite.inside.files import read_plain, write_new
from benchsuite.results.store.place import folder_in, is_same, share_open, written_to
from benchsuite.storage.dataset import partial as writers
from benchsuite.storage.dataset.partial import has_ended

State = Literal["running", "done", "released"]
CLAIMS = "claims"
LEASE_S = 120.0
"""A holder that gave no sign for so long has lost its trial. File systems may show files up to a minute late."""
BEATS_PER_LEASE = 6
MAX_BEATS_APART = 2
"""A holder whose beats were further apart must check its claim: others see beats late."""
JOB_ID_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")


@dataclass(frozen=True)
class Holder:
    """Who holds a trial."""

    host: str
    pid: int
    job: str | None = None
    process: str = ""
    """A name that no other process has, on any host. It alone shows whether the process has ended."""
    job_starts: int = 0
    """How often its job was restarted before: every earlier start of a job has ended on all its nodes."""

    def __str__(self) -> str:
        return f"{self.host}, process {self.pid}" + (f", job {self.job}" if self.job else "")

    def is_gone(self) -> bool:
        """Return whether this process can tell that the holder has ended; False where it may still run."""
        if self.job is not None and self.job == _job() and self.job_starts < _job_starts():
            return True
        return has_ended(self.process)


@dataclass(frozen=True)
class Claim:
    """The content of a claim's file."""

    token: str
    holder: Holder
    state: State = "running"
    beat: int = 0
    since: str = ""
    """UTC by the holder's clock; only people read it."""
    finished_at: str = ""
    """When the last record of the trial was finished, by its writer's clock; empty where it has no record."""


CLAIM = TypeAdapter(Claim)
"""Reads a claim that anyone may have written, and ignores fields of other versions."""


@dataclass(frozen=True)
class HeldElsewhere:
    """A trial that another sweep holds."""

    claim: Claim | None
    """None while its file is being written."""
    generation: int
    alive: bool
    """Whether its beat has moved since this sweep first saw it."""


@dataclass
class _Sighting:
    """The beat of another's claim, and since when it has stood still by this process's monotonic clock."""

    generation: int
    beat: tuple[str, int] | None
    """The claim's token and beat; None while its file is being written."""
    since_s: float
    moved: bool = False


def this_process() -> Holder:
    """Return this process as a holder."""
    return Holder(socket.gethostname(), os.getpid(), _job(), writers.this_process(), _job_starts())


def _job() -> str | None:
    """Return the id of the scheduler's job that this process runs in; None outside of one."""
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
    _first_generation: dict[str, int] = field(default_factory=dict)
    """The generation of each trial's claim from which on this sweep looks: earlier ones were over when it planned."""
    _unseen: dict[str, int] = field(default_factory=dict)
    """The generation of each claim that says its trial is done while this sweep has not found its record."""
    _sightings: dict[str, _Sighting] = field(default_factory=dict)
    _open: "set[Holding]" = field(default_factory=set)
    """The claims that this process holds."""

    @classmethod
    def of(cls, store: Path, session: str, lease_s: float = LEASE_S) -> "Claims":
        """Return the claims of a session of a store."""
        return cls(store / CLAIMS / session, lease_s)

    def find_unseen(self, trials: Mapping[str, str]) -> set[str]:
        """Return the trials whose claim says that they are done by a record that this sweep has not seen.

        The caller reads the store again. A record that is still missing then is late, as network file systems are, or
        was removed: such a trial may be taken like one whose holder gave no sign. Later calls of `take` and `look`
        start at the generations that this call finds.

        Args:
            trials: when the last record of each trial was finished, as far as it was seen; empty where none was.
        """
        generations = latest_generations(self.folder)
        self._complete_replacements(generations)
        unseen = set()
        for trial in trials.keys() & generations.keys():
            self._first_generation[trial] = generation = generations[trial]
            claim = read_claim(self.folder / f"{trial}.{generation}")
            if claim is None or claim.state != "done":
                continue
            if claim.finished_at <= trials[trial]:
                self._first_generation[trial] = generation + 1
            else:
                unseen.add(trial)
                self._unseen[trial] = generation
        return unseen

    def _complete_replacements(self, generations: Mapping[str, int]) -> None:
        """Rename or remove the new files of holders that were killed while they replaced their claim."""
        for fresh in self.folder.glob(".*.*.*"):
            name = fresh.name[1:].rpartition(".")[0]
            trial, _, generation = name.rpartition(".")
            claim, replacement = read_claim(fresh.with_name(name)), read_claim(fresh)
            with suppress(OSError):
                if generation != str(generations.get(trial)):
                    fresh.unlink()
                elif claim is not None and claim.holder.is_gone():
                    if replacement is not None and replacement.token == claim.token:
                        fresh.replace(fresh.with_name(name))
                    else:
                        fresh.unlink()

    def take(self, trial: str) -> "Holding | HeldElsewhere | None":
        """Claim a trial if it is free, else return who holds it; None where another sweep has finished it.

        Raises:
            StoreError: the store cannot be written.
        """
        generation = self._first_generation.get(trial, 0)
        while True:
            if (holding := self._make_claim(trial, generation)) is not None:
                return holding
            following = self._follow(trial, generation)
            if not isinstance(following, int):
                return following
            generation = following

    def look(self, trial: str) -> Literal["free"] | HeldElsewhere | None:
        """Return what `take` would, without claiming the trial."""
        generation = self._first_generation.get(trial, 0)
        while (self.folder / f"{trial}.{generation}").exists():
            following = self._follow(trial, generation)
            if not isinstance(following, int):
                return following
            generation = following
        return "free"

    def _follow(self, trial: str, generation: int) -> int | HeldElsewhere | None:
        """Return the generation to try after another's claim, or who holds the trial; None where it is done."""
        if (self.folder / f"{trial}.{generation + 1}").exists():
            return generation + 1
        claim = read_claim(self.folder / f"{trial}.{generation}")
        if claim is not None and claim.state == "done" and self._unseen.get(trial) != generation:
            return None
        if (claim is not None and claim.state == "released") or self._is_abandoned(trial, generation, claim):
            return generation + 1
        return HeldElsewhere(claim, generation, self._sightings[trial].moved)

    def _make_claim(self, trial: str, generation: int) -> "Holding | None":
        """Make a claim's file and return it as held by this process; None where the file is there already.

        Raises:
            StoreVanished: the store is no longer there.
            StoreError: the store cannot be written.
        """
        path = self.folder / f"{trial}.{generation}"
        earlier = read_claim(path.with_name(f"{trial}.{generation - 1}")) if generation else None
        since, finished_at = datetime.now(UTC).isoformat(timespec="seconds"), earlier.finished_at if earlier else ""
        claim = Claim(secrets.token_hex(8), self.holder, since=since, finished_at=finished_at)
        store = self.folder.parent.parent
        with written_to(store):
            folder_in(store, *self.folder.parts[-2:])
            if not _create_file(path, claim):
                return None
        taken_over = generation > self._first_generation.get(trial, 0)
        holding = Holding(path, claim, self.lease_s / BEATS_PER_LEASE, taken_over, self._open.discard)
        self._open.add(holding)
        return holding

    def release(self) -> None:
        """Release every claim that this process still holds: an interrupt may come before one is entered."""
        for holding in list(self._open):
            holding.release()

    def _is_abandoned(self, trial: str, generation: int, claim: Claim | None) -> bool:
        """Note the claim's beat; return whether it has stood still for the lease, or its holder has ended."""
        now_s, beat = time.monotonic(), (claim.token, claim.beat) if claim else None
        sighting = self._sightings.get(trial)
        if sighting is None or sighting.generation != generation:
            self._sightings[trial] = sighting = _Sighting(generation, beat, now_s)
        elif sighting.beat != beat:
            moved = sighting.beat is not None
            self._sightings[trial] = sighting = _Sighting(generation, beat, now_s, moved)
        return now_s - sighting.since_s >= self.lease_s or (claim is not None and claim.holder.is_gone())


class Holding:
    """A trial that this process holds: a thread renews its claim until the trial is finished or released."""

    def __init__(
        self, path: Path, claim: Claim, every_s: float, taken_over: bool, on_end: Callable[["Holding"], None]
    ) -> None:
        self.taken_over = taken_over
        """Whether another sweep held it and gave no sign; that sweep's last record may be in the store."""
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
        """When the last record of the trial was finished, as its holders wrote it; empty where it has no record."""
        return self._claim.finished_at

    def note_record(self, finished_at: str) -> None:
        """Note when a record in the store was finished: the next one must be later, by any clock."""
        with self._writing:
            self._claim = replace(self._claim, finished_at=finished_at)

    @property
    def is_open(self) -> bool:
        """Whether the trial is neither finished nor released."""
        return self._claim.state == "running"

    def release(self) -> None:
        """Leave the trial to others, unless it is finished."""
        if self.is_open:
            self._end("released")

    def is_lost(self) -> bool:
        """Return whether another sweep has taken the trial over because this one gave no sign for too long.

        Looking is not enough, because this node may see another's claim late. So a holder that was silent makes the
        next claim itself: only one process can.
        """
        with self._writing:
            stem, _, generation = self._path.name.rpartition(".")
            following = self._path.with_name(f"{stem}.{int(generation) + 1}")
            if not is_same(self._store):  # another store at this path refuses the record by itself
                return False
            if self._is_silent():
                folder_in(self._store, *following.parent.parts[-2:])  # someone may have removed it meanwhile
                if _create_file(following, self._claim):
                    self._path, self._was_silent, self._beat_at_s = following, False, time.monotonic()
                    return False
            return following.exists()

    def finish(self, finished_at: str = "") -> None:
        """Mark the trial as done: its record, finished at that moment, is in the store."""
        if finished_at:
            self.note_record(finished_at)
        self._end("done")

    def _end(self, state: State) -> None:
        """Stop the thread and write the claim's last state."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._replace(state)
        self._on_end(self)

    def _beat(self) -> None:
        """Renew the claim until the thread is stopped."""
        while not self._stop.wait(self._every_s):
            self._replace("running")

    def _is_silent(self) -> bool:
        """Note and return whether this holder was ever silent for so long that others may have given it up."""
        self._was_silent |= time.monotonic() - self._beat_at_s > MAX_BEATS_APART * self._every_s
        return self._was_silent

    def _replace(self, state: State) -> None:
        """Write the claim with its next beat; best effort: errors are ignored."""
        with self._writing, suppress(OSError):  # a full disk may cost the claim, never the trial
            self._is_silent()
            self._claim = replace(self._claim, state=state, beat=self._claim.beat + 1)
            if is_same(self._store):
                write_new(self._path, json.dumps(asdict(self._claim)), made=partial(share_open, store=self._store))
                self._beat_at_s = time.monotonic()


def _store_of(path: Path) -> Path:
    """Return the store of a claim's file."""
    return path.parent.parent.parent


def _create_file(path: Path, claim: Claim) -> bool:
    """Create a claim's file; return False where it is there already.

    Raises:
        OSError: the file cannot be created.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return False
    share_open(descriptor, _store_of(path))
    with os.fdopen(descriptor, "w", encoding="utf-8") as file, suppress(OSError):  # on a full disk the record will fail
        file.write(json.dumps(asdict(claim)))
    return True


def read_claim(path: Path) -> Claim | None:
    """Return a claim, whoever made it: those who share a store share its trials.

    None while it is being written, and where it is gone, damaged or no regular file.
    """
    try:
        claim = CLAIM.validate_json(read_plain(path, own=False))
        if claim.finished_at and datetime.fromisoformat(claim.finished_at).tzinfo is None:
            return None
        return claim
    except (OSError, ValueError):
        return None


def latest_generations(folder: Path) -> dict[str, int]:
    """Return the generation of each trial's last claim."""
    generations: dict[str, int] = {}
    for trial, generation in _list_claims(folder):
        generations[trial] = max(generation, generations.get(trial, 0))
    return generations


def _list_claims(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield trial and generation of every claim's file; nothing where the folder cannot be listed."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        trial, _, generation = name.rpartition(".")
        if trial and not name.startswith(".") and generation.isascii() and generation.isdigit():
            yield trial, int(generation)


def running_claims(folder: Path) -> dict[str, Claim]:
    """Return the claims of trials that are held now, by the name of the trial's claim."""
    claims = {
        trial: read_claim(folder / f"{trial}.{generation}") for trial, generation in latest_generations(folder).items()
    }
    return {trial: claim for trial, claim in claims.items() if claim is not None and claim.state == "running"}


T = TypeVar("T")
POLLS_PER_LEASE = 60
MAX_POLL_S = 1.0


class Turns(Generic[T]):
    """Yield the items of a plan one by one, each with the claim that was taken on its trial.

    Trials that others hold are tried again after all else. In the end each of them is watched: a holder whose beat
    moves keeps its trial, and one that stands still for the lease loses it. Items that are not allowed when their turn
    comes are never claimed.
    """

    def __init__(
        self, todo: list[tuple[int, T, str]], claims: Claims, allows: Callable[[T], bool] = lambda item: True
    ) -> None:
        self._todo, self._claims, self._allows = todo, claims, allows
        self.held: list[HeldElsewhere] = []
        """Trials that were left to others, once all turns are over."""
        self.late: list[T] = []
        """Items that nobody held when their turn came, and that were not allowed."""

    def __iter__(self) -> Iterator[tuple[int, T, Holding]]:
        waiting = self._todo
        while waiting:
            took_any, held_elsewhere = False, []
            for number, item, trial in waiting:
                claim = self._claims.take(trial) if self._allows(item) else self._claims.look(trial)
                if isinstance(claim, Holding):
                    took_any = True
                    yield number, item, claim
                elif claim == "free":
                    self.late.append(item)
                elif claim is not None:
                    held_elsewhere.append(((number, item, trial), claim))
            if not took_any:
                self.held += [held for _, held in held_elsewhere if held.alive]
                held_elsewhere = [(turn, held) for turn, held in held_elsewhere if not held.alive]
                if held_elsewhere:
                    time.sleep(min(MAX_POLL_S, self._claims.lease_s / POLLS_PER_LEASE))
            waiting = [turn for turn, _ in held_elsewhere]
