"""Where the time of a watched loop's steps goes, by verdict and cause: what looks at its threads and clocks show.

Nothing is taken for the cause because nothing else was found: what no look shows is `UNSEEN`.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from benchsuite.analysis.judging.setting import Setting
from benchsuite.analysis.judging.thresholds import (
    KERNEL_BESIDE,
    KERNEL_WAITS,
    LEAST_LOOKS,
    MAIN_SHARE,
    STARVED_SHARE,
)
from benchsuite.inside.samples import Looks, RankSamples, SeenReaders
from benchsuite.results.store.verdicts import CANNOT_TELL, Cause, Verdict


class Where(NamedTuple):
    """A verdict, and a cause of it where that is known."""

    verdict: Verdict
    cause: Cause | None = None

    def __str__(self) -> str:
        return f"{self.verdict}/{self.cause}" if self.cause else str(self.verdict)


WAITS = {"waits_for_readers": float(LEAST_LOOKS)}
"""Looks at a loop that waits for its readers."""
Shares = dict[Where, float]
"""Shares of something by where they go."""

COMPUTE = Where("compute", "compute")
UNSEEN = Where(CANNOT_TELL)
A_WAIT = Where("waiting")
CORES = Where("client_cpu", "cores")
RUNS = frozenset({"runs", "decode", "collate", "hand_over", "start", "shuffle", "save"})
"""Words of a thread that computes, of which its clock tells the share better than looks do: a thread of Python that
looks comes to its turn when the other one waits."""
NOT_TOLD = frozenset({"idle", "unknown", "hidden"})
"""Words of readers that say nothing of what they do: `hidden` by the kernel, for example."""
OF_CLOCK = RUNS - {"hand_over", "start", "save"}
"""Words of readers that mean computing wherever they are seen; a pipe that is full is `hand_over`, too."""
OF_READERS: Mapping[str, Where] = {
    "reads": Where("storage", "reads"),
    "faults": Where("storage", "mapped_pages"),
    "decode": Where("preprocessing", "decode"),
    "shuffle": Where("preprocessing", "decode"),
    "collate": Where("preprocessing", "collate"),
    "hand_over": Where("preprocessing", "hand_over"),
    "writes_pipe": Where("preprocessing", "hand_over"),
    "ended": Where("waiting", "no_shard"),
    "runs": Where("preprocessing"),
    "start": Where("waiting", "worker_start"),
    "lock": Where("waiting", "lock"),
    "socket": Where("waiting", "socket"),
    "local_socket": Where("waiting", "socket"),
    "pipe": Where("waiting", "child_process"),
    "child_process": Where("waiting", "child_process"),
    "sleep": Where("waiting", "sleep"),
    "writes": A_WAIT,
    "save": A_WAIT,
    "other": A_WAIT,
    "exchange": UNSEEN,
}
OF_BODY: Mapping[str, Where] = {
    **OF_READERS,
    **dict.fromkeys(("runs", "decode", "collate", "shuffle", "hand_over"), COMPUTE),
    "save": Where("waiting", "checkpoint"),
    "writes": Where("waiting", "checkpoint"),
    "writes_pipe": Where("waiting", "child_process"),
    "reads": A_WAIT,
    "faults": A_WAIT,
}


def with_clocks(rank: RankSamples, figures: Mapping[str, Any], setting: Setting) -> Looks | None:
    """The looks at a rank; where its readers were hardly looked at, what clocks say in place of it.

    A wait within a read call is one for reads only where readers time these calls themselves, and not in memory.
    """
    looks, alone = rank.looks, rank.seen_readers is not None and not rank.seen_readers.num_readers
    if looks is not None and _is_enough(looks.readers if "waits_for_readers" in looks.load else looks.load):
        return looks
    read, decode = figures.get("read_s_per_sample"), figures.get("decode_s_per_sample")
    if setting.watched or read is None or decode is None or not read + decode:
        return looks or (None if rank.seen_readers is None else Looks({} if alone else WAITS, {}, {}, {}, []))
    computed = figures.get("read_cpu_s_per_sample") or 0.0
    told = setting.reads_told and setting.cached(figures) <= MAIN_SHARE
    wait = ("faults" if setting.maps_files else "reads") if told else "unseen"
    shares = _shares({wait: max(0.0, read - computed), "runs": decode + computed})
    words = {word: LEAST_LOOKS * share for word, share in shares.items()}
    timed = Looks({}, {}, {}, {}, [], collate_and_cpu_s=(figures.get("collate_s_per_sample") or 0.0, decode + computed))
    if alone:
        return replace(looks or timed, load=words, collate_and_cpu_s=timed.collate_and_cpu_s)
    return replace(looks or timed, load=WAITS, readers=words, inside=timed)


def of_input(
    looks: Looks | None,
    seen: SeenReaders | None,
    loading: float = 1.0,
    requests_counted: bool = False,
    swapped: bool = False,
) -> Shares:
    """Shares of the time that a loop waits for its input, which is `loading` of the time in which readers were timed.

    `requests_counted`: readers ask a bucket by a client of ours, which counts; what they wait for is its answers.
    `swapped`: most of what was read was swapped in.
    """
    if looks is None:
        return {UNSEEN: 1.0}
    table = dict(OF_READERS)
    if swapped:
        table["faults"] = Where("waiting", "memory")
    if requests_counted:
        table |= dict.fromkeys(("socket", "lock", "other", "unseen"), Where("storage", "reads"))
    words = _by_clock(looks.load, seen.loading_thread_busy_fraction if seen is not None else None, looks)
    waited = words.pop("waits_for_readers", 0.0)
    found = named(words, table)
    for where, share in _of_readers(looks, seen, table, loading).items():
        found[where] = found.get(where, 0.0) + waited * share
    return found


def _of_readers(looks: Looks, seen: SeenReaders | None, table: Mapping[str, Where], loading: float) -> Shares:
    """What readers do while the loop waits for them, those left out that have nothing to do."""
    inside = looks.inside.readers if looks.inside is not None else {}
    words = _with_kernel(_bounded(_told_inside(looks.readers, inside), seen, loading), seen)
    words = _telling(words)
    found = _shares(words)
    if not _is_enough(words):  # the kernel's clock tells at least how much they computed
        busy = min(1.0, seen.busy_fraction or 0.0) if seen is not None and seen.num_readers else 0.0
        found = {"runs": busy, "unseen": 1 - busy}
    parts = _computing({word: count for word, count in inside.items() if word in RUNS - {"runs"}}, looks.inside)
    if looks.inside is None:  # no worker of a DataLoader, whose parts are known: it computes what it hands on
        parts = {"decode": 1.0}
    running = found.pop("runs", 0.0) if parts else 0.0
    return named(Counter(found) + Counter({word: running * share for word, share in parts.items()}), table)


def _telling(words: Mapping[str, float]) -> dict[str, float]:
    """Looks at readers that say what they do."""
    return {word: count for word, count in words.items() if word not in NOT_TOLD}


def _told_inside(outside: Mapping[str, float], inside: Mapping[str, float]) -> Mapping[str, float]:
    """Looks at readers from outside; where these are too few, their own.

    Who waits for a thread of its own that waits for an answer seems to wait for a lock: its frames tell more.
    """
    if not _is_enough(_telling(outside)):
        return inside if _is_enough(_telling(inside)) else outside or inside
    total, locked = sum(outside.values()), outside.get("lock", 0.0)
    if not locked or not _is_enough(inside):
        return outside
    beyond = _shares(inside).get("socket", 0.0) - outside.get("socket", 0.0) / total
    moved = max(0.0, min(locked, beyond * total))
    return {**outside, "lock": locked - moved, "socket": outside.get("socket", 0.0) + moved}


def _bounded(words: Mapping[str, float], seen: SeenReaders | None, loading: float) -> Mapping[str, float]:
    """Looks at readers, of which those that compute are as many as the kernel's clocks allow.

    Readers that computed for B of all time have computed for at most B / L of a part L of it, and for at least
    (B - (1 - L)) / L; where the loop waits for most of the time, for B. Looks come when a core is free or Python's lock
    is, and so at some things too often.
    """
    total = sum(words.values())
    if seen is None or not seen.num_readers or seen.busy_fraction is None or not total or not loading:
        return words
    runs = {word: count for word, count in words.items() if word in OF_CLOCK}
    passing = sum(words.get(word, 0.0) for word in RUNS - OF_CLOCK)
    usual = max(seen.busy_fraction, seen.cores or 0.0)
    most = min(1.0, usual if loading >= STARVED_SHARE else usual / loading) * total
    least = max(0.0, min(1.0, (seen.busy_fraction - (1 - loading)) / loading) * total - passing)
    computed = min(max(sum(runs.values()), least), most)
    others = {word: count for word, count in words.items() if word not in OF_CLOCK} or {"unseen": 1.0}
    parts = _shares(runs) or {"runs": 1.0}
    return {word: computed * share for word, share in parts.items()} | {
        word: (total - computed) * share for word, share in _shares(others).items()
    }


def _with_kernel(words: Mapping[str, float], seen: SeenReaders | None) -> Mapping[str, float]:
    """Looks at readers; what the kernel computes for those that wait for it is part of these waits.

    It submits requests and copies or maps what comes: with small direct reads and faults that takes as long as waiting.
    """
    waits = {word: words.get(word, 0.0) for word in ("reads", "faults")}
    total, kernel = sum(waits.values()), seen.kernel_fraction if seen is not None else None
    if kernel is None or total < KERNEL_WAITS * sum(words.values()):
        return words
    beyond = max(0.0, kernel - KERNEL_BESIDE * (1 - kernel))
    moved = beyond * sum(count for word, count in words.items() if word in OF_CLOCK)
    kept = {word: count * (1 - beyond) if word in OF_CLOCK else count for word, count in words.items()}
    return kept | {word: count * (1 + moved / total) for word, count in waits.items() if count}


def loading_share(rank: RankSamples) -> float:
    """Share of the time of all of a rank's blocks, in which its readers are timed, that its loop waits for input."""
    seconds = sum(block.steps_s for block in rank.blocks if block.kind != "between")
    loads = sum(block.parts_s().get("load", 0.0) for block in rank.blocks if block.kind == "loader")
    return loads / seconds if seconds else 0.0


