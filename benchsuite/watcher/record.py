"""The record of a watched loop: a trial whose spec says what is known of a training that is not ours."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from benchsuite.contract.trial_spec import trial_id
from benchsuite.host.environment import environment, file_system
from benchsuite.results.store.record import Figures, TrialRecord

SWEEP = "watch"
QUESTION = "What holds the watched loops back?"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


@dataclass(frozen=True)
class Beginning:
    """What is known of a loop when it begins."""

    name: str
    session: str
    spec: dict[str, Any]
    data: Path | None
    started_at: str = field(default_factory=_now)
    started_s: float = field(default_factory=time.time)

    def record(
        self,
        figures: Mapping[str, Any],
        caveats: Sequence[tuple[str, str]],
        reason: str | None,
        world_size: int,
        device: str,
    ) -> TrialRecord:
        """Its record; without figures it has failed, for the reason given.

        Its `repeat` is the moment it began, in ms: runs of one script are repeats of one point, as they come.
        """
        spec = {**self.spec, "world_size": world_size, "device": device}
        canonical = json.dumps({"watch": spec}, sort_keys=True, separators=(",", ":"), default=str)
        point = hashlib.sha256(canonical.encode()).hexdigest()[:12]
        repeat = int(self.started_s * 1e3)
        workers = spec["data"]["num_workers"]
        label = [self.name, *([] if workers is None else [_counted(workers, "worker")])]
        env = environment()
        if self.data is not None:
            env["data"] = file_system(self.data)
        return TrialRecord(
            record_id=uuid4().hex,
            trial_id=trial_id(point, self.session, repeat),
            point_id=point,
            session=self.session,
            repeat=repeat,
            sweep=SWEEP,
            question=QUESTION,
            status="failed" if reason else "ok",
            reason=reason,
            caveats=list(dict.fromkeys(name for name, _ in caveats)),
            caveat_details=[f"{name}: {why}" for name, why in caveats],
            label=" · ".join([*label, *([_counted(world_size, "rank")] if world_size > 1 else [])]),
            started_at=self.started_at,
            finished_at=_now(),
            wall_s=time.time() - self.started_s,
            spec=spec,
            env=env,
            figures=Figures.model_validate(dict(figures)),
        )
