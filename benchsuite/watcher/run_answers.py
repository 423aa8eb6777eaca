"""What a `benchsuite run` says of its trainings: a line now and then, and the answer at their end."""

import signal
import time

from benchsuite.inside.rank_file import MOST_APART_S, STEPS_FOR_AN_ANSWER
from benchsuite.results.render.words import duration
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore, StoreError
from benchsuite.watcher.answer import over_runs, progress_line, saved_line
from benchsuite.watcher.run_folder import Run, say
from benchsuite.watcher.run_trainings import TrainingOfRun, begun, reports, trainings

OTHERS_S, POLL_S = 10.0, 0.1
"""How long ranks of other nodes are waited for that have not written their last."""
SILENT_S = 3 * MOST_APART_S
"""Ranks that train renew their reports more often than this."""
NOBODY = (
    "benchsuite run: no rank has reported: no process of the command has trained a step with PyTorch that was seen. "
    "Not seen are `python -I` and `python -S`, Python before 3.10, and containers that `run` does not stand inside."
)
TOO_EARLY = "benchsuite run: the command ended ({}) before a training step was seen."


class Answers:
    """Speaks for a run that goes on."""

    def __init__(self, run: Run) -> None:
        self.run, self.folder, self.options = run, run.folder, run.options
        self.store, self.begun = ResultsStore(run.options.store), begun(run.known)
        self.why_unstored = run.why_unstored
        self._said: dict[str, tuple[int, str]] = {}
        """Of each training: the steps and the verdict of the last line."""
        self._answered: list[float] = []
        """When the reports were written that were answered from."""

    def mine(self) -> list[TrainingOfRun]:
        """The trainings whose first rank is below this process: it speaks for all their ranks.

        Others read the report of that rank alone: there may be a `benchsuite run` for each of many nodes.
        """
        first = reports(self.folder, 0)
        if first and all(report.parent != self.run.parent for report in first):
            return []
        return [each for each in trainings(self.folder) if each.first.parent == self.run.parent]

    def say_how_it_goes(self) -> bool:
        """Print a line for each training that has gone on; whether there was one to print."""
        said = [line for training in self.mine() if (line := self._line(training))]
        say(*said)
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
                ended_by = self._cut_short_by(code)
                say(NOBODY if ended_by is None else TOO_EARLY.format(ended_by))
            return
        written = [rank.written_at_s for training in found for rank in training.ranks]
        if written == self._answered:
            return
        ended_at_s = None if code is None else time.time()
        for training in found:
            answer = training.answer(self.begun, self.options.name, self._cut_short_by(code), ended_at_s)
            if not self._answered:
                say(*answer.lines)
            self._store(answer.record, training)
        if not self._answered:
            say(*self._over_runs(), self._where())
        self._answered = written

    def _cut_short_by(self, code: int | None) -> str | None:
        if self.run.ended_by is not None:
            return self.run.ended_by
        if code is None or code == 0:
            return None
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    def _store(self, record: TrialRecord, training: TrainingOfRun) -> None:
        if self.why_unstored is None:
            try:
                self.store.append(record, training.samples())
            except StoreError as error:
                self.why_unstored = str(error)

    def _over_runs(self) -> list[str]:
        """Where the time of the job went that this run is one of, by its name, once it has run more than once."""
        if self.options.name is None or self.why_unstored is not None:
            return []
        try:
            known = ResultsStore(self.options.store, self.options.session).trials()
        except StoreError:
            return []
        return over_runs([record for record in known if record.job == self.options.name], self.options.name)

    def _where(self) -> str:
        if self.why_unstored is not None:
            return f"warning: not stored: {self.why_unstored}"
        return saved_line(self.store.path)

    def _heard_to_the_end(self) -> list[TrainingOfRun]:
        """The trainings, once ranks below other `benchsuite run`s have written their last, or do not."""
        deadline_s = time.monotonic() + OTHERS_S
        while True:
            found = self.mine()
            going_on = [rank for each in found for rank in each.ranks if rank.ended_by is None]
            if all(rank.parent == self.run.parent for rank in going_on) or time.monotonic() > deadline_s:
                return found
            time.sleep(POLL_S)
