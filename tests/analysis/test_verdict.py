"""The verdict, from figures."""

from dataclasses import replace
from typing import Any

import pytest

from benchsuite.analysis.metrics import figures
from benchsuite.analysis.verdict import Setting, verdict
from tests.helpers.made import CEILING, made_block, made_result, made_spec

HELD: dict[str, Any] = {
    "au": 0.5,
    "step_s_mean": 0.08,
    "load_s": 0.04,
    "input_stall_fraction": 0.5,
    "cpu_contention_fraction": 0.0,
    "read_s_per_sample": 0.009,
    "decode_s_per_sample": 0.001,
}
KEEPS_UP: dict[str, Any] = {"au": 0.98, "step_s_mean": 0.1, "load_s": 0.002, "input_stall_fraction": 0.02}


def name(**changes: Any) -> str | None:
    found = verdict(HELD | changes)
    return found and found[0]


def test_readers_that_mostly_read_are_held_by_storage():
    assert name() == "storage"


def test_readers_that_mostly_decode_are_held_by_preprocessing():
    assert name(read_s_per_sample=0.001, decode_s_per_sample=0.009) == "preprocessing"


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"collate_s_per_sample": None}, "decode"),
        ({"collate_s_per_sample": 0.004}, "decode"),
        ({"collate_s_per_sample": 0.006}, "collate"),
        ({"reader_busy_fraction": 0.3}, "hand_over"),
        ({"reader_busy_fraction": 0.3, "cpu_contention_fraction": 0.2}, "decode"),  # they wait for a core
    ],
)
def test_which_part_of_preprocessing(changes: dict[str, Any], part: str):
    found = verdict(HELD | {"read_s_per_sample": 0.001, "decode_s_per_sample": 0.009} | changes)
    assert found is not None and found.part == part
    assert found.bottleneck == ("client_cpu" if "cpu_contention_fraction" in changes else "preprocessing")
    assert ("6.00 of it collating" in found.evidence) == (part == "collate")
    storage = verdict(HELD)
    assert storage is not None and storage.part is None


def test_readers_that_do_both_are_mixed():
    assert name(read_s_per_sample=0.005, decode_s_per_sample=0.005) == "mixed"


@pytest.mark.parametrize(
    ("read", "expected"), [(0.66, "storage"), (0.6, "mixed"), (0.4, "mixed"), (0.34, "preprocessing")]
)
def test_shares_of_the_readers_time(read: float, expected: str):
    assert name(read_s_per_sample=read, decode_s_per_sample=1 - read) == expected


def test_contention_for_cores_counts_as_input():
    figures_found = {"input_stall_fraction": 0.1, "cpu_contention_fraction": 0.3}
    assert name(**figures_found, read_s_per_sample=0.001, decode_s_per_sample=0.009) == "client_cpu"


def test_evidence_has_the_numbers():
    found = verdict(HELD)
    assert found is not None
    for number in ("AU 0.50", "50% of the step", "9.00 ms", "1.00 ms"):
        assert number in found[1]
    assert "\n" not in found[1]


def test_exposed_exchange_is_communication():
    found = verdict(KEEPS_UP | {"communication_s": 0.04, "communication_min_s": 0.03})
    assert found is not None
    assert found[0] == "communication" and "30%" in found[1]


@pytest.mark.parametrize("communication", [None, 0.0, 0.019])
def test_otherwise_the_computation(communication: float | None):
    found = verdict(KEEPS_UP | {"communication_s": 0.05, "communication_min_s": communication})
    assert found is not None
    assert found[0] == "compute" and "AU 0.98" in found[1]


