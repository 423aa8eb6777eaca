"""What is said of a watched loop: its figures with their verdict, its caveats, and the printed lines.

The words are those of a trial. What a loop that is not ours cannot tell stays None: how long a reader reads and decodes
a sample, and, unless batches are replayed, what a step takes with its input in memory.
"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from benchsuite.analysis.judging.setting import Setting
from benchsuite.analysis.judging.thresholds import MIN_STEPS
from benchsuite.analysis.judging.verdict import verdict
from benchsuite.analysis.memory_growth import memory_caveats
from benchsuite.analysis.metrics import foreign_cores, slowest_rank, watched_figures
from benchsuite.analysis.record_builder import BESIDE_VERDICT, Measuring, details_of
from benchsuite.contract.trial_spec import digest
from benchsuite.host.environment import environment, file_system
from benchsuite.host.interference import Finding, foreign_load
from benchsuite.inside.samples import PARTS, STEADY_TURNS, RankSamples
from benchsuite.results.render import job_time, judged
from benchsuite.results.render.words import counted, duration, typed
from benchsuite.results.store.record import TrialFigures, TrialRecord

SWEEP = "watch"
QUESTION = "What holds the watched loops back?"
UTILIZATION = "1 - share of the step that waits for input; not AU, which needs ceiling='replay'"
UTILIZATION_REPLAYED = "AU: step time on batches seen before / step time, in blocks side by side"
UNNAMED_DATA = 'from storage: not known without data="FOLDER", where the samples lie'
PRINTED = {"load": "waiting for input", "h2d": "copy to the device", "other": "rest of the loop body"}
OTHERS_LOAD = (
    "this loop's body includes waiting for another watched loader, {:.0%} of the step: its own answer tells why"
)
COLUMNS = 100
BAR = 20
"""Characters of the bar of all of a step."""
LONG_BEFORE = 0.2
"""Start-up and first steps that take so much of the loop are told."""
HIDDEN_SHARE = 0.005
"""What is less of the step, and was not marked, is not printed."""


@dataclass(frozen=True)
class Told:
    """What is known of the loop beside the samples of its ranks."""

    name: str
    ranks_missing: tuple[int, ...] = ()
    reads_counted: bool | None = None
    """Whether the data's file system adds to the counters of processes; None where it was not named."""
    cut_short_by: str | None = None
    """The exception that ended the loop."""
    num_replayed: int = 0
    """Steps that got a batch again."""
    cores: int | None = None
    """Cores that this process may use."""
    ranks_apart: bool = False
    """Other ranks' loops are not among these: what they keep busy is not known from that of others."""
    device: str = "cpu"
    num_passes: int = 1
    num_uncounted: int = 0
    before_s: float = 0.0
    """Seconds until steps began to count."""
    others_load_share: float = 0.0
    """Share of the steps in which another watched loop of this thread waited for its input."""
    wall_s: Mapping[str, float] | None = None
    """Where the time of the job went: seconds of each part (`inside.wall_time.WALL_PARTS`)."""
    job: str | None = None
    """What the user calls the job that this run is one of."""
    data_can_be_named: bool = True
    """Whether the user could have said where the samples lie."""


def figures(ranks: Sequence[RankSamples], told: Told) -> dict[str, Any]:
    """Every figure that the loops give, and the verdict; the step and its parts are those of the slowest rank."""
    found = watched_figures(ranks, told.reads_counted, _is_whole(told))
    au = found["au"]
    stall = found["input_stall_fraction"]
    found["utilization"] = (None if stall is None else 1 - stall) if au is None else au
    found["utilization_is"] = UTILIZATION if au is None else UTILIZATION_REPLAYED
    slowest = ranks[slowest_rank(ranks, "loader")]
    cores = slowest.used_cores if slowest.device_name is None else None
    setting = Setting(
        found["num_readers"],
        _sharing_cores(ranks, slowest),
        told.cores,
        cores.threads if cores is not None else None,
        watched=True,
    )
    judged = verdict(found, setting, ranks)
    found |= {} if judged is None else judged.figures()
    counted = {"steps": _num_steps(slowest), "passes": told.num_passes, "world_size": len(ranks)}
    return found | counted


def _is_whole(told: Told) -> bool:
    return not told.ranks_missing and not told.ranks_apart


def _num_steps(rank: RankSamples) -> int:
    return sum(block.num_steps for block in rank.blocks if block.kind == "loader")


def _sharing_cores(ranks: Sequence[RankSamples], one: RankSamples) -> int:
    """How many of the ranks may use cores that this one may use, itself included."""
    mine, used = one.used_cores, [rank.used_cores for rank in ranks]
    here = [each.cpus for each in used if mine is not None and each is not None and each.node == mine.node]
    return sum(cpus == mine.cpus or bool({*cpus} & {*mine.cpus}) for cpus in here) if mine is not None else 1


