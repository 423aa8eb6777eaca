"""Search of the most emulated accelerators that keep an AU: which trials a count takes, and what came of them."""

from dataclasses import dataclass, replace

from benchsuite.analysis import au_search
from benchsuite.analysis.dataset_sizing import Sizing
from benchsuite.contract.emulated_devices import DEFAULT_AU, published
from benchsuite.contract.errors import UserError
from benchsuite.contract.trial_spec import SweepSpec, trial_id
from benchsuite.grid.point import Plan, Point
from benchsuite.host.load import memory_bytes
from benchsuite.launch.launcher import Launcher
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore
from benchsuite.runner.claims import Claims
from benchsuite.runner.sweep import Watcher, run, unclaimed

MOST_SEARCHED = 64
"""Accelerators that are tried at most where neither the file nor the command line says."""


def of_counts(sweep: SweepSpec, most: int | None) -> SweepSpec:
    """The sweep with every world_size from its smallest to `most`, or to its largest.

    Raises:
        UserError: something else varies.
    """
    varied = {*sweep.grid, *sweep.zip, *(key for entry in sweep.include for key in entry)} - {"world_size"}
    if varied:
        raise UserError(f"search: {sweep.name} varies {min(varied)}; only world_size may vary: -o {min(varied)}=...")
    given = sweep.grid.get("world_size", [])
    least, most = min(given, default=1), most or max(given, default=MOST_SEARCHED)
    if least > most:
        raise UserError(f"--most {most}: {sweep.name} begins with world_size {least}")
    counts = {"grid": {"world_size": [*range(least, most + 1)]}, "zip": {}, "include": []}
    return sweep.model_copy(update=counts)


@dataclass(frozen=True)
class Search:
    """What the trials of a search share."""

    plan: Plan
    """A point for every count."""
    store: ResultsStore
    launcher: Launcher
    session: str
    watcher: Watcher
    au: float | None
    max_repeats: int

    def __post_init__(self) -> None:
        if not self._any.spec.emulated:
            device = self._any.spec.device
            raise UserError(
                f"search counts accelerators that are not here; device is {device}: -o device=emulated:h100"
            )

    @property
    def _points(self) -> dict[int, Point]:
        return {point.spec.ranks: point for point in self.plan.points}

    @property
    def _any(self) -> Point:
        return next(iter([*self.plan.points, *(skipped.point for skipped in self.plan.skipped)]))

    @property
    def counts(self) -> tuple[int, int]:
        """The least and the most that are tried."""
        counts: list[int] = self.plan.sweep.grid["world_size"]
        return counts[0], counts[-1]

    @property
    def threshold(self) -> float:
        """The AU to keep."""
        spec = self._any.spec
        return self.au if self.au is not None else published(spec.device, spec.workload)["min_au"] or DEFAULT_AU

    def heading(self) -> str:
        """What is sought, and the samples that it takes."""
        point, (least, most) = self._any, self.counts
        spec, manifest = point.spec, point.manifest
        said = f"{self.plan.sweep.name} · {spec.workload} on {least} to {most} {spec.device} · AU {self.threshold:.2f}"
        if manifest is None:
            return said
        sample_bytes = manifest.stored_bytes / manifest.num_samples
        sizing = Sizing(
            most, spec.rank_batch, sample_bytes, memory_bytes()[1], self.plan.machine.nodes if self.plan.machine else 1
        )
        return f"{said} · dataset: {manifest.num_samples} samples; MLPerf Storage asks {most} accelerators for {sizing}"

    def tried(self) -> list[au_search.Tried]:
        """Every count that was tried."""
        repeats = range(min(self._any.spec.measure.repeats, self.max_repeats), self.max_repeats + 1)

        def decided(count: int) -> au_search.Tried:
            found = au_search.decide(count, self.threshold, repeats, self._au)
            self.watcher.say(f"{count}: {found.verdict} {found.reason}".rstrip())
            return found

        return [*au_search.search(*self.counts, decided)]

    def _au(self, count: int, repeats: int) -> list[float]:
        """The AU of so many repeats of a count; those that the session lacks are run."""
        if count not in self._points:
            raise au_search.CannotRun(next(one.reason for one in self.plan.skipped if one.point.spec.ranks == count))
        point = self._points[count]
        measured = point.spec.measure.model_copy(update={"repeats": repeats})
        wanted = replace(point, spec=point.spec.model_copy(update={"measure": measured}))
        plan = replace(self.plan, points=[wanted], skipped=[])
        claims = Claims.of(self.store.path, self.session)
        state = unclaimed(plan, self.store, self.session, frozenset(), claims)
        if state.todo:
            run(plan, state.todo, self.store, self.launcher, self.session, self.watcher, claims)
        ids = {trial_id(point.point_id, self.session, repeat) for repeat in range(repeats)}
        records = [one for one in self.store.latest() if isinstance(one, TrialRecord) and one.trial_id in ids]
        bad = next((one for one in records if one.status != "ok" or one.figures.au is None), None)
        if bad is not None or len(records) < repeats:
            raise au_search.CannotRun(f"{bad.status}: {bad.reason}" if bad else "another sweep has its trials")
        return [one.figures.au for one in records if one.figures.au is not None]
