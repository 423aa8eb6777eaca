"""The verdict: what holds a loop back, with the numbers that show it and what would help. One for trials and for
watched loops."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchsuite.analysis.judging.doubts import Doubt, doubt, others_read
from benchsuite.analysis.judging.gains import Gain
from benchsuite.analysis.judging.judge import Found, judge
from benchsuite.analysis.judging.lost_time import Where, num_steps
from benchsuite.analysis.judging.remedies import remedies
from benchsuite.analysis.judging.setting import Setting
from benchsuite.analysis.judging.thresholds import MIN_STEPS
from benchsuite.inside.samples import RankSamples
from benchsuite.results.render import judged
from benchsuite.results.store.verdicts import CANNOT_TELL, Cause, Verdict

HELPS: Mapping[str, tuple[Gain, ...]] = {
    "foreign_load": (Gain("idle_cores"),),
    "others_read": (Gain("quiet_disk"),),
    "hidden_communication": (Gain("profile"),),
}
"""What helps against a doubt."""


@dataclass(frozen=True)
class Judgement:
    """What holds a loop back, the numbers that show it, what it may be as well, and what would help, all by name."""

    bottleneck: Verdict
    cause: Cause | None = None
    evidence: Mapping[str, float | int | str] | None = None
    alternatives: tuple[str, ...] = ()
    remedies: tuple[Gain, ...] = ()
    """The best first."""

    def figures(self) -> dict[str, Any]:
        """The figures of a record that say it, and what stands beside them."""
        numbers, names = dict(self.evidence or {}), [gain.name for gain in self.remedies]
        gains = {gain.name: gain.told() for gain in self.remedies}
        return {
            "bottleneck": self.bottleneck,
            "cause": self.cause,
            "evidence": numbers,
            "alternatives": list(self.alternatives),
            "remedies": names,
            "gains": gains,
            "bottleneck_evidence": judged.evidence(self.bottleneck, self.cause, numbers, self.alternatives),
            "bottleneck_remedy": judged.remedy(self.bottleneck, names, numbers, gains),
        }


def verdict(figures: Mapping[str, Any], setting: Setting, samples: Sequence[RankSamples]) -> Judgement | None:
    """What holds a loop back; None where it has no steps.

    Args:
        figures: of the loop.
        setting: what else is known of it.
        samples: what its ranks measured.
    """
    if not figures.get("step_s_mean"):
        return None
    steps = min(num_steps(rank, setting) for rank in samples)
    if setting.watched and steps < MIN_STEPS:
        return _doubted(Doubt("too_few", {"steps": steps}))
    if reason := doubt(figures, setting, samples):
        return _doubted(reason)
    found = judge(figures, samples, setting)
    if reason := _doubt_of(found, figures, setting):
        return _doubted(reason)
    found = _with_error(found, figures, samples, setting)
    verdict, cause = found.where
    numbers, fitting = dict(found.evidence), setting.fitting_threads(figures)
    numbers |= {} if fitting is None else {"fitting_threads": fitting}
    numbers |= {"threads": setting.threads} if fitting is not None and setting.watched and setting.threads else {}
    named = tuple(map(str, found.alternatives))
    return Judgement(verdict, cause, numbers, named, remedies(found, figures, samples, setting))


def _doubted(reason: Doubt) -> Judgement:
    return Judgement(CANNOT_TELL, evidence=reason.evidence(), remedies=HELPS.get(reason.name, ()))


def _doubt_of(found: Found, figures: Mapping[str, Any], setting: Setting) -> Doubt | None:
    """Why what was found may not be the loop's own; None where it is."""
    if "storage" in {where.verdict for where in (found.where, *found.alternatives)}:
        return others_read(figures, setting)
    if found.where.verdict == "compute" and setting.hides_communication and figures.get("communication_min_s") is None:
        return Doubt("hidden_communication", {})
    return None


def _with_error(found: Found, figures: Mapping[str, Any], samples: Sequence[RankSamples], setting: Setting) -> Found:
    """What was found, with the verdicts at either end of where AU may be, where these are others."""
    au, error, stall = figures.get("au"), figures.get("au_error"), figures.get("input_stall_fraction") or 0.0
    if au is None or error is None:
        return found
    others = dict[Where, None]()
    for end in (au - error, min(au + error, max(au, 1.0))):
        moved = {**figures, "au": end, "input_stall_fraction": max(0.0, stall + au - end)}
        other = judge(moved, samples, setting).where
        others |= {other: None} if other.verdict != found.where.verdict else {}
    if not others:
        return found
    return replace(
        found,
        evidence={**found.evidence, "au_error": error},
        alternatives=found.alternatives or (found.where, *others),
    )
