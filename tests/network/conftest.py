"""Nodes with networks of their own on this host: network namespaces, joined by a bridge over shaped links."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.network import RATE, Network, missing
from tests.asked import only_if_asked
from tests.faults.conftest import bench, wait_until

__all__ = ["RATE", "Network", "bench", "network", "wait_until"]
HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """They need network namespaces."""
    only_if_asked(HERE, missing(), config, items)


@pytest.fixture
def network() -> Iterator[Callable[[int], Network]]:
    made: list[Network] = []

    def make(num_nodes: int) -> Network:
        made.append(Network(num_nodes))
        return made[-1]

    yield make
    for each in made:
        each.close()
