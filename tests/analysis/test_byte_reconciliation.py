"""Bytes of processes against bytes of the mount: figures, and disagreement that is said."""

from dataclasses import replace

import pytest

from benchsuite.analysis.byte_reconciliation import counter_caveats, mount_caveats, reads_figures
from benchsuite.inside.samples import RankSamples, Reads
from tests.helpers.made import made_result, made_spec

MB = 1_000_000


def ranks(*storage: int | None, mount: int | None, from_storage: bool = True) -> list[RankSamples]:
    """Ranks whose processes were fetched so much, of which the first watches the mount."""
    found = []
    for rank, fetched in enumerate(storage):
        watched = ("diskstats vda", mount, from_storage) if rank == 0 and mount is not None else (None, None, None)
        found.append(replace(made_result(rank), reads=Reads(100 * MB, fetched, 200 * MB, *watched)))
    return found


@pytest.mark.parametrize(
    ("storage", "mount"), [((100 * MB, 100 * MB), 205 * MB), ((100 * MB,), 104 * MB), ((0,), 3 * MB), ((3 * MB,), 0)]
)
def test_within_five_percent_or_noise_they_agree(storage: tuple[int, ...], mount: int) -> None:
    assert mount_caveats(ranks(*storage, mount=mount), True) == []


def test_a_foreign_reader_is_named_with_both_sides() -> None:
    [(name, why)] = mount_caveats(ranks(100 * MB, 100 * MB, mount=300 * MB), True)
    assert name == "counters_disagree"
    assert why == "diskstats vda read 300.0 MB, ranks and workers 200.0 MB: others read beside this trial"


def test_processes_that_count_more_than_the_device_gave() -> None:
    [(_, why)] = mount_caveats(ranks(100 * MB, mount=50 * MB), True)
    assert why.endswith("the processes' counters hold more than was read")


@pytest.mark.parametrize(
    ("storage", "mount", "from_storage", "counted"),
    [
        ((100 * MB, None), 300 * MB, True, True),  # one rank's counters are hidden
        ((100 * MB,), None, True, True),  # no counter of the mount
        ((0,), 300 * MB, True, False),  # the file system tells processes nothing
    ],
)
def test_what_cannot_be_compared_is_not(
    storage: tuple[int | None, ...], mount: int | None, from_storage: bool, counted: bool
) -> None:
    assert mount_caveats(ranks(*storage, mount=mount, from_storage=from_storage), counted) == []


@pytest.mark.parametrize(
    ("mount", "said"),
    [
        (208 * MB, None),
        (300 * MB, "llite scratch was asked for 300.0 MB, ranks and workers 200.0 MB: others read beside this trial"),
        (100 * MB, None),  # the other half was asked of another mount
    ],
)
def test_lustre_counts_what_it_is_asked_for(mount: int, said: str | None) -> None:
    """Two ranks ask for 100 MB each; how much of it was fetched for them, Lustre does not tell processes."""
    found = ranks(0, 0, mount=mount, from_storage=False)
    reads = replace(found[0].reads, mount_source="llite scratch") if found[0].reads else None
    told = mount_caveats([replace(found[0], reads=reads), found[1]], reads_counted=False)
    assert [why for _, why in told] == ([said] if said else [])
    hidden = [replace(result, reads=Reads(None, None, 200 * MB, "llite scratch", mount, False)) for result in found]
    assert mount_caveats(hidden, reads_counted=False) == []


def test_the_mount_stands_in_where_processes_are_told_nothing() -> None:
    found = reads_figures(ranks(0, mount=150 * MB), reads_counted=False)
    assert found["cache_hit_fraction"] == pytest.approx(0.25)
    delivered_per_s = 2 * 16_000 / (2 * 4 * 0.08)
    assert found["storage_bytes_per_s"] == pytest.approx(0.75 * delivered_per_s)
    assert (found["mount_read_bytes"], found["delivered_bytes"]) == (150 * MB, 200 * MB)
    assert found["mount_counter"] == "diskstats vda"


@pytest.mark.parametrize(
    ("from_storage", "hit", "amplification"),
    [(200 * MB, 0.0, None), (50 * MB, 0.75, None), (0, 1.0, None), (300 * MB, 0.0, 1.5)],
)
def test_what_came_from_storage_of_what_readers_delivered(
    from_storage: int, hit: float, amplification: float | None
) -> None:
    found = reads_figures(ranks(from_storage, mount=None), reads_counted=True)
    assert found["storage_bytes_per_s"] == pytest.approx(from_storage / (200 * MB) * 2 * 16_000 / (2 * 4 * 0.08))
    assert (found["cache_hit_fraction"], found["read_amplification"]) == (hit, amplification)


def test_shares_are_null_where_one_rank_cannot_tell() -> None:
    found = reads_figures(ranks(30 * MB, None, mount=71 * MB), reads_counted=True)
    assert not {"storage_bytes_per_s", "cache_hit_fraction", "read_amplification"} & found.keys()


def test_totals_are_of_all_ranks_and_null_where_one_is_unknown() -> None:
    found = reads_figures(ranks(30 * MB, 40 * MB, mount=71 * MB), reads_counted=True)
    assert (found["process_storage_bytes"], found["read_call_bytes"]) == (70 * MB, 200 * MB)
    assert reads_figures(ranks(30 * MB, None, mount=71 * MB), reads_counted=True)["process_storage_bytes"] is None


def test_without_a_pipeline_there_is_nothing_to_reconcile() -> None:
    assert reads_figures([made_result(0)], True) == {}


