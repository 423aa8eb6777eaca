"""Bytes reconciled: delivered to the model, asked for and fetched by processes, read from the mount or device."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchsuite import storage
from benchsuite.analysis.metrics import MAX_COLD_RESIDENT, MIN_WARM_RESIDENT, storage_shares, total, windows
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.inside.samples import RankSamples
from benchsuite.storage.objects.file import most_ahead_bytes
from benchsuite.storage.observe.requests import Counted, merged, seconds_of

MAX_DISAGREEMENT = 0.05
"""Counters of one thing may differ by this share."""
DELIVERED = "delivered_bytes"
NOISE_BYTES = 4 << 20
"""Differences below that are other programs' small reads and readahead at the ends."""


def in_bucket(spec: TrialSpec) -> bool:
    """Whether the dataset lies in a bucket."""
    return (spec.data.root or "").startswith("s3://")


def reads_figures(results: Sequence[RankSamples], reads_counted: bool) -> dict[str, Any]:
    """What readers delivered, and processes and their node's mount read, from the first loader block to the last.

    Where the dataset's file system does not add its reads to processes' counters (`reads_counted`), the mount's own
    counter stands for what came from storage.
    """
    reads = [result.reads for result in results if result.reads is not None]
    if len(reads) < len(results):
        return {}
    mounts = [entry for entry in reads if entry.mount_read_bytes is not None]
    found: dict[str, Any] = {
        "delivered_bytes": sum(entry.produced_bytes for entry in reads),
        "read_call_bytes": total(entry.read_call_bytes for entry in reads),
        "process_storage_bytes": total(entry.storage_bytes for entry in reads) if reads_counted else None,
        "mount_read_bytes": total(entry.mount_read_bytes for entry in mounts) if mounts else None,
        "mount_counter": mounts[0].mount_source if mounts else None,
        **request_figures([entry.requests for entry in reads if entry.requests is not None]),
    }
    stored = found["process_storage_bytes"] if reads_counted else None
    if not reads_counted and mounts and mounts[0].mount_from_storage:  # some count what was asked for
        stored = found["mount_read_bytes"]
    if stored is not None and found["delivered_bytes"]:
        share = stored / found["delivered_bytes"]
        loader = windows(results, "loader")
        read = sum(block.produced_bytes for window in loader for block in window.blocks)
        found |= storage_shares(share) | {
            "storage_bytes_per_s": share * read / sum(window.seconds for window in loader)
        }
    return found


def request_figures(parts: Sequence[Counted]) -> dict[str, Any]:
    """Requests to a bucket by kind, their retries, and latencies of those that bring contents."""
    if not parts:
        return {}
    asked = merged(parts)
    kinds = {"get": "get", "range": "get_range", "head": "head", "list": "list", "put": "put"}
    return {
        **{f"{name}_requests": asked[kind]["count"] if kind in asked else 0 for name, kind in kinds.items()},
        "request_retries": sum(found["retries"] for found in asked.values()),
        "failed_requests": sum(found["failed"] for found in asked.values()),
        "request_s_p50": seconds_of(asked, "latencies", 0.5),
        "request_s_p99": seconds_of(asked, "latencies", 0.99),
        "first_byte_s_p50": seconds_of(asked, "first_bytes", 0.5),
        "first_byte_s_p99": seconds_of(asked, "first_bytes", 0.99),
    }


def counter_caveats(
    spec: TrialSpec, values: Mapping[str, Any], read_ahead_kb: int | None = None
) -> list[tuple[str, str]]:
    """Residency, the kernel's counters and what readers delivered must tell the same story."""
    delivered = values.get(DELIVERED)
    if not delivered:
        return []
    sample = values["io_bytes_per_s"] / values["samples_per_s"]
    ahead = most_ahead_bytes(storage.format_of(spec.data.format).sequential, sample) if in_bucket(spec) else 0.0
    under_way = spec.ranks * spec.data.readers * (sample + ahead)
    allowed = MAX_DISAGREEMENT + (under_way + NOISE_BYTES) / delivered
    found = [_against_storage(spec, values, allowed, read_ahead_kb), _against_calls(spec, values, under_way, sample)]
    return [("counters_disagree", why) for why in found if why]


