"""TrialSpec and SweepSpec: the vocabulary of the grid, its validation, and stable ids (no torch)."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from benchsuite import storage, workloads
from benchsuite.contract import emulated_devices
from benchsuite.contract.errors import UserError, in_words, mistakes_of, nearest, refuse, several
from benchsuite.contract.session import MAX_NAME_LENGTH
from benchsuite.contract.yaml_file import flat
from benchsuite.storage.dataset.spec import DataSpec
from benchsuite.storage.objects.path import path_of
from benchsuite.workloads import engine as engines
from benchsuite.workloads import revisions
from benchsuite.workloads.layout import COMPOSED, Layout, LayoutError, layout_of
from benchsuite.workloads.revisions import Revision, Subject
from benchsuite.workloads.spec import MAX_COUNT, MAX_RANKS, ComputeSpec, ModelSpec, Parallelism, Variant

MAX_TIMEOUT_S = 1e6
MAX_REPEATS = 10_000
MAX_SEED = 1 << 42
"""Seeds of each step and rank, which are made of it, fit 64 bits."""
UNUSED_BY_MEMORY = ("reader", "cache", "staging", "staging_dir", "num_workers", "prefetch_factor", "shuffle_buffer")
"""Data settings without effect where one batch is read."""
READERS = ("stock", "tuned", *storage.LIBRARIES)
WITHOUT_IDENTITY = {"measure": {"repeats", "timeout_s", "profile", "ceilings"}}
"""Fields that do not change what is measured, left out of ids."""
PATHS = {"data": {"root", "staging_dir"}}
"""Fields that differ from site to site, left out of what trials are matched by."""


ProfileName = Literal["io", "strace", "torch", "nvtx"]


class MeasureSpec(BaseModel):
    """How much is measured."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    steps: int = Field(30, ge=2, le=MAX_COUNT, description="counted steps with the loader's input, over two blocks")
    warmup_steps: int = Field(5, ge=1, le=MAX_COUNT, description="uncounted steps before the first block")
    epochs: Literal[1] | None = Field(
        None,
        description="1: a whole epoch in place of measure.steps, as many as a reader's share of the dataset has when "
        "what it holds ahead is taken off",
    )
    repeats: int = Field(3, ge=1, le=MAX_REPEATS, description="trials per point, each a new process")
    timeout_s: float = Field(
        900,
        gt=0,
        le=MAX_TIMEOUT_S,
        allow_inf_nan=False,
        description="a trial that takes longer is killed with its whole process tree",
    )
    seed: int = Field(0, ge=0, le=MAX_SEED, description="of weights, order and augmentation")
    ceilings: bool = Field(
        True, description="measure the loader with no model, and a plain reader of the files, once a session"
    )
    profile: ProfileName | None = Field(
        None,
        description="also record what readers do with files (strace: no AU then), PyTorch's own profile, or NVTX "
        "ranges for Nsight Systems",
    )


