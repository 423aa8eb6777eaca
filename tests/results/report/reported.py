"""A store with something for every section of the HTML report, and one of many trials."""

import itertools
from pathlib import Path
from typing import Any

from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore
from tests.results.made import made_record
from tests.results.report.test_trace import made_samples

NASTY = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
ENV = {
    "host": "node-1",
    "cpu": "a cpu",
    "cores": 8,
    "memory_bytes": 64_000_000_000,
    "devices": [{"name": "H100", "memory_bytes": 80_000_000_000, "driver": "570.1"}] * 2,
    "os": "Linux",
    "python": "3.11.7",
    "benchsuite": "0.1.0",
    "commit": "abc123",
    "libraries": {"torch": "2.13.0", "numpy": "2.4.6"},
    "scheduler": {},
    "data": {"file_system": "lustre", "server_cache": "unknown", "mount": "/scratch", "free_bytes": 1},
}
STEP = {"load": 0.010, "h2d": 0.001, "forward": 0.020, "backward": 0.040, "communication": 0.005, "optimizer": 0.004}
GB = 1_000_000_000
PROFILE = {
    "by": "wrappers",
    "ranks": 1,
    "workers": 2,
    "threads": 0,
    "seconds": 2.0,
    "cost_s_per_call": None,
    "observed_fraction": 1.0,
    "operations": {
        "read": {
            "count": 30,
            "errors": 0,
            "bytes": 3_000_000,
            "seconds": 0.3,
            "p50_s": 0.01,
            "p95_s": 0.02,
            "p99_s": 0.02,
            "max_s": 0.02,
            "latencies": {},
        }
    },
    "io_s": 0.3,
    "metadata_fraction": 0.0,
    "read_sizes": {"65536": 10, "131072": 20},
    "order": {"first": 10, "onward": 15, "elsewhere": 5},
    "sequential_fraction": 0.75,
    "files": {
        "distinct": 10,
        "listed": 10,
        "followed": 10,
        "opens_per_file": 1.0,
        "most_opens": 1,
        "reads_per_file": 3.0,
        "bytes_per_size": 1.0,
    },
    "bytes": {"seen": 3_000_000, "only_counted": 0, "mapped": 0, "delivered": 3_000_000},
    "counters": None,
    "counters_of": None,
}


def made_spec(**changes: Any) -> dict[str, Any]:
    """A trial of ResNet-50 that reads; `data` changes single values."""
    data = {"source": "storage", "format": "files", "loader": "torch", "cache": "cold", "staging": "none", "root": "/d"}
    base = {"workload": "resnet50", "variant": "tiny", "precision": "fp32", "parallelism": "ddp", "world_size": 1}
    base |= {"batch_size": 8, "global_batch_size": None, "bucket_cap_mb": None, "measure": {"steps": 20, "repeats": 3}}
    return {**base, **changes, "data": {**data, **changes.get("data", {})}}


def made_figures(rate: float, au: float = 0.5, **changes: Any) -> dict[str, Any]:
    """A trial's figures, its step of 80 ms in parts."""
    parts = {f"{name}_s": seconds for name, seconds in STEP.items()}
    held = {"weights_bytes": GB, "gradients_bytes": GB, "optimizer_bytes": 2 * GB, "peak_memory_bytes": 6 * GB}
    words = {"bottleneck": "storage", "bottleneck_evidence": "reading is slow"}
    return {"samples_per_s": rate, "au": au, "step_s_mean": sum(STEP.values()), **parts, **held, **words, **changes}


def trial(number: int, point: str, spec: dict[str, Any], figures: dict[str, Any] | None, **changes: Any) -> TrialRecord:
    """One repeat of a point; without figures a failed one."""
    fields = {"record_id": f"r{number}", "trial_id": f"{point}.{number}", "point_id": point, "label": point, "env": ENV}
    lost = {"status": "failed", "reason": "EIO on part-7"} if figures is None else {"figures": figures}
    dataset = {"dataset_id": "d", "num_samples": 1000}
    changes = {"dataset": dataset, "sweep": "all", "question": "What is slow?", **lost, **changes}
    return made_record(number, spec=spec, order=number, **{**fields, **changes})


