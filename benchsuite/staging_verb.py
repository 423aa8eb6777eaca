"""The verb `data stage`: a dataset's copy in a node-local folder, made, found or removed. Imports no torch."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchsuite.datasets import megabyte_bar
from benchsuite.options import PlainFormat
from benchsuite.terminal import document, echo
from storage import staging
from storage.format import read_manifest
from storage.sizes import in_units
from storage.staging import MARK, Staged, copy_name, node_local_folder


def stage(source: Path, to: Path | None, format: PlainFormat) -> None:
    """Make or find a copy, and say what it took."""
    target = _target(source, to)
    with megabyte_bar(f"staging {source}") as progress:
        staged = staging.stage(source, target, progress=progress, on_wait=_say_who)
    if format is PlainFormat.json:
        document(json.dumps(_facts(source, staged), indent=1))
        return
    echo(*in_words(staged))


def remove(source: Path, to: Path | None, format: PlainFormat) -> None:
    """Remove a copy, named by its source or itself."""
    target = source if (source / MARK).is_file() else _target(source, to)
    found = staging.unstage(target)
    if format is PlainFormat.json:
        document(json.dumps({"folder": str(target.absolute()), "removed": found}))
        return
    echo(f"{target}: {'removed' if found else 'nothing there to remove'}")


def in_words(staged: Staged) -> list[str]:
    """Where the copy is, what making it took, and what it leaves in memory."""
    size = f"{staged.num_files} files, {in_units(staged.num_bytes)}"
    if staged.seconds is None:
        return [f"{staged.folder}: {size}, there already, whole; nothing was copied"]
    there = staged.num_bytes - staged.copied_bytes
    resumed = f", {in_units(there)} were there" if there > 0 else ""
    left = "left as found" if staged.source_left_as_found else "not known before, so what was read stays"
    resident = "not told" if staged.resident_fraction is None else f"{staged.resident_fraction:.0%}, clean"
    return [
        f"{staged.folder}: {size}, every digest verified",
        f"copied {in_units(staged.copied_bytes)} in {staged.seconds:.3g} s, {in_units(_rate(staged))}/s{resumed}",
        f"page cache: source {left}; copy {resident}",
    ]


def _rate(staged: Staged) -> float:
    return staged.copied_bytes / (staged.seconds or 1.0)


def _facts(source: Path, staged: Staged) -> dict[str, Any]:
    facts = asdict(staged) | {"source": str(source.absolute()), "folder": str(staged.folder)}
    rate = staged.copied_bytes / staged.seconds if staged.seconds else None
    return facts | {"bytes_per_s": rate, "verified": staged.seconds is not None, "reused": staged.seconds is None}


def _target(source: Path, to: Path | None) -> Path:
    return node_local_folder(str(to) if to else None) / copy_name(read_manifest(source))


def _say_who(holder: str) -> None:
    echo(f"waiting for {holder or 'another process'}, which stages the same", err=True)
