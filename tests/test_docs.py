"""The documents tell the truth: verbs, files and fields they name exist."""

import re
from pathlib import Path

import pytest
import yaml

from benchsuite import run
from benchsuite.cli.app import run_command
from benchsuite.contract.errors import UserError
from benchsuite.contract.trial_spec import parse_sweep, parse_trial
from benchsuite.grid.mistakes import sweep_mistakes
from benchsuite.workloads import WorkloadError

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "BENCHMARKS.md", "CHANGELOG.md")


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
    listed = re.findall(r"^  ([a-z]+) ", capsys.readouterr().out.partition("Commands:")[2], re.M)
    assert len(listed) >= 9
    for verb in listed:
        assert re.search(rf"benchsuite {verb}\b|`{verb}`", README), f"{verb} is not in the README"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_files_that_are_named_exist(name: str) -> None:
    text = (ROOT / name).read_text()
    for path in re.findall(r"\b(?:benchsuite|storage|workloads|results|bench|tests)/[A-Za-z0-9_/.]*[A-Za-z0-9_]", text):
        assert (ROOT / path).exists(), f"{name} names {path}"
    for path in re.findall(r"\b[A-Z]+\.md\b", text):
        assert (ROOT / path).exists(), f"{name} names {path}"


def test_what_to_change_is_where_contributing_says() -> None:
    rows = re.findall(r"^\| [^|]+ \| `([^`|]+)` \| ([^|]+) \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    assert len(rows) >= 20
    for path, names in rows:
        text = (ROOT / path).read_text()
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"^(def |class |){name}\b", text, re.M), f"{path} has no {name}"


def test_the_sweep_in_the_readme_is_one() -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", README, re.S)
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


def test_the_model_in_the_readme_trains(tmp_path: Path) -> None:
    """As long as promised, and as it stands there."""
    (block,) = [text for text in re.findall(r"```python\n(.*?)```", README, re.S) if "WORKLOAD = Workload(" in text]
    assert len([line for line in block.splitlines() if line.strip()]) <= 30
    file = tmp_path / "my_model.py"
    file.write_text(block)
    spec = {"workload": f"{file}:WORKLOAD", "variant": "tiny", "batch_size": 4, "data": {"source": "synthetic"}}
    record = run({**spec, "measure": {"steps": 4, "warmup_steps": 1}})
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
        run({"workload": f"{tmp_path / name}", "batch_size": 4, "data": {"source": "synthetic"}})
    assert words in str(caught.value) and "\n" not in str(caught.value)
