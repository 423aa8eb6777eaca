"""Training loops and trials of which others know the cause, and what `watch` and trials say of them.

`bench/made` has two halves, written by people who had the list of causes (docs/causes.md) and neither rule nor code,
each case with plain timers that prove its cause. Those of `sealed` are run only to decide, never to mend by. HALF=open
or HALF=sealed takes one of them, ONLY=a,b some cases, TIMES=10 repeats each. KEEP=FOLDER keeps the samples of trials
there: `tests/analysis/recorded` holds those of the open half, which every run of the tests judges anew.

A case is a script, or a trial's YAML with what makes its data. @DATA@ in it stands for the folder of real samples
(CAUSE_DATA: `imagenet-sample/*.JPEG`, `text/tinyshakespeare.txt`), @CASES@ for the folder it lies in, @BIN@ for this
Python's programs.
"""

import gzip
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench.tables import goal
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore
from benchsuite.storage.dataset.manifest import open_dataset

MADE = Path(__file__).parent / "made"
DEADLINE_S = 600
RIGHT_OF_40, WRONG_OF_40 = 34, 2
NOT_NAMED = ("mixed/", "cannot_tell/")


class Case(NamedTuple):
    """What was made, and its one true cause."""

    path: Path
    cause: str
    ranks: int
    borderline: bool


class Judged(NamedTuple):
    """A case and what was said of it; None where it did not run, with why."""

    case: Case
    said: str | None
    why: str = ""

    @property
    def right(self) -> bool:
        return self.said == self.case.cause

    @property
    def named(self) -> bool:
        """Whether a cause was named: a wait that nothing is known of is none, unless that is the truth."""
        return self.right or (
            self.said is not None and not self.said.startswith(NOT_NAMED) and not self.said.endswith("/none")
        )


def cases(half: str) -> Iterator[Case]:
    """The cases of one half, loops first."""
    for path in sorted((MADE / half).glob("*.py")):
        text = path.read_text()
        cause = re.search(r'^CAUSE = "([^"]+)"', text, re.MULTILINE)
        ranks, borderline = (re.search(rf"^{name} = (\w+)", text, re.MULTILINE) for name in ("RANKS", "BORDERLINE"))
        if cause is not None:
            yield Case(path, cause[1], int(ranks[1]) if ranks else 1, bool(borderline) and borderline[1] == "True")
    for path in sorted((MADE / half).glob("*.yaml")):
        found = re.search(r"^# CAUSE: (\S+)", path.read_text(), re.MULTILINE)
        if found is not None:
            yield Case(path, found[1], 1, False)


def prepared(half: str, folder: Path) -> Path:
    """A copy of a half's files in which the placeholders are filled in."""
    here = folder / half
    shutil.copytree(MADE / half, here)
    shutil.copy(MADE / "case.py", here)
    values = {"@DATA@": os.environ["CAUSE_DATA"], "@CASES@": str(here), "@BIN@": str(Path(sys.executable).parent)}
    for path in here.iterdir():
        text = path.read_text()
        for name, value in values.items():
            text = text.replace(name, value)
        path.write_text(text)
    return here


def judged(case: Case, here: Path) -> Judged:
    """Run a case and return what was said of it."""
    with tempfile.TemporaryDirectory(prefix="benchsuite-cause-") as temporary:
        folder = Path(temporary)
        command = loop_command(case, here, folder) if case.path.suffix == ".py" else _trial(case, here, folder)
        root = str(Path(__file__).parents[1])
        env = os.environ | {"CAUSE_STORE": str(folder / "store"), "PYTHONPATH": f"{here}:{root}", "CAUSE_SUITE": root}
        try:
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        except subprocess.TimeoutExpired:
            return Judged(case, None, f"not within {DEADLINE_S} s")
        found = records(folder / "store")
        if not found:
            return Judged(case, None, done.stderr.strip()[-200:])
        if "KEEP" in os.environ and case.path.suffix == ".yaml":
            keep(Path(os.environ["KEEP"]), case, folder, here)
        figures = found[-1]["figures"]
        if not figures.get("bottleneck"):
            return Judged(case, None, str(found[-1].get("reason")))
        return Judged(case, f"{figures['bottleneck']}/{figures.get('cause') or 'none'}")