OPERATORS = {
    "operator_flops_per_step": 2_000_000_000,
    "operator_bytes_per_step": 100_000_000,
    "arithmetic_intensity": 20.0,
    "attained_flops_per_s": 2e12,
    "ridge_intensity": 100.0,
    "roof_flops_per_s": 8e12,
    "roof_fraction": 0.25,
    "roof_source": "published: X1",
    "contraction_flops_fraction": 0.998,
    "normalisation_flops_fraction": 0.0017,
    "element_wise_flops_fraction": 0.0003,
    "contraction_time_fraction": 0.61,
    "normalisation_time_fraction": 0.255,
    "element_wise_time_fraction": 0.1,
    "other_time_fraction": 0.035,
}
"""Of a trial with PyTorch's profile; bandwidth 8e12 / 20 = 0.4 TB/s, so a peak of 40 TFLOP/s."""


def full_store(path: Path, nasty: str = "") -> ResultsStore:
    """Weak scaling of two formats with a failure, buckets, staging, a profile, raw samples; names end in `nasty`."""
    store, count = ResultsStore(path), itertools.count()
    for format, ranks, repeat in itertools.product(("files", "lmdb"), (1, 2, 4), range(2)):
        spec = made_spec(world_size=ranks, data={"format": format, "loader": f"torch{nasty}"})
        rate = 100.0 * ranks * (0.9 if ranks > 1 else 1.0) + repeat
        figures = None if (format, ranks) == ("lmdb", 4) else made_figures(rate, 0.9 if format == "lmdb" else 0.4)
        more = {"io_profile": PROFILE} if (format, ranks, repeat) == ("files", 1, 1) else {}
        label = f"{format} {ranks} ranks{nasty}"
        number = next(count)
        store.append(
            trial(number, f"{format}-{ranks}", spec, figures, label=label, repeat=repeat, **more),
            {**made_samples(ranks), "record_id": f"r{number}"} if figures else None,
        )
    for size in (1, 25, 100):
        spec = made_spec(world_size=2, workload=f"bert{nasty}", bucket_cap_mb=size)
        figures = made_figures(50.0, 0.8, communication_s=0.1 / size, bottleneck="communication")
        store.append(trial(next(count), f"bucket-{size}", spec, figures, sweep=f"buckets{nasty}", session=f"n{nasty}"))
    staged = made_spec(world_size=4, data={"loader": f"torch{nasty}", "staging": "copy", "staging_dir": "/nvme"})
    figures = made_figures(720.0, 0.95, stage_s=30.0, stage_bytes_per_s=2e9, **OPERATORS)
    store.append(trial(next(count), "staged", staged, figures, label=f"staged{nasty}"))
    lost = {"status": "oom", "reason": f"CUDA out of memory{nasty}", "phase": "warm-up"}
    store.append(trial(next(count), "oom", made_spec(batch_size=999), None, **lost))
    return store


def many(path: Path, trials: int = 2000, points: int = 1000) -> ResultsStore:
    """A store of many trials: workloads, formats, loaders and ranks, each point with its repeats."""
    store = ResultsStore(path)
    formats, loaders = ("files", "webdataset", "hdf5", "lmdb", "tfrecord"), ("torch", "threads", "dali")
    workloads, ranks = ("resnet50", "unet3d", "bert", "gpt_neox"), (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    grid = itertools.cycle(itertools.product(workloads, formats, loaders, ranks, ("a", "b")))
    for number, (workload, format, loader, size, session) in zip(range(points), grid, strict=False):
        spec = made_spec(workload=workload, world_size=size, data={"format": format, "loader": loader})
        point, label = f"{workload}-{format}-{loader}-{size}", f"{workload} {format} {loader} {size} ranks"
        for repeat in range(trials // points):
            rate = 10.0 * size * (1 + number % 7) / (1 + 0.01 * size) + repeat
            at = number * (trials // points) + repeat
            figures = made_figures(rate, 0.3 + (number % 61) / 100, load_s=0.001 * (1 + number % 50))
            more = {"session": session, "label": label, "sweep": workload, "trial_id": f"{point}.{session}.{repeat}"}
            moment = f"2026-01-01T{at // 3600:02d}:{at // 60 % 60:02d}:{at % 60:02d}.000000+00:00"
            more |= {"started_at": moment, "finished_at": moment}
            store.append(trial(at % 3600, point, spec, figures, repeat=repeat, record_id=f"r{at}", **more))
    return store
