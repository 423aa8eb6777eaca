"""What agents answer: their first words, their clocks, how their ranks ended, and what these have written."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchsuite.launch.link import Link
from benchsuite.launch.node import boot_id
from benchsuite.launch.placing import Agent, Share

START_TIMEOUT_S = 120.0
PINGS = 5
LOOK_S = 0.2
VISIBLE_S = 15.0
"""Network file systems may show a new file so late."""


def first_words(link: Link) -> dict[str, Any] | None:
    """What the agent that this process started says of itself; None where it ends, or says nothing in time."""
    try:
        return link.receive(START_TIMEOUT_S)
    except TimeoutError:
        return None


def clock_offset_s(agent: Agent) -> float:
    """How far an agent's clock is ahead of this one's: 0 on one machine, else by the quickest of some exchanges.

    As NTP does it: the agent's reading belongs to the middle of the exchange, half of which is the most it errs by.
    """
    if agent.boot_id == boot_id():
        return 0.0
    best, offset_s = float("inf"), 0.0
    for _ in range(PINGS):
        sent_s = time.perf_counter()
        agent.link.send({"ping": True})
        try:
            reply = agent.link.receive(START_TIMEOUT_S)
        except TimeoutError:
            reply = None
        if reply is None:
            return 0.0  # it is gone, which the trial will find
        took_s = time.perf_counter() - sent_s
        if took_s < best:
            best, offset_s = took_s, reply["pong"] - sent_s - took_s / 2
    return offset_s


def went_well(reply: Mapping[str, Any] | None, place: Share) -> bool:
    """Whether all of an agent's ranks have ended with status 0."""
    return reply is not None and [ended["code"] for ended in reply["exits"]] == [0] * place.num_ranks


def await_results(folder: Path, ranks: Sequence[int]) -> None:
    """Wait until this node sees what ranks of others have written: a network file system may keep it for a moment."""
    deadline = time.monotonic() + VISIBLE_S
    while time.monotonic() < deadline:
        seen = {entry.name for entry in os.scandir(folder)}
        if all(f"rank-{rank}.json" in seen for rank in ranks):
            return
        time.sleep(LOOK_S)
