"""Which differences of environments forbid a comparison."""

from typing import Any

import pandas as pd
import pytest

from benchsuite.results.compare.environments import (
    IDENTITY,
    OF_THE_MOMENT,
    Difference,
    allocation_of,
    differences,
    facts_of,
)
from benchsuite.results.store.frames import record_frame
from tests.results.made import made_record

A100 = {"name": "A100", "memory_bytes": 80, "driver": "550"}
ENV: dict[str, Any] = {
    "host": "n1",
    "os": "Linux 6.1",
    "cpu": "EPYC",
    "cores": 8,
    "devices": [A100, A100],
    "libraries": {"torch": "2.13.0", "numpy": "2.4.6"},
    "data": {"file_system": "lustre", "mount": "/scratch", "free_bytes": 1},
    "scheduler": {"SLURM_JOB_ID": "1"},
    "load_average": 0.1,
}


def changed(**changes: Any) -> dict[str, Any]:
    """The environment with other values; nested ones replace nested ones."""
    return ENV | {k: {**ENV[k], **v} if isinstance(v, dict) else v for k, v in changes.items()}


def test_the_same_environment_differs_in_nothing():
    assert differences(ENV, ENV) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"libraries": {"torch": "2.12.0"}}, Difference("libraries.torch", "2.13.0", "2.12.0", True)),
        ({"cpu": "Xeon"}, Difference("cpu", "EPYC", "Xeon", True)),
        ({"cores": 4}, Difference("cores", 8, 4, True)),
        ({"data": {"file_system": "nfs"}}, Difference("data.file_system", "lustre", "nfs", True)),
        ({"devices": [{**A100, "name": "H100"}]}, Difference("devices.name", "A100", "H100", True)),
        ({"host": "n2"}, Difference("host", "n1", "n2", False)),
        ({"libraries": {"numpy": "2.4.7"}}, Difference("libraries.numpy", "2.4.6", "2.4.7", False)),
        ({"devices": [{**A100, "driver": "560"}]}, Difference("devices.driver", "550", "560", False)),
        ({"data": {"mount": "/work"}}, Difference("data.mount", "/scratch", "/work", False)),
    ],
)
def test_one_fact_that_differs(change: dict[str, Any], expected: Difference):
    assert differences(ENV, changed(**change)) == [expected]


def test_no_device_is_not_an_unknown_device():
    assert Difference("devices.name", "A100", "none", True) in differences(ENV, changed(devices=[]))
    unknown = {name: value for name, value in ENV.items() if name != "devices"}
    assert not any(difference.identity for difference in differences(ENV, unknown))


def test_how_many_devices_there_are_is_no_difference():
    assert differences(ENV, changed(devices=[A100])) == []


def test_what_differs_between_any_two_trials_is_not_told():
    assert differences(ENV, changed(load_average=9.0, data={"free_bytes": 2}, scheduler={"SLURM_JOB_ID": "2"})) == []


def test_a_fact_that_one_does_not_tell_forbids_nothing():
    (found,) = differences(ENV, changed(cpu=None))
    assert found == Difference("cpu", "EPYC", None, False)


def test_what_forbids_comes_first():
    found = differences(ENV, changed(cpu="Xeon", host="a", os="b"))
    assert [difference.fact for difference in found] == ["cpu", "host", "os"]


def test_rows_of_a_frame_tell_the_same_as_records():
    records = [made_record(0, env=ENV), made_record(1, env=changed(cpu="Xeon", host="n2"))]
    first, second = record_frame(records).to_dict(orient="records")
    assert differences(facts_of(first), facts_of(second)) == differences(ENV, changed(cpu="Xeon", host="n2"))
    assert "host" not in facts_of({"env.host": float("nan")})


def test_a_fact_missing_in_one_record_is_missing_in_its_row():
    other = {name: value for name, value in ENV.items() if name not in ("cores", "devices")}
    frame: pd.DataFrame = record_frame([made_record(0, env=ENV), made_record(1, env=other)])
    first, second = frame.to_dict(orient="records")
    assert not any(difference.identity for difference in differences(facts_of(first), facts_of(second)))


@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"])
def test_the_allocation_is_the_batch_job(name: str):
    assert allocation_of({"scheduler": {name: "7"}}) == "7"
    assert allocation_of({f"scheduler.{name}": "7"}) == "7"


def test_outside_of_a_batch_job_there_is_no_allocation():
    assert allocation_of({"scheduler": {}}) is None


def test_facts_of_the_moment_are_none_of_identity():
    assert not IDENTITY & OF_THE_MOMENT
