"""What a cold window says of its epoch, beside an epoch that is simulated sample by sample."""

from typing import Any

import numpy as np
import pytest

from benchsuite.analysis.epoch import (
    ColdWindow,
    Estimate,
    cold_window,
    epoch_caveats,
    epoch_figures,
    over_epoch,
)
from benchsuite.contract.trial_spec import TrialSpec
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
    """A step computes for 1, and waits for its bytes; the epoch is estimated from its first 2 %."""
    brought = simulated(ahead, share)
    first = slice(0, NUM_SAMPLES // 50)
    found = over_epoch(ColdWindow(au, 1.0, float(brought[first].mean()), share))
    batches = brought[: len(brought) // 50 * 50].reshape(-1, 50).mean(axis=1)
    truth = float(1 / np.maximum(1.0, batches / brought[first].mean() / au).mean())
    assert found.error and found.au - found.error - 0.03 <= truth <= found.au + found.error + 0.03


def test_all_bytes_come_once() -> None:
    """1.6 bytes for each delivered: after 1 / 1.6 of the epoch all are there, and steps wait no more."""
    found = over_epoch(ColdWindow(0.2, 1.0, 1.6))
    assert found.au == pytest.approx(1 / (5 / 1.6 + 1 - 1 / 1.6))
    assert found.error == pytest.approx(found.au - 0.2)


def test_a_node_that_reads_a_part_of_the_dataset_finds_less_in_memory() -> None:
    """Of two nodes each delivers half of it: the first 1 / 1.3 of an epoch fetches."""
    assert over_epoch(ColdWindow(0.2, 1.0, 1.6, of_epoch=0.5)).au == pytest.approx(1 / (5 / 1.3 + 1 - 1 / 1.3))


def test_a_wait_that_is_not_for_storage_stays() -> None:
    assert over_epoch(ColdWindow(0.25, 0.0, 1.5)) == Estimate(pytest.approx(0.25), pytest.approx(0.0))
    assert over_epoch(ColdWindow(0.25, 1.0, 1.5)).au > 0.3


@pytest.mark.parametrize(
    ("au", "busy", "error"),
    [
        (0.5, 0.9, 0.5 / (1 - 0.2) - 0.5),
        (0.9, 0.9, 0.9 - 0.9 / 1.2),  # it can be no more than 1
        (1.0, 0.9, 1 - 1 / (0.9 * 1.2)),
        (1.0, 0.5, 0.0),
    ],
)
def test_what_was_read_ahead_makes_a_streams_window_uncertain(au: float, busy: float, error: float) -> None:
    found = over_epoch(ColdWindow(au, 1.0, busy=busy, ahead=0.2))
    assert found == Estimate(pytest.approx(au), pytest.approx(error))
    assert over_epoch(ColdWindow(au, 0.0, busy=busy, ahead=0.2)).error == 0, "no step waits for storage"


MANIFEST = Manifest.model_construct(num_samples=1000, stored_bytes=100_000_000)
VALUES: dict[str, Any] = {
    "au": 0.2,
    "au_error": 0.0,
    "read_amplification": 1.5,
    "delivered_bytes": 10_000_000,
    "samples_per_s": 100.0,
    "io_bytes_per_s": 10_000_000.0,
    "reader_busy_fraction": 0.9,
    "read_s_per_sample": 0.010,
    "read_cpu_s_per_sample": 0.001,
    "decode_s_per_sample": 0.002,
}


ENVIRONMENT: dict[str, Any] = {"memory_bytes": 1 << 30, "nodes": [{}]}


def window_of(data: dict[str, Any], values: dict[str, Any], environment: dict[str, Any]) -> ColdWindow | None:
    spec = made_spec(batch_size=10, data={"format": "hdf5", "num_workers": 1, "prefetch_factor": 1} | data)
    return cold_window(spec, VALUES | values, MANIFEST, ENVIRONMENT | environment, 1000)


def told(spec: TrialSpec, values: dict[str, Any], environment: dict[str, Any], ahead_kb: int | None) -> dict[str, Any]:
    return epoch_figures(spec, values, MANIFEST, cold_window(spec, values, MANIFEST, environment, ahead_kb))


def caveats_of(spec: TrialSpec, values: dict[str, Any], ahead_kb: int | None) -> list[tuple[str, str]]:
    return epoch_caveats(spec, values, ahead_kb, cold_window(spec, values, MANIFEST, ENVIRONMENT, ahead_kb))


def test_a_trials_window() -> None:
    assert window_of({}, {}, {}) == ColdWindow(0.2, pytest.approx(0.75), 1.5, 1.0, 1.0, 0.9)
    two = window_of({}, {}, {"nodes": [{}, {}]})
    assert two is not None and two.of_epoch == 0.5


def test_a_stream_is_uncertain_by_what_the_kernel_reads_ahead() -> None:
    """1,000 KiB for each of two readers, of 10 MB."""
    found = window_of({"format": "webdataset", "num_workers": 2}, {}, {})
    assert found == ColdWindow(0.2, pytest.approx(0.75), 1.0, 1.0, 1.0, 0.9, pytest.approx(0.2048))


def test_a_whole_epoch_that_was_delivered_is_one() -> None:
    """With what lay in the queue at its end."""
    values = VALUES | {"delivered_bytes": 100_000_000}
    found = told(made_spec(measure={"epochs": 1}), values, ENVIRONMENT, 8192)
    assert (found["au_epoch"], found["au_epoch_rule"]) == (pytest.approx(0.2), "epoch")


def test_an_epoch_begins_with_the_start_of_its_readers() -> None:
    """100 steps of 100 ms, of which 20 ms are computed; the first batch comes after 5 s in place of 0.08."""
    spec, late = made_spec(batch_size=10, data={"format": "files"}, measure={"epochs": 1}), {"first_batch_s": 5.0}
    values = VALUES | {"delivered_bytes": 100_000_000}
    found = told(spec, values | late, ENVIRONMENT, None)
    assert found["au_epoch"] == pytest.approx(100 * 0.02 / (5 + 99 * 0.1 + 0.02))
    as_any = told(spec, values | {"first_batch_s": 0.08}, ENVIRONMENT, None)
    assert as_any["au_epoch"] == pytest.approx(0.2)


def test_an_epoch_that_was_taken_to_its_end_needs_no_estimate() -> None:
    spec = made_spec(batch_size=10, data={"format": "files"}, measure={"epochs": 1})
    found = epoch_figures(spec, VALUES | {"first_batch_s": 5.0}, MANIFEST, None, taken=0.3)
    assert found == {"au_epoch": 0.3, "au_epoch_error": None, "au_epoch_rule": "epoch"}
    untold = VALUES | {"decode_s_per_sample": None}
    assert epoch_figures(spec, untold, MANIFEST, None, taken=0.3) == found
    warm = made_spec(data={"format": "files", "cache": "warm"}, measure={"epochs": 1})
    assert epoch_figures(warm, VALUES, MANIFEST, None, taken=0.3) == {}


def test_noise_of_steps_is_in_the_error_of_a_window() -> None:
    spec, values = made_spec(data={"format": "files"}, measure={"steps": 8}), VALUES | {"au_error": 0.02}
    found = told(spec, values, {}, None)
    assert (found["au_epoch_error"], found["au_epoch_rule"]) == (pytest.approx(0.02), "window")


def test_steps_around_ceilings_are_in_the_error_of_a_whole_epoch() -> None:
    """96 of its 100 steps were counted."""
    spec = made_spec(batch_size=10, data={"format": "files"}, measure={"epochs": 1}).with_steps(96)
    found = told(spec, VALUES, ENVIRONMENT, None)
    assert (found["au_epoch_error"], found["au_epoch_rule"]) == (pytest.approx(0.2 * 0.04), "epoch")
    noisy = told(spec, VALUES | {"au_error": 0.2 * 0.03}, ENVIRONMENT, None)
    assert noisy["au_epoch_error"] == pytest.approx(0.2 * 0.05)


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"input_stall_fraction": 0.0}, 0.9 * 3 / 30),  # a wait as long as the input of a step takes
        ({"input_stall_fraction": 0.0, "reader_busy_fraction": 0.1}, 0.1 * 3 / 30),
        ({"input_stall_fraction": 0.0, "au_error": 0.2}, 0.2),
        ({"input_stall_fraction": 0.02, "au_error": 0.01}, 0.01),
        ({"input_stall_fraction": 0.02, "au_error": None}, 0.9 * 3 / 30),  # how steps spread is not known
    ],
)
def test_steps_that_did_not_wait_do_not_prove_that_none_does(values: dict[str, Any], error: float) -> None:
    spec = made_spec(data={"format": "files"}, measure={"steps": 30})
    found = told(spec, VALUES | {"au": 1.0} | values, ENVIRONMENT, None)
    assert found["au_epoch_error"] == pytest.approx(error)


