"""Causes that were made, as `make bench SECTIONS=verdicts KEEP=tests/analysis/recorded` kept them: samples of real
trials go through all that `analysis` does, whose figures and verdict must be what they were.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from benchsuite.analysis.record_builder import Attempt, measured, with_ceilings
from benchsuite.contract.rank_samples import RankSamples
from benchsuite.contract.trial_spec import parse_trial
from benchsuite.grid.point import Point
from benchsuite.results.store.record import TrialRecord
from benchsuite.storage.dataset.manifest import Manifest

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.json.gz"))
RANKS = TypeAdapter(list[RankSamples])
OF_ANOTHER_TRIAL = ("loader_only_samples_per_s", "storage_ceiling_bytes_per_s", "ceilings_record_id")


def judged(kept: dict[str, Any]) -> TrialRecord:
    """Return the record that a trial's samples give today."""
    spec = parse_trial(kept["spec"])
    manifest = Manifest.model_validate(kept["manifest"]) if kept["manifest"] else None
    point = Point(spec, "recorded", None, manifest, {})
    attempt = Attempt("trial", kept["spec"], "", "recorded", kept["env"], point=point)
    record, _ = measured(attempt, RANKS.validate_python(kept["ranks"]), kept["figures"].get("foreign_cpu_cores"))
    ceilings = {name: value for name, value in kept["figures"].items() if name in OF_ANOTHER_TRIAL}
    return with_ceilings(attempt, record, ceilings)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_a_recorded_cause_is_judged_as_it_was(path: Path) -> None:
    kept = json.loads(gzip.decompress(path.read_bytes()))
    record = judged(kept)
    figures = record.figures.model_dump(mode="json", exclude_none=True)
    assert record.status == "ok" and figures["bottleneck"] in kept["expected"], figures["bottleneck_evidence"]
    known = {name: value for name, value in kept["figures"].items() if not name.startswith("bottleneck")}
    if (part := known.pop("preprocessing_part", None)) is not None:  # what the cause was called before
        assert figures["cause"] == part
    assert {name: figures.get(name) for name in known} == pytest.approx(known)


def test_causes_of_every_verdict_are_recorded() -> None:
    names = {json.loads(gzip.decompress(path.read_bytes()))["said"] for path in RECORDED}
    assert names >= {"storage", "preprocessing", "client_cpu", "communication", "imbalance", "compute", "none"}