@pytest.mark.parametrize(
    ("au", "exchange", "expected"),
    [
        (0.93, 0.60, "communication"),  # 7 of 67 parts are the input's
        (0.60, 0.30, "mixed"),  # 40 of 70
        (0.60, 0.40, "mixed"),
        (0.60, 0.20, "storage"),  # 40 of 60
        (0.93, 0.10, "mixed"),  # 7 of 17
        (0.95, 0.19, "compute"),
    ],
)
def test_the_larger_of_input_and_communication(au: float, exchange: float, expected: str):
    found = verdict(HELD | {"au": au, "input_stall_fraction": 1 - au, "communication_min_s": exchange * 0.08})
    assert found is not None and found.bottleneck == expected
    assert f"exposed communication is {exchange:.0%}" in found.evidence
    assert f"AU {au:.2f}" in found.evidence
    assert ("comm_hook" in str(found.remedy)) == (expected in ("mixed", "communication"))
    assert ("more workers" in str(found.remedy)) == (expected in ("mixed", "storage"))


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({"bubble_s": 0.06}, "communication"),
        ({"imbalance_s": 0.06, "slowest_rank": 1}, "imbalance"),
        ({"imbalance_s": 0.06, "slowest_rank": 1, "load_mean_s": 0.0056}, "imbalance"),
        ({"bubble_s": 0.0056}, "mixed"),
    ],
)
def test_a_small_loss_of_input_hides_no_larger_one(other: dict[str, Any], expected: str):
    assert name(au=0.93, input_stall_fraction=0.07, **other) == expected


def test_a_little_input_beside_as_much_communication():
    """Of 80 ms both ranks wait 20 for input, at the same time, and exchange for 20: neither is the one cause."""
    step = {**CEILING, "load": 0.02, "communication": 0.02}
    kinds = ("ceiling", "loader", "ceiling", "loader", "ceiling")
    ceiling = {**CEILING, "communication": 0.02}
    blocks = [made_block(k, 10.0 * n, step if k == "loader" else ceiling, read_s=0.1) for n, k in enumerate(kinds)]
    found = figures(made_spec(world_size=2, parallelism="ddp"), [made_result(rank, blocks) for rank in range(2)])
    assert (found["au"], found["communication_min_s"]) == (pytest.approx(0.75), pytest.approx(0.02))
    judged = verdict(found)
    assert judged is not None and judged.bottleneck == "mixed"
    assert "25% of the step waits for input" in judged.evidence and "exposed communication is 25%" in judged.evidence


@pytest.mark.parametrize("missing", [{"step_s_mean": None}, {"step_s_mean": 0.0}])
def test_no_verdict_without_steps(missing: dict[str, Any]):
    assert verdict(HELD | missing) is None
    assert verdict({}) is None


def test_without_a_pipeline_it_is_computation_or_communication():
    alone = {"au": None, "step_s_mean": 0.1, "load_s": 0.0}
    found = verdict(alone)
    assert found is not None and found.cause == "compute"
    assert (found.bottleneck, found.evidence) == ("compute", "input in memory; load is 0% of the step")
    found = verdict({**alone, "communication_min_s": 0.03})
    assert found is not None and found.bottleneck == "communication"
    assert found.evidence == "input in memory; exposed communication is 30% of the step, stragglers aside"


def test_bytes_that_came_from_memory_do_not_blame_the_storage():
    assert name(read_s_per_sample=0.01, decode_s_per_sample=0.001, cache_hit_fraction=0.0) == "storage"
    assert name(read_s_per_sample=0.01, decode_s_per_sample=0.001, cache_hit_fraction=1.0) == "preprocessing"


@pytest.mark.parametrize(
    ("readers", "hit", "expected"),
    [
        (1, 0.75, "preprocessing"),
        (4, 0.75, "storage"),
        (4, 0.95, "preprocessing"),
        (8, 0.875, "storage"),
        (2, 0.0, "storage"),
    ],
)
def test_what_ranks_read_after_one_another_is_no_cache(readers: int, hit: float, expected: str):
    """Four ranks of a tensor-parallel group read each sample: one from storage, three from what it left in memory."""
    found = verdict(HELD | {"cache_hit_fraction": hit}, Setting(readers_of_a_sample=readers))
    assert found is not None and found.bottleneck == expected
    assert ("came from memory" in found.evidence) == (expected == "preprocessing")


