"""Users' tables: columns by many names, times in many units, series in them; and the error lines."""

import json
from pathlib import Path

import pytest

from benchsuite.contract.errors import UserError
from benchsuite.predict.table import families, words
from benchsuite.predict.table_series import curves, read


@pytest.fixture
def table(tmp_path: Path):
    def write(text: str, name: str = "t.csv") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("ranks,step_s\n1,0.5\n2,0.6\n", [0.5, 0.6]),
        ("gpus,ms/step\n1,500\n2,600\n", [0.5, 0.6]),
        ("GPUs,batch size,images/s\n1,32,64\n2,32,128\n", [0.5, 0.5]),
        ("gpus,step (s),steps\n1,0.5,1000\n2,0.6,1000\n", [0.5, 0.6]),
        ("gpus,Iteration_S,iterations,s/step\n1,0.5,10,0.5\n", [0.5]),
        ("gpus,seconds,step_s\n1,3600,0.5\n", [0.5]),
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


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", "gpus;step_s;model\n1;0.5;a, b\n2;0.6;a, b\n"),
        ("t.tsv", "gpus\tstep_s\tmodel\n1\t0.5\ta, b\n2\t0.6\ta, b\n"),
        ("t.csv", "\ufeffgpus;step_s;model\r\n1;0.5;a, b\r\n2;0.6;a, b\r\n"),
        ("t.jsonl", '{"gpus": 1, "step_s": 0.5, "model": "a, b"}\n\n{"gpus": 2, "step_s": 0.6, "model": "a, b"}\n'),
    ],
)
def test_other_separators_and_json_lines(table, name: str, text: str):
    frame = read(table(text, name))
    assert (frame["ranks"].tolist(), frame["step_s"].tolist()) == ([1, 2], [0.5, 0.6])
    assert frame["model"].tolist() == ["a, b"] * 2


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("ranks,step_s\n", "no rows"),
        (
            "ranks,when\n1,2\n",
            "no column of step_s or step_ms or samples_per_s or tokens_per_s or tps_per_gpu; it has ranks, when",
        ),
        ("rank,step_s\n1,2\n", "no column of ranks or nodes; it has rank, step_s; rename rank to ranks"),
        (
            "ranks,steptime\n1,2\n",
            "it has ranks, steptime; rename steptime to step_s where it holds seconds, to",
        ),
        ("ranks,step_s\n1,0.5\n2,fast\n", "step_s 'fast' in row 2 is not a number"),
        ("ranks;step_s\n1;0,5\n", "step_s '0,5' in row 1 is not a number; write 1234.5 for 1,234.5 and 0.5 for 0,5"),
        ('ranks,step_s\n"1,024",2\n', "ranks '1,024' in row 1 is not a number; write 1234.5 for 1,234.5"),
        ("ranks,tokens_per_s\n1,10\n", "tokens_per_s or tps_per_gpu without a column of seq_len"),
        ("gpus,step_s\n1,0.5\n,0.6\n", "row 2 has no ranks"),
        ("gpus,step_s\n1,0.5\n2,0.6,7\n", "row 2 has more cells than the header's 2 columns"),
        ("gpus,step_s\n1,inf\n", "step_s inf in row 1 is not allowed; allowed: a finite number above 0"),
        ("gpus,step_s\n1,0.5\n2,-1\n", "step_s -1 in row 2 is not allowed"),
        ("gpus,step_s\n1.5,0.5\n", "ranks 1.5 in row 1 is not allowed; allowed: a whole number, 1 or above"),
        ("gpus,step_s\n0,0.5\n", "ranks 0 in row 1 is not allowed"),
        ("gpus,step_s\nnone,0.5\n", "ranks 'none' in row 1 is not a number"),
        ("gpus,steps\n1,1000\n2,1000\n", "no column of step_s or step_ms"),
        ("gpus,steps/s\n1,2\n2,1.9\n", "no column of step_s or step_ms"),
        ("gpus,step/s\n1,2\n2,1.9\n", "no column of step_s or step_ms"),
        (
            "gpus,step_s,ms/step\n1,0.5,500\n2,0.6,900\n",
            "row 2: step_ms 900 tells a step of 0.9 s, another column 0.6 s",
        ),
        (
            "gpus,global_batch,step_s,samples/s\n1,64,0.5,128\n2,64,0.5,256\n",
            "row 2: samples_per_s 256 tells a step of 0.25 s, another column 0.5 s",
        ),
        ("gpus,batch,step_s\n1,2,1\n", "column 'batch': name it batch_size (of a rank) or global_batch_size (of all)"),
        ("gpus,batch_size,step_s\n2,8,0.5\n2,,0.5\n", "row 2 has no batch_size; every row needs one"),
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


