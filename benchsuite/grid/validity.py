"""Why a point cannot run: its workload, its layout, this machine, its dataset; each reason with the arithmetic."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchsuite import storage, workloads
from benchsuite.contract.errors import UserError
from benchsuite.contract.packages import is_installed, remedy
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.grid.blocks import MIN_STEPS, layout, most_steps, reader_samples
from benchsuite.grid.emulated_steps import problem as emulated_problem
from benchsuite.grid.point import Point
from benchsuite.host.load import memory_bytes
from benchsuite.host.machine import Machine, cuda_capability
from benchsuite.results.render.words import counted
from benchsuite.storage.dataset.manifest import Format, Manifest, is_dataset
from benchsuite.storage.objects.path import ObjectPath, path_of
from benchsuite.workloads.facts import FACTS, Facts
from benchsuite.workloads.layout import LayoutError
from benchsuite.workloads.spec import Variant
from benchsuite.workloads.validity import problem

if TYPE_CHECKING:
    from benchsuite.workloads.workload import Workload

FLOAT8_CAPABILITY = (8, 9)
"""The first devices with matrix products in float8: Ada and Hopper."""


def facts_of(spec: TrialSpec) -> Facts:
    """What a plan must know of a spec's workload. Of those in `FACTS` none is imported for it.

    Raises:
        UserError: it is no workload at all.
    """
    return FACTS.get(spec.workload) or workload_of(spec).facts


def workload_of(spec: TrialSpec) -> "Workload":
    """A spec's workload.

    Raises:
        UserError: it is none.
    """
    from benchsuite.workloads.workload import Workload

    workload = workloads.load(workloads.WORKLOADS, spec.workload, "benchsuite.workloads")
    if not isinstance(workload, Workload):
        raise UserError(
            f"workload {spec.workload!r} is {type(workload).__name__}, not a benchsuite.workloads.workload.Workload"
        )
    return workload


@dataclass(frozen=True)
class Case:
    """What rules are asked about: a point on a machine, and what follows from both."""

    point: Point
    machine: Machine
    facts: Facts
    variant: Variant

    @property
    def spec(self) -> TrialSpec:
        return self.point.spec

    @property
    def form(self) -> Format:
        return storage.format_of(self.spec.data.format)

    @property
    def manifest(self) -> Manifest:
        """That of the dataset; of those rules alone that follow the one that asks for it."""
        assert self.point.manifest is not None
        return self.point.manifest

    @property
    def lanes(self) -> int:
        """Readers that share the dataset."""
        return self.spec.data_ranks * (self.spec.data.readers if self.spec.data.source == "storage" else 1)


Rule = Callable[[Case], str | None]
"""Why a point cannot run, with the arithmetic; None where this does not stand against it."""


def why_invalid(point: Point, machine: Machine) -> str | None:
    """Why a point cannot run on this machine with this dataset, with the arithmetic; None where it can.

    Raises:
        UserError: it reads a dataset and names none, or it has no such workload or variant.
    """
    facts = facts_of(point.spec)
    case = Case(point, machine, facts, point.spec.variant_in(facts.variants))
    reads = point.spec.emulated or point.spec.data.source != "synthetic"
    return next((why for rule in (*OF_TRAINING, *(OF_DATA if reads else ())) if (why := rule(case))), None)


def _epoch_problem(case: Case) -> str | None:
    """Why there is no epoch whose steps could be counted beforehand."""
    spec = case.spec
    if spec.measure.epochs is None:
        return None
    if spec.data.source != "storage":
        return f"measure.epochs {spec.measure.epochs} with source {spec.data.source}: no dataset is read through"
    if spec.batch_size == "auto":
        return (
            f"measure.epochs {spec.measure.epochs} with batch_size auto: the steps of an epoch need a batch; give one"
        )
    return None


def _layout_problem(case: Case) -> str | None:
    try:
        case.spec.layout  # noqa: B018
    except LayoutError as error:
        return str(error)
    return None


def _device_problem(case: Case) -> str | None:
    """Why settings of CUDA devices have no meaning on this one."""
    spec = case.spec
    if spec.device == "cuda":
        return None
    if spec.batch_size == "auto":
        return f"batch_size auto fills a CUDA device's memory, device is {spec.device}"
    if spec.cpu_binding == "device":
        return f"cpu_binding device keeps ranks near CUDA devices, device is {spec.device}"
    if spec.measure.profile == "nvtx":
        return f"profile nvtx marks a CUDA device's timeline, device is {spec.device}"
    return None


def _global_batch_problem(case: Case) -> str | None:
    batch, ranks = case.spec.global_batch_size, case.spec.layout.dp
    if batch is None or batch % ranks == 0:
        return None
    return f"global_batch_size {batch} is not a multiple of {ranks} data-parallel ranks"


def _emulated_problem(case: Case) -> str | None:
    return emulated_problem(case.spec) if case.spec.emulated else None


def _training_problem(case: Case) -> str | None:
    """Why the workload cannot be trained so, whatever it reads and wherever."""
    spec = case.spec
    if spec.emulated:
        return None
    return problem(case.facts, case.variant, spec.layout, spec, spec.rank_batch, spec.device)


def _memory_problem(case: Case) -> str | None:
    """Why the model, as ranks build it, does not fit the memory of a host.

    Parts of it are made on the device, unless weights are kept in host memory. What a step needs besides is not looked
    at: `trial --validate` counts it.
    """
    spec, facts, variant, machine = case.spec, case.facts, case.variant, case.machine
    if spec.emulated:
        return None
    offloaded = spec.cpu_offload and spec.layout.engine == "torch"  # others begin on the device
    whole, kept = facts.is_built_whole(variant), spec.device != "cuda" or offloaded
    if not (whole or kept) or (machine.elsewhere and machine.memory_bytes is None):
        return None
    parameters, ranks = facts.parameters(variant), ranks_on_a_node(spec, machine)
    sharing = 1 if whole else spec.layout.weight_parts
    size = 2 if spec.precision == "pure_bf16" and not whole else 4
    needed, memory = ranks * parameters / sharing * size, machine.memory_bytes or _own_memory_bytes()
    if needed <= memory:
        return None
    shared = f" / {sharing} ranks that share them" if sharing > 1 else ""
    product = f"{counted(ranks, 'rank')} on a node x {parameters:,} parameters{shared} x {size} bytes"
    return f"model as built: {product} = {needed / 1e9:,.1f} GB > {memory / 1e9:,.1f} GB of the host's memory"


@cache
def _own_memory_bytes() -> int:
    """Memory of this host, looked up once: plans have thousands of points."""
    return memory_bytes()[1]


def _float8_problem(case: Case) -> str | None:
    """Why the package or the devices for fp8 are not here, where the trial is to run here."""
    if case.spec.precision != "fp8" or case.spec.device != "cuda" or case.machine.elsewhere:
        return None
    if not is_installed("torchao"):
        return f"precision fp8 needs torchao, which is not installed: {remedy('torchao')}"
    found = cuda_capability()
    if found is not None and found < FLOAT8_CAPABILITY:
        words = [".".join(map(str, each)) for each in (FLOAT8_CAPABILITY, found)]
        return f"precision fp8 needs CUDA devices of compute capability {words[0]}, one here has {words[1]}"
    return None


def _machine_problem(case: Case) -> str | None:
    """Why the nodes or devices here are too few."""
    spec, machine = case.spec, case.machine
    nodes = -(-spec.ranks // spec.ranks_per_node) if spec.ranks_per_node else 1
    if nodes > machine.nodes:
        asked = f"{spec.ranks} ranks, {spec.ranks_per_node} a node, need {nodes} nodes"
        return f"{asked}; this launcher has {counted(machine.nodes, 'node')}"
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
    room = machine.ranks_per_node or room
    return min(spec.ranks, max(1, room, -(-spec.ranks // machine.nodes)))


def _kind_problem(case: Case) -> str | None:
    form, spec = case.form, case.spec
    if case.point.dataset is None:
        raise UserError(f"data.root is missing: source {spec.data.source} reads a dataset")
    if case.facts.kind in form.kinds:
        return None
    return (
        f"format {form.name} stores {' and '.join(sorted(form.kinds))} samples, {spec.workload} takes {case.facts.kind}"
    )


def _dataset_problem(case: Case) -> str | None:
    """Why no dataset is there, or one of something else."""
    spec, folder, manifest = case.spec, case.point.dataset, case.point.manifest
    assert folder is not None
    if manifest is None:
        return _missing_dataset(path_of(str(spec.data.root)), folder)
    if manifest.format != spec.data.format:
        return f"{folder} holds format {manifest.format}, not {spec.data.format}"
    if manifest.kind != case.facts.kind:
        return f"{folder} holds {manifest.kind} samples, {spec.workload} takes {case.facts.kind}"
    return None


def _loader_problem(case: Case) -> str | None:
    return storage.loader_problem(case.spec.data.loader, case.manifest.kind)


def _reader_problem(case: Case) -> str | None:
    return storage.reader_problem(case.spec.data, case.manifest)


def _sharing_problem(case: Case) -> str | None:
    """Why so many readers cannot share the dataset."""
    return case.form.problem(case.manifest, case.lanes)


def _cold_problem(case: Case) -> str | None:
    smallest = case.form.smallest_lane(case.manifest, case.lanes)
    return too_few_for_cold(case.spec, case.form, smallest, case.lanes)


def _samples_problem(case: Case) -> str | None:
    """Why samples of the right kind do not fit the variant: classes, lengths, extents."""
    point, manifest, variant = case.point, case.manifest, case.variant
    who = f"{point.spec.workload} {point.spec.variant}"
    if (manifest.num_classes or 0) > variant.num_classes:
        return f"{point.dataset} has {manifest.num_classes} classes, {who} tells {variant.num_classes} apart"
    for name in ("seq_len", "max_predictions"):
        if name in variant.sample and manifest.params.get(name) != variant.sample[name]:
            made = f"{point.dataset} has {name} {manifest.params.get(name)}, {who} takes {variant.sample[name]}"
            given = getattr(point.spec.model, name) is not None
            return f"{made}; {_remedy(name, given, point.spec.variant)}"
    if manifest.params.get("vocab_size", 0) > variant.sample.get("vocab_size", 1 << 62):
        return (
            f"{point.dataset} has a vocabulary of {manifest.params['vocab_size']}, {who} knows "
            f"{variant.sample['vocab_size']}"
        )
    patch = variant.sample.get("patch_size", 0)
    if manifest.params.get("min_extent", patch) < patch:
        return f"{point.dataset} has volumes of {manifest.params['min_extent']} voxels across, {who} cuts {patch}"
    return None


def _remedy(name: str, given: bool, variant: str) -> str:
    """What to do about samples of another length than the model takes, whose size is `given` by the spec or not."""
    if given:
        return f"leave model.{name} out, read a dataset of a variant with as many, or take data.source synthetic"
    return f"make it with `--variant {variant}`"


def _missing_dataset(root: Path, folder: Path) -> str:
    if not isinstance(root, ObjectPath) and not root.is_dir():
        raise UserError(f"data.root {root}: no such folder; make a dataset with: benchsuite data generate|convert")
    found = [name for name in storage.FORMATS if is_dataset(root / name)]
    other = f"; try data.format={found[0]}" if found else ""
    return f"{folder}: no dataset there; {root} has {', '.join(found) or 'none'}{other}"


def _bucket_problem(case: Case) -> str | None:
    """Why a dataset in a bucket cannot be read as it lies there, and what helps."""
    spec, form = case.spec, case.form
    if not isinstance(case.point.dataset, ObjectPath) or spec.data.staging == "copy":
        return None
    if spec.data.cache == "direct":
        return "cache direct is of files; a bucket has no page cache: set data.staging: copy, or data.cache: cold"
    if spec.data.staging == "lazy":
        return None
    if not form.from_buckets:
        why = f"format {form.name} is read from files"
        if spec.data.source == "memory":  # which nothing is staged for
            return f"{why}; for data.source: memory copy it first by benchsuite data stage"
        return f"{why}; of a bucket set data.staging: copy or lazy"
    if spec.data.loader == "dali":
        return "loader dali is read from files here; of a bucket use loader torch or threads, or data.staging: copy"
    if spec.measure.profile == "strace":
        return "profile strace tells what is done with files; of a bucket use profile io, or data.staging: copy"
    if spec.measure.profile == "io" and spec.data.reader == "stock":
        return f"profile io sees the requests of our own client alone; of a bucket {storage.OURS}"
    return None


def _direct_problem(case: Case) -> str | None:
    """Why samples cannot be read past the page cache."""
    spec, form = case.spec, case.form
    if spec.data.source != "storage" or spec.data.cache != "direct":
        return None
    if form.direct_problem is None:
        return f"cache direct: format {form.name} is read by mapping or streaming, through the page cache"
    unfit = form.direct_problem(case.manifest)
    return f"cache direct: {unfit}" if unfit else None


def too_few_for_cold(spec: TrialSpec, form: Format, share: int, lanes: int) -> str | None:
    """What would fit where a cold trial would read from memory, and why; None where it would not.

    `share` are the samples of the reader that has fewest, of `lanes` readers in all.
    """
    if spec.data.source != "storage" or (spec.data.cache != "cold" and spec.measure.epochs is None):
        return None
    batches, samples = reader_samples(spec)
    buffered = spec.data.shuffle_buffer if storage.mixes(spec.data) else 0
    if samples + buffered <= share:
        return None
    plus = f" and holds {buffered} more (data.shuffle_buffer)" if buffered else ""
    what = "cold" if spec.measure.epochs is None else "epochs"
    return (
        f"{what}: {_what_fits(spec, share, samples, buffered, lanes)}: each of {lanes} readers takes {batches} batches "
        f"x {spec.rank_batch} = {samples} samples{plus}, and its share of the dataset is {share}; the rest would come "
        f"from memory ({_batches_in_words(spec)})"
    )


def what_fits_all(points: Sequence[Point]) -> str:
    """Settings with which points that have too few samples for a cold trial would all run; empty where none are such.

    One setting where it does, so that it is one of those that each point is told: a smaller buffer that still mixes a
    quarter of a reader's share, or fewer steps; else both.
    """
    found = [point for point in points if point.manifest is not None and point.spec.data.source == "storage"]
    if not found:
        return ""
    fits = [_fits(point) for point in found]
    held, both, steps, buffer = (min(values) for values in zip(*(fit[:4] for fit in fits), strict=True))
    would = "all points with too few samples would run with"
    if held < math.inf and all(one.held <= one.buffer for one in fits):
        return f"{would} -o data.shuffle_buffer={buffer}"
    if steps >= MIN_STEPS:
        return f"{would} -o measure.steps={steps}"
    if both < MIN_STEPS:
        more = f"more data (about {max(one.num_samples for one in fits)} samples)"
        return f"no number of steps fits all points with too few samples: take a smaller batch, or {more}"
    return f"{would} both -o measure.steps={both} and -o data.shuffle_buffer={int(held)}"


class _Fitting(NamedTuple):
    """What fits a point that has too few samples for a cold trial; a buffer is infinite where nothing is mixed."""

    held: float
    """A buffer that mixes a quarter of a reader's share, or what there is room for."""
    both: int
    """The most steps beside it."""
    steps: int
    """The most steps beside the buffer that is asked for."""
    buffer: float
    """The largest buffer beside the steps that are asked for; below 1 where none fits."""
    num_samples: int
    """What a dataset would need."""


