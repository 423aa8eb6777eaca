"""`benchsuite run -- COMMAND`: start a training of anyone's, measure it from within, and say what holds it back.

The command keeps its standard streams, its signals and its exit code. Its processes write what they measure into a
folder of the store (`benchsuite.inside.job`), and this process reads it.
"""

import json
import math
import os
import re
import secrets
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchsuite.analysis.record_builder import now
from benchsuite.contract.errors import UserError
from benchsuite.contract.terminal import echo
from benchsuite.inside.files import own_folders
from benchsuite.inside.job import LOOKS_FOLDER, VARIABLE
from benchsuite.inside.rank_file import MOST_APART_S, STEPS_FOR_AN_ANSWER
from benchsuite.results.render.words import duration
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore, StoreError
from benchsuite.storage.dataset.partial import this_process
from benchsuite.watcher.answer import progress_line, saved_line
from benchsuite.watcher.run_folder import RUNS, Parent, TrainingOfRun, reports, trainings

HOOK = Path(__file__).parents[1] / "inside" / "hook"
FORWARDED = (
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGINT,
    signal.SIGCONT,
)
ENDING = frozenset({signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT})
OTHERS_S, POLL_S = 10.0, 0.1
"""How long ranks of other nodes are waited for that have not written their last."""
SILENT_S = 3 * MOST_APART_S
"""Ranks that train renew their reports more often than this."""
WAKES_S = 60.0
FIRST_LOOK_S = 2.0
"""How often is looked for the first counted steps."""
NOBODY = (
    "benchsuite run: no rank has reported: no process of the command has trained a step with PyTorch that was seen. "
    "Not seen are `python -I` and `python -S`, Python before 3.10, and containers that `run` does not stand inside."
)
LAST_WORDS_S = 0.5
"""How long ranks that were told to end may take to write what they have measured, before the answer is printed."""


@dataclass(frozen=True)
class Options:
    """What a run was asked for."""

    store: ResultsStore
    name: str | None = None
    session: str = "default"
    every_s: float = 60.0
    replays: bool = False


