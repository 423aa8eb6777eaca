"""How agents and their launcher find each other, and whom a launcher does not let in."""

import socket
import stat
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from benchsuite.launch.link import Link
from benchsuite.launch.meeting import (
    Invitation,
    Meeting,
    answer,
    interface_of,
    is_meant,
    own_addresses,
    proof,
    read_invitation,
    write_invitation,
)


def visit(meeting: Meeting, token: str, **hello: object) -> "Future[Link | None]":
    """An agent that comes, and has, or has not, the launcher's token."""

    def come() -> Link | None:
        link = answer(meeting.invitation)
        if link is not None:
            link.send({"proof": proof(token, "agent", link.asked), **hello})
        return link

    return ThreadPoolExecutor(1).submit(come)


def test_an_agent_with_the_token_is_let_in_and_no_other() -> None:
    meeting = Meeting()
    token = meeting.invitation.token
    strangers = [visit(meeting, text) for text in ("0" * 32, "", token[:-1], "\u00e4")]
    rubbish = []
    for text in (b"GET / HTTP/1.1\n", b"1\n", b"[]\n", b'{"proof": "\xc3\xa4"}\n', b"{" * 100_000, b'{"proof"'):
        rubbish.append(socket.create_connection(("127.0.0.1", meeting.invitation.port)))
        rubbish[-1].sendall(text)
    silent = socket.create_connection(("127.0.0.1", meeting.invitation.port))
    agent = visit(meeting, token, node="a")
    ((link, hello),) = meeting.gather(2, 3)
    came = agent.result()
    assert hello == {"node": "a"} and came is not None
    assert link.send({"spec": 1}) and came.receive(5) == {"spec": 1}
    assert [stranger.receive(5) for stranger in map(Future.result, strangers) if stranger] == [None] * 4
    for each in (*rubbish, silent):
        with suppress(ConnectionResetError):
            assert each.recv(1) == b""
    meeting.close()


def test_an_agent_tells_nothing_to_one_who_is_no_launcher() -> None:
    impostor = Meeting()
    mistaken = Invitation("the token", ("127.0.0.1",), impostor.invitation.port)
    with ThreadPoolExecutor(1) as pool:
        answered = pool.submit(answer, mistaken)
        assert impostor.gather(1, 0.5) == []
        assert answered.result() is None
    assert proof("t", "agent", "1") != proof("t", "launcher", "1") != proof("t", "launcher", "2")


def test_fewer_agents_than_wanted() -> None:
    meeting = Meeting()
    visit(meeting, meeting.invitation.token)
    assert len(meeting.gather(2, 1.0)) == 1


def test_waiting_ends_when_the_check_says_so() -> None:
    def check() -> None:
        raise KeyError("what starts them has ended")

    with pytest.raises(KeyError):
        Meeting().gather(1, 60, check)


def test_an_invitation_is_for_this_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "work" / "job.json"
    assert read_invitation(path) is None
    invitation = Invitation("secret", ("10.0.0.1", "127.0.0.1"), 4711)
    write_invitation(path, invitation)
    assert read_invitation(path) == invitation
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["job.json"]


def test_addresses_that_lead_nowhere_are_passed_over() -> None:
    meeting = Meeting()
    wrong = Invitation(meeting.invitation.token, ("127.0.0.2", "127.0.0.1"), meeting.invitation.port)
    with ThreadPoolExecutor(1) as pool:
        answered = pool.submit(answer, wrong)
        meeting.gather(1, 0.3)
        assert answered.result() is not None
    port = meeting.invitation.port
    meeting.close()
    assert answer(Invitation("x", ("127.0.0.1",), port)) is None


def test_own_addresses_end_with_the_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    found = own_addresses()
    assert found[-1] == "127.0.0.1" and len(set(found)) == len(found)
    assert interface_of("127.0.0.1") == "lo" and interface_of("192.0.2.7") is None
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert own_addresses()[-1] == "127.0.0.1"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("eth", ["eth0", "eth1"]),
        ("=eth0", ["eth0"]),
        ("=eth", []),
        ("ib0,eth1", ["eth1", "ib0"]),
        ("^docker", ["eth0", "eth1", "ib0"]),
        ("^=eth0,docker0", ["eth1", "ib0"]),
    ],
)
def test_interfaces_are_named_as_nccl_does(text: str, meant: list[str]) -> None:
    assert [name for name in ("docker0", "eth0", "eth1", "ib0") if is_meant(name, text)] == meant


def test_messages_larger_than_a_packet_arrive_whole() -> None:
    ours, theirs = socket.socketpair()
    one, other = Link(ours), Link(theirs)
    large = {"spec": "x" * 3_000_000}
    threading.Thread(target=lambda: (one.send(large), one.send({"next": 1})), daemon=True).start()
    assert other.receive(20) == large and other.receive(20) == {"next": 1}
    with pytest.raises(TimeoutError):
        other.receive(0.05)
    one.send({"a": 1})
    one.send({"b": 2})
    assert other.receive(5) == {"a": 1}
    assert other.receive(5) == {"b": 2} and not other.pending
    one.close()
    assert other.receive() is None and not other.send({"more": 1})
