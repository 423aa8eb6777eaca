"""The trainings of one `benchsuite run`, read from its folder while they go on and when they have ended."""

import os
import re
import secrets
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from benchsuite.analysis.record_builder import Measuring
from benchsuite.inside.files import own_folders, read_plain
from benchsuite.inside.guard import Guard
from benchsuite.inside.instruments import Instruments
from benchsuite.inside.looks import Looker
from benchsuite.inside.node_log import NodeLog
from benchsuite.inside.rank_file import Loader, RankReport, Reporter
from benchsuite.inside.samples import RankSamples
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore
from benchsuite.storage.dataset.partial import this_process
from benchsuite.watcher.answer import QUESTION, SWEEP, Told, caveats, figures, lines, record_of
from benchsuite.watcher.run_folder import LEAST_S, OF_WATCH, RUNS, Parent, is_over, remove_unused

REPORT, SAMPLES, PARENT = TypeAdapter(RankReport), TypeAdapter(RankSamples), TypeAdapter(Parent)


class Answer(NamedTuple):
    """What is said of one training."""

    figures: dict[str, Any]
    lines: list[str]
    record: TrialRecord


class TrainingOfRun(NamedTuple):
    """The reports of the ranks of one training, by rank."""

    ranks: list[RankReport]

    @property
    def first(self) -> RankReport:
        return self.ranks[0]

    @property
    def num_steps(self) -> int:
        """Steps that the rank with the fewest has counted."""
        return min(sum(block.num_steps for block in rank.samples.blocks) for rank in self.ranks)

    def samples(self) -> dict[str, Any]:
        """The raw samples of all ranks, as a store keeps them."""
        return {"ranks": [SAMPLES.dump_python(rank.samples, mode="json") for rank in self.ranks]}

    def told(self, name: str | None, cut_short_by: str | None = None) -> Told:
        """What is known of it beside its samples."""
        first, heard = self.first, {rank.rank for rank in self.ranks}
        ended_by = next((one.ended_by for one in self.ranks if one.ended_by not in (None, "end")), None)
        return Told(
            name or first.script,
            tuple(rank for rank in range(first.world_size) if rank not in heard),
            reads_counted=None,
            cut_short_by=ended_by or cut_short_by,
            num_replayed=first.loop.num_replayed,
            cores=first.loop.cores,
            device=first.loop.device,
            num_passes=first.loop.num_passes,
            num_uncounted=first.loop.num_uncounted,
            before_s=first.loop.before_s,
            data_can_be_named=False,
            others_load_share=first.loop.others_load_share,
            job=name,
        )

    def _wall_s(self, begun: Measuring, ended_at_s: float | None) -> dict[str, float] | None:
        """Where the time of the job went, by its first rank; what came before its process and after it included."""
        first, found = self.first, self.first.samples.wall_s
        if found is None:
            return None
        began_at_s = datetime.fromisoformat(begun.started_at).timestamp()
        before_s = first.written_at_s - sum(found.values()) - began_at_s
        after_s = 0.0 if ended_at_s is None else ended_at_s - first.written_at_s
        start_up_s, end_s = found.get("start_up", 0.0) + max(0.0, before_s), found.get("end", 0.0) + max(0.0, after_s)
        return {**found, "start_up": start_up_s, "end": end_s}

    def answer(
        self, begun: Measuring, name: str | None, cut_short_by: str | None, ended_at_s: float | None = None
    ) -> Answer:
        """Judge what is there; `ended_at_s`: when the command ended, in seconds since 1970, None while it runs."""
        told = replace(self.told(name, cut_short_by), wall_s=self._wall_s(begun, ended_at_s))
        counted = [rank.samples for rank in self.ranks if rank.samples.blocks[0].num_steps]
        found = figures(counted, told) if counted else {}
        noted = caveats(counted, told) if counted else []
        reason = None if counted else f"no step counted: {told.num_uncounted} steps ended, all of them warm-up"
        data = {"loader": self.first.loop.loader, "num_workers": self.first.loop.num_workers}
        begun = replace(begun, spec={"workload": told.name, "data": data}, label=told.name)
        record = record_of(begun, None, found, noted, reason, self.first.world_size, told)
        said = lines(counted, told, found) if counted else [f"{told.name} · {reason}"]
        return Answer(found, said, record)


def reports(folder: Path, rank: int | None = None) -> list[RankReport]:
    """The reports that can be read, of one rank or of all; one that is damaged is passed over."""
    found = []
    for path in sorted(folder.glob(f"rank-{'*' if rank is None else rank}-*.json")):
        with suppress(OSError, ValueError):
            found.append(REPORT.validate_json(read_plain(path)))
    return found


