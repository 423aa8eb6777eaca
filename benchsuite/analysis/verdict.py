"""The verdict: what holds a trial back, with its evidence in one sentence of numbers, and what they say would help."""

from collections.abc import Mapping
from typing import Any, NamedTuple

HELD_BACK_AU = 0.95
"""From this utilization on the input keeps up: AU tops out near it on CPU machines."""
MAIN_SHARE = 0.65
"""A cause with this share of the readers' time is the cause; between the two it is mixed."""
COMMUNICATION_SHARE = 0.20
"""Exposed communication, or a pipeline's bubble, above this share of the step is what holds the job back."""
SATURATED_SHARE = 0.80
"""Storage that gives this share of what it gave a plain reader has no more to give."""
CONTENTION_SHARE = 0.10
"""Where the training thread waits for a core this share of the step, cores are short for the readers beside it too."""
WARM_RESIDENT = 0.99
"""Files that lay in the page cache to this share are read from memory."""


class Judgement(NamedTuple):
    """What holds a trial back, why that is thought, and what would help by the same numbers."""

    bottleneck: str
    evidence: str
    remedy: str | None = None


class Cause(NamedTuple):
    """What is lost between ranks: its share of the step, and the judgement if that is what holds the trial back."""

    share: float
    bottleneck: str
    evidence: str
    remedy: str


def verdict(figures: Mapping[str, Any], about: Mapping[str, Any] | None = None) -> Judgement | None:
    """What holds a trial back; None where it has no steps. `about`: its format, workers, ranks, cores, device ...

    What the input costs a step, 1 - AU, is weighed against the largest of exposed communication, waiting for a slower
    rank and the pipeline's bubble: the larger is named, near-equal ones are mixed. Where the model waits for its input,
    readers that mostly wait for reads are held by storage, readers that mostly compute or wait for a core by the
    client; where the model does not wait for it but for a core, readers take cores from the computation, which is the
    client too. Where nothing of this is lost it is the computation.
    """
    au, step = figures.get("au"), figures.get("step_s_mean")
    if not step:
        return None
    told, between = about or {}, _between_ranks(figures, step)
    if au is None or au >= HELD_BACK_AU:
        source = "input in memory" if au is None else f"AU {au:.2f}: input keeps up"
        if between.share > COMMUNICATION_SHARE:
            return Judgement(between.bottleneck, f"{source}; {between.evidence}", between.remedy)
        return _compute_verdict(figures, told, step, source)
    of_input = (1 - au) / (1 - au + between.share)
    if of_input <= 1 - MAIN_SHARE:
        said = f"AU {au:.2f}: input costs {1 - au:.0%} of the step; {between.evidence}"
        return Judgement(between.bottleneck, said, between.remedy)
    found = _input_verdict(figures, told, au)
    if between.share < 1 - HELD_BACK_AU:
        return found
    evidence = f"{found.evidence}; {between.evidence}"
    if of_input >= MAIN_SHARE:
        return found._replace(evidence=evidence)
    return Judgement("mixed", evidence, f"{found.remedy}; and {between.remedy}")


def _between_ranks(figures: Mapping[str, Any], step: float) -> Cause:
    """The largest of what a step loses between ranks."""
    exchange, bubble = ((figures.get(name) or 0.0) / step for name in ("communication_min_s", "bubble_s"))
    waited, rank = _own_imbalance_s(figures, step) / step, figures.get("slowest_rank")
    found = [
        Cause(
            exchange,
            "communication",
            f"exposed communication is {exchange:.0%} of the step, stragglers aside",
            "a larger batch or grad_accum, comm_hook bf16 or another bucket_cap_mb; or a faster network",
        ),
        Cause(
            bubble,
            "communication",
            f"waiting for other stages of the pipeline is {bubble:.0%} of the step",
            "more microbatches, or schedule interleaved or zero_bubble",
        ),
    ]
    if rank is not None:
        said = f"others wait {waited:.0%} of the step for rank {rank:.0f}, the wire takes {exchange:.0%}"
        help_ = f"look at rank {rank:.0f}: its device, its cores, what else runs there"
        found.append(Cause(waited, "compute", said, help_))
    return max(found, key=lambda cause: cause.share)


def _own_imbalance_s(figures: Mapping[str, Any], step: float) -> float:
    """Waiting for a slower rank, less what that rank waits for its input: that is the input's.

    Of a step whose hungriest rank waits M for input and whose ranks wait m on average, another rank waits for the input
    of others at most M, and at most 2 (M - m) where one rank is starved or half of them are.
    """
    most = (figures.get("input_stall_fraction") or 0.0) * step
    starved = min(most, 2 * (most - (figures.get("load_mean_s") or 0.0)))
    return max(0.0, (figures.get("imbalance_s") or 0.0) - max(0.0, starved))


