"""What is installed: one name with its data, and nothing that imports torch."""

import subprocess
import sys
import zipfile
from pathlib import Path

PLANNER = Path(__file__).parents[1]
CODE = """
import importlib, pkgutil, sys
import benchsuite_plan
names = [module.name for module in pkgutil.walk_packages(benchsuite_plan.__path__, "benchsuite_plan.")]
for name in names:
    importlib.import_module(name)
print(len(names) > 20, {"torch", "benchsuite.cli.app", "benchsuite.predict.outlook"} & {*sys.modules})
"""


def test_a_wheel_takes_one_name_and_holds_every_file(tmp_path: Path):
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=PLANNER, capture_output=True, text=True, check=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as archive:
        files = {name for name in archive.namelist() if ".dist-info/" not in name}
    ours = [path for path in (PLANNER / "benchsuite_plan").rglob("*") if path.suffix in (".py", ".yaml", ".json")]
    assert files == {path.relative_to(PLANNER).as_posix() for path in ours}


def test_no_module_imports_torch():
    found = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert found.stdout == "True set()\n"
