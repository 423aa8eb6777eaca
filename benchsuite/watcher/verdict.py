"""What holds a watched loop back, with its evidence, and what would help; or why that cannot be told."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchsuite.analysis.verdict import COMMUNICATION_SHARE, CONTENTION_SHARE, HELD_BACK_AU, MAIN_SHARE
from benchsuite.results.store.record import CANNOT_TELL, MAX_AU
from benchsuite.watcher.rank_loop import RankLoop

REFILL_SHARE = 0.2
"""Of the waiting for input: from this on the start of passes is told, which workers that stay would shorten."""
MAX_OVERHEAD = 0.05
"""Watching that takes more of the step than this hides what the step itself does."""
MAX_SHARE = 1.005
"""The kernel's counters of other processes are a tick behind: a worker that never rests is busy for up to so much,
which is printed as 100 %."""


def doubt(ranks: Sequence[RankLoop], au: float | None) -> str | None:
    """Why no verdict can rest on what was measured; None where one can.

    Shares are told as they were measured: what is above 1 was measured wrong, and nothing is cut to fit.
    """
    for rank in ranks:
        where = f" on rank {rank.rank}" if len(ranks) > 1 else ""
        overhead, step_s = rank.overhead, rank.seconds / rank.num_steps
        if overhead is not None and overhead > MAX_OVERHEAD:
            said = f"watching takes {overhead:.1%} of a step of {step_s * 1e6:,.1f} us{where}"
            return f"{said}; above {MAX_OVERHEAD:.0%} it hides what the loop does"
        for what, share in _shares(rank):
            if share is not None and not 1 - MAX_SHARE <= share <= MAX_SHARE:
                return f"{what} {share:.0%} of the time{where}, which no share can be"
    if au is not None and au > MAX_AU:
        return f"AU {au:.2f} is above 1 by more than its noise: steps were slower on batches seen before"
    return None


def _shares(rank: RankLoop) -> list[tuple[str, float | None]]:
    """What is measured by a clock of its own, as shares of a rank's time."""
    who = "its worker processes are" if rank.num_readers else "its loader is"
    return [
        ("it waits for input", rank.parts_s.get("load", 0.0) / rank.seconds),
        ("it waits for a core", None if rank.run_queue_s is None else rank.run_queue_s / rank.wall_s),
        (f"{who} busy for", rank.reader_busy_fraction),
        ("its loading thread is busy for", rank.loader_busy_fraction),
    ]


def verdict(found: Mapping[str, Any], slowest: RankLoop, communication_least_s: float | None = None) -> tuple[str, str]:
    """(bottleneck, evidence), by the thresholds of `diagnose`.

    What the input costs a step is weighed against exchange and bubble: the larger is named, near-equal ones are mixed.
    `communication_least_s` is that of the rank whose exchange is shortest: longer ones wait for ranks without
    input.
    Where the loop waits for input, readers that are busy are the client's, readers that rest wait for what they read.
    Where it waits for a core instead and is slower than on a batch in memory, readers take cores from the computation.
    """
    stall, au = found["input_stall_fraction"], found.get("au")
    evidence = _waits(found)
    held = 1 - stall if au is None else au
    communication_s = found.get("communication_s") or 0.0
    if held >= HELD_BACK_AU:
        share, said = _between_ranks(found, communication_s)
        return (
            ("communication", f"{evidence}; {said}")
            if share > COMMUNICATION_SHARE
            else ("compute", f"{evidence}: input keeps up")
        )
    share, said = _between_ranks(found, communication_s if communication_least_s is None else communication_least_s)
    of_input = (1 - held) / (1 - held + share)
    if of_input <= 1 - MAIN_SHARE:
        return "communication", f"{evidence}; {said}"
    name, evidence = _of_input(evidence, found, slowest)
    if name == CANNOT_TELL:
        return name, evidence
    if share >= 1 - HELD_BACK_AU:
        evidence = f"{evidence}; {said}"
    return name if of_input >= MAIN_SHARE or share < 1 - HELD_BACK_AU else "mixed", evidence


def _waits(found: Mapping[str, Any]) -> str:
    """What the step waits for, as evidence."""
    au, contention = found.get("au"), found.get("cpu_contention_fraction")
    evidence = f"{found['input_stall_fraction']:.0%} of the step waits for input"
    if au is not None:
        evidence = f"AU {au:.2f}; {evidence}"
    return evidence if contention is None else f"{evidence}, {contention:.0%} for a core"


def _between_ranks(found: Mapping[str, Any], communication_s: float) -> tuple[float, str]:
    """The larger of exchange and bubble as a share of the step, in words too."""
    exchange, bubble = communication_s / found["step_s_mean"], (found.get("bubble_s") or 0.0) / found["step_s_mean"]
    if bubble > exchange:
        return bubble, f"waiting for other stages of the pipeline is {bubble:.0%} of the step"
    return exchange, f"exchange is {exchange:.0%} of the step, stragglers included"


