"""Users' tables of layouts: what the suite's reader of tables reads of them, what was assumed; and the error lines."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from benchsuite.contract.errors import UserError
from benchsuite.predict.table import COLUMNS, LABELS, TIMES, families, words
from benchsuite_plan.tables.table_input import LAYOUTS, Table, TableRow, configurations, read, sources

VTRAIN = """# GPUs,global batch,micro batch,hidden size,attention heads,# layers,sequence length,tensor parallelism,\
data parallelism,pipeline parallelism,iteration time (ms)
2,16,8,1024,16,24,1024,1,1,2,372.160408
8,32,4,1024,16,24,1024,2,2,2,219.732754
4,16,4,2048,16,24,1024,1,2,2,410.490577
"""
"""The first rows of VIA-Research/vTrain's single-node table (data/; MIT), as printed there."""
SHAPE = {"hidden": 64, "layers": 2, "seq": 8, "microbatch": 1}
Write = Callable[..., Path]


@pytest.fixture
def table(tmp_path: Path) -> Write:
    def write(text: str, name: str = "t.csv") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def shaped(text: str) -> str:
    """A CSV with the columns of SHAPE before its own."""
    head, *rows = text.splitlines()
    before = ",".join(map(str, SHAPE.values()))
    return "\n".join([f"{','.join(SHAPE)},{head}", *(f"{before},{row}" for row in rows)]) + "\n"


def test_published_headings_are_understood(table: Write):
    frame = read(table(VTRAIN))
    assert frame["ranks"].tolist() == [2, 8, 4]
    assert frame["step_s"].tolist() == pytest.approx([0.372160408, 0.219732754, 0.410490577])
    runs, assumed = configurations(frame)
    assert runs.num_microbatches.tolist() == [2, 4, 2]
    assert (runs.tensor.tolist(), runs.data.tolist(), runs.pipeline.tolist()) == ([1, 2, 1], [1, 2, 2], [2, 2, 2])
    assert "recompute 0: not in the table" in assumed
    assert not any("heads" in line for line in assumed)


def test_words_of_logic(table: Write):
    frame = read(table(shaped("gpus,step_s,act_ckpt,zero\n1,0.5,True,none\n2,0.6,no,3\n3,0.7,,\n")))
    assert (frame["recompute"].tolist()[:2], frame["zero"].tolist()[:2]) == ([1, 0], [0, 3])
    runs, _ = configurations(frame)
    assert (runs.recompute[2], runs.zero[2]) == (0, 0), "defaults stand in for empty cells"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("ranks,when\n1,2\n", "no column of step_s or step_ms or samples_per_s or tokens_per_s or tps_per_gpu; it has"),
        ("rank,step_s\n1,2\n", "seq, microbatch, rank, step_s; rename rank to ranks"),
        ("gpus,step_s\n1,0.5\n2,0.6,7\n", "row 2 has more cells than the header's 6 columns"),
        (
            "gpus,heads,step_s\n1,1.5,0.5\n",
            "num_heads 1.5 in row 1 is not allowed; allowed: a whole number, 1 or above",
        ),
        ("gpus,zero,step_s\n1,0.5,0.5\n", "zero 0.5 in row 1 is not allowed; allowed: from 0 to 3, whole"),
        ("gpus,flash,step_s\n1,1,0.5\n2,some,0.5\n", "flash 'some' in row 2 is not a number"),
        ("gpus,tp,step_s\n2,2,0.5\n2,,0.5\n", "row 2 has no tensor; every row needs one, or leave the column out"),
        (
            "gpus,grad_accum,step_s,samples/s\n1,64,0.5,128\n1,64,0.5,256\n",
            "row 2: samples_per_s 256 tells a step of 0.25 s, another column 0.5 s",
        ),
    ],
)
def test_error_lines(table: Write, text: str, line: str):
    with pytest.raises(UserError) as caught:
        read(table(shaped(text)))
    assert line in str(caught.value).replace("hidden, layers, ", "")
    assert str(caught.value).startswith("table ") and "\n" not in str(caught.value)


def test_a_table_without_layouts_is_none(table: Write):
    with pytest.raises(UserError, match=r"no column of hidden_size, num_layers, seq_len; .*`benchsuite predict --t"):
        read(table("gpus,microbatch,step_s\n1,1,2\n"))
    with pytest.raises(UserError, match="row 2 has no hidden_size; every row needs one"):
        read(table("gpus,microbatch,hidden,layers,seq,step_s\n2,1,64,2,8,0.5\n2,1,,2,8,0.5\n"))


