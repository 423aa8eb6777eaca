"""Names as they are printed: of workloads in files of their own, and of degrees of parallelism."""

from collections.abc import Iterable, Mapping
from typing import Any

from benchsuite.results.render.tables import Row, is_missing, names_below, whole

WORKLOAD, PARALLELISM, SIZES = "spec.workload", "spec.parallelism", "spec.model."
REVISION = "revision"
PART_OF = {"schedule": "pp", "microbatches": "pp", "cp_attention": "cp"}
"""What of parallelism means something only where a degree is above one."""
USUAL: Mapping[str, Any] = {"zero": 0, "engine": "torch", "max_staleness": None, "microbatches": None}
"""Values of degrees that go without saying; of others 1. Null microbatches are not 1, null staleness is not 0."""
ROOT = "spec.data.root"
IN_NO_LABEL = (ROOT, "spec.data.staging_dir", "spec.measure.repeats", "spec.measure.timeout_s")
"""Settings that are no part of a label; the folder of the data is where nothing else differs."""


def short_workloads(names: Iterable[str]) -> dict[str, str]:
    """Each name as it is; of path/to/file.py:NAME only as many parts of its end as tell it from all others."""
    known = dict.fromkeys(names)
    return {name: _end(name, known) if is_file(name) else name for name in known}


def is_file(workload: str) -> bool:
    """Whether a workload is named by the path of its file."""
    return "/" in workload and ".py:" in workload


def last_part(workload: object) -> str:
    """A workload's name without the folders of its file, for where others are not known."""
    return str(workload).rpartition("/")[2]


def _end(name: str, known: Iterable[str]) -> str:
    parts, others = name.split("/"), [f"/{other}" for other in known if other != name]
    ends = ["/".join(parts[-count:]) for count in range(1, len(parts) + 1)]
    return next((end for end in ends if not any(other.endswith(f"/{end}") for other in others)), name)


def sizes_of(row: Row) -> str:
    """The sizes of a row's model that are not its variant's, such as `hidden_size 1024`; empty where all are."""
    given = [name for name in names_below(SIZES, tuple(row)) if not is_missing(row[name])]
    return " ".join(f"{name.removeprefix(SIZES)} {whole(row[name])}" for name in given)


def labels_apart(points: Iterable[Row]) -> dict[str, str]:
    """Labels by point id; what differs is added where several points share one, as those of single trials do."""
    shared: dict[str, dict[str, Row]] = {}
    for row in points:
        shared.setdefault(str(row["label"]), {})[str(row["point_id"])] = row
    found: dict[str, str] = {}
    for label, rows in shared.items():
        if len(rows) == 1:
            found |= dict.fromkeys(rows, label)
            continue
        settings = {point: _settings(row) for point, row in rows.items()}
        names = dict.fromkeys(name for of_point in settings.values() for name in of_point if name not in IN_NO_LABEL)
        differing = [name for name in names if len({str(of.get(name)) for of in settings.values()}) > 1]
        for point, row in rows.items():
            known = settings[point]
            words = [_setting(name, known[name]) for name in differing if not is_missing(known.get(name))]
            found[point] = " ".join([label, *(words or _folder(row, rows.values()))])
    return found


def _settings(row: Row) -> dict[str, Any]:
    """What a row's spec holds, and its revision; degrees of parallelism are one setting, in words."""
    own = {name: whole(value) for name, value in row.items() if name.startswith("spec.") or name == REVISION}
    single = {name: value for name, value in own.items() if not name.startswith(f"{PARALLELISM}.")}
    return single | {PARALLELISM: parallelism_of(row) or None}


def _folder(row: Row, others: Iterable[Row]) -> list[str]:
    """As many parts of the end of a point's data folder as tell it from the others'; none where all have the same."""
    roots = {str(other[ROOT]) for other in others if not is_missing(other.get(ROOT))}
    return [_end(str(row[ROOT]), roots)] if len(roots) > 1 and not is_missing(row.get(ROOT)) else []


def _setting(name: str, value: object) -> str:
    """A setting in words, with its name where its value is no text, or a revision; of a path the last part."""
    named = not isinstance(value, str) or name == REVISION
    return f"{name.rpartition('.')[2]} {whole(value)}" if named else last_part(str(value))


def degrees(parallelism: Mapping[str, Any]) -> str:
    """What is set of parallelism, such as `tp 2`; degrees of one, and the schedule of no pipeline, are not.

    `degree_words` of `workloads/layout.py` has the same words for what has no record yet.
    """
    words = []
    for name, value in parallelism.items():
        without_effect = name in PART_OF and int(parallelism.get(PART_OF[name]) or 1) == 1
        if value is True:
            words.append(name)
        elif not (value is None or value is False or value == USUAL.get(name, 1) or without_effect):
            words.append(str(value) if name == "engine" else f"{name} {value}")
    return " ".join(words) or "none"


def parallelism_of(row: Row) -> str:
    """The parallelism of a row: its name, or what is set of it; empty where none is known."""
    named = row.get(PARALLELISM)
    if isinstance(named, str):
        return named
    known = _degrees_of(row)
    return degrees(known) if known else ""


def mode_of(row: Row) -> str:
    """The parallelism of a row in a series over ranks: as `parallelism_of`, with `dp` for the degree that follows."""
    known = {} if isinstance(row.get(PARALLELISM), str) else _degrees_of(row)
    if not known:
        return parallelism_of(row)
    own = degrees({name: value for name, value in known.items() if name != "dp"})
    return "dp" if own == "none" else f"dp {own}"


def _degrees_of(row: Row) -> dict[str, Any]:
    prefix = f"{PARALLELISM}."
    given = {key.removeprefix(prefix): row[key] for key in row if key.startswith(prefix)}
    return {name: whole(value) for name, value in given.items() if not is_missing(value)}