@pytest.mark.parametrize(
    ("data", "values", "environment"),
    [
        ({"shuffle": False}, {}, {}),
        ({}, {"read_amplification": 1.05}, {}),
        ({}, {"read_amplification": None}, {}),
        ({}, {}, {"memory_bytes": 120_000_000}),
    ],
)
def test_what_later_steps_do_not_find_changes_nothing(
    data: dict[str, Any], values: dict[str, Any], environment: dict[str, Any]
) -> None:
    """Nothing is read ahead, or it has left memory until it is asked for."""
    spec = made_spec(data={"format": "hdf5"} | data)
    found = told(spec, VALUES | values, ENVIRONMENT | environment, 8192)
    assert found == {
        "au_epoch": pytest.approx(0.2),
        "au_epoch_error": pytest.approx(0.0),
        "au_epoch_rule": "window",
    }


@pytest.mark.parametrize(
    ("data", "values"),
    [({"cache": "warm"}, {}), ({}, {"decode_s_per_sample": None}), ({}, {"delivered_bytes": 100_000_000})],
)
def test_windows_that_tell_nothing_of_their_epoch(data: dict[str, Any], values: dict[str, Any]) -> None:
    spec = made_spec(data={"format": "hdf5"} | data)
    assert told(spec, VALUES | values, ENVIRONMENT, 8192) == {}


