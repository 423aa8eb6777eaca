"""Sweep file -> points to run, and points skipped with the reason why."""

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchsuite.contract.errors import UserError, several
from benchsuite.contract.trial_spec import (
    SweepSpec,
    TrialSpec,
    check_staging,
    parse_sweep,
    parse_trial,
    point_id,
    resolved_data,
)
from benchsuite.contract.yaml_file import Values, flat, nested, read_yaml
from benchsuite.grid.blocks import MIN_STEPS, most_steps
from benchsuite.grid.emulated_steps import with_step
from benchsuite.grid.layers import apply_layers
from benchsuite.grid.mistakes import MAX_TRIALS, check_number, sweep_mistakes
from benchsuite.grid.point import Plan, Point, Skipped
from benchsuite.grid.validity import ranks_on_a_node, why_invalid
from benchsuite.host.machine import Machine, this_machine
from benchsuite.results.store.segments import without_collector
from benchsuite.storage import default_reader, format_of, mixes
from benchsuite.storage.dataset.manifest import Manifest, is_dataset, read_manifest
from benchsuite.storage.dataset.spec import DataSpec
from benchsuite.storage.objects.path import path_of
from benchsuite.workloads.layout import HSDP_REPLICAS, hsdp_replicas

EACH = "each"
"""A value of `node`: every one there is."""


def _combinations(sweep: SweepSpec) -> Iterator[Values]:
    """The varied values of each point, in the order of the file."""
    zipped = [dict(zip(sweep.zip, row, strict=True)) for row in zip(*sweep.zip.values(), strict=True)] or [{}]
    for values in itertools.product(*sweep.grid.values()):
        for together in zipped:
            yield dict(zip(sweep.grid, values, strict=True)) | together
    yield from sweep.include


def load_sweep(path: Path, overrides: list[str]) -> SweepSpec:
    """Read a sweep file; site, user, environment and overrides count as `layers` says.

    Raises:
        UserError: a line for each mistake.
    """
    value = {"name": path.stem, **apply_layers(read_yaml(path), str(path), overrides).sweep}
    if error := several(sweep_mistakes(value)):
        raise error
    return parse_sweep(value)


def with_nodes(sweep: SweepSpec, names: Callable[[], list[str]]) -> SweepSpec:
    """The sweep with a point for every node where `node` is `each`; `names` is asked for them only then."""
    base = dict(sweep.base)
    axes = {"grid": sweep.grid, "zip": sweep.zip}
    if base.get("node") == EACH:
        base.pop("node")
        return sweep.model_copy(update={"base": base, "grid": {"node": names(), **sweep.grid}})
    for part, axis in axes.items():
        if EACH in axis.get("node", []):
            kept = [name for name in axis["node"] if name != EACH]
            return sweep.model_copy(update={part: axis | {"node": [*kept, *names()]}})
    return sweep


@without_collector()
def expand(sweep: SweepSpec, machine: Machine, store: Path | None = None) -> Plan:
    """Every point of a sweep, resolved for this machine, with what is skipped and why.

    Raises:
        UserError: a key or value that no machine would accept.
    """
    asked: deque[tuple[Values, TrialSpec]] = deque()
    base = flat(sweep.base)
    for varied in _combinations(sweep):
        asked.append((varied, with_step(parse_trial(nested(base | varied)), store)))
    check_number(sum(spec.measure.repeats for _, spec in asked), MAX_TRIALS, "trials: points x measure.repeats")
    check_staging([spec for _, spec in asked])
    repeated = _Repeated([spec for _, spec in asked])
    excluded = _excluded(sweep)
    largest = max((spec.ranks for _, spec in asked), default=1)
    points: dict[str, Point] = {}
    skipped: dict[str, Skipped] = {}
    known: Known = {}
    keys = list(dict.fromkeys([*sweep.grid, *sweep.zip, *(key for entry in sweep.include for key in entry)]))
    num_asked = len(asked)
    for order in range(num_asked):
        unsorted, spec = asked.popleft()  # of a large plan, both would not fit
        varied = {key: unsorted[key] for key in keys if key in unsorted}
        point = replace(resolve(spec, machine, largest, varied, known), order=order)
        reason = excluded(point.spec) or why_invalid(point, machine)
        reason = reason or repeated.why(point.spec, point.manifest)
        if reason:
            skipped.setdefault(point.point_id, Skipped(point, reason))
        else:
            points.setdefault(point.point_id, point)
    duplicates = num_asked - len(points) - len(skipped)
    return Plan(sweep, list(points.values()), list(skipped.values()), duplicates, machine)


def _excluded(sweep: SweepSpec) -> Callable[[TrialSpec], str | None]:
    """Why a spec is excluded; entries that name the same keys are looked up, not tried one by one."""
    entries: defaultdict[tuple[str, ...], set[Hashable]] = defaultdict(set)
    for entry in map(flat, sweep.exclude):
        entries[tuple(entry)].add(_hashable([*entry.values()]))

    def reason(spec: TrialSpec) -> str | None:
        values = flat(spec.model_dump()) if entries else {}
        found = any(_hashable([values.get(key) for key in keys]) in listed for keys, listed in entries.items())
        return "excluded by the file" if found else None

    return reason


def _hashable(value: Any) -> Hashable:
    if isinstance(value, Mapping):
        return _hashable(sorted(value.items()))
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value


Known = dict[tuple[str | None, str], tuple[Path | None, Manifest | None]]
"""Datasets that a plan has looked for, by root and format: an object store takes its time to answer."""


