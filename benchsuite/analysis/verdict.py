"""The verdict: what holds a loop back, with its evidence in one sentence of numbers, and what they say would help.

One for trials and for watched loops. Readers of a trial tell what they do; of a watched loop it is seen from outside,
and may not bear a verdict.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from benchsuite.analysis import loops
from benchsuite.analysis.byte_reconciliation import NOISE_BYTES
from benchsuite.analysis.lost_time import own_imbalance_s
from benchsuite.analysis.metrics import MIN_WARM_RESIDENT, loop_figures, overhead
from benchsuite.analysis.thresholds import (
    COMMUNICATION_SHARE,
    CONTENTION_SHARE,
    CROWDED_SHARE,
    FULL_SHARE,
    FULL_THREAD,
    HELD_BACK_AU,
    IDLE_CORES,
    MAIN_SHARE,
    MAX_OVERHEAD,
    MAX_SHARE,
    MIN_STEPS,
    MOSTLY_KEPT_UP_AU,
    OTHERS_SHARE,
    QUOTA_SHARE,
    SATURATED_SHARE,
    SPARED_CORE,
)
from benchsuite.contract.rank_samples import RankSamples, UsedCores
from benchsuite.host.interference import foreign_load
from benchsuite.results.render import judged
from benchsuite.results.render.words import counted
from benchsuite.results.store.record import MAX_AU
from benchsuite.results.store.verdicts import CANNOT_TELL, Cause, Verdict

HAND_OVER = "larger batches, fewer and larger tensors a batch, or a longer queue (prefetch_factor)"
AGAIN = "measure again on idle cores: this says nothing of the job itself"
ALONE = "measure again while nothing else reads from this disk: this says nothing of the job itself"
PROFILED = "--profile torch: it tells exposed communication within compiled blocks"
PROFILE = "a profile of the step: it may share memory bandwidth, caches, PCIe or the clock with its readers"


@dataclass(frozen=True)
class Setting:
    """What verdict and remedies depend on beside the figures; None where it is not known."""

    num_workers: int | None = None
    """Loader workers of one rank."""
    ranks: int | None = None
    """Ranks that share the cores."""
    cores: int | None = None
    threads: int | None = None
    """Threads that compute for one rank."""
    file_per_sample: bool | None = None
    emulated: bool = False
    cache: str = "cold"
    staged: bool = False
    readers_of_a_sample: int = 1
    """Ranks that read the same samples through a cache."""
    hides_communication: bool = False
    """Whether communication runs within compiled code, where it is not timed."""
    reads_told: bool = False
    """Whether readers time their reads themselves."""
    maps_files: bool = False


class Judgement(NamedTuple):
    """What holds a loop back, why that is thought, and what would help by the same numbers."""

    bottleneck: Verdict
    evidence: str
    remedy: str | None = None
    part: Cause | None = None
    """The part of preprocessing that is meant, where it can be told."""
    cause: Cause | None = None
    numbers: Mapping[str, float | int | str] = MappingProxyType({})
    """What it rests on, by name."""
    alternatives: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()

    def figures(self) -> dict[str, Any]:
        """Return the figures of a record that say it, and what stands beside them."""
        return {
            "bottleneck": self.bottleneck,
            "cause": self.cause,
            "evidence": dict(self.numbers),
            "alternatives": list(self.alternatives),
            "remedies": list(self.remedies),
            "bottleneck_evidence": self.evidence,
            "bottleneck_remedy": self.remedy,
        }

    def after(self, said: str) -> "Judgement":
        """Return this judgement with more evidence before its own."""
        return self._replace(evidence=f"{said}; {self.evidence}")


def verdict(
    figures: Mapping[str, Any], setting: Setting | None = None, samples: Sequence[RankSamples] = ()
) -> Judgement | None:
    """What holds a loop back; None where it has no steps.

    What the input costs a step, 1 - AU, is weighed against the largest of exposed communication, waiting for a slower
    rank and the pipeline's bubble: the larger is named, near-equal ones are mixed. Where the model waits for its input,
    readers that mostly wait for reads are held by storage, readers that mostly compute or wait for a core by
    preprocessing, or the client's CPU where the loop waits for cores beside them.
    Waiting for a slower rank is imbalance. Where nothing of this is lost it is the computation; where little is, the
    two are mixed. Without a ceiling the input costs what the step waits for it. Where AU may be off by so much that
    another verdict would be given, the evidence says which.

    Args:
        figures: of the loop.
        setting: what else is known of it.
        samples: what its ranks measured, to be doubted first.
    """
    step = figures.get("step_s_mean")
    if not step:
        return None
    setting = setting or Setting()
    if "num_readers" in figures and (steps := min(loops.num_steps(rank) for rank in samples)) < MIN_STEPS:
        return Judgement(CANNOT_TELL, judged.too_few(steps), numbers={"steps": steps})
    if reason := doubt(figures, setting, samples):
        return Judgement(CANNOT_TELL, reason)
    if crowd := disturbance(figures, setting, samples):
        return Judgement(CANNOT_TELL, crowd, AGAIN)
    if "num_readers" in figures:
        return _of_loop(figures, samples)
    found = _with_error(_held_by(figures, setting, step), figures, setting, step)
    return found._replace(cause=_cause_of(found, setting))


CAUSES: Mapping[Verdict, Cause] = {
    "compute": "compute",
    "communication": "communication",
    "client_cpu": "cores",
    "imbalance": "slow_rank",
}
"""Verdicts of trials that have one cause."""


def _cause_of(found: Judgement, setting: Setting) -> Cause | None:
    """The cause of a trial's verdict; None where what was measured does not tell it."""
    if found.bottleneck == "storage" and setting.reads_told:
        return "mapped_pages" if setting.maps_files else "reads"
    return found.part if found.bottleneck == "preprocessing" else CAUSES.get(found.bottleneck)


