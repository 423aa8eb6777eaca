"""Staged input in a plan, by hand: two nodes that read 10 MB samples from 10 MB/s shared and 40 MB/s of their own."""

from dataclasses import replace
from typing import Any

import pytest

from benchsuite.contract.errors import UserError
from benchsuite_plan.layout import machines
from benchsuite_plan.layout.assumptions import typical
from benchsuite_plan.layout.candidates import Choices, Job
from benchsuite_plan.layout.cost import cost
from benchsuite_plan.layout.layout_search import plan, what_if
from benchsuite_plan.layout.plan_report import notes
from benchsuite_plan.layout.staged import Staging, in_words, staging
from planner.tests.small import IDEAL, job, layout, machine, model

STORAGE = {"shared_read_bytes_per_s": 1e7, "local_read_bytes_per_s": 4e7}
EFFICIENCY = 0.8
"""storage_efficiency, of both."""


def reading(
    storage: dict[str, float] | None = None,
    dataset_samples: float | None = None,
    sample_bytes: float = 1e7,
    **changes: Any,
) -> Job:
    """8 samples of 10 MB a step on 4 devices of 2 nodes; computing is nothing beside reading."""
    given = machine(storage=STORAGE if storage is None else storage)
    return job(4, model=model(sample_bytes=sample_bytes, dataset_samples=dataset_samples), machine=given, **changes)


def both(of: Job, samples: float | None = None) -> Staging:
    found = staging(of, layout(dp=4, microbatch=2), samples)
    assert found is not None
    return found


def test_the_constant_that_the_figures_below_are_worked_out_with():
    assert typical().storage_efficiency == EFFICIENCY


def test_each_node_reads_its_own_part_from_its_own_drives():
    shared = cost(reading(), layout(dp=4, microbatch=2), IDEAL)
    staged = cost(reading(staged=True), layout(dp=4, microbatch=2), IDEAL)
    assert float(shared.step_s[0]) == pytest.approx(8.0), "80 MB at 10 MB/s"
    assert float(staged.step_s[0]) == pytest.approx(1.0), "80 MB at 2 x 40 MB/s"


def test_break_even_by_hand():
    """8 samples: 10 s shared, 1.25 s staged; copying them to 2 nodes takes 160 MB at 8 MB/s, 20 s."""
    found = both(reading())
    assert (found.assumed, found.copy_s, found.epochs, found.fits) == ("shared", None, None, None)
    assert (found.shared_step_s, found.staged_step_s) == (pytest.approx(10.0), pytest.approx(1.25))
    assert found.break_even_epochs == pytest.approx(20 / 8.75)


def test_an_epoch_at_a_time_tells_the_same():
    """1,000 samples: from the break-even on, copying and reading own drives take less than reading the shared ones."""
    found = both(reading(dataset_samples=1000), samples=90_000)
    assert (found.copy_s, found.epochs) == (pytest.approx(2 * 1000e7 / 8e6), 90)
    assert found.break_even_epochs is not None and found.copy_s is not None
    for epochs, pays in ((found.break_even_epochs * 0.99, False), (found.break_even_epochs * 1.01, True)):
        shared, staged = (epochs * 1000 / 8 * step for step in (found.shared_step_s, found.staged_step_s))
        assert (found.copy_s + staged < shared) == pays


def test_slow_drives_make_copying_longer():
    slow = STORAGE | {"local_write_bytes_per_s": 1e6}
    assert both(reading(slow, 1000)).copy_s == pytest.approx(1000e7 / (EFFICIENCY * 1e6)), "each node its own"
    assert both(reading(STORAGE | {"local_write_bytes_per_s": 1e9}, 1000)).copy_s == pytest.approx(2500.0)


