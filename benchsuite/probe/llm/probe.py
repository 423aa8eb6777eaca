"""`probe checkpoint --model`: launch some of an LLM trainer's ranks, and make a record of what their files took."""

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchsuite.analysis.byte_reconciliation import request_figures
from benchsuite.analysis.record_builder import Measuring
from benchsuite.contract.errors import UserError
from benchsuite.contract.exit_codes import OK, SOME_FAILED
from benchsuite.contract.terminal import PlainFormat, echo
from benchsuite.grid.expand import plan_trial
from benchsuite.host.load import memory_bytes
from benchsuite.launch.starters import LocalLauncher
from benchsuite.probe.checkpoint import check_ready, launched, requests_of
from benchsuite.probe.llm.files import FRAMEWORKS, Cut, bytes_by_rank, cut_of
from benchsuite.probe.llm.rank import Request
from benchsuite.probe.llm.shapes import shapes_of
from benchsuite.probe.record import appended, around, cache_caveats, facts_of, report
from benchsuite.probe.target import own_below
from benchsuite.results.render.words import counted, duration, rate
from benchsuite.results.store.record import CheckpointFigures
from benchsuite.storage.dataset.sizes import in_units
from benchsuite.storage.objects.path import ObjectPath
from benchsuite.storage.rawspeed.probe import IN_MEMORY, RESERVE_BYTES

TASK = "benchsuite.probe.llm.rank:run_rank"
OVERHEAD = 1.01
"""Files are larger than their tensors by torch's headers."""


@dataclass(frozen=True)
class Asked:
    """A model's checkpoint on so many ranks, of which the first few are here."""

    model: str
    framework: str
    cut: Cut
    subset: int
    repeats: int
    timeout_s: float


@dataclass(frozen=True)
class Expected:
    """What is computed before anything is written."""

    parameters: int
    by_rank: Sequence[int]
    """Bytes of the tensors that each rank writes, of all ranks."""

    @property
    def full_bytes(self) -> int:
        return sum(self.by_rank)


def asked(
    model: str,
    framework: str,
    ranks: int,
    subset: int | None,
    degrees: tuple[int | None, int | None],
    repeats: int,
    timeout_s: float,
) -> Asked:
    """What the options ask for.

    Raises:
        UserError: they do not go together, with the arithmetic.
    """
    cut = cut_of(model, framework, ranks, *degrees)
    if subset is not None and subset > ranks:
        raise UserError(f"--subset {subset}: allowed: 1 to {ranks}, the ranks of the checkpoint")
    return Asked(model, framework, cut, subset or ranks, repeats, timeout_s)


def verb(path: Path, asked: Asked, store: Path | None, session: str, format: PlainFormat) -> int:
    """Write and read some ranks' files below a path and print how fast; the exit code.

    Raises:
        UserError: this cannot run here.
    """
    check_ready(path, store, session)
    path = path.absolute()
    expected = expected_of(asked)
    needed = check_room(asked, expected, path)
    spec: dict[str, Any] = {"path": str(path), "mode": "sharded", "workload": "gpt_neox", "variant": asked.model}
    spec |= {"parallelism": asked.framework, "world_size": asked.cut.ranks, "optimizer": "adamw"}
    spec |= {"subset": asked.subset, "tp": asked.cut.tp, "pp": asked.cut.pp, "repeats": asked.repeats}
    if format != "json":
        echo(computed_in_words(asked, expected))
    label = f"{asked.model} {asked.framework} {asked.subset} of {asked.cut.ranks} {path}"
    measuring = Measuring("checkpoint", spec, label, session, facts_of(path))
    point = plan_trial(_trial(asked))
    with own_below(path, "benchsuite-checkpoint", needed) as target, LocalLauncher(TASK) as launcher:
        request = Request(str(target), asked.model, asked.framework, asked.cut, asked.repeats)
        found, why = launched(point, request, launcher)
    if why is not None:
        status, reason = why
        [*appended([(measuring.record(status, reason=reason), {})], store)]
        echo(f"error: {' '.join(reason.split())}", err=True)
        return SOME_FAILED
    shares = [rank["written"] for rank in found]
    kind = measuring.env["data"]["file_system"]
    details = cache_caveats(kind, _resident(shares), kind in IN_MEMORY)
    medians = figures(shares, expected)
    record = measuring.record("ok", details=details, figures=medians)
    samples = {"ranks": found, "computed": asdict(expected)}
    (kept,) = appended([(record, samples)], store)
    lines = [*in_words(asked, expected, shares, medians), *(f"  {text}" for text in details)]
    report(kept, store, format, lambda: echo(*lines))
    return OK


def _trial(asked: Asked) -> dict[str, Any]:
    """The processes, as a trial: its ranks are those that are here."""
    spread = {"world_size": asked.subset, "parallelism": "ddp" if asked.subset > 1 else "none", "batch_size": 1}
    data = {"source": "synthetic"}
    return {"workload": "gpt_neox", "variant": "nano", **spread, "device": "cpu", "data": data} | {
        "measure": {"timeout_s": asked.timeout_s}
    }


def expected_of(asked: Asked) -> Expected:
    """The model's parameters, and what every rank of the full checkpoint writes."""
    shapes = shapes_of(asked.model)
    parameters = sum(math.prod(shape) for shape in shapes.values())
    return Expected(parameters, bytes_by_rank(asked.framework, shapes, asked.cut, range(asked.cut.ranks)))


