"""Names as they are printed: of workloads in files of their own, and of degrees of parallelism."""

from collections.abc import Iterable, Mapping
from typing import Any

from benchsuite.results.render.tables import Row, is_missing, whole

WORKLOAD, PARALLELISM, SIZES = "spec.workload", "spec.parallelism", "spec.model."
REVISION = "revision"
GOES_WITHOUT_SAYING = (None, False, "torch")
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
    given = {name.removeprefix(SIZES): whole(value) for name, value in row.items() if name.startswith(SIZES)}
    return " ".join(f"{name} {value}" for name, value in given.items() if not is_missing(value))


def labels_apart(points: Iterable[Row]) -> dict[str, str]:
    """Labels by point id; what differs is added where several points share one, as those of single trials do."""
    shared: dict[str, dict[str, Row]] = {}
    for row in points:
        shared.setdefault(str(row["label"]), {})[str(row["point_id"])] = row
    found = {}
    for label, rows in shared.items():
        every = dict.fromkeys(name for row in rows.values() for name in row)
        names = [name for name in every if name.startswith("spec.") or name == REVISION]
        differing = [
            name
            for name in names
            if name not in IN_NO_LABEL and len({str(whole(row.get(name))) for row in rows.values()}) > 1
        ]
        for point, row in rows.items():
            words = [_setting(name, row[name]) for name in differing if not is_missing(row.get(name))]
            found[point] = " ".join([label, *(words or _folder(row, rows.values()))])
    return found


def _folder(row: Row, others: Iterable[Row]) -> list[str]:
    """As many parts of the end of a point's data folder as tell it from the others'; none where all have the same."""
    roots = {str(other[ROOT]) for other in others if not is_missing(other.get(ROOT))}
    return [_end(str(row[ROOT]), roots)] if len(roots) > 1 and not is_missing(row.get(ROOT)) else []


def _setting(name: str, value: object) -> str:
    """A setting in words, with its name where its value is no text, or a revision; of a path the last part."""
    named = not isinstance(value, str) or name == REVISION
    return f"{name.rpartition('.')[2]} {whole(value)}" if named else last_part(str(value))


def degrees(parallelism: Mapping[str, Any]) -> str:
    """What is set of parallelism, such as `tp 2`; degrees of one, and the schedule of no pipeline, are not."""
    pipelined = int(parallelism.get("pp") or 1) > 1
    words = []
    for name, value in parallelism.items():
        if value is True:
            words.append(name)
        elif name == "engine":
            words += [str(value)] if value != "torch" else []
        elif name == "max_staleness":  # 0 and 1 are not what goes without saying
            words += [f"{name} {value}"] if value is not None else []
        elif name == "cp_attention" and int(parallelism.get("cp") or 1) == 1:
            continue
        elif value not in (*GOES_WITHOUT_SAYING, 0 if name == "zero" else 1) and (name != "schedule" or pipelined):
            words.append(f"{name} {value}")
    return " ".join(words) or "none"


def parallelism_of(row: Row) -> str:
    """The parallelism of a row: its name, or what is set of it; empty where none is known."""
    named = row.get(PARALLELISM)
    if isinstance(named, str):
        return named
    given = {key.removeprefix(f"{PARALLELISM}."): row[key] for key in row if key.startswith(f"{PARALLELISM}.")}
    known = {name: whole(value) for name, value in given.items() if not is_missing(value)}
    return degrees(known) if known else ""
