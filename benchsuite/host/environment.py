"""Facts about host, devices, libraries, file system, scheduler and commit, gathered without importing torch.

Versions that explain a step overnight: file system client, network firmware, and what the site asks for.
"""

import os
import platform
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import psutil

from benchsuite.contract.errors import UserError
from benchsuite.contract.terminal import echo
from benchsuite.contract.version import VERSION
from benchsuite.host.load import moment
from benchsuite.host.machine import nvml, this_machine
from benchsuite.host.site import site_facts
from benchsuite.inside.files import text_of
from benchsuite.storage.objects.path import ObjectPath
from benchsuite.storage.observe import lustre
from benchsuite.storage.observe.file_systems import device_of, mount_of, server_cache_of

T = TypeVar("T")
LIBRARIES = (
    "torch",
    "numpy",
    "simplejpeg",
    "pillow",
    "webdataset",
    "h5py",
    "lmdb",
    "pyarrow",
    "tfrecord",
    "triton",
    "deepspeed",
    "horovod",
)
DALI = ("nvidia-dali-cuda120", "nvidia-dali-cuda130")
"""DALI's names among packages, by the version of CUDA it is built for."""
SETTINGS = ("NCCL_", "TORCH_", "PYTORCH_", "CUDA_")
"""What names of variables begin with that change how devices and the network between them are used."""
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
        "benchsuite": VERSION,
        "commit": _commit(),
        **facts_of_host(),
        "libraries": {name: _version(name) for name in LIBRARIES} | {"dali": _dali_version()},
        "settings": {name: value for name, value in sorted(os.environ.items()) if name.startswith(SETTINGS)},
        "scheduler": {name: os.environ[name] for name in SCHEDULER_VARIABLES if name in os.environ},
        "container": container(),
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
    """Type, mount point and its options, free bytes of the file system of a path (or its nearest existing parent).

    What cannot be had of a file system that does not answer is None: a trial that reads from it tells why it fails.
    `lustre` is the layout there (`storage.observe.lustre.layout_of`), None on other file systems and without `lfs`.
    """
    if isinstance(path, ObjectPath):
        return {"file_system": "s3", "server_cache": "unknown", "mount": f"s3://{path.bucket}"} | dict.fromkeys(
            ("mount_options", "free_bytes", "read_ahead_kb", "lustre")
        )
    real = path.resolve()
    while not _may_exist(real):
        real = real.parent
    mount = mount_of(real)
    return {
        "file_system": mount.fstype if mount else None,
        "server_cache": server_cache_of(mount.fstype, _answer(device_of, real, mount.device)) if mount else "unknown",
        "mount": mount.mountpoint if mount else None,
        "mount_options": mount_options(mount.opts) if mount else None,
        "free_bytes": getattr(_answer(psutil.disk_usage, str(real)), "free", None),
        "read_ahead_kb": _answer(read_ahead_kb, real),
        "lustre": _answer(lustre.layout_of, real) if mount and mount.fstype == "lustre" else None,
    }


