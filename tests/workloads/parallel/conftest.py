"""One job for each number of ranks, whose findings all tests of that number share."""

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from benchsuite.analysis.failure import is_peer_failure

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
        found = self._job(folder, world_size, which, [])
        crashed = [rank for rank in range(world_size) if not (folder / f"ended-{rank}").exists()]
        if crashed and not any(_is_own_error(folder / f"rank-{rank}.jsonl") for rank in range(world_size)):
            # Threads of gloo in torch 2.13 crash now and then under sequence parallelism: a signal, no exception.
            warnings.warn(f"ranks {crashed} of {folder.name} crashed after {len(found)} cases; run again", stacklevel=1)
            again = self._folder / f"{which}-{world_size}-again"
            found |= self._job(again, world_size, which, [str(folder / "rank-0.jsonl")])
        self._done[world_size, which] = found
        return found

    def _job(self, folder: Path, world_size: int, which: str, before: list[str]) -> Findings:
        folder.mkdir()
        command = [sys.executable, "-m", "tests.workloads.parallel.job", str(world_size), str(folder), which, *before]
        subprocess.run(command, cwd=ROOT, timeout=DEADLINE_S, check=False)
        lines = (folder / "rank-0.jsonl").read_text().splitlines()
        return {finding["name"]: finding for finding in map(json.loads, lines)}

    def _last_words(self, world_size: int, which: str) -> str:
        folder = self._folder / f"{which}-{world_size}"
        errors = [
            finding["error"]
            for path in sorted(folder.glob("rank-*.jsonl"))
            for finding in map(json.loads, path.read_text().splitlines())
            if "error" in finding
        ]
        return errors[0] if errors else "no rank said why"


def _is_own_error(findings: Path) -> bool:
    """Whether a rank failed of itself: not because another one was gone."""
    errors = [finding["error"] for finding in map(json.loads, findings.read_text().splitlines()) if "error" in finding]
    return any(not is_peer_failure(error) for error in errors)


@pytest.fixture(scope="session")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    return Jobs(tmp_path_factory.mktemp("parallel"))
