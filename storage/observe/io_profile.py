"""The I/O profile of a trial: from what each rank's trace noted to counts, percentiles and shares. Pure functions."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchsuite.storage.observe.io_slots import quantile
from benchsuite.storage.observe.requests import HISTOGRAMS, Counted, merged, received_bytes, seconds_of

Trace = Mapping[str, Any]
"""What `benchsuite.storage.observe.io_trace.Tracer.finish` gives, and the readers of other traces in the same form."""
METADATA = ("open", "stat", "seek", "close")
"""Operations that move no content."""
PERCENTILES = {"p50_s": 0.50, "p95_s": 0.95, "p99_s": 0.99}
ENDS = {"p50_s": 0.50, "p99_s": 0.99}


def profile_of(traces: Sequence[Trace]) -> dict[str, Any] | None:
    """The profile of all ranks together; None where there are no traces.

    `observed_fraction`: the share of the readers' batches in which everything was noted; counts are of these alone.
    `operations`: count, errors, bytes, seconds, percentiles and `latencies` (per octave, by its upper end in
    nanoseconds). `read_sizes`: how many reads were of less than so many bytes and at least half as many.
    `order`: reads that were the first of their descriptor, that went on where the last one ended, and others.
    `requests`: to a bucket, by kind, since the trial's beginning; None where none is read.
    `bytes`: what was handed on in all; what was read in the observed batches, by calls seen and by others.
    """
    if not traces:
        return None
    operations = {name: _operation([trace["operations"].get(name) for trace in traces]) for name in _names(traces)}
    seconds = sum(operation["seconds"] for operation in operations.values())
    metadata = sum(operations[name]["seconds"] for name in METADATA if name in operations)
    requests = merged([trace["requests"] for trace in traces if trace.get("requests")])
    first, onward, elsewhere = (sum(values) for values in zip(*(trace["order"] for trace in traces), strict=True))
    return {
        "by": traces[0]["by"],
        "ranks": len(traces),
        "workers": sum(trace["workers"] for trace in traces),
        "threads": sum(trace["threads"] for trace in traces),
        "seconds": max(trace["seconds"] for trace in traces),
        "cost_s_per_call": traces[0].get("cost_s_per_call"),
        "observed_fraction": _observed(traces),
        "operations": operations,
        "io_s": seconds,
        "metadata_fraction": metadata / seconds if seconds else None,
        "read_sizes": _by_size(traces),
        "order": {"first": first, "onward": onward, "elsewhere": elsewhere},
        "sequential_fraction": onward / (onward + elsewhere) if onward + elsewhere else None,
        "files": _files([trace["files"] for trace in traces]),
        **_reconciled(traces, operations.get("read", {}).get("bytes", 0) + received_bytes(requests)),
        "requests": _requests(requests),
    }


def _requests(counted: Counted) -> dict[str, Any] | None:
    """Requests to a bucket by kind, with percentiles of latencies and of the time to the first byte."""
    if not counted:
        return None
    return {
        kind: {name: value for name, value in found.items() if name not in (*HISTOGRAMS, "ns")}
        | {"seconds": found["ns"] / 1e9}
        | {name: seconds_of(counted, "latencies", share, [kind]) for name, share in PERCENTILES.items()}
        | {f"first_byte_{name}": seconds_of(counted, "first_bytes", share, [kind]) for name, share in ENDS.items()}
        for kind, found in counted.items()
    }


def _observed(traces: Sequence[Trace]) -> float:
    batches = sum(trace.get("batches", 0) for trace in traces)
    return sum(trace["observed_batches"] for trace in traces) / batches if batches else 1.0


def _names(traces: Sequence[Trace]) -> list[str]:
    return list(dict.fromkeys(name for trace in traces for name in trace["operations"]))


def _operation(parts: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
    known = [part for part in parts if part]
    latencies: Counter[int] = Counter()
    for part in known:
        latencies.update({int(bucket): count for bucket, count in part["latencies"].items()})
    octaves: Counter[int] = Counter()
    for bucket, count in latencies.items():
        octaves[bucket >> 2] += count
    return {
        "count": sum(part["count"] for part in known),
        "errors": sum(part["errors"] for part in known),
        "bytes": sum(part["bytes"] for part in known),
        "seconds": sum(part["ns"] for part in known) / 1e9,
        "max_s": (longest := max(part["max_ns"] for part in known) / 1e9),
        **{name: min(longest, quantile(latencies, share) / 1e9) for name, share in PERCENTILES.items()},
        "latencies": {str(1 << octave): octaves[octave] for octave in sorted(octaves)},
    }


def _by_size(traces: Sequence[Trace]) -> dict[str, int]:
    sizes: Counter[int] = Counter()
    for trace in traces:
        sizes.update({int(bucket): count for bucket, count in trace["sizes"].items()})
    return {str(1 << bucket): sizes[bucket] for bucket in sorted(sizes)}


def _files(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How the files were used; `bytes_per_size` counts, per rank, the bytes read over those of the files touched."""
    touched = 0
    for part in parts:
        touched |= int(part["touched"] or "0", 16)
    distinct, opens, reads = touched.bit_count(), _total(parts, "opens"), _total(parts, "reads")
    size = _total(parts, "size_bytes")
    return {
        "listed": parts[0]["listed"],
        "followed": parts[0]["followed"],
        "distinct": distinct,
        "opens": opens,
        "opens_per_file": opens / distinct if distinct else None,
        "most_opens": max(part["most_opens"] for part in parts),
        "reads_per_file": reads / distinct if distinct else None,
        "bytes_per_size": _total(parts, "bytes") / size if size else None,
    }


def _total(parts: Sequence[Mapping[str, Any]], name: str) -> int:
    return sum(int(part[name]) for part in parts)


def _reconciled(traces: Sequence[Trace], seen_bytes: int) -> dict[str, Any]:
    """Tell by what the bytes handed on were read: calls that were noted, other calls, or pages of mapped files.

    Calls that were not seen are those that the kernel counted besides for the reading threads, in the same batches;
    where libraries read in threads of their own, for the whole process.
    """
    counted = [trace["counters"]["workers"] if trace["workers"] else trace["counters"]["rank"] for trace in traces]
    names = counted[0] or {}
    whole = {name: sum(each[name] for each in counted) for name in names} if all(counted) else None
    delivered = sum(trace["delivered_bytes"] for trace in traces)
    batches = sum(trace.get("batches", 0) for trace in traces)
    counted_bytes: int | None = whole["read_bytes"] if whole else None
    called = sum(trace["observed_read_bytes"] for trace in traces) if batches else counted_bytes
    return {
        "counters": whole,
        "counters_of": "workers" if traces[0]["workers"] else "ranks",
        "bytes": {
            "delivered": delivered,
            "seen": seen_bytes,
            "only_counted": max(0, called - seen_bytes) if called is not None else None,
            "mapped": max(0, delivered - round(seen_bytes / _observed(traces))) if traces[0]["mapped"] else 0,
        },
        "seen_fraction": seen_bytes / called if called else None,
    }
