"""Sweep file -> points to run, and points skipped with the reason why."""

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import storage
import workloads
from benchsuite.cold import too_few_for_cold
from benchsuite.errors import UserError, refuse, several
from benchsuite.layers import layered
from benchsuite.machine import Machine
from benchsuite.mistakes import MAX_TRIALS, check_number, sweep_mistakes
from benchsuite.profiles import problem as emulated_problem
from benchsuite.profiles import with_step
from benchsuite.spec import SweepSpec, TrialSpec, check_staging, parse_sweep, parse_trial, point_id, resolved_data
from benchsuite.unused import Repeated
from benchsuite.yamlfile import Values, flat, nested, override, parse_yaml, read_yaml
from results.segments import without_collector
from storage.format import Format, Manifest, is_dataset, read_manifest
from workloads.facts import FACTS, Facts
from workloads.layout import LayoutError
from workloads.legality import problem
from workloads.spec import Variant

if TYPE_CHECKING:
    from workloads.workload import Workload

EACH = "each"
"""A value of `node`: every one there is."""
__all__ = [
    "Plan",
    "Point",
    "Skipped",
    "expand",
    "facts_of",
    "load_sweep",
    "override",
    "parse_yaml",
    "ranks_on_a_node",
    "read_yaml",
    "resolve",
    "why_illegal",
    "with_nodes",
    "workload_of",
]


@dataclass(frozen=True)
class Point:
    """A resolved spec, its id, its dataset, and the values that vary in its sweep."""

    spec: TrialSpec
    point_id: str
    dataset: Path | None
    manifest: Manifest | None
    varied: Mapping[str, Any]
    order: int = 0
    """Position in the sweep."""

    @property
    def label(self) -> str:
        """The varied values in words, or the workload where nothing varies."""
        words = [_word(key, value) for key, value in self.varied.items()]
        return " ".join(filter(None, words)) or _word("workload", self.spec.workload)


@dataclass(frozen=True)
class Skipped:
    """A point that cannot run, and why."""

    point: Point
    reason: str


@dataclass(frozen=True)
class Plan:
    """What a sweep file asks for on this machine."""

    sweep: SweepSpec
    points: list[Point]
    skipped: list[Skipped]
    duplicates: int
    machine: Machine | None = None
    """What it was made for."""


def _word(key: str, value: Any) -> str:
    name = key.rpartition(".")[2]
    if key == "parallelism" and value == "none":
        return ""
    if isinstance(value, Mapping):
        return " ".join(name if inner is True else f"{name} {inner}" for name, inner in value.items())
    if key == "workload":
        return str(value).rpartition("/")[2]
    unit = {"world_size": "rank", "num_workers": "worker"}.get(name)
    if unit is None:
        return f"{name} {value}" if isinstance(value, int | float) else str(value)
    return f"{value} {unit}" if value == 1 else f"{value} {unit}s"


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
    value = {"name": path.stem, **layered(read_yaml(path), str(path), overrides).sweep}
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
    repeated = Repeated([spec for _, spec in asked])
    excluded = _excluded(sweep)
    largest = max((spec.ranks for _, spec in asked), default=1)
    points: dict[str, Point] = {}
    skipped: dict[str, Skipped] = {}
    keys = list(dict.fromkeys([*sweep.grid, *sweep.zip, *(key for entry in sweep.include for key in entry)]))
    num_asked = len(asked)
    for order in range(num_asked):
        unsorted, spec = asked.popleft()  # of a large plan, both would not fit
        varied = {key: unsorted[key] for key in keys if key in unsorted}
        point = replace(resolve(spec, machine, largest, varied), order=order)
        reason = excluded(point.spec) or why_illegal(point, machine)
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


