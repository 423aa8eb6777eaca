"""Published measurements as tables; they are no part of this repository."""

import json
from pathlib import Path

import pandas as pd


def tables(path: Path) -> dict[str, pd.DataFrame]:
    """Every table of a file of published figures, by its id."""
    found = json.loads(path.read_text())["tables"]
    entries = found.values() if isinstance(found, dict) else found
    return {table["id"]: pd.DataFrame(table["rows"], columns=table["columns"]) for table in entries}
