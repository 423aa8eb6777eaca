"""The requests of the object store's client: counted by kind in memory that processes share, with their latencies.

What a client can see ends at its server: whether that answered from a memory of its own is not known.
"""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from benchsuite.storage.objects import client
from benchsuite.storage.objects.client import KINDS, Request
from benchsuite.storage.observe.io_slots import LATENCY_BUCKETS, SharedRows, latency_bucket, quantile, sparse

Counted = dict[str, dict[str, Any]]
"""Numbers by kind of request: `count`, `failed`, `retries`, `bytes`, `ns`, `latencies` and `first_bytes` by bucket."""
_COUNT, _FAILED, _RETRIES, _BYTES, _NS = range(5)
_LATENCIES = 5
_FIRST_BYTES = _LATENCIES + LATENCY_BUCKETS
_OF_A_KIND = _FIRST_BYTES + LATENCY_BUCKETS
HISTOGRAMS = ("latencies", "first_bytes")
READS = ("get", "get_range")
"""Kinds whose answers are contents of objects."""
_active: "Requests | None" = None


class Requests(SharedRows):
    """Counts the requests of this process and those forked from it, from `start` to `stop`."""

    def __init__(self, threads: int) -> None:
        super().__init__(threads, 1 + len(KINDS) * _OF_A_KIND, "requests")

    def start(self) -> "Requests":
        """Begin to count."""
        global _active
        _active = client.watcher = self
        return self

    def stop(self) -> None:
        """End it."""
        global _active
        _active = client.watcher = None

    def __call__(self, request: Request) -> None:
        """Count a request that has ended."""
        row = self.own()
        at = 1 + KINDS.index(request.kind) * _OF_A_KIND
        took_ns = round(request.seconds * 1e9)
        row[at + _COUNT] += 1
        row[at + _FAILED] += request.failed
        row[at + _RETRIES] += request.retries
        row[at + _BYTES] += request.num_bytes
        row[at + _NS] += took_ns
        row[at + _LATENCIES + latency_bucket(took_ns)] += 1
        if request.first_byte_s is not None:
            row[at + _FIRST_BYTES + latency_bucket(round(request.first_byte_s * 1e9))] += 1

    def now(self) -> npt.NDArray[np.int64]:
        """All counts so far, for `counted`."""
        return np.asarray(self.used()[:, 1:].sum(axis=0))


def counted(before: npt.NDArray[np.int64], after: npt.NDArray[np.int64]) -> Counted:
    """What was counted between two moments, of the kinds that there were."""
    found: Counted = {}
    for kind, words in zip(KINDS, (after - before).reshape(len(KINDS), _OF_A_KIND), strict=True):
        if not words[_COUNT]:
            continue
        found[kind] = {
            "count": int(words[_COUNT]),
            "failed": int(words[_FAILED]),
            "retries": int(words[_RETRIES]),
            "bytes": int(words[_BYTES]),
            "ns": int(words[_NS]),
            "latencies": sparse(words[_LATENCIES:_FIRST_BYTES]),
            "first_bytes": sparse(words[_FIRST_BYTES:]),
        }
    return found


def received_bytes(requests: Counted) -> int:
    """Bytes of contents that came, whole or by ranges."""
    return sum(requests[kind]["bytes"] for kind in READS if kind in requests)


def merged(parts: Sequence[Counted]) -> Counted:
    """What several ranks asked for, together."""
    found: Counted = {}
    for kind in KINDS:
        known = [part[kind] for part in parts if kind in part]
        if known:
            sums = {name: sum(each[name] for each in known) for name in ("count", "failed", "retries", "bytes", "ns")}
            found[kind] = sums | {name: _together([each[name] for each in known]) for name in HISTOGRAMS}
    return found


def _together(histograms: Iterable[Mapping[str, int]]) -> dict[str, int]:
    summed: Counter[int] = Counter()
    for histogram in histograms:
        summed.update({int(bucket): count for bucket, count in histogram.items()})
    return {str(bucket): summed[bucket] for bucket in sorted(summed)}


def seconds_of(requests: Counted, histogram: str, share: float, kinds: Sequence[str] = READS) -> float | None:
    """Seconds below which a share of these kinds' latencies, or times to the first byte, lies; None without any."""
    buckets = _together(requests[kind][histogram] for kind in kinds if kind in requests)
    return quantile({int(at): count for at, count in buckets.items()}, share) / 1e9 if buckets else None


def _forget_in_child() -> None:
    if _active is not None:
        _active.forget()


os.register_at_fork(after_in_child=_forget_in_child)
