"""Fixtures of the verbs' tests."""

from pathlib import Path

import pytest

from benchsuite.results.store.store import ResultsStore
from tests.results.made import made_record


@pytest.fixture
def store(tmp_path: Path) -> ResultsStore:
    """Two repeats of one point and a failed trial."""
    store = ResultsStore(tmp_path / "store")
    for number, rate in enumerate([100.0, 104.0]):
        figures = {"samples_per_s": rate, "au": 0.5, "bottleneck": "storage", "load_s": 0.01, "step_s_mean": 0.02}
        store.append(made_record(number, figures=figures, question="Why so slow?", caveats=["not_steady"]))
    lost = {"status": "failed", "reason": "disk | on\nfire", "figures": {}, "label": "tar", "point_id": "other"}
    store.append(made_record(2, **lost, question="Why so slow?"))
    return store
