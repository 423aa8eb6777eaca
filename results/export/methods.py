"""A methods paragraph for papers, from the records: what was measured, where, how, and what must be said against it."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from benchsuite.results.render.naming import parallelism_of
from benchsuite.results.render.tables import Row, is_missing, whole
from benchsuite.results.render.words import and_, counted, plain, size
from benchsuite.results.report.provenance import devices_in_words
from benchsuite.results.report.summary import CERTIFIED, DISAGREEING, residency
from benchsuite.results.store.frames import FAILED, MIN_REPEATS_FOR_INTERVAL, UNSTABLE_SPREAD

WATCHED = "watch"
"""The sweep of loops that are not ours."""
PREPARED = {
    "cold": "evicted from the page cache before the first read",
    "warm": "read into the page cache before the first read",
    "direct": "read past the page cache (O_DIRECT)",
}


def methods(trials: Sequence[Row]) -> str:
    """The paragraph as plain text, a sentence for each fact that the records hold; empty without trials."""
    sentences = (sentence for tell in PARTS for sentence in tell(trials))
    return " ".join(plain(" ".join(sentences)).split()) if trials else ""


def _scope(trials: Sequence[Row]) -> list[str]:
    ran = ran_ones(trials)
    if not ran:
        return ["No trial was run."]
    points = Counter((row["session"], row["point_id"]) for row in ran)
    days = sorted({str(row["started_at"])[:10] for row in ran})
    version = told_of(ran, lambda row: row.get("env.benchsuite"))
    commit = told_of(ran, lambda row: row.get("env.commit"))
    where = f"benchsuite {version}".rstrip() + (f", commit {commit}" if commit else "")
    num_points, sessions = len({row["point_id"] for row in ran}), len({row["session"] for row in ran})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    said = f"Measurements were made with {where}, on {when} (UTC): {counted(num_points, 'point')} of the "
    said += f"configuration space in {counted(sessions, 'session')}, {span([*points.values()])} times each, "
    own = [row for row in ran if row["sweep"] != WATCHED]
    found = [f"{said}{counted(len(ran), 'trial')} in all" + (", each in new processes." if own == ran else ".")]
    watched = len(ran) - len(own)
    return found + ([f"Of these, training loops of other programs, watched as they ran: {watched}."] * bool(watched))


def _cache(trials: Sequence[Row]) -> list[str]:
    """What state was asked for, what was measured, and what cannot be seen."""
    stored = [row for row in ok_ones(trials) if row.get("spec.data.source") == "storage"]
    found = []
    for state, (when, low, high) in CERTIFIED.items():
        asked, seen, inside = residency(stored, state)
        limit = f"at least {low:.0%}" if state == "warm" else f"at most {high:.0%}"
        if asked:
            found.append(
                f"In {counted(len(asked), 'ok trial')} files were to be {PREPARED[state]}; mincore found "
                f"{limit} of their bytes resident {when} the measurement in {len(inside)} of them"
                + (f" and could not tell in {len(asked) - len(seen)}." if len(seen) < len(asked) else ".")
            )
    disagreeing = sum(DISAGREEING in row["caveats"] for row in stored)
    if disagreeing:
        found.append(f"The kernel's I/O counters told another story in {counted(disagreeing, 'trial')}.")
    if any(row.get("env.data.server_cache") == "unknown" for row in stored):
        found.append("The caches of the storage servers cannot be seen from a client; their state is unknown.")
    return found


def _steps(trials: Sequence[Row]) -> list[str]:
    own = [row for row in ran_ones(trials) if not is_missing(row.get("spec.measure.steps"))]
    if not own:
        return []
    steps = told_of(own, lambda row: whole(row["spec.measure.steps"]))
    warmup = told_of(own, lambda row: whole(row.get("spec.measure.warmup_steps")))
    uncounted = f", after warm-up steps that were not: {warmup}" if warmup else ""
    return [f"Steps that were counted: {steps}{uncounted}."]


def _utilization(trials: Sequence[Row]) -> list[str]:
    """What AU means in these trials."""
    measured = [row for row in ok_ones(trials) if not is_missing(row.get("au"))]
    if not measured:
        return []
    told = "Accelerator utilization (AU) is the time a step needs with its input in memory over the time it took; it "
    told += "is never clipped to 1."
    real = [row for row in measured if not is_emulated(row)]
    found = [told]
    if real:
        found.append(
            f"The former was measured in the same trial ({counted(len(real), 'trial')}), in blocks of steps on one "
            "real batch that alternate with blocks fed by the loader."
        )
    if len(real) < len(measured):
        found.append("On emulated accelerators the former is the emulated step time.")
    return found


def _statistics(trials: Sequence[Row]) -> list[str]:
    rates: dict[tuple[str, str], list[float]] = {}
    for row in ok_ones(trials):
        known = [] if is_missing(row["samples_per_s"]) else [float(row["samples_per_s"])]
        rates.setdefault((str(row["session"]), str(row["point_id"])), []).extend(known)
    counts = Counter((str(row["session"]), str(row["point_id"])) for row in ok_ones(trials))
    if not counts:
        return []
    spread = sum(bool(found) and max(found) - min(found) > UNSTABLE_SPREAD * median(found) for found in rates.values())
    told = f"Throughput spread by more than {UNSTABLE_SPREAD:.0%} of its median over repeats"
    unstable = [f"{told} at {spread} of {counted(len(counts), 'point')}."] if spread else []
    return [_spread(list(counts.values())), *unstable]


def _spread(repeats: Sequence[int]) -> str:
    """How figures of points with so many ok repeats are told."""
    if max(repeats) == 1:
        return "Each figure is of a single trial: nothing is known of its spread."
    told = "Figures of a point are medians over its ok trials in one session"
    if max(repeats) < MIN_REPEATS_FOR_INTERVAL:
        return f"{told}, with their range; they are too few for an interval."
    few = sum(count < MIN_REPEATS_FOR_INTERVAL for count in repeats)
    told += ", with the distribution-free 95 % interval of the median from order statistics (David and Nagaraja, "
    return told + "Order Statistics, 2003, 7.1)" + (f", or the range at {counted(few, 'point')}." if few else ".")


def _losses(trials: Sequence[Row]) -> list[str]:
    counts = Counter(str(row["status"]) for row in trials)
    lost = [f"{counts[name]} {name}" for name in (*FAILED, "interrupted") if counts[name]]
    found = [f"Without a result: {', '.join(lost)} of {counted(len(ran_ones(trials)), 'trial')}."] if lost else []
    if counts["skipped"]:
        skipped = len({row["point_id"] for row in trials if row["status"] == "skipped"})
        found.append(f"Not run, as not possible here: {counted(skipped, 'point')}.")
    return found


def _caveats(trials: Sequence[Row]) -> list[str]:
    ok = ok_ones(trials)
    found = Counter(str(name) for row in ok for name in row["caveats"])
    if not ok:
        return []
    if not found:
        return ["No trial bears a caveat."]
    told = ", ".join(f"{name.replace('_', ' ')} in {count}" for name, count in found.most_common())
    return [f"Caveats, of {counted(len(ok), 'ok trial')}: {told}."]


LIBRARY = "env.libraries."
Fact = tuple[str, str | Callable[[Row], Any]]
"""A text with a place for the values, and the column, or what else tells them."""


def _facts(heading: str, trials: Sequence[Row], facts: Sequence[Fact], between: str = "; ", *first: str) -> list[str]:
    """A sentence of what trials have of some facts, after what comes first; none where they have nothing."""
    parts = [*first, *(text.replace("{}", told) for text, value in facts if (told := told_of(trials, value)))]
    return [f"{heading}: {between.join(parts)}."] if parts else []


def hardware(trials: Sequence[Row]) -> list[str]:
    """Machines, and the software on them."""
    ran = ran_ones(trials)
    hosts = {str(row["env.host"]) for row in ran if not is_missing(row.get("env.host"))}
    facts: Sequence[Fact] = (
        ("{}", "env.cpu"),
        ("{} cores", lambda row: whole(row.get("env.cores"))),
        ("{} of memory", lambda row: _size(row, "env.memory_bytes")),
        ("accelerators: {}", _devices),
        ("{}", "env.os"),
    )
    columns = dict.fromkeys(key for row in ran for key in row if key.startswith(LIBRARY) and _is_used(key, row))
    software = [("Python {}", "env.python"), *((f"{name.removeprefix(LIBRARY)} {{}}", name) for name in columns)]
    told = [counted(len(hosts), "host")] if hosts else []
    return [*_facts("Hardware", ran, facts, "; ", *told), *_facts("Software", ran, software, ", ")]


USED_BY: Mapping[str, tuple[str, Any]] = {
    "h5py": ("spec.data.format", "hdf5"),
    "lmdb": ("spec.data.format", "lmdb"),
    "pyarrow": ("spec.data.format", "parquet"),
    "tfrecord": ("spec.data.format", "tfrecord"),
    "webdataset": ("spec.data.format", "webdataset"),
    "dali": ("spec.data.loader", "dali"),
    "triton": ("spec.compile", True),
}
"""Libraries that trials of one setting alone use."""


def _is_used(column: str, row: Row) -> bool:
    """Whether a trial used a library, as far as its settings tell."""
    setting, value = USED_BY.get(column.removeprefix(LIBRARY), (None, None))
    return setting is None or is_missing(row.get(setting)) or bool(row[setting] == value)


def _devices(row: Row) -> str | None:
    devices = row.get("env.devices")
    return (devices_in_words(devices) or "none") if isinstance(devices, list) else None


def workload(trials: Sequence[Row]) -> list[str]:
    """What was trained, and how it was spread."""
    ran = ran_ones(trials)
    facts: Sequence[Fact] = (
        ("{}", lambda row: _joined(row, " ", "spec.workload", "spec.variant")),
        ("device {}", "spec.device"),
        ("{} parameters", lambda row: _thousands(row, "parameters")),
        ("precision {}", "spec.precision"),
        ("optimizer {}", "spec.optimizer"),
        ("parallelism {}", parallelism_of),
        ("ranks: {}", lambda row: whole(row.get("spec.world_size"))),
        ("samples per rank and step: {}", lambda row: whole(row.get("spec.batch_size"))),
        ("samples of all ranks per step: {}", lambda row: whole(row.get("spec.global_batch_size"))),
        ("threads per rank: {}", lambda row: whole(row.get("spec.threads_per_rank"))),
    )
    found, emulated = _facts("Workload", ran, facts), [row for row in ran if is_emulated(row)]
    if emulated:
        found.append(
            f"In {counted(len(emulated), 'trial')} the accelerator was emulated: no model was trained, a rank waited "
            "the accelerator's step time for each batch."
        )
    return found


def _thousands(row: Row, column: str) -> str | None:
    return None if is_missing(row.get(column)) else f"{int(row[column]):,}"


def _joined(row: Row, between: str, *columns: str) -> str:
    return between.join(str(row[name]) for name in columns if not is_missing(row.get(name)))


def data(trials: Sequence[Row]) -> list[str]:
    """What was read, and by whom."""
    ran = ran_ones(trials)
    stored = [row for row in ran if row.get("spec.data.source") == "storage"]
    facts: Sequence[Fact] = (
        ("format {}", "spec.data.format"),
        ("loader {}", "spec.data.loader"),
        ("reader {}", lambda row: _joined(row, " by ", "spec.data.reader", "env.reader")),
        ("workers per rank: {}", lambda row: whole(row.get("spec.data.num_workers"))),
        ("batches that each keeps ready: {}", lambda row: whole(row.get("spec.data.prefetch_factor"))),
        ("order {}", lambda row: _order(row)),
        ("file system {}", "env.data.file_system"),
        ("staging {}", "spec.data.staging"),
        ("dataset: {}", _dataset),
    )
    found = _facts(f"Samples came from storage in {counted(len(stored), 'trial')}", stored, facts)
    for source, what in (("memory", "one real batch held in memory"), ("synthetic", "made on the device")):
        count = sum(row.get("spec.data.source") == source for row in ran)
        if count:
            found.append(f"In {counted(count, 'trial')} the input was {what}; these say nothing of storage.")
    return found


def _order(row: Row) -> str | None:
    if is_missing(row.get("spec.data.shuffle")):
        return None
    buffered = f", mixed in buffers of {whole(row.get('spec.data.shuffle_buffer'))} samples where in shards"
    return f"shuffled anew in each epoch{buffered}" if row["spec.data.shuffle"] else "as stored"


def _size(row: Row, column: str) -> str | None:
    return None if is_missing(row.get(column)) else size(row[column])


def _dataset(row: Row) -> str | None:
    if is_missing(row.get("dataset.num_samples")):
        return None
    named = row.get("dataset.dataset_id")
    told = filter(None, [f"{int(row['dataset.num_samples'])} samples", _size(row, "dataset.stored_bytes")])
    return " of ".join(told) + ("" if is_missing(named) else f" (id {str(named)[:12]})")


MAX_VALUES = 6
"""Values of one fact that are told."""


def ok_ones(trials: Sequence[Row]) -> list[Row]:
    """Trials that have figures."""
    return [row for row in trials if row["status"] == "ok"]


def ran_ones(trials: Sequence[Row]) -> list[Row]:
    """Trials that were tried."""
    return [row for row in trials if row["status"] != "skipped"]


def told_of(trials: Sequence[Row], value: str | Callable[[Row], Any]) -> str:
    """The values that trials have, how many trials have which where they differ; nothing where none has any."""
    found = [row.get(value) if isinstance(value, str) else value(row) for row in trials]
    counts = Counter(str(each) for each in found if not is_missing(each) and each != "")
    if len(counts) == 1 and counts.total() == len(found):
        return next(iter(counts))
    told = [f"{name} ({counted(count, 'trial')})" for name, count in counts.most_common(MAX_VALUES)]
    return and_(told + ([f"{len(counts) - MAX_VALUES} more"] if len(counts) > MAX_VALUES else []))


def span(values: Sequence[int]) -> str:
    """The least and the most, or the one there is."""
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def is_emulated(row: Row) -> bool:
    """Whether its accelerator was not there."""
    return str(row.get("spec.device")).startswith("emulated")


PARTS: Sequence[Callable[[Sequence[Row]], list[str]]] = (
    _scope,
    hardware,
    workload,
    data,
    _cache,
    _steps,
    _utilization,
    _statistics,
    _losses,
    _caveats,
)
