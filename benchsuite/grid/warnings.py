"""What the user of a plan had better know before it runs."""

from collections.abc import Sequence

from benchsuite.grid.point import Plan, Point
from benchsuite.grid.validity import ranks_on_a_node
from benchsuite.host.interference import crowding
from benchsuite.host.machine import Machine

MEMORY_FACTOR = 5
"""MLPerf Storage's rule: a dataset of at least five times the memory of all hosts."""
LEAST_SHARE = 0.01
"""Shares of memory below this are not told to the digit."""


def crowd_of(plan: Plan, point: Point) -> str | None:
    """Where the ranks of a point will have more threads than their node has cores, the arithmetic; else None."""
    if plan.machine is None:
        return None
    return crowding(point.spec, ranks_on_a_node(point.spec, plan.machine), plan.machine.cores)


def crowded(plan: Plan) -> list[str]:
    """A warning for each way in which points have more threads than a node has cores; they run all the same."""
    found: dict[str, list[str]] = {}
    for point in plan.points:
        if crowd := crowd_of(plan, point):
            found.setdefault(crowd, []).append(point.label)
    return [f"warning: {_named(labels)}: {crowd}; flagged oversubscribed" for crowd, labels in found.items()]


def crowding_skipped(plan: Plan) -> list[str]:
    """The arithmetic of points that are skipped for another reason, and would not have the cores either."""
    found: dict[str, list[str]] = {}
    for skipped in plan.skipped:
        if crowd := crowd_of(plan, skipped.point):
            found.setdefault(crowd.partition(";")[0], []).append(skipped.point.label)
    return [f"{_named(labels)}: also {crowd}" for crowd, labels in found.items()]


def _named(labels: list[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{len(labels)} points such as {labels[0]}"


def fitting_in_memory(points: Sequence[Point], machine: Machine | None, memory_bytes: int) -> str | None:
    """A warning where datasets fit in memory: from the second epoch on, reads may be served from there.

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
    share, size, nodes, _ = min(small, key=lambda found: found[0])
    count = len({dataset for *_, dataset in small})
    what = f"{count} datasets, one" if count > 1 else "a dataset"
    where = "the node" if nodes == 1 else f"its {nodes} nodes, taken to be alike"
    of = f"{share:.2g} x" if share >= LEAST_SHARE else f"less than {LEAST_SHARE:.0%} of"
    return (
        f"warning: {what} of {size / 1e9:.3g} GB, {of} the memory of {where}: epochs after the first may come "
        f"from the cache; {MEMORY_FACTOR * nodes * memory_bytes / 1e9:.0f} GB would not (MLPerf Storage: "
        f"{MEMORY_FACTOR} x)"
    )
