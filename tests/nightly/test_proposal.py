"""`nightly init --hours --nodes`: what is left out of a sweep, by how long trials take: here 60 s, it is said."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchsuite.contract.errors import UserError
from benchsuite.grid.point import Point
from benchsuite.host.machine import this_machine
from benchsuite.host.signals import Terminated
from benchsuite.nightly import init, proposal

BASE = {"workload": "bert", "variant": "nano", "batch_size": 2, "data": {"source": "synthetic"}, "device": "cpu"}
GRID = {"precision": ["fp32", "bf16"], "batch_size": [1, 2, 4, 8]}
HOUR_S = 3600 * proposal.FILLED


@pytest.fixture(autouse=True)
def a_minute_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposal, "_tried_s", lambda _point: 60.0)


def proposed(
    folder: Path, minutes: float, nodes: int = 1, repeats: int = 3, **sweep: Any
) -> tuple[dict[str, Any], str]:
    """The sweep of a new repository for so many minutes of trials, and what was said."""
    file = folder / "mine.yaml"
    base = {**BASE, "measure": {"steps": 10, "repeats": repeats}}
    file.write_text(yaml.safe_dump({"base": base, "grid": GRID, **sweep}, sort_keys=False))
    said = init.make(folder / "nights", file, init.Size((60 * minutes + 1) / HOUR_S, nodes))
    return yaml.safe_load((folder / "nights" / "sweeps" / "mine.yaml").read_text()), "\n".join(said)


def test_one_that_fits_stays_and_time_left_goes_into_repeats(tmp_path: Path) -> None:
    values, said = proposed(tmp_path, 33)
    assert (values["grid"], values["base"]["measure"]["repeats"]) == (GRID, 4)
    assert said.startswith("mine.yaml: 32 trials of 8 points, about 32 min by one trial (")
    assert ") that took 60 s; the sweep as it was: 24 min" in said


@pytest.mark.parametrize(
    ("minutes", "repeats", "batches", "precisions"),
    [
        (24, 3, [1, 2, 4, 8], ["fp32", "bf16"]),
        (18, 3, [1, 2, 8], ["fp32", "bf16"]),
        (13, 3, [1, 8], ["fp32", "bf16"]),
        (8, 2, [1, 8], ["fp32", "bf16"]),
        (4, 2, 1, ["fp32", "bf16"]),
        (2, 2, 1, "fp32"),
    ],
)
def test_what_is_missed_least_goes_first(
    tmp_path: Path, minutes: float, repeats: int, batches: Any, precisions: Any
) -> None:
    values, _ = proposed(tmp_path, minutes, repeats=5)
    assert values["base"]["measure"]["repeats"] == repeats
    everything = {**values["base"], **values.get("grid", {})}
    assert (everything["batch_size"], everything["precision"]) == (batches, precisions)


def test_what_cannot_fit_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"mine\.yaml: what is left takes longer than --hours allows"):
        proposed(tmp_path, 1)
    assert not (tmp_path / "nights").exists()


def test_several_nodes_are_an_axis_and_in_the_job(tmp_path: Path) -> None:
    values, said = proposed(tmp_path, 600, nodes=6, grid={"precision": ["fp32"]})
    assert values["grid"]["nodes"] == [1, 2, 4, 6]
    assert values["base"]["parallelism"] == "ddp" and "ranks_per_node" not in values["base"]
    assert "a node has one rank" in said, "this machine has no device"
    assert "20 trials of 4 points" in said and "nodes 1, 2, 4, 6 were added as an axis" in said
    job = (tmp_path / "nights" / "scrontab").read_text()
    assert "#SCRON --nodes=6\n" in job and "#SCRON --time=11:07:00\n" in job


def test_a_sweep_that_says_its_ranks_keeps_them(tmp_path: Path) -> None:
    values, said = proposed(tmp_path, 600, nodes=4, grid={"world_size": [1, 2]}, base=BASE | {"parallelism": "ddp"})
    assert values["grid"] == {"world_size": [1, 2]}
    assert "world_size stay as they are: no axis of nodes was added" in said


def test_the_small_sweep_leaves_its_ranks_to_the_nodes(tmp_path: Path) -> None:
    init.make(tmp_path / "nights", None, init.Size(nodes=2))
    values = yaml.safe_load((tmp_path / "nights" / "sweeps" / "nightly.yaml").read_text())
    assert "world_size" not in values["grid"]
    values, _ = proposal._over_nodes(values, 2, this_machine())
    assert values["grid"]["nodes"] == [1, 2]


@pytest.mark.full  # makes its data; the parts are above
def test_the_small_sweep_is_spread_over_nodes(tmp_path: Path) -> None:
    init.make(tmp_path / "nights", None, init.Size(10.0, 2))
    values = yaml.safe_load((tmp_path / "nights" / "sweeps" / "nightly.yaml").read_text())
    assert values["grid"]["nodes"] == [1, 2] and "world_size" not in values["grid"]


def test_history_is_asked_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_cli: Callable[..., tuple[int, str, str]]
) -> None:
    store, file = tmp_path / "store", tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"base": {**BASE, "measure": {"steps": 2, "warmup_steps": 1, "repeats": 1}}}))
    code, _, err = run_cli("sweep", file, "--store", store)
    assert code == 0, err
    monkeypatch.setenv("BENCHSUITE_STORE", str(store))
    monkeypatch.setattr(proposal, "_tried_s", lambda _point: pytest.fail("nothing need be tried"))
    (head, *_) = init.make(tmp_path / "nights", file, init.Size(1.0))
    assert f"by what trials in {store} took" in head


@pytest.mark.parametrize("stop", [KeyboardInterrupt, Terminated])
def test_one_that_is_stopped_leaves_nothing_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: type[BaseException]
) -> None:
    def stopped(_point: Point) -> float:
        raise stop

    monkeypatch.setattr(proposal, "_tried_s", stopped)
    with pytest.raises(stop, match="nights was not finished and is removed again: the same command begins anew"):
        proposed(tmp_path, 33)
    assert not (tmp_path / "nights").exists()
