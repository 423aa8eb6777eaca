"""Nodes leave nothing behind, however they end: namespaces, folders, processes."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import network as nodes
from bench.network import HOSTS, Network

CHILD = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
STARTER = f"{CHILD} start_new_session=True); open('started', 'w').close(); time.sleep(600)"
"""A process that starts another in a session of its own, as torchrun does its workers."""


def left(mark: str) -> list[str]:
    """Namespaces, interfaces and folders of a network."""
    found = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.split()
    found += os.listdir("/sys/class/net")
    found += os.listdir(HOSTS) if HOSTS.exists() else []
    return [name for name in found if mark in name]


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> str:
    """What the next network's names carry."""

    class Known:
        hex = f"{os.getpid():06x}"[-6:]

    monkeypatch.setattr(nodes.uuid, "uuid4", Known)
    return Known.hex


@pytest.mark.parametrize("failing", ["qdisc", "gso_max_size", "up"])
def test_what_was_made_goes_where_a_node_cannot_be(
    failing: str, marked: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The second node's link is refused, at three places."""
    asked = subprocess.run

    def run(words: list[str], *given: object, **options: object) -> object:
        if failing in words and any(f"{marked}-2" in word for word in words):
            words = ["false"]
        return asked(words, *given, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(nodes.subprocess, "run", run)
    with pytest.raises(RuntimeError, match=failing):
        Network(3, burst_bytes=32 * 1024)
    assert left(marked) == []


def test_children_of_what_was_started_end_with_it(marked: str, tmp_path: Path, wait_until: Callable[..., None]) -> None:
    net = Network(2)
    try:
        net.start(2, [sys.executable, "-c", STARTER], tmp_path, os.environ)
        wait_until(lambda: (tmp_path / "started").exists())
        running = net.running(2)
        assert len(running) == 2 and net.running(1) == []
    finally:
        net.close()
    wait_until(lambda: not any(Path(f"/proc/{process}/exe").exists() for process in running), seconds=10)
    assert left(marked) == []
