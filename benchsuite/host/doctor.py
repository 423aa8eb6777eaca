"""What can run on this machine and on these paths, what cannot, and what to do about it."""

import os
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import psutil

from benchsuite import storage, workloads
from benchsuite.contract.version import VERSION
from benchsuite.host.environment import devices, environment, file_system
from benchsuite.host.machine import lost_devices, this_machine
from benchsuite.results.render.words import binary, counted
from benchsuite.results.report import several_gpus
from benchsuite.storage.dataset.manifest import is_dataset, read_manifest
from benchsuite.storage.errors import OUTAGES
from benchsuite.storage.observe import lustre, page_cache
from benchsuite.storage.observe.file_systems import Cached, file_system_of, in_words
from benchsuite.workloads import engine
from benchsuite.workloads.spec import Schedule

ROCM = (
    "devices, energy, clocks and topology are told by NVIDIA's NVML alone, GPU decoding is DALI's: trials run on cpu "
    "here -> measure a training loop on AMD devices by `benchsuite.watch`"
)
LOW_FREE_BYTES = 5e9
NEEDED = ("torch", "numpy", "simplejpeg", "webdataset")
"""Libraries without which a first sweep does not run."""


@dataclass(frozen=True)
class Examined:
    """`ok`, `warn` or `fail`, and what was found."""

    level: str
    text: str


def examine(paths: list[Path]) -> list[Examined]:
    """Libraries, devices, cores, and each path."""
    findings = [_libraries(), _devices(), _cores()]
    for path in paths:
        findings += _path(path)
    missing = storage.missing_loaders()
    loaders = [name for name in storage.names(storage.LOADERS, "benchsuite.loaders") if name not in missing]
    launchable = "cpu" + (", cuda" if this_machine().cuda_devices else "")
    findings.append(
        Examined(
            "ok",
            f"can run: workloads {' '.join(workloads.names(workloads.WORKLOADS, 'benchsuite.workloads'))}; "
            f"formats {' '.join(storage.names(storage.FORMATS, 'benchsuite.formats'))}; "
            f"loaders {' '.join(loaders)}; modes {' '.join(workloads.MODES)}; devices {launchable}",
        )
    )
    findings += _several_gpus()
    findings += [Examined("warn", text.replace(": pip", " -> pip")) for text in missing.values()]
    return findings


def untested(axes: Collection[str] = ("parallelism", "engines")) -> list[str]:
    """Modes, schedules, nodes and engines that are untested on several GPUs: by the list, and on this machine."""
    parallelism = [*workloads.MODES, *(f"schedule {name}" for name in get_args(Schedule)), several_gpus.SEVERAL_NODES]
    names = {"parallelism": parallelism, "engines": engine.names()}
    asked = [name for axis in names if axis in axes for name in names[axis] if name not in ("none", "torch")]
    return several_gpus.untested(asked, {str(device["name"]) for device in devices()}, VERSION)


def _several_gpus() -> list[Examined]:
    """What is untested on several GPUs, as a warning where there are several."""
    names = untested()
    if not names:
        return []
    text = f"{several_gpus.UNTESTED}: {', '.join(names)}"
    if this_machine().cuda_devices < 2:
        return [Examined("ok", text)]
    return [Examined("warn", f"{text} -> make gpu-accept tests them on this machine")]


def _libraries() -> Examined:
    found = {name: environment()["libraries"][name] for name in NEEDED}
    missing = [name for name, version in found.items() if version is None]
    if missing:
        return Examined("fail", f"{', '.join(missing)} missing -> pip install {' '.join(missing)}")
    return Examined("ok", " · ".join(f"{name} {version}" for name, version in found.items()))


def _devices() -> Examined:
    present, usable = devices(), this_machine().cuda_devices
    if "rocm" in str(environment()["libraries"].get("torch")):
        return Examined("warn", f"torch for ROCm: {ROCM}")
    if lost := lost_devices():
        words = counted(lost, "NVIDIA device")
        return Examined("warn", f"{words} lost, {usable} usable -> look for Xid in dmesg; reset or drain the node")
    if not present:
        return Examined("ok", "no NVIDIA device: trials run on cpu")
    names = f"{len(present)} x {present[0]['name']}, driver {present[0]['driver']}"
    if usable < len(present):
        return Examined("warn", f"{names}: {usable} usable -> install a CUDA build of torch, see CUDA_VISIBLE_DEVICES")
    return Examined("ok", names)


