"""What the user of a plan had better know before it runs."""

from benchsuite.crowding import crowding
from benchsuite.grid import Plan, Point, ranks_on_a_node

MEMORY_FACTOR = 5
"""MLPerf Storage's rule: a dataset of at least five times the memory of all hosts."""


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


def _named(labels: list[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{len(labels)} points such as {labels[0]}"


def small_datasets(plan: Plan, memory_bytes: int) -> str | None:
    """A warning where datasets fit in memory: from the second epoch on, reads may be served from there."""
    sizes = {
        point.dataset: point.manifest.stored_bytes
        for point in plan.points
        if point.manifest is not None and point.spec.data.source == "storage"
    }
    small = [size for size in sizes.values() if size < memory_bytes]
    if not small:
        return None
    what = f"{len(small)} datasets of at least" if len(small) > 1 else "a dataset of"
    return (
        f"warning: {what} {min(small) / 1e9:.3g} GB, {min(small) / memory_bytes:.2g} x the memory of the node: epochs "
        f"after the first may come from the cache; {MEMORY_FACTOR * memory_bytes / 1e9:.0f} GB would not (MLPerf "
        f"Storage: {MEMORY_FACTOR} x)"
    )
