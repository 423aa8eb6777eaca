"""Fixtures of the tests of watched loops."""

import pytest

from benchsuite.inside.timestamps import HostStamps
from tests.helpers.watching import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Steps are timed by it."""
    made = Clock()
    monkeypatch.setattr(HostStamps, "now", staticmethod(made))
    return made
