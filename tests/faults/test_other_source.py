"""A node whose ranks would run another version of the project: no figure is measured, and both are named."""

import shutil
from pathlib import Path

import benchsuite
from tests.faults.conftest import PLUGIN, Bench


def copied(target: Path) -> Path:
    """The project's source once more, with a line more in one file."""
    source = Path(benchsuite.__file__).parent
    shutil.copytree(source, target / "benchsuite", ignore=shutil.ignore_patterns("__pycache__"))
    with (target / "benchsuite" / "workloads" / "optim.py").open("a") as file:
        file.write("\n# mended here alone\n")
    return target


def test_an_agent_of_another_version_measures_nothing_and_both_are_named(bench: Bench, tmp_path: Path) -> None:
    other = copied(tmp_path / "other")
    bench.env["OTHER_SOURCE"] = f"{other}:{PLUGIN}"
    base = {"workload": "faulty", "variant": "sound", "data": {"source": "synthetic"}, "device": "cpu"}
    path = bench.write({"name": "versions", "base": base | {"batch_size": 2, "measure": {"steps": 4, "repeats": 1}}})
    code, out, err = bench.sweep(path, "--launcher", "elsewhere")
    assert code == 2 and "Traceback" not in out + err, "a job that is started again would meet the same"
    (reason,) = (line for line in err.splitlines() if line.startswith("error: "))
    assert bench.records() == []
    assert "ranks cannot be started: node " in reason and reason.endswith(": install one of them"), reason
    assert f"from {other / 'benchsuite'}, this process {benchsuite.__version__} (source " in reason, reason
    assert bench.wait_gone() == [] and bench.leftovers() == []
