"""Sizes with units, as users write them: 4KiB, 1.5GB."""

import re

from benchsuite.contract.errors import UserError

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {f"{letter}iB": 1 << (10 * power) for power, letter in enumerate("KMGT", 1)}


def parse_bytes(text: str, option: str) -> int:
    """Return the bytes of a size such as 4KiB, 1GB or 4096.

    Raises:
        UserError: it is no size.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    units = {name.upper(): size for name, size in UNITS.items()}
    if found is None or found[2].upper() not in units:
        raise UserError(f"{option} {text!r}: not a size; allowed: a number and {', '.join(filter(None, UNITS))}")
    return round(float(found[1]) * units[found[2].upper()])