@pytest.mark.parametrize(
    ("computing", "expected"), [(0.001, "mixed"), (0.009, "preprocessing"), (None, "preprocessing")]
)
def test_readers_that_wait_for_bytes_in_memory_wait_for_something_else(computing: float | None, expected: str):
    found = verdict(HELD | {"cache_hit_fraction": 1.0, "read_cpu_s_per_sample": computing})
    assert found is not None and found.bottleneck == expected
    assert ("for another host, a lock" in found.evidence) == (expected == "mixed")


def test_figures_that_nobody_measured_are_no_crash():
    unknown = {"cpu_contention_fraction": None, "read_s_per_sample": None, "decode_s_per_sample": None}
    assert name(**unknown) == "mixed", "reading is not told from decoding"
    found = verdict(HELD | unknown | {"reader_busy_fraction": 0.9})
    assert found is not None and "; a reader is busy 90% of the time; reading is not told" in found.evidence


def test_readers_that_take_cores_from_the_computation_are_the_clients_cpu():
    """Half of the step is lost, and little of it in waiting: whatever the readers do, it is not storage that holds."""
    found = verdict(HELD | {"input_stall_fraction": 0.1, "load_s": 0.008, "cpu_contention_fraction": 0.3})
    assert found is not None
    assert found[0] == "client_cpu" and "keeps up" not in found[1]


THREADS_WAIT = {"input_stall_fraction": 0.1, "load_s": 0.008, "threads_contention_fraction": 0.3}
"""Half of the step is lost: not the main thread waits for a core, but another that it waits for."""


@pytest.mark.parametrize(
    ("about", "busy", "help_"),
    [
        (Setting(1, 1, 2, 2), 0.4, "threads_per_rank: 1 (2 threads share 2 cores, and readers keep 0.4 busy), "),
        (Setting(3, 2, 16, 8), 0.9, "threads_per_rank: 5 (16 threads share 16 cores, and readers keep 5.4 busy), "),
        (Setting(12, 1, 16, 16), 0.1, "threads_per_rank: 14 (16 threads share 16 cores, and readers keep 1.2 busy), "),
        (Setting(1, 1, 2, 2), 0.1, "more cores a rank, fewer workers or threads, "),  # which have cores to spare
        (Setting(0, 1, 4, 6), 0.0, "threads_per_rank: 4 (6 threads share 4 cores), "),
        (Setting(1, 1, 4, threads=2), 0.4, "more cores a rank, fewer workers or threads, "),
        (Setting(1, 2, 2, threads=1), 0.4, "more cores a rank, fewer workers or threads, "),
        (Setting(1, 1, 2), 0.4, "more cores a rank, fewer workers or threads, "),
    ],
)
def test_threads_that_share_their_cores_with_readers_are_named(about: Setting, busy: float, help_: str):
    decoding = {"read_s_per_sample": 0.0, "decode_s_per_sample": 0.01, "reader_busy_fraction": busy}
    found = verdict(HELD | THREADS_WAIT | decoding, about)
    assert found is not None and found.bottleneck == "client_cpu"
    assert "0% for a core and 30% for a thread that waits for one" in found.evidence
    assert str(found.remedy).startswith(help_)


def test_what_a_verdict_rests_on_is_printed_however_small():
    """AU 0.85, of the 15 % lost 12 are no waiting for input: 7 % of waiting for a core are more than half of that."""
    waits = {"au": 0.85, "input_stall_fraction": 0.03, "threads_contention_fraction": 0.07}
    found = verdict(HELD | waits)
    assert found is not None and found.bottleneck == "client_cpu"
    assert "0% for a core and 7% for a thread" in found.evidence


