"""The documents tell the truth: verbs, files and fields they name exist."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.__main__ import SECTIONS
from benchsuite import run_trial
from benchsuite.cli.app import EXAMPLES, VERBS, added_verbs, load_verb, run_command
from benchsuite.contract.errors import UserError
from benchsuite.contract.trial_spec import parse_sweep, parse_trial
from benchsuite.grid.mistakes import sweep_mistakes
from benchsuite.workloads import WorkloadError

ROOT = Path(__file__).parent.parent
SWEEPS, EXTENDING = (
    (Path(__file__).parent.parent / "docs" / name).read_text() for name in ("sweeps.md", "extending.md")
)
README = (ROOT / "README.md").read_text()
PAGES = tuple(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "BENCHMARKS.md", "CHANGELOG.md", *PAGES)
COMMANDS = ("README.md", *PAGES)
"""Documents whose commands are typed as they stand."""


def verbs() -> list[tuple[str, ...]]:
    """The verbs of every `benchsuite ...` command in the documents."""
    found = set()
    for name in DOCUMENTS:
        for words in re.findall(r"(?:`|^)benchsuite ((?:data |results )?[a-z]+)", (ROOT / name).read_text(), re.M):
            found.add(tuple(words.split()))
    return sorted(found)


@pytest.mark.parametrize("verb", verbs(), ids=" ".join)
def test_verbs_exist(verb: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([*verb, "--help"]) == 0
    assert verb[-1] in capsys.readouterr().out


def test_every_verb_is_in_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    run_command(["--help"])
    listed = re.findall(r"^  ([a-z]+) ", capsys.readouterr().out.partition("Start:")[2], re.M)
    assert set(listed) == {*VERBS, *added_verbs()}
    for verb in listed:
        assert re.search(rf"benchsuite {verb}\b|`{verb}`", README), f"{verb} is not in the README"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_files_that_are_named_exist(name: str) -> None:
    text = (ROOT / name).read_text()
    for path in re.findall(
        r"\b(?:benchsuite|storage|workloads|results|bench|tests|planner)/[A-Za-z0-9_/.]*[A-Za-z0-9_]", text
    ):
        assert (ROOT / path).exists(), f"{name} names {path}"
    for path in re.findall(r"\b[A-Z]+\.md\b", text):
        assert (ROOT / path).exists(), f"{name} names {path}"


def test_each_section_of_the_benchmarks_is_a_file() -> None:
    for name in SECTIONS:
        assert "\ndef show(" in (ROOT / "bench" / f"{name}.py").read_text(), f"bench/{name}.py has no show"
    assert {path.stem for path in (ROOT / "bench" / "results").glob("*.json")} <= SECTIONS.keys()


def test_what_to_change_is_where_contributing_says() -> None:
    rows = re.findall(r"^\| [^|]+ \| `([^`|]+)` \| ([^|]+) \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    assert len(rows) >= 20
    for path, names in rows:
        text = (ROOT / path).read_text()
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"^(def |class |){name}\b", text, re.M), f"{path} has no {name}"


def commands(text: str) -> list[str]:
    """What is typed in a document's blocks of code, or in its text between backquotes: from `benchsuite` on."""
    found = re.findall(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*(benchsuite [a-z].*)$", text, re.M)
    found += re.findall(r"`(benchsuite [a-z][^`]*)`", text)
    return [re.split(r" # | \| | > | && ", line)[0] for line in found]


def leaf(words: list[str]) -> tuple[str, Any, list[str]]:
    """The verb that a command runs: its words, its definition, and what follows it."""
    command, path = load_verb(words[0]), [words[0]]
    rest = words[1:]
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest[0]]
        path.append(rest.pop(0))
    return " ".join(path), command, rest


@pytest.mark.parametrize("name", COMMANDS)
def test_options_in_commands_exist(name: str) -> None:
    for line in commands((ROOT / name).read_text()):
        words = line.partition(" -- ")[0].split()[1:]
        if words[0].split("|")[0] not in {*VERBS, *added_verbs()}:
            continue
        _, command, rest = leaf(words)
        known = {option for one in command.params for option in one.opts} | {"--help", "-h"}
        given = [word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)]
        assert set(given) <= known or hasattr(command, "commands"), f"{name}: {line}"


def leaves(words: str, command: Any) -> list[str]:
    inner = getattr(command, "commands", {})
    return [one for name, each in inner.items() for one in leaves(f"{words} {name}", each)] or [words]