def _of_loop(figures: Mapping[str, Any], ranks: Sequence[RankSamples]) -> Judgement:
    """The judgement of a watched loop."""
    found = loops.judge(figures, ranks)
    verdict, cause, named = found.where.verdict, found.where.cause, tuple(map(str, found.alternatives))
    helps = found.remedies()
    said = judged.evidence(verdict, cause, found.evidence, named)
    return Judgement(verdict, said, judged.remedy(helps), None, cause, found.evidence, named, helps)


def _with_error(found: Judgement, figures: Mapping[str, Any], setting: Setting, step: float) -> Judgement:
    """The judgement, which says of an AU near a threshold what it would be at either end of where AU may be."""
    au, error, stall = figures.get("au"), figures.get("au_error"), figures.get("input_stall_fraction") or 0.0
    if au is None or error is None:
        return found
    near = []
    for end in (au - error, min(au + error, max(au, 1.0))):
        moved = {**figures, "au": end, "input_stall_fraction": max(0.0, stall + au - end)}
        other = _held_by(moved, setting, step).bottleneck
        near += [f"at {_near_one(end, error)} the verdict is {other}"] if other != found.bottleneck else []
    told = f"AU {au:.2f}"
    unsure = f"{told} ±{_near_one(error, error)} ({', '.join(near)}){found.evidence.removeprefix(told)}"
    return found._replace(evidence=unsure) if near else found


def _near_one(value: float, error: float) -> str:
    """An AU, in as many digits as tell it from another that is so far off."""
    return f"{value:.2f}" if error >= 0.01 else f"{value:.3f}"


def _held_by(figures: Mapping[str, Any], setting: Setting, step: float) -> Judgement:
    """What holds back a loop whose figures are not in doubt."""
    (share, between), held = _between_ranks(figures, step), _kept_up(figures)
    if held is None or held >= HELD_BACK_AU:
        source = "input in memory" if held is None else f"{_waits(figures)}: input keeps up"
        if share > COMMUNICATION_SHARE:
            return between.after(source)
        return _compute_verdict(figures, setting, step, source)
    of_input = (1 - held) / (1 - held + share)
    if of_input <= 1 - MAIN_SHARE:
        return between.after(_waits(figures))
    found = _input_verdict(figures, setting)
    if found.bottleneck == CANNOT_TELL:
        return found
    if share < 1 - HELD_BACK_AU:
        return _beside_computation(found, held, figures, setting)
    evidence = f"{found.evidence}; {between.evidence}"
    if of_input >= MAIN_SHARE:
        return found._replace(evidence=evidence)
    return Judgement("mixed", evidence, f"{found.remedy}; and {between.remedy}")


