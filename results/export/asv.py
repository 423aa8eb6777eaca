"""Sweeps that ran in batch jobs, written into the history of airspeed velocity (asv)."""

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from benchsuite.results.export.asv_points import (
    EXPORTED,
    PARAM_NAMES,
    UNITS,
    VERSION,
    Axes,
    Key,
    Measured,
    axes_of,
    exported_axes,
    measured,
    merged,
)
from benchsuite.results.render.words import counted
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.replacing import write_whole
from benchsuite.results.store.store import ResultsStore, StoreError

try:
    import asv.plugins.git  # noqa: F401 - a kind of repository is known once its module is there
    from asv.benchmarks import Benchmarks
    from asv.config import Config
    from asv.machine import Machine
    from asv.repo import NoSuchNameError, Repo, get_repo
    from asv.results import Results
    from asv.runner import BenchmarkResult
    from asv.util import ProcessError, UserError, load_json, write_json
except ImportError as error:
    raise StoreError(f"export to asv needs asv ({error}): pip install 'benchsuite[asv]'") from None

ENVIRONMENT = "benchsuite"
"""The name of the asv environment of exported results: `asv run` writes to others, and overwrites none of them."""
CHANGED_ENVIRONMENT = "benchsuite-dirty"
"""The environment of trials of a changed work tree: they stand beside the commit's own numbers, never for them."""
CHANGED = "-dirty"
"""How a commit with changes in the work tree ends, as git describes it."""
NOT_ITS_OWN = "a changed work tree, so not the commit's own numbers; --commit names one that they stand beside"
ARCHITECTURE = re.compile(r"x86_64|aarch64|ppc64le|arm64|riscv64")


@dataclass(frozen=True)
class Session:
    """The trials of one sweep in one session, at one commit and on one machine."""

    machine: str
    commit: str
    sweep: str
    environment: str
    trials: list[TrialRecord]
    path: Path = Path()
    """Where it stands in asv's history, once it was written."""

    @cached_property
    def points(self) -> dict[Key, Measured]:
        """What they gave."""
        return measured(self.trials)

    @property
    def begun(self) -> datetime:
        """When the first of them began."""
        return min(datetime.fromisoformat(trial.started_at) for trial in self.trials)

    @property
    def is_changed(self) -> bool:
        """Whether they ran in a changed work tree."""
        return self.environment == CHANGED_ENVIRONMENT


@dataclass(frozen=True)
class Exported:
    """What an export wrote, and what it left out and why."""

    written: list[Session]
    left_out: list[str]


@dataclass(frozen=True)
class _History:
    """Where asv keeps results, and its repository."""

    results_dir: Path
    repo: Repo

    def commit(self, name: str) -> str | None:
        """The whole hash of a commit; None where the repository does not have it."""
        try:
            return str(self.repo.get_hash_from_name(name))
        except (NoSuchNameError, ProcessError):
            return None