def resolve(
    spec: TrialSpec,
    machine: Machine,
    largest_world_size: int,
    varied: Mapping[str, Any],
    known: Known | None = None,
) -> Point:
    """Fill in what a spec leaves to the machine, and drop data settings that its source does not use."""
    ranks_per_node = spec.ranks_per_node or (spec.ranks // spec.nodes if spec.nodes else None)
    crowd = ranks_per_node or -(-largest_world_size // machine.nodes)
    device = spec.device if spec.device != "auto" else ("cuda" if machine.cuda_devices else "cpu")
    resolved = spec.model_copy(
        update={
            "workload": _with_whole_path(spec.workload),
            "data": resolved_data(spec.data),
            "device": device,
            "world_size": spec.ranks,
            "nodes": None,
            "ranks_per_node": ranks_per_node,
            "cpu_binding": spec.cpu_binding or ("device" if device == "cuda" else "none"),
            "threads_per_rank": spec.threads_per_rank or max(1, machine.cores // crowd),
        }
    )
    resolved = resolved.model_copy(update={"nodes": _nodes_of_replicas(resolved, machine)})
    known, asked = {} if known is None else known, (resolved.data.root, resolved.data.format)
    dataset, manifest = known.setdefault(asked, known.get(asked) or _find_dataset(resolved))
    data = _with_reader(resolved.data)
    resolved = _with_epoch(resolved.model_copy(update={"data": data}), manifest)
    return Point(resolved, point_id(resolved, manifest.dataset_id if manifest else None), dataset, manifest, varied)


def _nodes_of_replicas(spec: TrialSpec, machine: Machine) -> int | None:
    """Over how many nodes hsdp replicates; None where it has as many replicas as on one node, and for other modes."""
    if spec.parallelism != "hsdp":
        return None
    replicas = hsdp_replicas(spec.ranks, ranks_on_a_node(spec, machine))
    return None if replicas == HSDP_REPLICAS else replicas


def _with_whole_path(name: str) -> str:
    """A name, or `path/to/file.py:NAME` of a user's own with its whole path."""
    path, colon, attribute = name.rpartition(":")
    return f"{Path(path).expanduser().absolute()}:{attribute}" if colon else name


def _with_reader(data: DataSpec) -> DataSpec:
    """Return data settings with their reader: where none is asked for, that of their loader."""
    if data.reader is not None:
        return data.model_copy(update={"reader": _with_whole_path(data.reader)})
    return data.model_copy(update={"reader": default_reader(data.loader) if data.source == "storage" else None})


def _with_epoch(spec: TrialSpec, manifest: Manifest | None) -> TrialSpec:
    """Return the spec with the steps of an epoch, where one is asked for: with those that fit into it."""
    if spec.measure.epochs is None or manifest is None or spec.data.source != "storage":
        return spec
    lanes = spec.data_ranks * spec.data.readers
    share = format_of(manifest.format).smallest_lane(manifest, lanes)
    held = spec.data.shuffle_buffer if mixes(spec.data) else 0
    return spec.with_steps(max(MIN_STEPS, most_steps(spec, share - held, manifest.num_samples)))


def _find_dataset(spec: TrialSpec) -> tuple[Path | None, Manifest | None]:
    """The dataset a spec reads: its root, or the folder of its format below."""
    if spec.data.root is None:
        return None, None
    root = path_of(spec.data.root)
    folder = root if is_dataset(root) else root / spec.data.format
    return folder, read_manifest(folder) if is_dataset(folder) else None


def _unmixed(data: DataSpec) -> str | None:
    """Why samples are not mixed in data.shuffle_buffer; None where they are."""
    if data.source != "storage":
        return f"source {data.source}"
    if not mixes(data.model_copy(update={"shuffle": True})):
        return f"format {data.format}"
    return None if data.shuffle else "shuffle false"


class _Repeated:
    """Tells the points of a plan that measure what one before them does: the ids of what ran must not move."""

    def __init__(self, specs: list[TrialSpec]) -> None:
        self._varies = len({spec.data.shuffle_buffer for spec in specs}) > 1
        self._first: dict[str, int] = {}
        """The first data.shuffle_buffer of a point, by the point's id without it."""

    def why(self, spec: TrialSpec, manifest: Manifest | None) -> str | None:
        """Why a point that can run is not worth it; None where it is the first of its like."""
        if not self._varies or manifest is None:
            return None
        unused, asked = _unmixed(spec.data), spec.data.shuffle_buffer
        if unused is None:
            return None
        alike = spec.model_copy(update={"data": spec.data.model_copy(update={"shuffle_buffer": 1})})
        first = self._first.setdefault(point_id(alike, manifest.dataset_id), asked)
        if first == asked:
            return None
        return f"data.shuffle_buffer has no effect with {unused}: {asked} measures the same as {first}"


def plan_trial(spec: TrialSpec | Mapping[str, Any], store: Path | None = None) -> Point:
    """A spec resolved for this machine; a record that its device is taken from is sought in `store`.

    Raises:
        UserError: it is not valid, or cannot run here; with the reason.
    """
    machine = this_machine()
    parsed = with_step(spec if isinstance(spec, TrialSpec) else parse_trial(spec), store)
    check_staging([parsed])
    point = resolve(parsed, machine, parsed.ranks, {})
    reason = why_invalid(point, machine)
    if reason:
        raise UserError(f"this trial cannot run: {reason}")
    return point
