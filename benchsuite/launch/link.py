"""JSON lines over a socket: what a launcher and the agents that fork its ranks say to each other."""

import json
import select
import socket
import time
from contextlib import suppress
from typing import Any

CHUNK_BYTES = 1 << 16
SILENCE_S = 20
"""A peer whose machine or network is gone is given up after so long; one that only computes answers for itself."""
_PROBES = 4


class Link:
    """One end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._buffer = b""
        self.asked = ""
        """What the launcher wants to be proven to."""
        if connection.family != socket.AF_UNIX:
            _notice_silence(connection)

    def fileno(self) -> int:
        """For pollers."""
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

    def receive(self, timeout_s: float | None = None, max_bytes: int | None = None) -> dict[str, Any] | None:
        """The next message; None when the peer is gone, or has sent more than `max_bytes` and no message.

        Raises:
            TimeoutError: none came in time.
            ValueError: what came is no message.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        poller = select.poll()  # select() knows no descriptors above 1023
        poller.register(self.socket, select.POLLIN)
        while not self.pending:
            if max_bytes is not None and len(self._buffer) > max_bytes:
                return None
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not poller.poll(None if left is None else left * 1000):
                raise TimeoutError
            try:
                chunk = self.socket.recv(CHUNK_BYTES)
            except OSError:
                return None
            if not chunk:
                return None
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ValueError(f"no message: {line[:80]!r}")
        return message

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
