"""Where results come from: the environments they were measured in, and sweep files that measure the same again."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from benchsuite.results.compare.drift import ranges
from benchsuite.results.render.naming import is_file
from benchsuite.results.render.words import and_, size, typed
from benchsuite.results.store.frames import flatten
from benchsuite.results.store.record import TrialRecord

FACTS = ("host", "cpu", "cores", "memory_bytes", "devices", "os", "python", "benchsuite", "commit")
MAX_VALUES = 12
"""Values of one fact that are told."""


def environments(records: Sequence[TrialRecord]) -> list[tuple[str, list[str]]]:
    """Each fact with its values; how many trials have which is said where they differ. Of what drifts, the range."""
    found: dict[str, Counter[str]] = {}
    for record in records:
        for name, value in {**_facts(record.env), **_file(record.spec)}.items():
            found.setdefault(name, Counter())[value] += 1
    drift = ranges([flatten("env", record.env) | record.figures.model_dump() for record in records])
    return [*((name, _told(values)) for name, values in found.items()), *((name, [text]) for name, text in drift)]


def _file(spec: Mapping[str, Any]) -> dict[str, str]:
    """The whole path of a workload in a file of its own, which titles shorten."""
    named = spec.get("workload")
    return {"workload": named} if isinstance(named, str) and is_file(named) else {}


def _facts(env: Mapping[str, Any]) -> dict[str, str]:
    data = env.get("data") or {}
    facts = {name: env.get(name) for name in FACTS}
    facts |= {name: data.get(name) for name in ("file_system", "mount", "server_cache")}
    facts |= {str(name): value for name, value in {**env.get("libraries", {}), **env.get("scheduler", {})}.items()}
    return {name: _text(name, value) for name, value in facts.items() if value not in (None, [], "")}


def _text(name: str, value: Any) -> str:
    if name == "memory_bytes":
        return size(value)
    if name == "devices":
        return devices_in_words(value)
    return value if isinstance(value, str) else json.dumps(value)


def devices_in_words(devices: Sequence[Any]) -> str:
    """How many there are of each kind of device."""
    counts = Counter(map(_device, devices))
    return and_([f"{count} x {device}" for device, count in counts.items()])


def _device(device: Any) -> str:
    return f"{device.get('name')} (driver {device.get('driver')})" if isinstance(device, Mapping) else str(device)


def _told(values: Counter[str]) -> list[str]:
    if len(values) == 1:
        return [*values]
    told = [f"{value} ({count} trials)" for value, count in values.most_common(MAX_VALUES)]
    return told + ([f"and {len(values) - MAX_VALUES} more"] if len(values) > MAX_VALUES else [])


def commands(records: Sequence[TrialRecord]) -> dict[str, list[str]]:
    """Return for each sweep the commands that measured it; where none is known, what measures `sweep_file` again."""
    found: dict[str, list[str]] = {}
    for record in records:
        again = ["benchsuite", "sweep", f"{record.sweep}.yaml", "--session", record.session]
        command = typed(*(record.command or again))
        told = found.setdefault(record.sweep, [])
        if command not in told:
            told.append(command)
    return found


def sweep_file(records: Sequence[TrialRecord]) -> str | None:
    """A sweep file with the points of one sweep, as they were resolved; None where they are no points of a sweep.

    What all points share stands under `base`; what differs, under `zip`, a value per point. Null is left to defaults.
    """
    points = {record.point_id: record for record in sorted(records, key=lambda record: record.order)}
    specs = [_flat(record.spec) for record in points.values()]
    if not specs or any("measure.steps" not in spec for spec in specs):
        return None
    keys = list(dict.fromkeys(key for spec in specs for key in spec))
    same = {key for key in keys if all(spec.get(key) == specs[0].get(key) for spec in specs)}
    text: dict[str, Any] = {"name": records[0].sweep}
    if records[0].question:
        text["question"] = records[0].question
    text["base"] = _nested({key: specs[0][key] for key in keys if key in same and specs[0].get(key) is not None})
    if len(same) < len(keys):
        text["zip"] = {key: [spec.get(key) for spec in specs] for key in keys if key not in same}
    return yaml.safe_dump(text, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None)


def _flat(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys; degrees of parallelism stay together, because a name may stand for them."""
    whole = spec.get("parallelism")
    return flatten("", {**spec, "parallelism": None}) | {"parallelism": whole}


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        head, _, rest = key.partition(".")
        if rest:
            nested.setdefault(head, {})[rest] = value
        else:
            nested[head] = value
    return nested