def test_where_the_shared_file_system_keeps_up_staging_changes_nothing():
    fast = both(reading({"shared_read_bytes_per_s": 1e13, "local_read_bytes_per_s": 1e13}, sample_bytes=1e3))
    assert fast.break_even_epochs is None and fast.shared_step_s == fast.staged_step_s
    assert in_words(fast, reading()).endswith(": staging changes nothing")
    worse = both(reading({"shared_read_bytes_per_s": 1e9, "local_read_bytes_per_s": 1e6}))
    assert worse.break_even_epochs is None and in_words(worse, reading()).endswith(": staging does not pay")


def test_what_is_not_known_is_not_told():
    for known in ({"shared_read_bytes_per_s": 1e6}, {"local_read_bytes_per_s": 1e6}, {}):
        assert staging(reading(known), layout(dp=4, microbatch=2), None) is None
    unsized = replace(reading(), model=model())
    assert staging(unsized, layout(dp=4, microbatch=2), None) is None


def test_in_words():
    of = reading(STORAGE | {"local_bytes": 2e10}, 1000)
    assert in_words(both(of, 90_000), of) == (
        "input is assumed to be read from the shared file system: 10 s/step, 1.25 s/step staged; copying the dataset "
        "to each of 2 nodes pays from 2.29 epochs on (takes 2,500 s, not in days; this training has 90)"
    )
    staged = replace(of, staged=True)
    assert in_words(both(staged), staged).startswith(
        "input is assumed to be read staged: 1.25 s/step, 10 s/step from the shared file system; copying the dataset "
    )
    small = reading(STORAGE | {"local_bytes": 1e10}, 2000)
    assert in_words(both(small), small).endswith("; but the dataset does not fit on a node's drives")


class TestPlans:
    def test_the_assumption_is_printed_and_the_input_share_is_its(self):
        shared, staged = (plan(reading(staged=way), Choices(zero=(0,)), top=1) for way in (False, True))
        assert [found.first.step_s.value for found in (shared, staged)] == pytest.approx([10.0, 1.25])
        assert [found.first.input_share.value > 0.9 for found in (shared, staged)] == [True, True]
        assert shared.staging and shared.staging.assumed == "shared"
        assert notes(reading(), shared)[-1].startswith("input is assumed")
        assert staged.staging and staged.staging.assumed == "staged"
        assert staged.staging.break_even_epochs == pytest.approx(shared.staging.break_even_epochs)

    def test_what_if(self):
        found = what_if(reading(), Choices(zero=(0,)), {"storage": 2.0, "staging": 1.0})
        assert {name: each.step_s.value for name, each in found.items()} == {
            "as it is": pytest.approx(10.0),
            "storage x2": pytest.approx(5.0),
            "staging": pytest.approx(1.25),
        }

    def test_unknown_drives_are_told(self):
        polaris = machines.load("polaris")
        there = job(4, model=model(sample_bytes=1e6), machine=polaris)
        told = notes(there, plan(there, Choices(zero=(0,)), top=1))
        assert (
            "input is assumed to be read from the shared file system (staging is not compared: "
            "storage.local_read_bytes_per_s of polaris is not known)"
        ) in told
        only_local = reading({"local_read_bytes_per_s": 1e6}, staged=True)
        told = notes(only_local, plan(only_local, Choices(zero=(0,)), top=1))
        assert "bandwidth of small's shared file system is not known: nor when copying the dataset pays" in told

    @pytest.mark.parametrize(
        ("of", "words"),
        [
            (reading({}, staged=True), "staging: small tells no storage.local_read_bytes_per_s; give it in a YAML"),
            (
                replace(reading(staged=True), model=model()),
                "staging: bytes of a stored sample of m are not known: give sample_bytes",
            ),
            (
                reading(STORAGE | {"local_bytes": 1e10}, 2000, staged=True),
                r"staging: the dataset of m \(0.02 TB\) does not fit on a node's drives of small \(0.01 TB\)",
            ),
        ],
    )
    def test_mistakes(self, of: Job, words: str):
        with pytest.raises(UserError, match=words):
            plan(of, Choices(zero=(0,)))
