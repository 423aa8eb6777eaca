"""What is installed: one name in site-packages, the same from a checkout and from a source distribution."""

import json
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.helpers.wheels import NO_INDEX, wheelhouse

ROOT = Path(__file__).parents[1]
BARE = ("storage", "workloads", "results")
"""Names that users give to modules of their own."""
DATA = (
    "contract/emulated_devices.yaml",
    "nightly/template/sweeps/nightly.yaml",
    "nightly/template/benchmarks/sweeps.py",
    "nightly/pages/LICENSES.txt",
    "analysis/device_peaks.yaml",
    "results/charts/page.html",
    "schemas/trial.json",
    "sweeps/demo.yaml",
)


def built(source: Path, target: Path, kind: str) -> Path:
    """A distribution of a source tree, by the build backend itself, without a network."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target)]
    subprocess.run(command, cwd=source, capture_output=True, text=True, check=True)
    (made,) = target.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return made


@pytest.fixture(scope="module")
def source_distribution(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT, tmp_path_factory.mktemp("sdist"), "sdist")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT, tmp_path_factory.mktemp("wheel"), "wheel")


def files_of(wheel: Path) -> dict[str, bytes]:
    """Path to content, but for what pip needs to know."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}


def modules() -> set[str]:
    """Every file of the product in this checkout, by its path in an installation."""
    kept = subprocess.run(
        ["git", "ls-files", "benchsuite", *BARE], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = {path for path in kept.stdout.splitlines() if not (ROOT / path).is_symlink()}
    return {path if path.startswith("benchsuite/") else f"benchsuite/{path}" for path in files}


def test_a_wheel_takes_one_name_and_holds_every_file(wheel: Path) -> None:
    files = files_of(wheel)
    assert {path.partition("/")[0] for path in files} == {"benchsuite"}
    assert {f"benchsuite/{path}" for path in DATA} <= files.keys()
    if (ROOT / ".git").exists():
        assert files.keys() == modules()


def test_a_source_distribution_gives_the_same_wheel(source_distribution: Path, wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(source_distribution) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    assert (unpacked / "README.md").is_file() and (unpacked / "pyproject.toml").is_file()
    assert files_of(built(unpacked, tmp_path / "again", "wheel")) == files_of(wheel)


SCRIPT = """
import storage, workloads, results
assert [storage.MINE, workloads.MINE, results.MINE] == [1, 1, 1]
import sys
import benchsuite
record = benchsuite.run_trial({"workload": "bert", "variant": "nano", "batch_size": 2, "data": {"source": "synthetic"},
                         "measure": {"steps": 4, "warmup_steps": 1}})
frame = benchsuite.ResultsStore("store")
print(record.status, benchsuite.__file__)
print(sorted({name.partition(".")[0] for name in sys.modules} & {"storage", "workloads", "results"}))
print({sys.modules[name].__file__.rpartition("/")[0] for name in ("storage", "workloads", "results")})
"""


def test_modules_of_the_user_are_not_in_the_way(wheel: Path, tmp_path: Path) -> None:
    """An installed wheel, and a script beside whose file lie modules that are called as our folders are."""
    site, mine = tmp_path / "site", tmp_path / "mine"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    mine.mkdir()
    for name in BARE:
        (mine / f"{name}.py").write_text("MINE = 1\n")
    (mine / "train.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "train.py"]
    ran = subprocess.run(command, cwd=mine, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    status, bare, folders = ran.stdout.splitlines()
    assert status == f"ok {site}/benchsuite/__init__.py"
    assert bare == str(sorted(BARE)) and folders == str({str(mine)})


def test_no_bare_name_is_imported() -> None:
    """Neither by the verbs nor by a trial: a second copy of a class would be another class."""
    code = """
import importlib, pkgutil, sys
import benchsuite
for module in pkgutil.walk_packages(benchsuite.__path__, "benchsuite."):
    if not module.name.startswith("benchsuite.__main__"):
        try:
            importlib.import_module(module.name)
        except ImportError as error:  # of an extra that is not installed
            assert not (error.name or "").startswith("benchsuite"), error
print(sorted({name.partition(".")[0] for name in sys.modules} & {"storage", "workloads", "results"}))
"""
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout.splitlines()[-1:]) == (0, ["[]"]), ran.stderr


CORE = ("numpy", "psutil", "pydantic", "yaml", "rich", "typer", "blake3", "pynvml")
BLOCKED = """
import sys
from importlib.metadata import packages_distributions

WITH_EXTRAS = {extras!r}


class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in WITH_EXTRAS:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Missing())
"""


def without_extras(code: str, folder: Path, *, torch: bool = False) -> subprocess.CompletedProcess[str]:
    """Run code where nothing is installed but what `pip install benchsuite` brings, and torch where asked."""
    from benchsuite.contract.packages import EXTRAS

    names = {name for extra in EXTRAS.values() for name in extra} | (set() if torch else {"torch"})
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", BLOCKED.format(extras=names) + code]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_an_installation_without_extras_is_eight_packages() -> None:
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert len(metadata["dependencies"]) <= 8
    assert not any("torch" in line for line in metadata["dependencies"])


def test_watch_needs_none_of_the_extras(tmp_path: Path) -> None:
    code = """
import benchsuite
for batch in benchsuite.watch([[1], [2]] * 20, name="mine", store="runs", warmup_steps=1):
    pass
"""
    ran = without_extras(code, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "mine · 39 steps counted" in ran.stderr and "written: runs" in ran.stderr


VERBS: tuple[tuple[list[str], int, str], ...] = (
    (["--help"], 0, ""),
    (["list"], 0, ""),
    (["schema", "trial"], 0, ""),
    (["report"], 2, "error: this needs pandas, which is not installed: pip install 'benchsuite[report]'"),
    (["sweep", "demo"], 2, "error: sweep needs torch, pandas, scipy, which are not installed: install"),
    (["data", "generate", "x"], 2, "error: this needs simplejpeg, which is not installed: pip install"),
)
"""Words, exit code, and what is told."""


def test_a_verb_that_lacks_a_package_says_what_to_install(tmp_path: Path) -> None:
    """One process for all: what is not there for the first verb is not there for the last."""
    code = f"""
import json
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from benchsuite.cli.app import run_command
found = []
for words in {[words for words, _, _ in VERBS]!r}:
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as told:
        found.append([run_command(words), told.getvalue()])
print(json.dumps(found))
"""
    ran = without_extras(code, tmp_path)
    assert ran.returncode == 0, ran.stderr
    for (words, code_expected, told), (exit_code, err) in zip(VERBS, json.loads(ran.stdout), strict=True):
        assert exit_code == code_expected, (words, err)
        assert told in err and err.count("\n") <= 1, words


def test_a_sweep_misses_what_its_report_needs_before_its_first_trial(tmp_path: Path) -> None:
    code = "from benchsuite.cli.app import run_command\nsys.exit(run_command(['sweep', 'demo']))"
    ran = without_extras(code, tmp_path, torch=True)
    assert (ran.returncode, ran.stderr) == (
        2,
        "error: sweep needs pandas, scipy, which are not installed: pip install 'benchsuite[report]'\n",
    )


@pytest.mark.slow
@pytest.mark.full  # packing torch takes minutes
def test_a_wheelhouse_runs_the_demo_without_an_index(wheel: Path, tmp_path: Path) -> None:
    """As on a cluster's node: an empty environment, no network, outside of the checkout."""
    house = wheelhouse(tmp_path / "wheelhouse", "torch", f"benchsuite[formats,report] @ {wheel.as_uri()}")
    place = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    install = [place / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-index", "--find-links", house]
    subprocess.run([*install, "torch", "benchsuite[formats,report]"], check=True, env=NO_INDEX)
    demo = [place / "bin" / "benchsuite", "demo", "--samples", "256"]
    ran = subprocess.run(demo, cwd=tmp_path, env=NO_INDEX, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "trials ok" in ran.stdout and (tmp_path / "benchsuite-demo" / "webdataset").is_dir()