def loop_command(case: Case, here: Path, folder: Path) -> list[str]:
    words = [str(here / case.path.name), str(folder / "work")]
    if case.ranks == 1:
        return [sys.executable, *words]
    return [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={case.ranks}", *words]


def _trial(case: Case, here: Path, folder: Path) -> list[str]:
    """The command of a trial, once its data are made."""
    work, file = folder / "work", folder / case.path.name
    work.mkdir()
    if (making := here / f"{case.path.stem}.sh").exists():
        subprocess.run(["bash", str(making), str(work)], check=False, capture_output=True, timeout=DEADLINE_S)
    file.write_text((here / case.path.name).read_text().replace("FOLDER", str(work)))
    return [sys.executable, "-m", "benchsuite", "trial", str(file), "--store", str(folder / "store")]


def records(store: Path) -> list[dict[str, Any]]:
    lines = [
        line
        for path in sorted(store.glob("segments/*.jsonl"))
        if "samples" not in path.name
        for line in path.read_text().splitlines()
    ]
    return [record for record in map(json.loads, lines) if record["kind"] == "trial"]


def keep(target: Path, case: Case, folder: Path, here: Path) -> None:
    """Keep what a trial's verdict rests on as a file of the case's name, without paths and names of this machine."""
    store = ResultsStore(folder / "store")
    record = next(one for one in store.latest() if isinstance(one, TrialRecord))
    root, samples = record.spec["data"]["root"], store.samples(record)
    assert samples is not None, "every trial that ended well has some"
    manifest = open_dataset(Path(root)).manifest.model_dump(mode="json") | {"created": {}} if root else None
    data = {name: record.env.get("data", {}).get(name) for name in ("file_system", "read_ahead_kb")}
    kept = {
        "cause": case.cause,
        "spec": record.spec,
        "manifest": manifest,
        "env": {name: record.env[name] for name in ("cores", "memory_bytes")} | {"libraries": {}, "data": data},
        "figures": record.figures.model_dump(mode="json", exclude_none=True),
        "ranks": samples["ranks"],
    }
    target.mkdir(parents=True, exist_ok=True)
    text = json.dumps(kept)
    for name, neutral in ((str(folder), "/data"), (str(here), "/cases"), (f'"{socket.gethostname()}"', '"node"')):
        text = text.replace(name, neutral)
    (target / f"{case.path.stem}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def matrix(found: list[Judged]) -> list[str]:
    """Rows of a table: the true cause, and how often each was said of it."""
    rows = ["| true | said |", "|---|---|"]
    for cause in sorted({one.case.cause for one in found}):
        said = Counter(one.said or "did not run" for one in found if one.case.cause == cause)
        rows.append(f"| {cause} | {', '.join(f'{name} ({count})' for name, count in said.most_common())} |")
    return rows


def show(folder: Path) -> None:
    """Print both halves' matrices."""
    print("Causes that others have made, and what watch and trials say of them")
    wanted, times = set(filter(None, os.environ.get("ONLY", "").split(","))), int(os.environ.get("TIMES", "1"))
    halves = [os.environ["HALF"]] if "HALF" in os.environ else ["open", "sealed"]
    for half in halves:
        here, found = prepared(half, folder), list[Judged]()
        for case in cases(half):
            for _ in range(times if not wanted or case.path.stem in wanted else 0):
                one = judged(case, here)
                found.append(one)
                mark = "right" if one.right else "WRONG" if one.named else "not named"
                print(f"   {mark}: {case.path.stem}: {one.said or one.why} (true: {case.cause})", flush=True)
        right, wrong = sum(one.right for one in found), sum(one.named and not one.right for one in found)
        print("\n".join(matrix(found)))
        least, most = RIGHT_OF_40 / 40 * len(found), WRONG_OF_40 / 40 * len(found)
        print(
            goal(
                right >= least and wrong <= most,
                f"{half}: {right} of {len(found)} right, {wrong} wrong (goal: 34 of 40, at most 2)",
            )
        )
