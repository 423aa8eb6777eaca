"""Records of trials, watched loops and probes; and how one comes of what the ranks of a trial left behind."""

import shutil
import sys
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from benchsuite import storage
from benchsuite.analysis.byte_reconciliation import counter_caveats, mount_caveats, reads_figures
from benchsuite.analysis.caveats import caveats, uncounted_caveats, utilization_caveats
from benchsuite.analysis.epoch import cold_window, epoch_caveats, epoch_figures
from benchsuite.analysis.failure import failure
from benchsuite.analysis.flops import flops_of
from benchsuite.analysis.judging.setting import Setting
from benchsuite.analysis.judging.verdict import verdict
from benchsuite.analysis.metrics import figures, foreign_cores, whole_epoch_utilization
from benchsuite.analysis.operator_figures import operator_figures
from benchsuite.contract.outcome import Outcome
from benchsuite.contract.rank_samples import TORCH_TRACE, read_progress, read_result
from benchsuite.contract.trial_spec import READERS, digest, match_id, revision_fields, trial_id
from benchsuite.grid.point import Point
from benchsuite.host.environment import environment, file_system
from benchsuite.host.interference import Finding
from benchsuite.host.staged_copies import copies_folder
from benchsuite.inside.samples import RankSamples, on_one_clock
from benchsuite.results.store.place import folder_in, share
from benchsuite.results.store.record import RECORDS, Kind, Record, Status, TrialRecord
from benchsuite.results.store.verdicts import VERDICT
from benchsuite.storage.observe.file_systems import file_system_of
from benchsuite.storage.observe.io_profile import profile_of

RANKS = TypeAdapter(list[RankSamples])
BESIDE_VERDICT = ("evidence", "alternatives", "remedies", "gains")
"""Fields of a record that say more of its verdict."""
CLOCK_SET_S = 10.0
"""How far the clock of the day may fall behind the monotonic one: gathering facts comes before it is first read."""


@dataclass(frozen=True)
class Measuring:
    """One measurement of any kind: what, where and since when. Every record is made by one."""

    kind: Kind
    spec: Mapping[str, Any]
    label: str
    session: str
    env: dict[str, Any]
    started_s: float = field(default_factory=time.perf_counter)
    started_at: str = field(default_factory=lambda: now())
    sweep: str | None = None
    """None: the one of probes of this kind."""
    question: str | None = None
    point_id: str | None = None
    """None: of the kind and the spec."""
    after: str = ""
    """When the record that this one replaces was finished: clocks of nodes differ, and the last record counts."""
    repeat: int = 0

    def record(self, status: Status, details: Sequence[str] = (), **fields: Any) -> Record:
        """Return a record of it; `details` are its caveats: a name, a colon, the arithmetic."""
        point = self.point_id or digest({"kind": self.kind, "spec": self.spec})
        finished_at, wall_s = now(), time.perf_counter() - self.started_s
        details = [*details, *details_of(_clock_caveats(self.started_at, finished_at, wall_s))]
        return RECORDS[self.kind](
            kind=self.kind,
            record_id=uuid.uuid4().hex,
            trial_id=trial_id(point, self.session, self.repeat),
            point_id=point,
            session=self.session,
            repeat=self.repeat,
            sweep=self.sweep or f"probe-{self.kind}",
            question=self.question,
            status=status,
            caveats=list(dict.fromkeys(detail.partition(":")[0] for detail in details)),
            caveat_details=list(details),
            label=self.label,
            started_at=self.started_at,
            finished_at=max(finished_at, _just_after(self.after)),
            wall_s=wall_s,
            spec=dict(self.spec),
            env=self.env,
            **fields,
        )


def _clock_caveats(started_at: str, finished_at: str, wall_s: float) -> list[Finding]:
    """Say where this host's clock of the day fell behind its monotonic one: what is told in order of time is not."""
    passed_s = (datetime.fromisoformat(finished_at) - datetime.fromisoformat(started_at)).total_seconds()
    back_s = wall_s - passed_s
    if passed_s >= 0 and back_s < CLOCK_SET_S:
        return []
    said = f"the clock went back by about {back_s:.0f} s in {wall_s:.0f} s"
    return [("clock_set_back", f"{said}: the times of this record, and its order among others, may be wrong")]


def details_of(found: Iterable[Finding]) -> list[str]:
    """Caveats as records have them in full."""
    return [f"{name}: {why}" for name, why in found]


