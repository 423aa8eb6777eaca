"""Collectives between real ranks: checked by content, counted, timed; and what goes wrong is told."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchsuite.host.machine import this_machine
from benchsuite.launch.starters import LocalLauncher
from benchsuite.predict.theory.collectives import BACKEND
from benchsuite.probe.comm.collectives import DTYPES, Place, Prepared, prepare
from benchsuite.probe.comm.probe import TASK, Asked, cells_of, measured, point_of
from benchsuite.probe.comm.rank import MAX_CALLS, ROUNDS, timed_calls
from benchsuite.probe.comm.rank_group import Ranks
from benchsuite.probe.comm.request import DDP_MODES, OPS, Cell, Request, cells, gradient_bytes
from benchsuite.probe.comm.step_tables import ALGORITHMS, STEP_TABLES, table
from benchsuite.probe.ranks import findings_of, found_by, leave_request
from benchsuite.results.store.record import TrialRecord

FAULTS = "tests.helpers.commfaults"
FULL = pytest.mark.full
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def launcher() -> Iterator[LocalLauncher]:
    with LocalLauncher(TASK) as launcher:
        yield launcher


def asked(**changes: Any) -> Asked:
    base = {"ops": OPS, "algorithms": (BACKEND,), "dtypes": ("fp32",), "sizes": (64,), "ranks": (2,)}
    return Asked(**{**base, "backend": "gloo", "iterations": 2, "seconds": 0.0, "timeout_s": 60.0, **changes})


def run(launcher: LocalLauncher, what: Asked, task: str = TASK) -> list[tuple[TrialRecord, dict[str, Any] | None]]:
    launcher.task = task
    (num_ranks,) = what.ranks
    return list(measured(what, point_of(what, num_ranks, this_machine()), launcher, None, "s"))


@pytest.mark.parametrize(
    ("ranks", "dtypes", "sizes"),
    [
        pytest.param(2, tuple(DTYPES), (1,), marks=FULL),
        pytest.param(3, tuple(DTYPES), (1, 3001), marks=FULL),
        (3, ("fp32",), (1, 3001)),
        (2, tuple(DTYPES), (3001,)),
    ],
)
def test_every_op_and_dtype_is_right_on_real_ranks(
    launcher: LocalLauncher, ranks: int, dtypes: tuple[str, ...], sizes: tuple[int, ...]
) -> None:
    """A wrong result would be a failed row; sizes that are no multiple of anything, and a single element."""
    found = run(launcher, asked(dtypes=dtypes, sizes=sizes, ranks=(ranks,)))
    assert len(found) == len(OPS) * len(dtypes) * len(sizes)
    assert {record.status for record, _ in found} == {"ok"}, [record.reason for record, _ in found]
    for record, samples in found:
        assert samples is not None and len(samples["ranks"]) == ranks and 1 <= samples["calls"] <= MAX_CALLS
        assert record.figures.comm_s and record.figures.comm_messages is None
        slowest = sorted(max(sample) for sample in zip(*samples["ranks"], strict=True))
        assert slowest[0] <= record.figures.comm_s <= slowest[-1]


@pytest.mark.parametrize(
    ("ranks", "dtype"),
    [
        pytest.param(ranks, dtype, marks=() if (ranks, dtype) in ((3, "bf16"), (4, "fp32")) else FULL)
        for ranks in (2, 3, 4)
        for dtype in ("fp32", "bf16")
    ],
)
def test_step_tables_send_what_they_say(launcher: LocalLauncher, ranks: int, dtype: str) -> None:
    what = asked(algorithms=ALGORITHMS, dtypes=(dtype,), sizes=(4, 48_000), ranks=(ranks,))
    found = {
        (r.spec["op"], r.spec["algorithm"], r.spec["dtype"], r.spec["num_bytes"]): r for r, _ in run(launcher, what)
    }
    assert {record.status for record in found.values()} == {"ok"}, [record.reason for record in found.values()]
    assert {key[:2] for key in found} == {(op, name) for op, names in STEP_TABLES.items() for name in names}
    for (op, algorithm, _, num_bytes), record in found.items():
        if num_bytes == 48_000:  # 48,000 bytes are whole chunks for 2, 3 and 4
            assert record.figures.comm_messages == sum(table(op, algorithm, ranks).messages())
            sent = sum(table(op, algorithm, ranks).sent_elements(num_bytes))
            assert record.figures.comm_sent_bytes == pytest.approx(sent)


def test_overlap_on_and_off(launcher: LocalLauncher) -> None:
    found = run(launcher, asked(ops=("all_reduce",), bucket_bytes=(1 << 20, 64 << 20)))[1:]
    assert [(r.spec["algorithm"], r.spec["bucket_bytes"]) for r, _ in found] == [
        (mode, size) for size in (1 << 20, 64 << 20) for mode in DDP_MODES
    ]
    for record, samples in found:
        assert record.status == "ok", record.reason
        assert samples is not None
        first = samples["extra"][0]
        assert sum(first["bucket_bytes"]) == gradient_bytes("cpu") == record.spec["num_bytes"]
        parts = [first[f"{name}_s"][0] for name in ("forward", "backward", "communication")]
        assert sum(parts) == pytest.approx(samples["ranks"][0][0]) and min(parts) >= 0
        figures = record.figures
        assert figures.comm_s and figures.communication_s is not None and figures.communication_min_s is not None
        assert figures.communication_min_s <= figures.communication_s
        assert figures.overlap_fraction == pytest.approx(1 - figures.communication_min_s / figures.comm_s)
    (small, _), _, (whole, _), _ = found
    assert len(found[0][1]["extra"][0]["bucket_bytes"]) == 16 and len(found[2][1]["extra"][0]["bucket_bytes"]) == 1  # type: ignore[index]
    assert small.figures.step_s_p50 and whole.figures.step_s_p50


class TestWhatGoesWrong:
    def test_a_wrong_result_is_a_failed_row_and_the_others_go_on(self, launcher: LocalLauncher) -> None:
        found = run(launcher, asked(ops=("broadcast", "reduce"), sizes=(64, 128)), f"{FAULTS}:wrong_result")
        assert [record.status for record, _ in found] == ["failed", "failed", "ok", "ok"]
        assert found[1][0].reason == "rank 1: element 3 is 4, not 3; 1 of 32 differ"

    def test_what_a_backend_lacks_is_skipped_with_its_words(self, launcher: LocalLauncher) -> None:
        found = run(launcher, asked(ops=("reduce", "broadcast"), sizes=(64, 128)), f"{FAULTS}:refused")
        assert [(record.status, record.reason) for record, _ in found] == [
            ("skipped", "rank 0: ProcessGroupGloo does not support reduce"),
            ("skipped", "rank 0: ProcessGroupGloo does not support reduce"),
            ("ok", None),
            ("ok", None),
        ]
        assert found[0][0].figures.comm_s is None and found[0][1] is None

    def test_a_rank_that_dies_leaves_what_was_measured(self, launcher: LocalLauncher) -> None:
        found = run(launcher, asked(ops=("all_reduce", "broadcast", "reduce"), sizes=(64, 128)), f"{FAULTS}:killed")
        assert [record.status for record, _ in found] == ["ok", "ok", "failed"]
        reason = found[-1][0].reason or ""
        assert found[-1][0].spec["op"] == "broadcast"
        assert "rank 1" in reason and "SIGKILL" in reason and reason.endswith("; 3 more were not come to")

    def test_bytes_that_the_table_does_not_have(self, launcher: LocalLauncher) -> None:
        what = asked(ops=("all_reduce",), algorithms=("ring",))
        ((record, _),) = run(launcher, what, f"{FAULTS}:miscounted")
        assert record.status == "failed"
        assert record.reason == (
            "rank 0: sent Counted(messages=2, num_bytes=65), the table says Counted(messages=2, num_bytes=64)"
        )

    def test_no_memory_on_one_rank_hangs_no_other(self, launcher: LocalLauncher) -> None:
        found = run(launcher, asked(ops=("all_gather", "broadcast")), f"{FAULTS}:out_of_memory")
        assert [record.status for record, _ in found] == ["failed", "ok"]
        assert (found[0][0].reason or "").startswith("rank 1: out of memory: RuntimeError: DefaultCPUAllocator")


class TestContents:
    """What is checked can be told apart: no two ranks, and no two places of a chunk, hold the same."""

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("num_ranks", [2, 9, 100, 1000])
    def test_sums_are_exact_in_every_dtype(self, dtype: str, num_ranks: int) -> None:
        place = Place(0, num_ranks, dtype, CPU)
        total = torch.zeros(len(place.summed()), dtype=DTYPES[dtype])
        for rank in range(num_ranks):
            total += place.tensor(place.summand(rank), len(total))
        assert total.tolist() == place.summed() and max(place.summed()) > 0

    def test_ranks_and_offsets_differ(self) -> None:
        place = Place(0, 8, "bf16", CPU)
        assert len({tuple(place.copied(rank)) for rank in range(8)}) == 8
        parts = [tuple(place.tensor(place.summed(), 64, 64 * chunk).tolist()) for chunk in range(7)]
        assert len(set(parts)) == 7
        shifted = place.tensor(place.copied(3), 300)[40:]
        assert torch.equal(shifted, place.tensor(place.copied(3), 260, start=40))

    def test_a_difference_is_told_by_its_place(self) -> None:
        output, expected = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 5.0, 4.0])
        made = Prepared(lambda: None, [], output, expected)
        assert made.problem() == "element 1 is 2, not 5; 2 of 3 differ"
        made.fill()
        assert made.problem() == "element 0 is 99, not 1; 3 of 3 differ", "what nobody wrote shows"
        made.blank()
        assert output.tolist() == [0, 0, 0]
        assert Prepared(lambda: None, [], output, None).problem() is None

    def test_inputs_that_are_outputs_are_filled_last(self) -> None:
        made = prepare(Cell("all_gather", "ring", "fp32", 64, 4), 2, CPU)
        made.fill()
        assert (made.output[:8] == 99).all() and (made.output[12:] == 99).all()
        assert torch.equal(made.output[8:12], made.inputs[0][1]) and made.expected is not None
        assert torch.equal(made.output[8:12], made.expected[8:12])


class TestTiming:
    class Alone(Ranks):
        """One rank whose calls take a second each by its own count."""

        def __init__(self, call_s: float) -> None:
            super().__init__(0, CPU, None)  # type: ignore[arg-type]
            object.__setattr__(self, "call_s", call_s)

        def most(self, value: float) -> float:
            return value

        def sample_s(self, call: Any, calls: int) -> float:
            for _ in range(calls):
                call()
            return calls * self.call_s  # type: ignore[attr-defined,no-any-return]

    @pytest.mark.parametrize(
        ("call_s", "seconds", "calls", "samples"),
        [(1.0, 0.2, 1, 20), (1e-3, 0.5, 5, 100), (1e-6, 0.0, 1, 20), (1e-6, 100.0, 200, 200), (0.004, 0.005, 2, 20)],
    )
    def test_short_calls_are_timed_together_and_warm_up_is_left_out(
        self, call_s: float, seconds: float, calls: int, samples: int
    ) -> None:
        made: list[int] = []
        request = Request((), 20 * ROUNDS, seconds * ROUNDS)
        found = timed_calls(lambda: made.append(1), request, self.Alone(call_s))
        assert found[0] == calls and len(found[1]) == samples
        assert found[1] == pytest.approx([call_s] * samples)
        assert len(made) == calls * samples + 6


def test_ranks_leave_each_cell_as_soon_as_it_is_known_and_come_back_to_it(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    launcher.task = TASK
    wanted = tuple(cells(("all_reduce", "reduce"), (BACKEND,), ("fp32",), (64,), 2))
    leave_request(Request(wanted, 2 * ROUNDS, 0.0), tmp_path)
    outcome = launcher.run(point_of(asked(), 2, this_machine()).spec, None, tmp_path, lambda progress: None)
    assert [one.code for one in outcome.exits] == [0, 0]
    for rank in (0, 1):
        lines = found_by(tmp_path, rank)
        assert [line["cell"] for line in lines] == [0, 1] * ROUNDS
        assert {line["status"] for line in lines} == {"ok"} and {len(line["seconds"]) for line in lines} == {2}
    assert [len(cell["seconds"]) for cell in cells_of(tmp_path, 0)] == [2 * ROUNDS] * 2


def test_a_torn_line_is_left_out(tmp_path: Path) -> None:
    path = findings_of(tmp_path, 0)
    lines = [{"cell": 0, "seconds": [1.0]}, {"cell": 1, "seconds": [2.0]}, {"cell": 0, "seconds": [3.0]}]
    path.write_text("\n".join(map(json.dumps, lines)) + '\n{"cell": 1, "sec')
    assert [cell["seconds"] for cell in cells_of(tmp_path, 0)] == [[1.0, 3.0], [2.0]]
    assert cells_of(tmp_path / "gone", 0) == []
