"""`python -m tests.storm --minutes N [--seed N]`: what it did, what came of it, and what is wrong."""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.storm.audit import audit
from tests.storm.storm import Storm, counts, missing, storm

SEED = 1
LATE_S = 20


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def weather(folder: Path, minutes: float, seed: int, late_s: int, tell: Callable[[str], None] = say) -> list[str]:
    """A storm and its audit: what is wrong. Logs, store and temporary folders stay in `folder`."""
    began_s = time.monotonic()
    tell(f"storm of {minutes:g} minutes, seed {seed}, mounts {late_s} s late, in {folder}")
    with storm(folder, seed, late_s, tell) as made:
        made.rage(minutes)
        tell(f"{len(made.strikes)} strikes after {time.monotonic() - began_s:.0f} s; now until all is done")
        made.calm()
        wrong = audit(made)
        for line in summary(made, time.monotonic() - began_s):
            tell(line)
    for line in wrong:
        tell(f"WRONG: {line}")
    tell(f"audit: {f'{len(wrong)} findings' if wrong else 'nothing is wrong'}")
    return wrong


def summary(made: Storm, seconds: float) -> list[str]:
    """What was done, and how much of it."""
    starts = sum(len(sweep.runs) for sweep in made.sweeps)
    codes = Counter(run.code for sweep in made.sweeps for run in sweep.runs)
    sessions = {line.record["session"] for line in made.seen.trials()}
    failed = Counter(
        (line.record["reason"] or "").rpartition(": ")[2]
        for line in made.seen.trials()
        if line.record["status"] != "ok"
    )
    return [
        f"seed {made.seed}, {seconds:.0f} s in all, {len(made.strikes)} strikes, {starts} starts",
        "strikes: " + ", ".join(f"{number} x {what}" for what, number in sorted(counts(made.strikes).items())),
        "exit codes: " + ", ".join(f"{number} x {code}" for code, number in sorted(codes.items(), key=str)),
        f"records: {dict(made.seen.statuses())} in {len(sessions)} sessions",
        "reasons: " + "; ".join(f"{number} x {reason}" for reason, number in failed.most_common(12)),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.storm", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--late", type=int, default=LATE_S, help="seconds; a lease is 2.25 times as long")
    asked = parser.parse_args()
    if why := missing():
        say(f"no storm here: {why}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # its nodes and mounts end with it
    folder = Path(tempfile.mkdtemp(prefix="storm-"))
    wrong = weather(folder, asked.minutes, asked.seed, asked.late)
    if wrong:
        say(f"kept for a look: {folder} (logs, late/source/store)")
        say(f"again: make storm MINUTES={asked.minutes:g} SEED={asked.seed}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