def test_rounding_is_no_disagreement(table):
    frame = read(table("gpus,global_batch,step_s,ms/step,samples/s\n1,64,0.37,372.2,172\n"))
    assert frame["step_s"].tolist() == [0.37]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"columns": ["gpus", "step_s"], "rows": [1, 2]}', "row 1 is not a list of 2 cells"),
        ('{"columns": ["gpus", "step_s"], "rows": [[1, 2], [1]]}', "row 2 is not a list of 2 cells"),
        ('[{"gpus": {"count": 1}, "step_s": 0.5}]', "ranks {'count': 1.0} in row 1 is not a number"),
        ('[{"gpus": [1], "step_s": 0.5}]', "ranks [1.0] in row 1 is not a number"),
        ('[{"gpus": null, "step_s": 0.5}]', "row 1 has no ranks"),
        ('[{"gpus": 1, "step_s": 1e999}]', "step_s inf in row 1 is not allowed"),
        (f'[{{"gpus": 1, "step_s": 1{"0" * 400}}}]', "step_s inf in row 1 is not allowed"),
        ('[{"gpus": 1, "step_s": 0.5}, {"gpus": 2}]', "row 2 has no step_s"),
        ('[{"gpus": 1, "step_s": 0.5}, 3]', "allowed: a list of objects"),
    ],
)
def test_json_error_lines(table, text: str, line: str):
    with pytest.raises(UserError) as caught:
        read(table(text, "a.json"))
    assert line in str(caught.value) and str(caught.value).startswith("table ") and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a.csv", "a.json"])
def test_another_encoding(tmp_path: Path, name: str):
    (tmp_path / name).write_bytes("gpus,step_s\n1,0.5\n".encode("utf-16"))
    with pytest.raises(UserError, match=r"a\.(csv: allowed: CSV|json: allowed: JSON) in UTF-8: "):
        read(tmp_path / name)


def test_how_a_table_was_read_is_told(table):
    frame = read(table("GPUs,model,mfu,step_s,gpu_hours\n1,a,0.5,0.5,1\n2,a,0.4,0.6,2\n"))
    assert frame.attrs["read"] == (
        "read: ranks (GPUs), step_s; rows that differ in model are series of their own; not used: mfu, gpu_hours; "
        "no batch: one sample a rank and step is assumed"
    )
    assert "no batch" not in read(table("gpus,batch_size,step_s\n1,8,0.5\n")).attrs["read"]


def test_families_differ_in_more_than_ranks(table):
    text = "gpus,model,batch_size,step_s\n1,a,8,0.5\n2,a,8,0.6\n1,b,8,0.7\n"
    frame = read(table(text))
    assert families(frame).tolist() == [0, 0, 1]
    assert words(frame, 2, range(3)) == "b"


def test_results_tell_no_families_apart_but_labels_and_settings_do(table):
    frame = read(table("gpus,step_s,mfu,gpu_hours\n1,0.5,0.51,1.0\n2,0.6,0.48,2.4\n"))
    assert families(frame).tolist() == [0, 0] and words(frame, 1, range(2)) == ""
    frame = read(table("gpus,step_s,model,mfu\n1,0.5,1.3,0.5\n2,0.6,1.3,0.4\n1,0.9,7,0.5\n"))
    assert families(frame).tolist() == [0, 0, 1], "a model's name may be a number"
    frame = read(table('[{"gpus": 1, "step_s": 1, "fused": true}, {"gpus": 1, "step_s": 2, "fused": false}]', "a.json"))
    assert families(frame).tolist() == [0, 1]


