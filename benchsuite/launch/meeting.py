"""Where agents on other nodes meet their launcher: a listening socket, its addresses, a token that proves an agent."""

import hmac
import json
import os
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
HELLO_S = 10.0
CONNECT_S = 3.0
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

    def gather(
        self, count: int, timeout_s: float, check: Callable[[], None] = lambda: None
    ) -> list[tuple[Link, dict[str, Any]]]:
        """The links of so many agents, each with what it said of itself; fewer where no more came in time.

        `check` is called now and then and may raise.
        """
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
                    selector.unregister(key.fileobj)
                    link = waiting.pop(key.fd)
                    if (hello := self._hello(link)) is not None:
                        found.append((link, hello))
        for link in waiting.values():
            link.close()
        return found

    def _hello(self, link: Link) -> dict[str, Any] | None:
        """What a newcomer says of itself; None, and the door, for one without the token."""
        with suppress(TimeoutError, ValueError):
            hello = link.receive(HELLO_S)
            if hello is not None and hmac.compare_digest(str(hello.get("token")), self.invitation.token):
                return hello
        link.close()
        return None

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()


def own_addresses() -> list[str]:
    """Addresses at which other nodes may reach this one, the loopback's last."""
    named = [os.environ[name].split(",")[0].lstrip("=^") for name in INTERFACE_VARIABLES if os.environ.get(name)]
    found = [(name, address) for name, address in _interfaces() if not address.startswith("127.")]
    wanted = [address for name, address in found if name in named]
    return [*(wanted or [address for _, address in found]), "127.0.0.1"]


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
            return Link(_connected(address, invitation.port))
    return None


def _connected(address: str, port: int) -> socket.socket:
    connection = socket.create_connection((address, port), CONNECT_S)
    connection.settimeout(None)
    return connection


def write_invitation(path: Path, invitation: Invitation) -> None:
    """Leave an invitation where only this user reads it, whole from the start."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
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
