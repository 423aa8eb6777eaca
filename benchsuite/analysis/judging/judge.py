"""What holds a loop back, by where the time of its steps goes: a verdict, its cause, and the numbers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from benchsuite.analysis.judging import lost_time
from benchsuite.analysis.judging.lost_time import A_WAIT, COMPUTE, UNSEEN, Shares, Where
from benchsuite.analysis.judging.setting import Setting, computing_share
from benchsuite.analysis.judging.thresholds import (
    AMPLIFIED,
    COMMUNICATION_SHARE,
    CONTENTION_SHARE,
    CROWDED_SHARE,
    ENDED_SHARE,
    FEWER_BATCHES,
    FULL_THREAD,
    HELD_BACK_AU,
    IDLE_CORES,
    LEAST_LOOKS,
    LOCK_SHARE,
    LONG_STEP,
    LONG_STEPS_SHARE,
    MAIN_SHARE,
    MEMORY_SHARE,
    MOSTLY_KEPT_UP_AU,
    NAMED_STEPS,
    QUEUED_SHARE,
    QUOTA_SHARE,
    RARELY,
    REFILL_CAUSE,
    SATURATED_SHARE,
    SHUFFLING_SHARE,
    SLOWER_RANK,
    SURE_LOOKS,
    SWAPPED_SHARE,
    TOLD_LINE,
)
from benchsuite.contract.rank_samples import Looks, RankSamples, SeenReaders, UsedCores

BETWEEN_RANKS = frozenset({"communication", "imbalance"})
"""Verdicts of what ranks lose by each other."""
Numbers = Mapping[str, float | int | str]


@dataclass(frozen=True)
class Found:
    """What holds a loop back."""

    where: Where
    evidence: Numbers
    alternatives: tuple[Where, ...] = ()


def judge(figures: Mapping[str, Any], ranks: Sequence[RankSamples], setting: Setting) -> Found:
    """What holds back a loop whose figures are not in doubt.

    Args:
        figures: of the loop.
        ranks: what each of them measured; the one that waits longest for its input is judged.
        setting: what else is known of it.
    """
    rank = lost_time.hungriest([*ranks])
    lost = of_step(figures, rank, setting)
    evidence = _evidence(figures, rank, ranks, setting, lost)
    if between := _between(figures, ranks):
        return Found(between, evidence)
    error = min(figures.get("au_error") or 0.0, 1 - HELD_BACK_AU)
    found = _chosen(lost, evidence, num_steps(rank, setting), error)
    return replace(found, where=Where("none")) if setting.emulated and found.where.verdict == "compute" else found


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
    _add(found, {lost_time.CORES if waits_for_cores(figures) >= beside / 2 else UNSEEN: 1.0}, beside)
    _add(found, _of_body(figures, rank, setting, exchange + bubble + waited), body)
    return _of_machine({where: share for where, share in found.items() if share > 0}, figures, rank)


def _add(found: Shares, shares: Shares, weight: float) -> None:
    for where, share in shares.items():
        found[where] = found.get(where, 0.0) + weight * share


def _of_body(figures: Mapping[str, Any], rank: RankSamples, setting: Setting, between: float) -> Shares:
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
    return _moved(lost_time.of_input(looks, rank.seen_readers, loading, counted, _swaps(rank)), figures, rank)


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


def _moved(shares: Shares, figures: Mapping[str, Any], rank: RankSamples) -> Shares:
    """Shares of waiting for input, where the order of things says more of them than what a reader is at."""
    begins, begun = _begins(figures, rank)
    rest = shares if begun >= REFILL_CAUSE else _one_at_a_time(_of_shards(shares, rank), rank)
    found: Shares = {begins: begun} if begun else {}
    _add(found, rest, 1 - begun)
    return found


def _begins(figures: Mapping[str, Any], rank: RankSamples) -> tuple[Where, float]:
    """What the first batches of passes wait for, and its share of all waiting for input."""
    seen, refill = rank.seen_readers, figures.get("refill_fraction") or 0.0
    starts, inside = Where("waiting", "worker_start"), rank.looks.inside if rank.looks is not None else None
    if seen is None or not refill:
        return starts, 0.0
    seen_at = [each for looks in (rank.looks, inside) if looks is not None for each in (looks.readers, looks.load)]
    if refill >= REFILL_CAUSE and any(map(_shuffles, seen_at)):
        return Where("preprocessing", "shuffle_buffer"), refill
    if not seen.num_readers or seen.workers_stay:
        return starts, 0.0
    told = _start_s(rank)
    if not told:
        return starts, refill if refill >= REFILL_CAUSE else 0.0
    seconds = (seen.passes - 1) * fmean(told) + seen.begin_s
    return starts, refill * min(1.0, seconds / seen.refill_s) if seen.refill_s else 0.0


def _start_s(rank: RankSamples) -> list[float]:
    """What each worker that told took to start."""
    inside = rank.looks.inside if rank.looks is not None else None
    return [seconds for looks in (rank.looks, inside) if looks is not None for seconds in looks.start_s]


def _of_shards(shares: Shares, rank: RankSamples) -> Shares:
    """Shares of waiting for input, told by what readers have to read and by what they get."""
    inside = rank.looks.inside if rank.looks is not None else None
    counts = [each.readers for each in (rank.looks, inside) if each is not None]
    if any(_share(each, "ended") >= ENDED_SHARE for each in counts):
        return {Where("waiting", "no_shard"): 1.0}
    reads, amplified = Where("storage", "reads"), amplification(rank)
    if reads in shares and amplified is not None and amplified >= AMPLIFIED:
        return {Where("storage", "amplification") if where == reads else where: s for where, s in shares.items()}
    return shares


def _one_at_a_time(shares: Shares, rank: RankSamples) -> Shares:
    """Shares of waiting for input; where a lock is held nearly always while others want it, who computes holds it."""
    lock, held = Where("waiting", "lock"), _share_of_looks_locked(rank)
    if held is None or held < MAIN_SHARE or shares.get(lock, 0.0) < LOCK_SHARE:
        return shares
    computing = sum(share for where, share in shares.items() if where.verdict == "preprocessing")
    if shares[lock] >= MAIN_SHARE * (shares[lock] + computing):
        return shares
    return {where: share for where, share in shares.items() if where.verdict != "preprocessing"} | {
        lock: shares[lock] + computing
    }


def _share_of_looks_locked(rank: RankSamples) -> float | None:
    """Share of the looks at all readers in which one of them waited for a lock; None where there were too few."""
    total = sum(rank.looks.readers.values()) if rank.looks is not None else 0.0
    return rank.looks.locked / total if rank.looks is not None and total >= LEAST_LOOKS else None


def _shuffles(counts: Mapping[str, float]) -> bool:
    return _share(counts, "shuffle") >= SHUFFLING_SHARE


def _share(counts: Mapping[str, float], word: str) -> float:
    total = sum(counts.values())
    return counts.get(word, 0.0) / total if total else 0.0


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
    queued = 1.0 if _lacks_cores(figures, seen, used) else _queued(seen) if seen is not None else 0.0
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
    return seen is not None and bool(seen.busy_fraction) and _queued(seen) >= QUEUED_SHARE


def _queued(seen: SeenReaders) -> float:
    """Share of the time that worker processes want a core in which they wait for one."""
    return (seen.queued_fraction or 0.0) / seen.busy_fraction if seen.busy_fraction and seen.num_readers else 0.0


def _bound(seen: SeenReaders | None, used: UsedCores | None) -> bool:
    """Whether who waits for a core may not use one that is idle."""
    if used is None or used.idle_cores is None or used.idle_cores < IDLE_CORES:
        return False
    mine = {*used.cpus} | {*(seen.cpus if seen is not None else ())}
    bound = seen is not None and bool(seen.cpus) and len(seen.cpus) < len(mine)
    return bound or len(used.cpus) < (used.all_cores or 0)


def _between(figures: Mapping[str, Any], ranks: Sequence[RankSamples]) -> Where | None:
    """What holds ranks back that is seen only by comparing them; None where nothing is, or their exchange is marked."""
    if len(ranks) < 2:
        return None
    steps = [num_steps(rank) for rank in ranks]
    if min(steps) < (1 - FEWER_BATCHES) * max(steps):
        return Where("imbalance", "fewer_batches")
    if figures.get("communication_min_s") is not None:
        return None
    own = [_own_s(rank) for rank in ranks]
    known = [seconds for seconds in own if seconds]
    if known and None not in own and max(known) > SLOWER_RANK * min(known):
        return Where("imbalance", "slow_rank")
    return Where("imbalance", "slow_rank") if _slow_part(ranks) else None


OWN_PARTS = ("h2d", "forward", "optimizer")
"""Marked parts of a step in which data parallel ranks do not wait for each other."""


def _slow_part(ranks: Sequence[RankSamples]) -> dict[str, float | str]:
    """The marked part that takes one rank longest beyond another, whose threads are in no exchange; empty without one.

    It has to be longer by a part of the step that would hold ranks back as exposed communication does.
    """
    parts = [_parts_of_step_s(rank) for rank in ranks]
    named = [name for name in OWN_PARTS if all(name in each for each in parts)]
    if not named:
        return {}
    beyond = {name: max(each[name] for each in parts) - min(each[name] for each in parts) for name in named}
    part = max(beyond, key=lambda name: beyond[name])
    times = [each[part] for each in parts]
    slow, fast = times.index(max(times)), times.index(min(times))
    looks = ranks[slow].looks
    waits = looks is not None and _share(looks.body, "exchange") > COMMUNICATION_SHARE
    if waits or beyond[part] <= COMMUNICATION_SHARE * sum(parts[slow].values()):
        return {}
    seen: dict[str, float | str] = {"slow_part": part, "slowest_rank": ranks[slow].rank, "slow_part_s": times[slow]}
    return seen | {"fastest_rank": ranks[fast].rank, "fast_part_s": times[fast]}


def _parts_of_step_s(rank: RankSamples) -> dict[str, float]:
    """Mean seconds of each part of a rank's steps."""
    block = next((block for block in rank.blocks if block.kind in ("loader", "plain")), None)
    return {} if block is None else {name: seconds / block.num_steps for name, seconds in block.parts_s().items()}


