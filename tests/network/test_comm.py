"""`probe comm` over nodes with networks of their own: its messages go over the links, and no faster than these."""

from collections.abc import Callable

from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore
from tests.faults.conftest import COMMAND, Bench
from tests.network.conftest import RATE, Network
from tests.network.test_torchrun import said

LINK_BYTES_PER_S = int(RATE.removesuffix("mbit")) * 1e6 / 8
BURST = 1.15
"""A token bucket lets a little through at once."""


def probed(network: Network, bench: Bench, *options: str) -> list[TrialRecord]:
    """What `torchrun benchsuite probe comm` on every node found."""
    asked = ["--world-size", str(len(network.nodes)), "--backend", "gloo", "--ranks-per-node", "1"]
    command = [*COMMAND, "probe", "comm", *asked, "--store", str(bench.store), *options]
    for process in network.torchrun("comm", command, bench.folder, bench.env):
        assert process.wait(240) == 0, said(bench)
    return ResultsStore(bench.store).records()


def test_collectives_over_shaped_links(network: Callable[[int], Network], bench: Bench) -> None:
    net = network(2)
    size, iterations = 1 << 20, 5
    asked = ("--sizes", "1MiB", "--algorithm", "backend,ring,tree", "--seconds", "0", "--iterations", str(iterations))
    found = {record.spec["algorithm"]: record for record in probed(net, bench, *asked)}
    assert {name: record.status for name, record in found.items()} == dict.fromkeys(("backend", "ring", "tree"), "ok")
    for record in found.values():
        assert record.spec["nodes"] == 2 and record.env["launcher"] == "torchrun"
        assert [node["node"] for node in record.env["nodes"]] == ["node-1", "node-2"]
        assert 0 < (record.figures.busbw_bytes_per_s or 0) < BURST * LINK_BYTES_PER_S
    assert (found["ring"].figures.comm_sent_bytes, found["tree"].figures.comm_sent_bytes) == (2 * size, 2 * size)
    for node in net.nodes:
        assert net.sent_bytes(node) > 3 * iterations * size, "each rank sends the array once in every call"
    assert bench.wait_gone() == [] and not list(bench.store.glob("work/*/*"))
