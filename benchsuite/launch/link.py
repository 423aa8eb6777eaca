"""JSON lines over a socket: what a launcher and the agents that fork its ranks say to each other."""

import json
import select
import socket
import time
from contextlib import suppress
from typing import Any

CHUNK_BYTES = 1 << 16
MAX_MESSAGE_BYTES = 1 << 22
"""Far above any message: a spec, what an agent says of its node, how a node's ranks have ended."""
SILENCE_S = 20
"""A peer whose machine or network is gone is given up after so long; one that only computes answers for itself."""
SHOWN = 80
"""How many bytes are shown of what is no message."""
_PROBES = 4


class Link:
    """One end of a connection, whose other end is known: forked by this process, or proven by a token.

    A peer that sends what is no message is given up as one that is gone.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._buffer = bytearray()
        self.wrong: str | None = None
        """What a peer has sent that is no message."""
        self.has_ended = False
        """Whether the peer's kernel has said that the peer is gone: silence and resets may be the network's."""
        self.own = self.peer = ""
        """Addresses of both ends, where these are on a network."""
        if connection.family != socket.AF_UNIX:
            _notice_silence(connection)
            self.own, self.peer = connection.getsockname()[0], connection.getpeername()[0]

    def fileno(self) -> int:
        """Return the descriptor that pollers wait on."""
        return self.socket.fileno()

    def send(self, message: dict[str, Any]) -> bool:
        """Send a message; False when the peer is gone."""
        try:
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return False
        return True

    @property
    def pending(self) -> bool:
        """Whether a message has come that nobody has asked for yet."""
        return b"\n" in self._buffer

    def pull(self) -> bool:
        """Take what has come, which a poller has told of; False when the peer is gone or goes on without an end."""
        try:
            chunk = self.socket.recv(CHUNK_BYTES)
        except OSError:
            return False
        self.has_ended = not chunk
        self._buffer += chunk
        if len(self._buffer) > MAX_MESSAGE_BYTES and not self.pending:
            self.wrong = f"a message of more than {MAX_MESSAGE_BYTES} bytes"
        return bool(chunk) and self.wrong is None

    def receive(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """The next message; None when the peer is gone, or has sent what is no message.

        Raises:
            TimeoutError: none came in time.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        poller = select.poll()  # select() knows no descriptors above 1023
        poller.register(self.socket, select.POLLIN)
        while self.wrong is None and not self.pending:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not poller.poll(None if left is None else left * 1000):
                raise TimeoutError
            if not self.pull():
                return None
        return None if self.wrong is not None else self._next()

    def _next(self) -> dict[str, Any] | None:
        """The message that is pending."""
        line, _, self._buffer = self._buffer.partition(b"\n")
        with suppress(ValueError, RecursionError):  # json recurses into what it reads
            message = json.loads(line)
            if isinstance(message, dict):
                return message
        self.wrong = f"no message: {bytes(line[:SHOWN])!r}"
        return None

    def close(self) -> None:
        """Close this end."""
        with suppress(OSError):
            self.socket.close()


def _notice_silence(connection: socket.socket) -> None:
    """Let the kernel probe the peer, so that a cut network ends the connection instead of hanging it."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENCE_S // 2)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, SILENCE_S // 2 // _PROBES))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_S * 1000)
