"""Shares of a step by where its time goes: exchange, waiting for others and for input, computing."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

from benchsuite.analysis.judging import lost_time
from benchsuite.analysis.judging.lost_time import A_WAIT, COMPUTE, UNSEEN, Shares, Where, num_steps
from benchsuite.analysis.judging.setting import Setting, computing_share
from benchsuite.analysis.judging.thresholds import (
    AMPLIFIED,
    CONTENTION_SHARE,
    CROWDED_SHARE,
    ENDED_SHARE,
    FULL_THREAD,
    IDLE_CORES,
    LEAST_LOOKS,
    LOCK_SHARE,
    MAIN_SHARE,
    MEMORY_SHARE,
    QUEUED_SHARE,
    QUOTA_SHARE,
    READ_IN_PIECES,
    REFILL_CAUSE,
    SATURATED_SHARE,
    SEEN_BUSY,
    SHUFFLING_SHARE,
    SWAPPED_SHARE,
)
from benchsuite.inside.samples import Looks, RankSamples, SeenReaders, UsedCores


def of_step(figures: Mapping[str, Any], rank: RankSamples, setting: Setting) -> Shares:
    """Shares of a step by where its time goes."""
    step_s, au, stall = figures["step_s_mean"], figures.get("au"), figures.get("input_stall_fraction") or 0.0
    input_ = stall if au is None or 1 - au <= (figures.get("au_error") or 0.0) else 1 - au
    beside = 0.0 if setting.emulated or stall >= input_ / 2 else input_ - stall
    exchange, bubble = ((figures.get(name) or 0.0) / step_s for name in ("communication_min_s", "bubble_s"))
    waited = lost_time.own_imbalance_s(figures, step_s) / step_s
    body = max(0.0, 1 - input_ - exchange - bubble - waited)
    found: Shares = {
        Where("communication", "communication"): exchange + bubble,
        Where("imbalance", "slow_rank"): waited,
    }
    _add(found, _of_input(figures, rank, setting), input_ - beside)
    for_cores = min(beside, waits_for_cores(figures))
    _add(found, {lost_time.CORES: for_cores, UNSEEN: beside - for_cores}, 1.0)
    _add(found, of_body(figures, rank, setting, exchange + bubble + waited), body)
    return _of_machine({where: share for where, share in found.items() if share > 0}, figures, rank)


def _add(found: Shares, shares: Shares, weight: float) -> None:
    for where, share in shares.items():
        found[where] = found.get(where, 0.0) + weight * share


def of_body(figures: Mapping[str, Any], rank: RankSamples, setting: Setting, between: float) -> Shares:
    """Shares of the step without its input and without what is lost between ranks, `between` of the step."""
    seen, looks = rank.seen_readers, rank.looks
    if setting.emulated or seen is None:
        return {COMPUTE: 1.0}
    if looks is not None and not setting.watched:  # a step of ours waits in memory for its own threads alone
        body = Counter(looks.body)
        body["unknown"] += body.pop("lock", 0)
        looks = replace(looks, body=dict(body))
    if looks is not None and figures.get("communication_min_s") is not None:  # it is marked, and no part of this
        looks = replace(looks, body={word: count for word, count in looks.body.items() if word != "exchange"})
        rest = 1 - between / (1 - (figures.get("input_stall_fraction") or 0.0) or 1.0)
        if seen.body_busy_fraction is not None and rest > 0:
            seen = replace(seen, body_busy_fraction=min(1.0, seen.body_busy_fraction / rest))
    return lost_time.of_body(looks, seen, rank.device_name is not None)


def _of_input(figures: Mapping[str, Any], rank: RankSamples, setting: Setting) -> Shares:
    """Shares of waiting for input."""
    reads = Where("storage", "mapped_pages" if setting.maps_files else "reads")
    saturation, by_bucket = setting.saturation(figures), figures.get("client_thread_busy_fraction") is not None
    if by_bucket and _client_computes(figures):
        return {lost_time.CORES: 1.0}
    if saturation is not None and saturation >= SATURATED_SHARE:
        return {reads: 1.0}  # a plain reader gets no more
    looks = lost_time.with_clocks(rank, figures, setting)
    counted = by_bucket and rank.reads is not None and rank.reads.requests is not None
    loading = lost_time.loading_share(rank)
    return _moved(lost_time.of_input(looks, rank.seen_readers, loading, counted, _swaps(rank)), figures, rank, setting)


def _swaps(rank: RankSamples) -> bool:
    """Whether most of what was read came from where memory is swapped to."""
    swapped = (rank.used_cores.swapped_in_bytes if rank.used_cores is not None else None) or 0
    read = (rank.reads.storage_bytes if rank.reads is not None else None) or 0
    return swapped > 0 and swapped >= SWAPPED_SHARE * read


def _client_computes(figures: Mapping[str, Any]) -> bool:
    """Whether a bucket's client is what readers wait for: a thread of it fills a core, or readers compute in its calls
    more than they decode."""
    if figures["client_thread_busy_fraction"] >= FULL_THREAD:
        return True
    computed, decode = (figures.get(f"{name}_s_per_sample") or 0.0 for name in ("read_cpu", "decode"))
    return bool((computing_share(figures) or 0.0) >= MAIN_SHARE and computed > decode)


def waits_for_cores(figures: Mapping[str, Any]) -> float:
    """Share of the step for which the loop waits for a core, or for a thread that does; at most.

    Where one core is missing, one of them waits at a time and the others wait for that one: their times add up.
    """
    waits = (figures.get(name) or 0.0 for name in ("cpu_contention_fraction", "threads_contention_fraction"))
    return min(1.0, sum(waits))


def _moved(shares: Shares, figures: Mapping[str, Any], rank: RankSamples, setting: Setting) -> Shares:
    """Shares of waiting for input, where the order of things says more of them than what a reader is at."""
    begins, begun = _begins(figures, rank)
    rest = shares if begun >= REFILL_CAUSE else _under_a_lock(_of_shards(shares, rank, setting), rank)
    found: Shares = {begins: begun} if begun else {}
    _add(found, rest, 1 - begun)
    return found


def _begins(figures: Mapping[str, Any], rank: RankSamples) -> tuple[Where, float]:
    """What the first batches of passes wait for, and its share of all waiting for input."""
    seen, refill = rank.seen_readers, figures.get("refill_fraction") or 0.0
    starts = Where("waiting", "worker_start")
    if seen is None or not refill:
        return starts, 0.0
    seen_at = [each for looks in _all_looks(rank) for each in (looks.readers, looks.load)]
    if refill >= REFILL_CAUSE and any(map(_shuffles, seen_at)):
        return Where("preprocessing", "shuffle_buffer"), refill
    if not seen.num_readers or seen.workers_stay:
        return starts, 0.0
    of_workers = start_s(rank)
    if not of_workers:
        return starts, refill if refill >= REFILL_CAUSE else 0.0
    seconds = (seen.passes - 1) * fmean(of_workers) + seen.begin_s
    return starts, refill * min(1.0, seconds / seen.refill_s) if seen.refill_s else 0.0


def start_s(rank: RankSamples) -> list[float]:
    """Seconds that workers took to start, of each that measured it."""
    return [seconds for looks in _all_looks(rank) for seconds in looks.start_s]


def _all_looks(rank: RankSamples) -> list[Looks]:
    """Those at a rank from outside, and those of its workers at themselves."""
    return [] if rank.looks is None else [rank.looks, *([rank.looks.inside] if rank.looks.inside else [])]


def _of_shards(shares: Shares, rank: RankSamples, setting: Setting) -> Shares:
    """Shares of waiting for input, told by what readers have to read and by what they get."""
    if ended_share(rank) >= ENDED_SHARE:
        return {Where("waiting", "no_shard"): 1.0}
    reads, amplified = Where("storage", "reads"), amplification(rank) if setting.samples_known else None
    if reads in shares and amplified is not None and amplified >= AMPLIFIED and _reads_pieces(rank):
        return {Where("storage", "amplification") if where == reads else where: s for where, s in shares.items()}
    return shares


def ended_share(rank: RankSamples) -> float:
    """Share of the looks at readers that see them with nothing more to read."""
    return max((share_of(looks.readers, "ended") for looks in _all_looks(rank)), default=0.0)


def idle_share(rank: RankSamples) -> float:
    """Share of the looks at readers, while the loop waits for its input, that see them with nothing to do."""
    readers = rank.looks.readers if rank.looks is not None else {}
    return share_of(readers, "idle") if sum(readers.values()) >= LEAST_LOOKS else 0.0


def _under_a_lock(shares: Shares, rank: RankSamples) -> Shares:
    """Shares of waiting for input; where a lock is held nearly always while others want it, who computes holds it."""
    lock, held = Where("waiting", "lock"), locked_looks(rank)
    if held is None or held < MAIN_SHARE or shares.get(lock, 0.0) < LOCK_SHARE:
        return shares
    computing = sum(share for where, share in shares.items() if where.verdict == "preprocessing")
    if shares[lock] >= MAIN_SHARE * (shares[lock] + computing):
        return shares
    return {where: share for where, share in shares.items() if where.verdict != "preprocessing"} | {
        lock: shares[lock] + computing
    }


def locked_looks(rank: RankSamples) -> float | None:
    """Share of the looks at all readers in which one of them waited for a lock; None where there were too few."""
    total = sum(rank.looks.readers.values()) if rank.looks is not None else 0.0
    return rank.looks.locked / total if rank.looks is not None and total >= LEAST_LOOKS else None


def _shuffles(counts: Mapping[str, float]) -> bool:
    return share_of(counts, "shuffle") >= SHUFFLING_SHARE


def share_of(counts: Mapping[str, float], word: str) -> float:
    """The share of one word in counts of looks; 0 where there were none."""
    total = sum(counts.values())
    return counts.get(word, 0.0) / total if total else 0.0


def _reads_pieces(rank: RankSamples) -> bool:
    """Whether what is read beyond a sample belongs to others: the bytes of a trial's samples are known.

    A loop's batches may hold less than its samples do, as where images are made smaller. There the reads have to be
    seen within a library that reads in pieces.
    """
    if rank.seen_readers is None or not rank.seen_readers.batch_bytes:
        return True
    reads = [
        line for looks in _all_looks(rank) for line in looks.lines if line.word == "reads" and line.phase != "body"
    ]
    pieces = sum(line.looks for line in reads if line.line.partition(".")[0] in READ_IN_PIECES)
    return bool(reads) and pieces >= MAIN_SHARE * sum(line.looks for line in reads)


def amplification(rank: RankSamples) -> float | None:
    """Bytes that a rank read in read calls over those of its batches, of a trial its samples; None where not known."""
    seen, reads = rank.seen_readers, rank.reads
    if reads is None or not reads.read_call_bytes:
        return None
    wanted = seen.batch_bytes * num_steps(rank) if seen is not None and seen.batch_bytes else reads.produced_bytes
    return reads.read_call_bytes / wanted if wanted else None


def _of_machine(lost: Shares, figures: Mapping[str, Any], rank: RankSamples) -> Shares:
    """Shares of a step, those of computing taken for want of cores or memory where the kernel says that these lack."""
    used, seen = rank.used_cores, rank.seen_readers
    stalled = used.memory_stall_fraction if used is not None else None
    if stalled is not None and stalled >= MEMORY_SHARE:
        return _without_memory(lost, stalled)
    lacking, computing = Where("client_cpu", "affinity" if _bound(seen, used) else "cores"), lost.get(COMPUTE, 0.0)
    throttled = (used.throttled_fraction if used is not None else None) or 0.0
    contended = waits_for_cores(figures)
    if contended < (CONTENTION_SHARE if seen is not None and seen.num_readers else CROWDED_SHARE):
        contended = 0.0
    if figures.get("au") is not None:
        contended = 0.0  # steps with their input in memory wait as long
    waited = min(computing, max(contended, throttled * computing))
    queued = 1.0 if _lacks_cores(figures, seen, used) else _queued(seen, figures)
    preparing = {where: share for where, share in lost.items() if where.verdict == "preprocessing"}
    found = lost | {where: (1 - queued) * share for where, share in preparing.items()}
    found[COMPUTE] = computing - waited
    found[lacking] = found.get(lacking, 0.0) + queued * sum(preparing.values()) + waited
    return {where: share for where, share in found.items() if share > 0}


def _without_memory(lost: Shares, stalled: float) -> Shares:
    """Shares of a step, what memory takes apart: threads seem to run while they look for some, or wait to write."""
    memory = min(1.0, stalled + lost.get(A_WAIT, 0.0))
    others = {where: share for where, share in lost.items() if where != A_WAIT}
    rest = (1 - memory) / (sum(others.values()) or 1.0)
    return {where: share * rest for where, share in others.items()} | {Where("waiting", "memory"): memory}


def _lacks_cores(figures: Mapping[str, Any], seen: SeenReaders | None, used: UsedCores | None) -> bool:
    if used is not None and (used.throttled_fraction or 0.0) >= QUOTA_SHARE:
        return True
    if (figures.get("cpu_contention_fraction") or 0.0) >= CROWDED_SHARE:
        return True
    return _queued(seen, figures) >= QUEUED_SHARE


def _queued(seen: SeenReaders | None, figures: Mapping[str, Any]) -> float:
    """Share of what readers compute that is taken for want of cores.

    Readers that are at work, or wait for a core, for less of the time than the loop waits for them hold it back by
    something else: theirs is not what is missing.
    """
    if seen is None:
        return 0.0
    at_work = seen.num_readers * (seen.busy_fraction or 0.0)
    return queued_share(seen) if at_work >= MAIN_SHARE * (figures.get("input_stall_fraction") or 0.0) else 0.0


def queued_share(seen: SeenReaders) -> float:
    """Share of the time that worker processes want a core in which they wait for one."""
    wanted = seen.busy_fraction or 0.0
    return (seen.queued_fraction or 0.0) / wanted if wanted >= SEEN_BUSY and seen.num_readers else 0.0


def _bound(seen: SeenReaders | None, used: UsedCores | None) -> bool:
    """Whether who waits for a core may not use one that is idle."""
    if used is None or used.idle_cores is None or used.idle_cores < IDLE_CORES:
        return False
    mine = {*used.cpus} | {*(seen.cpus if seen is not None else ())}
    bound = seen is not None and bool(seen.cpus) and len(seen.cpus) < len(mine)
    return bound or len(used.cpus) < (used.all_cores or 0)
