"""Training loops with the remedy that `watch` advises, measured beside the same loops without it.

The cases (`bench/made/remedies`) are by people who had the lists of causes and remedies, and had not read how gains are
reckoned. Each is watched once; then its first remedy is applied, in PAIRS interleaved pairs of runs without benchsuite.
Where none is advised, four are tried: more workers, fewer threads, a longer queue, and data in local memory.
ONLY=a,b takes some cases; PAIRS=1 takes one pair of each, which shows no more than what to look at. A case's own clock
tells the seconds of its steps.
"""

import json
import math
import os
import subprocess
import tempfile
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from scipy.stats import t

from bench.causes import Case, cases, loop_command, prepared, records
from bench.tables import goal

PAIRS, WATCHED = int(os.environ.get("PAIRS", "6")), 3
MEASURED_S = "4"
"""How long each of the two trains; one that is watched trains for 12 seconds."""
DEADLINE_S = 300
GIVEN_OF_30, GAINS_SHARE, WITHIN_SHARE = 25, 0.9, 0.8
WITHIN = 0.15
"""How far the promised step may be from the measured one."""
WIDE = 0.10
"""An interval that is wider, either way, shows nothing."""
CORES = len(os.sched_getaffinity(0))
"""A remedy that needs more cannot be applied here."""
TRIED: dict[str, Any] = {"more_workers": 2, "fewer_threads": 1, "longer_queue": 8, "staging": True}


class Measured(NamedTuple):
    """What a remedy gave: the step with it over the step without, with its 95 % interval."""

    ratio: float
    low: float
    high: float

    @property
    def gains(self) -> bool:
        return self.high < 1 and self.high / self.low <= (1 + WIDE) ** 2

    def __str__(self) -> str:
        return f"{self.ratio:.3f} [{self.low:.3f} {self.high:.3f}]"


def run(case: Case, here: Path, env: dict[str, str]) -> tuple[float, list[dict[str, Any]]]:
    """Run a case; its seconds a step by its own clock, and the records that benchsuite wrote."""
    with tempfile.TemporaryDirectory(prefix="benchsuite-remedy-") as temporary:
        folder, root = Path(temporary), str(Path(__file__).parents[1])
        paths = {"PYTHONPATH": f"{here}:{root}", "CAUSE_SUITE": root}
        env = os.environ | paths | {name: value.replace("@FOLDER@", temporary) for name, value in env.items()}
        command = loop_command(case, here, folder)
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
        told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return max(each["step_s"] for each in told), records(folder / "store")


def measured(case: Case, here: Path, remedy: dict[str, Any]) -> Measured:
    """The step with a remedy over the step without, in interleaved pairs, by a t-interval of their logarithms."""
    ratios = []
    for number in range(PAIRS):
        applied = [{}, remedy] if number % 2 == 0 else [remedy, {}]
        seconds = {
            bool(each): run(case, here, {"APPLY": json.dumps(each), "CASE_S": MEASURED_S})[0] for each in applied
        }
        ratios.append(math.log(seconds[True] / seconds[False]))
    half = float(t.ppf(0.975, PAIRS - 1)) * stdev(ratios) / math.sqrt(PAIRS) if PAIRS > 1 else 0.0
    return Measured(*(math.exp(fmean(ratios) + side * half) for side in (0, -1, 1)))


def watched(case: Case, here: Path) -> dict[str, Any]:
    """The record of a case that is watched; again where others took its cores or its disk."""
    for _ in range(WATCHED):
        _, found = run(case, here, {"CAUSE_STORE": "@FOLDER@/store"})
        if not {"idle_cores", "quiet_disk"} & {*(found[-1].get("remedies") or ())}:
            break
    return found[-1]


def shown(case: Case, here: Path) -> dict[str, Any]:
    """Watch a case, apply what is advised first, and say what came of it."""
    record = watched(case, here)
    said = f"{record['figures']['bottleneck']}/{record['figures'].get('cause') or 'none'}"
    row: dict[str, Any] = {"case": case.path.stem, "true": case.cause, "said": said}
    if not record.get("remedies"):
        tried = {name: measured(case, here, {name: value}) for name, value in TRIED.items()}
        better = [f"{name} {ratio}" for name, ratio in tried.items() if ratio.gains]
        return row | {"remedy": "none", "right": not better, "measured": ", ".join(better) or "none of four gains"}
    gains = record.get("gains") or {}
    name = next((each for each in record["remedies"] if gains.get(each, {}).get("of_cores", 0) <= CORES), None)
    if name is None:
        return row | {"remedy": record["remedies"][0], "measured": f"needs more than the {CORES} cores that are here"}
    gain = gains.get(name, {})
    value = {"more_workers": gain.get("workers", 2), "more_cores": round(gain.get("of_cores", 2))}.get(name, True)
    ratio = measured(case, here, {name: value})
    promised = gain["step_s"] / gain["now_s"] if "step_s" in gain else None
    within = promised is not None and abs(promised / ratio.ratio - 1) <= WITHIN
    label = name if value is True else f"{name}={value}"
    row |= {"remedy": label, "promised": promised, "measured": str(ratio)}
    return row | {"gains": ratio.gains, "within": within}


def show(folder: Path) -> None:
    """Print what each first remedy promised and gave."""
    print("Remedies that are advised, applied: step with the remedy over the step without")
    wanted = set(filter(None, os.environ.get("ONLY", "").split(",")))
    here, rows = prepared("remedies", folder), list[dict[str, Any]]()
    print("| case | true | said | first remedy | promised | measured | |", "|---|---|---|---|---|---|---|", sep="\n")
    for case in cases("remedies"):
        if wanted and case.path.stem not in wanted:
            continue
        try:
            row = shown(case, here)
        except subprocess.SubprocessError as error:  # the others go on
            told = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
            failed = {"case": case.path.stem, "true": case.cause, "said": "-", "remedy": "-"}
            row = failed | {"measured": f"{type(error).__name__}: {told[-1] if told else ''}"}
        rows.append(row)
        promised = f"{row['promised']:.3f}" if row.get("promised") else "-"
        verdict = {True: "within 15 %", False: "no" if not row.get("gains") else "gains"}[bool(row.get("within"))]
        verdict = ("right" if row["right"] else "WRONG") if row["remedy"] == "none" else verdict
        cells = [row[name] for name in ("case", "true", "said", "remedy")]
        print(f"| {' | '.join([*cells, promised, row['measured'], verdict])} |", flush=True)
    given = [row for row in rows if row["remedy"] not in ("none", "-")]
    applied = [row for row in given if "gains" in row]
    least = math.ceil(GIVEN_OF_30 / 30 * len(rows))
    print(goal(len(given) >= least, f"a remedy is given in {len(given)} of {len(rows)} (at least {least})"))
    gains, within = (sum(bool(row[name]) for row in applied) for name in ("gains", "within"))
    of = len(applied)
    print(goal(gains >= GAINS_SHARE * of, f"{gains} of {of} that were applied gain, by their interval (nine in ten)"))
    print(goal(within >= WITHIN_SHARE * of, f"{within} of {of} promises within 15 % (four in five)"))
