"""The report as one HTML file that needs no network: summary, charts by Plotly, failures and provenance."""

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from benchsuite.results.charts import choices, comm, devices, operators, scaling, step, storage
from benchsuite.results.charts import modelled as models
from benchsuite.results.charts.chart import (
    COLORS,
    PART_COLORS,
    Chart,
    Numbered,
    against_batch,
    against_ranks,
    places,
    rounded,
)
from benchsuite.results.render.caveats import advice
from benchsuite.results.render.device_columns import WITH_DEVICES
from benchsuite.results.render.device_columns import legend as device_legend
from benchsuite.results.render.tables import Row, caveat_names, is_missing, rows, telling
from benchsuite.results.render.words import counted
from benchsuite.results.report import provenance, several_gpus
from benchsuite.results.report.io_profile import is_known
from benchsuite.results.report.modelled import NOTHING, Modelled
from benchsuite.results.report.sections import Section, points_of, sections, trials_of
from benchsuite.results.report.summary import LEGEND, remedies, trust
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.replacing import write_whole
from benchsuite.results.store.store import ResultsStore
from benchsuite.results.store.verdicts import CANNOT_TELL


def write(store: ResultsStore, out: Path, modelled: Modelled = NOTHING) -> int:
    """Write the report on everything in a store, and what models say of it; returns its size in bytes.

    Raises:
        StoreError: the store cannot be read, or the file not be written.
    """
    text = page(store, modelled)
    write_whole(out, text)
    return len(text.encode(errors="replace"))


def page(store: ResultsStore, modelled: Modelled = NOTHING) -> str:
    """The whole page.

    Its policy of content lets only the two scripts run that this function put there, and loads nothing.
    """
    found = sections(store)
    records = store.trials()
    plotly, script = _asset("plotly-cartesian.min.js"), _asset("page.js")
    return Template(_asset("page.html")).substitute(
        title=escape(title(found)),
        policy=" ".join(f"'sha256-{_digest(text)}'" for text in (plotly, script)),
        style=_asset("style.css"),
        subtitle=escape(subtitle(records)),
        summary="\n".join(summary(found)) if found else _without_trials(store),
        legend="<br>".join(map(escape, (*LEGEND.splitlines(), *device_legend([row for _, row in points_of(found)])))),
        provenance="\n".join(origins(records)),
        data=embedded(data(store, found, modelled)),
        plotly=plotly,
        script=script,
    )


def _without_trials(store: ResultsStore) -> str:
    """Which other records there are, whose charts stand below."""
    kinds = Counter(record.kind for record in store.latest())
    told = ", ".join(f"{count} of kind {kind}" for kind, count in kinds.items())
    return f"<p>No trials yet; other records: {escape(told)}.</p>" if told else "\n".join(summary([]))


def _asset(name: str) -> str:
    return (files("benchsuite.results.charts") / name).read_text()


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def embedded(value: Any) -> str:
    """JSON that no HTML parser takes for the end of the script it stands in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, default=str)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def data(store: ResultsStore, found: Sequence[Section], modelled: Modelled = NOTHING) -> dict[str, Any]:
    """What the page's script draws: a row per point with what it is filtered by, charts, and what failed."""
    points, trials = points_of(found), trials_of(found)
    told = [row for _, row in points]
    columns = telling(told, WITH_DEVICES[1:])
    axes = choices.axes(told)
    keys = [_keys(row, trials_of) for row, trials_of in _with_trials(points, trials)]
    for number, key in enumerate(keys):
        key.update((name, [values[number]]) for name, values in axes.items())
    return {
        "axes": [*axes],
        "parts": [_parts(row) for row in told],
        "advice": {name: advice(name) for row in told for name in caveat_names(row)},
        "headings": [[column.heading, column.right] for column in columns],
        "rows": [[column.cell(row) for column in columns] for _, row in points],
        "points": [{"label": str(row["label"]), **key} for (_, row), key in zip(points, keys, strict=True)],
        "charts": [_lean(chart) for chart in charts(store, found, modelled)],
        "failures": list(_failures(points, trials)),
        "colors": COLORS,
        "part_colors": PART_COLORS,
    }


MAX_TIMELINES = MAX_PROFILES = 12
"""Trials that have a timeline, or an I/O profile, in the page; the rest is left to other verbs."""


