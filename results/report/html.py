"""The report as one HTML file that needs no network: summary, charts by Plotly, failures and provenance."""

import base64
import hashlib
import importlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from results.record import TrialRecord
from results.replacing import write_whole
from results.report import html_charts, html_words
from results.report.figures import COLORS, Chart, Numbered, places
from results.report.modelled import NOTHING, Modelled
from results.report.sections import Section, sections
from results.report.summary import LEGEND
from results.report.tables import ABSENT, COLUMNS, Row, is_missing
from results.store import ResultsStore, StoreError

FILTERS = ("sweep", "workload", "format", "session", "status")


def write(store: ResultsStore, out: Path, modelled: Modelled = NOTHING) -> int:
    """Write the report on everything in a store, and what models say of it; returns its size in bytes.

    Raises:
        StoreError: plotly is not installed, the store cannot be read, or the file not be written.
    """
    text = page(store, modelled)
    write_whole(out, text)
    return len(text.encode(errors="replace"))


def page(store: ResultsStore, modelled: Modelled = NOTHING) -> str:
    """The whole page.

    Its policy of content lets only the two scripts run that this function put there, and loads nothing.
    """
    found = sections(store)
    records = [record for record in store.latest() if record.kind == "trial"]
    plotly, script = _plotly(), _asset("page.js")
    return Template(_asset("page.html")).substitute(
        title=escape(html_words.title(found)),
        policy=" ".join(f"'sha256-{_digest(text)}'" for text in (plotly, script)),
        style=_asset("style.css"),
        subtitle=escape(html_words.subtitle(records)),
        summary="\n".join(html_words.summary(found)) if found else _without_trials(store),
        legend="<br>".join(escape(line) for line in LEGEND.splitlines()),
        provenance="\n".join(html_words.origins(records)),
        data=embedded(data(store, found, records, modelled)),
        plotly=plotly,
        script=script,
    )


def _without_trials(store: ResultsStore) -> str:
    """Which other records there are, whose charts stand below."""
    kinds = Counter(record.kind for record in store.latest())
    told = ", ".join(f"{count} of kind {kind}" for kind, count in kinds.items())
    return f"<p>No trials yet; other records: {escape(told)}.</p>" if told else "\n".join(html_words.summary([]))


def _asset(name: str) -> str:
    return (files("results.report") / name).read_text()


def _plotly() -> str:
    """Plotly's own script.

    Raises:
        StoreError: plotly is not installed.
    """
    try:
        text: str = importlib.import_module("plotly.offline").get_plotlyjs()
    except ImportError as error:
        raise StoreError(f"--html needs plotly ({error}): pip install plotly") from None
    return text


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def embedded(value: Any) -> str:
    """JSON that no HTML parser takes for the end of the script it stands in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, default=str)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def data(
    store: ResultsStore, found: Sequence[Section], records: Sequence[TrialRecord], modelled: Modelled = NOTHING
) -> dict[str, Any]:
    """What the page's script draws: a row per point with what it is filtered by, charts, and what failed."""
    points = list(enumerate(row for section in found for row in section.points))
    trials = [row for section in found for row in section.trials]
    columns = [c for c in COLUMNS[1:] if any(c.cell(row) not in ("", ABSENT) for _, row in points)]
    keys = [_keys(row, trials_of) for row, trials_of in _with_trials(points, trials)]
    values = {name: sorted({value for key in keys for value in key[name]}) for name in FILTERS}
    return {
        "headings": [[column.heading, column.right] for column in columns],
        "rows": [[column.cell(row) for column in columns] for _, row in points],
        "values": values,
        "points": {"label": [str(row["label"]) for _, row in points]}
        | {name: [_coded(key[name], values[name]) for key in keys] for name in FILTERS},
        "charts": [_lean(chart) for chart in html_charts.charts(store, points, trials, records, modelled)],
        "failures": list(_failures(points, trials)),
        "colors": COLORS,
    }


def _with_trials(points: Sequence[Numbered], trials: Sequence[Row]) -> Iterator[tuple[Row, list[Row]]]:
    found: dict[tuple[str, str], list[Row]] = {}
    for trial in trials:
        found.setdefault((trial["session"], trial["point_id"]), []).append(trial)
    for _, row in points:
        yield row, found.get((row["session"], row["point_id"]), [])


def _keys(row: Row, trials: Sequence[Row]) -> dict[str, list[str]]:
    """What a point is filtered by; of statuses those of all its trials."""
    return {
        "sweep": [str(row["sweep"])],
        "workload": [_text(row.get("spec.workload"))],
        "format": [_text(row.get("spec.data.format") if row.get("spec.data.source") == "storage" else None)],
        "session": [str(row["session"])],
        "status": sorted({str(trial["status"]) for trial in trials} | {str(row["status"])}),
    }


def _coded(found: Sequence[str], values: Sequence[str]) -> int | list[int]:
    """Indices into the values; a single one as it is."""
    codes = [values.index(value) for value in found]
    return codes[0] if len(codes) == 1 else codes


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