@contextmanager
def _no_traceback() -> Iterator[None]:
    """What asv calls its user's mistake is a mistake of ours; so is a history that cannot be written."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"asv's history: {error.filename}: {error.strerror or error}") from error
    except (UserError, ProcessError) as error:
        raise StoreError(f"asv: {' '.join(str(error).split())}") from None


def _opened(config: Path) -> _History:
    if not config.is_file():
        raise StoreError(f"{config}: no such file; name asv's configuration with --config")
    try:
        conf = Config.load(str(config))
    except ValueError as error:
        raise StoreError(f"{config}: not asv's configuration: {error}") from None
    folder = config.absolute().parent
    if (folder / conf.repo).exists():
        conf.repo = str(folder / conf.repo)
    return _History(folder / conf.results_dir, get_repo(conf))


def export(
    store: ResultsStore,
    config: Path,
    machine: str | None = None,
    commit: str | None = None,
    session: str | None = None,
) -> Exported:
    """Write a store's sweeps into asv's history for their commit, machine and date; again is no harm.

    asv keeps one result for each commit and machine: of several sessions the newest one counts. Trials of a changed
    work tree are left out, or stand in an asv environment of their own, and with the parameter `work_tree`.

    Args:
        config: asv.conf.json; its repository must have the commits.
        machine: whose name the results get; default: the host that each trial ran on.
        commit: of trials that name none, and of those in a changed work tree.
        session: whose trials alone are exported, all at `commit`: a night, in a repository of nights.

    Raises:
        StoreError: asv is missing, nothing can be exported, or what is given is not right.
    """
    with _no_traceback():
        history = _opened(config)
        trials = _chosen(store, session)
        if machine is not None and not re.fullmatch(r"[A-Za-z0-9][\w.-]*", machine):
            raise StoreError(f"--asv-machine {machine!r}: allowed: letters, digits and _ . -")
        if commit is not None and history.commit(commit) is None:
            raise StoreError(f"--commit {commit!r}: the repository of {config} has no such commit")
        if session is not None and commit is None:
            raise StoreError("--session: which night is it? --commit names its commit")
        sessions, left_out = _sessions(history, trials, machine, commit, session is not None)
        if not sessions:
            raise StoreError(f"store {store.path}: nothing to export; {'; '.join(left_out)}")
        axes = _recorded(history, sessions)
        benchmarks = _listed(history, axes)
        _pad(history, benchmarks)
        return Exported([_write(history, session, benchmarks) for session in sessions], left_out)


def _chosen(store: ResultsStore, session: str | None) -> list[TrialRecord]:
    """The trials of sweeps, or of those in a session, without those that were traced."""
    found = [trial for trial in store.trials() if trial.sweep != "watch" and session in (None, trial.session)]
    found = [trial for trial in found if "workload" in trial.spec and "traced" not in trial.caveats]
    if not found:
        raise StoreError(f"store {store.path}: no trials of sweeps")
    return found


def _sessions(
    history: _History,
    trials: Sequence[TrialRecord],
    machine: str | None,
    commit: str | None,
    is_night: bool,
) -> tuple[list[Session], list[str]]:
    """The newest session of each sweep by machine and commit, and what has to be left out."""
    groups: dict[tuple[str, str, str, str], dict[str, list[TrialRecord]]] = {}
    left = Counter[str]()
    commit_named = cache(history.commit)
    for trial in trials:
        told = "" if is_night else str(trial.env.get("commit") or "")
        name = _commit_of(told, commit)
        if name is None:
            left[f"commit {told}: {NOT_ITS_OWN}" if told else "no commit is known; --commit names one"] += 1
            continue
        whole = commit_named(name)
        if whole is None:
            left[f"commit {name} is not in the repository"] += 1
            continue
        environment = CHANGED_ENVIRONMENT if told.endswith(CHANGED) else ENVIRONMENT
        key = (machine or str(trial.env.get("host") or "unknown"), whole, trial.sweep, environment)
        groups.setdefault(key, {}).setdefault(trial.session, []).append(trial)
    found = [Session(*key, _newest(sessions, key[2], left)) for key, sessions in groups.items()]
    return found, [f"left out {counted(count, 'trial')}: {why}" for why, count in left.items()]


def _commit_of(told: str, commit: str | None) -> str | None:
    """Which commit a trial's numbers stand at: its own, else the one that was named; None: they are left out."""
    return told if told and not told.endswith(CHANGED) else commit


def _newest(sessions: Mapping[str, list[TrialRecord]], sweep: str, left: Counter[str]) -> list[TrialRecord]:
    newest = max(sessions, key=lambda name: max(trial.started_at for trial in sessions[name]))
    for name, trials in sessions.items():
        if name != newest:
            left[f"session {name} of {sweep}: {newest} of the same commit and machine is newer"] = len(trials)
    return sessions[newest]


def _recorded(history: _History, sessions: Sequence[Session]) -> dict[str, Axes]:
    """Add the sweeps' parameters to those that were exported before; all of them."""
    before = exported_axes(history.results_dir)
    fresh = axes_of(key for session in sessions for key in session.points)
    found = before | {suite: merged(before.get(suite), axes) for suite, axes in fresh.items()}
    lines = [json.dumps({"suite": n, **dict(zip(PARAM_NAMES, axes, strict=True))}) for n, axes in found.items()]
    history.results_dir.mkdir(parents=True, exist_ok=True)
    write_whole(history.results_dir / EXPORTED, "\n".join(lines) + "\n")
    return found


