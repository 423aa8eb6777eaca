"""Scaling in words and tables."""

import csv
import io
import json
from typing import Any

import pytest

from benchsuite.results.charts.scaling import chart_of, short_names
from benchsuite.results.render.latex import as_latex, escaped
from benchsuite.results.render.tables import Column, as_csv, as_json
from benchsuite.results.report.scaling import (
    COLUMNS,
    answer,
    as_objects,
    basis,
    efficiency_cell,
    fit_line,
    markdown,
    notes,
    point_rows,
    titles,
)
from benchsuite.results.scaling.laws import Estimate, Fit
from benchsuite.results.scaling.series import Series, find_series
from benchsuite.results.store.record import TrialRecord
from benchsuite.workloads.spec import Parallelism
from tests.results.scaled import frame, made_trial, made_trials

SIX = (98.0, 99.0, 100.0, 101.0, 102.0, 103.0)


def one(rates: dict[int, list[float | None]], **changes: Any) -> Series:
    (found,) = find_series(frame(*made_trials(rates, **changes)))
    return found


def lines(series: Series) -> list[str]:
    """The table's rows as text, cells joined by |."""
    return ["|".join(column.cell(row) for column in COLUMNS) for row in point_rows(series, "")]


LOST: dict[int, list[float | None]] = {1: [None], 2: [200.0, 202.0], 4: [None], 8: [640.0, 648.0]}


def test_a_line_for_every_number_of_ranks():
    assert lines(one(LOST)) == [
        "1|-|-|-|-|-|-|failed: EIO",
        "2|201.0 ±1.0|1.00|-|-|-|-|",
        "4|-|-|-|-|-|-|failed: EIO",
        # 644 / (201 * 4); from 640 / 202 to 648 / 200, over 4. Exchange and load were not measured
        "8|644.0 ±4.0|0.80 (0.79 0.81)|-|-|-|20 %|",
    ]


def test_the_baseline_and_why_it_is_not_a_smaller_one():
    assert basis(one(LOST)) == "baseline 2 ranks (1 rank: failed) · 2 repeats"
    assert basis(one({1: [None], 2: [None]})) == "no baseline: no point has a rate"
    assert basis(one({1: [100.0], 2: [190.0, 191.0]})) == "baseline 1 rank · 1 to 2 repeats"


def test_allocations_are_counted():
    records = [
        made_trial(n, 100.0 * n, k, env={"scheduler": {"SLURM_JOB_ID": str(k % 2)}}) for n in (1, 2) for k in range(6)
    ]
    (series,) = find_series(frame(*records))
    assert basis(series) == "baseline 1 rank · 6 repeats in 2 allocations"


def test_intervals_and_ranges_are_told_apart():
    sure = one({1: list(SIX), 2: [2 * rate for rate in SIX]})
    assert "[" in efficiency_cell(point_rows(sure, "")[1])
    assert any(line.startswith("[ ] 95 % interval") for line in notes(sure))
    unsure = one({1: list(SIX[:5]), 2: [2 * rate for rate in SIX]})
    assert efficiency_cell(point_rows(unsure, "")[1]) == "1.00 (0.96 1.05)"
    assert any(line.startswith("( ) range over repeats, no interval: it takes 6") for line in notes(unsure))
    single = one({1: [100.0], 2: [190.0]})
    assert efficiency_cell(point_rows(single, "")[1]) == "0.95"
    assert any(line.startswith("one repeat") for line in notes(single))


def test_the_sentence_names_the_last_point_and_the_largest_loss():
    figures = {"load_s": 0.02, "forward_s": 0.08}
    records = [made_trial(1, 100.0, figures={"load_s": 0.0}), made_trial(2, 160.0, figures=figures)]
    (series,) = find_series(frame(*records))
    assert answer(series) == "Efficiency 0.80 at 2 ranks; most of what is lost goes to waiting for input (20 %)."
    assert answer(one({1: [100.0], 2: [200.0]})) == "Efficiency 1.00 at 2 ranks."
    assert answer(one({1: [100.0], 2: [None]})).startswith("No efficiency")