def _beside_computation(found: Judgement, held: float, figures: Mapping[str, Any], setting: Setting) -> Judgement:
    """What the input holds back, or mixed where it costs little beside the computation, and no core is missing."""
    crowded = found.bottleneck == "client_cpu" and _waits_for_cores(figures) >= CROWDED_SHARE
    if held < MOSTLY_KEPT_UP_AU or crowded or found.bottleneck == "mixed":
        return found
    computing, other = "what is emulated" if setting.emulated else "computing", found.bottleneck.replace("_", " ")
    said = f"{found.evidence}; {computing} takes the most of the step, {other} costs {1 - held:.0%}"
    return Judgement("mixed", said, found.remedy)


def doubt(figures: Mapping[str, Any], setting: Setting, samples: Sequence[RankSamples]) -> str | None:
    """Why no verdict can rest on what was measured; None where one can.

    Shares are told as they were measured: what is above 1 was measured wrong, and nothing is cut to fit.
    """
    kind = "plain" if figures.get("input_stall_fraction") is None else "loader"
    for rank in samples:
        where = f" on rank {rank.rank}" if len(samples) > 1 else ""
        alone = loop_figures([rank], kind)
        share, step_s = overhead(rank, kind), alone["step_s_mean"]
        if share is not None and share > MAX_OVERHEAD:
            said = f"measuring takes {share:.1%} of a step of {step_s * 1e6:,.1f} us{where}"
            return f"{said}; above {MAX_OVERHEAD:.0%} it hides what the loop does"
        for what, measured in _shares(rank, alone):
            if measured is not None and not 1 - MAX_SHARE <= measured <= MAX_SHARE:
                return f"{what} {measured:.0%} of the time{where}, which no share can be"
    au = figures.get("au")
    if au is not None and au > MAX_AU and not setting.emulated:
        return f"AU {au:.2f} is above 1 by more than its noise: steps were slower with their input in memory"
    return None


def disturbance(figures: Mapping[str, Any], setting: Setting, samples: Sequence[RankSamples]) -> str | None:
    """What other processes took from the loop; None where they left it the cores that it wants.

    Readers that wait for a core look like readers that wait for their reads: beside a crowd no cause is the job's own.
    """
    cores = figures.get("foreign_of_cores") or setting.cores or 1
    crowd = foreign_load(figures.get("foreign_cpu_cores"), cores)
    if crowd is None or any(_held_by_itself(rank.used_cores) for rank in samples):
        return None
    waits = figures.get("cpu_contention_fraction") or 0.0
    if waits >= CONTENTION_SHARE:
        return f"{crowd}, and the loop waits for one {waits:.0%} of the step"
    if figures["foreign_cpu_cores"] + _own_cores(figures, setting, samples) >= FULL_SHARE * cores:
        return f"{crowd}, and the loop the rest"
    return None


def _held_by_itself(used: UsedCores | None) -> bool:
    """Whether who waits for a core does so for a quota, or beside an idle one: others have not taken it."""
    if used is None:
        return False
    return (used.throttled_fraction or 0.0) >= QUOTA_SHARE or (used.idle_cores or 0.0) >= IDLE_CORES


def _own_cores(figures: Mapping[str, Any], setting: Setting, samples: Sequence[RankSamples]) -> float:
    """Cores that the loop keeps busy on its node: by the kernel's count, else by what its ranks and readers do."""
    counted = [rank.used_cores for rank in samples if rank.used_cores]
    if counted:
        return sum(used.own_cpu_s / used.seconds for used in counted if used.node == counted[0].node)
    computing = 0.0 if setting.emulated else 1 - (figures.get("input_stall_fraction") or 0.0)
    return (setting.ranks or 1) * computing + _reader_cores(figures, setting)


