"""Nights of a site with a real asv: a repository is made, nights are measured, published, checked and gone on with."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchsuite.cli.data import dataset_request, generate
from benchsuite.cli.jobs import nightly_init
from benchsuite.contract.errors import UserError
from benchsuite.nightly import init, night, pages
from benchsuite.results.store.store import ResultsStore

pytest.importorskip("asv", reason="asv is an extra: pip install 'benchsuite[asv]'")
pytestmark = pytest.mark.slow
QUIET = {0, 4}
"""4 where a machine with other work makes points of so few steps doubtful, which are then not judged."""
SECONDS = "sweeps.site__bert__ddp.track_seconds_per_sample"


def sweep_of(data: Path, steps: str = "10ms", **grid: Any) -> dict[str, Any]:
    settings = {"root": str(data), "num_workers": 1, "prefetch_factor": 2, "cache": "warm", "shuffle_buffer": 1}
    base = {
        "workload": "bert",
        "variant": "tiny",
        "device": f"emulated:{steps}",
        "parallelism": "ddp",
        "batch_size": 2,
        "threads_per_rank": 1,
        "data": settings,
        "measure": {"steps": 24, "warmup_steps": 1, "repeats": 1, "timeout_s": 60, "ceilings": False},
    }
    return {"name": "site", "base": base, "grid": {"data.format": ["files"], "world_size": [1, 2], **grid}}


class Site:
    """A site's results repository, with a home of its own, and what its commands said."""

    def __init__(self, folder: Path, data: Path) -> None:
        self.folder, self.data = folder, data
        hidden = ("BENCHSUITE_", "GIT_", "PYTHONPATH")
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        self.env |= {"HOME": str(folder.parent)}

    def run(self, *words: str, more: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "benchsuite", *words]
        env = {**self.env, **(more or {})}
        return subprocess.run(
            command, cwd=self.folder.parent, env=env, capture_output=True, text=True, timeout=200, check=False
        )

    def night(self, session: str) -> subprocess.CompletedProcess[str]:
        return self.run("nightly", "run", str(self.folder), "--session", session)

    def git(self, *words: str) -> str:
        return night.git(self.folder, *words)

    def results(self) -> dict[str, dict[str, Any]]:
        """asv's results by the start of the commit."""
        files = (self.folder / ".asv/results").glob("*/*-benchsuite.json")
        return {path.name[:8]: json.loads(path.read_text())["results"] for path in files}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("site")
    generate(folder / "data" / "files", dataset_request("bert", "tiny", "files", []), 64, 1, "jpeg")
    generate(
        folder / "data" / "webdataset",
        dataset_request("bert", "tiny", "webdataset", ["shard_samples=8"]),
        64,
        1,
        "jpeg",
    )
    made = Site(folder / "nights", folder / "data")
    (folder / "site.yaml").write_text(yaml.safe_dump(sweep_of(made.data)))
    done = made.run("nightly", "init", str(made.folder), "--sweep", str(folder / "site.yaml"))
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture(scope="module")
def nights(site: Site) -> list[subprocess.CompletedProcess[str]]:
    """Three nights; before the third a format is added to the sweep."""
    done = [site.night("2026-11-01"), site.night("2026-11-02")]
    text = yaml.safe_dump(sweep_of(site.data, **{"data.format": ["files", "webdataset"]}))
    (site.folder / "sweeps" / "site.yaml").write_text(text)
    return [*done, site.night("2026-11-03")]


