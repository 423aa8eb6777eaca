"""What papers take over: LaTeX tables of points, and the methods paragraph with its figures from the records."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchsuite.results.export.latex import median_of, point_tables
from benchsuite.results.export.methods import methods
from benchsuite.results.render.latex import escaped
from benchsuite.results.render.tables import rows
from benchsuite.results.store.frames import record_frame
from benchsuite.results.store.record import TrialRecord
from tests.results.made import made_record

ENV = {
    "benchsuite": "0.1.0",
    "commit": "abc",
    "host": "n1",
    "cpu": "EPYC",
    "cores": 64,
    "memory_bytes": 512 * 10**9,
    "devices": [{"name": "A100", "driver": "570"}] * 4,
    "python": "3.11.7",
    "libraries": {"torch": "2.13.0"},
    "data": {"file_system": "lustre", "server_cache": "unknown"},
}
SPEC = {
    "workload": "unet3d",
    "variant": "tiny",
    "device": "cuda",
    "precision": "bf16",
    "parallelism": {"dp": 2, "tp": 2},
    "world_size": 4,
    "batch_size": 7,
    "data": {"source": "storage", "cache": "cold", "format": "hdf5", "loader": "torch"},
    "measure": {"steps": 30, "warmup_steps": 5},
}
COLD = {"samples_per_s": 100.0, "au": 0.5, "cache_resident_before": 0.0}


def trial(number: int = 0, spec: dict[str, Any] | None = None, **changes: Any) -> TrialRecord:
    """A cold trial on a cluster; `spec` changes single values."""
    fields = {"env": ENV, "figures": COLD, "dataset": {"num_samples": 168, "stored_bytes": 21 * 10**9}} | changes
    return made_record(number, spec=SPEC | (spec or {}), **fields)


def told(*records: TrialRecord) -> str:
    return methods(rows(record_frame(list(records))))


def tables(*records: TrialRecord) -> str:
    return point_tables(record_frame(list(records)))


class TestLatex:
    def test_a_table_of_points(self):
        rates = [90.0, 100.0, 104.0]
        trials = [made_record(n, figures={"samples_per_s": rate, "au": 0.5}) for n, rate in enumerate(rates)]
        lost = made_record(3, point_id="b", label="50% & <tar>|x_y", order=1, status="oom", figures={}, caveats=["a_b"])
        question = "Is 5 % of $10 #1 {much}? "
        made = tables(*[record.model_copy(update={"question": question}) for record in [*trials, lost]])
        assert made.splitlines() == [
            r"% needs \usepackage{booktabs}",
            r"\begin{table}",
            r"\caption{Is 5 \% of \$10 \#1 \{much\}? Medians over n ok repeats; $\pm$ farthest repeat. "
            r"AU: step time with its input in memory / step time. Caveats: a: a b, b: unstable.}",
            r"\label{tab:made-default}",
            r"\begin{tabular}{lrrrll}",
            r"\toprule",
            r"point & n & AU & samples/s & verdict &  \\",
            r"\midrule",
            r"files & 3 & 0.50 $\pm$0.00 & 100 $\pm$10 & - & b \\",
            r"50\% \& \textless{}tar\textgreater{}\textbar{}x\_y & 0 & - & - & oom & a \\",
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]

    def test_both_utilizations_stand_side_by_side(self):
        """AU of the window and that of the epoch have headings of their own, and the caption tells them apart."""
        epoch = {"samples_per_s": 100.0, "au": 0.8, "au_epoch": 0.7, "au_epoch_error": 0.02, "au_epoch_rule": "window"}
        made = tables(made_record(0, figures=epoch))
        assert r"point & n & AU & AU of the epoch & samples/s \\" in made
        assert r"files & 1 & 0.80 & 0.70 $\pm$0.02 est. & 100 \\" in made
        assert "of the counted window. AU of the epoch: the same over a whole epoch" in made
        assert "; est.: estimated from the counted window, within 0.02.}" in made

    def test_an_epoch_that_was_measured_is_no_estimate(self):
        whole = {"samples_per_s": 100.0, "au": 0.8, "au_epoch": 0.7, "au_epoch_rule": "epoch"}
        assert "from its readers' start.}" in tables(made_record(0, figures=whole))

    def test_six_repeats_have_an_interval(self):
        """Of six values the 95 % interval of the median is from the least to the greatest."""
        trials = [made_record(n, figures={"samples_per_s": 1.0 + n / 10}) for n in range(6)]
        made = tables(*trials)
        assert "& 6 & 1.25 [1.00, 1.50] &" in made
        assert "Medians over n ok repeats; [ ] 95 \\% interval of the median. Caveats: a: unstable.}" in made

    def test_single_trials_have_no_spread(self):
        made = tables(made_record(0))
        assert "made. Single trials.}" in made and r"files & 1 & 100 \\" in made

    def test_sessions_are_tables_of_their_own(self):
        made = tables(made_record(0, session="mon"), made_record(1, session="tue:1"))
        assert re.findall(r"\\label{(.*)}", made) == ["tab:made-mon", "tab:made-tue:1"]
        assert r"\caption{made (session mon). " in made

    @pytest.mark.parametrize(
        ("value", "text"), [(1234.5, "1234"), (12.345, "12.3"), (0.01234, "0.012"), (0.0, "0.00"), (None, "-")]
    )
    def test_three_significant_digits(self, value: float | None, text: str):
        assert median_of({"x": value, "x_low": None, "x_high": None}, "x") == text

    def test_letters_that_fonts_print_as_others(self):
        assert escaped("a < b | 2 \u00d7 3\x1b \u2192 5 µs") == (
            r"a \textless{} b \textbar{} 2 $\times$ 3 $\rightarrow$ 5 $\mu$s"
        )

    def test_letters_that_no_font_of_its_own_has_are_told_by_number(self):
        assert escaped("é ł ß \u2014 “x” …") == "é ł ß \u2014 “x” …"
        assert escaped("✗ 中 \u1ebd \u200b\x7f\x07\ud800 ./run --fast") == ("(U+2717) (U+4E2D) (U+1EBD) ./run -{}-fast")

    @pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex here")
    def test_it_compiles(self, tmp_path: Path):
        label = "a_b \\ {c} ~ ^ % & # $ < > | ± · \u00d7 → ≤ µ"
        trials = [trial(n, label=label, question=label, caveats=["not_steady"]) for n in range(6)]
        text = f"{tables(*trials)}\n\n{escaped(methods(rows(record_frame(trials))))}"
        source = "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n" + text + "\n\\end{document}\n"
        (tmp_path / "a.tex").write_text(source)
        command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "a.tex"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout[-2000:]


class TestMethods:
    def test_every_fact_of_a_small_campaign(self):
        assert told(*[trial(n) for n in range(3)]) == (
            "Measurements were made with benchsuite 0.1.0, commit abc, on 2026-01-01 (UTC): 1 point of the "
            "configuration space in 1 session, 3 times each, 3 trials in all, each in new processes. "
            "Hardware: 1 host; EPYC; 64 cores; 512 GB of memory; accelerators: 4 x A100 (driver 570). "
            "Software: Python 3.11.7, torch 2.13.0. "
            "Workload: unet3d tiny; device cuda; precision bf16; parallelism dp 2 tp 2; ranks: 4; samples per rank "
            "and step: 7. "
            "Samples came from storage in 3 trials: format hdf5; loader torch; reader tuned; file system "
            "lustre; dataset: 168 samples of 21.0 GB. "
            "In 3 ok trials files were to be evicted from the page cache before the first read; mincore found "
            "at most 1% of their bytes resident before the measurement in 3 of them. "
            "The caches of the storage servers cannot be seen from a client; their state is unknown. "
            "Steps that were counted: 30, after warm-up steps that were not: 5. "
            "Accelerator utilization (AU) is the time a step needs with its input in memory over the time it took; it "
            "is never clipped to 1. The former was measured in the same trial (3 trials), in blocks of steps on one "
            "real batch that alternate with blocks fed by the loader. "
            "Figures of a point are medians over its ok trials in one session, with their range; they are too few for "
            "an interval. No trial bears a caveat."
        )

    def test_facts_that_differ_are_told_with_their_counts(self):
        other = trial(2, env=ENV | {"host": "n2", "libraries": {"torch": "2.12.0"}}, point_id="b", session="late")
        text = told(trial(0), trial(1), other)
        assert "2 points of the configuration space in 2 sessions, 1 to 2 times each" in text
        assert "Hardware: 2 hosts;" in text and "torch 2.13.0 (2 trials) and 2.12.0 (1 trial)" in text

    def test_a_fact_that_only_some_records_tell_is_not_told_of_all(self):
        without = {name: value for name, value in ENV.items() if name != "cpu"}
        assert "; EPYC (1 trial);" in told(trial(0), trial(1, env=without))

    def test_a_cache_state_that_was_not_reached_or_not_seen_is_not_claimed(self):
        half = trial(1, figures=COLD | {"cache_resident_before": 0.5}, caveats=["not_cold"])
        hidden = trial(2, figures=COLD | {"cache_resident_before": None}, caveats=["cache_unverified"])
        unseen = trial(4, caveats=["cache_unverified"])
        text = told(trial(0), half, hidden, unseen, trial(3, caveats=["counters_disagree"]))
        assert "In 5 ok trials files were to be evicted" in text
        assert "mincore found at most 1% of their bytes resident before the measurement in 2 of" in text
        assert "and could not tell in 2." in text
        assert "The kernel's I/O counters told another story in 1 trial." in text
        assert "Caveats, of 5 ok trials: cache unverified in 2, not cold in 1, counters disagree in 1." in text

    @pytest.mark.parametrize(
        ("cache", "figures", "words"),
        [
            ("warm", {"cache_resident_before": 1.0}, "read into the page cache .* at least 99% .* in 1 of them"),
            ("warm", {"cache_resident_before": 0.5}, "read into the page cache .* at least 99% .* in 0 of them"),
            ("direct", {"cache_resident_after": 0.02}, "O_DIRECT.* at most 5% .* resident after .* in 1 of them"),
        ],
    )
    def test_other_cache_states(self, cache: str, figures: dict[str, float], words: str):
        spec = {"data": {"source": "storage", "cache": cache}}
        assert re.search(words, told(trial(0, spec=spec, figures={"samples_per_s": 1.0} | figures)))

    def test_what_is_no_storage_and_no_accelerator_is_said(self):
        emulated = trial(0, spec={"device": "emulated:a100"})
        synthetic = trial(1, spec={"data": {"source": "synthetic"}}, figures={"samples_per_s": 1.0})
        text = told(emulated, synthetic)
        assert "In 1 trial the accelerator was emulated: no model was trained" in text
        assert "On emulated accelerators the former is the emulated step time." in text
        assert "measured in the same trial" not in text
        assert "In 1 trial the input was made on the device; these say nothing of storage." in text
        assert "AU" not in told(synthetic)

    def test_intervals_ranges_and_spread(self):
        many = [trial(n, figures=COLD | {"samples_per_s": 100.0 + n}) for n in range(6)]
        wide = [trial(10 + n, point_id="b", figures=COLD | {"samples_per_s": 100.0 + 11 * n}) for n in range(2)]
        assert "order statistics (David and Nagaraja, Order Statistics, 2003, 7.1). No" in told(*many)
        text = told(*many, *wide)
        assert "7.1), or the range at 1 point. Throughput spread by more than 10% of its median" in text
        assert "over repeats at 1 of 2 points." in text
        assert "Each figure is of a single trial: nothing is known of its spread." in told(trial(0))

    def test_what_has_no_result_is_told(self):
        lost = [trial(n, status=status, figures={}) for n, status in enumerate(["failed", "oom", "oom", "interrupted"])]
        skipped = [trial(n, status="skipped", figures={}, point_id="b") for n in (5, 6)]
        text = told(*lost, *skipped, trial(9))
        assert "Without a result: 1 failed, 2 oom, 1 interrupted of 5 trials." in text
        assert "Not run, as not possible here: 1 point." in text

    def test_caveats_without_their_arithmetic(self):
        details = {"caveats": ["not_steady"], "caveat_details": ["not_steady: the queue lost 12%"]}
        text = told(trial(0, **details), trial(1))
        assert "Caveats, of 2 ok trials: not steady in 1." in text

    def test_who_read_in_which_order_and_how_large_the_model_is(self):
        spec = SPEC | {
            "optimizer": "adamw",
            "data": SPEC["data"] | {"shuffle": True, "shuffle_buffer": 64, "reader": "stock"},
        }
        text = told(trial(0, spec=spec, env=ENV | {"reader": "pillow 13.0.0"}, figures=COLD | {"parameters": 25557032}))
        assert "25,557,032 parameters" in text and "optimizer adamw" in text and "reader stock by pillow 13.0.0" in text
        assert "order shuffled anew in each epoch, mixed in buffers of 64 samples where in shards" in text

    def test_watched_loops_are_not_passed_off_as_trials(self):
        text = told(trial(0, sweep="watch", spec={"workload": "mine.py", "measure": {}}))
        assert "1 trial in all. Of these, training loops of other programs, watched as they ran: 1." in text
        assert "new processes" not in text

    def test_records_that_know_little(self):
        assert told(made_record(0, env={}, spec={}, figures={})).startswith(
            "Measurements were made with benchsuite, on"
        )
        assert told(made_record(0, status="skipped")) == "No trial was run. Not run, as not possible here: 1 point."
        assert methods([]) == ""

    def test_latex_is_escaped(self):
        text = escaped(told(trial(0, caveats=["not_steady"], env=ENV | {"cpu": "A & B <R>"})))
        assert "not steady in 1" in text and r"A \& B \textless{}R\textgreater{};" in text and r"1\% of" in text
        assert not re.search(r"(?<!\\)[%&#$_]", text)
