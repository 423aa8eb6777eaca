"""How agents and their launcher find each other, and whom a launcher does not let in."""

import socket
import stat
import threading
from pathlib import Path

import pytest

from benchsuite.launch.link import Link
from benchsuite.launch.meeting import (
    Invitation,
    Meeting,
    answer,
    interface_of,
    own_addresses,
    read_invitation,
    write_invitation,
)


def linked(meeting: Meeting, hello: dict[str, object]) -> Link:
    link = answer(meeting.invitation)
    assert link is not None
    link.send(hello)
    return link


def test_an_agent_with_the_token_is_let_in_and_no_other() -> None:
    meeting = Meeting()
    token = meeting.invitation.token
    strangers = [linked(meeting, {"token": "0" * 32}), linked(meeting, {}), linked(meeting, {"token": token[:-1]})]
    garbage = socket.create_connection(("127.0.0.1", meeting.invitation.port))
    garbage.sendall(b"GET / HTTP/1.1\n")
    silent = socket.create_connection(("127.0.0.1", meeting.invitation.port))
    agent = linked(meeting, {"token": token, "node": "a"})
    ((link, hello),) = meeting.gather(1, 20)
    assert hello == {"token": token, "node": "a"}
    assert link.send({"spec": 1}) and agent.receive(5) == {"spec": 1}
    assert [stranger.receive(5) for stranger in strangers] == [None] * 3
    assert garbage.recv(1) == b"" and silent.recv(1) == b""
    meeting.close()


def test_fewer_agents_than_wanted() -> None:
    meeting = Meeting()
    linked(meeting, {"token": meeting.invitation.token})
    assert len(meeting.gather(2, 0.5)) == 1


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
    assert answer(wrong) is not None
    port = meeting.invitation.port
    meeting.close()
    assert answer(Invitation("x", ("127.0.0.1",), port)) is None


def test_own_addresses_end_with_the_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    found = own_addresses()
    assert found[-1] == "127.0.0.1" and len(set(found)) == len(found)
    assert interface_of("127.0.0.1") == "lo" and interface_of("192.0.2.7") is None
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert own_addresses()[-1] == "127.0.0.1"


def test_messages_larger_than_a_packet_arrive_whole() -> None:
    ours, theirs = socket.socketpair()
    one, other = Link(ours), Link(theirs)
    large = {"spec": "x" * 3_000_000}
    threading.Thread(target=lambda: (one.send(large), one.send({"next": 1})), daemon=True).start()
    assert other.receive(20) == large and other.receive(20) == {"next": 1}
    with pytest.raises(TimeoutError):
        other.receive(0.05)
    one.close()
    assert other.receive() is None and not other.send({"more": 1})
