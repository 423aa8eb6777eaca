"""Why the collectives that a store has probed tell nothing of a series, in words."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from benchsuite.predict.scaling import growth
from benchsuite.predict.scaling.curve import Curve
from benchsuite.predict.scaling.from_store import COLLECTIVES
from benchsuite.predict.scaling.modes import mode_of
from benchsuite.predict.scaling.probed_network import comparable
from benchsuite.predict.theory.alpha_beta_fit import MIN_SIZES, AlphaBeta, Key
from benchsuite.predict.theory.collectives import BACKEND
from benchsuite.results.scaling.series import Series

CROWDED = "oversubscribed"


def why(curve: Curve, series: Series, frame: pd.DataFrame, probed: Mapping[Key, AlphaBeta]) -> list[str]:
    """A line where a store has rows of kind comm (`frame`) and a prediction does not use their fits; else nothing."""
    wanted = COLLECTIVES.get(mode_of(series))
    if frame.empty or wanted is None or curve.most_ranks < 2 or (curve.bucket_s or curve.exchange) is not None:
        return []
    dropped = _dropped(frame)
    reason = _reason(wanted, comparable(series, probed)[0], probed)
    return [f"the probed collectives are not used: {reason}{f'; {dropped}' if dropped else ''}"]


def _reason(wanted: Mapping[str, float], like: Mapping[Key, AlphaBeta], probed: Mapping[Key, AlphaBeta]) -> str:
    names = " and ".join(wanted)
    if not probed:
        return f"no probe of them could be fitted, which takes {MIN_SIZES} sizes at least"
    if not like:
        told = sorted({f"{key.backend} on {key.nodes} node{'s' if key.nodes > 1 else ''}" for key in probed})
        return f"none is of the backend, machine and nodes of these trials ({', '.join(told)} were probed)"
    known = {key.ranks: set[str]() for key in like}
    for key in like:
        known[key.ranks] |= {key.op} if (key.algorithm, key.dtype) == (BACKEND, "fp32") else set()
    ranks = sorted(count for count, ops in known.items() if {*wanted} <= ops)
    if not ranks:
        return f"{names} in fp32 was not among them"
    if len(ranks) < growth.MIN_SCALES:
        wanted_words = "give two, none with more ranks than cores: probe comm --world-size 2,4"
        return f"{names} was probed at {ranks[0]} ranks alone, {wanted_words}"
    return "the trials do not tell how many bytes they exchange"


def _dropped(frame: pd.DataFrame) -> str:
    """What `alphabeta.from_rows` leaves out."""
    crowded = np.array([CROWDED in list(names) for names in frame["caveats"]]) if "caveats" in frame else np.array([])
    failed = int((frame["status"] != "ok").sum())
    counts = {"of more ranks than cores": int(crowded.sum()), "not ok": failed}
    told = [f"{count} {'is' if count == 1 else 'are'} {what}" for what, count in counts.items() if count]
    return f"left out of {len(frame)} probes: {', '.join(told)}" if told else ""