class TestCurves:
    def test_weak_where_the_batch_of_a_rank_is_fixed(self, table):
        first, second = curves(
            read(table("gpus,model,batch_size,step_s\n2,a,8,0.6\n1,a,8,0.5\n1,a,8,0.52\n1,b,8,0.7\n")), "t"
        )
        assert (first.title, first.kind, first.batch) == ("t a", "weak", 8)
        assert [(point.ranks, point.step_s) for point in first.points] == [(1, (0.5, 0.52)), (2, (0.6,))]
        assert first.samples(4) == 32
        assert len(second.points) == 1

    def test_strong_where_that_of_all_is(self, table):
        (found,) = curves(read(table("gpus,global_batch,step_s\n1,64,1.0\n2,64,0.52\n")), "t")
        assert (found.kind, found.batch, found.samples(8)) == ("strong", 64, 64)

    def test_rows_whose_batch_is_neither_of_a_rank_nor_of_all(self, table):
        """64 samples on 8 and 16 ranks, 8 each on 8 and 16, 4 each on 16 and 32, 128 on 16 and 32; 64 ranks alone."""
        rows = "8,64,0.5\n16,64,0.27\n16,128,0.52\n32,128,0.28\n64,1024,1.1\n"
        found = curves(read(table(f"gpus,global_batch,step_s\n{rows}")), "t")
        assert [(one.title, one.kind, one.batch, [p.ranks for p in one.points]) for one in found] == [
            ("t · 64 in all", "strong", 64, [8, 16]),
            ("t · 128 in all", "strong", 128, [16, 32]),
            ("t · 4 per rank", "weak", 4, [16, 32]),
            ("t · 8 per rank", "weak", 8, [8, 16]),
            ("t · 1024 in all", "weak", 16, [64]),
        ]
        assert [point.step_s for point in found[0].points] == [(0.5,), (0.27,)], "not 0.52, that of 128 samples"

    def test_batches_that_rounding_sets_apart_are_one(self, table):
        """128.4 and 256.1 samples by rates and times as printed."""
        (found,) = curves(read(table("gpus,ms/step,samples/s\n1,372.2,345\n2,381.0,672.2\n")), "t")
        assert (found.title, found.kind, len(found.points)) == ("t", "weak", 2)

    def test_a_row_without_a_time(self, table):
        with pytest.raises(UserError, match="row 2 has no step_s"):
            curves(read(table("gpus,step_s\n1,1.0\n2,\n")), "t")


def test_nodes_stand_in_place_of_ranks(table):
    frame = read(table("nodes,step_s\n1,2\n2,1\n"))
    assert frame["ranks"].tolist() == [8, 16]
    assert frame.attrs["read"].endswith("one sample a rank and step is assumed; 8 ranks a node are assumed")
    assert read(table("nodes,gpus_per_node,step_s\n1,4,2\n2,4,1\n"))["ranks"].tolist() == [4, 8]


def test_tokens_per_second_and_device(table):
    """8 devices with 2 samples of 1024 tokens each, 4096 tokens a second and device: half a second."""
    for name in ("tps_per_gpu", "tokens/s/gpu", "tps/gpu"):
        frame = read(table(f"gpus,batch_size,seq,{name}\n8,2,1024,4096\n16,2,1024,2048\n"))
        assert frame["step_s"].tolist() == [0.5, 1.0]


def test_ranks_that_share_samples_by_the_degrees(table):
    """16 ranks in groups of 2 x 4 have 8 samples for each of 2 groups; a microbatch counts where no batch is told."""
    (found,) = curves(read(table("gpus,tp,pp,microbatch,grad_accum,step_s\n8,2,4,2,4,1\n16,2,4,2,4,1.1\n")), "t")
    assert (found.kind, found.batch, found.data_share, found.samples(16)) == ("weak", 8, 1 / 8, 16)


def test_another_shape_is_another_series_and_layouts_are_the_planners(table):
    rows = "gpus,hidden,layers,step_s\n1,64,2,1\n2,64,2,1.1\n1,128,2,3\n2,128,2,3.1\n"
    assert [(one.title, len(one.points)) for one in curves(read(table(rows)), "t")] == [("t 64", 2), ("t 128", 2)]
    with pytest.raises(UserError) as caught:
        read(table("# GPUs,micro batch,hidden size,# layers,sequence length,step_s\n2,1,64,2,8,0.5\n"))
    assert "tells layouts (hidden_size, num_layers, seq_len, microbatch): `benchsuite plan table " in str(caught.value)
    assert str(caught.value).count("benchsuite-plan") == 1 and "\n" not in str(caught.value)
