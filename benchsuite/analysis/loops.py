"""What holds a watched loop back, by where the time of its steps goes: a verdict, its cause, and the numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchsuite.analysis import lost_time
from benchsuite.analysis.lost_time import A_WAIT, COMPUTE, UNSEEN, Shares, Where
from benchsuite.analysis.thresholds import (
    AMPLIFIED,
    CONTENTION_SHARE,
    CROWDED_SHARE,
    ENDED_SHARE,
    FEWER_BATCHES,
    HELD_BACK_AU,
    IDLE_CORES,
    MAIN_SHARE,
    MEMORY_SHARE,
    MOSTLY_KEPT_UP_AU,
    NAMED_STEPS,
    QUEUED_SHARE,
    QUOTA_SHARE,
    REFILL_CAUSE,
    SHUFFLING_SHARE,
    SLOWER_RANK,
    SURE_LOOKS,
)
from benchsuite.contract.rank_samples import Looks, RankSamples, SeenReaders, UsedCores

REMEDIES: Mapping[str, Sequence[str]] = {
    "storage/reads": ("shards", "more_workers", "staging", "faster_storage"),
    "storage/mapped_pages": ("staging", "read_ahead", "more_workers"),
    "storage/amplification": ("smaller_chunks",),
    "preprocessing/decode": ("more_workers", "cheaper_data"),
    "preprocessing/collate": ("cheaper_collate", "more_workers"),
    "preprocessing/hand_over": ("fewer_tensors", "longer_queue"),
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


@dataclass(frozen=True)
class Found:
    """What holds a loop back."""

    where: Where
    evidence: Mapping[str, float | int | str]
    alternatives: tuple[Where, ...] = ()

    def remedies(self) -> tuple[str, ...]:
        """Names of what helps, the best first; workers that compute want cores that are idle."""
        named = self.alternatives or (self.where,)
        found = dict.fromkeys(each for where in named for each in REMEDIES.get(str(where), ()))
        idle = self.evidence.get("idle_cores", IDLE_CORES)
        if self.where.verdict == "preprocessing" and float(idle) < IDLE_CORES:
            return tuple("more_cores" if each == "more_workers" else each for each in found)
        return tuple(found)


def judge(figures: Mapping[str, Any], ranks: Sequence[RankSamples]) -> Found:
    """What holds back a loop whose figures are not in doubt.

    Args:
        figures: of the loop (`watched_figures`).
        ranks: what each of them measured; the one that waits longest for its input is judged.
    """
    rank = lost_time.hungriest([*ranks])
    lost = of_step(figures, rank)
    evidence = _evidence(figures, rank, ranks, lost)
    if between := _between(ranks):
        return Found(between, evidence)
    return _chosen(lost, evidence, num_steps(rank))


def of_step(figures: Mapping[str, Any], rank: RankSamples) -> Shares:
    """Shares of a step by where its time goes."""
    seen, looks, step_s = rank.seen_readers, rank.looks, figures["step_s_mean"]
    assert seen is not None, "every watched loop has"
    au, stall = figures.get("au"), figures.get("input_stall_fraction") or 0.0
    input_ = max(0.0, 1 - au) if au is not None else stall
    exchange = ((figures.get("communication_min_s") or 0.0) + (figures.get("bubble_s") or 0.0)) / step_s
    waited = lost_time.own_imbalance_s(figures, step_s) / step_s
    body = max(0.0, 1 - input_ - exchange - waited)
    found: Shares = {Where("communication", "communication"): exchange, Where("imbalance", "slow_rank"): waited}
    _add(found, _moved(lost_time.of_input(looks, seen), figures, rank), input_)
    _add(found, lost_time.of_body(looks, seen, rank.device_name is not None), body)
    return _of_machine({where: share for where, share in found.items() if share > 0}, figures, rank)


def _add(found: Shares, shares: Shares, weight: float) -> None:
    for where, share in shares.items():
        found[where] = found.get(where, 0.0) + weight * share


def _moved(shares: Shares, figures: Mapping[str, Any], rank: RankSamples) -> Shares:
    """Shares of waiting for input, where the order of things says more of them than what a reader is at."""
    seen, inside = rank.seen_readers, rank.looks.inside if rank.looks is not None else None
    assert seen is not None
    counts = [each.readers for each in (rank.looks, inside) if each is not None]
    if any(_share(each, "ended") >= ENDED_SHARE for each in counts):
        return {Where("waiting", "no_shard"): 1.0}
    refill = figures.get("refill_fraction") or 0.0
    if refill >= REFILL_CAUSE and seen.num_readers:
        begins = Where("preprocessing", "shuffle_buffer") if _shuffles(inside) else Where("waiting", "worker_start")
        if begins.cause == "shuffle_buffer" or not seen.workers_stay:
            found: Shares = {begins: refill}
            _add(found, shares, 1 - refill)
            return found
    reads, amplified = Where("storage", "reads"), amplification(figures, seen)
    if reads in shares and amplified is not None and amplified >= AMPLIFIED:
        return {Where("storage", "amplification") if where == reads else where: s for where, s in shares.items()}
    return shares


def _shuffles(inside: Looks | None) -> bool:
    return inside is not None and _share(inside.readers, "shuffle") >= SHUFFLING_SHARE


def _share(counts: Mapping[str, float], word: str) -> float:
    total = sum(counts.values())
    return counts.get(word, 0.0) / total if total else 0.0


def amplification(figures: Mapping[str, Any], seen: SeenReaders) -> float | None:
    """Bytes read in read calls over bytes of the batches; None where either is not known."""
    read, steps_per_s = figures.get("read_call_bytes_per_s"), 1 / figures["step_s_mean"]
    return read / (seen.batch_bytes * steps_per_s) if read and seen.batch_bytes else None


def _of_machine(lost: Shares, figures: Mapping[str, Any], rank: RankSamples) -> Shares:
    """Shares of a step, those of computing taken for want of cores or memory where the kernel says that these lack."""
    used, seen = rank.used_cores, rank.seen_readers
    stalled = used.memory_stall_fraction if used is not None else None
    if stalled is not None and stalled >= MEMORY_SHARE:
        return _without_memory(lost, stalled)
    lacking, computing = Where("client_cpu", "affinity" if _bound(seen, used) else "cores"), lost.get(COMPUTE, 0.0)
    throttled = (used.throttled_fraction if used is not None else None) or 0.0
    contended = figures.get("cpu_contention_fraction") or 0.0
    if contended < (CONTENTION_SHARE if seen is not None and seen.num_readers else CROWDED_SHARE):
        contended = 0.0
    waited = min(computing, max(contended, throttled * computing))
    queued = 1.0 if _lacks_cores(figures, seen, used) else _queued(seen) if seen is not None else 0.0
    preparing = {where: share for where, share in lost.items() if where.verdict == "preprocessing"}
    found = lost | {where: (1 - queued) * share for where, share in preparing.items()}
    found |= {COMPUTE: computing - waited, lacking: queued * sum(preparing.values()) + waited}
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


def _between(ranks: Sequence[RankSamples]) -> Where | None:
    """What holds ranks back that is seen only by comparing them; None where nothing is."""
    if len(ranks) < 2:
        return None
    steps = [num_steps(rank) for rank in ranks]
    if min(steps) < (1 - FEWER_BATCHES) * max(steps):
        return Where("imbalance", "fewer_batches")
    own = [_own_s(rank) for rank in ranks]
    if None not in own and max(filter(None, own)) > SLOWER_RANK * min(filter(None, own)):
        return Where("imbalance", "slow_rank")
    return None


def _own_s(rank: RankSamples) -> float | None:
    """Seconds of a rank's step that are its own: no exchange, nor waiting for others in it. None where not seen."""
    looks = rank.looks
    if looks is None or "exchange" not in looks.body:
        return None
    seen, parts = rank.seen_readers, next(block.parts_s() for block in rank.blocks if block.kind == "loader")
    body = sum(seconds for name, seconds in parts.items() if name != "load")
    waits = lost_time.of_body(looks, seen, False).get(UNSEEN, 0.0) if seen is not None else 0.0
    return (sum(parts.values()) - body * waits) / num_steps(rank)


