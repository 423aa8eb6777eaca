"""The verdict: what holds a trial back, with its evidence in one sentence of numbers, and what they say would help."""

from collections.abc import Mapping
from typing import Any, NamedTuple

HELD_BACK_AU = 0.95
"""From this utilization on the input keeps up: AU tops out near it on CPU machines."""
MAIN_SHARE = 0.65
"""A cause with this share of the readers' time is the cause; between the two it is mixed."""
COMMUNICATION_SHARE = 0.20
"""Exposed exchange, or a pipeline's bubble, above this share of the step is what holds the job back."""
IMBALANCE_SHARE = 0.20
"""So is waiting for a slower rank."""
SATURATED_SHARE = 0.80
"""Storage that gives this share of what it gave a plain reader has no more to give."""
WARM_RESIDENT = 0.99
"""Files that lay in the page cache to this share are read from memory."""


class Judgement(NamedTuple):
    """What holds a trial back, why that is thought, and what would help by the same numbers."""

    bottleneck: str
    evidence: str
    remedy: str | None = None


def verdict(figures: Mapping[str, Any], about: Mapping[str, Any] | None = None) -> Judgement | None:
    """What holds a trial back; None where it has no steps. `about`: its format, workers, ranks, cores, device.

    Input first: what separates a step from its ceiling is the input pipeline. Where the model waits for it, readers
    that mostly read are held by storage, readers that mostly decode by the client; where it does not wait, readers
    take cores from the computation, which is the client too. Otherwise exposed communication, or the computation.
    """
    au, step = figures.get("au"), figures.get("step_s_mean")
    if not step:
        return None
    told = about or {}
    if au is not None and au < HELD_BACK_AU:
        return _input_verdict(figures, told, au)
    source = "input in memory" if au is None else f"AU {au:.2f}: input keeps up"
    return _exchange_verdict(figures, step, source) or _compute_verdict(figures, told, step, source)


def _exchange_verdict(figures: Mapping[str, Any], step: float, source: str) -> Judgement | None:
    exchange = (figures.get("exchange_min_s") or 0.0) / step
    waited, rank = (figures.get("imbalance_s") or 0.0) / step, figures.get("slowest_rank")
    if waited > max(IMBALANCE_SHARE, exchange) and rank is not None:
        said = f"{source}; others wait {waited:.0%} of the step for rank {rank:.0f}, the wire takes {exchange:.0%}"
        return Judgement("compute", said, f"look at rank {rank:.0f}: its device, its cores, what else runs there")
    if exchange > COMMUNICATION_SHARE:
        said = f"{source}; exposed exchange is {exchange:.0%} of the step, stragglers aside"
        help_ = "a larger batch or grad_accum, comm_hook bf16 or another bucket_cap_mb; or a faster network"
        return Judgement("communication", said, help_)
    bubble = (figures.get("bubble_s") or 0.0) / step
    if bubble > COMMUNICATION_SHARE:
        said = f"{source}; waiting for other stages of the pipeline is {bubble:.0%} of the step"
        return Judgement("communication", said, "more microbatches, or schedule interleaved or zero_bubble")
    return None


def _compute_verdict(figures: Mapping[str, Any], about: Mapping[str, Any], step: float, source: str) -> Judgement:
    exchange = (figures.get("exchange_min_s") or 0.0) / step
    said = f"{source}; load is {(figures.get('load_s') or 0.0) / step:.0%} of the step, exposed exchange {exchange:.0%}"
    return Judgement("none" if about.get("emulated") else "compute", said)