def _against_storage(
    spec: TrialSpec, values: Mapping[str, Any], allowed: float, read_ahead_kb: int | None
) -> str | None:
    """Why the cache was not in the state asked for, by what came from storage of what was delivered."""
    resident, hit, cache = values.get("cache_resident_before"), values.get("cache_hit_fraction"), spec.data.cache
    if hit is None:
        return None
    # Ranks of a pipeline or of tensor parallelism read the same samples, through a cache the first from storage alone.
    share = (1.0 - hit) * (1 if cache == "direct" else spec.ranks // spec.data_ranks)
    said = f"of {values[DELIVERED] / 1e6:.1f} MB that readers delivered {share:.0%} came from storage by the counters"
    if cache == "direct":
        return f"direct reads asked for, yet {said}" if 1.0 - share > allowed else None
    if resident is None:
        return None
    if cache == "cold" and resident <= MAX_COLD_RESIDENT and 1.0 - share > allowed:
        ahead_bytes = spec.ranks * spec.data.readers * (read_ahead_kb or 0) * 1024
        if (1.0 - share) * values[DELIVERED] > ahead_bytes:
            return f"cold by residency, yet {said}"
        return (
            f"cold by residency, yet {said}: the kernel reads {(read_ahead_kb or 0) / 1024:.3g} MiB ahead a reader, "
            "so the rest may have been read before the steps that count; more steps on a larger dataset tell"
        )
    if cache == "warm" and resident >= MIN_WARM_RESIDENT and share > allowed:
        return f"warm by residency, yet {said}"
    return None


def _against_calls(
    spec: TrialSpec, values: Mapping[str, Any], under_way_bytes: float, sample_bytes: float
) -> str | None:
    """Why what was delivered cannot all have been read: read calls asked for less.

    Not compared where a format maps files or does not say, where DALI reads ahead, and where libraries read.
    """
    asked, delivered = values.get("read_call_bytes"), values[DELIVERED]
    form = storage.format_of(spec.data.format)
    ours = spec.data.reader not in ("stock", *storage.LIBRARIES)
    if asked is None or form.reads != "calls" or not ours:
        return None
    held = spec.data.shuffle_buffer if form.sequential else 0  # read before they were counted
    held_bytes = spec.ranks * spec.data.readers * held * sample_bytes
    if delivered - asked <= MAX_DISAGREEMENT * delivered + NOISE_BYTES + under_way_bytes + held_bytes:
        return None
    return f"readers delivered {delivered / 1e6:.1f} MB, of which their read calls asked for {asked / 1e6:.1f} MB"


def mount_caveats(results: Sequence[RankSamples], reads_counted: bool) -> list[tuple[str, str]]:
    """What the trial's processes were fetched, and what their nodes' mounts read, must be the same bytes.

    A bucket's client counts contents, the interface that leads there all that comes by it: it may not be less.
    Where a mount counts what it is asked for (Lustre's llite), that may not be more than what the processes asked for;
    they may ask other mounts as well.
    """
    reads = [result.reads for result in results if result.reads is not None]
    mounts = [entry for entry in reads if entry.mount_read_bytes is not None]
    if not mounts:
        return []
    fetched = bool(mounts[0].mount_from_storage)
    ours = total(entry.storage_bytes if fetched else entry.read_call_bytes for entry in reads)
    if len(reads) < len(results) or ours is None or (fetched and not reads_counted):
        return []
    theirs = sum(entry.mount_read_bytes or 0 for entry in mounts)
    if abs(ours - theirs) <= max(NOISE_BYTES, MAX_DISAGREEMENT * max(ours, theirs)):
        return []
    if theirs > ours and any(entry.requests is not None for entry in mounts):
        return []  # headers, and all that others get by the same interface
    if not fetched and ours > theirs:
        return []
    why = "others read beside this trial" if theirs > ours else "the processes' counters hold more than was read"
    what = "read" if fetched else "was asked for"
    said = f"{mounts[0].mount_source} {what} {theirs / 1e6:.1f} MB, ranks and workers {ours / 1e6:.1f} MB: {why}"
    return [("counters_disagree", said)]
