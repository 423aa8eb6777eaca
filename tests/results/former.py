"""What stood in stores of schema 1, under the names of today."""

from typing import Any

FORMER = {
    "exchange_s": "communication_s",
    "exchange_min_s": "communication_min_s",
    "update_s": "optimizer_s",
}


def renamed(fields: dict[str, Any]) -> dict[str, Any]:
    """Figures, or a row of them, of schema 1 as they are read today; columns of a range (`update_s_min`) too."""
    found = {}
    for name, value in fields.items():
        former = next((old for old in FORMER if name == old or name.startswith(f"{old}_")), None)
        found[name.replace(former, FORMER[former]) if former else name] = value
    if found.get("bottleneck") == "client":
        found["bottleneck"] = "preprocessing"
    return found
