"""Which lane of an allocation this process is: a lane has a share of the allocation's nodes."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

VARIABLE = "BENCHSUITE_LANE"


@dataclass(frozen=True)
class Lane:
    """One of so many shares of an allocation's nodes."""

    number: int
    count: int
    num_nodes: int | None = None
    """Nodes that trials are planned for, in all lanes alike: some may have one more. None: not told."""

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def this_lane(environment: Mapping[str, str] = os.environ) -> Lane | None:
    """The lane that this process is; None where it has all nodes."""
    words = environment.get(VARIABLE, "").split("/")
    if len(words) not in (2, 3) or not all(word.isdigit() for word in words):
        return None
    return Lane(*(int(word) for word in words))
