"""The verbs under `benchsuite data`: make, convert, check and stage datasets."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from benchsuite import storage, workloads
from benchsuite.cli.common import GROUP, Plain, tell
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
NEW = "The new dataset's folder, or s3://bucket/prefix."
_REMOVED = {True: "removed", False: "nothing there to remove"}
data_app = typer.Typer(help="Make, convert and check datasets.", **GROUP)

DataFormat = Annotated[str, typer.Option("--format", help="How samples are stored: `benchsuite list formats`.")]
WorkloadOption = Annotated[str, typer.Option("--workload", help="Workload the samples are for.")]
Variant = Annotated[str, typer.Option("--variant", help="Variant of the workload.")]
FormatOptions = Annotated[
    list[str] | None,
    typer.Option(
        "-o",
        "--option",
        metavar="NAME=VALUE",
        help="How the format stores: files: array=npy|npz; webdataset, tfrecord, parquet, mds: shard_samples=N; "
        "hdf5: file_samples=N, chunk_bytes=N, compression=none|gzip|lzf; "
        "parquet: row_group_samples=N, compression=none|snappy|gzip|zstd.",
    ),
]


@data_app.command("generate")
def data_generate(
    target: Annotated[Path, typer.Argument(parser=path_of, metavar="TARGET", help=NEW)],
    workload: WorkloadOption = "resnet50",
    variant: Variant = "reference",
    format: DataFormat = "files",
    samples: Annotated[
        str, typer.Option("--samples", help="How many; auto: as MLPerf Storage asks for --accelerators.")
    ] = "1024",
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same samples for the same seed.")] = 0,
    options: FormatOptions = None,
    encoding: Annotated[Literal["jpeg", "png"], typer.Option("--encoding", help="Of images: jpeg or png.")] = "jpeg",
    accelerators: Annotated[
        int | None, typer.Option("--accelerators", min=1, help="With auto: how many are to read, all together.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, help="With auto: samples of one of them a step.")
    ] = None,
    hosts: Annotated[
        int, typer.Option("--hosts", min=1, help="With auto: hosts that are to read, each with this one's memory.")
    ] = 1,
    shard: Annotated[
        str | None,
        typer.Option("--shard", metavar="I/N", help="Only part I of N; the last one joins all. auto: as task I of N."),
    ] = None,
) -> None:
    """Make samples that cost what real ones cost: photographs, CT volumes, BERT sequences, token streams."""
    wanted = asked(workload, variant, format, options or [])
    part = _part(shard) if shard is not None else None
    count = _count(samples, wanted, encoding, accelerators, batch_size, hosts)
    generate(target, wanted, count, seed, encoding, part)


def _part(shard: str) -> Part:
    """The part that --shard asks for.

    Raises:
        UserError: it is none.
    """
    if shard == AUTO:
        from benchsuite.launch.allocation import task
        from benchsuite.launch.registry import LAUNCHERS

        mine = task()
        if mine is None:
            names = ", ".join(name for name, known in LAUNCHERS.items() if known.variables)
            raise UserError(f"--shard auto: this process is no task of {names}; give I/N, such as 1/4")
        return Part(mine.rank + 1, mine.world_size)
    number, _, count = shard.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise UserError(f"--shard {shard!r}: allowed: I/N with 1 <= I <= N, such as 1/4, or auto")
    return Part(int(number), int(count))


def _count(
    samples: str, wanted: making.Wanted, encoding: str, accelerators: int | None, batch_size: int | None, hosts: int
) -> int:
    """The number that --samples gives, or that MLPerf Storage's rule does.

    Raises:
        UserError: it is neither, or what the rule needs is missing or not asked for.
    """
    if samples == AUTO:
        if accelerators is None or batch_size is None:
            raise UserError(f"--samples {AUTO}: give --accelerators and --batch-size")
        from benchsuite.analysis.dataset_sizing import Sizing
        from benchsuite.host.load import memory_bytes

        sample_bytes = making.sample_bytes(wanted, encoding)
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
            help="A dataset, or what you have: images flat or in a folder per class, tars, .npy pairs, NIfTI, "
            "HDF5, LMDB, TFRecord, .bin/.idx, text.",
        ),
    ],
    target: Annotated[Path, typer.Argument(parser=path_of, metavar="TARGET", help=NEW)],
    workload: WorkloadOption = "resnet50",
    variant: Variant = "reference",
    format: Annotated[
        str,
        typer.Option("--format", help="How samples are stored; several with commas, or all: in folders of TARGET."),
    ] = "files",
    options: FormatOptions = None,
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", help="A tokenizer.json for text; default: its bytes.")
    ] = None,
    label_field: Annotated[
        str | None,
        typer.Option(
            "--label-field",
            metavar="NAME",
            help="Which field of the .json beside each image is its class; none: no file beside an image holds one. "
            f"Default: {', '.join(FIELDS)}.",
        ),
    ] = None,
    on_error: Annotated[
        Literal["stop", "skip"],
        typer.Option("--on-error", help=f"Samples that cannot be read: stop, or skip and list them in {SKIPPED}."),
    ] = "stop",
    errors: Annotated[
        str | None,
        typer.Option(
            "--max-errors", metavar="N|N%", help=f"With skip: how many may be left out; default: {DEFAULT_MAX_ERRORS}."
        ),
    ] = None,
) -> None:
    """Convert into a format; the samples' content is stored as it came."""
    read = ReadOptions(str(tokenizer) if tokenizer else None, label_field, _max_errors(on_error, errors))
    several = _formats_for(workload) if format == ALL else [name.strip() for name in format.split(",")]
    if format == ALL or len(several) > 1:
        if options:
            raise UserError(f"-o {options[0]} with --format {format}: goes with one format")
        convert_all(source, target, workload, variant, several, read)
        return
    wanted = asked(workload, variant, format, options or [])
    convert(source, target, wanted, read)


