"""Users' tables: columns by many names, times in many units, layouts and curves; and the error lines."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchsuite.errors import UserError
from benchsuite.predict.curves import from_table
from benchsuite.predict.layoutcurves import LayoutCurves
from benchsuite.predict.tables import configurations, families, has_layouts, read, words

VTRAIN = """# GPUs,global batch,micro batch,hidden size,attention heads,# layers,sequence length,tensor parallelism,\
data parallelism,pipeline parallelism,iteration time (ms)
2,16,8,1024,16,24,1024,1,1,2,372.160408
8,32,4,1024,16,24,1024,2,2,2,219.732754
4,16,4,2048,16,24,1024,1,2,2,410.490577
"""
"""The first rows of VIA-Research/vTrain's single-node table (data/; MIT), as printed there."""


@pytest.fixture
def table(tmp_path: Path):
    def write(text: str, name: str = "t.csv") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def test_published_headings_are_understood(table):
    frame = read(table(VTRAIN))
    assert has_layouts(frame)
    assert frame["ranks"].tolist() == [2, 8, 4]
    assert frame["step_s"].tolist() == pytest.approx([0.372160408, 0.219732754, 0.410490577])
    runs, assumed = configurations(frame)
    assert runs.num_microbatches.tolist() == [2, 4, 2]
    assert (runs.tensor.tolist(), runs.data.tolist(), runs.pipeline.tolist()) == ([1, 2, 1], [1, 2, 2], [2, 2, 2])
    assert "recompute 0: not in the table" in assumed
    assert not any("heads" in line for line in assumed)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("ranks,step_s\n1,0.5\n2,0.6\n", [0.5, 0.6]),
        ("gpus,ms/step\n1,500\n2,600\n", [0.5, 0.6]),
        ("GPUs,batch,images/s\n1,32,64\n2,32,128\n", [0.5, 0.5]),
        ("GPUs,global batch,samples/s\n1,64,64\n2,64,100\n", [1.0, 0.64]),
        ("gpus,microbatch,grad_accum,seq,tokens/s\n8,6,2,2048,196608\n", [1.0]),
    ],
)
def test_times_in_any_unit(table, text: str, seconds: list[float]):
    assert read(table(text))["step_s"].tolist() == pytest.approx(seconds)


def test_json_of_objects_and_of_columns_with_rows(table):
    objects = [{"gpus": 1, "step_s": 0.5}, {"gpus": 2, "step_s": 0.6, "note": "x"}]
    assert read(table(json.dumps(objects), "a.json"))["step_s"].tolist() == [0.5, 0.6]
    rows = {"columns": ["gpus", "step_s"], "rows": [[1, 0.5], [2, 0.6]], "source": "a paper"}
    assert read(table(json.dumps(rows), "b.json"))["ranks"].tolist() == [1, 2]


def test_words_of_logic_are_numbers(table):
    frame = read(table("gpus,step_s,act_ckpt,flash\n1,0.5,True,false\n2,0.5,full,yes\n"))
    assert (frame["recompute"].tolist(), frame["flash"].tolist()) == ([1, 1], [0, 1])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("ranks,step_s\n", "no rows"),
        ("ranks,when\n1,2\n", "no column of step_s or step_ms or samples_per_s or tokens_per_s; it has ranks, when"),
        ("rank,step_s\n1,2\n", "no column of ranks; it has rank, step_s; nearest: rank"),
        ("ranks,step_s\n1,0.5\n2,fast\n", "step_s 'fast' in row 2 is not a number"),
        ("ranks,tokens_per_s\n1,10\n", "tokens_per_s without a column of seq_len"),
    ],
)
def test_error_lines(table, text: str, line: str):
    with pytest.raises(UserError) as caught:
        read(table(text))
    assert line in str(caught.value)
    assert str(caught.value).startswith("table ") and "\n" not in str(caught.value)


def test_no_file_and_no_json(table, tmp_path: Path):
    with pytest.raises(UserError, match="no such file"):
        read(tmp_path / "none.csv")
    with pytest.raises(UserError, match="not JSON"):
        read(table("{", "a.json"))
    with pytest.raises(UserError, match="allowed: a list of objects"):
        read(table('{"rows": 3}', "a.json"))