def _own_s(rank: RankSamples) -> float | None:
    """Seconds of a rank's step that are its own: no exchange, nor waiting for others in it. None where not seen."""
    looks, block = rank.looks, next((block for block in rank.blocks if block.kind == "loader"), None)
    if looks is None or "exchange" not in looks.body or block is None:
        return None
    seen, parts = rank.seen_readers, block.parts_s()
    body = sum(seconds for name, seconds in parts.items() if name != "load")
    waits = lost_time.of_body(looks, seen, False).get(UNSEEN, 0.0) if seen is not None else 0.0
    return (sum(parts.values()) - body * waits) / num_steps(rank)


def num_steps(rank: RankSamples, setting: Setting | None = None) -> int:
    """Its counted steps; of a trial those of all its blocks."""
    trial = setting is not None and not setting.watched
    kinds = {"loader", "plain", "ceiling"} if trial else {"loader"}
    return sum(block.num_steps for block in rank.blocks if block.kind in kinds)


def _chosen(lost: Shares, evidence: Numbers, steps: int, error: float) -> Found:
    """The verdict and the cause, by shares of the step; what is lost may be less by `error`."""
    losses = {where: share for where, share in lost.items() if where not in (COMPUTE, UNSEEN)}
    between = sum(share for where, share in losses.items() if where.verdict in BETWEEN_RANKS)
    total, unseen = sum(losses.values()), lost.get(UNSEEN, 0.0)
    if total - between <= 1 - HELD_BACK_AU and between <= COMMUNICATION_SHARE:
        total = total - between
    if unseen > max(total, 1 - MOSTLY_KEPT_UP_AU):
        return Found(UNSEEN, evidence)
    if total - error <= 1 - HELD_BACK_AU:
        return Found(COMPUTE if steps >= NAMED_STEPS else Where("compute"), evidence)
    main = _main(losses)
    if steps < NAMED_STEPS:
        return Found(Where(main.where.verdict), evidence, main.alternatives or (main.where,))
    if total <= 1 - MOSTLY_KEPT_UP_AU:
        return Found(Where("mixed"), evidence, (COMPUTE, main.where))
    return Found(main.where, evidence, main.alternatives)


