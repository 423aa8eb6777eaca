"""What must be true of a store, its nodes and all that was said, once the storm is over."""

import json
import re
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.storm.node import Node
from tests.storm.seen import FINISHED, Line, Seen
from tests.storm.storm import TRIALS, Run, Storm, Strike, Sweep

EXIT_CODES = {
    signal.SIGKILL: {-signal.SIGKILL},
    signal.SIGTERM: {75},
    signal.SIGHUP: {75},
    signal.SIGINT: {130},
    signal.SIGSTOP: set[int](),
}
GONE_S = 30.0
SEMAPHORES = "sem.mp-"
"""Python makes one and removes its name at once, and leaves the name where it is killed in between."""
LAUNCHERS_OWN = re.compile(r"ompi\.|prte|pmix|torchinductor")
"""What others than ours leave in the temporary folder."""


def audit(storm: Storm) -> list[str]:
    """All that is wrong, in words; what must be run for it is run."""
    found = [*storm.wrong, *storm.seen.wrong]
    for sweep in storm.sweeps[:2]:  # what was killed is removed by the next trial of its node
        storm.end(sweep, f"after-{sweep.node.name}")
    now = Seen(storm.source / "store")
    now.look()
    found += [*now.wrong, *_lost(storm.seen, now), *_doubled(storm.seen)]
    found += _unexplained(storm)
    for sweep in storm.sweeps:
        for run in sweep.runs:
            found += _ended(run, [strike for strike in storm.strikes if strike.mark == run.mark], run is sweep.now)
    for log in sorted(storm.logs.glob("*.log")):
        said = log.read_text(errors="replace")
        if "Traceback" in said and not _is_pythons_own(said):
            found.append(f"a traceback in {log}")
    found += [line for node in storm.nodes for line in _left_on(node)]
    found += _left_in_store(storm.source / "store", now)
    storm.mounts.settle()
    found += [line for sweep in storm.sweeps[:2] for line in _told(storm, sweep)]
    return found


def _is_pythons_own(said: str) -> bool:
    """Whether SIGINT came while the interpreter started, before anything of this product ran."""
    first = said.startswith(("Traceback", "Could not import runpy"))
    return first and said.rstrip().endswith("KeyboardInterrupt") and "benchsuite/" not in said


def _lost(then: Seen, now: Seen) -> Iterator[str]:
    for name, line in then.lines.items():
        if name not in now.lines or now.lines[name].record != line.record:
            yield f"lost or changed: {line}"


def _doubled(seen: Seen) -> Iterator[str]:
    """Each planned trial has ended well once; before that it may have failed, where a retry was asked for."""
    sessions: dict[str, dict[str, list[Line]]] = defaultdict(lambda: defaultdict(list))
    for line in seen.trials():
        if line.record["status"] in FINISHED:
            sessions[line.record["session"]][line.record["trial_id"]].append(line)
    for session, trials in sessions.items():
        if not session.startswith("after") and len(trials) != TRIALS:
            yield f"session {session} has {len(trials)} finished trials, not {TRIALS}"
        for lines in trials.values():
            ok = [line for line in lines if line.record["status"] == "ok"]
            if len(ok) != 1 or len(lines) > 2:
                yield f"session {session}: ended {len(lines)} times, {len(ok)} well: {'; '.join(map(str, lines))}"


def _unexplained(storm: Storm) -> Iterator[str]:
    """Trials that failed though nobody had struck what they ran on, or that do not say why."""
    for line in storm.seen.trials():
        record = line.record
        if record["status"] not in FINISHED or record["status"] == "ok":
            continue
        since_s = line.at_s - (record["wall_s"] or 0.0) - 5.0
        if not record["reason"] or "\n" in record["reason"]:
            yield f"no reason, or more than a line, of {line}: {record['reason']!r}"
        if not any(since_s <= strike.at_s + strike.stopped_s and strike.at_s <= line.at_s for strike in storm.strikes):
            yield f"nothing was struck before {line}: {record['reason']}"