def _may_exist(path: Path) -> bool:
    """Whether a path is there, or its file system does not answer."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass
    return True


def _answer(ask: Callable[..., T], *arguments: Any) -> T | None:
    """What a file system says; None where it does not answer."""
    try:
        return ask(*arguments)
    except OSError:
        return None


def read_ahead_kb(path: Path) -> int | None:
    """How far the kernel reads ahead on the file system of a path; None where it does not say."""
    number = os.stat(path).st_dev
    text = text_of(Path(f"/sys/class/bdi/{os.major(number)}:{os.minor(number)}/read_ahead_kb")).strip()
    return int(text) if text.isdigit() else None


def devices() -> list[dict[str, Any]]:
    """Name, memory, driver, VBIOS and connections of each NVIDIA device; empty where there is none.

    What the driver does not tell is None: of some in virtual machines the VBIOS.
    """
    import pynvml

    from benchsuite.host.gpus import asked

    with nvml() as handles:
        return [
            {
                "name": str(asked(pynvml.nvmlDeviceGetName, handle) or "unknown"),
                "memory_bytes": getattr(asked(pynvml.nvmlDeviceGetMemoryInfo, handle), "total", None),
                "driver": str(asked(pynvml.nvmlSystemGetDriverVersion)),
                "vbios": asked(pynvml.nvmlDeviceGetVbiosVersion, handle),
                **_connections(handle),
            }
            for handle in handles
            if handle is not None
        ]


def _connections(handle: Any) -> dict[str, Any]:
    """How a device is reached: its PCIe link, as `5 x16`; how many NVLinks are up; the memory it is near."""
    import pynvml

    from benchsuite.host.gpus import asked

    generation = asked(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle)  # an idle link runs at a lower one
    width = asked(pynvml.nvmlDeviceGetCurrPcieLinkWidth, handle)
    pci = asked(pynvml.nvmlDeviceGetPciInfo, handle)
    place = pci and f"{pci.domain & 0xFFFF:04x}:{pci.bus:02x}:{pci.device:02x}.0"
    numa = text_of(Path(f"/sys/bus/pci/devices/{place}/numa_node")) if place else ""
    states = [asked(pynvml.nvmlDeviceGetNvLinkState, handle, link) for link in range(pynvml.NVML_NVLINK_MAX_LINKS)]
    links = [state for state in states if state is not None]
    return {
        "pcie": f"{generation} x{width}" if generation and width else None,
        "nvlinks": sum(state == pynvml.NVML_FEATURE_ENABLED for state in links) if links else None,
        "numa_node": int(numa) if numa.isdigit() else None,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _dali_version() -> str | None:
    return next((found for found in map(_version, DALI) if found is not None), None)


def _cpu_model() -> str | None:
    lines = text_of(Path("/proc/cpuinfo")).splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _commit() -> str | None:
    """Commit of the source tree that this package runs from; None for an installed package."""
    folder = Path(__file__).parents[1]
    if not (folder.parent / ".git").exists():
        return None
    return first_line(["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"], 10.0)[0]


ROOT = Path("/")
COMMAND_TIMEOUT_S = 2.0
OF_ONE_HOST = frozenset({"clientaddr", "lowerdir", "upperdir", "workdir", "fd", "pgrp", "pipe_ino"})
"""Mount options that differ between hosts or containers and say nothing of how files are read."""


def lustre_client(root: Path = ROOT) -> str | None:
    """Version of the Lustre client that the kernel has loaded; None where there is none."""
    lines = text_of(root / "sys/fs/lustre/version").splitlines()
    named = [line.partition(":")[2] for line in lines if line.startswith("lustre:")]
    return next((line.strip() for line in [*named, *lines] if line.strip()), None)


def infiniband(root: Path = ROOT) -> dict[str, dict[str, str | None]]:
    """Firmware and board of each InfiniBand or RoCE adapter by its name; empty where there is none."""
    folder = root / "sys/class/infiniband"
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return {name: {fact: text_of(folder / name / fact) or None for fact in ("fw_ver", "board_id")} for name in names}


def mount_options(options: str) -> str:
    """Options of a mount (`/proc/mounts`, fourth field) in their order, without those of OF_ONE_HOST."""
    return ",".join(option for option in options.split(",") if option.partition("=")[0] not in OF_ONE_HOST)


def facts_of_site(commands: Mapping[str, Sequence[str]] | None = None) -> dict[str, str | None]:
    """The first line that each command of the site's file writes; None, with a warning, of one that fails."""
    if commands is None:
        try:
            commands = site_facts()
        except UserError as error:
            echo(f"warning: {error}", err=True)
            return {}
    return {name: _fact(name, command) for name, command in commands.items()}


def _fact(name: str, command: Sequence[str]) -> str | None:
    line, why = first_line(command, COMMAND_TIMEOUT_S)
    if not line:
        echo(f"warning: facts: {name}: {command[0]}: {why}; recorded as null", err=True)
    return line


def first_line(
    command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None
) -> tuple[str | None, str]:
    """The first line that a command writes to its standard output, or why there is none."""
    try:
        found = subprocess.run(
            [*command],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return None, f"took longer than {timeout_s:g} s"
    except OSError as error:
        return None, error.strerror or str(error)
    if found.returncode:
        return None, f"exit status {found.returncode}"
    return (found.stdout.splitlines() or [""])[0].strip() or None, "wrote no line"