def test_more_threads_than_cores_are_named_where_readers_decode():
    decoding = {"read_s_per_sample": 0.001, "decode_s_per_sample": 0.009, "threads_contention_fraction": 0.2}
    found = verdict(HELD | decoding, Setting(1, 1, 2, threads=4))
    assert found is not None and found.bottleneck == "client_cpu"
    assert str(found.remedy).startswith("threads_per_rank: 2 (4 threads share 2 cores), or more cores a rank")


def test_more_threads_than_cores_are_named_where_nothing_is_read():
    alone = {"step_s_mean": 0.1, "cpu_contention_fraction": 0.2, "threads_contention_fraction": 0.2}
    found = verdict(alone, Setting(0, 2, 4, threads=4))
    assert found is not None and found.bottleneck == "compute" and "its threads wait for cores" in found.evidence
    assert found.remedy == "threads_per_rank: 2 (8 threads share 4 cores), or more cores"


@pytest.mark.parametrize(
    ("au", "emulated", "expected"),
    [
        (0.9501, False, "compute"),
        (0.9499, False, "mixed"),
        (0.91, False, "mixed"),
        (0.89, False, "storage"),
        (0.9501, True, "none"),
        (0.9499, True, "mixed"),
        (0.89, True, "storage"),
    ],
)
def test_what_costs_little_beside_the_computation_is_mixed_with_it(au: float, emulated: bool, expected: str):
    """From what is fed to what starves no verdict turns into its opposite at once, on any device."""
    found = verdict(HELD | {"au": au, "input_stall_fraction": 1 - au}, Setting(emulated=emulated))
    assert found is not None and found.bottleneck == expected
    said = f"{'what is emulated' if emulated else 'computing'} takes the most of the step, storage costs {1 - au:.0%}"
    assert (said in found.evidence) == (expected == "mixed")


@pytest.mark.parametrize(
    ("au", "error", "said"),
    [
        (0.94, 0.02, "AU 0.94 ±0.02 (at 0.96 the verdict is compute); "),
        (0.92, 0.05, "AU 0.92 ±0.05 (at 0.87 the verdict is storage, at 0.97 the verdict is compute); "),
        (0.96, 0.02, "AU 0.96 ±0.02 (at 0.94 the verdict is mixed); "),
        (0.948, 0.004, "AU 0.95 ±0.004 (at 0.952 the verdict is compute); "),
        (0.94, 0.2, "AU 0.94 ±0.20 (at 0.74 the verdict is storage, at 1.00 the verdict is compute); "),
        (0.94, 0.005, "AU 0.94; "),
        (0.94, None, "AU 0.94; "),
    ],
)
def test_near_a_threshold_the_evidence_says_what_else_it_may_be(au: float, error: float | None, said: str):
    found = verdict(HELD | {"au": au, "au_error": error, "input_stall_fraction": 1 - au})
    assert found is not None and found.evidence.startswith(f"{said}{1 - au:.0%} of the step waits for input")


@pytest.mark.parametrize("contention", [None, 0.0, 0.03])
def test_who_waits_for_no_core_has_lost_none_to_readers(contention: float | None):
    """AU 0.90, of the 10 % lost 8 are no waiting for input: a core would have to be waited for half of them."""
    idle = {"au": 0.9, "input_stall_fraction": 0.02, "reader_busy_fraction": 0.05, "foreign_cpu_cores": 3.0}
    about = Setting(ranks=1, num_workers=4, cores=64)
    found = verdict(HELD | idle | {"cpu_contention_fraction": contention}, about)
    assert found is not None and found.bottleneck == "mixed"
    assert "the step loses 8% more while readers run, and not by waiting for them or for a core" in found.evidence
    assert "take cores" not in found.evidence and "workers" not in str(found.remedy)
    assert name(**idle | {"au": 0.89, "cpu_contention_fraction": 0.06, "foreign_cpu_cores": 0.0}) == "client_cpu"