def _listed(history: _History, axes: Mapping[str, Axes]) -> dict[str, Any]:
    """asv's list of benchmarks with those of the exported sweeps, written as the next `asv run` would."""
    path = Path(Benchmarks.get_benchmark_file_path(str(history.results_dir)))
    version = Benchmarks.api_version
    known: dict[str, Any] = load_json(str(path), version) if path.is_file() else {}
    ours: dict[str, Any] = {}
    for name, values in axes.items():
        for metric in UNITS:
            benchmark = f"sweeps.{name}.{metric}"
            wanted = [[repr(value) for value in some] for some in values]
            before = known.get(benchmark) or {}
            both = zip(before.get("params") or [[] for _ in wanted], wanted, strict=True)
            params = [list(dict.fromkeys([*a, *b])) for a, b in both]
            ours[benchmark] = before | _described(benchmark, metric, params)
    write_json(str(path), known | ours, version)
    return ours


def _described(name: str, metric: str, params: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Describe a benchmark as asv lists it, with the unit that its metric has today."""
    return {
        "code": f"{metric}: measured by benchsuite in batch jobs, written by `benchsuite results export asv`",
        "name": name,
        "param_names": list(PARAM_NAMES),
        "params": params,
        "type": "track",
        "unit": UNITS[metric],
        "version": VERSION,
    }


def _pad(history: _History, benchmarks: Mapping[str, Any]) -> None:
    """Give results of other commits the parameters that are new: not measured there, which asv would call failed."""
    for path in sorted(history.results_dir.glob("*/*.json")):
        if path.name == "machine.json":
            continue
        result = Results.load(str(path))
        lacking = [
            name
            for name in result.get_result_keys(benchmarks)
            if {*_tuples(benchmarks[name]["params"])} - {*_tuples(result.get_result_params(name))}
        ]
        for name in lacking:
            _add(history, result, benchmarks[name], {}, None)
        if lacking:
            result.save(str(history.results_dir))


def _tuples(params: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    return list(itertools.product(*params))


def _add(
    history: _History,
    result: Any,
    benchmark: Mapping[str, Any],
    fresh: Mapping[tuple[str, ...], float | None],
    begun: datetime | None,
) -> None:
    """Set a benchmark's values: fresh ones, else those it has, else NaN, which is not measured. None is failed."""
    name = benchmark["name"]
    before: dict[tuple[str, ...], float | None] = {}
    if name in result.get_result_keys({name: benchmark}):
        params = result.get_result_params(name)
        before = dict(zip(_tuples(params), result.get_result_value(name, params), strict=True))
        begun = begun or datetime.fromtimestamp(result.started_at[name] / 1000, UTC)
    values = [fresh.get(key, before.get(key, math.nan)) for key in _tuples(benchmark["params"])]
    none = [None] * len(values)
    made = BenchmarkResult(values, none, list(none), 0, "", None)
    result.add_result(benchmark, made, started_at=begun)


def _write(history: _History, session: Session, benchmarks: Mapping[str, Any]) -> Session:
    machine = _machine(history, session)
    python = ".".join(str(session.trials[0].env.get("python") or "").split(".")[:2])
    date = history.repo.get_date(session.commit)
    params = machine | {"python": python} | ({"work_tree": "changed"} if session.is_changed else {})
    result = Results(params, {}, session.commit, date, python, session.environment, {})
    result.load_data(str(history.results_dir))
    suites: dict[str, dict[Key, Measured]] = {}
    for key, point in session.points.items():
        suites.setdefault(key.suite, {})[key] = point
    for suite, points in suites.items():
        for metric in UNITS:
            fresh = {tuple(map(repr, k.params)): None if p.failure else p.values[metric] for k, p in points.items()}
            _add(history, result, benchmarks[f"sweeps.{suite}.{metric}"], fresh, session.begun)
    result.save(str(history.results_dir))
    return replace(session, path=history.results_dir / result._filename)


def _machine(history: _History, session: Session) -> dict[str, Any]:
    """What asv knows of the machine; where it knows nothing, the facts of the trials are written for it."""
    path = history.results_dir / session.machine / "machine.json"
    if path.is_file():
        known: dict[str, Any] = load_json(str(path), Machine.api_version)
        return {name: value for name, value in known.items() if name != "version"}
    env = session.trials[-1].env
    architecture = ARCHITECTURE.search(str(env.get("os") or ""))
    facts = {
        "arch": architecture.group() if architecture else "",
        "cpu": str(env.get("cpu") or ""),
        "machine": session.machine,
        "num_cpu": str(env.get("cores") or ""),
        "os": str(env.get("os") or ""),
        "ram": str(env.get("memory_bytes") or ""),
    }
    write_json(str(path), facts, Machine.api_version)
    return facts
