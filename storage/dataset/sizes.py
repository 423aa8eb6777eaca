"""Sizes in words: the decimal unit that suits them, so that a small one is not rounded to nothing."""

UNITS = ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB"))


def in_units(num_bytes: float) -> str:
    """Four digits and the largest unit of which there is one: 1.543 GB, 68 MB, 512 B."""
    for unit_bytes, unit in UNITS:
        if abs(num_bytes) >= 0.99995 * unit_bytes:
            return f"{num_bytes / unit_bytes:.4g} {unit}"
    return f"{num_bytes:.0f} B"