class TestInit:
    def test_what_is_there(self, site: Site) -> None:
        assert site.git("log", "--format=%s").splitlines()[-1] == "A results repository, by benchsuite nightly init"
        names = {path.name for path in site.folder.iterdir()}
        assert names >= {"asv.conf.json", "benchmarks", "sweeps", "README.md", "crontab", "scrontab", ".gitignore"}
        assert len((site.folder / "README.md").read_text().splitlines()) <= 25, "one screen"

    @pytest.mark.parametrize("name", ["crontab", "scrontab"])
    def test_the_job_is_one_line_at_half_past_two(self, site: Site, name: str) -> None:
        lines = (site.folder / name).read_text().splitlines()
        (job,) = [line for line in lines if line and not line.startswith("#")]
        assert job.startswith("30 2 * * * ") and str(site.folder) in job and "nightly run" in job
        assert subprocess.run(["sh", "-n", "-c", job[11:]], check=False).returncode == 0

    def test_cron_mails_a_night_that_failed(self, tmp_path: Path, site: Site) -> None:
        """And nothing of one that was quiet; .asv, which git ignores, is made where a clone lacks it."""
        (job,) = [line for line in (site.folder / "crontab").read_text().splitlines() if not line.startswith("#")]
        tool = f"{sys.executable} -m benchsuite"
        for code in (0, 10):
            line = (
                job[11:]
                .replace(str(site.folder), str(tmp_path))
                .replace(f"{tool} nightly run", f"sh -c 'echo no; exit {code}'")
            )
            said = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False).stdout
            assert said == ("" if code == 0 else "nightly run: exit code 10\nno\nno\n")

    def test_its_sweep_may_be_a_built_in_one_by_name(self, tmp_path: Path) -> None:
        nightly_init(tmp_path / "a b", Path("weak-scaling"))
        assert (tmp_path / "a b" / "sweeps" / "weak-scaling.yaml").is_file() and (tmp_path / "a b" / ".asv").is_dir()
        assert f"cd '{tmp_path / 'a b'}' && " in (tmp_path / "a b" / "crontab").read_text()

    def test_a_folder_with_something_in_it_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "mine").write_text("")
        with pytest.raises(UserError, match="not empty"):
            init.make(tmp_path, None)
        assert [path.name for path in tmp_path.iterdir()] == ["mine"]