def num_steps(rank: RankSamples) -> int:
    """Its counted steps."""
    return sum(block.num_steps for block in rank.blocks if block.kind == "loader")


def _chosen(lost: Shares, evidence: Mapping[str, float | int | str], steps: int) -> Found:
    """The verdict and the cause, by shares of the step."""
    losses = {where: share for where, share in lost.items() if where not in (COMPUTE, UNSEEN)}
    total, unseen = sum(losses.values()), lost.get(UNSEEN, 0.0)
    if unseen > max(total, 1 - MOSTLY_KEPT_UP_AU):
        return Found(UNSEEN, evidence)
    if total <= 1 - HELD_BACK_AU:
        return Found(COMPUTE, evidence)
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


def _evidence(
    figures: Mapping[str, Any], rank: RankSamples, ranks: Sequence[RankSamples], lost: Shares
) -> dict[str, float | int | str]:
    """The numbers that it rests on, by name; shares are of the step."""
    seen, used, looks = rank.seen_readers, rank.used_cores, rank.looks
    found: dict[str, Any] = {
        "input_stall_fraction": figures.get("input_stall_fraction"),
        "au": figures.get("au"),
        "cpu_contention_fraction": figures.get("cpu_contention_fraction"),
        "rank": rank.rank if len(ranks) > 1 else None,
        "steps": num_steps(rank),
        "refill_fraction": figures.get("refill_fraction"),
        "amplification": amplification(figures, seen) if seen is not None else None,
        "reader_queue_fraction": _queued(seen) if seen is not None else None,
        "throttled_fraction": used.throttled_fraction if used is not None else None,
        "memory_stall_fraction": used.memory_stall_fraction if used is not None else None,
        "idle_cores": used.idle_cores if used is not None else None,
        "exchange_of_body_fraction": _share(looks.body, "exchange") if looks is not None else None,
        "looks_of_input": sum(looks.load.values()) if looks is not None else None,
        "looks_of_body": sum(looks.body.values()) if looks is not None else None,
    }
    found |= _places(looks, lost, num_steps(rank)) if looks is not None else {}
    found |= {f"{where}_fraction": share for where, share in sorted(lost.items(), key=lambda each: -each[1])}
    return {name: value for name, value in found.items() if value is not None}


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
        total = sum((counts or inside).values())
        phases = {"body": "the loop's body", "load": "the waiting for input", "readers": "the workers' time"}
        found |= {"line": most.line, "line_fraction": most.looks / total, "line_of": phases[most.phase]}
        if most.phase == "body" and most.looks >= SURE_LOOKS * most.steps:
            found["line_steps_fraction"] = most.steps / steps
    return found


def _table(phase: str) -> Mapping[str, Where]:
    return lost_time.OF_BODY if phase == "body" else lost_time.OF_READERS