def test_every_verb_has_an_example_that_can_be_typed() -> None:
    assert {one for name in VERBS for one in leaves(name, load_verb(name))} == set(EXAMPLES)
    for words, lines in EXAMPLES.items():
        for line in lines:
            assert line.startswith(f"benchsuite {words}"), line
            path, command, rest = leaf(line.partition(" -- ")[0].split()[1:])
            assert path == words
            known = {option for one in command.params for option in one.opts}
            assert {word for word in rest if re.match(r"--?[a-z]", word)} <= known, line


@pytest.mark.slow
def test_the_documentation_builds_without_a_warning(tmp_path: Path) -> None:
    """Links and anchors exist, and the page of reference is made from the code."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    page = (tmp_path / "site" / "reference.html").read_text()
    assert all(
        text in page
        for text in ("benchsuite data convert", "measure.epochs", "au_epoch_rule", "a regression was found")
    )
    assert "<!-- " not in page.partition("<article")[2].partition("</article")[0]


def test_the_sweep_in_the_documentation_is_one() -> None:
    block = next(text for text in re.findall(r"```yaml\n(.*?)```", SWEEPS, re.S) if "grid:" in text)
    value = yaml.safe_load(block)
    assert [*sweep_mistakes(value)] == []
    sweep = parse_sweep(value)
    assert parse_trial(sweep.base).global_batch == 64


def test_the_exit_codes_in_the_readme() -> None:
    from benchsuite.contract import exit_codes

    for code in (
        exit_codes.OK,
        exit_codes.USAGE,
        exit_codes.SOME_FAILED,
        exit_codes.NOTHING_RAN,
        exit_codes.REQUEUE,
        exit_codes.INTERRUPTED,
    ):
        assert re.search(rf"\b{code}\b", README)


def test_the_model_in_the_documentation_trains(tmp_path: Path) -> None:
    """As long as promised, and as it stands there."""
    (block,) = [text for text in re.findall(r"```python\n(.*?)```", EXTENDING, re.S) if "WORKLOAD = Workload(" in text]
    assert len([line for line in block.splitlines() if line.strip()]) <= 30
    file = tmp_path / "my_model.py"
    file.write_text(block)
    spec = {"workload": f"{file}:WORKLOAD", "variant": "tiny", "batch_size": 4, "data": {"source": "synthetic"}}
    record = run_trial({**spec, "measure": {"steps": 4, "warmup_steps": 1}})
    assert (record.status, record.reason) == ("ok", None)
    assert record.figures.final_loss is not None and 5 < record.figures.final_loss < 9
    assert record.figures.parameters == 3 * 32 * 49 + 32 + 32 * 1000 + 1000


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gone.py:WORKLOAD", "is no Python file"),
        ("empty.py:WORKLOAD", "no WORKLOAD in"),
        ("broken.py:WORKLOAD", "cannot be run: ZeroDivisionError"),
        ("number.py:WORKLOAD", "is int, not a benchsuite.workloads.workload.Workload"),
    ],
)
def test_mistakes_in_a_model_of_ones_own_are_told_in_one_line(tmp_path: Path, name: str, words: str) -> None:
    for file, text in (("empty", ""), ("broken", "1 / 0"), ("number", "WORKLOAD = 5")):
        (tmp_path / f"{file}.py").write_text(text)
    with pytest.raises((UserError, WorkloadError)) as caught:
        run_trial({"workload": f"{tmp_path / name}", "batch_size": 4, "data": {"source": "synthetic"}})
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_the_formulas_of_the_theory_page_are_the_codes() -> None:
    """Its table of messages and bytes, worked out for numbers of ranks that are powers of two, with D = 1."""
    from benchsuite.predict.theory.collectives import TRAFFIC, traffic
    from benchsuite.probe.comm.step_tables import torus_shape

    rows = re.findall(r"^\| `(\w+)`[^|]*\| (.*) \|$", (ROOT / "docs" / "theory.md").read_text(), re.M)
    assert [name for name, _ in rows] == list(TRAFFIC)
    for name, cells in rows:
        for ranks in (2, 4, 16):
            in_row, num_rows = torus_shape(ranks)
            known = {"N": ranks, "D": 1, "log": ranks.bit_length() - 1, "X": in_row, "Y": num_rows}
            given = [_worked_out(cell, known) for cell in cells.split("|")]
            form = traffic(name, ranks)
            assert given == pytest.approx([form.steps, form.peak, form.messages, form.busiest, form.total]), name


def _worked_out(formula: str, known: dict[str, int]) -> float:
    """A formula such as 2(N-1)/N D, where what stands side by side is multiplied."""
    parts = re.findall(r"log|\d+|[A-Z]|[-+/()]", formula.replace("log N", "log"))
    return float(eval(re.sub(r"(?<=[\w)]) (?=[\w(])", "*", " ".join(parts)), {}, known))