class TrialSpec(ComputeSpec):
    """One point of the grid. `grid.resolve` fills what is left to the machine."""

    workload: str = Field(description="a name of workloads.WORKLOADS, or path/to/file.py:WORKLOAD")
    variant: str = Field("reference", description="tiny (seconds on one CPU core) ... reference")
    model: ModelSpec = Field(ModelSpec(), description="sizes in place of the variant's")
    data: DataSpec = Field(default_factory=DataSpec)
    device: str = Field(
        "auto",
        description="auto | cpu | cuda | emulated:a100 (a published step time) | emulated:180ms | "
        "emulated:from-record ID (the step time of a record in the store)",
    )
    parallelism: str | Parallelism = Field(
        "none",
        description="none | ddp | zero1 | zero2 | fsdp | hsdp | tp | pp | cp | ep, or degrees such as {dp: 2, tp: 2}",
    )
    world_size: int | None = Field(None, ge=1, le=MAX_RANKS, description="ranks; default: the product of the degrees")
    nodes: int | None = Field(
        None, ge=1, le=MAX_RANKS, description="with ranks_per_node instead of world_size, or to spread it"
    )
    ranks_per_node: int | None = Field(
        None, ge=1, le=MAX_RANKS, description="default: one a device, or as many as a node's cores have threads for"
    )
    node: str | None = Field(
        None, description="the node of the launcher's on which it runs; in a sweep `each`: a point for every one"
    )
    batch_size: Annotated[int, Field(ge=1, le=MAX_COUNT)] | Literal["auto"] | None = Field(
        None,
        description="samples per data-parallel rank and step; auto: the largest that fits a CUDA device, less a "
        "twentieth",
    )
    global_batch_size: int | None = Field(
        None, ge=1, le=MAX_COUNT, description="samples of all ranks per step, instead of batch_size"
    )
    threads_per_rank: int | None = Field(
        None, ge=1, le=MAX_COUNT, description="default: cores / largest world size, at least 1"
    )
    cpu_binding: Literal["none", "device"] | None = Field(
        None, description="device: a rank and its loader keep to the cores near its CUDA device; default on cuda"
    )
    measure: MeasureSpec = Field(default_factory=MeasureSpec)

    @model_validator(mode="after")
    def _what_goes_together(self) -> "TrialSpec":
        if self.batch_size is None and self.global_batch_size is None:
            raise ValueError("give batch_size or global_batch_size")
        if self.batch_size is not None and self.global_batch_size is not None:
            raise ValueError("give batch_size or global_batch_size, and not both: batch_size=null leaves that one out")
        if self.node is not None and (self.nodes or 1) > 1:
            raise ValueError(f"node {self.node} is one, nodes is {self.nodes}")
        given = self.parallelism.model_fields_set if isinstance(self.parallelism, Parallelism) else ()
        if "cp_attention" in given and "cp" not in given:
            raise ValueError("parallelism.cp_attention is of ranks that share sequences: give cp, the number of them")
        if self.ranks > MAX_RANKS:
            raise ValueError(f"{self.ranks} ranks; allowed: up to {MAX_RANKS}")
        if self.nodes is None:
            return self
        if self.ranks_per_node is None and self.ranks % self.nodes:
            raise ValueError(f"nodes {self.nodes} does not divide {self.ranks} ranks; give ranks_per_node")
        if self.ranks_per_node is not None and self.ranks != self.nodes * self.ranks_per_node:
            asked = self.nodes * self.ranks_per_node
            each = f"nodes {self.nodes} x ranks_per_node {self.ranks_per_node} = {asked}"
            raise ValueError(f"{each} ranks; world_size or degrees say {self.ranks}")
        return self

    @model_validator(mode="after")
    def _known_names(self) -> "TrialSpec":
        data = self.data
        wrong = name_mistakes(self.workload, self.parallelism, data.format, data.loader, self.device, data.reader)
        if error := several(wrong):
            raise error
        return self

    def variant_in(self, variants: Mapping[str, Variant]) -> Variant:
        """The variant of a workload that is asked for, in the sizes of `model`.

        Raises:
            UserError: there is no such variant, or it has no such size.
        """
        if self.variant not in variants:
            raise refuse(f"variant of {self.workload}", self.variant, variants)
        variant, sizes = variants[self.variant], self.model.model_dump(exclude_none=True)
        if unknown := [name for name in sizes if name not in variant.sizes]:
            of = f"{self.workload} {self.variant} has no such size{nearest(unknown[0], variant.sizes)}"
            raise UserError(f"model.{unknown[0]}: {of}; allowed: {', '.join(variant.sizes) or 'none'}")
        return variant.resized(sizes)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        if self.world_size is not None:
            return self.world_size
        if self.nodes is not None and self.ranks_per_node is not None:
            return self.nodes * self.ranks_per_node
        if isinstance(self.parallelism, str):
            return self.nodes or 1
        asked = self.parallelism
        return (asked.dp or 1) * asked.tp * asked.pp * asked.cp

    @property
    def layout(self) -> Layout:
        """How the ranks are laid out.

        Raises:
            LayoutError: they cannot be, with the arithmetic.
        """
        each = self.ranks_per_node or (self.ranks // self.nodes if self.nodes else None)
        return layout_of(self.parallelism, self.ranks, each)

    @property
    def revisions(self) -> list[Revision]:
        """What its mode or workload measures otherwise than in earlier versions."""
        try:
            layout = self.layout
        except LayoutError:  # such a point does not run
            return []
        nodes = self.nodes or -(-self.ranks // (self.ranks_per_node or self.ranks))
        return [] if self.emulated else revisions.revisions_of(Subject(self.workload, layout, self, nodes))

    @property
    def data_ranks(self) -> int:
        """Ranks that see samples of their own; all ranks where there is no layout."""
        try:
            return self.layout.dp
        except LayoutError:
            return self.ranks

    def with_steps(self, steps: int) -> "TrialSpec":
        """The spec with other measure.steps."""
        return self.model_copy(update={"measure": self.measure.model_copy(update={"steps": steps})})

    @property
    def emulated(self) -> bool:
        """Whether its device is not here, and steps only take their time."""
        return emulated_devices.is_emulated(self.device)

    @property
    def emulated_step_s(self) -> float | None:
        """Seconds a step takes on an emulated device; None on a real one."""
        return emulated_devices.step_s(self.device, self.workload) if self.emulated else None

    @property
    def hides_communication(self) -> bool:
        """Whether collectives run within compiled code, where steps cannot be marked."""
        return self.compile and self.layout.tp > 1

    @property
    def rank_batch(self) -> int:
        """Samples per data-parallel rank and step."""
        if self.batch_size == "auto":
            return self.batch_unit
        return self.batch_size if self.batch_size is not None else (self.global_batch_size or 0) // self.data_ranks

    @property
    def batch_unit(self) -> int:
        """What a rank's batch must be a multiple of: the pieces it is cut into."""
        try:
            return self.grad_accum * self.layout.microbatches
        except LayoutError:
            return self.grad_accum

    @property
    def global_batch(self) -> int:
        """Samples of all ranks per step."""
        return self.rank_batch * self.data_ranks


class SweepSpec(BaseModel):
    """A sweep file: a base trial and how to vary it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=MAX_NAME_LENGTH, description="of the sweep, in records"
    )
    question: str | None = Field(None, description="heads the report")
    rank_by: Literal["samples_per_s", "au", "cost", "tflops"] = Field(
        "samples_per_s",
        description="what the report ranks choices by: samples/s, utilization, samples/s of a device (cost), or "
        "its FLOP/s (tflops), by which models of other sizes can be compared",
    )
    base: dict[str, Any] = Field(description="any field of a trial")
    grid: dict[str, list[Any]] = Field(default_factory=dict, description="Cartesian product over dotted keys")
    zip: dict[str, list[Any]] = Field(default_factory=dict, description="keys that vary together")
    exclude: list[dict[str, Any]] = Field(
        default_factory=list, description="points that match one of these are dropped"
    )
    include: list[dict[str, Any]] = Field(default_factory=list, description="points added to the grid")
    scaling: Literal["weak", "strong"] | None = Field(
        None, description="weak: batch_size fixed per rank | strong: global_batch_size fixed"
    )


def name_mistakes(
    workload: object, parallelism: object, format: object, loader: object, device: object, reader: object
) -> Iterator[str]:
    """What is wrong with names that no registry has; what is no text is not a name."""
    if isinstance(workload, str) and ":" not in workload:
        yield from mistakes_of(partial(_check_name, "workload", workload, workloads.WORKLOADS))
    engine = parallelism.engine if isinstance(parallelism, Parallelism) else None
    if isinstance(parallelism, Mapping):
        engine = parallelism.get("engine")
    if isinstance(engine, str) and engine not in ("torch", *engines.ENGINES) and engine not in engines.names():
        mode = f"; {engine} is a mode: write parallelism: {engine}" if engine in workloads.MODES else ""
        yield f"{refuse('parallelism.engine', engine, engines.names())}{mode}"
    if isinstance(parallelism, str) and parallelism not in (*workloads.MODES, *COMPOSED):
        yield _unknown_mode(parallelism)
    if isinstance(format, str):
        yield from mistakes_of(partial(_check_name, "data.format", format, storage.FORMATS))
    if isinstance(loader, str):
        yield from mistakes_of(partial(_check_name, "data.loader", loader, storage.LOADERS))
    if isinstance(device, str):
        yield from mistakes_of(partial(_check_device, device))
    if isinstance(reader, str) and ":" not in reader and reader not in READERS:
        yield str(refuse("data.reader", reader, (*READERS, "path/to/mine.py:READER")))


def _unknown_mode(name: str) -> str:
    """What is said of a name that is no mode; engines, and ZeRO's third stage, are written otherwise."""
    if name == "zero3":
        return f"parallelism {name!r} is unknown: stage 3 is called fsdp, and {{zero: 3}} goes with other degrees"
    if name in engines.ENGINES:
        return f"parallelism {name!r} is an engine: write parallelism: {{engine: {name}}}"
    return str(refuse("parallelism", name, workloads.MODES))


def _check_name(what: str, name: str, registry: Mapping[str, Any]) -> None:
    """Refuse a name that neither we have nor an installed package; those are looked through only then."""
    if name not in registry:
        known = storage.names(registry, f"benchsuite.{what.removeprefix('data.')}s")
        if name not in known:
            raise refuse(what, name, known)


def _check_device(name: str) -> None:
    if emulated_devices.is_emulated(name):
        emulated_devices.check_device(name)
    elif name not in ("auto", "cpu", "cuda"):
        raise refuse("device", name, ("auto", "cpu", "cuda", *emulated_devices.names(), "emulated:180ms"))


def check_staging(specs: Sequence[TrialSpec]) -> None:
    """A folder for copies is for points that are staged, of which there must be one.

    Raises:
        UserError: there is none.
    """
    given = [spec.data.staging_dir for spec in specs if spec.data.staging_dir is not None]
    if given and all(spec.data.staging == "none" for spec in specs):
        raise UserError(f"data.staging_dir {given[0]!r} without data.staging: give copy or lazy, or leave it out")


def resolved_data(data: DataSpec) -> DataSpec:
    """Data settings without those that their source does not use, and with absolute paths."""
    defaults = {name: field.default for name, field in DataSpec.model_fields.items()}
    unused: Mapping[str, Sequence[str]] = {
        "storage": () if data.staging != "none" else ("staging_dir",),
        "memory": UNUSED_BY_MEMORY,
        "synthetic": [name for name in defaults if name != "source"],
    }
    kept = data.model_dump() | {name: defaults[name] for name in unused[data.source]}
    paths = {name: str(path_of(kept[name]).expanduser().absolute()) for name in ("root", "staging_dir") if kept[name]}
    return DataSpec.model_validate(kept | paths)


def parse_trial(value: Mapping[str, Any]) -> TrialSpec:
    """A TrialSpec from nested plain values.

    Raises:
        UserError: a line for each mistake.
    """
    try:
        return TrialSpec.model_validate(dict(value))
    except ValidationError as error:
        given = flat(value)
        named = ("workload", "parallelism", "data.format", "data.loader", "device", "data.reader")
        names = name_mistakes(*map(given.get, named))
        raise several(chain(in_words(error, TrialSpec), names)) or UserError(str(error)) from None


def parse_sweep(value: Mapping[str, Any]) -> SweepSpec:
    """A SweepSpec from nested plain values.

    Raises:
        UserError: a line for each mistake.
    """
    try:
        return SweepSpec.model_validate(dict(value))
    except ValidationError as error:
        own = {*TrialSpec.model_fields} - {*SweepSpec.model_fields}
        of_trials = [key for key in value if str(key).partition(".")[0] in own]
        told = [*in_words(error, SweepSpec)]
        if of_trials:
            key = of_trials[0]
            told[0] += f"; {key} is a key of trials: put it under base, or `benchsuite trial` runs the file"
        raise UserError(*told) from None


def point_id(spec: TrialSpec, dataset_id: str | None) -> str:
    """Digest of a resolved spec's non-default fields, its revisions and the dataset's id: new fields change no id."""
    return _digest(spec, dataset_id, WITHOUT_IDENTITY, spec.revisions)


def match_id(spec: TrialSpec, dataset_id: str | None) -> str:
    """Digest of the same without paths, by which trials of other sites, nights and versions are matched."""
    return _digest(spec, dataset_id, WITHOUT_IDENTITY | PATHS, spec.revisions)


def revision_fields(spec: TrialSpec, dataset_id: str | None) -> dict[str, str | None]:
    """What a record says of its point's revisions: empty where there are none."""
    if not spec.revisions:
        return {}
    return {
        "revision": revisions.in_words(spec.revisions),
        "revision_reason": "; ".join(f"{one.name}: {one.why}" for one in spec.revisions),
        "former_match_id": _digest(spec, dataset_id, WITHOUT_IDENTITY | PATHS, ()),
    }


def _digest(spec: TrialSpec, dataset_id: str | None, left_out: dict[str, set[str]], revised: Sequence[Revision]) -> str:
    fields = spec.model_dump(exclude_defaults=True, exclude=left_out)
    fields.pop("nodes", None)  # those of hsdp, which were always there and are told since
    if spec.cpu_binding == "none":  # what all records from before this field did
        fields.pop("cpu_binding")
    if spec.data.reader == "tuned":  # what all records from before this field did
        fields["data"].pop("reader")
        fields = {name: value for name, value in fields.items() if value != {}}
    for part in left_out:
        if not fields.get(part):
            fields.pop(part, None)
    numbers = {"revisions": {one.of: one.number for one in revised}} if revised else {}
    return digest({"spec": fields, "dataset_id": dataset_id, **numbers})


def digest(identity: Mapping[str, Any]) -> str:
    """Twelve hexadecimal digits that tell what was measured: its canonical JSON's."""
    canonical = json.dumps(identity, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def trial_id(point: str, session: str, repeat: int) -> str:
    """A trial is point x session x repeat."""
    return f"{point}.{session}.{repeat}"
