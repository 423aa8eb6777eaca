"""Facts about host, devices, libraries, file system, scheduler and commit, gathered without importing torch."""

import os
import platform
import socket
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

import benchsuite
from benchsuite.launch.lanes import this_lane
from benchsuite.machine import this_machine
from benchsuite.moment import moment
from benchsuite.versions import facts_of_site, infiniband, lustre_client, mount_options
from storage.filesystems import device_of, server_cache_of

LIBRARIES = ("torch", "numpy", "simplejpeg", "webdataset")
SCHEDULER_VARIABLES = (
    "SLURM_JOB_ID",
    "SLURM_JOB_PARTITION",
    "SLURM_JOB_NODELIST",
    "PBS_JOBID",
    "PBS_QUEUE",
    "LSB_JOBID",
)
CONTAINER_VARIABLES = (
    "APPTAINER_CONTAINER",
    "SINGULARITY_CONTAINER",
    "SLURM_CONTAINER",
    "ENROOT_CONTAINER",
    "container",
)
"""Apptainer's, Singularity's, Slurm's and enroot's own, and what systemd and podman set."""


def environment() -> dict[str, Any]:
    """Facts that a figure depends on, and those of the moment. A fact that cannot be had is None."""
    return {**_lasting_facts(), "load_average": os.getloadavg()[0], "moment": moment()}


@cache
def _lasting_facts() -> dict[str, Any]:
    return {
        "benchsuite": benchsuite.__version__,
        "commit": _commit(),
        **facts_of_host(),
        "libraries": {name: _version(name) for name in LIBRARIES},
        "scheduler": {name: os.environ[name] for name in SCHEDULER_VARIABLES if name in os.environ},
        "container": container(),
        "lane": None if this_lane() is None else str(this_lane()),
        "modules": [name for name in os.environ.get("LOADEDMODULES", "").split(":") if name],
    }


@cache
def facts_of_host() -> dict[str, Any]:
    """What this host is and has, looked up once: not to be changed."""
    return {
        "host": socket.gethostname(),
        "os": platform.platform(),
        "python": platform.python_version(),
        "cpu": _cpu_model(),
        "cores": this_machine().cores,
        "memory_bytes": psutil.virtual_memory().total,
        "devices": devices(),
        "lustre_client": lustre_client(),
        "infiniband": infiniband(),
        "site": facts_of_site(),
    }


def container(environment: Mapping[str, str] = os.environ, root: Path = Path("/")) -> str | None:
    """The container that this process is in, by its image where that is told; None outside of one."""
    named = next((environment[name] for name in CONTAINER_VARIABLES if environment.get(name)), None)
    if named is not None:
        return named
    marks = {"run/.containerenv": "podman", ".dockerenv": "docker"}
    return next((kind for mark, kind in marks.items() if (root / mark).exists()), None)


def file_system(path: Path) -> dict[str, Any]:
    """Type, mount point and its options, free bytes of the file system of a path (or its nearest existing parent)."""
    real = path.resolve()
    while not real.exists():
        real = real.parent
    mounts = [part for part in psutil.disk_partitions(all=True) if real.is_relative_to(part.mountpoint)]
    mount = max(mounts, key=lambda part: len(part.mountpoint), default=None)
    return {
        "file_system": mount.fstype if mount else None,
        "server_cache": server_cache_of(mount.fstype, device_of(real, mount.device)) if mount else "unknown",
        "mount": mount.mountpoint if mount else None,
        "mount_options": mount_options(mount.opts) if mount else None,
        "free_bytes": psutil.disk_usage(str(real)).free,
    }


def devices() -> list[dict[str, Any]]:
    """Name, memory, driver and VBIOS of each NVIDIA device; empty where there is none."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
        return [
            {
                "name": str(pynvml.nvmlDeviceGetName(handle)),
                "memory_bytes": int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
                "driver": str(pynvml.nvmlSystemGetDriverVersion()),
                "vbios": _vbios(handle),
            }
            for handle in handles
        ]
    finally:
        pynvml.nvmlShutdown()


def _vbios(handle: Any) -> str | None:
    """A device's VBIOS; None where the driver does not tell it, as in some virtual machines."""
    import pynvml

    try:
        return str(pynvml.nvmlDeviceGetVbiosVersion(handle))
    except pynvml.NVMLError:
        return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _commit() -> str | None:
    """Commit of the source tree that this package runs from; None for an installed package."""
    folder = Path(benchsuite.__file__).parent
    if not (folder.parent / ".git").exists():
        return None
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        result = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()
