"""Published tables, where the machine has them: PUBLISHED_TABLES names a JSON file of them."""

import json
import os
from pathlib import Path
from typing import Any

import pytest


def published_file() -> Path:
    """The file of published tables, or the test is skipped."""
    path = os.environ.get("PUBLISHED_TABLES")
    if not path:
        pytest.skip("PUBLISHED_TABLES names no JSON file of published tables: the rows in this file were checked")
    return Path(path)


def all_rows(table: str) -> list[dict[str, Any]]:
    """The rows of one table by column, or the test is skipped."""
    found = next(one for one in json.loads(published_file().read_text())["tables"] if one["id"] == table)
    return [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]
