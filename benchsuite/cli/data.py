"""The verbs under `benchsuite data`: generate, convert, verify and stage datasets."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from benchsuite import storage, workloads
from benchsuite.cli.common import GROUP, Plain, print_facts
from benchsuite.contract.console import OnProgress, progress_bar
from benchsuite.contract.errors import UserError, refuse
from benchsuite.contract.terminal import echo
from benchsuite.results.render.words import counted, typed
from benchsuite.storage.create import convert as making
from benchsuite.storage.create.convert import SKIPPED
from benchsuite.storage.create.parts import Part, generate_part
from benchsuite.storage.dataset.manifest import (
    MANIFEST,
    Dataset,
    DatasetError,
    Format,
    Manifest,
    is_dataset,
    read_manifest,
)
from benchsuite.storage.dataset.problems import Damage, Problems
from benchsuite.storage.dataset.shards import shards
from benchsuite.storage.dataset.sizes import in_units
from benchsuite.storage.dataset.verify import same_samples, verify_dataset
from benchsuite.storage.objects.path import ObjectPath, path_of
from benchsuite.storage.sources import AS_IT_IS, ReadOptions
from benchsuite.storage.sources.labels import FIELDS
from benchsuite.storage.sources.skips import MaxErrors, max_errors
from benchsuite.storage.staging import stage as staging
from benchsuite.storage.staging.stage import MARK, Staged, copy_name, node_local_folder
from benchsuite.workloads.facts import FACTS, Facts

if TYPE_CHECKING:
    from benchsuite.workloads.workload import Workload

ALL, AUTO = "all", "auto"
DEFAULT_MAX_ERRORS = "1%"
TARGET_HELP = "Folder of the new dataset, or s3://bucket/prefix."
data_app = typer.Typer(help="Make, convert and check datasets.", **GROUP)

DataFormat = Annotated[str, typer.Option("--format", help="Format of the dataset: `benchsuite list formats`.")]
WorkloadOption = Annotated[str, typer.Option("--workload", help="Workload the samples are for.")]
Variant = Annotated[str, typer.Option("--variant", help="Variant of the workload.")]
FormatOptions = Annotated[
    list[str] | None,
    typer.Option(
        "-o",
        "--option",
        metavar="NAME=VALUE",
        help="Option of the format. files: array=npy|npz; webdataset, tfrecord, parquet, mds: shard_samples=N; "
        "hdf5: file_samples=N, chunk_bytes=N, compression=none|gzip|lzf; "
        "parquet: row_group_samples=N, compression=none|snappy|gzip|zstd.",
    ),
]


@data_app.command("generate")
def data_generate(
    target: Annotated[Path, typer.Argument(parser=path_of, metavar="TARGET", help=TARGET_HELP)],
    workload: WorkloadOption = "resnet50",
    variant: Variant = "reference",
    format: DataFormat = "files",
    samples: Annotated[
        str,
        typer.Option("--samples", help="Number of samples; auto: as many as MLPerf Storage asks for --accelerators."),
    ] = "1024",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed; the same seed makes the same samples.")] = 0,
    options: FormatOptions = None,
    encoding: Annotated[
        Literal["jpeg", "png"], typer.Option("--encoding", help="Encoding of images: jpeg or png.")
    ] = "jpeg",
    accelerators: Annotated[
        int | None, typer.Option("--accelerators", min=1, help="With auto: number of accelerators on all hosts.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, help="With auto: samples per accelerator and step.")
    ] = None,
    hosts: Annotated[
        int, typer.Option("--hosts", min=1, help="With auto: number of hosts, each with this one's memory.")
    ] = 1,
    shard: Annotated[
        str | None,
        typer.Option(
            "--shard", metavar="I/N", help="Make part I of N; the last one joins all. auto: part of this job's task."
        ),
    ] = None,
) -> None:
    """Make samples that cost what real ones cost: photographs, CT volumes, BERT sequences, token streams."""
    request = dataset_request(workload, variant, format, options or [])
    part = _parse_shard(shard) if shard is not None else None
    count = _parse_samples(samples, request, encoding, accelerators, batch_size, hosts)
    generate(target, request, count, seed, encoding, part)


def _parse_shard(shard: str) -> Part:
    """Return the part that `--shard` names.

    Raises:
        UserError: it names none, or is auto outside of a job's task.
    """
    if shard == AUTO:
        from benchsuite.launch.allocation import task
        from benchsuite.launch.registry import LAUNCHERS

        own_task = task()
        if own_task is None:
            names = ", ".join(name for name, launcher in LAUNCHERS.items() if launcher.variables)
            raise UserError(f"--shard auto: this process is no task of {names}; give I/N, such as 1/4")
        return Part(own_task.rank + 1, own_task.world_size)
    number, _, count = shard.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise UserError(f"--shard {shard!r}: allowed: I/N with 1 <= I <= N, such as 1/4, or auto")
    return Part(int(number), int(count))


def _parse_samples(
    samples: str, request: making.Wanted, encoding: str, accelerators: int | None, batch_size: int | None, hosts: int
) -> int:
    """Return the number of samples that `--samples` gives; with auto that of MLPerf Storage's rule, which is printed.

    Raises:
        UserError: it is neither a number nor auto, or the other options do not go with it.
    """
    if samples == AUTO:
        if accelerators is None or batch_size is None:
            raise UserError(f"--samples {AUTO}: give --accelerators and --batch-size")
        from benchsuite.analysis.dataset_sizing import Sizing
        from benchsuite.host.load import memory_bytes

        sample_bytes = making.sample_bytes(request, encoding)
        sizing = Sizing(accelerators, batch_size, sample_bytes, memory_bytes()[1], hosts)
        echo(f"samples: {sizing}", err=True)
        return sizing.samples
    if (accelerators, batch_size, hosts) != (None, None, 1):
        raise UserError(f"--accelerators, --batch-size and --hosts go with --samples {AUTO}")
    if not samples.isdecimal() or not int(samples):
        raise UserError(f"--samples {samples!r}: allowed: a whole number from 1 on, or {AUTO}")
    return int(samples)


@data_app.command("convert")
def data_convert(
    source: Annotated[
        Path,
        typer.Argument(
            parser=path_of,
            metavar="SOURCE",
            help="A dataset, or your data: images flat or in a folder per class, tars, .npy pairs, NIfTI, "
            "HDF5, LMDB, TFRecord, .bin/.idx, text.",
        ),
    ],
    target: Annotated[Path, typer.Argument(parser=path_of, metavar="TARGET", help=TARGET_HELP)],
    workload: WorkloadOption = "resnet50",
    variant: Variant = "reference",
    format: Annotated[
        str,
        typer.Option("--format", help="Format; several with commas, or all, each in a folder of TARGET."),
    ] = "files",
    options: FormatOptions = None,
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", help="A tokenizer.json for text; default: bytes are tokens.")
    ] = None,
    label_field: Annotated[
        str | None,
        typer.Option(
            "--label-field",
            metavar="NAME",
            help="Field of the .json beside each image that holds its class; none: ignore these files. "
            f"Default: {', '.join(FIELDS)}.",
        ),
    ] = None,
    on_error: Annotated[
        Literal["stop", "skip"],
        typer.Option("--on-error", help=f"At what cannot be read: stop, or skip it and list it in {SKIPPED}."),
    ] = "stop",
    errors: Annotated[
        str | None,
        typer.Option(
            "--max-errors", metavar="N|N%", help=f"With skip: most samples to leave out; default: {DEFAULT_MAX_ERRORS}."
        ),
    ] = None,
) -> None:
    """Convert into a format. The content of samples is stored unchanged."""
    read = ReadOptions(str(tokenizer) if tokenizer else None, label_field, _parse_max_errors(on_error, errors))
    formats = _formats_for(workload) if format == ALL else [name.strip() for name in format.split(",")]
    try:
        if format == ALL or len(formats) > 1:
            if options:
                raise UserError(f"-o {options[0]} with --format {format}: goes with one format")
            convert_all(source, target, workload, variant, formats, read)
        else:
            convert(source, target, dataset_request(workload, variant, format, options or []), read)
    except DatasetError as error:
        if error.may_skip:
            raise DatasetError(f"{error}; --on-error skip leaves out what cannot be read") from error
        raise


def _parse_max_errors(on_error: str, text: str | None) -> MaxErrors | None:
    """Return how many samples may be left out; None where no sample may.

    Raises:
        UserError: the text is no number or share, or `--on-error` is not skip.
    """
    if on_error == "stop":
        if text is not None:
            raise UserError(f"--max-errors {text}: goes with --on-error skip")
        return None
    try:
        return max_errors(text if text is not None else DEFAULT_MAX_ERRORS)
    except ValueError as error:
        raise UserError(f"--max-errors {error}") from None


@data_app.command("verify")
def data_verify(
    first: Annotated[Path, typer.Argument(parser=path_of, metavar="FIRST", help="A dataset, or s3://bucket/prefix.")],
    second: Annotated[
        Path | None,
        typer.Argument(parser=path_of, metavar="[SECOND]", help="Another dataset, which should hold the same samples."),
    ] = None,
) -> None:
    """Check a dataset against its manifest, byte by byte; or that two datasets hold the same samples.

    Every problem is printed on its own line.
    """
    folders = [folder for folder in (first, second) if folder is not None]
    problems, datasets = Problems(), list[Dataset]()
    for folder in folders:
        try:
            datasets.append(verify_dataset(folder))
        except DatasetError as error:
            problems.add(error)
    with _print_problems(" and ".join(map(str, folders))):
        problems.tell()
    if len(datasets) == 2:
        same_samples(*datasets)
        echo(f"ok: {first} and {second} hold the same {datasets[0].manifest.num_samples} samples")
        return
    manifest = datasets[0].manifest
    echo(f"ok: {first}: {manifest.num_samples} samples, counts, checksums and fields as the manifest says")


@data_app.command("stage")
def data_stage(
    source: Annotated[
        Path,
        typer.Argument(parser=path_of, metavar="SOURCE", help="A dataset; with --remove also a staged copy of one."),
    ],
    to: Annotated[
        Path | None,
        typer.Option("--to", help="Node-local folder for copies; default: $SLURM_TMPDIR, else $TMPDIR or /tmp."),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the copy, also one that was interrupted.")] = False,
    format: Plain = "table",
) -> None:
    """Copy a dataset to a node-local folder, once per node, and check its digests. An interrupted copy goes on."""
    if remove and not isinstance(source, ObjectPath) and (source / MARK).is_file():
        target = source
    else:
        target = node_local_folder(str(to) if to else None) / copy_name(read_manifest(source))
    if remove:
        was_removed = staging.unstage(target)
        facts = {"folder": str(target.absolute()), "removed": was_removed}
        lines = [f"{target}: {'removed' if was_removed else 'nothing to remove'}"]
    else:
        with _megabyte_bar(f"staging {source}") as progress:
            staged = staging.stage(source, target, progress=progress, on_wait=_print_waiting)
        facts, lines = _facts(source, staged), describe_copy(staged)
    print_facts(format, facts, lines)


def dataset_request(workload: str, variant: str, format: str, options: list[str]) -> making.Wanted:
    """Return the dataset that the options of a verb ask for.

    Raises:
        UserError: a name is unknown, the format does not store such samples, or it has no such option.
    """
    kind, variants = _samples_of(workload)
    if variant not in variants:
        raise refuse("--variant", variant, variants)
    formats = storage.names(storage.FORMATS, "benchsuite.formats")
    if format not in formats:
        raise refuse("--format", format, formats)
    format_facts = storage.format_of(format)
    format_options = _parse_options(format_facts, options)
    making.check_options(format_facts, kind, format_options)
    return making.Wanted(workload, variant, format, kind, variants[variant], format_options)


def _samples_of(workload: str) -> tuple[str, Mapping[str, Mapping[str, int]]]:
    """Return the kind of a workload's samples, and their parameters by variant.

    Raises:
        UserError: the workload is unknown.
    """
    names = workloads.names(workloads.WORKLOADS, "benchsuite.workloads")
    if workload not in names and ":" not in workload:
        raise refuse("--workload", workload, names)
    facts: Facts | Workload = FACTS.get(workload) or workloads.load(
        workloads.WORKLOADS, workload, "benchsuite.workloads"
    )
    return facts.kind, {name: variant.sample for name, variant in facts.variants.items()}


def _parse_options(format: Format, options: list[str]) -> dict[str, int | str]:
    """Return the options of a format by name, each with the type that the format needs.

    Raises:
        UserError: a text is not NAME=VALUE, the format has no such option, or the value is no whole number.
    """
    values: dict[str, int | str] = {}
    for text in options:
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"-o {text!r}: write NAME=VALUE")
        if name not in format.options:
            raise refuse(f"option of format {format.name}", name, format.options or ["none"])
        try:
            values[name] = int(value) if format.options[name] is int else value
        except ValueError:
            raise UserError(f"-o {text!r}: {name} is a whole number") from None
    return values


@contextmanager
def _megabyte_bar(title: str) -> Iterator[OnProgress]:
    """Show a progress bar in MB; yield what updates it with bytes."""
    with progress_bar(f"{title} (MB)", tells_quarters=True) as progress:
        last = -1

        def show(done: int, total: int) -> None:
            nonlocal last
            if done // 1_000_000 > last:
                last = done // 1_000_000
                progress(last, total // 1_000_000)

        yield show


def _print_dataset(target: Path, manifest: Manifest) -> None:
    """Print what a new dataset is, and notes on what it lacks."""
    echo(
        f"{target}: {manifest.num_samples} samples, {manifest.stored_bytes / 1e6:.1f} MB, {manifest.format}, "
        f"{manifest.created['num_files']} files, {manifest.created['conversion_s']} s, id {manifest.dataset_id}",
        err=True,
    )
    if storage.format_of(manifest.format).sequential:
        num_shards = counted(len(shards(manifest)), "shard")
        echo(f"note: {num_shards}: at most as many readers (ranks x workers) get samples", err=True)
    if manifest.num_classes == 1:
        echo("note: all samples are of class 0, so the loss falls to 0; a folder per class labels them", err=True)
    if num_hidden := int(manifest.created.get("hidden_files") or 0):
        hidden = "files (.name, __MACOSX, Thumbs.db, backups) are" if num_hidden > 1 else "file is"
        echo(f"note: {num_hidden:,} hidden or system {hidden} left out", err=True)
    if num_skipped := int(manifest.created.get("skipped_samples") or 0):
        errors = counted(num_skipped, "error")
        echo(f"note: {errors}: what could not be read is left out; {target / SKIPPED} says what and why", err=True)
    dropped = manifest.created.get("dropped_tokens")
    if dropped:
        echo(f"note: the last {dropped} tokens fill no sequence and are left out", err=True)


def generate(
    target: Path, request: making.Wanted, samples: int, seed: int, encoding: str, part: Part | None = None
) -> None:
    """Make a dataset, or a part of one, and print what it is.

    Raises:
        UserError: an encoding is given for samples that are no images.
    """
    if encoding != "jpeg" and request.kind != "image":
        raise UserError(f"--encoding is for images; {request.workload} takes {request.kind} samples")
    with progress_bar(f"generating {target}", tells_quarters=True) as progress:
        if part is None:
            manifest: Manifest | None = making.generate_dataset(
                target, request, samples, seed, progress, encoding=encoding
            )
        else:
            manifest = generate_part(target, request, part, samples, seed, progress, encoding)
    if manifest is not None:
        _print_dataset(target, manifest)
    elif part is not None:
        echo(
            f"{part.folder(target)}: part {part.number} of {part.count}; the process that makes the last one joins all",
            err=True,
        )


def convert(
    source: Path, target: Path, request: making.Wanted, read: ReadOptions = AS_IT_IS, max_samples: int | None = None
) -> None:
    """Convert a dataset, or a user's data, and print what it is; None for `max_samples` converts every sample.

    Raises:
        UserError: an option of reading is for samples of another kind.
    """
    if read.tokenizer and request.kind != "tokens":
        raise UserError(f"--tokenizer is for text; {request.workload} takes {request.kind} samples")
    if read.label_field is not None and request.kind != "image":
        raise UserError(f"--label-field is for images; {request.workload} takes {request.kind} samples")
    with (
        _print_problems(str(source), "; nothing was written"),
        progress_bar(f"converting {source}", tells_quarters=True) as progress,
    ):
        manifest = making.convert_dataset(source, target, request, progress, read, max_samples)
    _print_dataset(target, manifest)


def convert_all(
    source: Path,
    target: Path,
    workload: str,
    variant: str,
    formats: Sequence[str],
    read: ReadOptions = AS_IT_IS,
    max_samples: int | None = None,
) -> None:
    """Convert into several formats, each in a folder of its name: the first from the source, the others from the first.

    Datasets that are there already are kept; a line says so, and whether the source is newer.

    Raises:
        UserError: a format is unknown, or the target is a dataset itself.
    """
    requests = {name: dataset_request(workload, variant, name, []) for name in formats}
    if is_dataset(target):
        raise UserError(f"{target}: is a dataset itself; several formats need a folder around them: name another one")
    first = target / formats[0]
    for name in formats:
        if is_dataset(target / name):
            changed = _is_newer(source, target / name)
            stale = f"; {source} is newer: remove {typed(target / name)} to convert it anew" if changed else ""
            echo(f"{target / name}: there already, kept{stale}", err=True)
        elif name == formats[0]:
            convert(source, first, requests[name], read, max_samples)
        else:
            convert(first, target / name, requests[name])


def _is_newer(source: Path, dataset: Path) -> bool:
    """Return whether a source is newer than a dataset that was made of it; False where one of them is in a bucket.

    A folder is newer where an entry of it, or of a folder in it, was added or removed.
    """
    if isinstance(source, ObjectPath) or isinstance(dataset, ObjectPath):
        return False
    folders = [entry for entry in source.iterdir() if entry.is_dir()] if source.is_dir() else []
    return max(path.stat().st_mtime for path in (source, *folders)) > (dataset / MANIFEST).stat().st_mtime


def _formats_for(workload: str) -> list[str]:
    """Return the formats that store a workload's samples."""
    kind, _ = _samples_of(workload)
    names = storage.names(storage.FORMATS, "benchsuite.formats")
    return [name for name in names if kind in storage.format_of(name).kinds]


