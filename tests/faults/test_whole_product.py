"""The product as its user meets it: the demo, every axis in one sweep, a launcher of someone else's."""

import json
import signal
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import psutil
import pytest

import benchsuite
from benchsuite.cli import sweep
from benchsuite.results.render.caveats import CAVEATS
from benchsuite.results.store.store import ResultsStore
from tests.faults.conftest import Bench, Here
from tests.helpers.below import below

PARTS = ("load_s", "h2d_s", "forward_s", "backward_s", "communication_s", "optimizer_s")


def check_figures(record: dict[str, Any]) -> None:
    """What holds for every ok record, whatever was asked."""
    figures, spec = record["figures"], record["spec"]
    parts = [figures[name] for name in PARTS if figures[name] is not None]
    assert sum(parts) == pytest.approx(figures["step_s_mean"], rel=1e-9)
    assert (figures["communication_s"] is None) == (spec["parallelism"] == "none")
    assert figures["step_s_p50"] <= figures["step_s_p95"] <= figures["step_s_p99"]
    assert figures["final_loss"] >= 0 and figures["peak_memory_bytes"] > 1e7 and figures["host_memory_bytes"] > 1e7
    assert figures["startup_s"] > 0
    assert {*record["caveats"]} <= CAVEATS.keys(), "each is documented"
    if spec["data"]["source"] != "storage":
        assert figures["au"] is None and figures["io_bytes_per_s"] is None and figures["storage_bytes_per_s"] is None
        return
    assert figures["au"] > 0 and figures["first_batch_s"] > 0
    mean_sample = figures["io_bytes_per_s"] / figures["samples_per_s"]
    assert mean_sample == pytest.approx(record["dataset"]["stored_bytes"] / record["dataset"]["num_samples"], rel=0.5)
    if record["env"]["data"]["file_system"] == "ext4" and spec["data"]["cache"] == "cold":
        # A library that reads a shard has the kernel read ahead: a small one before its steps are counted.
        ahead = spec["data"]["format"] != "files" and spec["data"]["reader"] == "stock"
        assert figures["cache_hit_fraction"] < (1 if ahead else 0.5)


def test_every_axis(bench: Bench, here: Here, dataset_root: Path) -> None:
    base = {
        "workload": "resnet50",
        "variant": "nano",
        "data": {"root": str(dataset_root), "cache": "warm", "num_workers": 0, "shuffle_buffer": 4},
        "batch_size": 1,
        "device": "cpu",
        "parallelism": "ddp",
        "measure": {"steps": 4, "warmup_steps": 1, "repeats": 1, "ceilings": False},
    }
    include = [
        {"parallelism": "none", "precision": "bf16", "data.format": "webdataset", "data.cache": "cold"},
        {"world_size": 1, "data.num_workers": 2, "data.cache": "cold"},
        {"world_size": 2, "precision": "bf16", "data.cache": "cold", "data.num_workers": 1},
        {"world_size": 4, "data.format": "webdataset"},
        {"world_size": 2, "data.source": "memory", "precision": "bf16"},
        {"world_size": 2, "data.source": "synthetic"},
    ]
    axes = {"name": "axes", "base": base, "grid": {"variant": ["nano"], "world_size": [1]}, "include": include}
    code, _, err = here("sweep", bench.write(axes), "--store", bench.store)
    assert code == 0, err
    records = bench.records()
    assert len(records) == 1 + len(include), "nothing was skipped"
    for record in records:
        assert record["status"] == "ok", record["reason"]
        check_figures(record)
        ranks = record["spec"]["world_size"]
        assert ("oversubscribed" in record["caveats"]) == (ranks > record["env"]["cores"])
    store = ResultsStore(bench.store)
    samples = store.samples(next(r for r in store.records() if r.spec["world_size"] == 4))
    assert samples is not None and [rank["rank"] for rank in samples["ranks"]] == [0, 1, 2, 3]


