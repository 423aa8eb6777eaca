"""Made-up nights of a store: a sweep's points, three repeats each, with steps where they are asked for."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore
from tests.results.made import made_record

Change = Callable[[int, int], Mapping[str, Any]]
PARTS = {"load_s": 0.010, "h2d_s": 0.001, "forward_s": 0.020, "backward_s": 0.040, "communication_s": 0.005}


def night_name(night: int) -> str:
    """A session named by its date: nights of 28-day months."""
    return f"2026-{night // 28 + 1:02d}-{night % 28 + 1:02d}"


def trial(night: int, point: int, repeat: int, slower: float, **changes: Any) -> TrialRecord:
    """A trial of a point, its load `slower` than usual as a share of the step."""
    step = sum(PARTS.values())
    parts = PARTS | {"load_s": PARTS["load_s"] + slower * step}
    total = sum(parts.values())
    name, moment = night_name(night), f"{night_name(night)}T03:{point:02d}:{repeat:02d}.000000+00:00"
    fields: dict[str, Any] = {
        "record_id": f"{name}-{point}-{repeat}",
        "trial_id": f"p{point}.{name}.{repeat}",
        "point_id": f"p{point}",
        "session": name,
        "label": f"point {point}",
        "order": point,
        "started_at": moment,
        "finished_at": moment,
        "spec": {"workload": "resnet50", "batch_size": 8 + point, "data": {"source": "storage", "root": "/data"}},
        "env": {"host": f"node{point % 2}", "cores": 2, "devices": [], "lustre_client": "2.15.4"},
        "figures": {"samples_per_s": 1 / total, "step_s_mean": total, "bottleneck": "none", **parts},
    }
    return made_record(repeat, **(fields | changes))


def fill(
    path: Path, num_nights: int, num_points: int = 6, noise: float = 0.01, change: Change = lambda night, point: {}
) -> ResultsStore:
    """A store of nights, in one segment. `change` gives `slower` and other fields of a point's trials of a night."""
    rng, lines = np.random.default_rng(1), []
    for night in range(num_nights):
        for point in range(num_points):
            told = dict(change(night, point))
            slower = float(told.pop("slower", 0.0)) + noise * float(rng.normal())
            for repeat in range(3):
                lines.append(trial(night, point, repeat, slower, **told).model_dump_json())
    (path / "segments").mkdir(parents=True)
    (path / "segments" / "made.jsonl").write_text("\n".join(lines) + "\n")
    return ResultsStore(path)
