"""What holds a training job back: a benchmarking and I/O-profiling suite for distributed deep-learning training."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchsuite.inprocess import run
    from benchsuite.spec import TrialSpec
    from benchsuite.watched.watch import watch

__version__ = "0.1.0"
__all__ = ["TrialSpec", "__version__", "run", "watch"]
_HOMES = {"run": "benchsuite.inprocess", "TrialSpec": "benchsuite.spec", "watch": "benchsuite.watched.watch"}


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import benchsuite.cli` imports no torch."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'benchsuite' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