def test_every_format_with_both_readers(bench: Bench, here: Here, dataset_root: Path) -> None:
    """The example sweep, made small."""
    small = ["variant=nano", "batch_size=2", "precision=fp32", "data.num_workers=1", "data.cache=warm"]
    steps = [*(f"measure.{text}" for text in ("steps=8", "warmup_steps=1", "repeats=1", "ceilings=false"))]
    steps.append("threads_per_rank=1")
    overrides = [word for text in [f"data.root={dataset_root}", *small, *steps] for word in ("-o", text)]
    shipped = Path(benchsuite.__file__).parent / "sweeps" / "formats.yaml"
    code, _, err = here("sweep", shipped, "--store", bench.store, *overrides)
    assert code == 0, err
    records = bench.records()
    done = {tuple(record["spec"]["data"][name] for name in ("format", "loader", "reader")) for record in records}
    formats, readers = (
        ["files", "webdataset", "hdf5", "lmdb", "parquet", "tfrecord"],
        {"torch": "stock", "threads": "tuned"},
    )
    assert done == {(name, *pair) for name, pair in product(formats, readers.items())}
    for record in records:
        assert record["status"] == "ok", record["reason"]
        check_figures(record)
    assert len({record["dataset"]["dataset_id"] for record in records}) == 1


@pytest.mark.full
def test_every_mode_of_the_example_sweep(bench: Bench, here: Here) -> None:
    """Ten ways to spread one model: equal losses, the parts of a step, memory and messages of each."""
    steps = ["threads_per_rank=1", "measure.steps=4", "measure.warmup_steps=1", "measure.repeats=1"]
    overrides = [word for text in ["variant=nano", *steps] for word in ("-o", text)]
    shipped = Path(benchsuite.__file__).parent / "sweeps" / "parallelism.yaml"
    code, _, err = here("sweep", shipped, "--store", bench.store, *overrides)
    assert code == 0, err
    records = {record["label"]: record for record in bench.records()}
    assert len(records) == 10 and "pp 2 schedule zero_bubble microbatches 4" in records
    for replicas in (True, False):  # two ranks with samples of their own, or two that share theirs
        losses = [
            record["figures"]["final_loss"]
            for label, record in records.items()
            if (label in ("ddp", "zero1", "zero2", "fsdp")) == replicas
        ]
        assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-3)
    for label, record in records.items():
        figures = record["figures"]
        assert record["status"] == "ok", record["reason"]
        assert (figures["bubble_s"] is not None) == label.startswith("pp"), label
        assert (figures["communication_s"] is not None) != label.startswith("pp"), label
        assert figures["wire_bytes_per_step"] > 0 and figures["tokens_per_s"] > 0
        assert figures["mfu"] is None, "no peak of this device is known"
        assert figures["tflops_per_device"] > 0
    sharded, whole = records["fsdp"]["figures"], records["ddp"]["figures"]
    assert sharded["weights_bytes"] == pytest.approx(whole["weights_bytes"] / 2, rel=0.01)


MODELS = {"unet3d": ("nano", "hdf5"), "bert": ("tiny", "lmdb"), "gpt_neox": ("tiny", "tokens")}
"""The smallest variants whose words can be generated, and a format of each."""


@pytest.mark.weekly
def test_every_model_trains_from_its_data(bench: Bench, here: Here, tmp_path: Path) -> None:
    for workload, (variant, form) in MODELS.items():
        making = ["--workload", workload, "--variant", variant, "--format", form, "--samples", "128"]
        code, _, err = here("data", "generate", tmp_path / workload / form, *making)
        assert code == 0, err
    base = {
        "workload": "bert",
        "variant": "nano",
        "data": {"root": str(tmp_path), "num_workers": 1, "cache": "warm"},
        "parallelism": "ddp",
        "world_size": 2,
        "batch_size": 2,
        "measure": {"steps": 8, "warmup_steps": 1, "repeats": 1, "ceilings": False},
    }
    roots = [str(tmp_path / workload) for workload in MODELS]
    variants, forms = zip(*MODELS.values(), strict=True)
    together = {"workload": [*MODELS], "variant": [*variants], "data.format": [*forms], "data.root": roots}
    file = bench.write({"name": "models", "base": base, "zip": together})
    code, _, err = here("sweep", file, "--store", bench.store)
    assert code == 0, err
    records = bench.records()
    assert sorted(record["spec"]["workload"] for record in records) == sorted(MODELS)
    for record in records:
        assert record["status"] == "ok", record["reason"]
        check_figures(record)
        assert record["figures"]["io_bytes_per_s"] > 0 and record["figures"]["final_loss"] > 0


