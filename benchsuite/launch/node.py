"""What an agent says of its node, and what it watches there beside its ranks."""

import hashlib
import os
import resource
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchsuite.contract.version import VERSION
from benchsuite.host.environment import facts_of_host
from benchsuite.host.machine import device_ids, this_machine
from benchsuite.inside.files import text_of
from benchsuite.inside.processes import everyone_s
from benchsuite.launch.rendezvous import networks

NAME_VARIABLES = ("SLURMD_NODENAME",)
"""Where several nodes are one machine, the scheduler's name tells them apart."""


def node_name(environment: Mapping[str, str] = os.environ) -> str:
    """What this node is called."""
    return next((environment[name] for name in NAME_VARIABLES if environment.get(name)), socket.gethostname())


def boot_id() -> str:
    """What processes share that have one kernel: its clock, its page cache, its counters."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()


def code_digest() -> str:
    """Return the digest of the source that ranks run: nodes with another one measure something else."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    folders = os.walk(root, followlinks=True)  # storage, workloads and results are links in a checkout
    for path in sorted(Path(folder, name) for folder, _, names in folders for name in names if name.endswith(".py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def package_path() -> str:
    """PYTHONPATH of processes that are started: the package need not be installed, they find it where this one did."""
    return os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(Path(__file__).parents[2])]))


def about_this_node(elsewhere: bool) -> dict[str, Any]:
    """What a launcher has to know of an agent's node, and if that may be another, which code it runs and its facts."""
    machine = this_machine()
    return {
        "node": node_name(),
        "boot_id": boot_id(),
        "cores": machine.cores,
        "cpus": sorted(os.sched_getaffinity(0)),
        "devices": device_ids(),
        "networks": networks() if elsewhere else {},
        "pid": os.getpid(),
        "version": VERSION,
        "code": code_digest() if elsewhere else None,
        "facts": facts_of_host() if elsewhere else {},
        "from": str(Path(__file__).parents[1]),
    }


def oom_kills() -> int:
    """How many processes the kernel has killed for memory since it started; 0 where it does not say."""
    lines = text_of(Path("/proc/vmstat")).splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


@dataclass(frozen=True)
class CpuUse:
    """CPU seconds of everyone on the cores this process may use, and of this process's ended children."""

    everyone_s: float
    children_s: float
    at_s: float

    @classmethod
    def now(cls) -> "CpuUse":
        """Read the counters."""
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return cls(everyone_s(), children.ru_utime + children.ru_stime, time.monotonic())

    def until(self, later: "CpuUse") -> dict[str, float]:
        """Cores that were busy between two readings, and of these with this process's children."""
        seconds = later.at_s - self.at_s
        return {
            "busy_cores": (later.everyone_s - self.everyone_s) / seconds,
            "own_cores": (later.children_s - self.children_s) / seconds,
        }
