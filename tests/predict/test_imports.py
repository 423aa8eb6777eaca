"""What importing benchsuite.predict takes along."""

import subprocess
import sys

CODE = """
import importlib, pkgutil, sys
import benchsuite.predict
names = [module.name for module in pkgutil.walk_packages(benchsuite.predict.__path__, "benchsuite.predict.")]
for name in names:
    importlib.import_module(name)
print(len(names) > 10, "torch" in sys.modules)
"""


def test_no_module_imports_torch() -> None:
    found = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert found.stdout == "True False\n"