def check_room(asked: Asked, expected: Expected, path: Path) -> int:
    """Bytes that the files of the ranks that are here need on the disk.

    Raises:
        UserError: the disk or this host's memory has fewer; with what would fit.
    """
    have = {"this host's memory has": memory_bytes()[0]}
    if not isinstance(path, ObjectPath):
        have = {"its disk has": shutil.disk_usage(path).free - RESERVE_BYTES} | have
    needed = [sum(expected.by_rank[: count + 1]) * OVERHEAD for count in range(asked.cut.ranks)]
    for what, room in have.items():
        if room is not None and needed[asked.subset - 1] > room:
            fits = sum(each <= room for each in needed)
            helps = (
                f"--subset {fits} takes {in_units(needed[fits - 1])}"
                if fits
                else (f"one rank takes {in_units(needed[0])}: more --ranks make smaller files")
            )
            raise UserError(
                f"{path}: the files of {asked.subset} of {counted(asked.cut.ranks, 'rank')} take "
                f"{in_units(needed[asked.subset - 1])}, {what} {in_units(room)} free; {helps}"
            )
    return int(needed[asked.subset - 1])


def _resident(shares: Sequence[Sequence[Mapping[str, Any]]]) -> list[float | None]:
    return [one["resident_before_read"] for rank in shares for one in rank]


def _sums(shares: Sequence[Sequence[Mapping[str, Any]]], name: str) -> list[float]:
    """Sums over ranks, one for each checkpoint."""
    return [sum(one[name] for one in seen) for seen in zip(*shares, strict=True)]


def _slowest(shares: Sequence[Sequence[Mapping[str, Any]]], name: str) -> list[float]:
    """The largest over ranks, for each checkpoint."""
    return [max(one[name] for one in seen) for seen in zip(*shares, strict=True)]


def figures(shares: Sequence[Sequence[Mapping[str, Any]]], expected: Expected) -> CheckpointFigures:
    """Medians over checkpoints of what the ranks that are here wrote, and what all ranks would, computed."""
    sizes, durable, read = _sums(shares, "num_bytes"), _slowest(shares, "durable_s"), _slowest(shares, "read_s")
    writes = [size / seconds for size, seconds in zip(sizes, durable, strict=True)]
    here = expected.by_rank[: len(shares)]
    return CheckpointFigures(
        checkpoint_bytes=round(median(sizes)),
        checkpoint_write_bytes_per_s=median(writes),
        checkpoint_read_bytes_per_s=median(size / s for size, s in zip(sizes, read, strict=True)),
        checkpoint_durable_s=median(durable),
        **request_figures([found] if (found := requests_of(one for rank in shares for one in rank)) else []),
        computed_full_bytes=expected.full_bytes,
        computed_full_durable_s=median(durable) * expected.full_bytes / sum(here),
        computed_scaled_durable_s=median(durable) * max(expected.by_rank) / max(here),
    )


def computed_in_words(asked: Asked, expected: Expected) -> str:
    """What is known before anything is written."""
    cut = asked.cut
    degrees = f" (tp {cut.tp}, pp {cut.pp}, dp {cut.dp})" if asked.framework == "megatron" else ""
    num_files = len(FRAMEWORKS[asked.framework](shapes_of(asked.model), cut, 0))
    smallest, largest = min(expected.by_rank), max(expected.by_rank)
    each = in_units(largest) if smallest == largest else f"{in_units(smallest)} to {in_units(largest)}"
    return (
        f"-> computed: {asked.model} has {expected.parameters:,} parameters; {asked.framework} on "
        f"{counted(cut.ranks, 'rank')}{degrees} writes {in_units(expected.full_bytes)} of tensors, {each} a rank in "
        f"{counted(num_files, 'file')}"
    )


def in_words(
    asked: Asked, expected: Expected, shares: Sequence[Sequence[Mapping[str, Any]]], found: CheckpointFigures
) -> list[str]:
    """What was measured, and what full size would take."""
    cut, num_bytes = asked.cut, found.checkpoint_bytes or 0
    num_files = sum(rank[0]["num_files"] for rank in shares)
    durable, read = _slowest(shares, "durable_s"), _slowest(shares, "read_s")
    fastest = median(min(one["durable_s"] for one in seen) for seen in zip(*shares, strict=True))
    resident = _resident(shares)
    seen = "unknown" if None in resident else f"{max(value or 0.0 for value in resident):.0%}"
    headers = in_units(num_bytes - sum(expected.by_rank[: len(shares)]))
    spread = "; median ± the farthest" if len(durable) > 1 else ""
    return [
        f"measured: {counted(num_files, 'file')} of {counted(asked.subset, 'rank')}, "
        f"{in_units(num_bytes)} ({headers} of it headers of the tensors), durable after {around(durable, 3)} s "
        f"(the first rank after {fastest:.3f} s), {rate(found.checkpoint_write_bytes_per_s or 0)}; "
        f"read cold in {around(read, 3)} s, {rate(found.checkpoint_read_bytes_per_s or 0)}",
        f"computed, not measured: all {counted(cut.ranks, 'rank')} are durable after "
        f"{duration(found.computed_full_durable_s or 0)} if the path gives them all what it gave here, after "
        f"{duration(found.computed_scaled_durable_s or 0)} if it gives each as much as here",
        f"trust: {len(durable)} of {len(durable)} read back equal in every bit; in the page cache before reading: "
        f"{seen}{spread}",
    ]