def of_body(looks: Looks | None, seen: SeenReaders, on_device: bool) -> Shares:
    """Shares of the rest of the step; of a loop on a device a wait for nothing that is named is one for the device."""
    if on_device and looks is None:
        return {COMPUTE: 1.0}
    if looks is None or not sum(looks.body.values()):
        busy = _busy(seen)
        return {COMPUTE: busy, UNSEEN: 1 - busy}
    table = dict(OF_BODY) | ({"other": COMPUTE, "exchange": COMPUTE} if on_device else {})
    if on_device or (seen.body_cores or 0.0) >= MAIN_SHARE:
        table |= dict.fromkeys(("unknown", "hidden"), COMPUTE)  # for a device, or threads of a library that compute
    return named(_by_clock(looks.body, None if on_device else seen.body_busy_fraction), table)


def _busy(seen: SeenReaders) -> float:
    """Share of the body in which its thread computes, or others of its process compute for it."""
    return min(1.0, max(seen.body_busy_fraction or 0.0, seen.body_cores or 0.0))


def _computing(runs: Mapping[str, float], looks: Looks | None) -> dict[str, float]:
    """Words of a thread that runs as shares; that of collating as it was timed, where it was."""
    collate_s, cpu_s = looks.collate_and_cpu_s if looks is not None else (0.0, 0.0)
    if not cpu_s:
        return _shares(runs)
    collated, others = min(1.0, collate_s / cpu_s), {word: count for word, count in runs.items() if word != "collate"}
    rest = _shares(others) or {"decode": 1.0}
    return {"collate": collated} | {word: (1 - collated) * share for word, share in rest.items()}


