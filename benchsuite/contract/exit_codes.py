"""Exit codes, and the choices of options."""

from enum import StrEnum

OK, CRASH, USAGE, SOME_FAILED, NOTHING_RAN, REQUEUE, INTERRUPTED = 0, 1, 2, 3, 4, 75, 130
REGRESSION = 10
STORE_VARIABLE = "BENCHSUITE_STORE"


class TableFormat(StrEnum):
    """How a table is printed."""

    table = "table"
    json = "json"
    csv = "csv"
    md = "md"


class ImageEncoding(StrEnum):
    """How generated images are encoded."""

    jpeg = "jpeg"
    png = "png"


class PlainFormat(StrEnum):
    """How what is not a table is printed."""

    table = "table"
    json = "json"


class ProbeEngine(StrEnum):
    """Who reads for a probe."""

    auto = "auto"
    fio = "fio"
    own = "own"


class CheckpointMode(StrEnum):
    """How a checkpoint is written."""

    rank0 = "rank0"
    sharded = "sharded"
    async_ = "async"


class CommBackend(StrEnum):
    """Who carries the messages between ranks."""

    auto = "auto"
    gloo = "gloo"
    nccl = "nccl"


class RecordKind(StrEnum):
    """What a record is of."""

    trial = "trial"
    probe = "probe"
    comm = "comm"
    checkpoint = "checkpoint"


class ComparedKind(StrEnum):
    """Of what records are compared and checked."""

    trial = "trial"
    comm = "comm"


class ProfileName(StrEnum):
    """What may be recorded of a trial besides its steps."""

    io = "io"
    strace = "strace"
    torch = "torch"


class Scheduler(StrEnum):
    """Who runs batch jobs."""

    slurm = "slurm"
    pbs = "pbs"


class JobMode(StrEnum):
    """How a sweep becomes batch jobs."""

    sweep = "sweep"
    array = "array"
    per_world_size = "per-world-size"


class SchemaName(StrEnum):
    """What has a JSON Schema."""

    trial = "trial"
    sweep = "sweep"
    record = "record"
    manifest = "manifest"
    machine = "machine"
    model = "model"
    table = "table"