def _max_errors(on_error: str, text: str | None) -> MaxErrors | None:
    """How many samples may be left out; None: none.

    Raises:
        UserError: it is no number or share, or nothing is to be left out.
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
        typer.Argument(parser=path_of, metavar="[SECOND]", help="Another that should hold the same samples."),
    ] = None,
) -> None:
    """Check a dataset against its manifest, byte by byte; or that two hold the same samples.

    All that is wrong is told, a line each.
    """
    folders = [folder for folder in (first, second) if folder is not None]
    problems, checked = Problems(), list[Dataset]()
    for folder in folders:
        try:
            checked.append(verify_dataset(folder))
        except DatasetError as error:
            problems.add(error)
    with _each_told(" and ".join(map(str, folders))):
        problems.tell()
    if len(checked) == 2:
        same_samples(*checked)
        echo(f"ok: {first} and {second} hold the same {checked[0].manifest.num_samples} samples")
        return
    manifest = checked[0].manifest
    echo(f"ok: {first}: {manifest.num_samples} samples, counts, checksums and fields as the manifest says")


@data_app.command("stage")
def data_stage(
    source: Annotated[
        Path,
        typer.Argument(parser=path_of, metavar="SOURCE", help="A dataset; with --remove also a copy of one."),
    ],
    to: Annotated[
        Path | None,
        typer.Option("--to", help="Node-local folder for copies; default: $SLURM_TMPDIR, else $TMPDIR or /tmp."),
    ] = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove the copy, and what an interrupted one left.")
    ] = False,
    format: Plain = "table",
) -> None:
    """Copy a dataset to a node-local folder, checked by its digests; once per node, and on where it was interrupted."""
    if remove and not isinstance(source, ObjectPath) and (source / MARK).is_file():
        target = source
    else:
        target = node_local_folder(str(to) if to else None) / copy_name(read_manifest(source))
    if remove:
        found = staging.unstage(target)
        facts, words = {"folder": str(target.absolute()), "removed": found}, [f"{target}: {_REMOVED[found]}"]
    else:
        with _megabyte_bar(f"staging {source}") as progress:
            staged = staging.stage(source, target, progress=progress, on_wait=_say_who)
        facts, words = _facts(source, staged), in_words(staged)
    tell(format, facts, words)


def asked(workload: str, variant: str, format: str, options: list[str]) -> making.Wanted:
    """What the options of a verb ask for.

    Raises:
        UserError: a name that is unknown, a format that does not store such samples, an option that it does not have.
    """
    kind, variants = _samples_of(workload)
    if variant not in variants:
        raise refuse("--variant", variant, variants)
    formats = storage.names(storage.FORMATS, "benchsuite.formats")
    if format not in formats:
        raise refuse("--format", format, formats)
    form = storage.format_of(format)
    given = _options(form, options)
    making.check_options(form, kind, given)
    return making.Wanted(workload, variant, format, kind, variants[variant], given)


def _samples_of(workload: str) -> tuple[str, Mapping[str, Mapping[str, int]]]:
    """The kind of a workload's samples, and their parameters by variant.

    Raises:
        UserError: a name that is unknown.
    """
    named = workloads.names(workloads.WORKLOADS, "benchsuite.workloads")
    if workload not in named and ":" not in workload:
        raise refuse("--workload", workload, named)
    known: Facts | Workload = FACTS.get(workload) or workloads.load(
        workloads.WORKLOADS, workload, "benchsuite.workloads"
    )
    return known.kind, {name: variant.sample for name, variant in known.variants.items()}


def _options(form: Format, options: list[str]) -> dict[str, int | str]:
    """`name=value` texts as the types that the format wants."""
    given: dict[str, int | str] = {}
    for text in options:
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"-o {text!r}: write NAME=VALUE")
        if name not in form.options:
            raise refuse(f"option of format {form.name}", name, form.options or ["none"])
        try:
            given[name] = int(value) if form.options[name] is int else value
        except ValueError:
            raise UserError(f"-o {text!r}: {name} is a whole number") from None
    return given


@contextmanager
def _megabyte_bar(title: str) -> Iterator[OnProgress]:
    """A progress bar for bytes, shown in MB."""
    with progress_bar(f"{title} (MB)", tells_quarters=True) as progress:
        last = -1

        def show(done: int, total: int) -> None:
            nonlocal last
            if done // 1_000_000 > last:
                last = done // 1_000_000
                progress(last, total // 1_000_000)

        yield show


def _say(target: Path, manifest: Manifest) -> None:
    """What a new dataset is, and what a user had better know of it."""
    echo(
        f"{target}: {manifest.num_samples} samples, {manifest.stored_bytes / 1e6:.1f} MB, {manifest.format}, "
        f"{manifest.created['num_files']} files, {manifest.created['conversion_s']} s, id {manifest.dataset_id}",
        err=True,
    )
    if storage.format_of(manifest.format).sequential:
        shards_told = counted(len(shards(manifest)), "shard")
        echo(f"note: {shards_told}: at most as many readers (ranks x workers) are fed", err=True)
    if manifest.num_classes == 1:
        echo("note: all samples are of class 0, so the loss falls to 0; a folder per class labels them", err=True)
    if num_hidden := int(manifest.created.get("hidden_files") or 0):
        what = "files (.name, __MACOSX, Thumbs.db, backups) are" if num_hidden > 1 else "file is"
        echo(f"note: {num_hidden:,} hidden or system {what} left out", err=True)
    if num_skipped := int(manifest.created.get("skipped_samples") or 0):
        what = "samples could not be read and are" if num_skipped > 1 else "sample could not be read and is"
        echo(f"note: {num_skipped:,} {what} left out; {target / SKIPPED} says why", err=True)
    dropped = manifest.created.get("dropped_tokens")
    if dropped:
        echo(f"note: the last {dropped} tokens fill no sequence and are left out", err=True)


def generate(
    target: Path, asked: making.Wanted, samples: int, seed: int, encoding: str, part: Part | None = None
) -> None:
    """Make a dataset, or a part of one."""
    if encoding != "jpeg" and asked.kind != "image":
        raise UserError(f"--encoding is for images; {asked.workload} takes {asked.kind} samples")
    with progress_bar(f"generating {target}", tells_quarters=True) as progress:
        if part is None:
            manifest: Manifest | None = making.generate_dataset(
                target, asked, samples, seed, progress, encoding=encoding
            )
        else:
            manifest = generate_part(target, asked, part, samples, seed, progress, encoding)
    if manifest is not None:
        _say(target, manifest)
    elif part is not None:
        echo(
            f"{part.folder(target)}: part {part.number} of {part.count}; whoever makes the last one joins them",
            err=True,
        )


def convert(
    source: Path, target: Path, asked: making.Wanted, read: ReadOptions = AS_IT_IS, most: int | None = None
) -> None:
    """Convert a dataset, or what a user has; at most so many samples."""
    if read.tokenizer and asked.kind != "tokens":
        raise UserError(f"--tokenizer is for text; {asked.workload} takes {asked.kind} samples")
    if read.label_field is not None and asked.kind != "image":
        raise UserError(f"--label-field is for images; {asked.workload} takes {asked.kind} samples")
    with (
        _each_told(str(source), "; nothing was written"),
        progress_bar(f"converting {source}", tells_quarters=True) as progress,
    ):
        manifest = making.convert_dataset(source, target, asked, progress, read, most)
    _say(target, manifest)


def convert_all(
    source: Path,
    target: Path,
    workload: str,
    variant: str,
    formats: Sequence[str],
    read: ReadOptions = AS_IT_IS,
    most: int | None = None,
) -> None:
    """Convert into several formats, each in a folder of its name: the first from the source, the others from that one.

    What is there already is kept, and it is said where the source is newer.

    Raises:
        UserError: a format is unknown, or the target is a dataset itself.
    """
    wanted = {name: asked(workload, variant, name, []) for name in formats}
    if is_dataset(target):
        raise UserError(f"{target}: is a dataset itself; several formats need a folder around them: name another one")
    first = target / formats[0]
    for name in formats:
        if is_dataset(target / name):
            changed = _changed_since(source, target / name)
            stale = f"; {source} is newer: remove {typed(target / name)} to convert it anew" if changed else ""
            echo(f"{target / name}: there already, kept{stale}", err=True)
        elif name == formats[0]:
            convert(source, first, wanted[name], read, most)
        else:
            convert(first, target / name, wanted[name])


def _changed_since(source: Path, made: Path) -> bool:
    """Whether a file was changed, or anything added to or removed from a folder or one in it, since that was made.

    False where one of them is in a bucket.
    """
    if isinstance(source, ObjectPath) or isinstance(made, ObjectPath):
        return False
    folders = [entry for entry in source.iterdir() if entry.is_dir()] if source.is_dir() else []
    return max(each.stat().st_mtime for each in (source, *folders)) > (made / MANIFEST).stat().st_mtime


def _formats_for(workload: str) -> list[str]:
    """The formats that store a workload's samples."""
    kind, _ = _samples_of(workload)
    names = storage.names(storage.FORMATS, "benchsuite.formats")
    return [name for name in names if kind in storage.format_of(name).kinds]


