"""What a cold trial of some steps says of its whole epoch.

Of samples that are read in random order where they lie, the first pay for what the kernel reads ahead, and later ones
find that in memory. While memory keeps what was read, each byte comes from storage once. Readers that at first fetch
A = 1 + B bytes for each that they deliver need storage no more once they have fetched, at that rate, all that a node
fetches: the dataset where it reads all of it; where it delivers the share x, x A / (1 + B x) of it, if neighbours are
as likely to be missing as all others. So they fetch for 1 / (1 + B x) of the epoch. How A changes meanwhile is the
kernel's affair: the error reaches to an epoch that goes on as its first steps did, and to one that fetches less and
less, (1 + B x)^-2 of its first rate.

Of streams the kernel reads some megabytes ahead for each reader. Those that came before the window, or lie ready at its
end, make it quicker or slower than its epoch by up to their share of what it delivered.

An epoch begins when its readers start: until its first batch has come, nothing is computed.

The samples of a window may be smaller or larger than those of the dataset, whose index has all sizes: what their input
takes grows with them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.storage import mixes
from benchsuite.storage.dataset.manifest import Manifest

MIN_AMPLIFICATION = 1.1
"""The amplification from which on the first steps of a cold epoch are no picture of the rest."""
MAX_STARVED_AU = 0.97
"""Below it steps wait for their input, which so takes as long as they do."""
MAX_STREAM_ERROR = 0.02
"""What reading ahead may make of the utilization of a stream's window without a caveat."""
MAX_KEPT_SHARE = 0.8
"""Share of a node's memory: a larger dataset does not stay in it through an epoch."""
FEW_WAITS = 0.01
"""Share of a window's time for which its steps wait: below it none is said to have waited."""
RULE_OF_THREE = 3
"""Where none of n steps waited, no more than 3 / n of all do, at 95 % (Hanley and Lippman-Hand, JAMA 249, 1983)."""
_PARTS = 1000


@dataclass(frozen=True)
class ColdWindow:
    """What was measured in a window of a cold epoch, on a node."""

    au: float
    waiting_share: float
    """Share of the readers' time for a sample in which they wait for storage."""
    amplification: float = 1.0
    """Bytes from storage over bytes delivered, of what memory keeps for later steps."""
    of_epoch: float = 1.0
    """Share of the dataset that the node reads in an epoch."""
    sizes: float = 1.0
    """Mean bytes of the dataset's samples over those of the window."""
    busy: float = 1.0
    """Share of the time that readers work: what their input takes of a step that does not wait for it."""
    ahead: float = 0.0
    """Bytes that the kernel may have read ahead over bytes delivered."""
    noise: float = 0.0
    """How far the mean step may be off, over that step, at 95 %."""


@dataclass(frozen=True)
class Estimate:
    """Accelerator utilization over an epoch, and how far off it may be."""

    au: float
    error: float


def over_epoch(window: ColdWindow) -> Estimate:
    """Return the utilization over the whole epoch.

    A step takes as long as its computation or its input, whichever is longer. In a window that waits for it, input
    takes 1 / au of the computation; it takes less by its waiting for storage once the dataset is in memory. What steps
    lose in a window that does not wait for it, they lose everywhere.
    """
    busy_s = (1.0 if window.au < MAX_STARVED_AU else window.busy) / window.au
    input_s, lost_s = window.sizes * busy_s, 1 / window.au - max(1.0, busy_s)
    beside = max(0.0, window.amplification - 1)

    def au(waits: "float | npt.NDArray[np.float64]", share: float = 1.0) -> float:
        """AU of an epoch of which `share` waits `waits` times as long as the window did, the rest not at all."""
        rest_s = input_s * (1 - window.waiting_share)
        waiting_s = rest_s + input_s * window.waiting_share * waits
        return float(1 / (share * np.maximum(1.0, waiting_s).mean() + (1 - share) * max(1.0, rest_s) + lost_s))

    fetching = 1 / (1 + beside * window.of_epoch)
    found = au(1.0, fetching)
    x = (np.arange(_PARTS) + 0.5) / _PARTS * window.of_epoch
    others = [au(1.0), au(1 / (1 + beside * x) ** 2)]
    others += [au(waits, fetching) for waits in (max(0.0, 1 - window.ahead), 1 + window.ahead)]
    return Estimate(found, math.hypot(max(abs(found - other) for other in others), found * window.noise))


def epoch_figures(
    spec: TrialSpec,
    values: Mapping[str, Any],
    manifest: Manifest,
    window: ColdWindow | None,
    taken: float | None = None,
) -> dict[str, Any]:
    """Figures of the epoch of a cold trial; none where its window does not tell them.

    `taken`: the utilization of an epoch that was taken to its end, which so needs no estimate.
    """
    if taken is not None and spec.data.cache == "cold":
        return {"au_epoch": taken, "au_epoch_error": None, "au_epoch_rule": "epoch"}
    if window is None:
        return {}
    estimate, whole = over_epoch(window), spec.measure.epochs is not None
    return {
        "au_epoch": _from_its_start(estimate.au, spec, values, manifest),
        "au_epoch_error": estimate.error,
        "au_epoch_rule": "epoch" if whole else "stream" if mixes(spec.data) else "window",
    }


