"""Trials under other engines: what their records say of servers, and what is said where one dies."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchsuite.results.store.store import ResultsStore
from benchsuite.workloads.engine import ENGINES
from benchsuite.workloads.engines.server import NOTES
from tests.helpers.below import below

Cli = Callable[..., tuple[int, str, str]]
BASE: dict[str, Any] = {
    "workload": "gpt_neox",
    "variant": "nano",
    "batch_size": 4,
    "device": "cpu",
    "world_size": 2,
    "threads_per_rank": 1,
    "data": {"source": "synthetic"},
    "measure": {"steps": 6, "warmup_steps": 1, "repeats": 1},
}
WEIGHTS_BYTES = 4 * 216_448


def sweep_file(folder: Path, engines: list[dict[str, Any]], **changes: Any) -> Path:
    path = folder / "sweep.yaml"
    sweep = {"name": "engines", "base": BASE | changes, "grid": {"parallelism": engines}}
    path.write_text(yaml.safe_dump(sweep))
    return path


def records_of(run_cli: Cli, folder: Path, engines: list[dict[str, Any]], **changes: Any) -> list[dict[str, Any]]:
    store = folder / "store"
    code, _, err = run_cli("sweep", sweep_file(folder, engines, **changes), "--store", store)
    assert code == 0, err
    frame = ResultsStore(store).frame(by="trial")
    return [dict(row) for _, row in frame.sort_values("order").iterrows()]


def test_records_say_what_servers_sent_and_how_stale_gradients_were(run_cli: Cli, tmp_path: Path) -> None:
    asked = [{"engine": "parameter_server"}, {"engine": "parameter_server", "num_servers": 2, "max_staleness": 3}]
    both, stale = records_of(run_cli, tmp_path, asked)
    assert both["server_bytes_per_step"] == 2 * (2 * WEIGHTS_BYTES + 8 * NOTES)
    assert both["wire_bytes_per_step"] == WEIGHTS_BYTES
    assert (both["staleness_mean"], both["staleness_max"]) == (0, 0)
    assert both["samples_per_s_per_process"] == pytest.approx(both["samples_per_s"] / 3)
    assert both["optimizer_bytes"] == 0 < both["gradients_bytes"]
    assert both["communication_s"] > 0
    assert stale["samples_per_s_per_process"] == pytest.approx(stale["samples_per_s"] / 4)
    assert 0 <= stale["staleness_mean"] <= stale["staleness_max"] <= 8
    assert [row["label"] for row in (both, stale)] == [
        "parameter_server",
        "parameter_server max_staleness 3 num_servers 2",
    ]


@pytest.mark.full
def test_a_server_that_is_killed_is_the_reason(tmp_path: Path) -> None:
    path = sweep_file(tmp_path, [{"engine": "parameter_server"}], measure=BASE["measure"] | {"steps": 100_000})
    words = [sys.executable, "-m", "benchsuite", "sweep", str(path), "--store", str(tmp_path / "store")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as sweep:
        killed = False
        deadline_s = time.monotonic() + 120
        while not killed and time.monotonic() < deadline_s:
            time.sleep(0.2)
            beating = [*(tmp_path / "store").rglob("*heartbeat*"), *(tmp_path / "store").rglob("progress*")]
            for process in below(sweep.pid, recursive=True):
                if "benchsuite.workloads.engines.server" in process.cmdline() and beating:
                    time.sleep(3)
                    os.kill(process.pid, signal.SIGKILL)
                    killed = True
        out, err = sweep.communicate(timeout=120)
    assert killed, err.decode()
    assert sweep.returncode == 3, (out, err)
    (record,) = (json.loads(line) for line in next((tmp_path / "store" / "segments").glob("*.jsonl")).open())
    assert record["status"] == "failed"
    assert "a parameter server of this rank has ended with exit code -9" in record["reason"]


@pytest.mark.engines
@pytest.mark.parametrize(
    ("asked", "technique"),
    [
        ({"engine": "horovod"}, {"fusion_threshold_mb": 1, "comm_hook": "fp16"}),
        ({"engine": "deepspeed", "zero": 2}, {"reduce_bucket_size": 100_000}),
    ],
    ids=["horovod", "deepspeed"],
)
def test_engines_of_other_packages_run_in_trials(
    run_cli: Cli, tmp_path: Path, asked: dict[str, Any], technique: dict[str, Any]
) -> None:
    engine = ENGINES[asked["engine"]]
    if find_spec(str(engine.package)) is None:
        pytest.skip(f"{engine.package} is not installed: {engine.install}")
    (row,) = records_of(run_cli, tmp_path, [asked], **technique)
    assert row["status"] == "ok", row["reason"]
    sent = {
        "horovod": WEIGHTS_BYTES / 2,
        "deepspeed": 1.5 * WEIGHTS_BYTES,
    }  # in halves; DeepSpeed all-reduces in stage 2
    assert row["wire_bytes_per_step"] == pytest.approx(sent[engine.name], rel=0.01)
    held = {"horovod": 8 / 4, "deepspeed": 12 / 4 / 2}  # AdamW's two states; DeepSpeed's masters too, over two ranks
    assert row["optimizer_bytes"] == pytest.approx(held[engine.name] * WEIGHTS_BYTES, rel=0.01)
    parts = [row[f"{part}_s"] for part in ("load", "h2d", "forward", "backward", "communication", "optimizer")]
    assert sum(parts) == pytest.approx(row["step_s_mean"], rel=0.02)


@pytest.mark.weekly
@pytest.mark.engines
def test_batch_norm_trains_in_deepspeeds_bf16(run_cli: Cli, tmp_path: Path) -> None:
    """Its statistics must have the type of its weights; the loss is about that of autocast."""
    if find_spec("deepspeed") is None:
        pytest.skip(f"deepspeed is not installed: {ENGINES['deepspeed'].install}")
    asked = [{"engine": "torch"}, *({"engine": "deepspeed", "zero": zero} for zero in (1, 2, 3))]
    first, *others = records_of(run_cli, tmp_path, asked, workload="resnet50", precision="bf16", optimizer="sgd")
    assert first["status"] == "ok" and first["final_loss"] > 0
    for row in others:
        assert row["final_loss"] == pytest.approx(first["final_loss"], rel=0.03), row["reason"]


def test_what_an_engine_lacks_is_said_before_it_runs(run_cli: Cli, tmp_path: Path) -> None:
    path = sweep_file(
        tmp_path,
        [{"engine": "broadcast", "zero": 2}, {"engine": "parameter_server", "tp": 2}, {"engine": "broadcast"}],
    )
    code, out, err = run_cli("sweep", path, "--dry-run", "--store", tmp_path / "store")
    assert code == 0, err
    assert "engine broadcast with zero 2: allowed: zero 0" in out
    assert "engine parameter_server with tp 2: only PyTorch's own modes (engine torch) split the model" in out
    path = sweep_file(tmp_path, [{"engine": "broadcast"}], overlap_comm=True)
    code, out, err = run_cli("sweep", path, "--dry-run", "--store", tmp_path / "store")
    assert "overlap_comm is an option of engine deepspeed, parallelism is dp 2 broadcast" in out + err
    path = sweep_file(tmp_path, [{"engine": "deepsped"}])
    code, out, err = run_cli("sweep", path, "--dry-run", "--store", tmp_path / "store")
    assert code == 2
    assert "parallelism.engine" in err and "nearest: deepspeed" in err
