"""Warnings about a plan before it runs: too few cores, and datasets that fit in memory."""

from collections.abc import Sequence

from benchsuite.grid.point import Plan, Point
from benchsuite.grid.validity import ranks_on_a_node
from benchsuite.host import interference
from benchsuite.host.machine import Machine

MEMORY_FACTOR = 5
"""MLPerf Storage's rule: a dataset of at least five times the memory of all hosts."""
LEAST_SHARE = 0.01
"""Smaller shares of memory are printed as "less than"."""


def describe_crowding(plan: Plan, point: Point) -> str | None:
    """Return the arithmetic where the ranks of a point have more threads than their node has cores; else None."""
    if plan.machine is None:
        return None
    return interference.crowding(point.spec, ranks_on_a_node(point.spec, plan.machine), plan.machine.cores)


def crowding_warnings(plan: Plan) -> list[str]:
    """Return a warning for each way in which points have more threads than a node has cores; they run all the same."""
    labels_by_crowding: dict[str, list[str]] = {}
    for point in plan.points:
        if crowding := describe_crowding(plan, point):
            labels_by_crowding.setdefault(crowding, []).append(point.label)
    return [
        f"warning: {_name_points(labels)}: {crowding}; flagged oversubscribed"
        for crowding, labels in labels_by_crowding.items()
    ]


def skipped_crowding_notes(plan: Plan) -> list[str]:
    """Return the arithmetic of points that are skipped for another reason and would not have the cores either."""
    labels_by_crowding: dict[str, list[str]] = {}
    for skipped in plan.skipped:
        if crowding := describe_crowding(plan, skipped.point):
            labels_by_crowding.setdefault(crowding.partition(";")[0], []).append(skipped.point.label)
    return [f"{_name_points(labels)}: also {crowding}" for crowding, labels in labels_by_crowding.items()]


def _name_points(labels: list[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{len(labels)} points such as {labels[0]}"


def memory_warning(points: Sequence[Point], machine: Machine | None, memory_bytes: int) -> str | None:
    """Return a warning where datasets fit in memory, which may serve reads from the second epoch on; else None.

    The memory is that of all nodes of a point, which are taken to have as much as this one; without a machine, of one.
    """
    shares = []
    for point in points:
        if point.manifest is not None and point.spec.data.source == "storage":
            nodes = 1 if machine is None else -(-point.spec.ranks // ranks_on_a_node(point.spec, machine))
            size = point.manifest.stored_bytes
            shares.append((size / (nodes * memory_bytes), size, nodes, point.dataset))
    small = [share for share in shares if share[0] < 1]
    if not small:
        return None
    share, size, nodes, _ = min(small, key=lambda share: share[0])
    count = len({dataset for *_, dataset in small})
    what = f"{count} datasets, one" if count > 1 else "a dataset"
    where = "the node" if nodes == 1 else f"its {nodes} nodes, taken to be alike"
    of = f"{share:.2g} x" if share >= LEAST_SHARE else f"less than {LEAST_SHARE:.0%} of"
    return (
        f"warning: {what} of {size / 1e9:.3g} GB, {of} the memory of {where}: epochs after the first may come "
        f"from the cache; {MEMORY_FACTOR * nodes * memory_bytes / 1e9:.0f} GB would not (MLPerf Storage: "
        f"{MEMORY_FACTOR} x)"
    )