def _input_verdict(figures: Mapping[str, Any], about: Mapping[str, Any], au: float) -> Judgement:
    read, decode = figures.get("read_s_per_sample") or 0.0, figures.get("decode_s_per_sample") or 0.0
    stall, contention = figures.get("input_stall_fraction") or 0.0, figures.get("cpu_contention_fraction") or 0.0
    evidence = (
        f"AU {au:.2f}; {stall:.0%} of the step waits for input, {contention:.0%} for a core; "
        f"a reader reads {read * 1e3:.2f} ms and decodes {decode * 1e3:.2f} ms a sample"
        f"{_busy(figures)}{_headspace(figures)}"
    )
    if stall < (1 - au) / 2 and not about.get("emulated"):
        others = figures.get("foreign_cpu_cores") or 0.0
        if others > _reader_cores(figures, about):
            taken = f"{evidence}; other processes kept {others:.1f} of {about.get('cores')} cores busy"
            return Judgement("client", taken, "measure again on idle cores: this says nothing of the job itself")
        taken = f"{evidence}; readers take cores from the computation"
        return Judgement("client", taken, "more cores a rank, fewer workers or threads, or data that need no decoding")
    cached = _cached(figures)
    if cached > MAIN_SHARE:
        return Judgement("client", f"{evidence}; {cached:.0%} of the bytes came from memory", _more_readers(about))
    saturation = _saturation(figures) if about.get("cache", "cold") == "cold" else None
    if saturation is not None and saturation >= SATURATED_SHARE:
        said = f"{evidence}; a plain reader gets no more of these files: {saturation:.0%} of that is read"
        shards = "a format of shards, " if about.get("format") == "files" else ""
        return Judgement("storage", said, f"{shards}staging to a local disk, fewer bytes a sample, or faster storage")
    if figures.get("decode_s_per_sample") is None:
        unknown = f"{evidence}; its loader does not tell reading from decoding"
        return Judgement("mixed", unknown, f"{_more_readers(about)}; or {_faster_reads(about, saturation)}")
    waiting = read - (figures.get("read_cpu_s_per_sample") or 0.0)  # decompressing in a read call is no storage
    share = waiting / (read + decode) if read + decode else 0.0
    if share >= MAIN_SHARE:
        return Judgement("storage", evidence, _faster_reads(about, saturation))
    if share <= 1 - MAIN_SHARE:
        return Judgement("client", evidence, _more_readers(about))
    return Judgement("mixed", evidence, f"{_more_readers(about)}; and {_faster_reads(about, saturation)}")


def _reader_cores(figures: Mapping[str, Any], about: Mapping[str, Any]) -> float:
    """Cores that all ranks' readers keep busy."""
    readers = (about.get("ranks") or 1) * max(about.get("num_workers") or 0, 1)
    return float(readers * (figures.get("reader_busy_fraction") or 0.0))


def _busy(figures: Mapping[str, Any]) -> str:
    busy = figures.get("reader_busy_fraction")
    return "" if busy is None else f", busy {busy:.0%} of the time"


def _cached(figures: Mapping[str, Any]) -> float:
    """Share of the bytes that came from memory, as far as counters or residency tell."""
    share: float | None = figures.get("cache_hit_fraction")
    if share is None:
        return 1.0 if (figures.get("cache_resident_before") or 0.0) >= WARM_RESIDENT else 0.0
    return share


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


def _more_readers(about: Mapping[str, Any]) -> str:
    """What helps readers that decode too slowly."""
    ranks, workers, cores = (about.get(name) for name in ("ranks", "num_workers", "cores"))
    if ranks and cores and workers is not None and ranks * (workers + 1) < cores:
        return f"more workers: {ranks} ranks x {workers} leave some of {cores} cores idle"
    return "data that cost less to decode, dali on the GPU, or more cores a rank"


def _faster_reads(about: Mapping[str, Any], saturation: float | None) -> str:
    """What helps readers that wait for their reads."""
    if saturation is not None:
        room = f"a plain reader gets {1 / saturation:.1f} x as much there: more workers or a longer queue"
        return f"{room}, or a format of shards" if about.get("format") == "files" else room
    by_file = "a format of shards, " if about.get("format") == "files" else ""
    return f"{by_file}more workers, staging to a local disk, or faster storage"