def caveats(ranks: Sequence[RankSamples], told: Told) -> list[tuple[str, str]]:
    """Why figures must not be trusted blindly: (name, the arithmetic)."""
    found = []
    steps = min(_num_steps(rank) for rank in ranks)
    queue = max(rank.seen_readers.queue_batches if rank.seen_readers else 0 for rank in ranks)
    if steps < STEADY_TURNS * max(queue, 1):
        found.append(
            ("not_steady", f"{steps} counted steps cover the loader's queue of {queue} batches less than 3 times")
        )
    if told.ranks_missing:
        missing = ", ".join(map(str, told.ranks_missing))
        found.append(("ranks_missing", f"ranks {missing} did not report; the figures are those of the others"))
    others = foreign_cores(ranks) if _is_whole(told) else None
    if others is not None and (load := foreign_load(*others)):
        found.append(("foreign_load", load))
    found += memory_caveats(ranks)
    if told.cut_short_by is not None:
        found.append(("cut_short", f"the loop ended by {told.cut_short_by}"))
    return found


def record_of(
    begun: Measuring,
    data: Path | None,
    found: Mapping[str, Any],
    noted: Sequence[Finding],
    reason: str | None,
    world_size: int,
    told: Told,
) -> TrialRecord:
    """The record of a watched loop: a trial whose spec says what is known of a training that is not ours.

    Without figures it has failed, for the reason given. Its `repeat` is the moment it began, in ms: runs of one script
    are repeats of one point, as they come.
    """
    spec = {**begun.spec, "world_size": world_size, "device": told.device}
    label, workers = [begun.label], spec["data"]["num_workers"]
    label += [] if workers is None else [counted(workers, "worker")]
    label += [counted(world_size, "rank")] if world_size > 1 else []
    env = environment() | ({} if data is None else {"data": file_system(data)})
    repeat = int(datetime.fromisoformat(begun.started_at).timestamp() * 1e3)
    point = digest({"watch": spec})
    measured = replace(begun, spec=spec, label=" · ".join(label), env=env, point_id=point, repeat=repeat)
    values = TrialFigures.model_validate(dict(found))
    beside = {name: found[name] for name in BESIDE_VERDICT if found.get(name)}
    beside |= {"wall_time_s": told.wall_s, "job": told.job}
    made = measured.record("failed" if reason else "ok", details_of(noted), reason=reason, figures=values, **beside)
    assert isinstance(made, TrialRecord)
    return made


def lines(ranks: Sequence[RankSamples], told: Told, found: Mapping[str, Any]) -> list[str]:
    """What is printed when the loop has ended: a sentence, a table, and what the numbers rest on."""
    passes = f"{told.num_passes} passes, " if told.num_passes > 1 else ""
    over = f" on each of {len(ranks)} ranks" if len(ranks) > 1 else ""
    steps = f"{_num_steps(ranks[0])} steps counted{over}, {told.num_uncounted} before"
    head = f"{told.name} · {passes}{steps} · {told.device}"
    if found["steps"] < MIN_STEPS:
        return [_answer(found)]
    return [
        head,
        *_wrapped(_answer(found)),
        *_wrapped(judged.advice(found["bottleneck_remedy"])),
        *_table(found),
        _rates(found, told.data_can_be_named and told.reads_counted is None),
        *([] if found["au"] is None else [f"utilization {found['au']:.2f} = {found['utilization_is']}"]),
        *_own(found),
        *(f"caveat: {name}: {why}" for name, why in caveats(ranks, told)),
        *([OTHERS_LOAD.format(told.others_load_share)] if told.others_load_share >= HIDDEN_SHARE else []),
        *(_before(ranks[0], told) if told.wall_s is None else _where_time_went(ranks, told.wall_s)),
        *([f"{told.num_replayed} steps were trained on batches seen before"] if told.num_replayed else []),
    ]


def _where_time_went(ranks: Sequence[RankSamples], wall_s: Mapping[str, float]) -> list[str]:
    differing = job_time.differing_rank({rank.rank: rank.wall_s or {} for rank in ranks})
    return [*_wrapped(job_time.where_it_went(wall_s)), *([] if differing is None else [differing])]


def over_runs(records: Sequence[TrialRecord], name: str) -> list[str]:
    """Where the time of a job went over its runs, where there was more than one."""
    runs = [(record.started_at, record.wall_time_s) for record in records if record.wall_time_s]
    return _wrapped(job_time.of_job(runs, name)) if len(runs) > 1 else []


def _before(rank: RankSamples, told: Told) -> list[str]:
    """What start-up and the first steps took, where that is a large part of the loop."""
    counted_s = sum(block.steps_s for block in rank.blocks if block.kind == "loader")
    if told.before_s <= LONG_BEFORE * (told.before_s + counted_s):
        return []
    first = "" if rank.first_batch_s is None else f", {duration(rank.first_batch_s)} of them until the first batch"
    steps = f"the {counted(told.num_uncounted, 'step')} before" if told.num_uncounted else "start-up"
    whole = f"{duration(told.before_s)} of {duration(told.before_s + counted_s)}"
    return [f"{whole} went to {steps}{first}: these are not counted"]