@dataclass(frozen=True)
class Attempt(Measuring):
    """One attempt at a trial."""

    point: Point = field(kw_only=True)
    rank_by: str | None = field(default=None, kw_only=True)

    def of(self, point: Point) -> "Attempt":
        """The attempt at another point, such as the same with a batch that fits."""
        return replace(self, point=point, spec=point.spec.model_dump(), label=point.label, point_id=point.point_id)

    def record(self, status: Status, details: Sequence[str] = (), **fields: Any) -> TrialRecord:
        """A record of this attempt."""
        point, manifest = self.point, self.point.manifest
        dataset = None
        if manifest is not None:
            dataset = manifest.model_dump(
                include={"dataset_id", "format", "kind", "num_samples", "stored_bytes", "variant"}
            )
            shards = sum(info.num_samples is not None for info in manifest.files)
            dataset["num_files"] = shards or manifest.num_samples  # without shards a sample is a file, or a pair
        dataset_id = manifest.dataset_id if manifest is not None else None
        found = super().record(
            status,
            details,
            rank_by=self.rank_by,
            match_id=match_id(point.spec, dataset_id),
            **revision_fields(point.spec, dataset_id),
            order=point.order,
            command=[Path(sys.argv[0]).name, *sys.argv[1:]],
            dataset=dataset,
            **fields,
        )
        assert isinstance(found, TrialRecord)
        return found

    def with_moment(self, facts: Mapping[str, Any]) -> "Attempt":
        """The attempt with further facts of the moment in its environment."""
        return replace(self, env=self.env | {"moment": self.env.get("moment", {}) | facts})


def new_attempt(point: Point, session: str, repeat: int, sweep: str | None, question: str | None) -> Attempt:
    """An attempt that begins now, with the facts of this machine at this moment."""
    started_s = time.perf_counter()
    env = environment()
    if point.dataset is not None:
        env["data"] = file_system(point.dataset)
    if point.spec.data.staging != "none":
        env["staging"] = file_system(copies_folder(point.spec))
    new = Attempt("trial", {}, "", session, env, started_s, sweep=sweep, question=question, repeat=repeat, point=point)
    return new.of(point)


