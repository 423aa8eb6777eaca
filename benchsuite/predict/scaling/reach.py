"""How far beyond the measured ranks a prediction goes."""

from collections.abc import Sequence

from benchsuite.contract.errors import UserError
from benchsuite.predict.scaling.curve import Curve
from benchsuite.predict.scaling.series import MAX_BEYOND


def check_reach(curve: Curve, ranks: Sequence[int], far: bool) -> None:
    """Refuse ranks too far beyond what was measured.

    Raises:
        UserError: more than MAX_BEYOND times the largest measured scale, and `far` is not set; or a batch of all ranks
            that so many cannot share.
    """
    most = curve.most_ranks

    def is_uneven(number: int) -> bool:
        return curve.kind == "strong" and bool(curve.batch % max(1.0, number * curve.data_share))

    uneven = [number for number in ranks if is_uneven(number)]
    if uneven and any(is_uneven(point.ranks) for point in curve.points):
        raise UserError(
            f"{curve.title}: {uneven[0]} ranks cannot share {curve.batch:g} samples a step evenly, nor could all of "
            "those measured; where ranks share samples, say how many: columns tensor and pipeline"
        )
    if uneven:
        raise UserError(
            f"{curve.title}: {uneven[0]} ranks cannot share {curve.batch:g} samples a step evenly; take a divisor of "
            f"{curve.batch:g}, or a series of a larger batch"
        )
    beyond = [number for number in ranks if number > MAX_BEYOND * most]
    if beyond and not far:
        raise UserError(
            f"{curve.title}: {beyond[0]} ranks are {beyond[0] / most:.3g} times the {most} measured; allowed: up to "
            f"{MAX_BEYOND} times ({MAX_BEYOND * most}); measure more ranks, or give --far"
        )