PINNED: dict[str, Any] = {
    "cpu_contention_fraction": 0.4,
    "read_s_per_sample": 0.010,
    "read_cpu_s_per_sample": 0.001,
    "decode_s_per_sample": 0.001,
    "reader_busy_fraction": 0.5,
    "io_bytes_per_s": 10e6,
    "storage_ceiling_bytes_per_s": 100e6,
}
"""Readers that spend 9 of 11 ms neither computing nor, for all that storage could give, waiting for it."""
ONE_CORE = Setting(ranks=1, num_workers=6, cores=1, file_per_sample=True, emulated=True)


def test_readers_that_wait_for_a_core_do_not_blame_the_storage():
    found = verdict(HELD | PINNED, ONE_CORE)
    assert found is not None and found.bottleneck == "client_cpu"
    assert "storage has more to give (10% of it is read), cores have not" in found.evidence
    assert "more workers" not in str(found.remedy) and "more cores" in str(found.remedy)
    assert name(**PINNED | {"cpu_contention_fraction": 0.05}) == "storage", "no core is waited for"
    assert name(**PINNED | {"io_bytes_per_s": 90e6}) == "storage", "it gives what it can"


DISK: dict[str, Any] = {
    "mount_counter": "diskstats sda",
    "mount_read_bytes": 100_000_000,
    "process_storage_bytes": 70_000_000,
}


@pytest.mark.parametrize("decode_s", [0.001, 0.009])  # storage, and mixed
def test_beside_others_who_read_from_the_disk_it_is_not_blamed(decode_s: float):
    found = verdict(HELD | DISK | {"decode_s_per_sample": decode_s})
    assert found is not None and found.bottleneck == "cannot_tell"
    assert found.evidence.endswith("; others read 30 of the 100 MB that the disk gave meanwhile")
    assert found.remedy == "measure again while nothing else reads from this disk: this says nothing of the job itself"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"process_storage_bytes": 85_000_000}, "storage"),
        ({"process_storage_bytes": 130_000_000}, "storage"),
        ({"mount_read_bytes": 5_000_000, "process_storage_bytes": 2_000_000}, "storage"),  # what a system reads anyway
        ({"mount_read_bytes": 50_000_000, "process_storage_bytes": 1_000_000}, "storage"),  # it reads elsewhere
        ({"cache_hit_fraction": 0.9, "read_cpu_s_per_sample": 0.001}, "mixed"),  # they wait for something else
        ({"process_storage_bytes": None}, "storage"),
        ({"mount_read_bytes": None}, "storage"),
        ({"mount_counter": "net eth0"}, "storage"),  # by which gradients come, too
        ({"read_s_per_sample": 0.001, "decode_s_per_sample": 0.009}, "preprocessing"),
        (KEEPS_UP, "compute"),
    ],
)
def test_others_who_read_little_or_whom_nothing_waits_for_change_no_verdict(changes: dict[str, Any], expected: str):
    assert name(**DISK | changes) == expected


CROWD = "other processes kept 0.5 of 1 cores busy"


@pytest.mark.parametrize(
    ("changes", "evidence"),
    [
        ({}, f"{CROWD}, and the loop waits for one 40% of the step"),
        ({"cpu_contention_fraction": 0.05}, f"{CROWD}, and the loop the rest"),  # its readers: 6 x 50 % x 2/11 = 0.5
        ({"cpu_contention_fraction": 0.05, "reader_busy_fraction": 0.3}, None),
        ({"foreign_cpu_cores": 0.15}, None),
        ({"foreign_cpu_cores": None}, None),
        ({"au": 0.98, "input_stall_fraction": 0.02}, f"{CROWD}, and the loop waits for one 40% of the step"),
    ],
)
def test_beside_a_crowd_no_cause_is_the_jobs_own(changes: dict[str, Any], evidence: str | None):
    """Readers that wait for a core, as for their reads, would be called held by storage; and steps by themselves."""
    found = verdict(HELD | PINNED | {"foreign_cpu_cores": 0.5} | changes, ONE_CORE)
    assert found is not None
    if evidence is None:
        assert found.bottleneck != "cannot_tell" and "other processes" not in found.evidence
    else:
        again = "measure again on idle cores: this says nothing of the job itself"
        assert (found.bottleneck, found.evidence, found.remedy) == ("cannot_tell", evidence, again)


