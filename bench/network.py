"""Nodes with networks of their own on this host: network namespaces, joined by a bridge over shaped links."""

import os
import shutil
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

PROGRAMS = ("ip", "tc", "unshare", "hostname")
RATE = "400mbit"


def missing() -> str | None:
    """Why there can be no namespaces here; None where there can."""
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"{', '.join(absent)} not installed; `make test-cluster` installs them"
    made = subprocess.run(["unshare", "--net", "--uts", "true"], capture_output=True, text=True, check=False)
    return f"the kernel makes no namespaces: {made.stderr.strip()}" if made.returncode else None


def ip(*words: object) -> str:
    """What `ip` prints.

    Raises:
        RuntimeError: it failed.
    """
    done = subprocess.run(["ip", *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


class Network:
    """Nodes `node-1`, `node-2`, ... with the addresses 10.77.0.1, 10.77.0.2, ... on one bridge."""

    def __init__(self, num_nodes: int, rate: str = RATE) -> None:
        self.mark = uuid.uuid4().hex[:6]
        self.rate = rate
        self.nodes = range(1, num_nodes + 1)
        self.processes: list[subprocess.Popen[str]] = []
        ip("link", "add", self.bridge, "type", "bridge")
        ip("link", "set", self.bridge, "up")
        for node in self.nodes:
            self._add(node)

    @property
    def bridge(self) -> str:
        """The interface that joins all."""
        return f"bs{self.mark}"

    def space(self, node: int) -> str:
        """A node's network namespace."""
        return f"bs{self.mark}-{node}"

    def port(self, node: int) -> str:
        """The bridge's end of a node's link."""
        return f"bs{self.mark}{node}"

    def address(self, node: int) -> str:
        """A node's IPv4 address."""
        return f"10.77.0.{node}"

    def _add(self, node: int) -> None:
        space = self.space(node)
        ip("netns", "add", space)
        hosts = Path("/etc/netns") / space / "hosts"  # `ip netns exec` shows it as /etc/hosts
        hosts.parent.mkdir(parents=True)
        names = [f"{self.address(each)} node-{each}" for each in self.nodes]
        hosts.write_text("\n".join(["127.0.0.1 localhost", *names, ""]))
        ip("link", "add", self.port(node), "type", "veth", "peer", "name", "fabric0", "netns", space)
        ip("link", "set", self.port(node), "master", self.bridge, "up")
        ip("-n", space, "addr", "add", f"{self.address(node)}/24", "dev", "fabric0")
        for name in ("lo", "fabric0"):
            ip("-n", space, "link", "set", name, "up")
        shaping = ["root", "tbf", "rate", self.rate, "burst", "128kb", "latency", "400ms"]
        subprocess.run(["tc", "-n", space, "qdisc", "add", "dev", "fabric0", *shaping], check=True)

    def start(self, node: int, command: Sequence[str], folder: Path, env: Mapping[str, str]) -> subprocess.Popen[str]:
        """Run a command on a node, with a host name of its own; what it prints goes to `node-N.out`."""
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', f"node-{node}", *command]
        with (folder / f"node-{node}.out").open("w") as out:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.space(node), *named],
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
                env=dict(env),
                cwd=folder,
            )
        self.processes.append(process)
        return process

    def sent_bytes(self, node: int) -> int:
        """What a node has sent."""
        counter = Path("/sys/class/net") / self.port(node) / "statistics" / "rx_bytes"
        return int(counter.read_text())

    def cut(self, node: int) -> None:
        """Take a node's cable out."""
        ip("link", "set", self.port(node), "down")

    def close(self) -> None:
        """Kill what was started, and remove every node."""
        for process in self.processes:
            process.kill()
            process.wait()
        for node in self.nodes:
            ip("netns", "del", self.space(node))
            shutil.rmtree(Path("/etc/netns") / self.space(node))
        ip("link", "del", self.bridge)
