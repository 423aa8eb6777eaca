"""Whether the memory of ranks and of their readers grows while they step, and from where it comes."""

from collections.abc import Iterator, Sequence
from statistics import fmean

from benchsuite.host.interference import Finding
from benchsuite.inside.samples import OwnMemory, RankSamples

LEAST_READINGS = 6
LEAST_GROWN_BYTES = 16e6
"""Less is what libraries keep for later."""
LEVELS_OFF = 0.125
"""What grows by less than this part of it in its last quarter has levelled off: a cache that has filled."""
COPIED_SHARE = 0.5
"""Where so much of what is new was shared before, it was copied."""
FULL_SHARE = 0.9


def memory_caveats(ranks: Sequence[RankSamples]) -> list[Finding]:
    """Caveats on memory: (name, the arithmetic)."""
    found = [("memory_grows", said) for rank in ranks for said in _of_rank(rank)]
    fullest = max((rank.shm_used_fraction or 0.0 for rank in ranks), default=0.0)
    full = [("shared_memory_full", f"{fullest:.0%} of /dev/shm were in use")] if fullest >= FULL_SHARE else []
    return found[:1] + full


def _of_rank(rank: RankSamples) -> Iterator[str]:
    """What is said of a rank's readers that grow, and of its own process."""
    for is_reader in (True, False):
        growing = [each for each in rank.memory if each.is_reader == is_reader and grows(each)]
        if growing:
            yield _said(rank.rank, growing)


def grows(seen: OwnMemory) -> bool:
    """Whether it grows beyond noise, and goes on to; a reader that copies ends when it has copied all.

    What a process shared with readers that have copied it is its own then: it has not grown.
    """
    values, part = seen.private_bytes, len(seen.private_bytes) // 3
    if len(values) < LEAST_READINGS:
        return False
    grown, last = values[-1] - values[0], values[-1] - values[len(values) * 3 // 4 - 1]
    if grown < LEAST_GROWN_BYTES or min(values[-part:]) <= max(values[:part]):
        return False
    return seen.is_reader if _copies(seen) else last >= LEVELS_OFF * grown


def _said(rank: int, growing: Sequence[OwnMemory]) -> str:
    per_min = fmean(60 * (each.private_bytes[-1] - each.private_bytes[0]) / _seconds(each) for each in growing)
    first, last = (fmean(each.private_bytes[at] for each in growing) / 1e6 for at in (0, -1))
    minutes = max(map(_seconds, growing)) / 60
    who = f"each of {len(growing)} readers of rank {rank}" if growing[0].is_reader else f"rank {rank}"
    how = f"{per_min / 1e6:.3g} MB a minute ({first:,.0f} to {last:,.0f} MB in {minutes:.2g} min)"
    said = f"private memory of {who} grows by {how}"
    if all(map(_copies, growing)):  # readers: of other processes these are left out
        said += ": it copies pages that it shared with the process that started it, as where Python counts references"
    return said


def _seconds(seen: OwnMemory) -> float:
    return seen.at_s[-1] - seen.at_s[0]


def _copies(seen: OwnMemory) -> bool:
    """Whether what is new was shared before."""
    grown, shared = (values[-1] - values[0] for values in (seen.private_bytes, seen.shared_bytes))
    return -shared >= COPIED_SHARE * grown
