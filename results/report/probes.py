"""Tables of probes, checkpoints and collectives: what a path or a network gives, beside the trials held back by it."""

from collections.abc import Mapping, Sequence

from benchsuite.results.render.naming import last_part
from benchsuite.results.render.tables import Column, caveats, number
from benchsuite.results.report.comm import COMM_COLUMNS

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
    Column("ranks", lambda row: f"{row.get('spec.world_size')} {row.get('spec.parallelism')}", right=False),
    Column("mode", lambda row: str(row.get("spec.mode")), right=False),
    Column("MB", lambda row: number({**row, "repeats": 1}, "checkpoint_bytes", 1e-6, 1)),
    Column("write MB/s", lambda row: number(row, "checkpoint_write_bytes_per_s", 1e-6, 0)),
    Column("read MB/s", lambda row: number(row, "checkpoint_read_bytes_per_s", 1e-6, 0)),
    Column("blocked s", lambda row: number(row, "checkpoint_blocked_s", digits=3)),
    Column("durable s", lambda row: number(row, "checkpoint_durable_s", digits=3)),
    Column("slow-down", lambda row: number(row, "checkpoint_slowdown")),
    Column("caveats", caveats, right=False, footnote=True),
)
COLUMNS_OF: Mapping[str, Sequence[Column]] = {
    "probe": PROBE_COLUMNS,
    "comm": COMM_COLUMNS,
    "checkpoint": CHECKPOINT_COLUMNS,
}
"""The columns of each kind of record but trials."""
