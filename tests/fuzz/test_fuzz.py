"""Machines that look for mistakes nobody thought of; `make fuzz MINUTES=n` gives them longer than the tests do.

Rounds of examples come from consecutive seeds, so that a run on another day finds the same; a failure is told as its
smallest example, with the seed that leads to it.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz.running import Tally, Target, fuzz
from tests.fuzz.targets import TARGETS

MINUTES = float(os.environ.get("BENCHSUITE_TEST_FUZZ_MINUTES", "0"))
"""Over all targets; one round of each where none are asked for, so that every machine tries the same."""
SEED = int(os.environ.get("BENCHSUITE_TEST_FUZZ_SEED", "1"))


@pytest.mark.timeout(0)
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_nothing_breaks(
    target: Target,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
):
    monkeypatch.delenv("BENCHSUITE_STORE", raising=False)
    began_s, tally = time.monotonic(), Tally()
    try:
        fuzz(target, tmp_path, SEED, MINUTES * 60 / len(TARGETS), tally)
    finally:
        seeds = f"seeds {SEED} to {SEED + tally.num_rounds - 1}"
        took_s = time.monotonic() - began_s
        record_property("fuzzed", f"{target.name}: {tally.num_examples} examples, {seeds}, {took_s:.0f} s")
