"""What holds a training job back: a benchmarking and I/O-profiling suite for distributed deep-learning training."""

from typing import TYPE_CHECKING, Any

from benchsuite.contract.version import VERSION as __version__

if TYPE_CHECKING:
    from benchsuite.contract.trial_spec import TrialSpec
    from benchsuite.results.store.store import ResultsStore
    from benchsuite.runner.single_trial import run_trial
    from benchsuite.watcher.watch import watch

__all__ = ["ResultsStore", "TrialSpec", "__version__", "run_trial", "watch"]
_HOMES = {
    "ResultsStore": "benchsuite.results.store.store",
    "run_trial": "benchsuite.runner.single_trial",
    "TrialSpec": "benchsuite.contract.trial_spec",
    "watch": "benchsuite.watcher.watch",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import benchsuite.cli.app` imports no torch."""
    import importlib

    if name == "run":
        import warnings

        warnings.warn("benchsuite.run is called benchsuite.run_trial now", DeprecationWarning, stacklevel=2)
        name = "run_trial"
    if name not in _HOMES:
        raise AttributeError(f"module 'benchsuite' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