def test_what_cannot_be_read_is_skipped_with_its_reason(bench: Bench, here: Here, dataset_root: Path) -> None:
    base = {
        "workload": "resnet50",
        "variant": "nano",
        "data": {"root": str(dataset_root)},
        "batch_size": 2,
        "measure": {"steps": 4, "warmup_steps": 1, "repeats": 1, "ceilings": False},
    }
    file = bench.write({"name": "x", "base": base, "grid": {"data.format": ["tokens"]}})
    code, out, err = here("sweep", file, "--store", bench.store)
    assert code == 4, err
    assert "format tokens stores tokens samples, resnet50 takes image" in out + err


SHORTER = {"variant": "nano", "measure": {"steps": 8, "warmup_steps": 2, "repeats": 1}}


@pytest.mark.parametrize("repeats", [1, pytest.param(3, marks=pytest.mark.full)])
def test_the_demo(bench: Bench, here: Here, monkeypatch: pytest.MonkeyPatch, repeats: int) -> None:
    """Every point once, of a smaller model in fewer steps; in the full matrix as it is shipped."""
    if repeats == 1:
        as_shipped = sweep.parse_yaml

        def shorter(*given: Any) -> dict[str, Any]:
            value: dict[str, Any] = as_shipped(*given)
            return value | {"base": value["base"] | SHORTER}

        monkeypatch.setattr(sweep, "parse_yaml", shorter)
    code, out, err = here("demo", "--store", bench.store, "--samples", 1024)
    assert code == 0, err
    assert "Traceback" not in out + err
    records = bench.records()
    total = 6 * repeats
    assert len(records) == total and {record["status"] for record in records} == {"ok"}
    for record in records:
        check_figures(record)
    assert len({record["dataset"]["dataset_id"] for record in records}) == 1
    assert "What holds a small ResNet-50 back" in out and "AU" in out and str(bench.store) in out
    assert "ETA" in err and f"[{total}/{total}]" in err
    again, out, err = here("demo", "--store", bench.store)
    assert again == 0 and "nothing left to do" in err and "What holds a small ResNet-50 back" in out
    code, out, _ = here("report", "--store", bench.store, "--format", "json")
    assert code == 0 and len(json.loads(out)) == total
    shipped = Path(benchsuite.__file__).parent / "sweeps" / "demo.yaml"
    root = f"data.root={bench.folder / 'benchsuite-demo'}"
    code, out, err = here("sweep", shipped, "--store", bench.store, "-o", root, "--dry-run")
    assert code == 0 and "18 trials" in out + err, out + err


SYNTHETIC = {
    "workload": "faulty",
    "variant": "sound",
    "data": {"source": "synthetic"},
    "batch_size": 2,
    "device": "cpu",
    "measure": {"steps": 4, "warmup_steps": 1, "repeats": 1, "ceilings": False},
}


def test_a_launcher_of_someone_else(bench: Bench, here: Here) -> None:
    file = bench.write({"name": "other", "base": SYNTHETIC})
    code, _, err = here("sweep", file, "--store", bench.store, "--launcher", "noting")
    assert code == 0, err
    assert (bench.folder / "launched.txt").read_text() == "sound\n"


def test_a_scheduler_that_signals_every_process(bench: Bench, wait_until: Callable[[Callable[[], bool]], None]) -> None:
    """Slurm and PBS send SIGTERM to all processes of a step: the trial in flight is no failure."""
    measure = {"steps": 100_000, "warmup_steps": 1, "repeats": 1}
    process = bench.start(
        "sweep", bench.write({"name": "all", "base": SYNTHETIC | {"measure": measure}}), "--store", bench.store
    )
    wait_until(lambda: any((bench.store / "work").glob("*/*/progress-0")))
    for each in (*below(process.pid), psutil.Process(process.pid)):
        each.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75, err
    assert [record["status"] for record in bench.records()] == ["interrupted"]
    assert bench.wait_gone() == []