def resolve(spec: TrialSpec, machine: Machine, largest_world_size: int, varied: Mapping[str, Any]) -> Point:
    """Fill in what a spec leaves to the machine, and drop data settings that its source does not use."""
    name = spec.workload
    if ":" in name:
        path, _, attribute = name.rpartition(":")
        name = f"{Path(path).expanduser().absolute()}:{attribute}"
    ranks_per_node = spec.ranks_per_node or (spec.ranks // spec.nodes if spec.nodes else None)
    crowd = ranks_per_node or -(-largest_world_size // machine.nodes)
    device = spec.device if spec.device != "auto" else ("cuda" if machine.cuda_devices else "cpu")
    resolved = spec.model_copy(
        update={
            "workload": name,
            "data": resolved_data(spec.data),
            "device": device,
            "world_size": spec.ranks,
            "nodes": None,
            "ranks_per_node": ranks_per_node,
            "threads_per_rank": spec.threads_per_rank or max(1, machine.cores // crowd),
        }
    )
    dataset, manifest = _find_dataset(resolved)
    return Point(resolved, point_id(resolved, manifest.dataset_id if manifest else None), dataset, manifest, varied)


def _find_dataset(spec: TrialSpec) -> tuple[Path | None, Manifest | None]:
    """The dataset a spec reads: its root, or the folder of its format below."""
    if spec.data.root is None:
        return None, None
    root = Path(spec.data.root)
    folder = root if is_dataset(root) else root / spec.data.format
    return folder, read_manifest(folder) if is_dataset(folder) else None


def facts_of(spec: TrialSpec) -> Facts:
    """What a plan must know of a spec's workload, which has its variant. Of those in `FACTS` none is imported for it.

    Raises:
        UserError: it has not, or is no workload at all.
    """
    facts = FACTS.get(spec.workload) or workload_of(spec).facts
    if spec.variant not in facts.variants:
        raise refuse(f"variant of {spec.workload}", spec.variant, facts.variants)
    return facts


def workload_of(spec: TrialSpec) -> "Workload":
    """A spec's workload, which has its variant.

    Raises:
        UserError: it has not, or is no workload at all.
    """
    from workloads.workload import Workload

    workload = workloads.load(workloads.WORKLOADS, spec.workload, "benchsuite.workloads")
    if not isinstance(workload, Workload):
        raise UserError(f"workload {spec.workload!r} is {type(workload).__name__}, not a workloads.workload.Workload")
    if spec.variant not in workload.variants:
        raise refuse(f"variant of {spec.workload}", spec.variant, workload.variants)
    return workload


def why_illegal(point: Point, machine: Machine) -> str | None:
    """Why a point cannot run on this machine with this dataset, with the arithmetic; None where it can."""
    spec = point.spec
    facts = facts_of(spec)
    unfit = why_unfit(spec, facts, facts.variants[spec.variant], machine)
    reads = spec.emulated or spec.data.source != "synthetic"
    return unfit or (_dataset_problem(point, facts) if reads else None)


def why_unfit(spec: TrialSpec, facts: Facts, variant: Variant, machine: Machine) -> str | None:
    """Why a workload in some shape cannot be trained so on this machine, whatever it reads; None where it can."""
    try:
        layout = spec.layout
    except LayoutError as error:
        return str(error)
    too_few = _machine_problem(spec, machine)
    if too_few:
        return too_few
    if spec.batch_size == "auto" and spec.device != "cuda":
        return f"batch_size auto fills a CUDA device's memory, device is {spec.device}"
    if spec.global_batch_size is not None and spec.global_batch_size % layout.dp:
        return f"global_batch_size {spec.global_batch_size} is not a multiple of {layout.dp} data-parallel ranks"
    if spec.emulated:
        return emulated_problem(spec)
    return problem(facts, variant, layout, spec, spec.rank_batch, spec.device)


def _machine_problem(spec: TrialSpec, machine: Machine) -> str | None:
    """Why the nodes or devices here are too few."""
    nodes = -(-spec.ranks // spec.ranks_per_node) if spec.ranks_per_node else 1
    if nodes > machine.nodes:
        has = f"{machine.nodes} node{'s' if machine.nodes > 1 else ''}"
        return f"{spec.ranks} ranks, {spec.ranks_per_node} a node, need {nodes} nodes; this launcher has {has}"
    if spec.device == "cuda" and not machine.cuda_devices:
        return f"device cuda: this node has no CUDA device that torch can use, {spec.ranks} asked for; see doctor"
    if spec.device == "cuda" and spec.ranks > machine.cuda_devices * machine.nodes:
        each = f"{machine.nodes} nodes x " if machine.nodes > 1 else ""
        return f"{spec.ranks} ranks > {each}{machine.cuda_devices} CUDA devices that torch can use here"
    crowd = ranks_on_a_node(spec, machine)
    if spec.device == "cuda" and crowd > machine.cuda_devices:
        return f"{crowd} ranks on a node > {machine.cuda_devices} CUDA devices that torch can use there"
    return None


def ranks_on_a_node(spec: TrialSpec, machine: Machine) -> int:
    """Ranks of a resolved trial on the node that takes most of them, as launchers lay them out."""
    if spec.ranks_per_node is not None or spec.node is not None:
        return min(spec.ranks, spec.ranks_per_node or spec.ranks)
    room = machine.cuda_devices if spec.device == "cuda" else machine.cores // (spec.threads_per_rank or 1)
    return min(spec.ranks, max(1, room, -(-spec.ranks // machine.nodes)))


def _dataset_problem(point: Point, facts: Facts) -> str | None:
    spec, manifest = point.spec, point.manifest
    if point.dataset is None:
        raise UserError(f"data.root is missing: source {spec.data.source} reads a dataset")
    form: Format = storage.load(storage.FORMATS, spec.data.format, "benchsuite.formats")
    if facts.kind not in form.kinds:
        stores = " and ".join(sorted(form.kinds))
        return f"format {form.name} stores {stores} samples, {spec.workload} takes {facts.kind}"
    if manifest is None:
        return _missing_dataset(Path(str(spec.data.root)), point.dataset)
    if manifest.format != spec.data.format:
        return f"{point.dataset} holds format {manifest.format}, not {spec.data.format}"
    if manifest.kind != facts.kind:
        return f"{point.dataset} holds {manifest.kind} samples, {spec.workload} takes {facts.kind}"
    unfit = _unfit_samples(point, manifest, facts) or storage.loader_problem(spec.data.loader, manifest.kind)
    if unfit:
        return unfit
    lanes = spec.data_ranks * (spec.data.readers if spec.data.source == "storage" else 1)
    unfit = _direct_problem(spec, form, manifest) or form.problem(manifest, lanes)
    return unfit or too_few_for_cold(spec, form, form.smallest_lane(manifest, lanes), lanes)


def _unfit_samples(point: Point, manifest: Manifest, facts: Facts) -> str | None:
    """Why samples of the right kind do not fit the variant: classes, lengths, extents."""
    variant = facts.variants[point.spec.variant]
    who = f"{point.spec.workload} {point.spec.variant}"
    if (manifest.num_classes or 0) > variant.num_classes:
        return f"{point.dataset} has {manifest.num_classes} classes, {who} tells {variant.num_classes} apart"
    for name in ("seq_len", "max_predictions"):
        if name in variant.sample and manifest.params.get(name) != variant.sample[name]:
            made = f"{point.dataset} has {name} {manifest.params.get(name)}, {who} takes {variant.sample[name]}"
            return f"{made}; make it with `--variant {point.spec.variant}`"
    if manifest.params.get("vocab_size", 0) > variant.sample.get("vocab_size", 1 << 62):
        return (
            f"{point.dataset} has a vocabulary of {manifest.params['vocab_size']}, {who} knows "
            f"{variant.sample['vocab_size']}"
        )
    patch = variant.sample.get("patch_size", 0)
    if manifest.params.get("min_extent", patch) < patch:
        return f"{point.dataset} has volumes of {manifest.params['min_extent']} voxels across, {who} cuts {patch}"
    return None


def _missing_dataset(root: Path, folder: Path) -> str:
    if not root.is_dir():
        raise UserError(f"data.root {root}: no such folder; make a dataset with: benchsuite data generate|convert")
    found = [name for name in storage.FORMATS if is_dataset(root / name)]
    return f"{folder}: no dataset there; {root} has {', '.join(found) or 'none'}"


def _direct_problem(spec: TrialSpec, form: Format, manifest: Manifest) -> str | None:
    """Why samples cannot be read past the page cache."""
    if spec.data.source != "storage" or spec.data.cache != "direct":
        return None
    if form.direct_problem is None:
        return f"cache direct: format {form.name} is read by mapping or streaming, through the page cache"
    if spec.data.loader == "dali":
        return "cache direct: dali reads through the page cache; use loader torch or threads"
    unfit = form.direct_problem(manifest)
    return f"cache direct: {unfit}" if unfit else None