def trainings(folder: Path) -> list[TrainingOfRun]:
    """The trainings of a run, the earliest first; of a rank that was started again, its last process."""
    groups: dict[str, dict[int, RankReport]] = {}
    for report in sorted(reports(folder), key=lambda one: one.began_at_s):
        groups.setdefault(report.group, {})[report.rank] = report
    return [TrainingOfRun([ranks[rank] for rank in sorted(ranks)]) for ranks in groups.values()]


def begun(parent: Parent) -> Measuring:
    """A run as it began."""
    measuring = Measuring("trial", {}, "run", parent.session, {}, sweep=SWEEP, question=QUESTION)
    return replace(measuring, started_at=parent.started_at)


_watched = Counter[str]()
"""How often loops of a name were watched in this process."""


def keep_reports(store: ResultsStore, begun: Measuring, instruments: Instruments, loader: Loader) -> Path | None:
    """Let a watched loop keep what it has measured in the store while it trains; where, or None where it cannot."""
    env, name = os.environ, begun.label
    _watched[name] += 1
    ranks = [env[each] for each in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT") if each in env]
    of_all = [name, str(_watched[name]), *ranks] if "RANK" in env else [this_process(), secrets.token_hex(4)]
    folder = store.path.absolute() / RUNS / re.sub(r"[^\w.-]", "_", "-".join([OF_WATCH, *of_all]))
    try:
        own_folders(folder)
        if env.get("RANK", "0") == "0":
            Parent(this_process(), begun.session, name, begun.started_at, LEAST_S).write(folder, OF_WATCH)
    except OSError:
        return None
    loop, reporter = instruments.loop, Reporter(folder, OF_WATCH, name, instruments, loader)
    guard = Guard(f"benchsuite.watch: {name} is no longer measured while it trains")
    loop.note_step = guard(reporter.note_step, default=False)
    loop.looker = Looker(loop.phase, loop.reading, guard(reporter.write), node=NodeLog(loop.device))
    return folder


def take_in(store: ResultsStore) -> None:
    """Make records of runs that were killed, or whose node was lost, from what their ranks have left."""
    for folder in sorted((store.path / RUNS).glob("*")):
        for path in folder.glob("parent-*.json"):
            with suppress(OSError, ValueError):
                parent = PARENT.validate_json(read_plain(path))
                if is_over(parent, path):
                    _conclude_for(parent, path, store)


class GoingOn(NamedTuple):
    """A training under `benchsuite run` or `watch` that has not ended, as its ranks have told it last."""

    name: str
    session: str
    node: str
    """Of rank 0."""
    ranks: int
    steps: int
    samples_per_s: float | None
    input_stall_fraction: float | None
    bottleneck: str | None
    told_at_s: float
    """When a rank has told something last, in seconds since 1970."""


def going_on(store: ResultsStore) -> list[GoingOn]:
    """The trainings that go on, by what their ranks have left in the store."""
    return [_as_it_goes(training, parent) for training, parent in _that_go_on(store)]


def records_so_far(store: ResultsStore) -> list[TrialRecord]:
    """The record that each training that goes on would have if it ended now; of those that have counted steps."""
    answers = [training.answer(begun(parent), parent.name, None) for training, parent in _that_go_on(store)]
    return [answer.record for answer in answers if answer.record.status == "ok"]


def _that_go_on(store: ResultsStore) -> list[tuple[TrainingOfRun, Parent]]:
    found = []
    for path in sorted((store.path / RUNS).glob("*/parent-*.json")):
        with suppress(OSError, ValueError):
            parent = PARENT.validate_json(read_plain(path))
            token = path.stem.removeprefix("parent-")
            mine = [each for each in trainings(path.parent) if each.first.parent == token]
            found += [] if is_over(parent, path) else [(each, parent) for each in mine]
    return found


def _as_it_goes(training: TrainingOfRun, parent: Parent) -> GoingOn:
    told, first = training.told(parent.name), training.first
    counted = [rank.samples for rank in training.ranks if rank.samples.blocks[0].num_steps]
    values = figures(counted, told) if counted else {}
    return GoingOn(
        told.name,
        parent.session,
        first.node,
        first.world_size,
        training.num_steps + told.num_uncounted,
        values.get("samples_per_s"),
        values.get("input_stall_fraction"),
        values.get("bottleneck"),
        max(rank.written_at_s for rank in training.ranks),
    )


def _conclude_for(parent: Parent, path: Path, store: ResultsStore) -> None:
    folder, token = path.parent, path.stem.removeprefix("parent-")
    path.rename(path.with_suffix(".taken"))  # by one alone
    for training in trainings(folder):
        if training.first.parent == token:
            answer = training.answer(begun(parent), parent.name, "the end of the job, which nobody saw")
            store.append(answer.record, training.samples())
    remove_unused(folder)