@contextmanager
def _each_told(where: str, after: str = "") -> Iterator[None]:
    """Several things wrong are told in a line each, before the error that gives their number.

    Raises:
        DatasetError: how many there are `where`; one thing wrong as it is.
    """
    try:
        yield
    except Damage as damage:
        for line in damage.told:
            echo(line, err=True)
        if damage.count > len(damage.told):
            echo(f"and {damage.count - len(damage.told)} more", err=True)
        raise DatasetError(f"{where}: {damage.count} problems{after}") from damage


def in_words(staged: Staged) -> list[str]:
    """Where the copy is, what making it took, and what it leaves in memory."""
    size = f"{staged.num_files} files, {in_units(staged.num_bytes)}"
    if staged.seconds is None:
        return [f"{staged.folder}: {size}, there already, whole; nothing was copied"]
    there, rate = staged.num_bytes - staged.copied_bytes, staged.copied_bytes / (staged.seconds or 1.0)
    resumed = f", {in_units(there)} were there" if there > 0 else ""
    left = "left as found" if staged.source_left_as_found else "not known before, so what was read stays"
    resident = "not told" if staged.resident_fraction is None else f"{staged.resident_fraction:.0%}, clean"
    return [
        f"{staged.folder}: {size}, every digest verified",
        f"copied {in_units(staged.copied_bytes)} in {staged.seconds:.3g} s, {in_units(rate)}/s{resumed}",
        f"page cache: source {left}; copy {resident}",
    ]


def _facts(source: Path, staged: Staged) -> dict[str, Any]:
    facts = asdict(staged) | {"source": str(source.absolute()), "folder": str(staged.folder)}
    rate = staged.copied_bytes / staged.seconds if staged.seconds else None
    return facts | {"bytes_per_s": rate, "verified": staged.seconds is not None, "reused": staged.seconds is None}


def _say_who(holder: str) -> None:
    echo(f"waiting for {holder or 'another process'}, which stages the same", err=True)
