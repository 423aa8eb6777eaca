"""Points that differ only in what has no effect: the later ones are skipped, for the ids of what ran must not move."""

from benchsuite.contract.trial_spec import TrialSpec, point_id
from benchsuite.storage import format_of
from benchsuite.storage.dataset.manifest import Manifest
from benchsuite.storage.dataset.spec import DataSpec


def unmixed(data: DataSpec, manifest: Manifest) -> str | None:
    """Why samples are not mixed in data.shuffle_buffer; None where they are."""
    if data.source != "storage":
        return f"source {data.source}"
    form = format_of(data.format)
    if not form.sequential:
        return f"format {data.format}"
    if data.loader == "dali" and manifest.kind == "image":  # volumes it takes as the format reads them
        return "loader dali"
    return None if data.shuffle else "shuffle false"


class Repeated:
    """Tells the points of a plan that measure what one before them does."""

    def __init__(self, specs: list[TrialSpec]) -> None:
        self._varies = len({spec.data.shuffle_buffer for spec in specs}) > 1
        self._first: dict[str, int] = {}
        """The first data.shuffle_buffer of a point, by the point's id without it."""

    def why(self, spec: TrialSpec, manifest: Manifest | None) -> str | None:
        """Why a point that can run is not worth it; None where it is the first of its like."""
        if not self._varies or manifest is None:
            return None
        unused, asked = unmixed(spec.data, manifest), spec.data.shuffle_buffer
        if unused is None:
            return None
        alike = spec.model_copy(update={"data": spec.data.model_copy(update={"shuffle_buffer": 1})})
        first = self._first.setdefault(point_id(alike, manifest.dataset_id), asked)
        if first == asked:
            return None
        return f"data.shuffle_buffer has no effect with {unused}: {asked} measures the same as {first}"
