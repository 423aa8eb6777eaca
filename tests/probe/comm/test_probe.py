"""`benchsuite probe comm`: what a user types and sees, its records, and its errors."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchsuite.analysis.record_builder import Measuring
from benchsuite.predict.theory.alpha_beta_fit import from_rows
from benchsuite.probe.comm.probe import unfitted
from benchsuite.probe.comm.records import caveats, figures, record_of, slowest_s, step_figures
from benchsuite.results.report.probes import in_binary
from benchsuite.results.store.store import ResultsStore
from tests.cli.test_app import Run, error_line, in_folder
from tests.helpers.snapshots import compare_messages
from tests.results.made import made_record

__all__ = ["in_folder"]
QUICK = ("--iterations", "2", "--seconds", "0", "--backend", "gloo")


class TestVerb:
    def test_a_table_the_fits_and_what_sizes_mean(self, run_cli: Run):
        """An op without a step table that is asked for is warned of."""
        asked = ("--op", "all_reduce,all_gather,broadcast", "--sizes", "1KiB:4KiB", "--algorithm", "backend,ring")
        code, out, err = run_cli("probe", "comm", *asked, "--overlap", "--buckets", "64MiB", *QUICK)
        assert (code, err) == (0, "warning: broadcast has no step table ring: not measured\n")
        assert len(re.findall(r"^ broadcast +backend ", out, re.MULTILINE)) == 3
        assert not re.search(r"broadcast +ring", out)
        rows = [line.split() for line in out.splitlines() if re.match(r" all_\w+ +(backend|ring) ", line)]
        assert [(row[0], row[1]) for row in rows] == [
            (op, algorithm)
            for op in ("all_reduce", "all_gather")
            for algorithm in ("backend", "ring")
            for _ in range(3)
        ]
        assert rows[0][2:8] == ["fp32", "gloo", "2", "1", "1", "KiB"]
        assert "4: 2 KiB" in out, "a ring of two sends 2(N-1) messages of D/N each, of 1 KiB 2 KiB in all"
        assert "all_reduce backend fp32 gloo, 2 ranks:\n  1024 to 4096 B: alpha " in out
        assert "busbw as in nccl-tests; contents checked" in out
        assert re.search(r"ddp_step +overlapped .* 64 MiB", out) and re.search(r"ddp_step +after_backward", out)
        assert "exposed ms (least)" in out and "ms/step" in out
        assert "overlap = 1 - exposed / us" in out
        (row,) = [line for line in out.splitlines() if re.match(r" *ddp_step +overlapped", line)]
        us, _step, exposed, overlap = map(float, re.findall(r"-?\d+\.\d+", row))
        assert overlap == pytest.approx(1 - exposed * 1e3 / us, abs=0.02)
        assert "session" not in out and "repeat" not in out, "the same in all rows"

    def test_its_records(self, run_cli: Run, tmp_path: Path):
        store = tmp_path / "store"
        asked = ("--sizes", "1KiB,4KiB,16KiB", "--dtype", "bf16", "--store", store)
        for ranks in ("2", "2,3"):
            code, out, err = run_cli("probe", "comm", *asked, "--world-size", ranks, *QUICK, "--format", "json")
            assert (code, err) == (0, "")
        printed = json.loads(out)
        records = ResultsStore(store).records()
        assert len(records) == 9 and {record.kind for record in records} == {"comm"}
        assert sorted(record.repeat for record in records) == [0] * 6 + [1] * 3
        assert len({record.point_id for record in records}) == 6 and len({record.trial_id for record in records}) == 9
        last = printed[-1]
        assert last["record_id"] == records[-1].record_id and len(last["samples"]["ranks"]) == 3
        assert last["spec"] == records[-1].spec
        assert records[-1].spec == {
            "op": "all_reduce",
            "algorithm": "backend",
            "dtype": "bf16",
            "num_bytes": 16384,
            "in_place": True,
            "torus": None,
            "backend": "gloo",
            "device": "cpu",
            "world_size": 3,
            "nodes": 1,
        }
        assert ResultsStore(store).samples(records[-1])["ranks"] == last["samples"]["ranks"]  # type: ignore[index]
        found = last["figures"]
        assert found["algbw_bytes_per_s"] == pytest.approx(16384 / found["comm_s"])
        assert found["busbw_bytes_per_s"] == pytest.approx(16384 / found["comm_s"] * 4 / 3)
        assert found["comm_s_p5"] <= found["comm_s"] <= found["comm_s_p95"]
        frame = ResultsStore(store).frame(kind="comm")
        crowded = {record.spec["world_size"] for record in records if "oversubscribed" in record.caveats}
        assert [(key.op, key.ranks) for key in from_rows(frame)] == [
            ("all_reduce", ranks) for ranks in (2, 3) if ranks not in crowded
        ]
        _, out, _ = run_cli("results", "show", "--kind", "comm", "--by", "point", "--store", store)
        assert "busbw GB/s" in out and out.count("16 KiB") == 2
        code, out, _ = run_cli("results", "export", "csv", "--kind", "comm", "--store", store)
        assert code == 0 and out.count("all_reduce") >= 9

    def test_mistakes_are_one_line(self, run_cli: Run) -> None:
        cases = [
            ("--op", "all_reduc"),
            ("--op", "broadcast", "--algorithm", "tree"),
            ("--algorithm", "rings"),
            ("--dtype", "fp8"),
            ("--sizes", "many"),
            ("--world-size", "1"),
            ("--buckets", "1MiB"),
            ("--overlap", "--buckets", "0"),
            ("--overlap", "--buckets", "some"),
            ("--launcher", "srun"),
            ("--launcher", "slurm"),
            ("--launcher", "torchrun"),
            ("--backend", "mpi"),
            ("--session", "a/b"),
            ("--world-size", "64", "--backend", "nccl"),
        ]
        compare_messages("probe_comm", cases, lambda *arguments: error_line(run_cli, "probe", "comm", *arguments))

    def test_repeated_probes_can_be_told_apart(self, run_cli: Run, tmp_path: Path):
        """The second of a session by its repeat, which `test_its_records` sees a probe give, as it sees the rest."""
        store = tmp_path / "store"
        spec = {"op": "all_reduce", "algorithm": "backend", "dtype": "fp32", "num_bytes": 64, "backend": "gloo"}
        spec |= {"in_place": True, "torus": None, "device": "cpu", "world_size": 2, "nodes": 1}
        for session, repeat in (("a", 0), ("a", 1), ("b", 0)):
            names = dict.fromkeys(("record_id", "trial_id"), f"{session}{repeat}")
            record = made_record(repeat, **names, kind="comm", spec=spec, figures={"comm_s": 1e-5}, session=session)
            ResultsStore(store).append(record)
        out = run_cli("results", "show", "--kind", "comm", "--store", store)[1]
        cells = [re.findall(r" ([ab]) +(\d) +ok", line) for line in out.splitlines() if "all_reduce" in line]
        assert sorted(cells) == [[("a", "0")], [("a", "1")], [("b", "0")]]
        assert "host" not in out, "it is the same in all rows"
        out = run_cli("results", "show", "--store", store)[1]
        assert f"no records of kind trial in {store}; it has --kind comm (3)" in out

    def test_a_failure_is_a_row_and_the_exit_code(self, run_cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        from benchsuite.probe.comm import probe

        monkeypatch.setattr(probe, "TASK", "tests.helpers.commfaults:killed")
        asked = ("--op", "reduce,broadcast", "--sizes", "64", "--store", tmp_path / "store")
        code, out, _ = run_cli("probe", "comm", *asked, *QUICK)
        assert code == 3 and re.search(r"broadcast .* failed: rank 1.*SIGKILL", out)
        statuses = [record.status for record in ResultsStore(tmp_path / "store").records()]
        assert sorted(statuses) == ["failed", "ok"]

    @pytest.mark.full
    def test_the_work_folder_in_a_store_is_removed(self, run_cli: Run, tmp_path: Path):
        store = tmp_path / "store"
        code, _, err = run_cli("probe", "comm", "--launcher", "torchrun", "--sizes", "64", "--store", store, *QUICK)
        assert code == 0, err
        (record,) = ResultsStore(store).records()
        assert (record.status, record.env["launcher"]) == ("ok", "torchrun")
        assert not list(store.glob("work/*/*"))


SPEC = {"op": "all_gather", "num_bytes": 1000, "world_size": 4, "device": "cpu"}


def line(**changes: Any) -> dict[str, Any]:
    base = {"status": "ok", "reason": None, "calls": 2, "seconds": [1.0, 3.0, 2.0], "messages": 3, "sent_bytes": 750}
    return {**base, "extra": {}, **changes}


class TestFigures:
    def test_the_slowest_rank_counts_sample_by_sample(self):
        assert slowest_s([[1.0, 3.0, 2.0], [2.0, 1.0, 2.5]]) == [2.0, 3.0, 2.5]

    def test_medians_bandwidths_and_what_was_sent(self):
        found = figures(SPEC, [2.0, 3.0, 2.5], [line(), line(sent_bytes=250)])
        assert (found.comm_s, found.comm_messages, found.comm_sent_bytes) == (2.5, 6, 1000)
        assert (found.algbw_bytes_per_s, found.busbw_bytes_per_s) == (400.0, 300.0)
        assert (found.comm_s_p5, found.comm_s_p95) == (pytest.approx(2.05), pytest.approx(2.95))
        assert figures(SPEC, [2.0], [line(messages=None, sent_bytes=None)]).comm_messages is None

    def test_the_rank_with_a_reason_is_named(self):
        measuring = Measuring("comm", SPEC, "label", "s", {"host": "here"})
        record, samples = record_of(measuring, [line(status="failed"), line(status="failed", reason="x is y")])
        assert (record.status, record.reason, samples) == ("failed", "rank 1: x is y", None)

    def test_caveats(self):
        nodes = [{"ranks": [0, 3], "cores": 2}, {"ranks": [4, 4], "cores": 2}]
        measuring = Measuring("comm", {**SPEC, "world_size": 5}, "label", "s", {"nodes": nodes})
        assert caveats(measuring, [1.0, 1.0, 1.0]) == ["oversubscribed: 4 ranks on 2 cores"]
        on_device = Measuring("comm", {**SPEC, "device": "cuda"}, "label", "s", {"nodes": nodes})
        assert caveats(on_device, [1e-6, 2e-6, 3e-6, 4e-6, 5e-6]) == ["not_steady: half of the samples lie 2 to 4 us"]

    def test_a_step_of_ddp(self):
        """Two ranks, three steps, by hand: exposed 3, 1, 2 of the rank that waits least against 3, 3, 4 alone."""
        ranks = [
            {"forward_s": [1, 1, 1], "backward_s": [5, 6, 7], "communication_s": [3, 5, 2], "alone_s": [4, 3, 4]},
            {"forward_s": [2, 2, 2], "backward_s": [5, 5, 5], "communication_s": [9, 1, 8], "alone_s": [3, 4, 5]},
        ]
        found = step_figures([10.0, 12.0, 14.0], ranks)
        assert (found.forward_s, found.backward_s) == (2.0, 6.0)
        assert (found.communication_s, found.communication_min_s) == (8.0, 2.0)
        assert (found.comm_s, found.overlap_fraction) == (3.0, pytest.approx(1 / 3))
        assert (found.step_s_mean, found.step_s_p50) == (12.0, 12.0)

    def test_sizes_in_words(self):
        assert [in_binary(size) for size in (1000, 1024, 1 << 20, 3 << 30, 1536, None)] == [
            "1000 B",
            "1 KiB",
            "1 MiB",
            "3 GiB",
            "1536 B",
            "-",
        ]


def test_ranks_without_cores_of_their_own_are_told_to_have_no_fit():
    rows = [{"spec.world_size": ranks, "caveats": caveats} for ranks, caveats in ((2, []), (4, ["oversubscribed"]))]
    assert unfitted(rows[:1]) == []
    assert unfitted([*rows, {"spec.world_size": 3, "caveats": ["not_steady", "oversubscribed"]}]) == [
        "no alpha and beta of 3, 4 ranks, more than there are cores: times are those of waiting for a core"
    ]
