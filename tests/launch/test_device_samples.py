"""Devices are read once a second from launch to end, by a node's agent and by no rank; with stubs in NVML's place."""

import json
import sys
from pathlib import Path

import pytest

from benchsuite.analysis.record_builder import conclude, new_attempt
from benchsuite.grid.expand import plan_trial
from benchsuite.host import device_samples
from benchsuite.launch import agents
from benchsuite.launch.placement import shares
from benchsuite.launch.starters import LocalLauncher
from benchsuite.results.store.shapes import devices_of
from tests.helpers.launchers import spec
from tests.helpers.made import made_spec
from tests.launch import counted_devices
from tests.launch.counted_devices import IDS, READ
from tests.launch.test_placement import agents as agents_on


@pytest.mark.slow
def test_an_agent_reads_the_devices_of_its_ranks_and_no_rank_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real agent with real ranks, whose NVML is made up and writes down who called it."""
    monkeypatch.setattr(agents, "ZYGOTE", (sys.executable, "-P", "-m", counted_devices.__name__))
    monkeypatch.setenv(READ, str(tmp_path / "calls"))
    asked = spec(2).model_copy(update={"device": "cuda"})
    with LocalLauncher(f"{counted_devices.__name__}:rank") as launcher:
        outcome = launcher.run(asked, None, tmp_path, lambda _progress: None)
    assert outcome.is_clean(2), outcome
    assert [device["device_uuid"] for device in outcome.devices] == [*IDS[:2]], "of its ranks, and of no other"
    for number, device in enumerate(outcome.devices):
        assert len(device["at_s"]) >= 2 and device["at_s"] == sorted(device["at_s"])
        assert set(device["power_w"]) == {250.0 + number} and set(device["sm_mhz"]) == {1980}
        assert set(device["temperature_c"]) == {None}, "what the driver does not tell"
        assert set(device["busy_fraction"]) == {0.75}
    readers = {line.split()[0] for line in (tmp_path / "calls").read_text().splitlines() if "power" in line}
    assert len(readers) == 1, "one process of the agent's, beside the ranks"
    attempt = new_attempt(plan_trial(asked.model_dump() | {"device": "cpu"}), "session", 0, None, None)
    _, samples = conclude(attempt, outcome, tmp_path)
    assert samples is not None and samples["devices"] == outcome.devices, "in the trial's raw samples"
    assert devices_of(json.loads(json.dumps({"devices": outcome.devices}))) == outcome.devices


def test_each_agent_has_the_devices_of_its_own_ranks() -> None:
    def devices(world_size: int, parallelism: str, *nodes: str) -> list[list[str]]:
        asked = made_spec(world_size=world_size).model_copy(update={"device": "cuda", "parallelism": parallelism})
        return [share.devices(asked) for share in shares(asked, agents_on(*nodes, devices=8))]

    everything = [[f"{node}-{number}" for number in range(8)] for node in "ab"]
    assert devices(16, "ddp", "a", "b") == everything
    assert devices(8, "ddp", "a", "a") == [everything[0][:4], everything[0][4:]], "of agents that share a node's"
    assert devices(1, "none", "a") == [["a-0"]]
    assert devices(1, "data_parallel", "a") == everything[:1], "one rank on all devices"
    (share,) = shares(made_spec(), agents_on("a", devices=8))
    assert share.devices(made_spec()) == [], "trials on a cpu have none"


def test_what_a_killed_reader_has_begun_to_write_is_left_out(tmp_path: Path) -> None:
    out = tmp_path / "samples"
    lines = [json.dumps([10.0 + at, [[100, 1980, 50, 0.5], [None] * 4]]) for at in range(3)]
    out.write_text("\n".join(lines) + "\n[13.0, [[10")
    first, second = device_samples.recorded(("GPU-a", "GPU-b"), out, ahead_s=4.0)
    assert first["at_s"] == second["at_s"] == [6.0, 7.0, 8.0], "by the launcher's clock"
    assert first["power_w"] == [100, 100, 100] and second["power_w"] == [None, None, None]
    assert device_samples.recorded(("GPU-a",), tmp_path / "none") == []


def test_of_a_long_trial_samples_are_taken_evenly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_samples, "MAX_SAMPLES", 4)
    out = tmp_path / "samples"
    out.write_text("".join(json.dumps([float(at), [[1, 2, 3, 0.5]]]) + "\n" for at in range(10)))
    (device,) = device_samples.recorded(("GPU-a",), out)
    assert device["at_s"] == [0.0, 3.0, 6.0, 9.0]


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"devices": "none"},
        {"devices": [{"device_uuid": "GPU-a", "at_s": [1.0]}]},
        {
            "devices": [
                {key: [1.0, 2.0] for key in ("at_s", "power_w", "sm_mhz", "temperature_c")}
                | {"device_uuid": "a", "busy_fraction": [0.5]}
            ]
        },
    ],
    ids=["absent", "no list", "without figures", "of unlike length"],
)
def test_raw_samples_that_hold_no_such_thing_are_passed_over(found: dict[str, object]) -> None:
    assert devices_of(found) == []