def now() -> str:
    """UTC, to the microsecond, so that records sort by it."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _just_after(moment: str) -> str:
    """A microsecond later."""
    if not moment:
        return ""
    with suppress(OverflowError):  # there is none after the last of the year 9999
        return (datetime.fromisoformat(moment) + timedelta(microseconds=1)).isoformat(timespec="microseconds")
    return moment


def conclude(attempt: Attempt, outcome: Outcome, folder: Path) -> tuple[TrialRecord, dict[str, Any] | None]:
    """The record of an attempt whose processes have ended, and its raw samples."""
    ranks = attempt.point.spec.ranks
    results = [read_result(folder / f"rank-{rank}.json") for rank in range(ranks)]
    attempt = replace(attempt, env=attempt.env | outcome.env)
    done = [on_one_clock(result) for result in results if result is not None and result.status == "ok"]
    kept = any(result.not_counted for result in done) and not outcome.interrupted and outcome.launcher_error is None
    if len(done) == ranks and (outcome.is_clean(ranks) or kept):  # steps were done: how counting ended is a caveat
        try:
            record, samples = measured(attempt, done, outcome.foreign_cores)
            return record, samples | _of_devices(outcome)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            reason = f"the samples give no figures: {type(error).__name__}: {error}"
            return attempt.record("failed", reason=reason, phase="done"), _samples(done) | _of_devices(outcome)
    status, reason = failure(outcome, results, folder)
    progress = read_progress(folder, 0)
    record = attempt.record(status, reason=reason, phase=progress.phase if progress else "start")
    return record, None


def measured(
    attempt: Attempt, results: list[RankSamples], others_cores: float | None
) -> tuple[TrialRecord, dict[str, Any]]:
    """The record of an attempt whose ranks all finished."""
    spec = attempt.point.spec
    attempt = replace(attempt, env=attempt.env | _told_by(results, attempt.env))
    read_from = "staging" if spec.data.staging == "copy" else "data"
    stored_on = file_system_of(attempt.env.get(read_from, {}).get("file_system"))
    values = figures(spec, results, flops_of(spec, results))
    values |= reads_figures(results, stored_on.reads_counted) | operator_figures(values, results)
    if others_cores is None and (others := foreign_cores(results)) is not None:
        others_cores = others[0]
    values["foreign_cpu_cores"] = others_cores
    ahead_kb = attempt.env.get(read_from, {}).get("read_ahead_kb")
    window = None
    if (manifest := attempt.point.manifest) is not None:
        window = cold_window(spec, values, manifest, attempt.env, ahead_kb)
        taken = whole_epoch_utilization(results, spec.emulated_step_s)
        values |= epoch_figures(spec, values, manifest, window, taken)
    profile = profile_of([result.io_profile for result in results if result.io_profile])
    ranks, cores = _crowded(attempt)
    ranges = [("traced", "steps were marked for Nsight Systems, which takes a part of their time")]
    found = ranges if spec.measure.profile == "nvtx" else []
    found += traced(values, profile) + caveats(spec, results, cores, stored_on.client_visible, others_cores, ranks)
    found += counter_caveats(spec, values, ahead_kb) + mount_caveats(results, stored_on.reads_counted)
    found += uncounted_caveats(results)
    found += epoch_caveats(spec, values, ahead_kb, window)
    found += utilization_caveats(spec, values.get("au"), values.get("ceiling_step_s"))
    record = attempt.record("ok", details_of(found), phase="done", figures=values, io_profile=profile)
    return _judged(record, attempt, results), _samples(results)


def _told_by(ranks: Sequence[RankSamples], env: Mapping[str, Any]) -> dict[str, Any]:
    """Facts that only ranks know: which library read, what torch has loaded for the device, the cores they kept to."""
    first = ranks[0]
    told = {
        "reader": first.reader,
        "libraries": first.libraries and env["libraries"] | first.libraries,
        "rank_cpus": [rank.cpus for rank in ranks] if first.cpus else None,
    }
    return {name: fact for name, fact in told.items() if fact is not None}


def _crowded(attempt: Attempt) -> tuple[int, int]:
    """Ranks and cores of the node that has most ranks for its cores; all here where the launcher does not tell."""
    nodes = [(node["ranks"][1] - node["ranks"][0] + 1, node["cores"]) for node in attempt.env.get("nodes", [])]
    return max(nodes, key=lambda node: node[0] / node[1], default=(attempt.point.spec.ranks, attempt.env["cores"]))


def _judged(record: TrialRecord, attempt: Attempt, results: Sequence[RankSamples]) -> TrialRecord:
    """The record with the verdict that follows from its figures; of a trial that was traced with none."""
    if record.io_profile is not None and record.io_profile["by"] == "strace":
        return record
    values = record.figures.model_dump()
    found = verdict(values, _setting(attempt), results)
    said = {} if found is None else found.figures()
    beside = {name: said.pop(name, None) or None for name in BESIDE_VERDICT}
    figures_ = type(record.figures).model_validate(values | said)
    return record.model_copy(update={"figures": figures_, **beside})


def with_ceilings(
    attempt: Attempt, record: TrialRecord, ceilings: Mapping[str, Any], samples: Mapping[str, Any] | None
) -> TrialRecord:
    """The record with what its input could give at best, and the verdict that follows from it."""
    if not ceilings:
        return record
    figures_ = type(record.figures).model_validate(record.figures.model_dump() | dict(ceilings))
    record = record.model_copy(update={"figures": figures_})
    return record if samples is None else _judged(record, attempt, RANKS.validate_python(samples["ranks"]))


def traced(values: dict[str, Any], profile: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """The caveat of a trial under strace, whose AU is taken out of its figures."""
    if profile is None or profile["by"] != "strace":
        return []
    values |= dict.fromkeys(("au", "au_error", "au_mlperf", *VERDICT))
    calls = sum(operation["count"] for operation in profile["operations"].values())
    cost = profile["cost_s_per_call"] * 1e6
    return [
        ("traced", f"strace cost {cost:.0f} us for each of {calls:,} calls: no AU, and no figure is the trial's own")
    ]


def _setting(attempt: Attempt) -> Setting:
    """What the verdict depends on; ranks and cores are of the node that has fewest cores a rank."""
    spec = attempt.point.spec
    ranks, cores = _crowded(attempt)
    return Setting(
        spec.data.num_workers if spec.data.source == "storage" else 0,
        ranks,
        cores,
        None if spec.device == "cuda" or spec.emulated else spec.threads_per_rank,
        file_per_sample=storage.format_of(spec.data.format).file_per_sample,
        emulated=spec.emulated,
        cache=spec.data.cache,
        staged=spec.data.staging != "none",
        readers_of_a_sample=1 if spec.data.cache == "direct" else spec.ranks // spec.data_ranks,
        hides_communication=spec.hides_communication,
        reads_told=spec.data.reader == "tuned",
        samples_known=spec.data.reader in READERS,
        maps_files=storage.format_of(spec.data.format).reads == "mapped",
    )


def _samples(results: list[RankSamples]) -> dict[str, Any]:
    return {"ranks": [asdict(result) for result in results]}


def _of_devices(outcome: Outcome) -> dict[str, Any]:
    """What devices did from launch to end, for the raw samples; empty where nobody read it."""
    return {"devices": outcome.devices} if outcome.devices else {}


def keep_traces(record: TrialRecord, folder: Path, target: Path, root: Path | None = None) -> TrialRecord:
    """Move the traces that ranks left in a work folder to `target`; the record with where they are, below `root`.

    `root` is the store that `target` is in; None where it is in none.
    """
    found = sorted(folder.glob(f"{TORCH_TRACE}-*"))
    if found and root is not None:
        folder_in(root, *target.relative_to(root).parts)
        for path in found:
            share(path, root)
    elif found:
        target.mkdir(parents=True, exist_ok=True)
    kept = [Path(shutil.move(path, target / path.name)) for path in found]
    return record.model_copy(update={"traces": [str(path.relative_to(root) if root else path) for path in kept]})


def with_caveats(record: TrialRecord, caveats: Sequence[Finding]) -> TrialRecord:
    """Return the record with more caveats; a name that it has already is not repeated."""
    names = [*record.caveats, *(name for name, _ in caveats)]
    details = [*record.caveat_details, *details_of(caveats)]
    return record.model_copy(update={"caveats": list(dict.fromkeys(names)), "caveat_details": details})