def _shares(rank: RankSamples, figures: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    """What is measured by a clock of its own, as shares of a rank's time."""
    yield "it waits for input", figures["input_stall_fraction"]
    yield "it waits for a core", figures["cpu_contention_fraction"]
    if seen := rank.seen_readers:
        yield f"{'its worker processes are' if seen.num_readers else 'its loader is'} busy for", seen.busy_fraction
        yield "its loading thread is busy for", seen.loading_thread_busy_fraction


def _kept_up(figures: Mapping[str, Any]) -> float | None:
    """AU, or where there is no ceiling the share of the step that waits for no input; None with input in memory."""
    au, stall = figures.get("au"), figures.get("input_stall_fraction")
    return au if au is not None or stall is None else 1 - stall


def _waits(figures: Mapping[str, Any]) -> str:
    """What the step waits for, as evidence."""
    au, contention = figures.get("au"), figures.get("cpu_contention_fraction")
    evidence = f"{figures.get('input_stall_fraction') or 0.0:.0%} of the step waits for input"
    if au is not None:
        evidence = f"AU {au:.2f}; {evidence}"
    if contention is None:
        return evidence
    threads = figures.get("threads_contention_fraction") or 0.0
    beside = f" and {threads:.0%} for a thread that waits for one" if f"{threads:.0%}" != "0%" else ""
    return f"{evidence}, {contention:.0%} for a core{beside}"


def _waits_for_cores(figures: Mapping[str, Any]) -> float:
    """Share of the step for which the loop waits for a core, or for a thread that does; at most.

    Where one core is missing, one of them waits at a time and the others wait for that one: their times add up.
    """
    waits = (figures.get(name) or 0.0 for name in ("cpu_contention_fraction", "threads_contention_fraction"))
    return min(1.0, sum(waits))


def _between_ranks(figures: Mapping[str, Any], step: float) -> tuple[float, Judgement]:
    """The largest of what a step loses between ranks: its share of the step, and the judgement if that is the cause."""
    exchange, bubble = ((figures.get(name) or 0.0) / step for name in ("communication_min_s", "bubble_s"))
    waited, rank = own_imbalance_s(figures, step) / step, figures.get("slowest_rank")
    if rank is not None and waited > max(exchange, bubble):
        said = f"others wait {waited:.0%} of the step for rank {rank:.0f}, the wire takes {exchange:.0%}"
        return waited, Judgement(
            "imbalance", said, f"look at rank {rank:.0f}: its device, its cores, what else runs there"
        )
    if bubble > exchange:
        said = f"waiting for other stages of the pipeline is {bubble:.0%} of the step"
        return bubble, Judgement("communication", said, "more microbatches, or schedule interleaved or zero_bubble")
    said = f"exposed communication is {exchange:.0%} of the step, stragglers aside"
    help_ = "a larger batch or grad_accum, comm_hook bf16 or another bucket_cap_mb; or a faster network"
    return exchange, Judgement("communication", said, help_)


def _compute_verdict(figures: Mapping[str, Any], setting: Setting, step: float, source: str) -> Judgement:
    communication_s = figures.get("communication_min_s")
    if communication_s is None and setting.hides_communication:
        return Judgement(CANNOT_TELL, f"{source}; communication runs in compiled blocks and is not timed", PROFILED)
    load = "" if _kept_up(figures) is not None else f"; load is {(figures.get('load_s') or 0.0) / step:.0%} of the step"
    exchange = "" if communication_s is None else f"; exposed communication is {communication_s / step:.0%} of the step"
    evidence, waits = f"{source}{load}{exchange}", _waits_for_cores(figures)
    if setting.emulated or waits < CROWDED_SHARE:
        return Judgement("none" if setting.emulated else "compute", evidence)
    # Where a ceiling says that steps without readers are no quicker, it is the computation's own threads that wait.
    crowded: Verdict = "compute" if figures.get("au") is not None or not setting.num_workers else "client_cpu"
    help_ = f"{_fewer_threads(figures, setting) or 'fewer threads or workers'}, or more cores"
    return Judgement(crowded, f"{evidence}; its threads wait for cores", help_)


def _input_verdict(figures: Mapping[str, Any], setting: Setting) -> Judgement:
    """Which half of the input pipeline holds the loop back."""
    evidence = _waits(figures) + _of_a_sample(figures)
    if _is_beside_input(figures) and not setting.emulated:
        return _taken_cores(figures, setting, evidence)
    found = _telling_readers(figures, setting, evidence)
    if found.bottleneck == CANNOT_TELL:
        return found
    if found.bottleneck in ("storage", "mixed") and (others := _others_read(figures, setting)):
        return Judgement(CANNOT_TELL, f"{evidence}; {others}", ALONE)
    if found.bottleneck == "preprocessing" and _lacks_cores(figures):
        return found._replace(bottleneck="client_cpu")
    return found


def _others_read(figures: Mapping[str, Any], setting: Setting) -> str | None:
    """What others read from the disk that the loop reads; None where that is little, or cannot be told."""
    names = ("mount_counter", "process_storage_bytes", "mount_read_bytes")
    counter, own, read = (figures.get(name) for name in names)
    if own is None or read is None or not str(counter).startswith("diskstats"):
        return None
    if own < NOISE_BYTES or _cached(figures, setting) > MAIN_SHARE or read - own < OTHERS_SHARE * read:
        return None
    return f"others read {(read - own) / 1e6:.3g} of the {read / 1e6:.3g} MB that the disk gave meanwhile"


def _lacks_cores(figures: Mapping[str, Any]) -> bool:
    """Whether readers that compute do so on cores that the loop itself waits for."""
    return _waits_for_cores(figures) >= CONTENTION_SHARE


def _is_beside_input(figures: Mapping[str, Any]) -> bool:
    """Whether steps are slower than with their input in memory, and mostly not for waiting for it."""
    au: float | None = figures.get("au")
    return au is not None and bool((figures.get("input_stall_fraction") or 0.0) < (1 - au) / 2)


def _taken_cores(figures: Mapping[str, Any], setting: Setting, evidence: str) -> Judgement:
    """Steps that lose time to neither input nor ranks: readers take cores only where cores are waited for."""
    lost = 1 - figures["au"] - (figures.get("input_stall_fraction") or 0.0)
    if _waits_for_cores(figures) < lost / 2:
        said = (
            f"{evidence}; the step loses {lost:.0%} more while readers run, and not by waiting for them or for a core"
        )
        return Judgement("mixed", said, PROFILE)
    fewer = _fewer_threads(figures, setting)
    fitting = f"{fewer}, more cores a rank" if fewer else "more cores a rank, fewer workers or threads"
    help_ = f"{fitting}, or data that need no decoding"
    return Judgement("client_cpu", f"{evidence}; readers take cores from the computation", help_)


def _fewer_threads(figures: Mapping[str, Any], setting: Setting) -> str:
    """Advise as many threads as leave readers what they use; empty where there are no more, or that is not known."""
    ranks, cores, threads = setting.ranks, setting.cores, setting.threads
    if not (ranks and cores and threads):
        return ""
    busy = _reader_cores(figures, setting)
    taken = math.ceil(busy / ranks) if busy / ranks > SPARED_CORE else 0
    fitting = max(1, cores // ranks - taken)
    beside = f", and readers keep {busy:.1f} busy" if f"{busy:.1f}" != "0.0" else ""
    sharing = f"{counted(ranks * threads, 'thread')} share {counted(cores, 'core')}{beside}"
    return f"threads_per_rank: {fitting} ({sharing})" if fitting < threads else ""


def _of_a_sample(figures: Mapping[str, Any]) -> str:
    """Tell what a reader does for a sample, how busy it is with that, and what it could give with no model."""
    read, decode = figures.get("read_s_per_sample"), figures.get("decode_s_per_sample")
    busy, computing, words = figures.get("reader_busy_fraction"), _computing_share(figures), list[str]()
    if read is not None and decode is not None:
        parts = {"unpacking row groups": "unpack_s_per_sample", "collating": "collate_s_per_sample"}
        told = [f"{figures[name] * 1e3:.2f} of it {part}" for part, name in parts.items() if figures.get(name)]
        beside = f" ({', '.join(told)})" if told else ""
        words.append(f"reads {read * 1e3:.2f} ms and decodes {decode * 1e3:.2f} ms a sample{beside}")
    if busy is not None:
        words.append(f"{'' if words else 'is '}busy {busy:.0%} of the time")
        if computing is not None and figures.get("read_cpu_s_per_sample") is not None:
            words.append(f"computing {busy * computing:.0%} of it")
    said = f"; a reader {', '.join(words)}" if words else ""
    alone, rate, au = (figures.get(name) for name in ("loader_only_samples_per_s", "samples_per_s", "au"))
    if alone and rate and au:
        said += f"; the loader alone gives {alone:.0f} samples/s, the model could take {rate / au:.0f}"
    return said


def _telling_readers(figures: Mapping[str, Any], setting: Setting, evidence: str) -> Judgement:
    """Judge by what readers say of each sample, and by what a plain reader got.

    Waiting for a core is left out of both times.
    """
    cached = _cached(figures, setting)
    if cached > MAIN_SHARE:
        said = f"{evidence}; {cached:.0%} of the bytes came from memory"
        if figures.get("read_cpu_s_per_sample") is not None and (_computing_share(figures) or 0.0) <= 1 - MAIN_SHARE:
            said += ", and they wait all the same: for another host, a lock, or what is no storage of these files"
            return Judgement("mixed", said, _more_workers(setting))
        return Judgement("preprocessing", said, _more_readers(figures, setting), _decode_or_collate(figures))
    if client := _full_client(figures, setting):
        return client.after(evidence)
    saturation = _saturation(figures, setting)
    if saturation is not None and saturation >= SATURATED_SHARE:
        said = f"{evidence}; a plain reader gets no more of these files: {saturation:.0%} of that is read"
        help_ = f"{_shards(setting)}{_staging(setting)}fewer bytes a sample, or faster storage"
        return Judgement("storage", said, help_)
    if saturation is not None and _lacks_cores(figures):
        said = f"{evidence}; storage has more to give ({saturation:.0%} of it is read), cores have not"
        return Judgement("preprocessing", said, _more_readers(figures, setting))
    if figures.get("decode_s_per_sample") is None:
        unknown = f"{evidence}; reading is not told from decoding here"
        return _judged_by_readers("mixed", unknown, figures, setting)
    if _rest_while_all_starve(figures):
        said = f"{evidence}; the readers hand batches over for the rest of the time, or wait until they can"
        return Judgement("preprocessing", said, HAND_OVER, "hand_over")
    computing = _computing_share(figures)  # decompressing in a read call is no storage
    share = 0.0 if computing is None else 1 - computing
    name: Verdict = "storage" if share >= MAIN_SHARE else "preprocessing" if share <= 1 - MAIN_SHARE else "mixed"
    part = _decode_or_collate(figures) if name == "preprocessing" else None
    return _judged_by_readers(name, evidence, figures, setting)._replace(part=part)


def _full_client(figures: Mapping[str, Any], setting: Setting) -> Judgement | None:
    """Judge that a bucket's client is what readers wait for; None where it is not, or no bucket is read.

    Either one of its threads fills a core, while the threads that read wait for it, or these compute in its calls.
    """
    thread = figures.get("client_thread_busy_fraction")
    if thread is None:
        return None
    more = "more cores a rank" if not _leaves_cores(figures, setting) else _more_workers(setting)
    help_ = f"{more} with loader torch, each of which has a client of its own; or larger requests: a format of shards"
    if thread >= FULL_THREAD:
        return Judgement("client_cpu", f"a thread of the bucket's client fills {thread:.0%} of a core", help_)
    computed, decode = figures.get("read_cpu_s_per_sample") or 0.0, figures.get("decode_s_per_sample") or 0.0
    if (_computing_share(figures) or 0.0) >= MAIN_SHARE and computed > decode:
        return Judgement("client_cpu", "readers compute in the bucket's client more than they decode", help_)
    return None


def _rest_while_all_starve(figures: Mapping[str, Any]) -> bool:
    """Whether readers neither read nor decode while every rank waits for their batches, and no core is waited for."""
    busy, mean_s = figures.get("reader_busy_fraction"), figures.get("load_mean_s")
    waited_s = figures["step_s_mean"] * (figures.get("input_stall_fraction") or 0.0)
    all_starve = mean_s is None or mean_s >= MAIN_SHARE * waited_s
    return busy is not None and busy <= 1 - MAIN_SHARE and all_starve and not _lacks_cores(figures)


def _decode_or_collate(figures: Mapping[str, Any]) -> Cause:
    """Which of the two takes readers longer."""
    decode, collate = (figures.get(f"{name}_s_per_sample") or 0.0 for name in ("decode", "collate"))
    return "collate" if collate > decode / 2 else "decode"


def _judged_by_readers(name: Verdict, evidence: str, figures: Mapping[str, Any], setting: Setting) -> Judgement:
    """The judgement with what helps readers that wait, that compute, or that do both."""
    reads, more = _faster_reads(figures, setting), _more_readers(figures, setting)
    both = "or" if figures.get("decode_s_per_sample") is None else "and"
    return Judgement(name, evidence, {"storage": reads, "preprocessing": more}.get(name, f"{more}; {both} {reads}"))


def _computing_share(figures: Mapping[str, Any]) -> float | None:
    """Share of the time of reading and decoding in which a core computes; None where the two are not told apart."""
    read, decode = figures.get("read_s_per_sample") or 0.0, figures.get("decode_s_per_sample")
    if decode is None or not read + decode:
        return None
    return float(min(1.0, (decode + (figures.get("read_cpu_s_per_sample") or 0.0)) / (read + decode)))


def _reader_cores(figures: Mapping[str, Any], setting: Setting) -> float:
    """Cores that all ranks' readers keep busy."""
    readers = (setting.ranks or 1) * max(setting.num_workers or 0, 1)
    computing = _computing_share(figures)
    busy = figures.get("worker_busy_fraction" if "num_readers" in figures else "reader_busy_fraction") or 0.0
    return float(readers * busy * (1.0 if computing is None else computing))


def _cached(figures: Mapping[str, Any], setting: Setting) -> float:
    """Share of the bytes that came from memory, as far as counters or residency tell.

    Ranks that read the same samples find there what the first of them has read: that is no cache of the trial's.
    """
    share: float | None = figures.get("cache_hit_fraction")
    if share is None:
        return 1.0 if (figures.get("cache_resident_before") or 0.0) >= MIN_WARM_RESIDENT else 0.0
    return float(max(0.0, 1.0 - (1.0 - share) * setting.readers_of_a_sample))


def _saturation(figures: Mapping[str, Any], setting: Setting) -> float | None:
    """What was read of the files' content over what a plain reader got; None for reads that are not cold."""
    if setting.cache != "cold":
        return None
    rate, ceiling = figures.get("io_bytes_per_s"), figures.get("storage_ceiling_bytes_per_s")
    return rate / ceiling if rate and ceiling else None


def _leaves_cores(figures: Mapping[str, Any], setting: Setting) -> bool:
    """Whether more workers would find a core: by their number, or by what readers and others use; True if unknown."""
    ranks, workers, cores = setting.ranks, setting.num_workers, setting.cores
    if not ranks or not cores or workers is None or ranks * (workers + 1) < cores:
        return True
    if figures.get("reader_busy_fraction") is None and figures.get("worker_busy_fraction") is None:
        return False
    return bool(_reader_cores(figures, setting) + (figures.get("foreign_cpu_cores") or 0.0) + ranks < cores)


def _more_readers(figures: Mapping[str, Any], setting: Setting) -> str:
    """What helps readers that compute too slowly."""
    if _lacks_cores(figures):
        fewer = _fewer_threads(figures, setting)
        fitting = f"{fewer}, or more cores a rank" if fewer else "more cores a rank, or fewer threads"
        return f"{fitting}: the loop itself waits for a core"
    if not _leaves_cores(figures, setting):
        return "data that cost less to decode, decoding on the GPU (dali), or more cores a rank"
    if not setting.num_workers or not setting.cores:
        return _more_workers(setting)
    ranks = counted(setting.ranks or 1, "rank")
    return f"more workers: {ranks} x {setting.num_workers} leave some of {setting.cores} cores idle"


def _more_workers(setting: Setting) -> str:
    return "workers that read ahead (num_workers)" if setting.num_workers == 0 else "more workers"


def _faster_reads(figures: Mapping[str, Any], setting: Setting) -> str:
    """What helps readers that wait for their reads."""
    more = _more_workers(setting) if _leaves_cores(figures, setting) else "more cores a rank"
    saturation = _saturation(figures, setting)
    if saturation is not None:
        gets = f"a plain reader gets {1 / saturation:.1f} x as much there: {more}"
        longer = " or a longer queue" if "workers" in more else ""
        return f"{gets}{longer}, or a format of shards" if setting.file_per_sample else f"{gets}{longer}"
    return f"{_shards(setting)}{more}, {_staging(setting)}or faster storage"


def _shards(setting: Setting) -> str:
    """Advise shards, unless the format has some."""
    return {True: "a format of shards, ", None: "fewer and larger files, ", False: ""}[setting.file_per_sample]


def _staging(setting: Setting) -> str:
    """Advise staging, unless it is done already."""
    return "" if setting.staged else "staging to a local disk, "
