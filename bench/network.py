"""Nodes with networks of their own on this host: network namespaces, joined by a bridge over shaped links."""

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

PROGRAMS = ("ip", "tc", "unshare", "hostname")
RATE = "400mbit"
BURST_BYTES = 128 * 1024
"""What a link lets through at once after a pause."""
MAX_SEGMENT_BYTES = 64 * 1024
"""What the kernel hands to a link in one piece."""
COMMAND = [sys.executable, "-c", "from benchsuite.cli.app import main; main()"]
TIMEOUT_S = 1800
GONE_S = 10.0
HOSTS = Path("/etc/netns")
"""`ip netns exec` shows the file `hosts` of a namespace's folder here as /etc/hosts."""


def missing() -> str | None:
    """Why there can be no namespaces here; None where there can."""
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"{', '.join(absent)} not installed; `make cluster-packages` installs them"
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
    """Nodes `node-1`, `node-2`, ... with the addresses 10.77.0.1, 10.77.0.2, ... on one bridge.

    What was made is removed again where the rest cannot be made.

    Raises:
        RuntimeError: `ip` or `tc` failed.
    """

    def __init__(self, num_nodes: int, rate: str = RATE, burst_bytes: int = BURST_BYTES) -> None:
        self.mark = uuid.uuid4().hex[:6]
        self.rate, self.burst_bytes = rate, burst_bytes
        self.nodes = range(1, num_nodes + 1)
        self.processes: list[subprocess.Popen[str]] = []
        with ExitStack() as made:
            ip("link", "add", self.bridge, "type", "bridge")
            made.callback(ip, "link", "del", self.bridge)
            ip("link", "set", self.bridge, "up")
            for node in self.nodes:
                self._add(node, made)
            self._made = made.pop_all()

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

    def _add(self, node: int, made: ExitStack) -> None:
        """Make a node, and leave in `made` how it is removed."""
        space = self.space(node)
        ip("netns", "add", space)
        made.callback(ip, "netns", "del", space)
        hosts = HOSTS / space / "hosts"
        hosts.parent.mkdir(parents=True)
        made.callback(shutil.rmtree, hosts.parent)
        names = [f"{self.address(each)} node-{each}" for each in self.nodes]
        hosts.write_text("\n".join(["127.0.0.1 localhost", *names, ""]))
        ip("link", "add", self.port(node), "type", "veth", "peer", "name", "fabric0", "netns", space)
        made.callback(ip, "link", "del", self.port(node))
        ip("link", "set", self.port(node), "master", self.bridge, "up")
        ip("-n", space, "addr", "add", f"{self.address(node)}/24", "dev", "fabric0")
        for name in ("lo", "fabric0"):
            ip("-n", space, "link", "set", name, "up")
        self._shape(space)
        made.callback(self._end, node)

    def _shape(self, space: str) -> None:
        """Hold a node's link to its rate. A piece leaves as a whole when its time is over: small ones wait less."""
        if self.burst_bytes < 2 * MAX_SEGMENT_BYTES:
            ip("-n", space, "link", "set", "fabric0", "gso_max_size", self.burst_bytes // 4)
        shaping = ["root", "tbf", "rate", self.rate, "burst", str(self.burst_bytes), "latency", "400ms"]
        added = ["tc", "-n", space, "qdisc", "add", "dev", "fabric0", *shaping]
        done = subprocess.run(added, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(added)}: {done.stderr.strip()}")

    def start(self, node: int, command: Sequence[str], folder: Path, env: Mapping[str, str]) -> subprocess.Popen[str]:
        """Run a command on a node, with a host name of its own; what it prints goes to `node-N.out`."""
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', f"node-{node}", *command]
        inside = ["ip", "netns", "exec", self.space(node), *named]
        with (folder / f"node-{node}.out").open("w") as out:
            process = subprocess.Popen(
                inside,
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
                env=dict(env),
                cwd=folder,
            )
        self.processes.append(process)
        return process

    def torchrun(
        self, name: str, command: Sequence[str], folder: Path, env: Mapping[str, str]
    ) -> list[subprocess.Popen[str]]:
        """Start `torchrun COMMAND` on every node, one process each; they meet under `name`."""
        meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint={self.address(1)}:29400", f"--rdzv-id={name}"]
        nodes = [f"--nnodes={len(self.nodes)}", "--nproc-per-node=1", *meeting, "--no-python"]
        starter = [sys.executable, "-m", "torch.distributed.run", *nodes]
        return [
            self.start(node, [*starter, "--local-addr", self.address(node), *command], folder, env)
            for node in self.nodes
        ]

    def run(self, name: str, command: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
        """`torchrun COMMAND` on every node, to its end.

        Raises:
            RuntimeError: it failed on one of them; with the end of what that said.
        """
        for node, process in zip(self.nodes, self.torchrun(name, command, folder, env), strict=True):
            if process.wait(TIMEOUT_S):
                raise RuntimeError(f"{name}, node {node}: {(folder / f'node-{node}.out').read_text()[-2000:]}")

    def sent_bytes(self, node: int) -> int:
        """What a node has sent."""
        counter = Path("/sys/class/net") / self.port(node) / "statistics" / "rx_bytes"
        return int(counter.read_text())

    def cut(self, node: int) -> None:
        """Take a node's cable out."""
        ip("link", "set", self.port(node), "down")

    def running(self, node: int) -> list[int]:
        """Processes of a node, by id, whoever started them."""
        return [int(word) for word in ip("netns", "pids", self.space(node)).split()]

    def close(self) -> None:
        """End what runs on the nodes, children of what was started too, and remove every node."""
        for process in self.processes:
            process.kill()
            process.wait()
        self._made.close()

    def _end(self, node: int) -> None:
        """Kill the processes of a node until none is left: one may start another meanwhile."""
        deadline = time.monotonic() + GONE_S
        while (found := self.running(node)) and time.monotonic() < deadline:
            for process in found:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.02)
