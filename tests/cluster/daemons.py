"""Slurm's daemons on this host: munged, slurmctld and a slurmd for each node, all state in one folder of their own.

Where the kernel lets us, each node has its own host name, process ids and /etc/hosts, as another machine would.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil

from tests.cluster.processes import kill_all, wait_for

NODES = ("n1", "n2")
NODE_CPUS = 4
PREFIX = "bs-slurm-"
MARK = "BENCHSUITE_TEST_CLUSTER"
"""In the environment of each process of a cluster: the cluster's folder, and in a slurmd's `NODE_MARK` its node."""
NODE_MARK = "BENCHSUITE_TEST_NODE"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "setpriv")
HOST = socket.gethostname().partition(".")[0]
SEARCH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
CONF = """\
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthInfo=socket={folder}/munge/socket,cred_expire=5
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2,bf_interval=2
KillWait=5
MessageTimeout=5
SlurmdTimeout=60
ReturnToService=2
{nodes}
PartitionName=main Nodes={names} Default=YES MaxTime=INFINITE
"""
"""cred_expire is also how long a requeued job waits. A busy host must not pass for a dead node: hence SlurmdTimeout."""


def missing() -> str | None:
    """Why there can be no cluster here; None where it can."""
    if not Path("/etc/debian_version").exists():
        return "needs Debian's Slurm: this is no Debian"
    if os.geteuid() != 0:
        return "needs root, to start Slurm's daemons"
    absent = [name for name in PROGRAMS if shutil.which(name, path=SEARCH) is None]
    return f"{', '.join(absent)} not installed; `make cluster-packages` installs them" if absent else None


class Daemons:
    """The daemons of one cluster."""

    def __init__(self) -> None:
        remove_dead()
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"))
        self.folder.chmod(0o755)  # munge's user passes through
        me = psutil.Process()
        (self.folder / "owner.json").write_text(json.dumps([me.pid, me.create_time()]))
        self.variables = {"PATH": SEARCH, "SLURM_CONF": f"{self.folder}/slurm.conf", MARK: str(self.folder)}
        """What Slurm's commands need to reach this cluster."""
        self._env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")} | self.variables
        self.own_hosts = _unshare([sys.executable, "-c", ""]).returncode == 0
        """Each node is as another machine: host name, process ids."""
        (self.folder / "slurm.conf").write_text(self._conf())
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost {' '.join(NODES)} {socket.gethostname()}\n")
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start all; each ends with this process, even if that is killed."""
        self._start_munge()
        (self.folder / "state").mkdir()
        self._start("slurmctld", ["slurmctld", "-D"])
        for node in NODES:
            self.start_node(node)

    def start_node(self, node: str) -> None:
        """Start a node that is not running."""
        (self.folder / f"spool.{node}").mkdir(exist_ok=True)
        command = ["slurmd", "-D", "-N", node]
        if self.own_hosts:
            script = str(Path(__file__).with_name("node.py"))
            command = [*UNSHARE, sys.executable, "-S", script, node, str(self.folder / "hosts"), *command]
        self._start(node, command, {NODE_MARK: node})

    def kill_node(self, node: str) -> None:
        """Let a node die: slurmd, its steps and the processes of its jobs, all at once and without a word."""
        marks = (NODE_MARK, "SLURMD_NODENAME")
        kill_all(lambda env: self.has(env) and node in [env.get(mark) for mark in marks])
        self._started.pop(node).wait()

    def is_dead(self, node: str) -> bool:
        """Whether a node has been killed."""
        return node not in self._started

    def has(self, env: Mapping[str, str]) -> bool:
        """Whether a process with this environment belongs to this cluster: other clusters number their jobs alike."""
        return env.get(MARK) == str(self.folder)

    def stop(self) -> None:
        """End all, with all jobs, and remove the folder."""
        if "slurmctld" in self._started:
            self._started["slurmctld"].terminate()  # ends the children that it alone knows
            with suppress(subprocess.TimeoutExpired):
                self._started["slurmctld"].wait(10)
        kill_all(self.has)
        for process in self._started.values():
            process.wait()
        shutil.rmtree(self.folder)

    def logs(self) -> str:
        """The last lines of each daemon's log."""
        files = sorted(self.folder.glob("*.log")) or sorted(self.folder.glob("*.err"))
        tails = {path.name: path.read_text(errors="replace").splitlines()[-40:] for path in files}
        return "\n".join(f"== {name}\n" + "\n".join(lines) for name, lines in tails.items())

    def _conf(self) -> str:
        ports = free_ports(1 + len(NODES))
        nodes = "\n".join(
            f"NodeName={node} NodeHostname={node if self.own_hosts else HOST} NodeAddr=127.0.0.1 "
            f"Port={port} CPUs={NODE_CPUS} RealMemory=1000"
            for node, port in zip(NODES, ports[1:], strict=True)
        )
        return CONF.format(host=HOST, ports=ports, folder=self.folder, nodes=nodes, names=",".join(NODES))

    def _start_munge(self) -> None:
        home = self.folder / "munge"
        home.mkdir(mode=0o755)
        key = home / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        for path in (home, key):
            shutil.chown(path, "munge", "munge")
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={home / name}" for option, name in files.items()]
        user = ["--reuid", "munge", "--regid", "munge", "--clear-groups"]
        self._start("munged", ["munged", "--foreground", *options], setpriv=user)
        wait_for((home / "socket").exists, "munged's socket")

    def _start(
        self, name: str, command: list[str], env: dict[str, str] | None = None, setpriv: list[str] | None = None
    ) -> None:
        with (self.folder / f"{name}.err").open("ab") as out:
            self._started[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *(setpriv or []), *command],
                env=self._env | (env or {}),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )


UNSHARE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts", "--mount"]


def _unshare(command: list[str]) -> subprocess.CompletedProcess[bytes]:
    """Run a command in namespaces as nodes have them."""
    return subprocess.run([*UNSHARE, *command], capture_output=True, check=False)


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def remove_dead() -> None:
    """Remove clusters whose test run was killed."""
    for folder in Path("/tmp").glob(f"{PREFIX}*"):
        with suppress(OSError, ValueError):
            pid, born = json.loads((folder / "owner.json").read_text())
            with suppress(psutil.Error):
                if psutil.Process(pid).create_time() == born:
                    continue
            kill_all(lambda env, folder=str(folder): env.get(MARK) == folder)
            shutil.rmtree(folder)