@pytest.mark.parametrize(
    ("about", "busy", "room"),
    [
        ({"ranks": 1, "num_workers": 6, "cores": 1}, 0.5, False),
        ({"ranks": 1, "num_workers": 6, "cores": 1}, None, False),
        ({"ranks": 1, "num_workers": 6, "cores": 8}, 1.0, True),  # a core is left for a seventh
        ({"ranks": 1, "num_workers": 6, "cores": 6}, 1.0, True),  # six readers compute on 6 x 2/11 = 1.1 cores
        ({"ranks": 1, "num_workers": 6, "cores": 2}, 1.0, False),
        ({}, 1.0, True),
    ],
)
@pytest.mark.parametrize("ceiling", [100e6, None])
def test_more_workers_only_where_cores_are_left(
    about: dict[str, Any], busy: float | None, room: bool, ceiling: float | None
):
    seen = {"cpu_contention_fraction": 0.0, "reader_busy_fraction": busy, "storage_ceiling_bytes_per_s": ceiling}
    found = verdict(HELD | PINNED | seen, Setting(**about))
    assert found is not None and found.bottleneck == "storage"
    assert ("more workers" in str(found.remedy), "more cores a rank" in str(found.remedy)) == (room, not room)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"read_cpu_s_per_sample": 0.001}, "a sample, busy 50% of the time, computing 10% of it"),  # 2 of 10 ms
        ({"read_cpu_s_per_sample": None}, "a sample, busy 50% of the time"),
        ({"read_cpu_s_per_sample": 0.001, "reader_busy_fraction": None}, "1.00 ms a sample"),
    ],
)
def test_seconds_on_a_core_stand_beside_seconds_on_the_clock(changes: dict[str, Any], words: str):
    found = verdict(HELD | {"reader_busy_fraction": 0.5} | changes)
    assert found is not None and found.evidence.endswith(words)


def test_waiting_for_a_starved_rank_is_not_communication():
    """Rank 0 waits 40 ms for its input, rank 1 as long for rank 0 (and 0.1 ms more, so it counts as the slowest)."""
    starved, waiting = (
        {**CEILING, "load": 0.04, "communication": 0.001},
        {**CEILING, "load": 0.0, "communication": 0.0411},
    )
    kinds = ("ceiling", "loader", "ceiling", "loader", "ceiling")
    ranks = [
        made_result(
            rank,
            [
                made_block(kind, 10.0 * n, step if kind == "loader" else CEILING, read_s=0.1 * (kind == "loader"))
                for n, kind in enumerate(kinds)
            ],
        )
        for rank, step in enumerate((starved, waiting))
    ]
    found = figures(made_spec(world_size=2, parallelism="ddp"), ranks)
    assert found["au"] == pytest.approx(0.5, abs=0.01)
    judged = verdict(found)
    assert judged is not None and judged[0] == "storage"


def test_a_pipelines_bubble_is_communication():
    found = verdict(KEEPS_UP | {"bubble_s": 0.03})
    assert found is not None and found[0] == "communication"
    assert "waiting for other stages of the pipeline is 30% of the step" in found[1]


def test_waiting_for_one_slow_rank_is_not_the_network():
    """Rank 1 computes twice as long; rank 0 waits for it in every exchange."""
    quick, slow = {**CEILING, "communication": 0.041}, {**CEILING, "forward": 0.05, "communication": 0.001}
    ranks = [made_result(rank, [made_block("plain", 0.0, step)]) for rank, step in enumerate((quick, slow))]
    found = figures(made_spec(world_size=2, parallelism="ddp", data={"source": "memory"}), ranks)
    assert (found["slowest_rank"], found["imbalance_s"]) == (1, pytest.approx(0.04))
    judged = verdict(found)
    assert judged is not None and judged.bottleneck == "imbalance"
    assert "wait 49% of the step for rank 1" in judged.evidence and judged.remedy is not None