class TestNights:
    def test_each_is_a_commit_that_asv_has_results_for(self, site: Site, nights: list[Any]) -> None:
        assert {done.returncode for done in nights} <= QUIET, [done.stderr for done in nights]
        subjects = site.git("log", "--format=%s").splitlines()[:3]
        assert [subject.partition(":")[0] for subject in subjects] == [f"night 2026-11-0{n}" for n in (3, 2, 1)]
        commits = site.git("log", "--format=%H", "-3").splitlines()
        assert {*site.results()} == {commit[:8] for commit in commits}

    def test_a_line_goes_on_when_the_sweep_grows(self, site: Site, nights: list[Any]) -> None:
        records = [*ResultsStore(site.folder / ".asv/store").trials()]
        of_line = [one for one in records if one.spec["world_size"] == 1 and one.spec["data"]["format"] == "files"]
        measured = [pytest.approx(1 / one.figures.samples_per_s) for one in of_line if one.figures.samples_per_s]
        for commit, result in site.results().items():
            values, (formats, *_, ranks, _, _) = result[SECONDS][:2]
            assert formats == ["'files'", "'webdataset'"] and ranks == ["1", "2"]
            first = commit != site.git("rev-parse", "HEAD")[:8]
            assert values[0] in measured, "by one of the sessions, with one rank and files"
            assert [value != value for value in values[2:]] == [first] * 2, "not measured before, which is no failure"

    def test_the_night_has_the_date_of_its_session(self, site: Site, nights: list[Any]) -> None:
        records = [r for r in ResultsStore(site.folder / ".asv/store").trials() if r.session == "2026-11-03"]
        began = min(record.started_at for record in records)
        assert site.git("log", "-1", "--format=%ad", "--date=format:%Y-%m-%dT%H:%M") == f"2026-11-03T{began[11:16]}"
        dates = [json.loads(path.read_text())["date"] for path in site.folder.glob(".asv/results/*/*-benchsuite.json")]
        days = sorted(f"{datetime.fromtimestamp(moment / 1000, UTC):%Y-%m-%d}" for moment in dates)
        assert days == ["2026-11-01", "2026-11-02", "2026-11-03"]
        assert night._moment("after-repair", began) == began

    def test_facts_are_of_the_night(self, site: Site, nights: list[Any]) -> None:
        told = json.loads((site.folder / "night.json").read_text())
        assert told["session"] == "2026-11-03"
        assert {"host", "cpu", "libraries.torch", "data.file_system"} <= told["facts"].keys()
        assert "load_average" not in told["facts"], "what differs between any two trials is no fact of a night"
        before = json.loads(site.git("show", "HEAD~1:night.json"))
        assert [key for key in told if told[key] != before[key] and key != "facts"] == ["session"]
        changed = [fact for fact in told["facts"] if told["facts"][fact] != before["facts"].get(fact)]
        assert changed == ["reader"], "with a format comes its library; all else is as in the night before"

    def test_check_compares_from_the_second_night_on(self, nights: list[Any]) -> None:
        assert "one night so far, with which the next one will be compared" in nights[0].stdout
        compared = r"compared with 1 night before: .*; judged alone after 5 more nights"
        assert re.search(
            f"{compared}|nothing judged: 2 points of session 2026-11-02 cannot be trusted", nights[1].stdout
        )

    def test_again_measures_and_commits_nothing(self, site: Site, nights: list[Any]) -> None:
        before = site.git("rev-parse", "HEAD"), site.results()
        assert site.night("2026-11-03").returncode in QUIET
        assert (site.git("rev-parse", "HEAD"), site.results()) == before

    def test_pages_load_nothing_from_the_internet(self, site: Site, nights: list[Any]) -> None:
        html = site.folder / ".asv/html"
        loaded = re.findall(r'<(?:script|link)[^>]*(?:src|href)="([^"]+)"', (html / "index.html").read_text())
        assert loaded and not [name for name in loaded if "//" in name]
        assert all((html / name).is_file() for name in loaded)
        assert (html / "vendor/LICENSES.txt").read_text().count("Permission is hereby granted") >= 5

    def test_asv_reads_its_history(self, site: Site, nights: list[Any]) -> None:
        def asv(*words: str) -> str:
            command = [sys.executable, "-m", "asv", *words]
            done = subprocess.run(command, cwd=site.folder, env=site.env, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            return done.stdout

        assert SECONDS in asv("show", "HEAD", "--machine", "nights")
        assert SECONDS in asv("compare", "HEAD~1", "HEAD", "--machine", "nights")
        asv("rm", "-y", "commit_hash=" + site.git("rev-parse", "HEAD~2"))
        assert len(site.results()) == 2

    @pytest.mark.full
    def test_a_night_that_is_stopped_goes_on(self, site: Site, nights: list[Any]) -> None:
        text = yaml.safe_dump(sweep_of(site.data, "40ms", **{"world_size": [1], "data.num_workers": [1, 2]}))
        (site.folder / "sweeps" / "site.yaml").write_text(text)
        command = [sys.executable, "-m", "benchsuite", "nightly", "run", str(site.folder)]
        running = subprocess.Popen(
            command, env=site.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        store = ResultsStore(site.folder / ".asv/store")
        known = len([*store.trials()])
        while len([*store.trials()]) == known:
            assert running.poll() is None, running.communicate()
            time.sleep(0.1)
        os.killpg(running.pid, signal.SIGTERM)
        said, _ = running.communicate(timeout=60)
        assert running.returncode == 75, said
        session = (site.folder / ".asv/unfinished-night").read_text()
        done = site.run("nightly", "run", str(site.folder))
        assert done.returncode in QUIET, done.stderr
        assert site.git("log", "-1", "--format=%s").startswith(f"night {session}: 2 trials")
        assert not (site.folder / ".asv/unfinished-night").exists()


def test_a_page_that_loads_something_unknown_is_refused(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text('<script src="https://cdn.example/else-2.0.min.js"></script>')
    with pytest.raises(UserError, match=r"else-2\.0\.min\.js from the internet"):
        pages.bundle(tmp_path)