def test_rows_to_be_predicted_need_no_time(table: Write):
    assert "step_s" not in read(table(shaped("gpus,step_s\n1,0.5\n")), timed=False)
    assert read(table(shaped("gpus\n1\n")), timed=False)["ranks"].tolist() == [1]


def test_how_a_table_was_read_is_told(table: Write):
    frame = read(table(shaped("GPUs,model,mfu,step_s,gpu_hours\n1,a,0.5,0.5,1\n2,a,0.4,0.6,2\n")))
    assert frame.attrs["read"] == (
        "read: hidden_size (hidden), num_layers (layers), seq_len (seq), microbatch, ranks (GPUs), step_s; rows that "
        "differ in model are layouts of their own; not used: mfu, gpu_hours"
    )


def test_degrees_must_multiply_to_the_ranks_and_microbatches_be_whole(table: Write):
    with pytest.raises(UserError, match=r"row 1: tp 1 x pp 2 x dp 1 = 2, but 4 ranks"):
        configurations(read(table(VTRAIN.replace("\n2,16", "\n4,16"))))
    with pytest.raises(UserError, match=r"row 1: 2\.5 microbatches of 8 per rank"):
        configurations(read(table(VTRAIN.replace("\n2,16", "\n2,20"))))


def test_one_microbatch_where_no_batch_is_told_is_told(table: Write):
    runs, assumed = configurations(read(table(shaped("gpus,step_s\n2,0.5\n"))))
    assert runs.num_microbatches.tolist() == [1]
    assert "one microbatch a step: neither their number nor the batch is in the table" in assumed
    assert read(table(shaped("gpus,step_s,samples/s\n2,0.5,256\n")))["step_s"].tolist() == [0.5], "of how many is open"


def test_layouts_differ_in_more_than_ranks_and_results(table: Write):
    frame = read(table(shaped("gpus,model,batch_size,step_s,mfu\n1,1.3,8,0.5,.5\n2,1.3,8,0.6,.4\n1,7,8,0.7,.3\n")))
    assert families(frame).tolist() == sources(frame).tolist() == [0, 0, 1]
    assert words(frame, 2, range(3)) == "7"
    frame = read(table(shaped("gpus,zero,step_s\n1,0,0.5\n2,0,0.6\n1,3,0.7\n")))
    assert (families(frame).tolist(), sources(frame).tolist()) == ([0, 0, 1], [0, 0, 0])


def test_every_column_is_in_the_schema_with_its_other_names():
    schema = Table.model_json_schema()["$defs"]["TableRow"]
    assert [*schema["properties"]] == [*LAYOUTS.columns]
    assert all(each["description"] for each in schema["properties"].values())
    names = {other: name for name, column in LAYOUTS.columns.items() for other in column.also}
    assert all(LAYOUTS.name_of(other) == name for other, name in names.items())
    unlike = {other for other, name in names.items() if name not in COLUMNS}
    assert unlike <= LABELS, "what tells layouts apart tells series apart"
    assert schema["anyOf"] == [{"required": [name]} for name in TIMES]
    Table.model_validate({"columns": ["gpus", "ms/step"], "rows": [[1, 500.0], [2, None]], "source": "a paper"})


@pytest.mark.parametrize("name", LAYOUTS.columns)
def test_bounds_are_those_of_reading(name: str, tmp_path: Path):
    """What the schema refuses is refused, and what it takes is read."""
    base = {"ranks": 2, "step_s": 0.5, "seq_len": 8, "hidden_size": 64, "num_layers": 2, "microbatch": 1}
    for value in (-1, 0, 0.5, 1, 3, 4):
        row = base | {name: value}
        if name in TIMES and name != "step_s":
            del row["step_s"]
        file = tmp_path / "t.json"
        file.write_text(json.dumps([row]))
        assert takes(row) == is_read(file), (name, value)


def takes(row: dict[str, float]) -> bool:
    try:
        TableRow.model_validate(row)
    except ValidationError:
        return False
    return True


def is_read(file: Path) -> bool:
    try:
        read(file)
    except UserError as error:
        assert "is not allowed" in str(error), error
        return False
    return True
