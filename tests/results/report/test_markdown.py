"""The report on a whole store."""

from pathlib import Path

from benchsuite.results.report.markdown import report
from benchsuite.results.store.store import ResultsStore
from tests.results.made import made_record
from tests.results.scaled import made_trials

VERSION_1 = Path(__file__).parent.parent / "store" / "fixtures" / "version-1"


def test_a_section_per_sweep_headed_by_its_question():
    text = report(ResultsStore(VERSION_1))
    heads = [line for line in text.splitlines() if line.startswith("## ")]
    assert heads == ["## Does a version 1 record stay readable?", "## late"]


def test_every_trial_and_every_trouble_is_told():
    text = report(ResultsStore(VERSION_1))
    for trial in ("f6ef9fdcd96b.default.0", "f6ef9fdcd96b.default.1", "0b6a9cbaa9d5.default.0"):
        assert sum(f"| {trial} |" in line for line in text.splitlines()) == 1
    (line,) = [line for line in text.splitlines() if "parallelism none has 1 rank, world_size is 2" in line]
    assert "2 ranks" in line and "skipped" in line
    assert "No point has a result." in text.split("## late")[1]
    assert "4 of 4 trials ok · read by tuned · cold verified by mincore in 2 of 2 · 1 skipped" in text


def test_efficiencies_and_where_it_comes_from(tmp_path: Path):
    store = ResultsStore(tmp_path)
    for record in made_trials({1: [100.0, 100.0], 2: [160.0, 160.0]}, env={"commit": "abc1234"}):
        store.append(record)
    text = report(store)
    assert "## weak · resnet50 tiny synthetic fp32 ddp · 8 per rank" in text
    assert "Efficiency 0.80" in text and "| 2 | 160.0" in text
    *_, origins = text.split("**Where this comes from**")
    assert "- commit: abc1234" in origins and "benchsuite sweep" in origins


def test_points_stand_in_the_section_of_their_sweep(tmp_path: Path):
    store = ResultsStore(tmp_path)
    store.append(made_record(0, sweep="one", label="apple"))
    store.append(made_record(1, sweep="two", label="pear", point_id="other"))
    one, two = report(store).split("## ")[1:]
    assert "apple" in one and "pear" not in one
    assert "pear" in two and "apple" not in two