def _compute_verdict(figures: Mapping[str, Any], about: Mapping[str, Any], step: float, source: str) -> Judgement:
    exchange = (figures.get("communication_min_s") or 0.0) / step
    load = (figures.get("load_s") or 0.0) / step
    said = f"{source}; load is {load:.0%} of the step, exposed communication {exchange:.0%}"
    return Judgement("none" if about.get("emulated") else "compute", said)


def _input_verdict(figures: Mapping[str, Any], about: Mapping[str, Any], au: float) -> Judgement:
    """Which half of the input pipeline holds the trial back."""
    read, decode = figures.get("read_s_per_sample") or 0.0, figures.get("decode_s_per_sample") or 0.0
    stall, contention = figures.get("input_stall_fraction") or 0.0, figures.get("cpu_contention_fraction") or 0.0
    evidence = (
        f"AU {au:.2f}; {stall:.0%} of the step waits for input, {contention:.0%} for a core; "
        f"a reader reads {read * 1e3:.2f} ms and decodes {decode * 1e3:.2f} ms a sample"
        f"{_busy(figures)}{_headspace(figures)}"
    )
    if stall < (1 - au) / 2 and not about.get("emulated"):
        return _taken_cores(figures, about, 1 - au - stall, evidence)
    cached = _cached(figures, about)
    if cached > MAIN_SHARE:
        return Judgement(
            "preprocessing", f"{evidence}; {cached:.0%} of the bytes came from memory", _more_readers(about)
        )
    saturation = _saturation(figures) if about.get("cache", "cold") == "cold" else None
    if saturation is not None and saturation >= SATURATED_SHARE:
        said = f"{evidence}; a plain reader gets no more of these files: {saturation:.0%} of that is read"
        shards = "a format of shards, " if about.get("file_per_sample") else ""
        return Judgement("storage", said, f"{shards}{_staging(about)}fewer bytes a sample, or faster storage")
    if saturation is not None and contention >= CONTENTION_SHARE:
        said = f"{evidence}; storage has more to give ({saturation:.0%} of it is read), cores have not"
        return _short_of_cores(figures, about, said, _more_readers(about))
    return _of_readers(figures, about, evidence, saturation)


def _of_readers(
    figures: Mapping[str, Any], about: Mapping[str, Any], evidence: str, saturation: float | None
) -> Judgement:
    """By what readers do most of their time; reading and decoding are without waiting for a core."""
    faster = _faster_reads(figures, about, saturation)
    if figures.get("decode_s_per_sample") is None:
        unknown = f"{evidence}; its loader does not tell reading from decoding"
        return Judgement("mixed", unknown, f"{_more_readers(about)}; or {faster}")
    computing = _computing_share(figures)  # decompressing in a read call is no storage
    share = 0.0 if computing is None else 1 - computing
    if share >= MAIN_SHARE:
        return Judgement("storage", evidence, faster)
    if share <= 1 - MAIN_SHARE:
        return Judgement("preprocessing", evidence, _more_readers(about))
    return Judgement("mixed", evidence, f"{_more_readers(about)}; and {faster}")


def _taken_cores(figures: Mapping[str, Any], about: Mapping[str, Any], lost: float, evidence: str) -> Judgement:
    """Steps that lose this share to neither input nor ranks: readers take cores only where cores are waited for."""
    if (figures.get("cpu_contention_fraction") or 0.0) < lost / 2:
        said = f"{evidence}; the step loses {lost:.0%} more beside its readers, and does not wait for a core meanwhile"
        return Judgement("mixed", said, "a profile of the step: memory, PCIe or the clock may be what is shared")
    taken = f"{evidence}; readers take cores from the computation"
    help_ = "more cores a rank, fewer workers or threads, or data that need no decoding"
    return _short_of_cores(figures, about, taken, help_, evidence)


def _short_of_cores(
    figures: Mapping[str, Any], about: Mapping[str, Any], said: str, remedy: str, by_others: str | None = None
) -> Judgement:
    """The client, unless other processes keep more cores busy than the readers: then this says little of the job."""
    others = figures.get("foreign_cpu_cores") or 0.0
    if others <= _reader_cores(figures, about):
        return Judgement("preprocessing", said, remedy)
    taken = f"{by_others or said}; other processes kept {others:.1f} of {about.get('cores')} cores busy"
    return Judgement("preprocessing", taken, "measure again on idle cores: this says nothing of the job itself")