def test_storage_that_has_no_more_to_give():
    slow = {"read_s_per_sample": 0.005, "decode_s_per_sample": 0.005, "io_bytes_per_s": 90e6}
    found = verdict(HELD | slow | {"storage_ceiling_bytes_per_s": 100e6})
    assert found is not None and found.bottleneck == "storage"
    assert "90% of that is read" in found.evidence and "staging" in str(found.remedy)


@pytest.mark.parametrize(
    ("about", "ceiling", "words"),
    [
        (
            {"file_per_sample": True},
            450e6,
            "5.0 x as much there: more workers or a longer queue, or a format of shards",
        ),
        ({"file_per_sample": False}, 450e6, "5.0 x as much there: more workers or a longer queue"),
        ({"file_per_sample": False}, None, "more workers, staging to a local disk, or faster storage"),
    ],
)
def test_what_helps_slow_reads(about: dict[str, Any], ceiling: float | None, words: str):
    found = verdict(HELD | {"io_bytes_per_s": 90e6, "storage_ceiling_bytes_per_s": ceiling}, Setting(**about))
    assert found is not None and found.remedy is not None
    assert found.bottleneck == "storage" and found.remedy.endswith(words)


@pytest.mark.parametrize("figures_of", [{"io_bytes_per_s": 90e6, "storage_ceiling_bytes_per_s": 100e6}, {}])
def test_what_is_staged_is_not_told_to_be(figures_of: dict[str, float]):
    """Neither where the copy's disk gives all it has, nor where readers just wait for reads."""
    for staged in (False, True):
        found = verdict(HELD | figures_of, Setting(file_per_sample=False, staged=staged))
        assert found is not None and found.bottleneck == "storage"
        assert ("staging" in str(found.remedy)) is not staged and "or faster storage" in str(found.remedy)


@pytest.mark.parametrize(
    ("cores", "words"), [(64, "more workers: 2 ranks x 1 leave some of 64 cores idle"), (2, "cost less to decode")]
)
def test_what_helps_slow_decoding_depends_on_the_cores(cores: int, words: str):
    about = Setting(ranks=2, num_workers=1, cores=cores)
    found = verdict(HELD | {"read_s_per_sample": 0.001, "decode_s_per_sample": 0.009}, about)
    assert found is not None and words in str(found.remedy)


def test_the_loader_alone_is_part_of_the_evidence():
    found = verdict(HELD | {"loader_only_samples_per_s": 100.0, "samples_per_s": 90.0})
    assert found is not None
    assert "the loader alone gives 100 samples/s, the model could take 180" in found.evidence


def test_nothing_holds_back_an_emulated_device_that_is_fed():
    found = verdict(KEEPS_UP, Setting(emulated=True))
    assert found is not None and found.bottleneck == "none"


def test_ranks_in_step_wait_for_the_hungriest_of_each_step():
    """Rank 0 waits in even steps, rank 1 in odd ones: on average half as long each, and yet every step is late."""
    ranks = []
    for rank in range(2):
        blocks = []
        for n, kind in enumerate(("ceiling", "loader", "ceiling", "loader", "ceiling")):
            block = made_block(
                kind, 10.0 * n, {**CEILING, "load": 0.0, "communication": 0.0}, read_s=0.1 * (kind == "loader")
            )
            if kind == "loader":
                waits = [0.08 if step % 2 == rank else 0.0 for step in range(4)]
                parts = {**block.parts, "load": waits, "communication": [0.08 - wait for wait in waits]}
                block = replace(block, parts=parts, end_s=block.start_s + 4 * 0.12)
            blocks.append(block)
        ranks.append(made_result(rank, blocks))
    found = figures(made_spec(world_size=2, parallelism="ddp"), ranks)
    assert found["input_stall_fraction"] == pytest.approx(0.08 / 0.12)
    judged = verdict(found)
    assert judged is not None and judged.bottleneck == "storage"


