"""Search for the largest number of emulated accelerators that keeps an AU: run the trials that a count needs."""

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
from benchsuite.runner.sweep import Display, run, shared_status

DEFAULT_MOST = 64
"""The largest number of accelerators that is tried where neither the file nor the command line names one."""


def with_every_count(sweep: SweepSpec, most: int | None) -> SweepSpec:
    """Return the sweep with every world_size from its smallest to `most`; None: to its largest.

    Raises:
        UserError: another axis varies, or `most` is below the smallest world_size.
    """
    varied = {*sweep.grid, *sweep.zip, *(key for entry in sweep.include for key in entry)} - {"world_size"}
    if varied:
        raise UserError(f"search: {sweep.name} varies {min(varied)}; only world_size may vary: -o {min(varied)}=...")
    world_sizes = sweep.grid.get("world_size", [])
    least, most = min(world_sizes, default=1), most or max(world_sizes, default=DEFAULT_MOST)
    if least > most:
        raise UserError(f"--most {most}: {sweep.name} begins with world_size {least}")
    counts = {"grid": {"world_size": [*range(least, most + 1)]}, "zip": {}, "include": []}
    return sweep.model_copy(update=counts)


@dataclass(frozen=True)
class Search:
    """A search for the largest count of accelerators that keeps an AU."""

    plan: Plan
    """A plan with a point for every count."""
    store: ResultsStore
    launcher: Launcher
    session: str
    display: Display
    au: float | None
    """The AU to keep; None: the one published for the workload."""
    max_repeats: int

    def __post_init__(self) -> None:
        if not self._first_point.spec.emulated:
            device = self._first_point.spec.device
            raise UserError(
                f"search counts accelerators that are not here; device is {device}: -o device=emulated:h100"
            )

    @property
    def _points(self) -> dict[int, Point]:
        return {point.spec.ranks: point for point in self.plan.points}

    @property
    def _first_point(self) -> Point:
        """Any point of the sweep; points differ only in their count."""
        return next(iter([*self.plan.points, *(skipped.point for skipped in self.plan.skipped)]))

    @property
    def counts(self) -> tuple[int, int]:
        """The smallest and the largest count that may be tried."""
        counts: list[int] = self.plan.sweep.grid["world_size"]
        return counts[0], counts[-1]

    @property
    def threshold(self) -> float:
        """The AU to keep: the given one, or the published one of the workload."""
        spec = self._first_point.spec
        return self.au if self.au is not None else published(spec.device, spec.workload)["min_au"] or DEFAULT_AU

    def heading(self) -> str:
        """Return a line with what is sought, and the samples that MLPerf Storage asks for."""
        point, (least, most) = self._first_point, self.counts
        spec, manifest = point.spec, point.manifest
        goal = f"{self.plan.sweep.name} · {spec.workload} on {least} to {most} {spec.device} · AU {self.threshold:.2f}"
        if manifest is None:
            return goal
        sample_bytes = manifest.stored_bytes / manifest.num_samples
        num_nodes = self.plan.machine.nodes if self.plan.machine else 1
        sizing = Sizing(most, spec.rank_batch, sample_bytes, memory_bytes()[1], num_nodes)
        return f"{goal} · dataset: {manifest.num_samples} samples; MLPerf Storage asks {most} accelerators for {sizing}"

    def try_counts(self) -> list[au_search.Tried]:
        """Run trials until the largest count is found; return what came of every count that was tried."""
        repeats = range(min(self._first_point.spec.measure.repeats, self.max_repeats), self.max_repeats + 1)

        def decide(count: int) -> au_search.Tried:
            tried = au_search.decide(count, self.threshold, repeats, self._measure_au)
            self.display.say(f"{count}: {tried.verdict} {tried.reason}".rstrip())
            return tried

        return [*au_search.search(*self.counts, decide)]

    def _measure_au(self, count: int, repeats: int) -> list[float]:
        """Return the AU of so many repeats of a count; those that the session lacks are run.

        Raises:
            CannotRun: the count is skipped, a trial has no AU, or another sweep has its trials.
        """
        if count not in self._points:
            reasons = [skipped.reason for skipped in self.plan.skipped if skipped.point.spec.ranks == count]
            raise au_search.CannotRun(reasons[0])
        point = self._points[count]
        measure = point.spec.measure.model_copy(update={"repeats": repeats})
        repeated = replace(point, spec=point.spec.model_copy(update={"measure": measure}))
        plan = replace(self.plan, points=[repeated], skipped=[])
        claims = Claims.of(self.store.path, self.session)
        state = shared_status(plan, self.store, self.session, frozenset(), claims)
        if state.todo:
            run(plan, state.todo, self.store, self.launcher, self.session, self.display, claims)
        ids = {trial_id(point.point_id, self.session, repeat) for repeat in range(repeats)}
        records = [
            record for record in self.store.latest() if isinstance(record, TrialRecord) and record.trial_id in ids
        ]
        for record in records:
            if record.status != "ok" or record.figures.au is None:
                raise au_search.CannotRun(f"{record.status}: {record.reason}")
        if len(records) < repeats:
            raise au_search.CannotRun("another sweep has its trials")
        return [record.figures.au for record in records if record.figures.au is not None]
