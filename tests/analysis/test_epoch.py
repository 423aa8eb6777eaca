"""What a cold window says of its epoch, beside an epoch that is simulated sample by sample."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchsuite.analysis.epoch import (
    ColdWindow,
    Estimate,
    amplification_caveats,
    cold_window,
    epoch_figures,
    neighbours,
    over_epoch,
)
from benchsuite.storage.dataset.manifest import Manifest
from tests.helpers.made import made_spec

NUM_SAMPLES = 20_000


def simulated(ahead: int, share: float = 1.0) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Samples that each sample of a random order brings in: itself and the missing ones among the next `ahead`."""
    present, rng = np.zeros(NUM_SAMPLES + ahead, bool), np.random.default_rng(3)
    found = []
    for row in rng.permutation(NUM_SAMPLES)[: int(share * NUM_SAMPLES)]:
        block = slice(row, row + ahead + 1)
        found.append(0 if present[row] else int((~present[block]).sum()))
        if not present[row]:
            present[block] = True
    return np.array(found, np.float64)


@pytest.mark.parametrize("ahead", [1, 3, 10])
@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize("au", [0.1, 0.4, 0.8])
def test_a_window_tells_the_utilization_of_a_simulated_epoch(ahead: int, share: float, au: float) -> None:
    """A step computes for 1, and waits for its bytes or for its misses; both are estimated from the first 2 %."""
    brought = simulated(ahead, share)
    first = slice(0, NUM_SAMPLES // 50)
    window = ColdWindow(au, float(brought[first].mean()), 0.0, 0.02, share, 1.0)
    found = over_epoch(window)
    assert found is not None
    batches = brought[: len(brought) // 50 * 50].reshape(-1, 50).mean(axis=1)
    misses = (brought[: len(brought) // 50 * 50] > 0).reshape(-1, 50).mean(axis=1)
    for waits, of in ((batches, brought), (misses, brought > 0)):
        truth = float(1 / np.maximum(1.0, waits / of[first].mean() / au).mean())
        assert found.au - found.error - 0.03 <= truth <= found.au + found.error + 0.03


def test_all_bytes_come_once() -> None:
    """The mean over the epoch of A / (1 + B x)^2 is 1."""
    window = ColdWindow(0.2, 1.62, 0.01, 0.1, 1.0, 1.0)
    beside = neighbours(window)
    assert beside is not None
    x = (np.arange(100_000) + 0.5) / 100_000
    brought = (1 + beside) / (1 + beside * x) ** 2
    assert brought.mean() == pytest.approx(1.0, rel=1e-6)
    inside = (x > window.begin) & (x < window.end)
    assert brought[inside].mean() == pytest.approx(1.62, rel=1e-3)


def test_a_wait_that_is_not_for_storage_stays() -> None:
    window = ColdWindow(0.25, 1.5, 0.0, 0.1, 1.0, waiting_share=0.0)
    assert over_epoch(window) == Estimate(pytest.approx(0.25), pytest.approx(0.0))
    assert over_epoch(replace(window, waiting_share=1.0)).au > 0.3  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "window", [ColdWindow(0.2, 8.0, 0.01, 0.1, 1.0, 1.0), ColdWindow(0.2, 2.0, 0.0, 0.6, 1.0, 1.0)]
)
def test_more_than_there_is_tells_nothing(window: ColdWindow) -> None:
    """Of a tenth of the dataset eight times as much cannot come under these assumptions."""
    assert over_epoch(window) is None


MANIFEST = Manifest.model_construct(num_samples=1000, stored_bytes=100_000_000)
VALUES: dict[str, Any] = {
    "au": 0.2,
    "read_amplification": 1.5,
    "delivered_bytes": 10_000_000,
    "samples_per_s": 100.0,
    "io_bytes_per_s": 10_000_000.0,
    "reader_busy_fraction": 0.9,
    "read_s_per_sample": 0.010,
    "read_cpu_s_per_sample": 0.001,
    "decode_s_per_sample": 0.002,
}


def test_a_trials_window() -> None:
    spec = made_spec(batch_size=10, data={"format": "hdf5", "num_workers": 1, "prefetch_factor": 1})
    assert cold_window(spec, VALUES, MANIFEST, 1) == ColdWindow(
        0.2, 1.5, pytest.approx(0.02), pytest.approx(0.12), 1.0, pytest.approx(0.75), 1.0, 0.9
    )
    two = cold_window(spec, VALUES, MANIFEST, 2)
    assert two is not None and (two.begin, two.end, two.of_epoch) == (0.01, pytest.approx(0.06), 0.5)


@pytest.mark.parametrize(
    ("data", "values"),
    [
        ({"format": "webdataset"}, {}),
        ({"shuffle": False}, {}),
        ({}, {"read_amplification": 1.05}),
        ({}, {"read_amplification": None}),
    ],
)
def test_what_is_not_read_ahead_is_as_its_epoch(data: dict[str, Any], values: dict[str, Any]) -> None:
    found = epoch_figures(made_spec(data={"format": "hdf5"} | data), VALUES | values, MANIFEST, 1)
    assert found == {"au_epoch": pytest.approx(0.2), "au_epoch_error": pytest.approx(0.0)}


@pytest.mark.parametrize(
    ("data", "values"),
    [({"cache": "warm"}, {}), ({}, {"decode_s_per_sample": None}), ({}, {"delivered_bytes": 99_000_000})],
)
def test_windows_that_tell_nothing_of_their_epoch(data: dict[str, Any], values: dict[str, Any]) -> None:
    assert epoch_figures(made_spec(data={"format": "hdf5"} | data), VALUES | values, MANIFEST, 1) == {}


@pytest.mark.parametrize(
    ("au", "busy", "sizes", "expected"),
    [
        (0.5, 0.99, 1.25, 0.4),  # input takes 2 x 1.25 of the computation
        (1.0, 0.5, 1.25, 1.0),  # and here 0.5 x 1.25
        (1.0, 0.9, 1.25, 1 / 1.125),
        (0.5, 0.99, 0.4, 1.0),
    ],
)
def test_the_sizes_of_all_samples_count(au: float, busy: float, sizes: float, expected: float) -> None:
    found = over_epoch(ColdWindow(au, 1.0, 0.0, 0.1, 1.0, 0.5, sizes, busy))
    assert found == Estimate(pytest.approx(expected), pytest.approx(0.0))


def test_the_caveat_says_what_was_read_ahead_and_what_it_means() -> None:
    spec = made_spec(data={"format": "lmdb"})
    values = VALUES | epoch_figures(spec, VALUES, MANIFEST, 1)
    [(name, why)] = amplification_caveats(spec, values, 8192)
    assert name == "read_amplification"
    assert why.startswith(
        "1.50 bytes came from storage for each delivered: the kernel reads ahead (read_ahead_kb 8192)"
    )
    assert f"over an epoch AU is about {values['au_epoch']:.2f} ±{values['au_epoch_error']:.2f}" in why
    assert amplification_caveats(spec, VALUES | {"read_amplification": 1.09}, 8192) == []
    assert "over an epoch" not in amplification_caveats(spec, VALUES, None)[0][1]