def _of_input(evidence: str, found: Mapping[str, Any], slowest: RankLoop) -> tuple[str, str]:
    """What of the input holds the loop back."""
    if found["refill_fraction"] > REFILL_SHARE:
        evidence += f"; {found['refill_fraction']:.0%} of that wait is for the first batch of a pass"
    if not _beside_input(found):
        return _of_readers(evidence, found, slowest)
    lost = 1 - found["au"] - found["input_stall_fraction"]
    if (found.get("cpu_contention_fraction") or 0.0) < lost / 2:
        return "mixed", f"{evidence}; what else makes it slower than on a batch in memory cannot be told"
    return "preprocessing", f"{evidence}; readers take cores from the computation"


def _beside_input(found: Mapping[str, Any]) -> bool:
    """Whether steps are slower than on a batch in memory, and mostly not for waiting for their input."""
    au: float | None = found.get("au")
    return au is not None and bool(found["input_stall_fraction"] < (1 - au) / 2)


def _of_readers(evidence: str, found: Mapping[str, Any], slowest: RankLoop) -> tuple[str, str]:
    """Which half of the input pipeline holds the loop back, as far as readers' use of cores and of storage tells."""
    busy, number = found.get("worker_busy_fraction"), slowest.num_readers
    if busy is None:
        return "mixed", f"{evidence}; what its readers do cannot be seen here"
    who = f"its {number} worker processes are" if number > 1 else "its worker process is"
    evidence += f"; {who if number else 'the loader, in this process, is'} busy for {busy:.0%} of the time"
    if busy >= MAIN_SHARE:
        return "preprocessing", f"{evidence}: decoding, augmenting, collating"
    own = slowest.loader_busy_fraction or 0.0
    if own >= MAIN_SHARE:
        return "preprocessing", f"{evidence}, the loop's thread for {own:.0%} of what it waits: it takes batches over"
    fed, beside = (0.0, 0.0) if number else (slowest.fed_cores or 0.0, slowest.beside_cores or 0.0)
    rests = busy + fed + beside <= 1 - MAIN_SHARE
    if not rests and beside > busy + fed:
        said = f"others of this process keep {beside:.1f} cores busy meanwhile, and whether they load is not known"
        return CANNOT_TELL, f"{evidence}; {said}"
    if not rests and fed > busy:
        evidence += f"; threads that load for it keep {fed:.1f} cores busy meanwhile"
        return (
            ("preprocessing", f"{evidence}: decoding, augmenting, collating")
            if fed >= MAIN_SHARE
            else ("mixed", evidence)
        )
    cached = found.get("cache_hit_fraction") or 0.0
    if cached > MAIN_SHARE:
        return "mixed", f"{evidence}, yet {cached:.0%} of the bytes came from memory"
    return ("storage", f"{evidence}: else they wait for reads") if rests else ("mixed", evidence)


def remedy(
    found: Mapping[str, Any], num_readers: int, cores: int | None, others: str | None = None, sharing: int = 1
) -> str | None:
    """What the same numbers say would help; None where they say nothing.

    `others`: what they kept busy, if too much; `sharing`: ranks with as many readers each that share the cores.
    """
    name, stall = found["bottleneck"], found["input_stall_fraction"]
    waits_for_core = (found.get("cpu_contention_fraction") or 0.0) >= CONTENTION_SHARE
    if name in ("preprocessing", "storage", "mixed") and waits_for_core and others:
        return f"measure again on idle cores, this says nothing of the job itself: {others}"
    if name not in ("preprocessing", "storage", "mixed") or (name == "mixed" and _beside_input(found)):
        return None
    if num_readers and found["refill_fraction"] > REFILL_SHARE:
        return "workers that stay from pass to pass (persistent_workers=True)"
    if name == "preprocessing" and stall < 1 - HELD_BACK_AU:
        return "fewer readers, or more cores"
    if waits_for_core and name != "storage":
        return "more cores, or fewer threads: the loop itself waits for a core, and more workers would take still more"
    if not num_readers:
        return "worker processes that read ahead (num_workers)"
    if cores is None or sharing * num_readers < cores:
        each, ranks = (" a rank", f" for {sharing} ranks") if sharing > 1 else ("", "")
        there = "" if cores is None else f": {cores} cores are there{ranks}"
        return f"more than {_workers(num_readers)}{each}{there}"
    if name == "preprocessing":
        return f"cheaper decoding and augmentation, or more cores than {cores}"
    return "data staged to a faster folder, or in fewer and larger files"


def _workers(number: int) -> str:
    return f"{number} worker" + ("" if number == 1 else "s")