def test_titles_say_what_points_share_and_what_tells_series_apart():
    both = [
        *made_trials({1: [100.0], 2: [190.0]}, spec={"optimizer": "sgd"}),
        *made_trials({1: [100.0], 2: [190.0]}, spec={"optimizer": "adam"}),
    ]
    assert titles(find_series(frame(*both))) == [
        "weak · resnet50 tiny synthetic fp32 ddp optimizer sgd · 8 per rank",
        "weak · resnet50 tiny synthetic fp32 ddp optimizer adam · 8 per rank",
    ]
    both = [
        *made_trials({1: [100.0], 2: [190.0]}, spec={"precision": "bf16", "measure": {"repeats": 3, "timeout_s": 60}}),
        *made_trials({1: [100.0], 2: [190.0]}, spec={"batch_size": 16, "measure": {"repeats": 6, "timeout_s": 90}}),
    ]
    assert titles(find_series(frame(*both))) == [
        "weak · resnet50 tiny synthetic bf16 ddp · 8 per rank",
        "weak · resnet50 tiny synthetic fp32 ddp · 16 per rank",
    ], "what may differ within a series tells none apart"
    degrees = {"dp": None, "tp": 2, "pp": 1, "zero": 3}
    assert titles([one({2: [1.0], 4: [2.0]}, spec={"parallelism": degrees})]) == [
        "weak · resnet50 tiny synthetic fp32 dp tp 2 zero 3 · 8 per rank"
    ]


MODES = {
    "ddp": "ddp",
    "dp": {},
    "dp dp_replicate 2 zero 3": {"dp_replicate": 2, "zero": 3},
    "dp tp 2": {"tp": 2},
    "dp tp 2 sequence_parallel": {"tp": 2, "sequence_parallel": True},
    "dp tp 2 pp 4 schedule 1f1b": {"tp": 2, "pp": 4},
    "dp tp 4 pp 2 schedule 1f1b": {"tp": 4, "pp": 2},
    "dp tp 4 pp 4 schedule 1f1b": {"tp": 4, "pp": 4},
    "dp pp 2 schedule 1f1b": {"pp": 2},
    "dp pp 2 schedule gpipe": {"pp": 2, "schedule": "gpipe"},
    "dp pp 2 schedule gpipe microbatches 1": {"pp": 2, "schedule": "gpipe", "microbatches": 1},
    "dp cp 2 cp_attention ring": {"cp": 2},
    "dp cp 2 cp_attention all_to_all": {"cp": 2, "cp_attention": "all_to_all"},
    "dp ep 2": {"ep": 2},
    "dp deepspeed": {"engine": "deepspeed"},
    "dp zero 1 deepspeed": {"engine": "deepspeed", "zero": 1},
    "dp horovod": {"engine": "horovod"},
    "dp broadcast": {"engine": "broadcast"},
    "dp parameter_server": {"engine": "parameter_server"},
    "dp parameter_server num_servers 2": {"engine": "parameter_server", "num_servers": 2},
    "dp parameter_server max_staleness 0": {"engine": "parameter_server", "max_staleness": 0},
}
"""What records hold of parallelism, by what a series of them is called."""


