"""Nodes with networks of their own on this host: network namespaces, joined by a bridge over shaped links."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.network import RATE, Network, missing
from tests.faults.conftest import bench, wait_until

__all__ = ["RATE", "Network", "bench", "network", "wait_until"]
HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave them out unless asked for by marker or by name; skip them with the reason where there are no namespaces."""
    own = [item for item in items if item.path.is_relative_to(HERE)]
    reason = missing()
    for item in own:
        item.add_marker(pytest.mark.cluster)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
    if not config.option.markexpr and not any("network" in argument for argument in config.args):
        config.hook.pytest_deselected(items=own)
        items[:] = [item for item in items if item not in set(own)]


@pytest.fixture
def network() -> Iterator[Callable[[int], Network]]:
    made: list[Network] = []

    def make(num_nodes: int) -> Network:
        made.append(Network(num_nodes))
        return made[-1]

    yield make
    for each in made:
        each.close()
