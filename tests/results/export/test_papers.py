"""What papers take over: LaTeX tables of points."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from benchsuite.results.export.latex import median_of, point_tables
from benchsuite.results.render.latex import escaped
from benchsuite.results.store.frames import record_frame
from benchsuite.results.store.record import TrialRecord
from tests.results.made import made_record


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
        trials = [made_record(n, label=label, question=label, caveats=["not_steady"]) for n in range(6)]
        text = tables(*trials)
        source = "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n" + text + "\n\\end{document}\n"
        (tmp_path / "a.tex").write_text(source)
        command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "a.tex"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout[-2000:]
