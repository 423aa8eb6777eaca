"""Heavy imports stay out, and files and functions stay short; import-linter holds the directions (`make lint`)."""

import ast
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchsuite import storage
from benchsuite.results.store.store import ResultsStore
from benchsuite.workloads.flops import count
from benchsuite.workloads.resnet50 import WORKLOAD as RESNET50

ROOT = Path(__file__).parents[1]
PACKAGES = ("storage", "workloads", "results", "benchsuite", "planner/benchsuite_plan")
WORKLOADS = ["resnet50", "unet3d", "bert", "gpt_neox"]
HEAVY = ["torch", "scipy.stats", "scipy.optimize", "plotly", "benchsuite.storage.create.convert", "pandas"]
MAX_FUNCTION_LINES = 60
MAX_FILE_LINES = 600


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def in_new_process(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_packages_are_where_this_test_looks():
    assert all(len(sources(package)) > 3 for package in PACKAGES)


LIGHT = (
    "benchsuite.cli.app",
    *("benchsuite.contract.trial_spec", "benchsuite.cli.inspect", "benchsuite.storage.dataset.spec"),
    *("benchsuite.workloads.spec", "benchsuite.contract.errors"),
    *("benchsuite.cli.data", "benchsuite.storage.create.convert", "benchsuite.storage.dataset.verify"),
    *("benchsuite.cli.report", "benchsuite.results.store.frames", "benchsuite.results.report.markdown"),
)


def test_leaves_torch_out():
    """One process for all: what none of them has imported, none of them imports by itself."""
    code = f"import sys, {', '.join(LIGHT)}; print('torch' in sys.modules)"
    assert in_new_process(code) == "False\n"


def test_commands_leave_torch_out():
    code = """
import sys
from benchsuite.cli.app import run_command
for words in (["--help"], ["sweep", "--help"], ["list"], ["schema", "trial"]):
    assert run_command(words) == 0
    assert "torch" not in sys.modules, words
"""
    in_new_process(code)


MODELS = {
    "base": {"variant": "tiny", "batch_size": 4, "world_size": 2, "data": {"source": "synthetic"}},
    "grid": {"workload": WORKLOADS, "parallelism": ["ddp", "zero1", "fsdp", "tp", "pp", {"dp": 2, "ep": 2}]},
}
"""Legal or not, and in every case decided by what is known of the four workloads."""


def imported_by(folder: Path, *commands: list[str], codes: set[int] | None = None) -> str:
    """Which of the heavy modules a process has imported that has run these commands, one after another."""
    code = f"""
import sys
from benchsuite.cli.app import run_command
codes = {{run_command([*words, "--store", "{folder}/store"]) for words in {commands!r}}}
assert codes == {codes or {0}}, codes
print([name for name in {HEAVY} if name in sys.modules])
"""
    return in_new_process(code).splitlines()[-1]


def written(folder: Path, sweep: dict[str, Any]) -> str:
    path = folder / "s.yaml"
    path.write_text(yaml.safe_dump(sweep))
    return str(path)


def test_planning_takes_neither_torch_nor_tables(tmp_path: Path):
    """Nor does asking how a session stands, or writing the scripts of its jobs."""
    file = written(tmp_path, MODELS)
    job = ["--nodes", "1", "--ranks-per-node", "2", "--time", "01:00:00", "--out", str(tmp_path / "jobs"), "--dry-run"]
    commands = ["sweep", file, "--dry-run"], ["status", file], ["submit", "slurm", file, *job]
    assert imported_by(tmp_path, *commands) == "[]"


def test_planning_over_every_format_and_loader(tmp_path: Path, dataset_root: Path):
    base = {"workload": "resnet50", "variant": "tiny", "batch_size": 2, "data": {"root": str(dataset_root)}}
    grid = {"data.format": [path.name for path in dataset_root.iterdir()], "data.loader": [*storage.LOADERS]}
    file = written(tmp_path, {"base": {**base, "measure": {"steps": 2, "warmup_steps": 1}}, "grid": grid})
    assert imported_by(tmp_path, ["sweep", file, "--dry-run"]) == "[]"


def test_refusing_a_sweep_file_takes_neither(tmp_path: Path):
    wrong: tuple[dict[str, Any], ...] = (
        {"workload": "resnet51"},
        {"workload": "resnet50", "variant": "tny"},
        {"workload": "resnet50", "variant": "tiny", "batchsize": 2},
        {"workload": "resnet50", "variant": "tiny", "data": {"root": "nowhere"}},
    )
    commands = []
    for number, changes in enumerate(wrong):
        (tmp_path / str(number)).mkdir()
        values = {"base": {"batch_size": 4, "measure": {"steps": 2}, **changes}}
        commands.append(["sweep", written(tmp_path / str(number), values)])
    assert imported_by(tmp_path, *commands, codes={2}) == "[]"


def test_a_sweep_and_its_report_take_no_torch(tmp_path: Path, dataset_root: Path):
    """Ranks have it; what plans, watches, judges and records them has not, and its tables come with pandas alone."""
    data = {"root": str(dataset_root), "num_workers": 0, "cache": "warm"}
    base = {"workload": "resnet50", "variant": "tiny", "batch_size": 2, "data": data}
    base |= {"measure": {"steps": 2, "warmup_steps": 1, "repeats": 1, "ceilings": False}}
    file = written(tmp_path, {"base": base, "grid": {"data.loader": ["threads", "torch"]}})
    found = imported_by(tmp_path, ["sweep", file], ["report"], ["results", "show"])
    assert found == "['pandas']"
    records = [record for record in ResultsStore(tmp_path / "store").latest() if record.kind == "trial"]
    assert [record.status for record in records] == ["ok"] * 2
    assert {record.spec["data"]["reader"] for record in records} == {"tuned", "stock"}
    counted = asdict(count(RESNET50, RESNET50.variants["tiny"]))
    for record in records:  # the first one's rank counted, the others' were told
        assert record.figures.parameters == counted["parameters"]
        assert record.figures.flops_per_sample == counted["forward_flops"] + counted["backward_flops"]


def test_data_verbs_leave_torch_out(tmp_path: Path):
    code = f"""
import sys
from benchsuite.cli.app import run_command
if __name__ == "__main__":
    for workload in {WORKLOADS!r}:
        made, other = (f"{tmp_path}/{{workload}}-{{name}}" for name in "ab")
        asked = ["--workload", workload, "--variant", "tiny"]
        assert run_command(["data", "generate", made, *asked, "--samples", "2"]) == 0
        assert run_command(["data", "convert", made, other, *asked, "--format", "hdf5"]) == 0
        assert run_command(["data", "verify", made, other]) == 0
        assert "torch" not in sys.modules, workload
"""
    in_new_process(code)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_function_is_long(package: str):
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"
        for path in sources(package)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno + 1 > MAX_FUNCTION_LINES
    ]
    assert found == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_file_is_long(package: str):
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in sources(package)}
    assert {path: count for path, count in lines.items() if count > MAX_FILE_LINES} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_says_its_purpose(package: str):
    assert [str(path) for path in sources(package) if not ast.get_docstring(ast.parse(path.read_text()))] == []
