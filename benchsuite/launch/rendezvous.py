"""Where agents on other nodes meet their launcher: a listening socket, its addresses, a token that proves both.

An agent sends a nonce. The launcher sends a nonce of its own and a proof, the agent a proof in turn: each an HMAC,
by the token, of who proves and of both nonces. All have a fixed length. Nothing else is read of a peer until its proof
has been checked.
"""

import errno
import hmac
import json
import os
import resource
import secrets
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, Self

import psutil

from benchsuite.contract.errors import UserError
from benchsuite.inside.files import NotOwned, read_plain, write_new
from benchsuite.launch.link import Link

VARIABLE = "BENCHSUITE_AGENT"
"""Environment variable that tells an agent where its launcher is: the token, `@`, and `address port` pairs."""
NONCE_BYTES = PROOF_BYTES = 32
CONNECT_S = 3.0
PROOF_S = 5.0
"""How long either side waits for the other's proof."""
MAX_STRANGERS = 256
"""Connections without a proof that a launcher holds, beside one for each agent that is yet to come."""
SPARE_DESCRIPTORS = 512
NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
RETRY_S = 0.1
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Where the user names the interface that ranks talk over, agents use it too."""


@dataclass(frozen=True)
class Invitation:
    """How an agent finds its launcher."""

    token: str = field(repr=False)
    addresses: tuple[str, ...]
    port: int

    def text(self) -> str:
        """Return it in one line, for the environment or a file."""
        return json.dumps([self.token, self.addresses, self.port])

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an invitation from its line."""
        token, addresses, port = json.loads(text)
        return cls(token, tuple(addresses), port)


class Newcomer:
    """A connection to the launcher, which has to prove itself before a message of it is read."""

    def __init__(self, connection: socket.socket, token: str) -> None:
        self.link = Link(connection)
        self.until = time.monotonic() + PROOF_S
        """When it is dropped; an agent that is proven never is."""
        self._token, self._got, self._nonce = token, b"", secrets.token_bytes(NONCE_BYTES)

    @property
    def is_stranger(self) -> bool:
        """Whether it has not proven itself yet."""
        return self.until < float("inf")

    def hello(self) -> dict[str, Any] | None:
        """What it says of itself, once all of that has come; never waits.

        Raises:
            OSError: it is gone, or no agent.
        """
        if self.is_stranger:
            self._advance()
            return None
        if not self.link.pull():
            raise ConnectionError
        if not self.link.pending:
            return None
        if (said := self.link.receive()) is None:
            raise ConnectionError
        return said

    def _advance(self) -> None:
        """Read what has come of its nonce or of its proof, and no byte beyond."""
        is_nonce = len(self._got) < NONCE_BYTES
        chunk = self.link.socket.recv((NONCE_BYTES if is_nonce else NONCE_BYTES + PROOF_BYTES) - len(self._got))
        self._got += chunk
        if not chunk:
            raise ConnectionError
        nonces = (self._got[:NONCE_BYTES], self._nonce)
        if is_nonce and len(self._got) == NONCE_BYTES:
            self.link.socket.sendall(self._nonce + proof(self._token, "launcher", *nonces))
        elif len(self._got) == NONCE_BYTES + PROOF_BYTES:
            if not hmac.compare_digest(self._got[NONCE_BYTES:], proof(self._token, "agent", *nonces)):
                raise ConnectionError
            self.until = float("inf")


class Rendezvous:
    """A launcher's listening socket."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("", 0), backlog=1024)
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._waiting: dict[Newcomer, None] = {}  # the oldest first
        port = self._listener.getsockname()[1]
        self.invitation = Invitation(secrets.token_hex(16), tuple(own_addresses()), port)

    def gather(
        self, count: int, timeout_s: float, check: Callable[[], None] = lambda: None
    ) -> list[tuple[Link, dict[str, Any]]]:
        """The links of so many agents, each with what it said of itself; fewer where for so long no more came.

        `check` is called now and then and may raise. Strangers delay no agent: all newcomers are waited for at once.
        """
        _allow_descriptors(count)
        found: list[tuple[Link, dict[str, Any]]] = []
        deadline = time.monotonic() + timeout_s
        try:
            while len(found) < count and time.monotonic() < deadline:
                check()
                if came := self._came():
                    found += came
                    deadline = time.monotonic() + timeout_s
                self._drop_oldest(self._num_late(MAX_STRANGERS + count))
        finally:
            for newcomer in list(self._waiting):
                self._forget(newcomer).close()
        return found

    def _came(self) -> list[tuple[Link, dict[str, Any]]]:
        """The agents that have introduced themselves by now, after a moment at most."""
        found = []
        for key, _ in self._selector.select(RETRY_S):
            if key.data is None:
                self._let_in()
            elif key.data in self._waiting:
                try:
                    said = key.data.hello()
                except OSError:
                    self._forget(key.data).close()
                    continue
                if said is not None:
                    found.append((self._forget(key.data), said))
        return found

    def _let_in(self) -> None:
        try:
            newcomer = Newcomer(self._listener.accept()[0], self.invitation.token)
        except OSError as error:
            if error.errno in NO_ROOM and not self._drop_oldest(1):
                time.sleep(RETRY_S)
            return
        self._waiting[newcomer] = None
        self._selector.register(newcomer.link, selectors.EVENT_READ, newcomer)

    def _num_late(self, most: int) -> int:
        """How many strangers have not proven themselves in time, or are more than may be."""
        strangers, now = [each for each in self._waiting if each.is_stranger], time.monotonic()
        return max(len(strangers) - most, sum(each.until < now for each in strangers))

    def _drop_oldest(self, count: int) -> bool:
        """Drop so many strangers, the oldest; whether there was one."""
        dropped = [each for each in self._waiting if each.is_stranger][: max(0, count)]
        for each in dropped:
            self._forget(each).close()
        return bool(dropped)

    def _forget(self, newcomer: Newcomer) -> Link:
        """Wait for a newcomer no more; its link."""
        del self._waiting[newcomer]
        self._selector.unregister(newcomer.link)
        return newcomer.link

    def close(self) -> None:
        """Stop listening."""
        self._selector.close()
        self._listener.close()


def proof(token: str, who: str, agents_nonce: bytes, launchers_nonce: bytes) -> bytes:
    """Prove that the launcher, or the agent, knows the token, without telling it; for one conversation alone."""
    return hmac.digest(token.encode(), who.encode() + b":" + agents_nonce + launchers_nonce, "sha256")


def _allow_descriptors(count: int) -> None:
    """Let this process hold a connection to every agent, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + SPARE_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def own_addresses() -> list[str]:
    """Addresses at which other nodes may reach this one, the loopback's last."""
    asked = [os.environ[name] for name in INTERFACE_VARIABLES if os.environ.get(name)]
    found = [(name, address) for name, address in _interfaces() if not address.startswith("127.")]
    wanted = [address for name, address in found if asked and any(is_meant(name, text) for text in asked)]
    return [*(wanted or [address for _, address in found]), "127.0.0.1"]


