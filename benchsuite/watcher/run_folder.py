"""What the processes of one `benchsuite run` leave in its folder, read while they train and when they have ended."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from benchsuite.analysis.record_builder import Measuring
from benchsuite.inside.files import read_plain
from benchsuite.inside.rank_file import RankReport
from benchsuite.results.store.record import TrialRecord
from benchsuite.watcher.answer import QUESTION, SWEEP, Told, caveats, figures, lines, record_of

REPORT = TypeAdapter(RankReport)


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
        )

    def answer(self, begun: Measuring, name: str | None, cut_short_by: str | None) -> Answer:
        """Judge what is there."""
        told = self.told(name, cut_short_by)
        counted = [rank.samples for rank in self.ranks if rank.samples.blocks[0].num_steps]
        found = figures(counted, told) if counted else {}
        noted = caveats(counted, told) if counted else []
        reason = None if counted else f"no step counted: {told.num_uncounted} steps ended, all of them warm-up"
        data = {"loader": self.first.loop.loader, "num_workers": self.first.loop.num_workers}
        begun = replace(begun, spec={"workload": told.name, "data": data}, label=told.name)
        record = record_of(begun, None, found, noted, reason, self.first.world_size, told.device)
        said = lines(counted, told, found) if counted else [f"{told.name} · {reason}"]
        return Answer(found, said, record)


def reports(folder: Path) -> list[RankReport]:
    """The reports that can be read; one that is damaged is passed over."""
    found = []
    for path in sorted(folder.glob("rank-*.json")):
        with suppress(OSError, ValueError):
            found.append(REPORT.validate_json(read_plain(path)))
    return found


def trainings(folder: Path) -> list[TrainingOfRun]:
    """The trainings of a run, the earliest first; of a rank that was started again, its last process."""
    groups: dict[str, dict[int, RankReport]] = {}
    for report in sorted(reports(folder), key=lambda one: one.began_at_s):
        groups.setdefault(report.group, {})[report.rank] = report
    return [TrainingOfRun([ranks[rank] for rank in sorted(ranks)]) for ranks in groups.values()]


def begun(session: str) -> Measuring:
    """A run that begins now."""
    return Measuring("trial", {}, "run", session, {}, sweep=SWEEP, question=QUESTION)
