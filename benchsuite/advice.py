"""What the user of a plan had better know before it runs."""

from benchsuite.grid import Plan

MEMORY_FACTOR = 5
"""MLPerf Storage's rule: a dataset of at least five times the memory of all hosts."""


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
