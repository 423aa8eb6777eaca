"""Tests of clusters and networks run only where they are asked for, and skip with the reason where they cannot."""

from pathlib import Path

import pytest

TIMEOUT_S = 600
"""Jobs wait for their turn, and processes of several nodes for two cores."""


def only_if_asked(folder: Path, reason: str | None, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark a folder's tests `cluster`; leave them out unless a marker or a path asks for them.

    Args:
        folder: whose tests, those of folders below included.
        reason: why they cannot run here; None where they can.
        config: of the session.
        items: all that were collected; changed in place.
    """
    own = [item for item in items if item.path.is_relative_to(folder)]
    for item in own:
        item.add_marker(pytest.mark.cluster)
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
    named = any(Path(argument.partition("::")[0]).resolve().is_relative_to(folder) for argument in config.args)
    if not config.option.markexpr and not named:
        config.hook.pytest_deselected(items=own)
        items[:] = [item for item in items if item not in set(own)]
