"""A headless Chromium, driven by its DevTools protocol."""

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
START_S = 60.0


class Tab:
    """One page; `problems` collects exceptions, errors of the console and requests of anything but the file itself."""

    def __init__(self, socket: Any) -> None:
        self.socket = socket
        self.sent = 0
        self.problems: list[str] = []
        self.requested: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self.sent += 1
        self.socket.send(json.dumps({"id": self.sent, "method": method, "params": params}))
        while True:
            found = json.loads(self.socket.recv())
            if found.get("id") == self.sent:
                assert "error" not in found, found
                return found["result"]
            self._note(found)

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"])[:1000])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(json.dumps(params["args"])[:1000])
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(json.dumps(params["entry"])[:1000])
        elif method == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])

    def run(self, script: str) -> Any:
        """The value of an expression on the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def open(self, path: Path) -> None:
        self.call("Page.navigate", url=path.as_uri())
        end = time.monotonic() + START_S
        while self.run("document.documentElement?.dataset.ready") != "yes":
            assert time.monotonic() < end, f"the page did not get ready: {self.problems}"
            time.sleep(0.05)

    def look(self, width: int, dark: bool = False, height: int = 900) -> None:
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)

    def choose(self, name: str, value: str) -> None:
        """What a user does who chooses in a filter."""
        find = f"const s = document.querySelector('#filters select[name={name}]')"
        self.run(f"(() => {{ {find}; s.value = {json.dumps(value)}; s.dispatchEvent(new Event('change')); }})()")

    def screenshot(self, out: Path) -> None:
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 16000), "scale": 1}
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        out.write_bytes(base64.b64decode(found["data"]))

    def pdf(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])


def browser_command() -> str | None:
    """The installed browser; None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def command() -> str:
    """The installed browser; skips where there is none, or no client for its protocol."""
    pytest.importorskip("websocket", reason="the client of DevTools (websocket-client) is not installed")
    found = browser_command()
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    return found


@contextmanager
def tab(folder: Path, more: Sequence[str] = ()) -> Iterator[Tab]:
    """A fresh browser with one tab, its profile in a folder."""
    browser = command()
    import websocket

    arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-port=0"]
    arguments += ["--remote-allow-origins=*", f"--user-data-dir={folder}", *more, "about:blank"]
    process = subprocess.Popen([browser, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        socket = websocket.create_connection(_address(folder, process), timeout=START_S)
        try:
            yield Tab(socket)
        finally:
            socket.close()
    finally:
        process.terminate()
        process.wait(START_S)


def _address(folder: Path, process: "subprocess.Popen[bytes]") -> str:
    """The address of the first tab, once the browser listens."""
    from urllib.request import urlopen

    file, end = folder / "DevToolsActivePort", time.monotonic() + START_S
    while not file.is_file() or not file.read_text().strip():
        assert process.poll() is None, f"the browser ended with {process.returncode}"
        assert time.monotonic() < end, "the browser does not listen"
        time.sleep(0.05)
    port = file.read_text().split()[0]
    with urlopen(f"http://127.0.0.1:{port}/json/list") as answer:
        tabs = json.load(answer)
    return next(found["webSocketDebuggerUrl"] for found in tabs if found["type"] == "page")
