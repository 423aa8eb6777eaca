"""What a launcher makes of what agents say."""

import json
import socket
import struct
import threading
from typing import Any

import pytest

from benchsuite.launch.answers import Hello, ended, fits, pong
from benchsuite.launch.link import Link
from benchsuite.launch.node import about_this_node

EXIT = {"rank": 0, "code": 0, "signal": None}
ENDED: dict[str, Any] = {
    "exits": [EXIT],
    "timed_out": False,
    "out_of_memory": False,
    "busy_cores": 1.5,
    "own_cores": 1,
    "port": 4711,
    "found": [["unclean_devices", "CPU"]],
    "moment": {"load_average_5min": None},
}


def pair() -> tuple[Link, socket.socket]:
    ours, theirs = socket.socketpair()
    return Link(ours), theirs


@pytest.mark.parametrize("reply", [ENDED, ENDED | {"more": "of a later version"}, {"error": "it does not see it"}])
def test_how_a_trial_ended(reply: dict[str, Any]) -> None:
    link, agent = pair()
    agent.sendall(json.dumps({"ping": "late", "pong": 1.0}).encode() + b"\n" + json.dumps(reply).encode() + b"\n")
    assert ended(link, 5) == reply


@pytest.mark.parametrize(
    "wrong",
    [
        {"exits": [[]]},
        {"exits": [EXIT | {"node": "a"}]},
        {"exits": [{"rank": "0"}]},
        {"exits": "all"},
        {"found": [["unclean_devices"]]},
        {"busy_cores": "many"},
        {"port": None},
        {"moment": 3},
    ],
)
def test_an_answer_of_another_shape_is_as_none(wrong: dict[str, Any]) -> None:
    """Its launcher then says that the node is gone, and what it sent."""
    link, agent = pair()
    agent.sendall(json.dumps(ENDED | wrong).encode() + b"\n" + json.dumps(ENDED).encode() + b"\n")
    assert ended(link, 5) is None and link.wrong is not None
    assert link.receive(5) is None, "nor is it listened to again"


def test_an_answer_that_has_only_begun_ends_with_the_trial() -> None:
    link, agent = pair()
    agent.sendall(b'{"exits": [')
    with pytest.raises(TimeoutError):
        ended(link, 0.2)


@pytest.mark.parametrize("said", ['"now"', "null", "[]"])
def test_a_clock_that_tells_no_time(said: str) -> None:
    link, agent = pair()

    def reply() -> None:
        mark = json.loads(agent.recv(1 << 16))["ping"]
        agent.sendall(f'{{"ping": "{mark}", "pong": {said}}}\n'.encode())
        agent.close()

    threading.Thread(target=reply, daemon=True).start()
    assert pong(link) is None


def test_what_an_agent_says_of_itself() -> None:
    for elsewhere in (True, False):
        hello = json.loads(json.dumps({**about_this_node(elsewhere), "task": 0, "port": 4711}))
        assert fits(hello, Hello)
        for name in ("node", "port", "cpus", "facts", "from"):
            assert not fits({each: value for each, value in hello.items() if each != name}, Hello)
            assert not fits(hello | {name: 1.5}, Hello)
    assert not fits([], Hello) and not fits({}, Hello)


@pytest.mark.parametrize("is_reset", [True, False])
def test_a_connection_that_was_reset_does_not_say_that_its_agent_has_ended(is_reset: bool) -> None:
    """What lies between may reset it, and the agent comes again: that is waited for before its node is lost."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        agent = socket.create_connection(server.getsockname())
        link = Link(server.accept()[0])
    if is_reset:
        agent.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    agent.close()
    assert link.receive(5) is None
    assert link.has_ended is not is_reset
