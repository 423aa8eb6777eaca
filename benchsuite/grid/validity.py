"""Why a point cannot run: its workload, its layout, this machine, its dataset; each reason with the arithmetic."""

import math
from collections.abc import Sequence
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


def why_invalid(point: Point, machine: Machine) -> str | None:
    """Why a point cannot run on this machine with this dataset, with the arithmetic; None where it can."""
    spec = point.spec
    facts = facts_of(spec)
    variant = spec.variant_in(facts.variants)
    unfit = _epoch_problem(spec) or why_unfit(spec, facts, variant, machine)
    reads = spec.emulated or spec.data.source != "synthetic"
    return unfit or (_dataset_problem(point, facts, variant) if reads else None)


def _epoch_problem(spec: TrialSpec) -> str | None:
    """Why there is no epoch whose steps could be counted beforehand."""
    if spec.measure.epochs is None:
        return None
    if spec.data.source != "storage":
        return f"measure.epochs {spec.measure.epochs} with source {spec.data.source}: no dataset is read through"
    if spec.batch_size == "auto":
        return (
            f"measure.epochs {spec.measure.epochs} with batch_size auto: the steps of an epoch need a batch; give one"
        )
    return None


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
    if spec.cpu_binding == "device" and spec.device != "cuda":
        return f"cpu_binding device keeps ranks near CUDA devices, device is {spec.device}"
    if spec.measure.profile == "nvtx" and spec.device != "cuda":
        return f"profile nvtx marks a CUDA device's timeline, device is {spec.device}"
    if spec.global_batch_size is not None and spec.global_batch_size % layout.dp:
        return f"global_batch_size {spec.global_batch_size} is not a multiple of {layout.dp} data-parallel ranks"
    if spec.emulated:
        return emulated_problem(spec)
    unfit = _float8_problem(spec, machine) or problem(facts, variant, layout, spec, spec.rank_batch, spec.device)
    return unfit or _memory_problem(spec, facts, variant, machine)


def _memory_problem(spec: TrialSpec, facts: Facts, variant: Variant, machine: Machine) -> str | None:
    """Why the model, as ranks build it, does not fit the memory of a host.

    Parts of it are made on the device, unless weights are kept in host memory. What a step needs besides is not looked
    at: `trial --validate` counts it.
    """
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


def _float8_problem(spec: TrialSpec, machine: Machine) -> str | None:
    """Why the package or the devices for fp8 are not here, where the trial is to run here."""
    if spec.precision != "fp8" or spec.device != "cuda" or machine.elsewhere:
        return None
    if not is_installed("torchao"):
        return f"precision fp8 needs torchao, which is not installed: {remedy('torchao')}"
    found = cuda_capability()
    if found is not None and found < FLOAT8_CAPABILITY:
        words = [".".join(map(str, each)) for each in (FLOAT8_CAPABILITY, found)]
        return f"precision fp8 needs CUDA devices of compute capability {words[0]}, one here has {words[1]}"
    return None


def _machine_problem(spec: TrialSpec, machine: Machine) -> str | None:
    """Why the nodes or devices here are too few."""
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


def _dataset_problem(point: Point, facts: Facts, variant: Variant) -> str | None:
    spec, manifest = point.spec, point.manifest
    if point.dataset is None:
        raise UserError(f"data.root is missing: source {spec.data.source} reads a dataset")
    form = storage.format_of(spec.data.format)
    if facts.kind not in form.kinds:
        stores = " and ".join(sorted(form.kinds))
        return f"format {form.name} stores {stores} samples, {spec.workload} takes {facts.kind}"
    if manifest is None:
        return _missing_dataset(path_of(str(spec.data.root)), point.dataset)
    if manifest.format != spec.data.format:
        return f"{point.dataset} holds format {manifest.format}, not {spec.data.format}"
    if manifest.kind != facts.kind:
        return f"{point.dataset} holds {manifest.kind} samples, {spec.workload} takes {facts.kind}"
    unfit = _unfit_samples(point, manifest, variant) or storage.loader_problem(spec.data.loader, manifest.kind)
    unfit = unfit or storage.reader_problem(spec.data, manifest)
    if unfit:
        return unfit
    lanes = spec.data_ranks * (spec.data.readers if spec.data.source == "storage" else 1)
    unfit = _bucket_problem(point, form) or _direct_problem(spec, form, manifest) or form.problem(manifest, lanes)
    return unfit or too_few_for_cold(spec, form, form.smallest_lane(manifest, lanes), lanes)


def _unfit_samples(point: Point, manifest: Manifest, variant: Variant) -> str | None:
    """Why samples of the right kind do not fit the variant: classes, lengths, extents."""
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


def _bucket_problem(point: Point, form: Format) -> str | None:
    """Why a dataset in a bucket cannot be read as it lies there, and what helps."""
    spec = point.spec
    if not isinstance(point.dataset, ObjectPath) or spec.data.staging == "copy":
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


def _direct_problem(spec: TrialSpec, form: Format, manifest: Manifest) -> str | None:
    """Why samples cannot be read past the page cache."""
    if spec.data.source != "storage" or spec.data.cache != "direct":
        return None
    if form.direct_problem is None:
        return f"cache direct: format {form.name} is read by mapping or streaming, through the page cache"
    unfit = form.direct_problem(manifest)
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
