"""Tables of probes, devices, checkpoints and collectives: what a path or a network gives, beside what it holds back."""

from collections.abc import Mapping, Sequence
from functools import partial

from benchsuite.results.render.naming import last_part, parallelism_of
from benchsuite.results.render.tables import ABSENT, Column, Row, caveats, is_missing, number
from benchsuite.results.render.words import binary

_HEAD = (
    Column("path", lambda row: str(row.get("spec.path")), right=False),
    Column("file system", lambda row: str(row.get("env.data.file_system")), right=False),
    Column("host", lambda row: str(row.get("env.host")), right=False),
    Column("session", lambda row: str(row["session"]), right=False),
    Column("status", lambda row: str(row["status"]), right=False),
)
PROBE_COLUMNS = (
    *_HEAD,
    Column("sequential MB/s", lambda row: number(row, "storage_ceiling_bytes_per_s", 1e-6, 0)),
    Column("random MB/s", lambda row: number(row, "random_read_bytes_per_s", 1e-6, 0)),
    Column("reads/s", lambda row: number(row, "random_reads_per_s", digits=0)),
    Column("creates/s", lambda row: number(row, "creates_per_s", digits=0)),
    Column("opens/s", lambda row: number(row, "opens_per_s", digits=0)),
    Column("unlinks/s", lambda row: number(row, "unlinks_per_s", digits=0)),
    Column("engine", lambda row: str(row.get("spec.engine")), right=False),
    Column("caveats", caveats, right=False, footnote=True),
)
CHECKPOINT_COLUMNS = (
    *_HEAD,
    Column("state", lambda row: f"{last_part(row.get('spec.workload'))} {row.get('spec.variant')}", right=False),
    Column("ranks", lambda row: f"{row.get('spec.world_size')} {parallelism_of(row)}", right=False),
    Column("mode", lambda row: str(row.get("spec.mode")), right=False),
    Column("MB", lambda row: number({**row, "repeats": 1}, "checkpoint_bytes", 1e-6, 1)),
    Column("write MB/s", lambda row: number(row, "checkpoint_write_bytes_per_s", 1e-6, 0)),
    Column("read MB/s", lambda row: number(row, "checkpoint_read_bytes_per_s", 1e-6, 0)),
    Column("blocked s", lambda row: number(row, "checkpoint_blocked_s", digits=3)),
    Column("durable s", lambda row: number(row, "checkpoint_durable_s", digits=3)),
    Column("slow-down", lambda row: number(row, "checkpoint_slowdown")),
    Column("caveats", caveats, right=False, footnote=True),
)

DDP_STEP = "ddp_step"
"""The op of a whole training step, whose exchange is DDP's."""


def in_binary(value: object) -> str:
    """A column's size in bytes, which pandas may have made a float; absent where it is missing."""
    return ABSENT if is_missing(value) else binary(int(float(str(value))))


def _spread(row: Row) -> str:
    """The middle 90 % of samples."""
    low, high = row.get("comm_s_p5"), row.get("comm_s_p95")
    if is_missing(low) or is_missing(high):
        return ABSENT
    return f"{number(row, 'comm_s_p5', 1e6, 1)}..{number(row, 'comm_s_p95', 1e6, 1)}"


def _sent(row: Row) -> str:
    """Messages and bytes counted, where the messages are ours."""
    if is_missing(row.get("comm_messages")):
        return ""
    return f"{number(row, 'comm_messages', digits=0)}: {in_binary(row['comm_sent_bytes'])}"


def _size(row: Row) -> str:
    """The size of the array; of a training step, that of its buckets."""
    return in_binary(row.get("spec.bucket_bytes") if row.get("spec.op") == DDP_STEP else row.get("spec.num_bytes"))


def _rate(row: Row, name: str) -> str:
    """GB/s to three digits: small messages have thousandths of what large ones have."""
    value = row.get(name)
    return ABSENT if is_missing(value) else f"{float(str(value)) * 1e-9:.3g}"