def series_of_modes() -> list[Series]:
    """A series at 16 and 32 ranks of each mode, whose data-parallel degree is what is left."""
    records = []
    for given in MODES.values():
        for ranks in (16, 32):
            asked = Parallelism(**given) if isinstance(given, dict) else None
            inner = asked.tp * asked.pp * asked.cp if asked else 1
            degrees = given if asked is None else asked.model_dump() | {"dp": ranks // inner}
            spec = {"parallelism": degrees, "workload": "gpt_neox", "global_batch_size": 64, "batch_size": None}
            records.append(made_trial(ranks, 100.0 * ranks, spec=spec))
    return [one for one in find_series(frame(*records)) if one.kind == "strong"]


def test_modes_that_differ_share_no_title_csv_name_or_legend() -> None:
    found = series_of_modes()
    assert titles(found) == [f"strong · gpt_neox tiny synthetic fp32 {words} · 64 in all" for words in MODES]
    table = csv.DictReader(io.StringIO(as_csv([row for one in found for row in point_rows(one, titles([one])[0])])))
    assert len({row["series"] for row in table}) == len(MODES), "each alone, as `scaling --where` shows it"
    drawn = [trace["name"] for trace in chart_of(found, short_names(titles(found)), "").traces]
    assert len({*drawn}) == len(MODES) + len(["ideal"])
    some = [title for title in titles(found) if " schedule 1f1b" in title and "tp" in title]
    assert short_names(some) == ["tp 2 pp 4", "tp 4 pp 2", "tp 4 pp 4"], "a number stays with its name"


def test_degrees_that_no_mode_names_tell_series_apart_where_nothing_else_does() -> None:
    alike = ({"zero": 0, "num_servers": None}, {"zero": 0, "num_servers": 1})
    records = [one for given in alike for one in made_trials({1: [1.0], 2: [2.0]}, spec={"parallelism": given})]
    first, second = titles(find_series(frame(*records)))
    assert [first.split(" · ")[1], second.split(" · ")[1]] == [
        "resnet50 tiny synthetic fp32 dp",
        "resnet50 tiny synthetic fp32 dp num_servers 1",
    ]


def test_titles_of_stored_data_name_format_loader_and_cache():
    data = {"source": "storage", "format": "hdf5", "loader": "torch", "cache": "cold", "staging": "none"}
    series = one({1: [1.0], 2: [2.0]}, spec={"data": data, "batch_size": None, "global_batch_size": 16})
    assert titles([series]) == ["strong · resnet50 tiny hdf5 torch cold fp32 ddp · 16 in all"]


def test_where_data_lie_and_how_long_was_measured_stands_in_a_title_only_where_nothing_else_does():
    def stored(root: str, steps: int, **more: Any) -> list[TrialRecord]:
        data = {"source": "storage", "format": "hdf5", "loader": "torch", "cache": "cold", "root": root, **more}
        return made_trials({1: [1.0], 2: [2.0]}, spec={"data": data, "measure": {"steps": steps}})

    memory = made_trials({1: [1.0], 2: [2.0]}, spec={"data": {"source": "memory", "root": "/c", "num_workers": 4}})
    apart = [*stored("/a", 10, num_workers=1), *stored("/b", 20, num_workers=2), *memory]
    assert titles(find_series(frame(*apart))) == [
        "weak · resnet50 tiny hdf5 torch cold fp32 ddp num_workers 1 · 8 per rank",
        "weak · resnet50 tiny hdf5 torch cold fp32 ddp num_workers 2 · 8 per rank",
        "weak · resnet50 tiny memory fp32 ddp · 8 per rank",
    ]
    assert [
        title.partition("ddp ")[2] for title in titles(find_series(frame(*stored("/a", 10), *stored("/b", 10))))
    ] == [
        "root /a · 8 per rank",
        "root /b · 8 per rank",
    ]


def test_laws_in_words():
    estimates = (Estimate("contention", 0.0021, 0.0, 0.01), Estimate("coherency", 0.0, 0.0, None))
    peak = Estimate("peak ranks", None, 31.6, None)
    assert fit_line(Fit("USL", (*estimates, peak), 0.012)) == (
        "USL: contention 0.0021 [0 0.01], coherency 0 [0 inf], no peak below 32 ranks (misses by 1.2 %)"
    )
    assert fit_line(Fit("Karp-Flatt", (Estimate("2 ranks", 0.1, 0.05, 0.2, "range"),))) == (
        "Karp-Flatt: 2 ranks 0.1 (0.05 0.2)"
    )
    assert fit_line(Fit("Amdahl", (), problem="too few")) == "too few"


def test_too_few_points_for_a_law_are_told():
    assert notes(one({1: [100.0], 2: [190.0]}))[-2:] == [
        "Gustafson needs 3 numbers of ranks, 2 measured",
        "USL needs 4 numbers of ranks, 2 measured",
    ]


def test_mixed_environments_are_told():
    records = [made_trial(1, 100.0), made_trial(2, 190.0, env={"cpu": "another"})]
    (series,) = find_series(frame(*records), mix_environments=True)
    assert "mixed environments: cpu 'a cpu' at 1 rank, 'another' at 2 ranks" in notes(series)


def test_json_holds_points_and_laws():
    (found,) = json.loads(as_json(as_objects([one(LOST)])))
    assert (found["kind"], found["batch"], found["baseline_ranks"]) == ("weak", 8, 2)
    last = found["points"][-1]
    assert last["weak_efficiency"] == 644 / (201 * 4)
    assert last["strong_efficiency"] is None
    assert (last["weak_efficiency_low"], last["weak_efficiency_high"], last["interval"]) == (
        640 / 202 / 4,
        648 / 200 / 4,
        "range",
    )
    assert found["points"][0]["samples_per_s"] is None
    assert [fit["problem"] is None for fit in found["fits"]] == [False, False]


def test_csv_has_a_row_for_every_point():
    found = list(csv.DictReader(io.StringIO(as_csv(point_rows(one(LOST), "a title")))))
    assert [(row["series"], row["ranks"], row["status"]) for row in found] == [
        ("a title", "1", "failed"),
        ("a title", "2", "ok"),
        ("a title", "4", "failed"),
        ("a title", "8", "ok"),
    ]


def test_markdown_has_all_series():
    text = markdown([one(LOST), one({1: [100.0], 2: [190.0]})])
    assert text.count("## weak") == 2
    assert "| 8 | 644.0 ±4.0 | 0.80 (0.79 0.81) | - | - | - | 20 % |  |" in text
    assert "- baseline 2 ranks (1 rank: failed) · 2 repeats" in text


def test_a_reason_from_a_log_is_legal_latex():
    reason = "a < b & c_d 100% #1 $x ^~ {\\} | \x1b[31mred\x1b[0m\x07\x00\ud800 ✗"
    records = [*made_trials({1: [100.0], 2: [190.0]}), made_trial(4, None, reason=reason)]
    (series,) = find_series(frame(*records))
    (line,) = [line for line in as_latex(point_rows(series, ""), COLUMNS, "", "a").splitlines() if "failed" in line]
    told = r"failed: a \textless{} b \& c\_d 100\% \#1 \$x \textasciicircum{}\textasciitilde{} "
    told += r"\{\textbackslash{}\} \textbar{} red (U+2717) \\"
    assert line == f"4 & {'- & ' * 6}{told}"


def test_cells_are_no_options_of_the_line_before():
    columns = (Column("a", lambda row: row["a"]),)
    text = as_latex([{"a": "*"}, {"a": "[1]"}], columns, "", "b")
    assert r"{}* \\" in text and r"{}[1] \\" in text


def test_latex_is_escaped_and_has_its_cells():
    columns = (Column("what_%", lambda row: row["a"], right=False), Column("n", lambda row: row["b"]))
    text = as_latex([{"a": r"50 % & {x}_\ #$~^", "b": "1 ±2"}, {"a": "[0 1]", "b": ""}], columns, "a\nb_c · d", "a_b 1")
    assert text.splitlines() == [
        r"\begin{table}",
        r"\caption{a b\_c $\cdot$ d}",
        r"\label{tab:a-b-1}",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"what\_\% & n \\",
        r"\midrule",
        r"50 \% \& \{x\}\_\textbackslash{} \#\$\textasciitilde{}\textasciicircum{} & 1 $\pm$2 \\",
        r"{}[0 1] &  \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    assert escaped("plain 1.00 [0.9 1.1]") == "plain 1.00 [0.9 1.1]"


def in_jobs(num_jobs: int) -> Series:
    """Six repeats or more of 1, 2 and 4 ranks, in jobs that both points share, each with its own level."""
    records = [
        made_trial(n, n * (100.0 + 10 * (k % num_jobs)), k, env={"scheduler": {"SLURM_JOB_ID": str(k % num_jobs)}})
        for n in (1, 2, 4)
        for k in range(2 * max(num_jobs, 3))
    ]
    (found,) = find_series(frame(*records))
    return found


def test_few_jobs_give_a_range_and_laws_say_what_they_take_for_granted():
    told = notes(in_jobs(2))
    assert "( ) range over repeats within 2 jobs, no interval: it takes 6 jobs" in told
    assert any(line.startswith("laws: their intervals take repeats as independent") for line in told)
    assert any(line.startswith("[ ] 95 % interval") for line in notes(in_jobs(6)))
    assert not any(line.startswith("laws: ") for line in notes(one({1: [*SIX], 2: [*SIX], 4: [*SIX]})))


def test_nothing_is_lost_where_the_efficiency_is_above_one():
    parts = {"load_s": 0.0, "communication_s": 0.012, "communication_min_s": 0.002, "forward_s": 0.05}
    records = [made_trial(1, 100.0, figures={"load_s": 0.02}), made_trial(2, 228.0, figures=parts)]
    (series,) = find_series(frame(*records))
    assert answer(series) == "Efficiency 1.14 at 2 ranks; nothing is lost."


def test_doubtful_repeats_are_told_in_the_sentence_and_the_row():
    loaded = [made_trial(2, 60.0, 3 + k, caveats=["foreign_load"]) for k in range(3)]
    (series,) = find_series(frame(*made_trials({1: [100.0] * 3, 2: [195.0] * 3}), *loaded))
    assert answer(series).startswith("Efficiency 0.97 (0.97 0.97) at 2 ranks, without 3 doubtful repeats; ")
    assert lines(series)[1].endswith("|3 of 6 repeats left out: foreign_load")


@pytest.mark.parametrize("doubtful", [1, 2], ids=["baseline", "last"])
def test_a_sentence_that_rests_on_doubtful_repeats_alone_says_so(doubtful: int):
    rates = {1: 100.0, 2: 200.0}
    records = [
        made_trial(n, rate + k, k, caveats=["foreign_load"] if n == doubtful else ["cache_unverified"])
        for n, rate in rates.items()
        for k in range(2)
    ]
    (series,) = find_series(frame(*records))
    words = f"Every repeat on {doubtful} ranks is doubtful: foreign_load."
    assert answer(series) == f"Efficiency 1.00 (0.99 1.00) at 2 ranks. {words}"


def test_unlike_environments_that_are_no_obstacle_are_told():
    envs = [{"commit": "abc", "data": {"mount": "/a"}}, {"commit": "def", "data": {"mount": "/b"}}]
    records = [made_trial(n, 100.0 * n, env=env) for n, env in zip((1, 2), envs, strict=True)]
    (series,) = find_series(frame(*records))
    assert "environments differ: data.mount /a, /b; commit abc, def" in notes(series)
    assert as_objects([series])[0]["differing_environments"] == {"commit": ["abc", "def"], "data.mount": ["/a", "/b"]}
