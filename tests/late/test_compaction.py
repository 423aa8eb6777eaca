"""A store that one node compacts while another writes, on a network file system that shows its files late."""

from collections.abc import Callable

from benchsuite.results.store.store import ResultsStore
from tests.faults.conftest import Bench
from tests.late.mounts import LateMounts
from tests.late.sweeps import ended, on, records, rehearsed, start

Wait = Callable[..., None]


def test_a_store_is_compacted_while_another_node_writes(mounts: LateMounts, bench: Bench, wait_until: Wait) -> None:
    file = bench.write(rehearsed(points=30))
    bench.env["REHEARSED_S"] = "0.5"
    writing = start(bench, mounts.first, file, "--launcher", "rehearsed")
    wait_until(lambda: len(records(mounts, bench)) > 3)
    while writing.poll() is None:
        code, _, err = bench.run("results", "compact", "--store", on(mounts.second))
        assert code == 0 and "Traceback" not in err, err
    ended(writing)
    mounts.settle()
    for mount in (mounts.second, mounts.first):
        code, out, err = bench.run("results", "compact", "--store", on(mount))
        assert code == 0, err
        assert len(ResultsStore(on(mount)).frame()) == 30, out
    assert mounts.hidden() == []
