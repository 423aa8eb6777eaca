"""Where agents on other nodes meet their launcher: a listening socket, its addresses, a token that proves an agent."""

import hmac
import json
import os
import resource
import secrets
import selectors
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil

from benchsuite.launch.link import Link

VARIABLE = "BENCHSUITE_AGENT"
"""Environment variable that tells an agent where its launcher is: the token, `@`, and `address port` pairs."""
HELLO_S = 1.0
MAX_HELLO_BYTES = 1 << 16
CONNECT_S = 3.0
SPARE_DESCRIPTORS = 512
RETRY_S = 0.1
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Where the user names the interface that ranks talk over, agents use it too."""


@dataclass(frozen=True)
class Invitation:
    """How an agent finds its launcher."""

    token: str
    addresses: tuple[str, ...]
    port: int

    def text(self) -> str:
        """In one line, for the environment or a file."""
        return json.dumps([self.token, self.addresses, self.port])

    @classmethod
    def parse(cls, text: str) -> Self:
        """The opposite."""
        token, addresses, port = json.loads(text)
        return cls(token, tuple(addresses), port)


class Meeting:
    """A launcher's listening socket."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("", 0), backlog=1024)
        port = self._listener.getsockname()[1]
        self.invitation = Invitation(secrets.token_hex(16), tuple(own_addresses()), port)
        self._nonces: dict[int, str] = {}

    def gather(
        self, count: int, timeout_s: float, check: Callable[[], None] = lambda: None
    ) -> list[tuple[Link, dict[str, Any]]]:
        """The links of so many agents, each with what it said of itself; fewer where for so long no more came.

        `check` is called now and then and may raise.
        """
        _allow_descriptors(count)
        found: list[tuple[Link, dict[str, Any]]] = []
        waiting: dict[int, Link] = {}
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while len(found) < count and time.monotonic() < deadline:
                check()
                for key, _ in selector.select(RETRY_S):
                    if key.fileobj is self._listener:
                        link = Link(self._listener.accept()[0])
                        waiting[link.fileno()] = link
                        selector.register(link, selectors.EVENT_READ)
                        continue
                    link = waiting[key.fd]
                    said = self._said(link)
                    if said is not None and "nonce" in said:
                        continue
                    selector.unregister(link)
                    del waiting[key.fd]
                    if said is None:
                        link.close()
                        continue
                    found.append((link, said))
                    deadline = time.monotonic() + timeout_s
        for link in waiting.values():
            link.close()
        return found

    def _said(self, link: Link) -> dict[str, Any] | None:
        """A newcomer's question, which is answered, or what it says of itself; None of one without the token."""
        token = self.invitation.token
        try:
            said = link.receive(HELLO_S, MAX_HELLO_BYTES)
        except (TimeoutError, ValueError):
            return None
        if said is None:
            return None
        if "nonce" in said:
            self._nonces[link.fileno()] = secrets.token_hex(16)
            link.send({"proof": proof(token, "launcher", said["nonce"]), "nonce": self._nonces[link.fileno()]})
            return said
        wanted = proof(token, "agent", self._nonces.pop(link.fileno(), ""))
        return said if hmac.compare_digest(str(said.pop("proof", "")).encode(), wanted.encode()) else None

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()


def proof(token: str, who: str, nonce: object) -> str:
    """That someone knows the token, without telling it."""
    return hmac.new(token.encode(), f"{who}:{nonce}".encode(), "sha256").hexdigest()


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
    up = psutil.net_if_stats()
    for name, entries in psutil.net_if_addrs().items():
        if name in up and up[name].isup:
            for entry in entries:
                if entry.family == socket.AF_INET:
                    yield name, entry.address


def interface_of(address: str) -> str | None:
    """The interface that has an address."""
    return next((name for name, own in _interfaces() if own == address), None)


def answer(invitation: Invitation) -> Link | None:
    """A link to the launcher, by the first of its addresses that can be reached; None where none can."""
    for address in invitation.addresses:
        with suppress(OSError):
            link = Link(_connected(address, invitation.port))
            if _proven(link, invitation.token):
                return link
            link.close()
    return None


def _proven(link: Link, token: str) -> bool:
    """Whether it is the launcher that has answered; what it asks in turn is kept for the agent's first words."""
    nonce = secrets.token_hex(16)
    link.send({"nonce": nonce})
    try:
        said = link.receive(CONNECT_S + HELLO_S, MAX_HELLO_BYTES) or {}
    except (TimeoutError, ValueError):
        return False
    link.asked = str(said.get("nonce"))
    return hmac.compare_digest(str(said.get("proof")).encode(), proof(token, "launcher", nonce).encode())


def _connected(address: str, port: int) -> socket.socket:
    connection = socket.create_connection((address, port), CONNECT_S)
    connection.settimeout(None)
    return connection


def write_invitation(path: Path, invitation: Invitation) -> None:
    """Leave an invitation where only this user reads it, whole from the start."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(invitation.text())
    partial.rename(path)


def read_invitation(path: Path) -> Invitation | None:
    """What was left there; None where there is nothing yet."""
    try:
        return Invitation.parse(path.read_text())
    except (OSError, ValueError):
        return None