class Run:
    """A run that goes on."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.parent = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self.folder, self.why_unstored = _make_folder(options.store, self.parent)
        self.known = Parent(this_process(), options.session, options.name, now(), options.every_s)
        self.begun = self.known.begun()
        self.show_life()
        self.ended_by: str | None = None
        """The signal that asked for an end."""
        self._said: dict[str, tuple[int, str]] = {}
        """Of each training: the steps and the verdict of the last line."""
        self._answered: list[float] = []
        """When the reports were written that were answered from."""

    def show_life(self) -> None:
        """Write who this is, so that others can conclude for it once it is gone."""
        with suppress(OSError):
            self.known.write(self.folder, self.parent)

    def environment(self) -> dict[str, str]:
        """The variables of the command: they carry the hook to all that it starts."""
        told = {
            "folder": str(self.folder),
            "parent": self.parent,
            "job": os.environ.get("SLURM_JOB_ID"),
            "replays": self.options.replays,
            "every_s": self.options.every_s,
        }
        paths = [str(HOOK), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {**os.environ, VARIABLE: json.dumps(told), "PYTHONPATH": os.pathsep.join(paths)}

    def mine(self) -> list[TrainingOfRun]:
        """The trainings whose first rank is below this process: it speaks for all their ranks.

        Others read the report of that rank alone: there may be a `benchsuite run` for each of many nodes.
        """
        first = reports(self.folder, 0)
        if first and all(report.parent != self.parent for report in first):
            return []
        return [each for each in trainings(self.folder) if each.first.parent == self.parent]

    def say_how_it_goes(self) -> bool:
        """Print a line for each training that has gone on; whether there was one to print."""
        said = [line for training in self.mine() if (line := self._line(training))]
        _say(*said)
        return bool(said)

    def _line(self, training: TrainingOfRun) -> str | None:
        steps, key = training.num_steps, training.first.group
        if steps < STEPS_FOR_AN_ANSWER:
            return None
        steps_before, verdict_before = self._said.get(key, (0, ""))
        now, step = time.strftime("%H:%M"), f"step {steps + training.first.loop.num_uncounted:,}"
        if steps == steps_before:
            silent_s = time.time() - max(rank.written_at_s for rank in training.ranks)
            return f"{now}  {step}   no step has ended for {duration(silent_s)}" if silent_s > SILENT_S else None
        found = training.answer(self.begun, self.options.name, None).figures
        verdict = found["bottleneck"] or ""
        self._said[key] = steps, verdict
        return progress_line(now, step, found, verdict if verdict != verdict_before else "")

    def conclude(self, code: int | None) -> None:
        """Print and store the answers, from what is there; `code`: how the command has ended, None while it runs."""
        found = self._heard_to_the_end() if code is not None else self.mine()
        if not found:
            if code is not None and not any(self.folder.glob("rank-*.json")):
                _say(NOBODY)
            return
        written = [rank.written_at_s for training in found for rank in training.ranks]
        if written == self._answered:
            return
        for training in found:
            answer = training.answer(self.begun, self.options.name, self._cut_short_by(code))
            if not self._answered:
                _say(*answer.lines)
            self._store(answer.record, training)
        if not self._answered:
            _say(self._where())
        self._answered = written

    def _cut_short_by(self, code: int | None) -> str | None:
        if self.ended_by is not None:
            return self.ended_by
        if code is None or code == 0:
            return None
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    def _store(self, record: TrialRecord, training: TrainingOfRun) -> None:
        if self.why_unstored is None:
            try:
                self.options.store.append(record, training.samples())
            except StoreError as error:
                self.why_unstored = str(error)

    def _where(self) -> str:
        if self.why_unstored is not None:
            return f"warning: not stored: {self.why_unstored}"
        return saved_line(self.options.store.path)

    def _heard_to_the_end(self) -> list[TrainingOfRun]:
        """The trainings, once ranks below other `benchsuite run`s have written their last, or do not."""
        deadline_s = time.monotonic() + OTHERS_S
        while True:
            found = self.mine()
            going_on = [rank for each in found for rank in each.ranks if rank.ended_by is None]
            if all(rank.parent == self.parent for rank in going_on) or time.monotonic() > deadline_s:
                return found
            time.sleep(POLL_S)

    def remove(self) -> None:
        """Leave the folder, which the last one removes."""
        with suppress(OSError):
            Parent.forget(self.folder, self.parent)


def _say(*lines: str) -> None:
    """Print to stderr; where that leads nowhere any more, as when srun has ended, the record is kept all the same."""
    with suppress(OSError, ValueError):
        echo(*lines, err=True)


def _make_folder(store: ResultsStore, parent: str) -> tuple[Path, str | None]:
    """The folder of the run; and why nothing can be stored, where it is a temporary one."""
    try:
        store.check_writable()
        folder = store.path.absolute() / RUNS / (_common_name() or parent)
        own_folders(folder / LOOKS_FOLDER)
        return folder, None
    except (StoreError, OSError) as error:
        echo(f"warning: {error}: the answer will be printed, and not stored", err=True)
        folder = Path(tempfile.mkdtemp(prefix="benchsuite-run-"))
        (folder / LOOKS_FOLDER).mkdir()
        return folder, str(error)


def _common_name() -> str | None:
    """What all tasks of this job step have in common, where it has several: `srun benchsuite run -- ...`."""
    env = os.environ
    if int(env.get("SLURM_NTASKS", "1")) > 1 and "SLURM_STEP_ID" in env:
        return "-".join(["slurm", env["SLURM_JOB_ID"], env["SLURM_STEP_ID"], env.get("SLURM_RESTART_COUNT", "0")])
    if int(env.get("OMPI_COMM_WORLD_SIZE", "1")) > 1 and "PMIX_NAMESPACE" in env:
        return "mpi-" + re.sub(r"[^\w.-]", "_", env["PMIX_NAMESPACE"])
    return None


def run(command: Sequence[str], options: Options) -> int:
    """Run a command and measure what it trains; its exit code, negative where a signal has ended it.

    Raises:
        UserError: the command cannot be started.
    """
    run, reader, writer = Run(options), *os.pipe()
    os.set_blocking(writer, False)
    with _signals_into(writer):
        try:
            child = subprocess.Popen(command, env=run.environment())
        except OSError as error:
            run.remove()
            raise UserError(f"{command[0]}: cannot be started: {error.strerror}") from error
        try:
            code = _follow(run, child, reader)
        finally:
            run.remove()
    return code


def _follow(run: Run, child: subprocess.Popen[bytes], signals: int) -> int:
    """Wait for the command, pass signals on to it, and say how it goes."""
    every_s, ended = run.options.every_s, os.pidfd_open(child.pid)
    due_s = time.monotonic() + min(FIRST_LOOK_S, every_s)
    answer_at_s = math.inf
    while True:
        ready, _, _ = select.select(
            [ended, signals], [], [], min(WAKES_S, max(0.0, min(due_s, answer_at_s) - time.monotonic()))
        )
        for number in os.read(signals, 64) if signals in ready else b"":
            _pass_on(child, number)
            if number in ENDING:
                run.ended_by, answer_at_s = signal.Signals(number).name, time.monotonic() + LAST_WORDS_S
        if ended in ready:
            break
        now_s = time.monotonic()
        if now_s >= answer_at_s:
            _safely(run.conclude, None)
            answer_at_s = math.inf
        if now_s >= due_s and run.ended_by is None:
            run.show_life()
            due_s = now_s + (every_s if _safely(run.say_how_it_goes) else min(FIRST_LOOK_S, every_s))
        elif now_s >= due_s:
            due_s = math.inf
    os.close(ended)
    code = child.wait()
    _safely(run.conclude, code)
    return code


def _safely(do: Callable[..., Any], *arguments: object) -> Any:
    """Do something of ours; what goes wrong is a line: the job that runs is not ours."""
    try:
        return do(*arguments)
    except Exception as error:
        _say(f"warning: benchsuite run: {type(error).__name__}: {error}")
        return None


def _pass_on(child: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal on, unless the terminal has sent it to the command as well."""
    if not (number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP) and _is_of_terminal()):
        with suppress(ProcessLookupError):
            child.send_signal(number)


def _is_of_terminal() -> bool:
    """Whether this process and its command are what a terminal's keys are for."""
    with suppress(OSError), open("/dev/tty", "rb", buffering=0) as terminal:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return False


@contextmanager
def _signals_into(writer: int) -> Iterator[None]:
    """Let the numbers of signals come through a pipe; those that were ignored stay so, here and in the command."""
    heeded = [number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    before = {number: signal.signal(number, lambda *_: None) for number in heeded}
    try:
        yield
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in before.items():
            signal.signal(number, handler)


def end_as(code: int) -> int:
    """End this process as the command has ended: by the same signal, or with its exit code."""
    if code < 0:
        with suppress(OSError):  # of SIGKILL nothing can be said
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code
