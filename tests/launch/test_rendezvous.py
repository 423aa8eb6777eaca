"""How agents and their launcher find each other, and whom a launcher does not let in."""

import errno
import json
import os
import resource
import socket
import stat
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from benchsuite.launch.link import Link
from benchsuite.launch.rendezvous import (
    NONCE_BYTES,
    PROOF_BYTES,
    Invitation,
    Rendezvous,
    _proven,
    answer,
    interface_of,
    interfaces_in,
    is_meant,
    networks,
    own_addresses,
    proof,
    read_invitation,
    shared_networks,
    write_invitation,
)

AT_ONCE_S = 30
"""Far more than a meeting takes, far less than silent strangers could be waited for one after another."""
DEEP = b"[" * 60_000 + b"\n"


def visit(meeting: Rendezvous, token: str | None = None, **hello: object) -> "Future[Link | None]":
    """An agent that comes, with the launcher's token or another."""
    invitation = meeting.invitation if token is None else replace(meeting.invitation, token=token)

    def come() -> Link | None:
        link = answer(invitation)
        if link is not None:
            link.send(hello)
        return link

    return ThreadPoolExecutor(1).submit(come)


def stranger(meeting: Rendezvous, words: bytes = b"") -> socket.socket:
    """A connection of someone without the token."""
    made = socket.create_connection(("127.0.0.1", meeting.invitation.port))
    made.settimeout(AT_ONCE_S)
    made.sendall(words)
    return made


def is_dropped(connection: socket.socket) -> bool:
    """Whether the launcher has ended a connection, whatever it had said before."""
    with suppress(ConnectionResetError):
        while connection.recv(1 << 16):
            pass
    return True


@pytest.fixture
def meeting() -> Iterator[Rendezvous]:
    made = Rendezvous()
    yield made
    made.close()


def test_an_agent_with_the_token_is_let_in_and_no_other(meeting: Rendezvous) -> None:
    token = meeting.invitation.token
    others = [visit(meeting, text) for text in ("0" * 32, "", token[:-1], "\u00e4")]
    words = (b"GET / HTTP/1.1\n", b"1\n", b"[]\n", b'{"proof": "\xc3\xa4"}\n', b"{" * 100_000, b'{"proof"', DEEP, b"")
    rubbish = [stranger(meeting, text) for text in words]
    agent = visit(meeting, node="a")
    ((link, hello),) = meeting.gather(2, 3)
    came = agent.result()
    assert hello == {"node": "a"} and came is not None
    assert link.send({"spec": 1}) and came.receive(5) == {"spec": 1}
    assert [other.result() for other in others] == [None] * 4
    assert all(is_dropped(each) for each in rubbish)


