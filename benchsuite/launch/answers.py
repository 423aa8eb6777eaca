"""What agents answer: their first words, their clocks, how their ranks ended, and what these have written."""

import os
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from benchsuite.launch.link import SHOWN, Link
from benchsuite.launch.node import boot_id
from benchsuite.launch.placement import Agent, Share
from benchsuite.results.store.shapes import DeviceSamples

START_TIMEOUT_S = 120.0
PINGS = 5
LOOK_S = 0.2
VISIBLE_S = 90.0
"""Network file systems may show a new file so late: NFS keeps what it knows of a folder for 60 s (acdirmax)."""


class Hello(BaseModel):
    """What an agent says of itself first, as far as its launcher reads it."""

    model_config = ConfigDict(strict=True)

    node: str
    boot_id: str
    task: int
    cores: int
    cpus: list[int]
    devices: list[str]
    networks: dict[str, str]
    port: int
    facts: dict[str, Any]
    version: str
    code: str | None
    installed: str = Field(alias="from")


class Exit(BaseModel):
    """How a rank has ended."""

    model_config = ConfigDict(strict=True, extra="forbid")

    rank: int
    code: int | None
    signal: int | None


class Ended(BaseModel):
    """How a trial has ended on an agent."""

    model_config = ConfigDict(strict=True)

    exits: list[Exit]
    timed_out: bool
    out_of_memory: bool
    busy_cores: float
    own_cores: float
    port: int
    found: list[Annotated[list[str], Field(min_length=2, max_length=2)]]
    moment: dict[str, Any]
    devices: list[DeviceSamples] = Field(default_factory=list)


class Failed(BaseModel):
    """Why a trial could not begin on an agent."""

    model_config = ConfigDict(strict=True)

    error: str


def fits(message: Any, *kinds: type[BaseModel]) -> bool:
    """Whether a message is of one of these kinds."""
    for kind in kinds:
        with suppress(ValidationError):
            kind.model_validate(message)
            return True
    return False


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
        theirs_s = pong(agent.link)
        if theirs_s is None:
            return 0.0  # it is gone, which the trial will find
        took_s = time.perf_counter() - sent_s
        if took_s < best:
            best, offset_s = took_s, theirs_s - sent_s - took_s / 2
    return offset_s


def pong(link: Link) -> float | None:
    """What an agent's clock says, asked now; None where it is gone, or does not answer."""
    mark = secrets.token_hex(4)
    link.send({"ping": mark})
    deadline = time.monotonic() + START_TIMEOUT_S
    try:
        while (reply := link.receive(max(0.0, deadline - time.monotonic()))) is not None:
            if reply.get("ping") == mark and isinstance(reply.get("pong"), float):
                return float(reply["pong"])
    except TimeoutError:
        return None
    return None


def ended(link: Link, timeout_s: float) -> dict[str, Any] | None:
    """How a trial has ended on an agent; late answers to other questions are passed over. None where it is gone.

    Raises:
        TimeoutError: it has begun to say so, and has not come to an end.
    """
    while (reply := link.receive(timeout_s)) is not None and not reply.keys() & {"exits", "error"}:
        pass
    if reply is None or fits(reply, Ended, Failed):
        return reply
    link.wrong = f"no answer: {str(reply)[:SHOWN]}"
    return None


def went_well(reply: Mapping[str, Any] | None, place: Share) -> bool:
    """Whether all of an agent's ranks have ended with status 0."""
    return reply is not None and [one["code"] for one in reply.get("exits", [])] == [0] * place.num_ranks


def await_results(folder: Path, ranks: Sequence[int]) -> None:
    """Wait until this node sees what ranks of others have written: a network file system may keep it for a moment."""
    deadline = time.monotonic() + VISIBLE_S
    while time.monotonic() < deadline:
        try:
            seen = {entry.name for entry in os.scandir(folder)}
        except OSError:
            return
        if all(f"rank-{rank}.json" in seen for rank in ranks):
            return
        time.sleep(LOOK_S)
