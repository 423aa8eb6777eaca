"""One sweep over two nodes whose mounts of the store are late: both leave results, which the first reads."""

import shlex
import subprocess
from pathlib import Path

import pytest

from tests.faults.conftest import COMMAND, Bench
from tests.helpers.object_store import free_port
from tests.late.mounts import LateMounts

DEADLINE_S = 240


@pytest.mark.full
def test_ranks_on_two_late_nodes_make_one_record(mounts: LateMounts, bench: Bench) -> None:
    """Both nodes see the store by one name: each in a namespace of mounts of its own."""
    shared = bench.folder / "shared"
    shared.mkdir()
    base = {"workload": "resnet50", "variant": "nano", "device": "cpu", "batch_size": 2, "parallelism": "ddp"}
    base |= {"data": {"source": "synthetic"}, "measure": {"steps": 3, "warmup_steps": 1, "repeats": 1}}
    file = bench.write({"name": "nodes", "base": base | {"ranks_per_node": 1}, "grid": {"world_size": [1, 2]}})
    bench.store, port = shared / "store", free_port()
    nodes = [
        _node(bench, mount, shared, file, number, port) for number, mount in enumerate((mounts.first, mounts.second))
    ]
    said = [node.communicate(timeout=DEADLINE_S) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    bench.store = mounts.source / "store"
    found = {record["spec"]["world_size"]: record for record in bench.records()}
    assert {ranks: record["status"] for ranks, record in found.items()} == {1: "ok", 2: "ok"}, said
    assert [node["node"] for node in found[2]["env"]["nodes"]] == ["late-0", "late-1"]
    assert list(bench.store.glob("work/*/*")) == [] and mounts.hidden() == []


def _node(bench: Bench, mount: Path, shared: Path, file: Path, number: int, port: int) -> "subprocess.Popen[str]":
    """Start torchrun on a node, as its user would."""
    torchrun = [COMMAND[0], "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--no-python"]
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", bench.mark]
    sweep = shlex.join([*torchrun, *meeting, *COMMAND, "sweep", str(file), "--store", str(bench.store)])
    inside = f"mount --bind {shlex.quote(str(mount))} {shlex.quote(str(shared))} && exec {sweep}"
    return subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", inside],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**bench.env, "SLURMD_NODENAME": f"late-{number}"},
        cwd=bench.folder,
    )