def test_nothing_of_a_stranger_is_parsed(meeting: Rendezvous, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    loads = json.loads
    monkeypatch.setattr(json, "loads", lambda text: parsed.append(bytes(text)) or loads(text))
    rubbish = [stranger(meeting, text) for text in (DEEP, b'{"nonce": 1}\n', b'{"proof": "x", "node": "b"}\n' * 9)]
    visit(meeting, node="a")
    assert [hello for _, hello in meeting.gather(1, AT_ONCE_S)] == [{"node": "a"}]
    assert parsed == [b'{"node": "a"}'] and all(is_dropped(each) for each in rubbish)


def test_silent_strangers_delay_no_agent(meeting: Rendezvous) -> None:
    """Many of them, and an agent behind them all."""
    silent = [stranger(meeting) for _ in range(200)]
    slow = [stranger(meeting, b"{") for _ in range(200)]
    visit(meeting, node="a")
    began = time.monotonic()
    assert [hello for _, hello in meeting.gather(1, 4 * AT_ONCE_S)] == [{"node": "a"}]
    assert time.monotonic() - began < AT_ONCE_S
    assert all(is_dropped(each) for each in (*silent, *slow))


def test_strangers_that_drip_are_dropped_in_time(meeting: Rendezvous, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchsuite.launch.rendezvous.PROOF_S", 0.5)
    began, many = time.monotonic(), [stranger(meeting) for _ in range(20)]
    gone = threading.Event()

    def drip() -> None:
        while not gone.wait(0.05):
            for each in many:
                with suppress(OSError):
                    each.sendall(b"{")

    with ThreadPoolExecutor(2) as pool:
        dripping, dropped = pool.submit(drip), pool.submit(lambda: all(is_dropped(each) for each in many))
        while not dropped.done() and time.monotonic() - began < AT_ONCE_S:
            assert meeting.gather(1, 0.2) == []
        gone.set()
        dripping.result()
        assert dropped.result()


def test_of_too_many_strangers_the_oldest_go(meeting: Rendezvous, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchsuite.launch.rendezvous.MAX_STRANGERS", 3)
    many = [stranger(meeting) for _ in range(10)]
    held: list[int] = []

    def check() -> None:
        held.append(len(meeting._waiting))

    assert meeting.gather(1, 0.5, check) == []
    assert max(held) == 4 and all(is_dropped(each) for each in many)


def test_no_descriptor_left_ends_no_meeting(meeting: Rendezvous, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers take all that this process may open."""
    silent = [stranger(meeting) for _ in range(40)]
    connection = stranger(meeting)  # made before, as both ends are this process's

    def come() -> None:
        assert _proven(connection, meeting.invitation.token) and Link(connection).send({"node": "a"})

    monkeypatch.setattr("benchsuite.launch.rendezvous._allow_descriptors", lambda count: None)
    limits, used = resource.getrlimit(resource.RLIMIT_NOFILE), len(os.listdir("/proc/self/fd"))
    with ThreadPoolExecutor(1) as pool:
        agent = pool.submit(come)
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 8, limits[1]))
        try:
            assert [hello for _, hello in meeting.gather(1, AT_ONCE_S)] == [{"node": "a"}]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        agent.result()
    assert all(is_dropped(each) for each in silent)


@pytest.mark.parametrize("fault", [errno.ECONNABORTED, errno.EMFILE, errno.EAGAIN, errno.EPROTO])
def test_a_connection_that_cannot_be_accepted_ends_no_meeting(
    meeting: Rendezvous, fault: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener, faults = meeting._listener, [fault] * 3

    class Failing:
        fileno, close = listener.fileno, listener.close

        @staticmethod
        def accept() -> object:
            if faults:
                raise OSError(faults.pop(), "injected")
            return listener.accept()

    monkeypatch.setattr(meeting, "_listener", Failing)
    visit(meeting, node="a")
    assert [hello for _, hello in meeting.gather(1, AT_ONCE_S)] == [{"node": "a"}] and not faults


def test_a_proof_is_of_one_conversation_and_of_one_side(meeting: Rendezvous) -> None:
    """Reflected, replayed, cut short, of the other's nonce: no stranger gets in by what it has overheard."""
    token = meeting.invitation.token
    heard: list[tuple[bytes, bytes, bytes]] = []

    def asked(nonce: bytes) -> tuple[socket.socket, bytes, bytes]:
        made = stranger(meeting, nonce)
        said = b""
        while len(said) < NONCE_BYTES + PROOF_BYTES:
            said += made.recv(NONCE_BYTES + PROOF_BYTES - len(said))
        return made, said[:NONCE_BYTES], said[NONCE_BYTES:]

    def try_all() -> list[socket.socket]:
        nonce = b"n" * NONCE_BYTES
        good, launchers, proven = asked(nonce)
        assert proven == proof(token, "launcher", nonce, launchers)
        right = proof(token, "agent", nonce, launchers)
        heard.append((launchers, proven, right))
        good.sendall(right + b'{"node": "a"}\n')
        bad = []
        for wrong in (right, proven, right[:-1], launchers, b"\0" * PROOF_BYTES):  # the first is a replay
            made, fresh, reflected = asked(nonce)
            assert fresh != launchers and reflected != proven
            made.sendall(wrong + b'{"node": "b"}\n')
            bad.append(made)
        for mine in (lambda fresh, reflected: reflected, lambda fresh, reflected: proof(token, "agent", fresh, nonce)):
            made, fresh, reflected = asked(nonce)
            made.sendall(mine(fresh, reflected) + b'{"node": "b"}\n')
            bad.append(made)
        return bad

    with ThreadPoolExecutor(1) as pool:
        tried = pool.submit(try_all)
        assert [hello for _, hello in meeting.gather(2, 2)] == [{"node": "a"}]
        assert all(is_dropped(each) for each in tried.result())


@pytest.mark.parametrize("said", [b"", b"x", b"x" * (NONCE_BYTES + PROOF_BYTES), DEEP, b'{"nonce": "1"}\n'])
def test_an_agent_tells_nothing_to_one_who_is_no_launcher(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """And reads of it what a proof has of bytes, not more; its own nonce sent back is no proof either."""
    monkeypatch.setattr("benchsuite.launch.rendezvous.PROOF_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as impostor, ThreadPoolExecutor(1) as pool:
        answered = pool.submit(answer, Invitation("the token", ("127.0.0.1",), impostor.getsockname()[1]))
        connection, _ = impostor.accept()
        connection.settimeout(AT_ONCE_S)
        nonce = connection.recv(NONCE_BYTES)
        with suppress(OSError):
            connection.sendall(said or nonce * 2)
        with suppress(ConnectionResetError):
            assert connection.recv(1) == b"", "no byte after the nonce"
        assert answered.result() is None


def test_a_launcher_with_another_token_is_no_launcher(meeting: Rendezvous) -> None:
    mistaken = visit(meeting, "the token")
    assert meeting.gather(1, 0.5) == [] and mistaken.result() is None


@pytest.mark.parametrize(
    "words", [DEEP, b"[]\n", b"\xff\n", b"1" * 5000 + b"\n", b"\n", b'{"a": 1\n', b"{" * (5 << 20)]
)
def test_an_agent_that_sends_garbage_is_given_up(meeting: Rendezvous, words: bytes) -> None:
    """It knew the token: its link ends, not the meeting."""
    mad, agent = visit(meeting, node="mad"), visit(meeting, node="a")
    links = {hello["node"]: link for link, hello in meeting.gather(2, AT_ONCE_S)}
    sending = threading.Thread(target=lambda: suppressed(mad.result(), words), daemon=True)
    sending.start()
    assert links["mad"].receive(AT_ONCE_S) is None and links["mad"].wrong is not None
    assert links["mad"].receive(AT_ONCE_S) is None, "nor is it listened to again"
    sane = agent.result()
    assert sane is not None and links["a"].send({"ping": 1}) and sane.receive(5) == {"ping": 1}


def suppressed(link: Link | None, words: bytes) -> None:
    """Send bytes that are no message, as far as they are taken."""
    assert link is not None
    with suppress(OSError):
        link.socket.sendall(words)


def test_garbage_for_first_words_keeps_no_other_agent_out(meeting: Rendezvous) -> None:
    def come() -> None:
        suppressed(answer(meeting.invitation), DEEP)

    with ThreadPoolExecutor(1) as pool:
        mad = pool.submit(come)
        visit(meeting, node="a")
        assert [hello for _, hello in meeting.gather(2, 2)] == [{"node": "a"}]
        mad.result()


def test_the_token_is_not_among_what_an_invitation_shows() -> None:
    assert "secret" not in f"{Invitation('secret', ('10.0.0.1',), 4711)}"


def test_fewer_agents_than_wanted(meeting: Rendezvous) -> None:
    visit(meeting)
    assert len(meeting.gather(2, 1.0)) == 1


def test_waiting_ends_when_the_check_says_so() -> None:
    def check() -> None:
        raise KeyError("what starts them has ended")

    with pytest.raises(KeyError):
        Rendezvous().gather(1, 60, check)


def test_an_invitation_is_for_this_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "work" / "job.json"
    path.parent.mkdir()
    assert read_invitation(path) is None
    invitation = Invitation("secret", ("10.0.0.1", "127.0.0.1"), 4711)
    write_invitation(path, invitation)
    assert read_invitation(path) == invitation
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["job.json"]


def test_addresses_that_lead_nowhere_are_passed_over() -> None:
    meeting = Rendezvous()
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


TEN, ELEVEN, BRIDGE = "10.0.0.0/24", "11.0.0.0/24", "172.17.0.0/16"


@pytest.mark.parametrize(
    ("nodes", "shared"),
    [
        ([{"10.0.0.1": TEN}, {"10.0.0.2": TEN}], [TEN]),
        ([{"10.0.0.1": TEN, "11.0.0.1": ELEVEN}, {"10.0.0.2": TEN, "11.0.0.2": ELEVEN}], [TEN, ELEVEN]),
        ([{"10.0.0.1": TEN, "172.17.0.1": BRIDGE}, {"10.0.0.2": TEN, "172.17.0.1": BRIDGE}], [TEN]),
        ([{"10.0.0.1": TEN}, {"10.0.0.2": TEN, "11.0.0.2": ELEVEN}], []),
        ([{"10.0.0.1": TEN}, {"10.0.1.1": "10.0.1.0/24"}], []),
        ([{"10.0.0.1": TEN}, {"10.0.0.1": TEN}], []),
    ],
    ids=["one", "two", "bridges", "of one node alone", "by routes", "one machine"],
)
def test_all_networks_that_nodes_share_or_none(nodes: list[dict[str, str]], shared: list[str]) -> None:
    assert shared_networks(nodes) == shared


def test_a_nodes_networks() -> None:
    assert interfaces_in(["127.0.0.0/8"]) == ["lo"] and interfaces_in([]) == []
    assert not any(address.startswith("127.") for address in networks())


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
