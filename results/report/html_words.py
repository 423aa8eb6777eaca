"""What the HTML report says in words: counts, verdicts, what they rest on, and where they come from."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from results.record import CANNOT_TELL, TrialRecord
from results.report import provenance
from results.report.plain import counted
from results.report.sections import Section
from results.report.summary import answer, remedies, trust
from results.report.tables import is_missing
from results.staging import lines as staging_lines

MAX_OPEN = 4
"""Blocks of the summary that are not folded away."""
IN_WORDS = {"none": "nothing", "mixed": "several things", CANNOT_TELL: "cannot tell"}


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
    yield f'<article><h3>{escape(section.title)}</h3><p class="answer">{escape(answer(section.points))}</p>'
    for line in staging_lines(section.points):
        yield f"<p>{escape(line)}</p>"
    yield f'<p class="trust">{escape(trust(section.trials))}</p>'
    notes = remedies(section.trials)
    if notes:
        yield "<details><summary>caveats, with their arithmetic</summary><ul>"
        yield "".join(f"<li>{escape(line)}</li>" for line in notes)
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