@pytest.mark.parametrize(
    ("au", "busy", "sizes", "expected"),
    [
        (0.5, 0.99, 1.25, 0.4),  # input takes 2 x 1.25 of the computation
        (1.0, 0.5, 1.25, 1.0),  # and here 0.5 x 1.25
        (0.98, 0.5, 1.25, 0.98),  # whatever is lost is not for input
        (1.0, 0.9, 1.25, 1 / 1.125),
        (0.5, 0.99, 0.4, 1.0),
    ],
)
def test_the_sizes_of_all_samples_count(au: float, busy: float, sizes: float, expected: float) -> None:
    found = over_epoch(ColdWindow(au, 0.5, sizes=sizes, busy=busy))
    assert found == Estimate(pytest.approx(expected), pytest.approx(0.0))


def test_the_caveat_says_what_was_read_ahead_and_what_it_means() -> None:
    spec = made_spec(data={"format": "lmdb"})
    values = VALUES | told(spec, VALUES, ENVIRONMENT, 8192)
    [(name, why)] = caveats_of(spec, values, 8192)
    assert name == "read_amplification"
    assert why.startswith(
        "1.50 bytes came from storage for each delivered: the kernel reads ahead (read_ahead_kb 8192)"
    )
    said = f"over an epoch AU is about {values['au_epoch']:.2f} ±{values['au_epoch_error']:.2f}"
    assert why.endswith(f"{said}, and measure.epochs: 1 measures it")
    assert caveats_of(spec, VALUES | {"read_amplification": 1.09}, 8192) == []
    assert "over an epoch" not in caveats_of(spec, VALUES, None)[0][1]
    whole = made_spec(data={"format": "lmdb"}, measure={"epochs": 1})
    assert caveats_of(whole, values | {"au_epoch_error": None}, 8192)[0][1].endswith(
        f"AU is about {values['au_epoch']:.2f}"
    )


def test_a_streams_short_window_has_a_caveat() -> None:
    spec = made_spec(data={"format": "webdataset", "num_workers": 2})
    short, long = (told(spec, VALUES, ENVIRONMENT, kb) for kb in (1000, 100))
    assert caveats_of(spec, VALUES | short, 1000) == [
        (
            "short_window",
            "10 MB of streams were counted, of each of which the kernel reads some MB ahead (read_ahead_kb 1000); "
            "over an epoch AU is about 0.20 ±0.04, and measure.epochs: 1 measures it",
        )
    ]
    assert caveats_of(spec, VALUES | long, 100) == []


def test_a_stream_that_feeds_its_steps_has_no_caveat_for_what_the_rule_of_three_allows() -> None:
    spec = made_spec(data={"format": "webdataset", "num_workers": 2}, measure={"steps": 30})
    fed = VALUES | {"au": 1.0, "input_stall_fraction": 0.0, "reader_busy_fraction": 0.5}
    found = told(spec, fed, ENVIRONMENT, 1000)
    assert found["au_epoch_error"] == pytest.approx(0.05)
    assert caveats_of(spec, fed | found, 1000) == []