def _fits(point: Point) -> _Fitting:
    spec, manifest = point.spec, point.manifest
    assert manifest is not None
    lanes = spec.data_ranks * spec.data.readers
    share = storage.format_of(spec.data.format).smallest_lane(manifest, lanes)
    asked, most = spec.data.shuffle_buffer if storage.mixes(spec.data) else 0, spec.measure.steps
    steps, samples = most_steps(spec, share - asked, most), reader_samples(spec)[1]
    if not asked:
        return _Fitting(math.inf, steps, steps, math.inf, samples * lanes)
    room = share - reader_samples(spec.with_steps(MIN_STEPS))[1]
    held = min(asked, share // 4, max(1, room))
    return _Fitting(held, most_steps(spec, share - held, most), steps, share - samples, (samples + asked) * lanes)


def _batches_in_words(spec: TrialSpec) -> str:
    """How many of a rank's batches are not counted."""
    plan, queue = layout(spec), spec.data.queue_batches
    steps = plan.loader_batches - 1 - plan.held - plan.drains * plan.drained_steps
    return f"{plan.loader_batches + queue} batches a rank, queues and warm-up included, to count {steps}"


def _what_fits(spec: TrialSpec, share: int, samples: int, buffered: int, lanes: int) -> str:
    """The most steps, or the largest shuffle buffer, with which this dataset would do; or how large another would."""
    found = []
    steps = most_steps(spec, share - buffered, spec.measure.steps)
    if steps >= MIN_STEPS:
        found.append(f"measure.steps {steps} or fewer fits")
    if buffered and samples <= share:
        found.append(f"data.shuffle_buffer {share - samples} or less fits")
    or_buffer = ", a smaller data.shuffle_buffer" if buffered and samples > share else ""
    more = f"more data (about {(samples + buffered) * lanes} samples)"
    other = more if found else f"take fewer steps, a smaller batch{or_buffer} or {more}"
    return "; or ".join([*found, other])


OF_TRAINING: tuple[Rule, ...] = (
    _epoch_problem,
    _layout_problem,
    _machine_problem,
    _device_problem,
    _global_batch_problem,
    _emulated_problem,
    _float8_problem,
    _training_problem,
    _memory_problem,
)
OF_DATA: tuple[Rule, ...] = (
    _kind_problem,
    _dataset_problem,
    _samples_problem,
    _loader_problem,
    _reader_problem,
    _bucket_problem,
    _direct_problem,
    _sharing_problem,
    _cold_problem,
)
"""Rules in the order in which they are asked: a later one may rest on what those before it let pass."""