@contextmanager
def _print_problems(where: str, after: str = "") -> Iterator[None]:
    """Print several problems of data on their own lines, and raise an error with their number.

    Raises:
        DatasetError: the number of problems in `where`; a single problem is raised unchanged.
    """
    try:
        yield
    except Damage as damage:
        for line in damage.told:
            echo(line, err=True)
        if damage.count > len(damage.told):
            echo(f"and {damage.count - len(damage.told)} more", err=True)
        problems = DatasetError(f"{where}: {damage.count} problems{after}")
        problems.may_skip = damage.may_skip
        raise problems from damage


def describe_copy(staged: Staged) -> list[str]:
    """Return lines: where the copy is, how long copying took, and what it leaves in the page cache."""
    size = f"{staged.num_files} files, {in_units(staged.num_bytes)}"
    if staged.seconds is None:
        return [f"{staged.folder}: {size}, complete already; nothing was copied"]
    earlier_bytes, rate = staged.num_bytes - staged.copied_bytes, staged.copied_bytes / (staged.seconds or 1.0)
    resumed = f", {in_units(earlier_bytes)} were copied before" if earlier_bytes > 0 else ""
    source = "left as found" if staged.source_left_as_found else "unknown before, so what was read stays"
    resident = "unknown" if staged.resident_fraction is None else f"{staged.resident_fraction:.0%}, clean"
    return [
        f"{staged.folder}: {size}, every digest verified",
        f"copied {in_units(staged.copied_bytes)} in {staged.seconds:.3g} s, {in_units(rate)}/s{resumed}",
        f"page cache: source {source}; copy {resident}",
    ]


def _facts(source: Path, staged: Staged) -> dict[str, Any]:
    facts = asdict(staged) | {"source": str(source.absolute()), "folder": str(staged.folder)}
    rate = staged.copied_bytes / staged.seconds if staged.seconds else None
    return facts | {"bytes_per_s": rate, "verified": staged.seconds is not None, "reused": staged.seconds is None}


def _print_waiting(holder: str) -> None:
    echo(f"waiting for {holder or 'another process'}, which stages the same dataset", err=True)
