"""Fixtures of the product's tests."""

from pathlib import Path

import pytest

from benchsuite.watched import watch as watching
from benchsuite.watched.stamps import HostStamps
from results.store import ResultsStore
from tests.benchsuite.watching import Clock
from tests.results.made import made_record


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Steps are timed by it."""
    made = Clock()
    monkeypatch.setattr(HostStamps, "now", staticmethod(made))
    monkeypatch.setattr(watching, "own_s_per_step", lambda stamps, marks: 1e-6)
    return made


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
