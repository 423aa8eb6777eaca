"""Where measurements live and what is said about them. Knows nothing of torch."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from results.record import TrialRecord
    from results.store import ResultsStore, StoreError

__all__ = ["ResultsStore", "StoreError", "TrialRecord"]
_HOMES = {"ResultsStore": "results.store", "StoreError": "results.store", "TrialRecord": "results.record"}


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import results` stays light."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'results' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
