"""When staging pays: points that differ in nothing but staging, compared."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchsuite.results.render.tables import Row, is_missing, names_below
from benchsuite.results.render.words import rate

STAGING = ("spec.data.staging", "spec.data.staging_dir")
STAGED = ("copy", "lazy")


@dataclass(frozen=True)
class StagingPair:
    """A staged point beside the same one unstaged: medians over repeats."""

    staged: Row
    unstaged: Row
    epoch_s: float
    """A whole epoch from the node-local copy, at the measured rate; with lazy staging, the epoch that fills it."""
    unstaged_epoch_s: float

    @property
    def stage_s(self) -> float | None:
        """Seconds of copying; None with lazy staging, which has no time of its own."""
        value: float | None = self.staged.get("stage_s")
        return value

    @property
    def told_apart(self) -> bool | None:
        """Whether all repeats of one are faster than all of the other; None with a single repeat."""
        if min(self.staged.get("repeats") or 1, self.unstaged.get("repeats") or 1) < 2:
            return None
        low, high = sorted((self.staged, self.unstaged), key=lambda row: float(row["samples_per_s"]))
        return bool(low["samples_per_s_max"] < high["samples_per_s_min"])

    @property
    def break_even_epochs(self) -> float | None:
        """Epochs after which staging has taken less time than reading from the source; None where it never has.

        stage_s / (an epoch unstaged - an epoch staged).
        """
        saved_s = self.unstaged_epoch_s - self.epoch_s
        if self.stage_s is None or saved_s <= 0 or self.told_apart is False:
            return None
        return self.stage_s / saved_s


def pairs(points: Sequence[Row]) -> list[StagingPair]:
    """Every staged point that has its like without staging in the same session."""
    measured = [row for row in points if row["status"] == "ok" and row.get("samples_per_s")]
    if not any(row.get("spec.data.staging") in STAGED for row in measured):
        return []
    unstaged = {like(row, STAGING): row for row in measured if row.get("spec.data.staging") in (None, "none")}
    return list(_pairs(measured, unstaged))


def _pairs(measured: Sequence[Row], unstaged: Mapping[object, Row]) -> Iterator[StagingPair]:
    for row in (row for row in measured if row.get("spec.data.staging") in STAGED):
        other = unstaged.get(like(row, STAGING))
        num_samples = row.get("dataset.num_samples")
        if other is not None and num_samples:
            yield StagingPair(row, other, num_samples / row["samples_per_s"], num_samples / other["samples_per_s"])


def like(row: Row, aside: Collection[str]) -> object:
    """All that a point is but the settings that are left aside."""
    names = [name for name in names_below("spec.", tuple(row)) if name not in aside]
    settings = sorted((name, repr(row[name])) for name in names if not is_missing(row[name]))
    return row.get("session"), row.get("dataset.dataset_id"), tuple(settings)


def lines(points: Sequence[Row]) -> list[str]:
    """A line of a report for each pair among these points."""
    return [in_words(pair) for pair in pairs(points)]


def in_words(pair: StagingPair) -> str:
    """What staging took and saved, and after how many epochs it pays."""
    words = f"staging: {pair.staged['label']}: "
    epochs = f"an epoch {_seconds(pair.epoch_s)}, unstaged {_seconds(pair.unstaged_epoch_s)}"
    if pair.stage_s is None:
        return f"{words}{epochs}; the first epoch fills the copy, which has no time of its own"
    given = pair.staged.get("stage_bytes_per_s")
    words += f"stage-in {_seconds(pair.stage_s)}" + (f" ({rate(given)}), " if given else ", ") + epochs
    if pair.told_apart is False:
        return f"{words}: repeats overlap, so whether it pays is not told"
    if pair.break_even_epochs is None:
        return f"{words}: does not pay"
    return f"{words}: pays after {pair.break_even_epochs:.1f} epochs"


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 100 else f"{value:.3g} s"
