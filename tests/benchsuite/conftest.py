"""Fixtures of the product's tests."""

import pytest

from benchsuite.watched import watch as watching
from benchsuite.watched.stamps import HostStamps
from tests.benchsuite.watching import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Steps are timed by it."""
    made = Clock()
    monkeypatch.setattr(HostStamps, "now", staticmethod(made))
    monkeypatch.setattr(watching, "own_s_per_step", lambda stamps, marks: 1e-6)
    return made
