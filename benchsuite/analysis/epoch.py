"""What a cold window says of its epoch: by what the kernel reads ahead, and by the sizes of all samples.

Of samples that are read in random order where they lie, the first pay for their neighbours, which later samples find in
memory. Let x be the share of the
dataset that a node has read, A how much a sample that is not in memory brings in (itself 1), B = A - 1, and m(x) the
share that is not in memory. A sample not read before is missing with probability q = m / (1 - x); it brings in itself
and of its neighbours those that are missing: m' = -q (1 + B m), m(0) = 1. So

    m = (1 - x) / (1 + B x),  q = 1 / (1 + B x),  bytes from storage per byte delivered: q (1 + B m) = A / (1 + B x)^2.

It is assumed that neighbours are as likely to be missing as all others, and that memory keeps what was read. A wait for
storage grows with the bytes where its rate is the limit, with the samples that are missing where its latency is.

The samples of a window may be smaller or larger than those of the dataset, whose index has all sizes: what their input
takes grows with them.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.storage import mixes
from benchsuite.storage.dataset.manifest import Manifest

MIN_AMPLIFICATION = 1.1
"""From it on the first steps of a cold epoch are no picture of the rest."""
MAX_STARVED_AU = 0.97
"""Below it steps wait for their input, which so takes as long as they do."""
_PARTS = 1000
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ColdWindow:
    """What was measured in a window of a cold epoch, on a node."""

    au: float
    amplification: float
    """Bytes from storage over bytes delivered."""
    begin: float
    """Share of the dataset that the node had read when the window began."""
    end: float
    of_epoch: float
    """Share of the dataset that the node reads in an epoch."""
    waiting_share: float
    """Share of the readers' time for a sample in which they wait for storage."""
    sizes: float = 1.0
    """Mean bytes of the dataset's samples over those of the window."""
    busy: float = 1.0
    """Share of the time that readers work: what their input takes of a step that does not wait for it."""


@dataclass(frozen=True)
class Estimate:
    """Accelerator utilization over an epoch, between the two ways in which storage may be the limit."""

    au: float
    error: float
    """Half of what lies between them."""


def neighbours(window: ColdWindow) -> float | None:
    """Return B, what the first sample of an epoch brings in beside itself; None where no B gives what was measured.

    The mean of A / (1 + B x)^2 over the window is (1 + B) / ((1 + B begin) (1 + B end)).
    """
    if window.amplification <= 1:
        return 0.0
    begin, end, measured = window.begin, window.end, window.amplification
    square, linear, constant = measured * begin * end, measured * (begin + end) - 1, measured - 1
    if not square:
        return -constant / linear if linear < 0 else None
    root = linear**2 - 4 * square * constant
    found = (-linear - math.sqrt(root)) / (2 * square) if root >= 0 else -1.0
    return found if found > 0 else None


def over_epoch(window: ColdWindow) -> Estimate | None:
    """Return the utilization over the whole epoch; None where the window does not tell it.

    A step takes as long as its computation or its input, whichever is longer. In a window that waits for it, input
    takes 1 / au of the computation, and of that the waiting for storage changes through the epoch.
    """
    beside = neighbours(window)
    if beside is None:
        return None
    of_bytes = _utilization(window, lambda x: (1 + beside) / (1 + beside * x) ** 2)
    of_misses = _utilization(window, lambda x: 1 / (1 + beside * x))
    return Estimate((of_bytes + of_misses) / 2, abs(of_bytes - of_misses) / 2)


def _utilization(window: ColdWindow, waits: Callable[[Floats], Floats]) -> float:
    """Return the utilization where waiting for storage goes through the epoch as `waits`, up to a factor."""
    in_window, in_epoch = (
        waits((np.arange(_PARTS) + 0.5) / _PARTS * (end - begin) + begin)
        for begin, end in ((window.begin, window.end), (0.0, window.of_epoch))
    )
    share, measured_s = window.waiting_share, (1.0 if window.au < MAX_STARVED_AU else window.busy) / window.au
    input_s = (share * in_epoch / in_window.mean() + 1 - share) * measured_s * window.sizes
    return float(1 / np.maximum(1.0, input_s).mean())


def epoch_figures(spec: TrialSpec, values: Mapping[str, Any], manifest: Manifest, nodes: int) -> dict[str, float]:
    """Figures of the epoch of a cold trial; none where its window does not tell them."""
    window = cold_window(spec, values, manifest, nodes)
    estimate = None if window is None else over_epoch(window)
    return {} if estimate is None else {"au_epoch": estimate.au, "au_epoch_error": estimate.error}


def cold_window(spec: TrialSpec, values: Mapping[str, Any], manifest: Manifest, nodes: int) -> ColdWindow | None:
    """Return what a trial's steps were of their epoch; None where they tell nothing of it."""
    needed = ("au", "delivered_bytes", "decode_s_per_sample", "io_bytes_per_s", "reader_busy_fraction")
    if spec.data.cache != "cold" or any(not values.get(name) for name in needed):
        return None
    copies = spec.ranks // spec.data_ranks
    before = spec.rank_batch * spec.data_ranks * (1 + spec.data.queue_batches) / nodes / manifest.num_samples
    read = values["delivered_bytes"] / copies / nodes / manifest.stored_bytes
    fetch_s, decode_s = values["read_s_per_sample"], values["decode_s_per_sample"]
    wait_s = fetch_s - (values.get("read_cpu_s_per_sample") or 0.0)
    share, size = wait_s / (fetch_s + decode_s), values["io_bytes_per_s"] / values["samples_per_s"]
    if before + read >= 1 / nodes or not 0 <= share <= 1:
        return None
    return ColdWindow(
        min(1.0, values["au"]),
        values["read_amplification"] * copies if _reads_neighbours(spec, values) else 1.0,
        before,
        before + read,
        1 / nodes,
        share,
        sizes=manifest.stored_bytes / manifest.num_samples / size,
        busy=min(1.0, values["reader_busy_fraction"]),
    )


def _reads_neighbours(spec: TrialSpec, values: Mapping[str, Any]) -> bool:
    """Whether more came from storage than was delivered, of a dataset whose samples are read where they lie."""
    indexable = spec.data.shuffle and not mixes(spec.data)
    amplification = (values.get("read_amplification") or 0.0) * (spec.ranks // spec.data_ranks)
    return indexable and spec.data.cache == "cold" and amplification > MIN_AMPLIFICATION


def amplification_caveats(
    spec: TrialSpec, values: Mapping[str, Any], read_ahead_kb: int | None
) -> list[tuple[str, str]]:
    """The caveat of a trial whose first steps read what only later steps use."""
    if not _reads_neighbours(spec, values):
        return []
    ahead = "" if read_ahead_kb is None else f" (read_ahead_kb {read_ahead_kb})"
    found = f"{values['read_amplification']:.2f} bytes came from storage for each delivered"
    means = f"the kernel reads ahead{ahead}, and later steps of the epoch find in memory what these pay for"
    epoch = values.get("au_epoch")
    told = "" if epoch is None else f"; over an epoch AU is about {epoch:.2f} ±{values['au_epoch_error']:.2f}"
    return [("read_amplification", f"{found}: {means}{told}")]
