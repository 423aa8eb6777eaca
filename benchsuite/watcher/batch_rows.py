"""How many samples a batch holds, whatever it is: tensors or arrays, alone or in tuples, lists and mappings."""

from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 4


def path_to_array(value: Any, depth: int = 0) -> tuple[Any, ...] | None:
    """Keys that lead to the first array in a batch, in its own order; None where there is none."""
    shape = getattr(value, "shape", None)
    if shape is not None and len(shape):
        return ()
    if depth == MAX_DEPTH or not isinstance(value, Mapping | list | tuple):
        return None
    for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
        path = path_to_array(item, depth + 1)
        if path is not None:
            return (key, *path)
    return None


def is_list_of_samples(batch: Any, stated: int) -> bool:
    """Whether the batch, or a part of it, is a list with as many samples as the loader says a batch has."""
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return any(isinstance(part, list | tuple) and len(part) == stated for part in (batch, *parts))


class RowCounter:
    """Samples in a batch: as many as given, else the first dimension of its first array.

    Where that is not the loader's `batch_size` and samples are listed instead of stacked, its `batch_size`.
    """

    def __init__(self, loader: Any, batch_size: int | None) -> None:
        stated = getattr(loader, "batch_size", None)
        self._stated = stated if isinstance(stated, int) else None
        self._fixed = batch_size
        self._path: tuple[Any, ...] | None = None
        self._looked = False

    def __call__(self, batch: Any) -> int | None:
        """Samples in this batch; None where it cannot be told."""
        if self._fixed is not None:
            return self._fixed
        if not self._looked:
            self._looked, self._path = True, path_to_array(batch)
            rows = self._first_dimension(batch)
            if self._stated is not None and rows != self._stated and is_list_of_samples(batch, self._stated):
                self._fixed = self._stated
                return self._fixed
        return self._first_dimension(batch)

    def _first_dimension(self, batch: Any) -> int | None:
        if self._path is None:
            return None
        try:
            for key in self._path:
                batch = batch[key]
            return int(batch.shape[0])
        except (LookupError, TypeError, AttributeError):
            return None