def _computing_share(figures: Mapping[str, Any]) -> float | None:
    """Share of the time of reading and decoding in which a core computes; None where the two are not told apart."""
    read, decode = figures.get("read_s_per_sample") or 0.0, figures.get("decode_s_per_sample")
    if decode is None or not read + decode:
        return None
    return float(min(1.0, (decode + (figures.get("read_cpu_s_per_sample") or 0.0)) / (read + decode)))


def _reader_cores(figures: Mapping[str, Any], about: Mapping[str, Any]) -> float:
    """Cores that all ranks' readers keep busy."""
    readers = (about.get("ranks") or 1) * max(about.get("num_workers") or 0, 1)
    computing = _computing_share(figures)
    share = (figures.get("reader_busy_fraction") or 0.0) * (1.0 if computing is None else computing)
    return float(readers * share)


def _busy(figures: Mapping[str, Any]) -> str:
    """Readers' wall seconds and CPU seconds, over the time."""
    busy, computing = figures.get("reader_busy_fraction"), _computing_share(figures)
    if busy is None:
        return ""
    told = f", busy {busy:.0%} of the time"
    if computing is None or figures.get("read_cpu_s_per_sample") is None:
        return told
    return f"{told}, computing {busy * computing:.0%} of it"


def _cached(figures: Mapping[str, Any], about: Mapping[str, Any]) -> float:
    """Share of the bytes that came from memory, as far as counters or residency tell.

    Ranks that read the same samples find there what the first of them has read: that is no cache of the trial's.
    """
    share: float | None = figures.get("cache_hit_fraction")
    if share is None:
        return 1.0 if (figures.get("cache_resident_before") or 0.0) >= WARM_RESIDENT else 0.0
    return float(max(0.0, 1.0 - (1.0 - share) * (about.get("readers_of_a_sample") or 1)))


def _headspace(figures: Mapping[str, Any]) -> str:
    """The loader with no model beside what the steps would need with their input in memory."""
    alone, rate, au = (figures.get(name) for name in ("loader_only_samples_per_s", "samples_per_s", "au"))
    if not alone or not rate or not au:
        return ""
    return f"; the loader alone gives {alone:.0f} samples/s, the model could take {rate / au:.0f}"


def _saturation(figures: Mapping[str, Any]) -> float | None:
    """What was read of the files' content over what a plain reader got."""
    rate, ceiling = figures.get("io_bytes_per_s"), figures.get("storage_ceiling_bytes_per_s")
    return rate / ceiling if rate and ceiling else None


def _leaves_cores(about: Mapping[str, Any]) -> bool | None:
    """Whether there are more cores than ranks and their workers; None where that is not known."""
    ranks, workers, cores = (about.get(name) for name in ("ranks", "num_workers", "cores"))
    return bool(ranks * (workers + 1) < cores) if ranks and cores and workers is not None else None


def _more_readers(about: Mapping[str, Any]) -> str:
    """What helps readers that decode too slowly."""
    if _leaves_cores(about):
        ranks, workers, cores = (about.get(name) for name in ("ranks", "num_workers", "cores"))
        return f"more workers: {ranks} ranks x {workers} leave some of {cores} cores idle"
    return "data that cost less to decode, dali on the GPU, or more cores a rank"


def _room_for_readers(figures: Mapping[str, Any], about: Mapping[str, Any]) -> bool:
    """Whether more workers would find a core: by their number, or by what readers and others use; True if unknown."""
    counted = _leaves_cores(about)
    if counted is not False or figures.get("reader_busy_fraction") is None:
        return counted is not False
    used = _reader_cores(figures, about) + (figures.get("foreign_cpu_cores") or 0.0)
    return bool(used + about["ranks"] < about["cores"])


def _faster_reads(figures: Mapping[str, Any], about: Mapping[str, Any], saturation: float | None) -> str:
    """What helps readers that wait for their reads."""
    room, files = _room_for_readers(figures, about), about.get("file_per_sample")
    if saturation is not None:
        more = "more workers or a longer queue" if room else "more cores a rank"
        gets = f"a plain reader gets {1 / saturation:.1f} x as much there: {more}"
        return f"{gets}, or a format of shards" if files else gets
    more = "more workers" if room else "more cores a rank"
    return f"{'a format of shards, ' if files else ''}{more}, {_staging(about)}or faster storage"


def _staging(about: Mapping[str, Any]) -> str:
    """As a remedy, unless it is done already."""
    return "" if about.get("staged") else "staging to a local disk, "