def _ended(run: Run, strikes: list[Strike], undisturbed: bool) -> Iterator[str]:
    """Whether a sweep's exit code is one of those that its strikes allow."""
    allowed = {0, 3}
    for strike in strikes:
        if strike.role == "sweep":
            allowed |= EXIT_CODES[strike.number]
            allowed |= {-strike.number} if strike.at_an_end else set()
        elif strike.role in ("zygote", "agent", "starter"):
            allowed |= {75} if strike.role == "zygote" else {75, 2}  # 2: no rank could ever be started
    if _is_pythons_own(run.log.read_text(errors="replace")):
        allowed |= {1}
    if run.code not in allowed:
        told = ", ".join(f"{strike.role} {strike.number.name}" for strike in strikes) or "nothing"
        yield f"{run.mark} ended with {run.code}, struck: {told}; allowed {sorted(allowed)}; see {run.log}"


def _left_on(node: Node) -> Iterator[str]:
    ends_s = time.monotonic() + GONE_S
    while (left := node.processes()) and time.monotonic() < ends_s:
        time.sleep(0.2)
    for each in left:
        yield f"node {node.name}: {each.role} of {each.mark} still runs: {each.process}"
    for path in node.temporary.iterdir():
        if not LAUNCHERS_OWN.match(path.name):
            yield f"node {node.name}: left in its temporary folder: {path.name}"
    for name in node.shared_memory():
        if not name.startswith(SEMAPHORES):
            yield f"node {node.name}: left in shared memory: {name}"


def _left_in_store(store: Path, seen: Seen) -> Iterator[str]:
    """Hidden files anywhere, and folders of attempts that no record names."""
    named = {line.record.get("work_folder") for line in seen.lines.values()}
    for path in store.rglob("*"):
        name = str(path.relative_to(store))
        parts = name.split("/")
        if path.name.startswith("."):
            if not any(name.startswith(f"{folder}/") for folder in named if folder):
                yield f"hidden in the store: {name}"
        elif parts[0] == "work" and len(parts) == 3 and name not in named:
            yield f"no record names the work folder {name}: {sorted(each.name for each in path.iterdir())}"
        elif parts[0] == "work" and len(parts) == 2 and path.is_dir() and not any(path.iterdir()):
            yield f"empty: {name}"


def _told(storm: Storm, sweep: Sweep) -> Iterator[str]:
    """What the verbs say on a node, against what the store has."""
    node, store, asked = sweep.node, storm.shared / "store", sweep.arguments[1]
    trials = {line.record["trial_id"] for line in storm.seen.trials()}

    def run(*arguments: object) -> str:
        log = storm.logs / f"{node.name}-{'-'.join(map(str, arguments[:2])).replace('/', '_')}.log"
        log.unlink(missing_ok=True)
        code, said = node.run((*arguments, "--store", store), log)
        wrong.extend([f"{node.name}: {arguments[0]} ended with {code}: {said[-300:]}"] if code else [])
        return said

    wrong: list[str] = []
    sessions = sorted({line.record["session"] for line in storm.seen.trials()})
    for session in sessions if sweep is storm.sweeps[0] else sessions[:1]:
        said = run("status", "--session", session)
        expected = f"session {session} · {len(storm.seen.session(session))} done · 0 failed · 0 running · 0 waiting\n"
        if said != expected:
            wrong.append(f"{node.name}: status says {said!r}, not {expected!r}")
    run("status", asked)
    run("results", "compact")
    for verb in (("results", "show", "--format", "json"), ("report", "--format", "json")):
        rows = _rows(run(*verb))
        counted = Counter(row["trial_id"] for row in rows if "trial_id" in row)
        if set(counted) != trials or set(counted.values()) != {1}:
            wrong.append(f"{node.name}: {' '.join(verb)} has {len(counted)} trials of {len(trials)}, {len(rows)} rows")
    yield from wrong


def _rows(said: str) -> list[dict[str, object]]:
    try:
        rows: list[dict[str, object]] = json.loads(said[said.index("[") : said.rindex("]") + 1])
    except ValueError:
        return []
    return rows
