"""One job for each number of ranks, whose findings all tests of that number share."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DEADLINE_S = 900
ROOT = Path(__file__).parents[3]
Findings = dict[str, dict[str, Any]]


class Jobs:
    """Starts a job when its first finding is asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._done: dict[tuple[int, str], Findings] = {}

    def finding(self, world_size: int, which: str, name: str) -> dict[str, Any]:
        """What rank 0 found in a case; fails with the logs where it got no further."""
        found = self._done.setdefault((world_size, which), {}) or self._run(world_size, which)
        if name not in found:
            pytest.fail(f"not reached; the job ended before it: {self._last_words(world_size, which)}")
        return found[name]

    def _run(self, world_size: int, which: str) -> Findings:
        folder = self._folder / f"{which}-{world_size}"
        folder.mkdir()
        command = [sys.executable, "-m", "tests.workloads.parallel.job", str(world_size), str(folder), which]
        subprocess.run(command, cwd=ROOT, timeout=DEADLINE_S, check=False)
        lines = (folder / "rank-0.jsonl").read_text().splitlines()
        self._done[world_size, which] = {finding["name"]: finding for finding in map(json.loads, lines)}
        return self._done[world_size, which]

    def _last_words(self, world_size: int, which: str) -> str:
        folder = self._folder / f"{which}-{world_size}"
        errors = [
            finding["error"]
            for path in sorted(folder.glob("rank-*.jsonl"))
            for finding in map(json.loads, path.read_text().splitlines())
            if "error" in finding
        ]
        return errors[0] if errors else "no rank said why"


@pytest.fixture(scope="session")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    return Jobs(tmp_path_factory.mktemp("parallel"))