def _by_clock(looks: Mapping[str, float], busy: float | None, timed: Looks | None = None) -> dict[str, float]:
    """Words as shares, those of a thread that runs taken together as often as its clock says."""
    if busy is None:
        return _shares(looks)
    busy = min(1.0, busy)
    running = {word: count for word, count in looks.items() if word in RUNS}
    waiting = {word: count for word, count in looks.items() if word not in RUNS}
    # who waits while a batch is handed over waits for the readers that do so; who saves waits for the disk
    part, waits_for = ("hand_over", "waits_for_readers") if timed is not None else ("save", "save")
    beyond = sum(running.values()) - busy * sum(looks.values())
    waiting[waits_for] = waiting.get(waits_for, 0.0) + max(0.0, min(beyond, running.get(part, 0.0)))
    runs, waits = _computing(running, timed) or {"runs": 1.0}, _shares(waiting) or {"unknown": 1.0}
    parts = Counter({word: busy * share for word, share in runs.items()})
    return dict(parts + Counter({word: (1 - busy) * share for word, share in waits.items()}))


def _is_enough(counts: Mapping[str, float]) -> bool:
    """Whether they are so many that their shares say something."""
    return sum(counts.values()) >= LEAST_LOOKS


def _shares(counts: Mapping[str, float]) -> dict[str, float]:
    total = sum(counts.values())
    return {word: count / total for word, count in counts.items()} if total else {}


def named(words: Mapping[str, float], table: Mapping[str, Where]) -> Shares:
    """Shares by verdict and cause, from those by word."""
    found: Shares = {}
    for word, share in words.items():
        where = table.get(word, UNSEEN)
        found[where] = found.get(where, 0.0) + share
    return found


def num_steps(rank: RankSamples, setting: Setting | None = None) -> int:
    """Its counted steps; of a trial those of all its blocks."""
    trial = setting is not None and not setting.watched
    kinds = {"loader", "plain", "ceiling"} if trial else {"loader"}
    return sum(block.num_steps for block in rank.blocks if block.kind in kinds)


def hungriest(ranks: list[RankSamples]) -> RankSamples:
    """The rank that waits for its input for the largest share of its steps."""
    return max(ranks, key=_stall)


def _stall(rank: RankSamples) -> float:
    parts = [block.parts_s() for block in rank.blocks if block.kind == "loader"]
    seconds = sum(sum(each.values()) for each in parts)
    return sum(each.get("load", 0.0) for each in parts) / seconds if seconds else 0.0


def own_imbalance_s(figures: Mapping[str, Any], step: float) -> float:
    """Waiting for a slower rank, less what that rank waits for its input: that is the input's.

    Of a step whose hungriest rank waits M for input and whose ranks wait m on average, another rank waits for the input
    of others at most M, and at most 2 (M - m) where one rank is starved or half of them are.
    """
    most = (figures.get("input_stall_fraction") or 0.0) * step
    starved = min(most, 2 * (most - (figures.get("load_mean_s") or 0.0)))
    return max(0.0, (figures.get("imbalance_s") or 0.0) - max(0.0, starved))