def _main(losses: Shares) -> Found:
    """The verdict that takes most of what is lost, and its cause; mixed where two take nearly as much."""
    verdicts: dict[str, float] = {}
    for where, share in losses.items():
        verdicts[where.verdict] = verdicts.get(where.verdict, 0.0) + share
    ordered = sorted(losses, key=lambda where: -losses[where])
    total, verdict = sum(losses.values()), max(verdicts, key=lambda name: verdicts[name])
    if verdicts[verdict] < MAIN_SHARE * total:
        second = next(where for where in ordered if where.verdict != ordered[0].verdict)
        return Found(Where("mixed"), {}, (ordered[0], second))
    inside = [where for where in ordered if where.verdict == verdict]
    if losses[inside[0]] >= MAIN_SHARE * verdicts[verdict]:
        return Found(inside[0], {})
    return Found(Where(inside[0].verdict), {}, tuple(where for where in inside[:2] if where.cause))


TOLD = (
    "input_stall_fraction",
    "au",
    "cpu_contention_fraction",
    "threads_contention_fraction",
    "refill_fraction",
    "read_s_per_sample",
    "decode_s_per_sample",
    "collate_s_per_sample",
    "unpack_s_per_sample",
    "reader_busy_fraction",
    "cache_hit_fraction",
    "client_thread_busy_fraction",
)
"""Figures that are told as they are."""


