"""Where a session stands, asked on the node that planned it, on another, or without a file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchsuite.grid import expand
from benchsuite.host.machine import Machine
from benchsuite.results.store.store import ResultsStore
from benchsuite.runner import status
from tests.results.made import made_record

Run = Callable[..., tuple[int, str, str]]
SWEEP: dict[str, Any] = {
    "name": "mine",
    "base": {
        "workload": "resnet50",
        "variant": "tiny",
        "data": {"source": "synthetic"},
        "parallelism": "ddp",
        "batch_size": 4,
        "measure": {"repeats": 2},
    },
    "grid": {"world_size": [1, 2]},
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(SWEEP))
    return path


def half_done(file: Path, store: Path, machine: Machine) -> None:
    """The sweep planned on a machine, of whose four trials one is done and one has failed."""
    plan = expand.expand(expand.load_sweep(file, []), machine)
    status.keep_plan(store, "default", plan)
    first, second, *_ = status.labels(plan, "default")
    ResultsStore(store).append(made_record(1, trial_id=first, session="default", wall_s=30.0))
    failed = {"status": "failed", "reason": "rank 1: killed by SIGKILL", "label": "1 rank", "repeat": 1}
    ResultsStore(store).append(made_record(2, trial_id=second, session="default", wall_s=10.0, **failed))


def test_who_asks_for_an_empty_session_hears_which_there_are(run_cli: Run, tmp_path: Path) -> None:
    store = tmp_path / "store"
    for number, name in enumerate(["tuesday", "wednesday"]):
        ResultsStore(store).append(made_record(number, trial_id=f"a.{name}.0", session=name))
    code, out, err = run_cli("status", "--store", store)
    assert (code, out) == (0, "session default · 0 done · 0 failed · 0 running\n")
    assert err == f"note: {store} has nothing of session default; its sessions: tuesday, wednesday\n"
    assert run_cli("status", "--session", "tuesday", "--store", store)[2] == ""


@pytest.mark.parametrize("there", [Machine(2, 0), Machine(64, 4)], ids=["as-here", "another-kind"])
def test_a_login_node_knows_what_the_nodes_have_planned(
    run_cli: Run, file: Path, tmp_path: Path, there: Machine
) -> None:
    store = tmp_path / "store"
    half_done(file, store, there)
    for asked in ([file], []):
        code, out, err = run_cli("status", *asked, "--store", store)
        assert (code, err) == (0, "")
        assert out.splitlines()[0] == (
            "session default · 1 done · 1 failed · 0 running · 2 waiting · about 60 s left with 1 sweep"
        )
        assert out.splitlines()[1] == "failed   1 rank · repeat 2: rank 1: killed by SIGKILL"


def test_before_anything_was_planned(run_cli: Run, file: Path, tmp_path: Path) -> None:
    code, out, _ = run_cli("status", file, "--store", tmp_path / "none")
    assert (code, out) == (0, "session default · 0 done · 0 failed · 0 running · 4 waiting\n")


def test_a_plan_is_whole_or_not_there(file: Path, tmp_path: Path) -> None:
    plan = expand.expand(expand.load_sweep(file, []), Machine(2, 0))
    status.keep_plan(tmp_path, "s", plan)
    folder = tmp_path / "plans" / "s"
    (name,) = (path.name for path in folder.iterdir())
    assert name.startswith("mine.") and name.endswith(".json")
    (folder / "torn.0123.json").write_text('{"a": ')
    assert status.kept_plans(tmp_path, "s") == {"mine": status.labels(plan, "s")}
    assert status.kept_plans(tmp_path, "other") == {}


def test_every_failed_repeat_of_a_point_counts(run_cli: Run, tmp_path: Path) -> None:
    store = ResultsStore(tmp_path / "store")
    for repeat in range(3):
        failed = {"status": "failed", "reason": f"exit code {repeat}", "label": "2 ranks", "repeat": repeat}
        store.append(made_record(repeat, trial_id=f"p.default.{repeat}", session="default", **failed))
    _, out, _ = run_cli("status", "--store", store.path)
    assert out.splitlines() == [
        "session default · 0 done · 3 failed · 0 running",
        *(f"failed   2 ranks · repeat {repeat + 1}: exit code {repeat}" for repeat in range(3)),
    ]
    _, out, _ = run_cli("status", "--store", store.path, "--format", "json")
    failed = json.loads(out)["failed"]
    assert failed["p.default.1"] == {"label": "2 ranks · repeat 2", "reason": "exit code 1"} and len(failed) == 3


def test_plans_of_the_same_sweep_add_up(run_cli: Run, file: Path, tmp_path: Path) -> None:
    """As jobs for one world size each leave them, at any time and again after they were started anew."""
    for ranks in (1, 2, 1):
        plan = expand.expand(expand.load_sweep(file, [f"world_size={ranks}"]), Machine(64, 4))
        status.keep_plan(tmp_path, "default", plan)
    assert len(list((tmp_path / "plans" / "default").iterdir())) == 2
    assert [len(plan) for plan in status.kept_plans(tmp_path, "default").values()] == [4]
    ResultsStore(tmp_path).append(made_record(1, session="default"))
    _, out, _ = run_cli("status", "--store", tmp_path)
    assert "· 4 waiting" in out


def test_sweeps_with_like_names_are_kept_apart(file: Path, tmp_path: Path) -> None:
    for name in ("mine", "mine.v2"):
        plan = expand.expand(expand.load_sweep(file, []).model_copy(update={"name": name}), Machine(2, 0))
        status.keep_plan(tmp_path, "s", plan)
    assert sorted(status.kept_plans(tmp_path, "s")) == ["mine", "mine.v2"]
