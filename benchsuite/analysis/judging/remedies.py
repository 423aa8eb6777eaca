"""What helps against what holds a loop back, by name."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchsuite.analysis.judging.judge import Found
from benchsuite.analysis.judging.lost_time import Where
from benchsuite.analysis.judging.setting import Setting
from benchsuite.analysis.judging.shares import waits_for_cores
from benchsuite.analysis.judging.thresholds import CROWDED_SHARE, IDLE_CORES, MANY_TENSORS, SATURATED_SHARE

REMEDIES: Mapping[str, Sequence[str]] = {
    "storage/reads": ("shards", "more_workers", "staging", "faster_storage"),
    "storage/mapped_pages": ("staging", "read_ahead", "more_workers"),
    "storage/amplification": ("smaller_chunks",),
    "preprocessing/decode": ("more_workers", "cheaper_data"),
    "preprocessing/collate": ("cheaper_collate", "more_workers"),
    "preprocessing/hand_over": ("fewer_tensors", "smaller_tensors", "longer_queue"),
    "preprocessing/shuffle_buffer": ("smaller_buffer", "staying_workers"),
    "preprocessing": ("more_workers",),
    "client_cpu/cores": ("more_cores", "fewer_threads"),
    "client_cpu/affinity": ("unbind",),
    "waiting/lock": ("share_less",),
    "waiting/socket": ("more_workers", "nearer_service"),
    "waiting/child_process": ("in_process", "more_workers"),
    "waiting/worker_start": ("staying_workers",),
    "waiting/no_shard": ("more_shards",),
    "waiting/sleep": ("no_sleep",),
    "waiting/checkpoint": ("rarer_checkpoints", "background_checkpoints"),
    "waiting/memory": ("more_memory",),
    "imbalance/slow_rank": ("even_work",),
    "imbalance/fewer_batches": ("even_batches",),
    "communication/communication": ("faster_links", "larger_batches"),
}
"""Names of what helps, the best first, by verdict and cause."""
COMPUTING = frozenset({"preprocessing", "client_cpu"})


def remedies(found: Found, figures: Mapping[str, Any], setting: Setting) -> tuple[str, ...]:
    """Names of what helps, the best first, as far as it is not done already."""
    meant = (found.where,) if found.where.cause or not found.alternatives else found.alternatives
    names = dict.fromkeys(each for where in meant for each in _of(where, found, setting))
    if found.where.verdict == "compute" and waits_for_cores(figures) >= CROWDED_SHARE:  # its own threads do
        names["fewer_threads"] = None
    idle = float(found.evidence.get("idle_cores", IDLE_CORES))
    computes = bool({where.verdict for where in meant} & COMPUTING)
    full = idle < IDLE_CORES if setting.watched else not setting.leaves_cores(figures)
    if full and computes:
        names = dict.fromkeys("more_cores" if name == "more_workers" else name for name in names)
    return tuple(names)


def _of(where: Where, found: Found, setting: Setting) -> Sequence[str]:
    """What helps against one cause; without a known one what helps against any of its verdict is not told."""
    if where.verdict == "communication" and _bubble_is_most(found):
        return ("more_microbatches",)
    names = REMEDIES.get(str(where), ())
    if where.verdict == "client_cpu" and "client_thread_busy_fraction" in found.evidence:
        names = ("more_clients",) if found.evidence.get("client_is_full") else ("more_clients", *names)
    done = {"shards"} if setting.file_per_sample is False else set()
    if "batch_tensors" in found.evidence:
        many = float(found.evidence["batch_tensors"]) >= MANY_TENSORS
        done |= {"smaller_tensors" if many else "fewer_tensors"}
    done |= {"staging"} if setting.staged else set()
    done |= {"staying_workers"} if found.evidence.get("workers_stay") else set()
    done |= {"more_workers"} if where.verdict == "waiting" and found.evidence.get("waits_in_body") else set()
    if float(found.evidence.get("saturation", 0.0)) >= SATURATED_SHARE:
        done |= {"more_workers"}
    return [name for name in names if name not in done]


def _bubble_is_most(found: Found) -> bool:
    share = float(found.evidence.get("communication/communication_fraction", 0.0))
    return float(found.evidence.get("bubble_fraction", 0.0)) > share / 2
