"""A real server of objects on 127.0.0.1 (moto), and a proxy before it that spoils answers as networks and stores do."""

import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECRET = "s3cr3t-of-the-tests"
NEVER_ENDS = 1 << 30


def credentials(endpoint: str) -> dict[str, str]:
    """Variables that clients read."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "AKIDOFTHETESTS",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def server() -> Iterator[int]:
    """A server as a process of its own; its port."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert process.poll() is None and time.monotonic() < deadline, "the object store did not start"
            time.sleep(0.05)
        yield port
    finally:
        process.kill()
        process.wait()


def new_bucket(endpoint: str) -> str:
    """A bucket that nobody else has, so that no client of an earlier test is met."""
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{name}", method="PUT")).close()
    return name


@dataclass
class Fault:
    """What happens to the next `times` requests of a method whose target holds some words."""

    kind: str
    """slow_down, cut, too_long, too_short, expired, redirect, lost_redirect, vanished, slow, garbage, flipped or
    silent."""
    method: str = "GET"
    within: str = ""
    times: int = NEVER_ENDS
    seconds: float = 0.5
    passed: int = 0
    """So many requests that fit are let through before."""

    def strikes(self, method: str, target: str) -> bool:
        if method != self.method or self.within not in target or not self.times:
            return False
        if self.passed:
            self.passed -= 1
            return False
        self.times -= 1
        return True


def _error(code: str) -> bytes:
    said = f"<Error><Code>{code}</Code><Message>of AKIDOFTHETESTS</Message></Error>"
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{said}'.encode()


ANSWERS: Mapping[str, tuple[int, bytes]] = {
    "slow_down": (503, _error("SlowDown")),
    "expired": (403, _error("ExpiredToken")),
    "vanished": (404, _error("NoSuchKey")),
    "lost_redirect": (307, b""),
}


class Proxy:
    """A server that hands requests on, notes them, and strikes with `faults`."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._port, self._lock = port, threading.Lock()
        self.begin()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def handle_one_request(self) -> None:
                with suppress(ConnectionError):
                    super().handle_one_request()

            def _any(self) -> None:
                outer.answer(self, port)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _any

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.endpoint = f"http{'s' if tls else ''}://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def begin(self) -> None:
        """Forget what was asked for, and all faults."""
        self.faults: list[Fault] = []
        self.asked: list[tuple[str, str]] = []
        """Method and target of each request, in order."""
        self.elsewhere = f"http://127.0.0.1:{self._port}"
        """Where redirects lead: to the server itself, on another port."""

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def count(self, method: str, within: str = "") -> int:
        return sum(asked == method and within in target for asked, target in self.asked)

    def answer(self, request: BaseHTTPRequestHandler, port: int) -> None:
        method, target = request.command, request.path
        self.asked.append((method, target))
        content = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        with self._lock:
            fault = next((each for each in self.faults if each.strikes(method, target)), None)
        kind = fault.kind if fault else ""
        if kind in ANSWERS:
            self._send(request, *ANSWERS[kind], {})
        elif kind == "redirect":
            self._send(request, 307, b"", {"Location": self.elsewhere + target})
        elif kind == "garbage":
            request.wfile.write(b"this is no HTTP\r\n\r\n")
            request.close_connection = True
        elif kind == "silent":
            request.close_connection = True
        else:
            if fault and kind == "slow":
                time.sleep(fault.seconds)
            self._pass_on(request, port, content, kind)

    def _pass_on(self, request: BaseHTTPRequestHandler, port: int, content: bytes, kind: str) -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        hop = ("connection", "transfer-encoding", "content-length", "date", "server", "keep-alive")
        connection.request(request.command, request.path, content, dict(request.headers.items()))
        answer = connection.getresponse()
        body = answer.read()
        kept = {name: value for name, value in answer.getheaders() if name.lower() not in hop}
        length = int(answer.headers.get("Content-Length") or len(body))
        connection.close()
        if request.command == "HEAD":
            self._send(request, answer.status, b"", kept, length)
        elif kind == "cut":
            self._send(request, answer.status, body[: len(body) // 2], kept, len(body))
            request.close_connection = True
        elif kind == "too_long":
            self._send(request, answer.status, body, kept, len(body) + 100)
            request.close_connection = True
        elif kind == "flipped":
            middle = len(body) // 2
            self._send(request, answer.status, body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :], kept)
        elif kind == "too_short":
            self._send(request, answer.status, body[: len(body) // 2], kept)
        else:
            self._send(request, answer.status, body, kept)

    @staticmethod
    def _send(
        request: BaseHTTPRequestHandler, status: int, body: bytes, headers: Mapping[str, str], length: int | None = None
    ) -> None:
        request.send_response_only(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(body) if length is None else length))
        request.end_headers()
        request.wfile.write(body)