def test_degrees_must_multiply_to_the_ranks_and_microbatches_be_whole(table):
    with pytest.raises(UserError, match=r"row 1: tp 1 x pp 2 x dp 1 = 2, but 4 ranks"):
        configurations(read(table(VTRAIN.replace("\n2,16", "\n4,16"))))
    with pytest.raises(UserError, match=r"row 1: 2\.5 microbatches of 8 per rank"):
        configurations(read(table(VTRAIN.replace("\n2,16", "\n2,20"))))


def test_families_differ_in_more_than_ranks(table):
    text = "gpus,model,batch,step_s\n1,a,8,0.5\n2,a,8,0.6\n1,b,8,0.7\n"
    frame = read(table(text))
    assert families(frame).tolist() == [0, 0, 1]
    assert words(frame, 2, range(3)) == "b"


class TestCurves:
    def test_weak_where_the_batch_of_a_rank_is_fixed(self, table):
        first, second = from_table(
            read(table("gpus,model,batch,step_s\n2,a,8,0.6\n1,a,8,0.5\n1,a,8,0.52\n1,b,8,0.7\n")), "t"
        )
        assert (first.title, first.kind, first.batch) == ("t a", "weak", 8)
        assert [(point.ranks, point.step_s) for point in first.points] == [(1, (0.5, 0.52)), (2, (0.6,))]
        assert first.samples(4) == 32
        assert len(second.points) == 1

    def test_strong_where_that_of_all_is(self, table):
        (found,) = from_table(read(table("gpus,global_batch,step_s\n1,64,1.0\n2,64,0.52\n")), "t")
        assert (found.kind, found.batch, found.samples(8)) == ("strong", 64, 64)

    def test_a_row_without_a_time(self, table):
        with pytest.raises(UserError, match="row 2 has no time above 0"):
            from_table(read(table("gpus,step_s\n1,1.0\n2,\n")), "t")


class TestLayoutCurves:
    def of(self, table, rows: int = 12) -> LayoutCurves:
        lines = ["gpus,microbatch,global_batch,hidden,layers,seq,tp,step_s"]
        for n in range(rows):
            gpus, tp, micro = 2 ** (1 + n % 3), 1 + n % 2, 2 ** (n // 3 % 3)
            data = gpus // tp
            seconds = 0.05 * micro * 16 / tp + 0.01 * tp
            lines.append(f"{gpus},{micro},{micro * 16 * data},1024,24,1024,{tp},{seconds}")
        return LayoutCurves.of(read(table("\n".join(lines))), "t.csv")

    def test_weak_keeps_microbatches_and_strong_divides_them(self, table):
        curves = self.of(table)
        weak, strong = curves.outlooks((32,), "weak"), curves.outlooks((32,), "strong")
        assert {row["ranks"] for row in (*weak, *strong)} == {32}
        assert weak[0]["samples_per_s"] > strong[0]["samples_per_s"]
        assert 0.3 < weak[0]["efficiency"] <= 1.0
        assert weak[0]["step_s_low"] < weak[0]["step_s"] < weak[0]["step_s_high"]
        shares = [weak[0][f"{name}_share"] for name in ("compute", "exchange", "bubble")]
        assert sum(shares) == pytest.approx(1)

    def test_a_layout_that_cannot_be_is_left_out(self, table):
        curves = self.of(table)
        assert all("tensor 2" not in row["label"] for row in curves.outlooks((17,), "weak"))
        with pytest.raises(UserError, match=r"t\.csv: no layout of it can be at 1024 ranks"):
            curves.outlooks((1024,), "strong")

    def test_refuses_too_far(self, table):
        curves = self.of(table)
        curves.check_reach([64], far=False)
        curves.check_reach([128], far=True)
        with pytest.raises(UserError, match=r"65 ranks are 8\.12 times the 8 measured; allowed: up to 8 times \(64\)"):
            curves.check_reach([16, 65], far=False)

    def test_back_test_holds_the_largest_back(self, table):
        rows, (fitted, summary) = self.of(table, 24).back_test()
        assert {row["ranks"] for row in rows} == {8} and len(rows) == 8
        assert fitted == "fitted to the 16 rows of up to 4 ranks"
        assert np.median([abs(row["error"]) for row in rows]) < 0.1
        assert summary.startswith("8 predicted: error median ")

    def test_a_faster_network_shortens_the_exchange(self, table):
        from dataclasses import replace

        curves = self.of(table)
        slow, fast = (replace(curves, network=factor).outlooks((16,), "weak") for factor in (0.1, 10.0))
        assert slow[1]["exchange_share"] > fast[1]["exchange_share"]