def _cores() -> Examined:
    cores, load = this_machine().cores, os.getloadavg()[0]
    text = f"{cores} cores, {psutil.virtual_memory().total / 1e9:.0f} GB memory, load {load:.1f}"
    if load > cores / 2:
        return Examined("warn", f"{text} -> other work on these cores will show in every figure")
    return Examined("ok", text)


def _path(path: Path) -> list[Examined]:
    try:
        if path.is_file():
            return [Examined("fail", f"{path}: a file -> name a folder")]
        if not path.is_dir():
            return [Examined("fail", f"{path}: no such folder -> mkdir -p {path}")]
    except OSError as error:
        helps = "mount its file system again" if error.errno in OUTAGES else "choose a folder you may read"
        return [Examined("fail", f"{path}: {error.strerror} -> {helps}")]
    facts = file_system(path)
    name = f"{path} {facts['file_system']} on {facts['mount']}"
    free = facts["free_bytes"]
    if free is None:
        return [Examined("fail", f"{name}: it does not answer -> mount its file system again")]
    space = Examined("warn" if free < LOW_FREE_BYTES else "ok", f"{name}, {free / 1e9:.1f} GB free")
    stripes = [_stripes(path, facts["lustre"])] if facts["file_system"] == "lustre" else []
    return [space, _cache(path, str(facts["file_system"]), facts["server_cache"]), *stripes]


def _stripes(path: Path, layout: dict[str, Any] | None) -> Examined:
    """How Lustre spreads what lies there, and whether that suits as many readers as there are cores."""
    if layout is None:
        return Examined("warn", f"{path}: stripes not told -> install Lustre's lfs, or have a server answer")
    components = [lustre.Component(**one) for one in layout["components"] or layout["new_files"]]
    first, osts = components[-1], layout["osts"]
    wide = "all OSTs" if first.stripe_count == lustre.ALL else counted(first.stripe_count, "stripe")
    pool = f", pool {first.pool}" if first.pool else ""
    text = f"{path}: {wide} of {binary(first.stripe_size_bytes)}{pool}, {counted(len(components), 'component')}"
    if osts is None or not is_dataset(path):
        return Examined("ok", f"{text}, {'unknown' if osts is None else osts} OSTs")
    files = read_manifest(path).created
    num_files, num_bytes = int(files["num_files"] or 1), float(files["num_bytes"] or 0)
    advised = lustre.advice(components, osts, num_files, num_bytes / num_files, this_machine().cores)
    if advised is None:
        return Examined("ok", f"{text}, {osts} OSTs")
    return Examined(
        "warn", f"{text}: {advised} -> lfs setstripe on the folder before data are written there, or lfs migrate"
    )


def _cache(path: Path, kind: str, server_cache: Cached) -> Examined:
    """Whether a file here can be evicted, and be seen to be."""
    known = file_system_of(kind)
    if not known.client_visible:
        return Examined("warn", f"{path}: {in_words(kind, server_cache)}: trials there are cache_unverified")
    if not known.evictable:
        return Examined("warn", f"{path}: {in_words(kind, server_cache)}")
    try:
        with tempfile.NamedTemporaryFile(dir=path) as file:
            file.write(os.urandom(1 << 20))
            file.flush()
            page_cache.evict([Path(file.name)])
            left = page_cache.residency([Path(file.name)]).fraction
    except OSError as error:
        return Examined("fail", f"{path}: cannot be written: {error.strerror} -> choose a folder you own")
    if left is None or left > 0:
        return Examined("warn", f"{path}: eviction left {left if left is None else f'{left:.0%}'} in the page cache")
    return Examined("ok", f"{path}: {in_words(kind, server_cache)} (tried)")