def charts(store: ResultsStore, found: Sequence[Section], modelled: Modelled = NOTHING) -> list[Chart]:
    """Every chart of a store's sections that has something to show, in the order of the page."""
    points, trials = points_of(found), trials_of(found)
    records = store.trials()
    place = places(points)
    return [
        *choices.choices(points),
        *against_ranks(points, "au", "Accelerator utilization against ranks", "au", "AU"),
        *against_ranks(points, "rate", "Throughput against ranks", "samples_per_s", "samples/s"),
        *against_batch(points),
        *storage.formats_by_loaders(points),
        *step.breakdown(points),
        *scaling.efficiencies(trials, points),
        *models.predictions(modelled.predicted, place, modelled.unpredicted),
        *step.buckets(points),
        *step.memory(points),
        *devices.charts(points),
        *operators.classes(points),
        *operators.roofline(points),
        *_profiles(points, records),
        *storage.staging(points),
        *models.knees(modelled.knees, place),
        *models.pipelines(modelled.pipelines, place, modelled.undrawn),
        *comm.charts([*rows(store.frame(by="point", kind="comm"))]),
        *_timelines(store, points, records),
    ]


def _profiles(points: Sequence[Numbered], records: Sequence[TrialRecord]) -> Iterator[Chart]:
    place = places(points)
    profiled = [record for record in records if is_known(record.io_profile)]
    for record in profiled[-MAX_PROFILES:]:
        number = place[record.session, record.point_id]
        yield from storage.io_profile(record.io_profile or {}, number, points[number][1])