def test_warm_bytes_without_counters_do_not_blame_the_storage():
    """Lustre tells processes nothing of their reads; residency does."""
    warm = {"cache_resident_before": 1.0, "io_bytes_per_s": 5e9, "storage_ceiling_bytes_per_s": 1e9}
    found = verdict(HELD | warm, Setting(cache="warm"))
    assert found is not None and found.bottleneck == "preprocessing" and "came from memory" in found.evidence


def test_an_emulated_device_has_no_cores_to_be_taken():
    found = verdict(HELD | {"input_stall_fraction": 0.1, "load_s": 0.008}, Setting(emulated=True))
    assert found is not None and found.bottleneck == "storage"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"instrument_s_per_step": 0.01}, "measuring takes 12.5% of a step of 80,000.0 us; above 5% it hides"),
        ({"run_queue_s": 0.64}, "it waits for a core 200% of the time, which no share can be"),
    ],
)
def test_a_trial_whose_samples_bear_no_verdict(changes: dict[str, Any], reason: str):
    waiting = {name: changes[name] for name in ("run_queue_s",) if name in changes}
    rank = made_result(instrument_s_per_step=changes.get("instrument_s_per_step"))
    rank = replace(rank, blocks=[replace(block, **waiting) for block in rank.blocks])
    judged = verdict(figures(made_spec(), [rank]), Setting(), [rank])
    assert judged is not None and judged.bottleneck == "cannot_tell" and reason in judged.evidence


def test_a_utilization_above_one_bears_no_verdict_unless_the_step_is_known():
    judged = verdict(KEEPS_UP | {"au": 1.06})
    assert judged is not None and judged.bottleneck == "cannot_tell" and "AU 1.06 is above 1" in judged.evidence
    assert [found and found.bottleneck for found in (verdict(KEEPS_UP | {"au": 1.05}),)] == ["compute"]
    known = verdict(KEEPS_UP | {"au": 1.06}, Setting(emulated=True))
    assert known is not None and known.bottleneck == "none"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"client_thread_busy_fraction": 0.97}, "a thread of the bucket's client fills 97% of a core"),
        (
            {"client_thread_busy_fraction": 0.3, "read_cpu_s_per_sample": 0.008},
            "readers compute in the bucket's client",
        ),
    ],
)
def test_a_client_that_is_the_limit_is_named(changes: dict[str, Any], said: str):
    """Also where a plain reader with the same client gets no more."""
    full = HELD | {"io_bytes_per_s": 9e8, "storage_ceiling_bytes_per_s": 9e8} | changes
    found = verdict(full, Setting(num_workers=2, ranks=1, cores=16))
    assert found is not None and found.bottleneck == "client_cpu"
    assert said in found.evidence and found.remedy is not None and found.remedy.startswith("more workers with loader")


def test_a_client_that_rests_is_no_limit():
    assert name(client_thread_busy_fraction=0.5) == "storage"
    assert name(client_thread_busy_fraction=0.5, read_s_per_sample=0.001, decode_s_per_sample=0.009) == "preprocessing"


def test_a_step_whose_communication_is_not_timed_is_not_called_computation() -> None:
    unseen = Setting(hides_communication=True)
    found = verdict(KEEPS_UP | {"communication_min_s": None}, unseen)
    assert found is not None and found.bottleneck == "cannot_tell"
    assert found.evidence.endswith("communication runs in compiled blocks and is not timed")
    assert str(found.remedy).startswith("--profile torch")
    profiled = verdict(KEEPS_UP | {"communication_min_s": 0.05}, unseen)
    assert profiled is not None and profiled.bottleneck == "communication"
    held_back = verdict(HELD | {"communication_min_s": None}, unseen)
    assert held_back is not None and held_back.bottleneck == "storage"
