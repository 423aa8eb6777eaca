"""Versions that explain a step overnight: file system client, network firmware, and what the site asks for."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchsuite.errors import UserError
from benchsuite.site import site_facts
from benchsuite.terminal import echo

ROOT = Path("/")
COMMAND_TIMEOUT_S = 2.0
OF_ONE_HOST = frozenset({"clientaddr", "lowerdir", "upperdir", "workdir", "fd", "pgrp", "pipe_ino"})
"""Mount options that differ between hosts or containers and say nothing of how files are read."""


def lustre_client(root: Path = ROOT) -> str | None:
    """Version of the Lustre client that the kernel has loaded; None where there is none."""
    lines = (_text(root / "sys/fs/lustre/version") or "").splitlines()
    named = [line.partition(":")[2] for line in lines if line.startswith("lustre:")]
    return next((line.strip() for line in [*named, *lines] if line.strip()), None)


def infiniband(root: Path = ROOT) -> dict[str, dict[str, str | None]]:
    """Firmware and board of each InfiniBand or RoCE adapter by its name; empty where there is none."""
    folder = root / "sys/class/infiniband"
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return {name: {fact: _text(folder / name / fact) for fact in ("fw_ver", "board_id")} for name in names}


def mount_options(options: str) -> str:
    """Options of a mount (`/proc/mounts`, fourth field) in their order, without those of OF_ONE_HOST."""
    return ",".join(option for option in options.split(",") if option.partition("=")[0] not in OF_ONE_HOST)


def facts_of_site(commands: Mapping[str, Sequence[str]] | None = None) -> dict[str, str | None]:
    """The first line that each command of the site's file writes; None, with a warning, of one that fails."""
    if commands is None:
        try:
            commands = site_facts()
        except UserError as error:
            _warn(str(error))
            return {}
    return {name: _first_line(name, command) for name, command in commands.items()}


def _first_line(name: str, command: Sequence[str]) -> str | None:
    line, why = _written(command)
    if not line:
        _warn(f"facts: {name}: {command[0]}: {why}; recorded as null")
    return line


def _written(command: Sequence[str]) -> tuple[str | None, str]:
    """The first line that a command writes to its standard output, or why there is none."""
    try:
        found = subprocess.run(
            [*command],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=COMMAND_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return None, f"took longer than {COMMAND_TIMEOUT_S:g} s"
    except OSError as error:
        return None, error.strerror or str(error)
    if found.returncode:
        return None, f"exit status {found.returncode}"
    return (found.stdout.splitlines() or [""])[0].strip() or None, "wrote no line"


def _warn(text: str) -> None:
    echo(f"warning: {text}", err=True)


def _text(path: Path) -> str | None:
    """A file's text without blanks around it; None where it is empty or cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None