def _from_its_start(au: float, spec: TrialSpec, values: Mapping[str, Any], manifest: Manifest) -> float:
    """Utilization from the start of the readers on, of an epoch whose steps have `au` once they run.

    The wait for the first batch holds what readers need to start, to fill their buffers, and the input of one step.
    """
    first_s = values.get("first_batch_s")
    if first_s is None:
        return au
    steps = manifest.num_samples / spec.global_batch
    computing_s = values["au"] * spec.global_batch / values["samples_per_s"]
    epoch_s = first_s + (steps - 1) * computing_s / au + computing_s
    return float(min(1.0, steps * computing_s / epoch_s))


def cold_window(
    spec: TrialSpec, values: Mapping[str, Any], manifest: Manifest, environment: Mapping[str, Any], ahead_kb: int | None
) -> ColdWindow | None:
    """Return what a trial's steps were of their epoch; None where they tell nothing of it.

    Args:
        environment: of the record; its `nodes` and their `memory_bytes` count.
        ahead_kb: what the kernel reads ahead of a file at most; None where it is not known.
    """
    needed = ("au", "delivered_bytes", "decode_s_per_sample", "io_bytes_per_s", "reader_busy_fraction")
    if spec.data.cache != "cold" or any(not values.get(name) for name in needed):
        return None
    copies, nodes = spec.ranks // spec.data_ranks, max(1, len(environment.get("nodes", [])))
    before = spec.rank_batch * spec.data_ranks * (1 + spec.data.queue_batches) / nodes / manifest.num_samples
    delivered = values["delivered_bytes"] / copies / nodes
    fetch_s, decode_s = values["read_s_per_sample"], values["decode_s_per_sample"]
    share = (fetch_s - (values.get("read_cpu_s_per_sample") or 0.0)) / (fetch_s + decode_s)
    whole = spec.measure.epochs is not None
    goes_round = before + delivered / manifest.stored_bytes >= 1 / nodes and not whole
    if goes_round or not 0 <= share <= 1:
        return None
    kept = manifest.stored_bytes <= MAX_KEPT_SHARE * environment.get("memory_bytes", 0)
    readers = spec.data_ranks * spec.data.readers / nodes
    return ColdWindow(
        min(1.0, values["au"]),
        share,
        values["read_amplification"] * copies if kept and not whole and _reads_neighbours(spec, values) else 1.0,
        1 / nodes,
        sizes=manifest.stored_bytes / manifest.num_samples / (values["io_bytes_per_s"] / values["samples_per_s"]),
        busy=min(1.0, values["reader_busy_fraction"]),
        ahead=readers * (ahead_kb or 0) * 1024 / delivered if mixes(spec.data) and not whole else 0.0,
        noise=_noise(spec, values, manifest),
    )


def _noise(spec: TrialSpec, values: Mapping[str, Any], manifest: Manifest) -> float:
    """How far the mean step of an epoch may be from that of the steps that were counted, over that step.

    By the spread of single steps. Steps that did not wait spread little, and do not tell how many others will: by the
    rule of three, each of which then waits as long as its input takes; so where the spread is not known. Of a whole
    epoch some steps are not counted, around ceilings and for the shuffle buffers of streams: they may take no time, or
    twice as much as the others.
    """
    spread: float = (values.get("au_error") or 0.0) / values["au"]
    if spec.measure.epochs is not None:
        return math.hypot(spread, max(0.0, 1 - spec.measure.steps * spec.global_batch / manifest.num_samples))
    waited, busy = values.get("input_stall_fraction"), float(min(1.0, values["reader_busy_fraction"]))
    if values.get("au_error") is not None and (waited is None or waited >= FEW_WAITS):
        return spread
    return max(spread, RULE_OF_THREE / spec.measure.steps * busy)


def _reads_neighbours(spec: TrialSpec, values: Mapping[str, Any]) -> bool:
    """Whether more came from storage than was delivered, of a dataset whose samples are read where they lie."""
    indexable = spec.data.shuffle and not mixes(spec.data)
    amplification = (values.get("read_amplification") or 0.0) * (spec.ranks // spec.data_ranks)
    return indexable and spec.data.cache == "cold" and amplification > MIN_AMPLIFICATION


def read_ahead_error(window: ColdWindow | None) -> float:
    """How far what the kernel reads ahead may move the utilization over the epoch."""
    return 0.0 if window is None else over_epoch(replace(window, noise=0.0)).error


def epoch_caveats(
    spec: TrialSpec, values: Mapping[str, Any], ahead_kb: int | None, window: ColdWindow | None
) -> list[tuple[str, str]]:
    """Why the first steps of a cold epoch are no picture of the rest: (name, the arithmetic)."""
    ahead = "" if ahead_kb is None else f" (read_ahead_kb {ahead_kb})"
    au, error = values.get("au_epoch"), values.get("au_epoch_error")
    ends = "" if error is None else f" ±{error:.2f}"
    told = "" if au is None else f"; over an epoch AU is about {au:.2f}{ends}"
    if spec.measure.epochs is None and au is not None:
        told += ", and measure.epochs: 1 measures it"
    if _reads_neighbours(spec, values):
        found = f"{values['read_amplification']:.2f} bytes came from storage for each delivered"
        means = f"the kernel reads ahead{ahead}, and later steps of the epoch find in memory what these pay for"
        return [("read_amplification", f"{found}: {means}{told}")]
    if values.get("au_epoch_rule") == "stream" and read_ahead_error(window) > MAX_STREAM_ERROR:
        counted = f"{values['delivered_bytes'] / 1e6:.3g} MB of streams were counted"
        return [("short_window", f"{counted}, of each of which the kernel reads some MB ahead{ahead}{told}")]
    return []