def _evidence(
    figures: Mapping[str, Any], rank: RankSamples, ranks: Sequence[RankSamples], setting: Setting, lost: Shares
) -> dict[str, float | int | str]:
    """The numbers that it rests on, by name; shares are of the step."""
    seen, used, looks, step_s = rank.seen_readers, rank.used_cores, rank.looks, figures["step_s_mean"]
    found: dict[str, Any] = {name: figures.get(name) for name in TOLD}
    found |= {
        "rank": rank.rank if len(ranks) > 1 else None,
        "slowest_rank": figures.get("slowest_rank"),
        "bubble_fraction": (figures.get("bubble_s") or 0.0) / step_s or None,
        "saturation": setting.saturation(figures),
        "steps": num_steps(rank, setting),
        "steps_are_few": num_steps(rank, setting) < NAMED_STEPS or None,
        "client_is_full": (figures.get("client_thread_busy_fraction") or 0.0) >= FULL_THREAD or None,
        **_of_ranks(ranks),
        "waits_in_body": _waits_in_body(figures, rank, setting, lost) or None,
        "workers_stay": True if seen is not None and seen.workers_stay else None,
        "amplification": amplification(rank),
        "reader_queue_fraction": _queued(seen) if seen is not None else None,
        "throttled_fraction": used.throttled_fraction if used is not None else None,
        "memory_stall_fraction": used.memory_stall_fraction if used is not None else None,
        "idle_cores": used.idle_cores if used is not None else None,
        "locked_looks_fraction": _share_of_looks_locked(rank) or None,
        "worker_start_s": fmean(told) if (told := _start_s(rank)) else None,
        "exchange_of_body_fraction": _share(looks.body, "exchange") if looks is not None else None,
        "looks_of_input": sum(looks.load.values()) if looks is not None else None,
        "looks_of_body": sum(looks.body.values()) if looks is not None else None,
    }
    if figures.get("communication_min_s") is not None:
        found["exchange_of_body_fraction"] = None
    found |= _long_steps(rank)
    if len(ranks) > 1 and figures.get("communication_min_s") is None:
        found |= _slow_part(ranks)
    found |= _places(looks, lost, num_steps(rank, setting)) if looks is not None else {}
    found |= {f"{where}_fraction": share for where, share in sorted(lost.items(), key=lambda each: -each[1])}
    return {name: value for name, value in found.items() if value is not None}


def _waits_in_body(figures: Mapping[str, Any], rank: RankSamples, setting: Setting, lost: Shares) -> bool:
    """Whether the loop waits in its body rather than for its input."""
    body = 1 - (figures.get("input_stall_fraction") or 0.0)
    of_body = sum(share for where, share in _of_body(figures, rank, setting, 0.0).items() if where.verdict == "waiting")
    return body * of_body > sum(share for where, share in lost.items() if where.verdict == "waiting") / 2


def _of_ranks(ranks: Sequence[RankSamples]) -> dict[str, int | None]:
    """How far ranks differ in the number of their steps."""
    steps = [num_steps(rank) for rank in ranks]
    return {"fewest_steps": min(steps), "most_steps": max(steps)} if len({*steps}) > 1 else {}


def _long_steps(rank: RankSamples) -> dict[str, float]:
    """Steps that are rarely long and take much of the time all the same; empty where there are none."""
    steps = [seconds for block in rank.blocks if block.kind == "loader" for seconds in block.step_s()]
    usual = median(steps) if steps else 0.0
    long = [seconds for seconds in steps if seconds > LONG_STEP * usual]
    beyond = sum(long) - usual * len(long)
    if not long or len(long) > RARELY * len(steps) or beyond <= LONG_STEPS_SHARE * sum(steps):
        return {}
    return {
        "long_steps_fraction": len(long) / len(steps),
        "long_steps_time_fraction": sum(long) / sum(steps),
        "long_step_s": median(long),
        "other_step_s": usual,
    }


def _places(looks: Looks, lost: Shares, steps: int) -> dict[str, float | int | str]:
    """Where in the user's code most of what is lost was seen, and in which folder."""
    found: dict[str, float | int | str] = {}
    if looks.files:
        found["folder"] = max(looks.files, key=lambda name: looks.files[name])
    losses = {where: share for where, share in lost.items() if where not in (COMPUTE, UNSEEN)}
    if not losses:
        return found
    main = max(losses, key=lambda where: losses[where])
    seen = [*looks.lines, *(looks.inside.lines if looks.inside is not None else ())]
    lines = [each for each in seen if _table(each.phase).get(each.word) == main and each.line != "other"]
    if lines:
        most = max(lines, key=lambda each: each.looks)
        counts = looks.body if most.phase == "body" else looks.load if most.phase == "load" else {}
        inside = looks.inside.readers if looks.inside is not None else {}
        total = sum((counts or inside).values()) or most.looks
        if most.looks < TOLD_LINE * total:
            return found
        phases = {"body": "the loop's body", "load": "the waiting for input", "readers": "the workers' time"}
        found |= {"line": most.line, "line_fraction": most.looks / total, "line_of": phases[most.phase]}
        if most.phase == "body" and most.looks >= SURE_LOOKS * most.steps:
            found["line_steps_fraction"] = most.steps / steps
    return found


def _table(phase: str) -> Mapping[str, Where]:
    return lost_time.OF_BODY if phase == "body" else lost_time.OF_READERS
