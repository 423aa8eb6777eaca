"""The verbs that make and check datasets, with a progress bar on standard error."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import storage
import workloads
from benchsuite.errors import UserError, refuse
from storage import convert as making
from storage.format import Manifest
from storage.verify import same_samples, verify_dataset
from workloads.workload import Workload


def _check(workload: str, variant: str, format: str, shard_samples: int | None) -> dict[str, int]:
    """Refuse unknown names; the options of the format."""
    named = workloads.names(workloads.WORKLOADS, "benchsuite.workloads")
    if workload not in named:
        raise refuse("--workload", workload, named, workloads.WORKLOADS_NOT_YET)
    known: Workload = workloads.load(workloads.WORKLOADS, workload, "benchsuite.workloads")
    if variant not in known.variants:
        raise refuse("--variant", variant, known.variants)
    formats = storage.names(storage.FORMATS, "benchsuite.formats")
    if format not in formats:
        raise refuse("--format", format, formats, storage.FORMATS_NOT_YET)
    if shard_samples is None:
        return {}
    if format != "webdataset":
        raise UserError(f"--shard-samples: format {format} has no shards; it is for webdataset")
    return {"shard_samples": shard_samples}


@contextmanager
def _bar(title: str) -> Iterator[making.Progress]:
    """A progress bar; without a terminal, a line for each quarter."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield partial(_say_quarters, title)
        return
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(title)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _say_quarters(title: str, done: int, total: int) -> None:
    if total and done * 4 // total > (done - 1) * 4 // total:
        typer.echo(f"{title}: {done}/{total}", err=True)


def _say(target: Path, manifest: Manifest) -> None:
    typer.echo(
        f"{target}: {manifest.num_samples} samples, {manifest.stored_bytes / 1e6:.1f} MB, {manifest.format}, "
        f"{manifest.created['num_files']} files, {manifest.created['conversion_s']} s, id {manifest.dataset_id}",
        err=True,
    )


def _advise(manifest: Manifest) -> None:
    """What a user had better know of a new dataset."""
    if manifest.format == "webdataset":
        typer.echo(f"note: {len(manifest.files)} shard(s) feed at most as many readers (ranks x workers)", err=True)
    if manifest.num_classes == 1:
        typer.echo("note: all samples are of class 0, so the loss falls to 0; a folder per class labels them", err=True)


def generate(
    target: Path, workload: str, variant: str, format: str, samples: int, seed: int, shard_samples: int | None
) -> None:
    """Make a dataset of photographs."""
    options = _check(workload, variant, format, shard_samples)
    with _bar(f"generating {target}") as progress:
        manifest = making.generate_dataset(target, workload, variant, format, samples, seed, options, progress)
    _say(target, manifest)
    _advise(manifest)


def convert(source: Path, target: Path, workload: str, variant: str, format: str, shard_samples: int | None) -> None:
    """Convert a folder of JPEGs or a dataset."""
    options = _check(workload, variant, format, shard_samples)
    with _bar(f"converting {source}") as progress:
        manifest = making.convert_dataset(source, target, workload, variant, format, options, progress)
    _say(target, manifest)
    _advise(manifest)


def verify(first: Path, second: Path | None) -> None:
    """Check one dataset, or that two hold the same samples."""
    checked = [verify_dataset(folder) for folder in (first, second) if folder is not None]
    if len(checked) == 2:
        same_samples(*checked)
        typer.echo(f"ok: {first} and {second} hold the same {checked[0].manifest.num_samples} samples")
        return
    manifest = checked[0].manifest
    typer.echo(f"ok: {first}: {manifest.num_samples} samples, counts, checksums and fields as the manifest says")