def told(cache: str = "cold", ahead_kb: int | None = None, **changes: float | str | None) -> list[str]:
    """What the counters of a trial say that delivered 200 MB in samples of 1 kB, asked for 200 MB and hit nothing."""
    loading = {
        name: changes.pop(name) for name in ("format", "loader", "reader", "shuffle_buffer", "root") if name in changes
    }
    values = {
        "delivered_bytes": 200 * MB,
        "read_call_bytes": 201 * MB,
        "cache_hit_fraction": 0.0,
        "cache_resident_before": 0.0,
        "io_bytes_per_s": 1e6,
        "samples_per_s": 1e3,
    }
    spec = made_spec(data={"cache": cache, "format": "files", **loading})
    found = counter_caveats(spec, values | changes, ahead_kb)
    assert {name for name, _ in found} <= {"counters_disagree"}
    return [why for _, why in found]


def test_counters_that_agree_say_nothing():
    assert told() == told("direct") == []
    assert told("direct", cache_hit_fraction=0.07, cache_resident_before=None) == []
    assert told("warm", cache_hit_fraction=1.0, cache_resident_before=1.0) == []


@pytest.mark.parametrize("resident", [0.0, None])
def test_direct_reads_that_came_from_memory_are_told(resident: float | None):
    assert told("direct", cache_hit_fraction=0.97, cache_resident_before=resident) == [
        "direct reads asked for, yet of 200.0 MB that readers delivered 3% came from storage by the counters"
    ]


def test_cold_reads_that_came_from_memory_are_told_where_residency_says_cold():
    [why] = told(cache_hit_fraction=0.5)
    assert why.startswith("cold by residency, yet of 200.0 MB") and "50% came from storage" in why
    assert "ahead" not in why
    assert told(cache_hit_fraction=0.5, cache_resident_before=None) == []


def test_what_the_kernel_can_have_read_ahead_is_said() -> None:
    """Of 200 MB half were in memory: one reader with 128 MiB of read-ahead can have them, one with 64 MiB cannot."""
    (ahead,) = told(ahead_kb=128 * 1024, cache_hit_fraction=0.5)
    assert ahead.endswith("more steps on a larger dataset tell") and "the kernel reads 128 MiB ahead a reader" in ahead
    (less,) = told(ahead_kb=64 * 1024, cache_hit_fraction=0.5)
    assert less.endswith("came from storage by the counters")


def test_more_delivered_than_was_asked_for_is_told():
    """Allowed are 5 %, 4 MiB and a sample under way: 14.2 MB."""
    assert told(read_call_bytes=186 * MB) == []
    assert told(read_call_bytes=185 * MB) == [
        "readers delivered 200.0 MB, of which their read calls asked for 185.0 MB"
    ]
    assert len(told(read_call_bytes=0, format="webdataset")) == 1
    assert len(told("direct", read_call_bytes=0, cache_hit_fraction=1.0)) == 2


def test_what_a_bucket_is_asked_for_ahead_need_not_be_in_the_window():
    """Three groups of objects, of 1 MiB together, may have come before; blocks of an object that is read in order."""
    assert told(read_call_bytes=182.7 * MB) != []
    assert told(read_call_bytes=182.7 * MB, root="s3://bucket/photos") == []
    assert told(read_call_bytes=182.6 * MB, root="s3://bucket/photos") != []
    stream = {"format": "webdataset", "shuffle_buffer": 1, "root": "s3://bucket/photos"}
    assert told(read_call_bytes=161 * MB, **stream) == [] != told(read_call_bytes=160 * MB, **stream)


@pytest.mark.parametrize(
    "changes",
    [
        {"read_call_bytes": None},
        {"format": "lmdb"},  # mapped
        {"format": "tokens"},
        {"loader": "dali", "reader": "stock"},  # reads ahead on its own
        {"format": "webdataset", "shuffle_buffer": 200_000},  # 200 MB may have been read before
    ],
)
def test_read_calls_that_need_not_match_are_not_compared(changes: dict[str, float | str | None]):
    assert told(**{"read_call_bytes": 0} | changes) == []


ASKED = {
    "get": {
        "count": 4,
        "failed": 1,
        "retries": 2,
        "bytes": 100 * MB,
        "ns": 10**9,
        "latencies": {"84": 4},  # from 1.05 to 1.31 ms
        "first_bytes": {"80": 3},  # from 0.52 to 0.66 ms
    },
    "head": {"count": 1, "failed": 0, "retries": 0, "bytes": 0, "ns": 5, "latencies": {"12": 1}, "first_bytes": {}},
}


def bucket(received: int, interface: int) -> list[RankSamples]:
    reads = Reads(received, received, 100 * MB, "net eth0", interface, True, requests=ASKED)
    return [replace(made_result(0), reads=reads)]


def test_requests_of_all_ranks_are_figures():
    both = bucket(100 * MB, 104 * MB) * 2
    found = reads_figures(both, True)
    assert (found["get_requests"], found["head_requests"], found["put_requests"]) == (8, 2, 0)
    assert (found["request_retries"], found["failed_requests"]) == (4, 2)
    assert 0.5e-3 < found["first_byte_s_p50"] < 0.7e-3 < found["request_s_p50"] < found["request_s_p99"] < 1.4e-3
    assert found["process_storage_bytes"] == 200 * MB and found["cache_hit_fraction"] == 0.0
    assert "get_requests" not in reads_figures(ranks(100 * MB, mount=None), True)


def test_an_interface_may_carry_more_than_a_client_counts_and_not_less():
    assert mount_caveats(bucket(100 * MB, 180 * MB), True) == []
    [(_, why)] = mount_caveats(bucket(100 * MB, 50 * MB), True)
    assert why.startswith("net eth0 read 50.0 MB, ranks and workers 100.0 MB")
