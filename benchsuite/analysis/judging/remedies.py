"""What helps against what holds a loop back, by name, and what it would give."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchsuite.analysis.judging.gains import Gain, Known, ranked
from benchsuite.analysis.judging.judge import Found
from benchsuite.analysis.judging.lost_time import Where, hungriest
from benchsuite.analysis.judging.pipeline import pipeline_of
from benchsuite.analysis.judging.setting import Setting
from benchsuite.analysis.judging.shares import waits_for_cores
from benchsuite.analysis.judging.thresholds import CROWDED_SHARE, IDLE_CORES, MANY_TENSORS
from benchsuite.inside.samples import RankSamples

REMEDIES: Mapping[str, Sequence[str]] = {
    "storage/reads": ("shards", "more_workers", "staging", "faster_storage"),
    "storage/mapped_pages": ("staging", "read_ahead", "more_workers"),
    "storage/amplification": ("smaller_chunks",),
    "preprocessing/decode": ("more_workers", "cheaper_data", "more_cores"),
    "preprocessing/collate": ("cheaper_collate", "more_workers", "more_cores"),
    "preprocessing/hand_over": ("fewer_tensors", "smaller_tensors"),
    "preprocessing/shuffle_buffer": ("smaller_buffer", "staying_workers"),
    "preprocessing": ("more_workers", "more_cores"),
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
"""Names of what helps, by verdict and cause; those of unknown gain are told in this order."""


def remedies(
    found: Found, figures: Mapping[str, Any], ranks: Sequence[RankSamples], setting: Setting
) -> tuple[Gain, ...]:
    """What helps, the best first, as far as it is not done already and gains something.

    Args:
        found: what holds the loop back.
        figures: of the loop.
        ranks: what each of them measured; the one that waits longest for its input is judged.
        setting: what else is known of it.
    """
    rank = hungriest([*ranks])
    now = pipeline_of(figures, rank, setting, found.evidence)
    return ranked(_meant(found, figures, setting), now, Known(figures, rank, found.evidence, len(ranks)))


def _meant(found: Found, figures: Mapping[str, Any], setting: Setting) -> Iterator[tuple[str, Where]]:
    """Names of what helps, each with what it helps against."""
    meant = (found.where,) if found.where.cause or not found.alternatives else found.alternatives
    for where in meant:
        for name in _of(where, found, figures, setting):
            yield name, where
    crowded = waits_for_cores(figures) >= CROWDED_SHARE or setting.has_more_threads_than_cores
    if found.where.verdict == "compute" and crowded:  # by its own threads
        yield "fewer_threads", found.where


def _of(where: Where, found: Found, figures: Mapping[str, Any], setting: Setting) -> Sequence[str]:
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
    if where.verdict == "preprocessing" and float(found.evidence.get("idle_cores", 0.0)) >= IDLE_CORES:
        done |= {"more_cores"}
    if setting.threads is not None and setting.fitting_threads(figures) is None:
        done |= {"fewer_threads"}
    return [name for name in names if name not in done]


def _bubble_is_most(found: Found) -> bool:
    share = float(found.evidence.get("communication/communication_fraction", 0.0))
    return float(found.evidence.get("bubble_fraction", 0.0)) > share / 2
