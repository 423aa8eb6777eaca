"""Trials whose cause is known, as `make bench SECTIONS=causes HALF=open KEEP=tests/analysis/recorded` kept them: their
samples go through all that `analysis` does, whose figures and cause must be what they were.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from benchsuite.analysis.record_builder import Attempt, measured
from benchsuite.contract.trial_spec import parse_trial
from benchsuite.grid.point import Point
from benchsuite.inside.samples import RankSamples
from benchsuite.results.store.record import TrialRecord
from benchsuite.storage.dataset.manifest import Manifest

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.json.gz"))
RANKS = TypeAdapter(list[RankSamples])


def judged(kept: dict[str, Any]) -> TrialRecord:
    """Return the record that a trial's samples give today."""
    spec = parse_trial(kept["spec"])
    manifest = Manifest.model_validate(kept["manifest"]) if kept["manifest"] else None
    attempt = Attempt(
        "trial", kept["spec"], "", "recorded", kept["env"], point=Point(spec, "recorded", None, manifest, {})
    )
    return measured(attempt, RANKS.validate_python(kept["ranks"]), kept["figures"].get("foreign_cpu_cores"))[0]


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_a_recorded_cause_is_judged_as_it_was(path: Path) -> None:
    kept = json.loads(gzip.decompress(path.read_bytes()))
    record = judged(kept)
    figures = record.figures.model_dump(mode="json", exclude_none=True)
    assert f"{figures['bottleneck']}/{figures.get('cause', 'none')}" == kept["cause"], record.evidence
    known = {name: value for name, value in kept["figures"].items() if not name.startswith("bottleneck")}
    assert {name: figures.get(name) for name in known} == pytest.approx(known)


def test_causes_of_many_verdicts_are_recorded() -> None:
    verdicts = {json.loads(gzip.decompress(path.read_bytes()))["cause"].partition("/")[0] for path in RECORDED}
    assert verdicts >= {"storage", "preprocessing", "client_cpu", "waiting", "communication", "imbalance", "compute"}
