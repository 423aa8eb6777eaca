"""Sweeps whose readers fill their copies together: several ranks, several workers each, all forked from one process.

They are cold: of 96 samples no reader has enough for a pair of blocks more, so all train for as many steps.
"""

from pathlib import Path

from tests.faults.conftest import Bench, Here

BASE = {
    "workload": "resnet50",
    "variant": "nano",
    "device": "cpu",
    "parallelism": "ddp",
    "world_size": 2,
    "batch_size": 2,
    "threads_per_rank": 1,
    "data": {"num_workers": 2, "prefetch_factor": 1, "shuffle_buffer": 8, "cache": "cold"},
    "measure": {"steps": 3, "warmup_steps": 1, "repeats": 1, "ceilings": False},
}


def test_two_ranks_of_two_workers_train_on_the_sources_bytes(bench: Bench, here: Here, dataset_root: Path) -> None:
    """The epoch's 96 samples are brought by four workers; the loss is that of reading the source."""
    data = BASE["data"] | {"root": str(dataset_root)}
    grid = {"data.format": ["files", "webdataset"], "data.staging": ["none", "lazy"]}
    file = bench.write({"name": "lazy", "base": BASE | {"data": data}, "grid": grid})
    code, out, err = here("sweep", file, "--store", bench.store)
    assert code == 0, out + err
    losses: dict[str, set[float]] = {}
    for record in bench.records():
        assert record["status"] == "ok", record["reason"]
        losses.setdefault(record["spec"]["data"]["format"], set()).add(record["figures"]["final_loss"])
    assert len(bench.records()) == 4
    assert {form: len(found) for form, found in losses.items()} == {"files": 1, "webdataset": 1}
    assert bench.leftovers() == []
