"""The examples of a nightly job: one line of a crontab, and what it mails."""

import subprocess
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "benchsuite" / "nightly"


@pytest.mark.parametrize("name", ["crontab.example", "scrontab.example"])
def test_the_examples_are_one_job_at_half_past_two(name: str):
    lines = (EXAMPLES / name).read_text().splitlines()
    jobs = [line for line in lines if line and not line.startswith("#") and "=" not in line.split()[0]]
    assert len(jobs) == 1 and jobs[0].startswith("30 2 * * * ")
    assert subprocess.run(["sh", "-n", "-c", jobs[0][11:].replace("\\%", "%")], check=False).returncode == 0


def test_a_night_without_a_run_is_mailed(tmp_path: Path):
    """cron mails what a job prints: `check` alone would judge the last session that there is, and find it as it was."""
    text = (EXAMPLES / "crontab.example").read_text().splitlines()
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, script in {
        "git": "exit 0",
        "asv": '[ "$1" != run ] || exit 3',
        "benchsuite": "echo ok: as it was",
    }.items():
        (tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (tools / name).chmod(0o755)
    env = {"PATH": f"{tools}:/usr/bin:/bin", "REPO": str(tmp_path)}
    done = subprocess.run(["sh", "-c", text[-1][11:]], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == f"asv run: exit code 3, see {tmp_path}/.asv/nightly.log\nok: as it was\n"
