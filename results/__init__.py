"""Where measurements live and what is said about them. Knows nothing of torch."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchsuite.results.store.record import TrialRecord
    from benchsuite.results.store.store import ResultsStore, StoreError

__all__ = ["ResultsStore", "StoreError", "TrialRecord"]
_HOMES = {
    "ResultsStore": "benchsuite.results.store.store",
    "StoreError": "benchsuite.results.store.store",
    "TrialRecord": "benchsuite.results.store.record",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import benchsuite.results` stays light."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'benchsuite.results' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