def _status(row: Row) -> str:
    reason = row.get("reason")
    return str(row["status"]) if is_missing(reason) else f"{row['status']}: {reason}"


COMM_COLUMNS = (
    Column("op", lambda row: str(row.get("spec.op")), right=False),
    Column("algorithm", lambda row: str(row.get("spec.algorithm")), right=False),
    Column("dtype", lambda row: str(row.get("spec.dtype")), right=False),
    Column("backend", lambda row: str(row.get("spec.backend")), right=False),
    Column("ranks", lambda row: number(row, "spec.world_size", digits=0)),
    Column("nodes", lambda row: number(row, "spec.nodes", digits=0)),
    Column("size", _size),
    Column("us", lambda row: number(row, "comm_s", 1e6, 1)),
    Column("5..95 %", _spread),
    Column("algbw GB/s", lambda row: _rate(row, "algbw_bytes_per_s")),
    Column("busbw GB/s", lambda row: _rate(row, "busbw_bytes_per_s")),
    Column("sent, messages: bytes", _sent, right=False, optional=True),
    Column("ms/step", lambda row: _optional(row, "step_s_p50", 1e3, 2), optional=True),
    Column("exposed ms (least)", lambda row: _optional(row, "communication_min_s", 1e3, 2), optional=True),
    Column("overlap", lambda row: _optional(row, "overlap_fraction", 1, 2), optional=True),
    Column("session", lambda row: str(row["session"]), right=False),
    Column("repeat", lambda row: number(row, "repeat", digits=0)),
    Column("host", lambda row: str(row.get("env.host")), right=False),
    Column("status", _status, right=False),
    Column("caveats", caveats, right=False, optional=True),
)


WHERE_FROM = ("session", "repeat", "host")


def columns_of(found: Sequence[Row]) -> tuple[Column, ...]:
    """The columns, without those of where rows come from that are the same in all."""
    return tuple(
        column
        for column in COMM_COLUMNS
        if column.heading not in WHERE_FROM or len({column.cell(row) for row in found}) > 1
    )


def _optional(row: Row, name: str, scale: float, digits: int) -> str:
    return "" if is_missing(row.get(name)) else number(row, name, scale, digits)


_RATES = (
    *(
        Column(f"{name} TFLOP/s", partial(_optional, name=f"gemm_{name}_tflops", scale=1, digits=2), optional=True)
        for name in ("fp32", "tf32", "bf16", "fp16")
    ),
    Column("memory GB/s", partial(_optional, name="memory_bytes_per_s", scale=1e-9, digits=1)),
    Column("to device GB/s", partial(_optional, name="h2d_bytes_per_s", scale=1e-9, digits=1), optional=True),
    Column("to host GB/s", partial(_optional, name="d2h_bytes_per_s", scale=1e-9, digits=1), optional=True),
)
_OUTCOME = (
    Column("session", lambda row: str(row["session"]), right=False),
    Column("status", _status, right=False),
    Column("caveats", caveats, right=False, optional=True),
)
DEVICE_COLUMNS = (
    Column("device", lambda row: str(row["label"]), right=False),
    *_RATES,
    Column("host", lambda row: str(row.get("env.host")), right=False),
    *_OUTCOME,
)
NODE_COLUMNS = (
    Column("node", lambda row: str(row["label"]), right=False),
    *_RATES,
    Column("storage MB/s", partial(_optional, name="storage_bytes_per_s", scale=1e-6, digits=0), optional=True),
    Column("pairs GB/s", partial(_optional, name="pair_bytes_per_s", scale=1e-9, digits=2), optional=True),
    *_OUTCOME,
)
COLUMNS_OF: Mapping[str, Sequence[Column]] = {
    "probe": PROBE_COLUMNS,
    "comm": COMM_COLUMNS,
    "checkpoint": CHECKPOINT_COLUMNS,
    "device": DEVICE_COLUMNS,
    "node": NODE_COLUMNS,
}
"""The columns of each kind of record but trials."""
