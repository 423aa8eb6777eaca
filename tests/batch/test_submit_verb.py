"""`benchsuite submit`: what a user types and sees."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchsuite.batch.submit import cores_notes
from benchsuite.contract.trial_spec import SweepSpec, parse_trial
from benchsuite.grid.point import Plan, Point
from benchsuite.host.site import JobSpec
from tests.batch.test_submit import Run, calls, command, directives, in_folder, programs
from tests.helpers.madejobs import SWEEP
from tests.helpers.snapshots import compare_messages
from tests.planted import KINDS, NEEDS_ROOT, plant

__all__ = ["in_folder", "programs"]


class TestVerb:
    def dry_run(self, run_cli: Run, *arguments: str) -> list[str]:
        """The scripts' texts."""
        code, out, err = run_cli("submit", arguments[0], "mine.yaml", "--dry-run", *arguments[1:])
        assert code == 0 and "error:" not in err, err
        lines = out.splitlines()
        assert all(line.startswith("written: ") for line in lines)
        texts = [Path(line.removeprefix("written: ")).read_text() for line in lines]
        assert all(text in err for text in texts), "the script is shown"
        submits = {"slurm": "submit it: sbatch --parsable ", "pbs": "submit it: qsub "}[arguments[0]]
        assert err.count(submits) == err.count("time: not known before the first trials") == len(texts)
        return texts

    def test_nodes_are_what_the_largest_world_size_needs(self, run_cli: Run):
        (text,) = self.dry_run(run_cli, "slurm", "--ranks-per-node", "4")
        assert "#SBATCH --nodes=2" in directives(text) and "#SBATCH --ntasks-per-node=4" in directives(text)
        (text,) = self.dry_run(run_cli, "slurm", "--ranks-per-node", "4", "--nodes", "3")
        assert "#SBATCH --nodes=3" in directives(text)
        (text,) = self.dry_run(run_cli, "pbs", "--ranks-per-node", "4", "--cpus-per-rank", "6")
        assert "#PBS -l select=2:ncpus=24:mpiprocs=4" in directives(text)

    def test_scripts_lie_in_the_store_unless_told(self, run_cli: Run, tmp_path: Path):
        self.dry_run(run_cli, "slurm", "--store", "kept", "--session", "tonight")
        assert [path.name for path in (tmp_path / "kept" / "jobs").iterdir()] == ["bs-mine-tonight.slurm.sh"]
        assert not (tmp_path / "kept" / "segments").exists()

    def test_a_job_per_world_size(self, run_cli: Run):
        texts = self.dry_run(
            run_cli, "slurm", "--mode", "per-world-size", "--ranks-per-node", "4", "--cpus-per-rank", "3"
        )
        shapes = [re.findall(r"--(?:nodes|ntasks-per-node)=(\d+)", text) for text in texts]
        assert shapes == [["1", "1"], ["1", "2"], ["2", "4"]]
        for text, size in zip(texts, (1, 2, 8), strict=True):
            assert command(text)[-4:] == ["-o", f"world_size={size}", "-o", "threads_per_rank=3"]
            assert f"#SBATCH --job-name=bs-mine-default-{size}ranks" in directives(text)

    def test_jobs_per_world_size_measure_what_the_sweep_would(self, run_cli: Run, tmp_path: Path):
        """Threads are fixed over the series, as in one sweep on one node."""
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(SWEEP | {"scaling": "weak"}))
        whole = run_cli("sweep", "mine.yaml", "--dry-run")[1].splitlines()
        parts = []
        for text in self.dry_run(run_cli, "slurm", "--mode", "per-world-size", "--ranks-per-node", "8"):
            parts += run_cli(*command(text)[1:], "--dry-run")[1].splitlines()
        ids = [[line.split()[1] for line in lines if line.startswith("run")] for lines in (whole, parts)]
        assert ids[0] == ids[1] and len(ids[0]) == 3

    @pytest.mark.parametrize(
        "change",
        [
            {"include": [{"world_size": 4}]},
            {"grid": {}, "zip": {"world_size": [1, 2], "batch_size": [8, 4]}},
        ],
    )
    def test_world_sizes_that_cannot_be_taken_apart(self, run_cli: Run, tmp_path: Path, change: dict[str, Any]):
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(SWEEP | change))
        code, _, err = run_cli("submit", "slurm", "mine.yaml", "--dry-run", "--mode", "per-world-size")
        assert code == 2 and "selects" in err and "--mode sweep" in err

    def test_defaults_of_the_site_and_the_user(self, run_cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        site = {"account": "proj", "partition": "all", "modules": ["cuda"], "options": {"licenses": "x"}}
        for variable, value in (
            ("BENCHSUITE_SITE", {"submit": site, "store": str(tmp_path / "scratch")}),
            ("BENCHSUITE_USER_CONFIG", {"submit": {"partition": "mine", "time": 43200}}),
        ):
            path = tmp_path / f"{variable}.yaml"
            path.write_text(yaml.safe_dump(value))
            monkeypatch.setenv(variable, str(path))
        (text,) = self.dry_run(run_cli, "slurm", "--account", "other", "--directive", "exclusive")
        found = directives(text)
        for line in ("account=other", "partition=mine", "time=12:00:00", "licenses=x", "exclusive"):
            assert f"#SBATCH --{line}" in found
        assert "module load cuda" in text.splitlines()
        assert f"export BENCHSUITE_STORE={tmp_path}/scratch" in text.splitlines()
        assert f"export BENCHSUITE_SITE={tmp_path}/BENCHSUITE_SITE.yaml" in text.splitlines()

    def test_points_that_only_the_nodes_can_run(self, run_cli: Run):
        """This host may lack the devices."""
        (text,) = self.dry_run(run_cli, "slurm", "-o", "device=cuda", "--gres", "gpu:1")
        assert "#SBATCH --nodes=8" in directives(text)
        assert len(self.dry_run(run_cli, "slurm", "-o", "device=cuda")) == 1

    def test_scripts_of_every_kind_lie_side_by_side(self, run_cli: Run, tmp_path: Path):
        for scheduler in ("slurm", "pbs"):
            for mode in ("sweep", "array", "per-world-size"):
                _, _, err = run_cli("submit", scheduler, "mine.yaml", "--dry-run", "--out", "jobs", "--mode", mode)
                assert "replaced" not in err
        sizes = [f"bs-mine-default-{size}ranks.{kind}.sh" for size in (1, 2, 8) for kind in ("pbs", "slurm")]
        kinds = [f"bs-mine-default.{kind}.sh" for kind in ("pbs", "pbs-array", "slurm", "slurm-array")]
        assert sorted(path.name for path in (tmp_path / "jobs").iterdir()) == sorted([*sizes, *kinds])

    def test_another_script_of_the_kind_is_replaced_with_a_word(self, run_cli: Run, tmp_path: Path):
        words = ("submit", "slurm", "mine.yaml", "--dry-run", "--out", "jobs", "--time")
        script = tmp_path / "jobs" / "bs-mine-default.slurm.sh"
        for limit, said in (("01:00:00", False), ("01:00:00", False), ("02:00:00", True)):
            _, _, err = run_cli(*words, limit)
            assert (f"note: {script} was there with other content: replaced\n" in err) == said
        assert "#SBATCH --time=02:00:00" in script.read_text()

    @pytest.mark.parametrize("kind", [*KINDS, pytest.param("another's", marks=NEEDS_ROOT)])
    def test_a_script_is_written_through_nothing_that_lies_there(self, run_cli: Run, tmp_path: Path, kind: str):
        """Who owns the file could change what the job runs."""
        (tmp_path / "jobs").mkdir()
        script = tmp_path / "jobs" / "bs-mine-default.slurm.sh"
        planted = plant(script, kind, tmp_path / "mine")
        code, _, err = run_cli("submit", "slurm", "mine.yaml", "--dry-run", "--out", "jobs")
        assert code == 0 and f"note: {script} was there with other content: replaced\n" in err
        planted.is_untouched()
        assert script.is_file() and not script.is_symlink() and script.stat().st_uid == os.geteuid()
        assert os.access(script, os.X_OK) and [path.name for path in script.parent.iterdir()] == [script.name]

    @pytest.mark.parametrize("scheduler", ["slurm", "pbs"])
    def test_a_job_without_a_limit_is_warned_of(self, run_cli: Run, tmp_path: Path, scheduler: str):
        words = ("submit", scheduler, "mine.yaml", "--dry-run")
        said = "warning: no --time: the cluster's default ends the job"
        assert run_cli(*words, "--mode", "per-world-size")[2].count(said) == 1
        assert said not in run_cli(*words, "--time", "01:00:00")[2]

    @pytest.mark.parametrize(
        ("scheduler", "asked", "base", "said"),
        [
            (
                "slurm",
                {},
                {},
                "Slurm's default, 1 core on most sites; the trials have up to 1 thread and 3 loader workers",
            ),
            ("slurm", {}, {"threads_per_rank": 2}, "2 threads and 3 loader workers: give --cpus-per-rank 5"),
            ("pbs", {}, {}, "a rank has 1 core; the trials have up to 1 thread and 3 loader workers: give"),
            ("slurm", {}, {"data": {"num_workers": 0}}, ""),
            ("slurm", {"cpus_per_rank": 2}, {}, ""),
            ("slurm", {"options": {"exclusive": None}}, {}, ""),
            ("kubernetes", {}, {}, ""),
        ],
    )
    def test_the_cores_of_a_rank_are_told_where_nobody_gives_them(
        self, scheduler: Any, asked: dict[str, Any], base: dict[str, Any], said: str
    ):
        data = {"source": "storage", "root": "/d", "format": "files", "num_workers": 3, **base.get("data", {})}
        spec = parse_trial({"workload": "resnet50", "batch_size": 4, **base, "data": data})
        plan = Plan(SweepSpec(name="s", base=base), [Point(spec, "p", None, None, {})], [], 0)
        notes = cores_notes(scheduler, JobSpec(**asked), plan)
        assert bool(notes) == bool(said) and said in "".join(notes)

    def test_threads_of_jobs_per_world_size_are_told(self, run_cli: Run):
        words = ("submit", "slurm", "mine.yaml", "--dry-run", "--mode", "per-world-size")
        said = "note: no threads_per_rank: every job has "
        assert said in run_cli(*words)[2]
        for given in (["-o", "threads_per_rank=2"], ["--cpus-per-rank", "2"]):
            assert said not in run_cli(*words, *given)[2]
        code, _, err = run_cli(*words, "--nodes", "1")
        assert code == 2 and err.endswith("world_size and --ranks-per-node: leave --nodes out\n")

    @pytest.mark.parametrize(
        ("arguments", "nodes", "ranks", "why"),
        [
            (["slurm"], 8, 1, "more by --ranks-per-node, --nodes or --gres"),
            (["slurm", "--gres", "gpu:4"], 2, 4, "one a GPU, of 4 on a node"),
            (["slurm", "--gres", "gpu:a100:4,nvme:1"], 2, 4, "one a GPU, of 4 on a node"),
            (["slurm", "--gres", "gpu:16"], 1, 8, "one a GPU, of 16 on a node"),
            (["slurm", "--directive", "gpus-per-node=h100:2"], 4, 2, "one a GPU, of 2 on a node"),
            (["pbs", "--gres", "ngpus=4:mem=64gb"], 2, 4, "one a GPU, of 4 on a node"),
            (["slurm", "--nodes", "3"], 3, 3, "the largest trial's 8 over 3"),
            (["slurm", "--nodes", "3", "--gres", "gpu:4"], 3, 4, "one a GPU, of 4 on a node"),
            (["slurm", "--gres", "gpu:4", "--ranks-per-node", "2"], 4, 2, "as asked for"),
            (["slurm", "--gres", "gpu:4", "-o", "ranks_per_node=1"], 8, 1, "as the sweep says"),
        ],
    )
    def test_ranks_are_spread_over_the_devices_that_are_known(
        self, run_cli: Run, tmp_path: Path, arguments: list[str], nodes: int, ranks: int, why: str
    ):
        scheduler, *more = arguments
        code, out, err = run_cli("submit", scheduler, "mine.yaml", "--dry-run", *more)
        shape = f"{nodes} node{'s' if nodes > 1 else ''} x {ranks} rank{'s' if ranks > 1 else ''}"
        assert code == 0 and f"bs-mine-default: {shape} ({why})\n" in err, err
        text = Path(out.removeprefix("written: ").strip()).read_text()
        asked = [f"--nodes={nodes}", f"--ntasks-per-node={ranks}"] if scheduler == "slurm" else [f"mpiprocs={ranks}"]
        assert all(word in text for word in asked)

    def test_submitting(self, run_cli: Run, programs: Path, tmp_path: Path):
        code, out, err = run_cli("submit", "slurm", "mine.yaml", "--out", "jobs", "--time", "01:00:00")
        script = tmp_path / "jobs" / "bs-mine-default.slurm.sh"
        assert (code, out) == (0, f"submitted: 4711 · {script}\n")
        shape = "bs-mine-default: 8 nodes x 1 rank (more by --ranks-per-node, --nodes or --gres)\n"
        limit = "measure.timeout_s allows 45 min at most (2.8 device-hours in all)"
        time = f"time: not known before the first trials; {limit}\n"
        assert err == shape + time, "what was decided, and no warning"
        assert calls(programs, "sbatch") == [f"--parsable {script}"]
        assert os.access(script, os.X_OK)
        code, out, _ = run_cli("submit", "pbs", "mine.yaml", "--out", "jobs", "--mode", "array", "--array-tasks", "3")
        array = tmp_path / "jobs" / "bs-mine-default.pbs-array.sh"
        assert (code, out) == (0, f"submitted: 4711.server · {array}\n")
        assert calls(programs, "qsub") == [f"-J 1-3 {array}"]
        assert run_cli("submit", "slurm", "mine.yaml", "--mode", "per-world-size")[1].count("submitted: 4711") == 3

    def test_what_the_scheduler_refuses(self, run_cli: Run, programs: Path):
        (programs / "sbatch").write_text("#!/bin/bash\necho 'sbatch: error: Invalid account' >&2; exit 1\n")
        code, out, err = run_cli("submit", "slurm", "mine.yaml")
        assert (code, out) == (2, "")
        last = err.splitlines()[-1]
        assert last.startswith("error: sbatch ") and last.endswith(": sbatch: error: Invalid account")

    @pytest.mark.parametrize(("scheduler", "program"), [("slurm", "sbatch"), ("pbs", "qsub")])
    def test_no_scheduler_here(
        self, run_cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheduler: str, program: str
    ):
        monkeypatch.setenv("PATH", str(tmp_path))
        code, out, err = run_cli("submit", scheduler, "mine.yaml")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"{program} is not on PATH" in err and "--dry-run" in err
        assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"], "nothing was written"

    def test_mistakes_are_one_line_and_write_nothing(self, run_cli: Run, tmp_path: Path) -> None:
        cases = [
            ["slrm", "mine.yaml"],
            ["slurm", "gone.yaml"],
            ["slurm", "mine.yaml", "--session", "a/b"],
            ["slurm", "mine.yaml", "--mode", "arry"],
            ["slurm", "mine.yaml", "--time", "2h"],
            ["slurm", "mine.yaml", "--time", "90"],
            ["slurm", "mine.yaml", "--nodes", "0"],
            ["slurm", "mine.yaml", "--account", "a\nb"],
            ["slurm", "mine.yaml", "--directive", "nodes=3"],
            ["slurm", "mine.yaml", "--directive", "a b=3"],
            ["pbs", "mine.yaml", "--directive", "walltime=3"],
            ["pbs", "mine.yaml", "--qos", "high"],
            ["pbs", "mine.yaml", "--gres", "gpu:4"],
            ["slurm", "mine.yaml", "--array-tasks", "3"],
            ["slurm", "mine.yaml", "--mode", "per-world-size", "--nodes", "3"],
            ["slurm", "mine.yaml", "--launcher", "locl"],
            ["slurm", "mine.yaml", "-o", "batchsize=3"],
            ["slurm", "mine.yaml", "-o", "data.source=memory"],
        ]

        def message(arguments: list[str]) -> str:
            code, out, err = run_cli("submit", *arguments, "--dry-run")
            assert (code, out, err.count("\n")) == (2, "", 1), err
            assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]
            return err

        compare_messages("submit", cases, message)

    def test_nothing_can_run(self, run_cli: Run, tmp_path: Path):
        code, out, err = run_cli(
            "submit", "slurm", "mine.yaml", "--dry-run", "-o", "parallelism=none", "-o", "world_size=2"
        )
        assert (code, out) == (4, "")
        assert "nothing can run" in err and "parallelism none has 1 rank, world_size is 2" in err
        assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]