def is_meant(interface: str, text: str) -> bool:
    """Whether NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME means an interface: prefixes, `=` exact names, `^` all but."""
    excluded, exact = text.startswith("^"), text.lstrip("^").startswith("=")
    names = text.lstrip("^=").split(",")
    named = interface in names if exact else any(name and interface.startswith(name) for name in names)
    return named != excluded


def _interfaces() -> Iterable[tuple[str, str]]:
    """Names and IPv4 addresses of the interfaces that are up."""
    return ((name, address) for name, address, _ in _interfaces_in_networks())


def _interfaces_in_networks() -> Iterable[tuple[str, str, str]]:
    """The same, and the network that each address lies in, such as 10.0.0.0/24."""
    up = psutil.net_if_stats()
    for name, entries in psutil.net_if_addrs().items():
        if name in up and up[name].isup:
            for entry in entries:
                if entry.family == socket.AF_INET:
                    network = IPv4Network(f"{entry.address}/{entry.netmask or 32}", strict=False)
                    yield name, entry.address, str(network)


def interface_of(address: str) -> str | None:
    """The interface that has an address."""
    return next((name for name, own in _interfaces() if own == address), None)


def networks() -> dict[str, str]:
    """The networks of this node by its address in each, without the loopback."""
    found = ((address, network) for _, address, network in _interfaces_in_networks())
    return {address: network for address, network in found if not address.startswith("127.")}


def interfaces_in(networks: Collection[str]) -> list[str]:
    """The interfaces of this node that lie in some networks."""
    return sorted({name for name, _, network in _interfaces_in_networks() if network in networks})


def shared_networks(nodes: Sequence[Mapping[str, str]]) -> list[str]:
    """All networks over which nodes reach each other, of each node's `networks`.

    Empty where a node has one that others lack: routes may lead there, which cannot be told. An address that several
    nodes have is that of a bridge within each of them, over which none reaches another.
    """
    count = Counter(address for node in nodes for address in node)
    own = [{network for address, network in node.items() if count[address] == 1} for node in nodes]
    return sorted(own[0]) if all(each == own[0] for each in own) else []


def answer(invitation: Invitation) -> Link | None:
    """A link to the launcher, by the first of its addresses that can be reached; None where none can."""
    for address in invitation.addresses:
        with suppress(OSError):
            connection = socket.create_connection((address, invitation.port), CONNECT_S)
            with ExitStack() as unless_proven:
                unless_proven.enter_context(connection)
                if _proven(connection, invitation.token):
                    unless_proven.pop_all()
                    return Link(connection)
    return None


def _proven(connection: socket.socket, token: str) -> bool:
    """Prove to the launcher that this is an agent, once the launcher has proven itself; whether it has."""
    deadline, nonce, got = time.monotonic() + PROOF_S, secrets.token_bytes(NONCE_BYTES), b""
    connection.sendall(nonce)
    while len(got) < NONCE_BYTES + PROOF_BYTES:
        connection.settimeout(max(RETRY_S, deadline - time.monotonic()))
        chunk = connection.recv(NONCE_BYTES + PROOF_BYTES - len(got))
        if not chunk or time.monotonic() > deadline:
            return False
        got += chunk
    nonces = (nonce, got[:NONCE_BYTES])
    if not hmac.compare_digest(got[NONCE_BYTES:], proof(token, "launcher", *nonces)):
        return False
    connection.sendall(proof(token, "agent", *nonces))
    connection.settimeout(None)
    return True


def write_invitation(path: Path, invitation: Invitation) -> None:
    """Leave an invitation where only this user reads it, whole from the start; its folder is there.

    Raises:
        UserError: it cannot be left there.
    """
    try:
        write_new(path, invitation.text(), 0o600)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error


def read_invitation(path: Path) -> Invitation | None:
    """What was left there; None where there is nothing yet.

    Raises:
        UserError: someone else's is: who follows it would run what he wants.
    """
    try:
        return Invitation.parse(read_plain(path).decode())
    except NotOwned as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except (OSError, ValueError):
        return None