def _timelines(store: ResultsStore, points: Sequence[Numbered], records: Sequence[TrialRecord]) -> Iterator[Chart]:
    """Draw timelines, and devices by seconds, of the points that wait most for input; the repeat of median step."""
    kept = [record for record in records if record.samples_file and record.status == "ok" and record.sweep != "watch"]
    repeats: dict[tuple[str, str], list[TrialRecord]] = {}
    for record in kept:
        repeats.setdefault((record.session, record.point_id), []).append(record)
    place = places(points)
    worst = sorted(repeats, key=lambda key: _or(points[place[key]][1].get("au"), 2.0))
    for key in sorted(worst[:MAX_TIMELINES], key=lambda key: place[key]):
        steps = sorted(repeats[key], key=lambda record: _or(record.figures.step_s_mean, 0.0))
        samples = store.steps(steps[(len(steps) - 1) // 2])
        if samples and samples.get("ranks"):
            yield from step.timeline(samples, place[key], points[place[key]][1])
            yield from devices.over_trial(samples, place[key], points[place[key]][1])


def _or(value: Any, default: float) -> float:
    return default if is_missing(value) else float(value)


def _with_trials(points: Sequence[Numbered], trials: Sequence[Row]) -> Iterator[tuple[Row, list[Row]]]:
    found: dict[tuple[str, str], list[Row]] = {}
    for trial in trials:
        found.setdefault((trial["session"], trial["point_id"]), []).append(trial)
    for _, row in points:
        yield row, found.get((row["session"], row["point_id"]), [])


def _keys(row: Row, trials: Sequence[Row]) -> dict[str, list[str]]:
    """What a point is filtered by besides the axes that vary; of statuses those of all its trials."""
    return {
        "sweep": [str(row["sweep"])],
        "session": [str(row["session"])],
        "status": sorted({str(trial["status"]) for trial in trials} | {str(row["status"])}),
    }


def _parts(row: Row) -> list[float | None] | None:
    """The parts of a step in ms, in the order of PART_COLORS; None where none is known."""
    found = [rounded(row.get(f"{name}_s"), 1e3) for name in PART_COLORS]
    return None if all(part is None for part in found) else found


def _text(value: Any) -> str:
    return "" if is_missing(value) else str(value)


def _lean(chart: Chart) -> dict[str, Any]:
    return {key: value for key, value in asdict(chart).items() if value not in ("", [], (), {}, False)}


def _failures(points: Sequence[Numbered], trials: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Trials without a result, those of a point that ended alike together."""
    place = places(points)
    found: dict[tuple[int, str, str], list[Row]] = {}
    for trial in trials:
        if trial["status"] != "ok":
            number = place[trial["session"], trial["point_id"]]
            found.setdefault((number, str(trial["status"]), _text(trial.get("reason"))), []).append(trial)
    for (number, status, reason), alike in found.items():
        logs = _text(alike[-1].get("work_folder"))
        phase = _text(alike[-1].get("phase"))
        yield {"point": number, "status": status, "reason": reason, "count": len(alike), "phase": phase, "logs": logs}


MAX_OPEN = 4
"""Blocks of the summary that are not folded away."""
IN_WORDS = {"none": "nothing", "mixed": "several things", "client_cpu": "client CPU", CANNOT_TELL: "cannot tell"}


def title(found: Sequence[Section]) -> str:
    """The page's title."""
    return f"{found[0].title} - benchsuite" if len(found) == 1 else "benchsuite report"


def subtitle(records: Sequence[TrialRecord]) -> str:
    """When and where was measured."""
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    if not records:
        return f"written {now}"
    hosts = Counter(str(record.env.get("host")) for record in records)
    first, last = (pick(record.started_at for record in records)[:16].replace("T", " ") for pick in (min, max))
    return f"measured {first} to {last} on {', '.join(list(hosts)[:4])} · written {now}"


def summary(found: Sequence[Section]) -> Iterator[str]:
    """Counts, then a block per sweep and session, the newest first."""
    if not found:
        yield "<p>No results yet.</p>"
        return
    yield _tiles(found)
    blocks = ["\n".join(_block(section)) for section in reversed(found)]
    yield from blocks[:MAX_OPEN]
    if blocks[MAX_OPEN:]:
        yield f"<details><summary>{len(blocks) - MAX_OPEN} earlier</summary>"
        yield from blocks[MAX_OPEN:]
        yield "</details>"


def _tiles(found: Sequence[Section]) -> str:
    """How many points each thing holds back, and how many trials have no result."""
    points = [row for section in found for row in section.points]
    verdicts = Counter(str(row["bottleneck"]) for row in points if not is_missing(row.get("bottleneck")))
    trials = Counter(str(row["status"]) for section in found for row in section.trials)
    tiles = [
        (name, f"{'what holds' if name == CANNOT_TELL else 'held'} back {counted(count, 'point')}")
        for name, count in verdicts.most_common()
    ]
    inner = [(IN_WORDS.get(name, name), text, name) for name, text in tiles]
    status = [(f"{count}", f"trial{'s' * (count != 1)} {name}", name) for name, count in trials.most_common()]
    cells = [
        f'<div class="tile {escape(kind)}"><b>{escape(name)}</b><span>{escape(text)}</span></div>'
        for name, text, kind in (*inner, *status)
    ]
    return f'<div class="tiles">{"".join(cells)}</div>'


def _block(section: Section) -> Iterator[str]:
    first: Mapping[str, Any] = section.trials[0]
    yield f"<article><h3>{escape(section.title)}</h3>"
    yield from (f'<p class="answer">{escape(text)}</p>' for text in section.answer)
    for line in section.beside:
        yield f"<p>{escape(line)}</p>"
    yield f'<p class="trust">{escape(trust(section.trials))}</p>'
    helping, why = [*remedies(section.points), *several_gpus.remark(section.points)], section.why
    if helping:
        yield f"<ul class=of>{''.join(f'<li>{escape(line)}</li>' for line in helping)}</ul>"
    if why:
        yield "<details><summary>why: evidence and arithmetic</summary><ul>"
        yield "".join(f"<li>{escape(line)}</li>" for line in why)
        yield "</ul></details>"
    yield f'<p class="of">sweep {escape(str(first["sweep"]))} · session {escape(str(first["session"]))}</p></article>'


def origins(records: Sequence[TrialRecord]) -> Iterator[str]:
    """Environments, and each sweep as a file with its commands."""
    if not records:
        return
    yield '<h2>Where this comes from</h2><div class="scroll"><table class="facts">'
    for name, values in provenance.environments(records):
        yield f"<tr><th>{escape(name)}</th><td>{'<br>'.join(map(escape, values))}</td></tr>"
    yield "</table></div>"
    for sweep, told in provenance.commands(records).items():
        text = provenance.sweep_file([record for record in records if record.sweep == sweep])
        if text is not None:
            yield f"<details><summary>sweep {escape(sweep)}: its points as a sweep file, and commands</summary>"
            yield f"<pre>{escape(chr(10).join(told))}</pre><pre>{escape(text)}</pre></details>"