def progress_line(now: str, step: str, found: Mapping[str, Any], verdict: str) -> str:
    """A line on a training that goes on; `verdict`: one that is new."""
    rate, ranks, stall = found["samples_per_s"], found["world_size"], found["input_stall_fraction"]
    parts = [
        step,
        f"{1 / found['step_s_mean']:.1f} steps/s" if rate is None else f"{rate:,.0f} samples/s",
        "" if stall is None else f"waiting for input {judged.percent(stall)}",
        verdict.replace("_", " "),
        _slowest(found) if ranks > 1 else "",
    ]
    return f"{now}  " + "   ".join(filter(None, parts))


def _slowest(found: Mapping[str, Any]) -> str:
    """The rank that takes longest by itself, and the part of the step in which it does, as far as these are known."""
    rank, numbers = found.get("slowest_rank"), found.get("evidence") or {}
    if rank is None:
        return ""
    part = judged.MARKED.get(numbers.get("slow_part", ""))
    return f"slowest rank {rank}" + (f", in {part}" if part else "")


def saved_line(store: Path) -> str:
    """Where a record is, and what shows it."""
    return f"written: {store} · next: {typed('benchsuite', 'report', '--store', store)}"


def html(name: str, found: Mapping[str, Any]) -> str:
    """The answer as a table for notebooks: what holds the loop back, and the parts of its step so far."""
    if not found:
        return f"<p>{escape(name)}: no step has counted yet</p>"
    step_s = found["step_s_mean"]
    rows = [*_parts(found), ("step", step_s)]
    cells = (
        f"<tr><th>{escape(part)}</th><td>{seconds * 1e3:.1f}</td><td>{seconds / step_s:.0%}</td></tr>"
        for part, seconds in rows
    )
    told = [_answer(found), _rates(found)]
    caption = "<br>".join(map(escape, [f"{name} · {found['steps']} steps counted", *told]))
    head = "<tr><th></th><th>ms/step</th><th>share</th></tr>"
    return f"<table><caption>{caption}</caption><thead>{head}</thead><tbody>{''.join(cells)}</tbody></table>"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, COLUMNS, break_on_hyphens=False, break_long_words=False)


def _answer(found: Mapping[str, Any]) -> str:
    words = (found[name] for name in ("bottleneck", "cause", "bottleneck_evidence", "evidence", "alternatives"))
    return judged.answer(*words)


def _parts(found: Mapping[str, Any]) -> list[tuple[str, float]]:
    """The parts of the step that are printed, in their order, in seconds."""
    rows = [(PRINTED.get(name, name), found.get(f"{name}_s")) for name in (*PARTS, "other")]
    marked = any(seconds is not None for name, seconds in rows if name in PARTS[1:])
    shown = [(name if marked or name == PRINTED["load"] else "loop body", s) for name, s in rows if s is not None]
    return [row for row in shown if row[1] >= HIDDEN_SHARE * found["step_s_mean"] or row[0] != PRINTED["other"]]


def _table(found: Mapping[str, Any]) -> list[str]:
    """The parts of the step, in their order, and the step."""
    step_s, shown = found["step_s_mean"], _parts(found)
    p50, p95, p99 = (found[f"step_s_{name}"] * 1e3 for name in ("p50", "p95", "p99"))
    tail = f"median {p50:.1f}, p95 {p95:.1f}, p99 {p99:.1f}"
    rows = [(name, seconds * 1e3, seconds / step_s) for name, seconds in shown]
    return [
        f" {'where a step goes':<21}{'ms':>9}{'share':>8}",
        *(
            f" {name:<21}{ms:>9.1f}{judged.percent(share):>8}   {'█' * round(BAR * share)}".rstrip()
            for name, ms, share in rows
        ),
        f" {'step':<21}{step_s * 1e3:>9.1f}{'':>8}   {tail}",
    ]


def _rates(found: Mapping[str, Any], says_how: bool = False) -> str:
    """Samples and bytes per second, as far as they are known; `says_how`: by which argument more would be known."""
    rate, read, stored = (found[name] for name in ("samples_per_s", "read_call_bytes_per_s", "storage_bytes_per_s"))
    parts = [f"{1 / found['step_s_mean']:.1f} steps/s" if rate is None else f"{rate:,.0f} samples/s"]
    if read is not None:
        parts.append(f"{read / 1e6:,.1f} MB/s asked for in read calls")
    unknown = UNNAMED_DATA if says_how else "from storage: not known here"
    parts.append(unknown if stored is None else f"{stored / 1e6:,.1f} MB/s from storage")
    return " · ".join(parts)


def _own(found: Mapping[str, Any]) -> list[str]:
    share = found["overhead_fraction"]
    return [] if share is None else [f"watching took {share:.2%} of the step"]
