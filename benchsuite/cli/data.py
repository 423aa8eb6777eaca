"""The verbs under `benchsuite data`. Imports no torch, and little else until a verb needs it."""

from pathlib import Path
from typing import Annotated

import typer

from benchsuite.contract.exit_codes import ImageEncoding, PlainFormat

data_app = typer.Typer(help="Make, convert and check datasets.", no_args_is_help=True, rich_markup_mode=None)

DataFormat = Annotated[str, typer.Option("--format", help="How samples are stored: `benchsuite list formats`.")]
Workload = Annotated[str, typer.Option("--workload", help="Workload the samples are for.")]
Variant = Annotated[str, typer.Option("--variant", help="Variant of the workload.")]
ShardSamples = Annotated[int | None, typer.Option("--shard-samples", min=1, help="Samples per shard.")]
FormatOptions = Annotated[
    list[str] | None,
    typer.Option(
        "-o",
        "--option",
        metavar="NAME=VALUE",
        help="How the format stores: files: array=npy|npz; webdataset, tfrecord: shard_samples=N; "
        "hdf5: file_samples=N, chunk_bytes=N, compression=none|gzip|lzf.",
    ),
]


@data_app.command("generate")
def data_generate(
    target: Annotated[Path, typer.Argument(help="The new dataset's folder.")],
    workload: Workload = "resnet50",
    variant: Variant = "reference",
    format: DataFormat = "files",
    samples: Annotated[int, typer.Option("--samples", min=1, help="How many.")] = 1024,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same samples for the same seed.")] = 0,
    shard_samples: ShardSamples = None,
    options: FormatOptions = None,
    encoding: Annotated[ImageEncoding, typer.Option("--encoding", help="Of images: jpeg or png.")] = ImageEncoding.jpeg,
) -> None:
    """Make samples that cost what real ones cost: photographs, CT volumes, BERT sequences, token streams."""
    from benchsuite.cli import datasets

    asked = datasets.asked(workload, variant, format, shard_samples, options or [])
    datasets.generate(target, asked, samples, seed, encoding)


@data_app.command("convert")
def data_convert(
    source: Annotated[
        Path,
        typer.Argument(
            help="A dataset, or what you have: images flat or in a folder per class, tars, .npy pairs, NIfTI, "
            "HDF5, LMDB, TFRecord, .bin/.idx, text."
        ),
    ],
    target: Annotated[Path, typer.Argument(help="The new dataset's folder.")],
    workload: Workload = "resnet50",
    variant: Variant = "reference",
    format: DataFormat = "files",
    shard_samples: ShardSamples = None,
    options: FormatOptions = None,
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", help="A tokenizer.json for text; default: its bytes.")
    ] = None,
) -> None:
    """Convert into a format; the samples' content is stored as it came."""
    from benchsuite.cli import datasets

    asked = datasets.asked(workload, variant, format, shard_samples, options or [])
    datasets.convert(source, target, asked, tokenizer)


@data_app.command("verify")
def data_verify(
    first: Annotated[Path, typer.Argument(help="A dataset.")],
    second: Annotated[Path | None, typer.Argument(help="Another that should hold the same samples.")] = None,
) -> None:
    """Check a dataset against its manifest, byte by byte; or that two hold the same samples."""
    from benchsuite.cli import datasets

    datasets.verify(first, second)


@data_app.command("stage")
def data_stage(
    source: Annotated[Path, typer.Argument(help="A dataset; with --remove also a copy of one.")],
    to: Annotated[
        Path | None,
        typer.Option("--to", help="Node-local folder for copies; default: $SLURM_TMPDIR, else $TMPDIR or /tmp."),
    ] = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove the copy, and what an interrupted one left.")
    ] = False,
    format: Annotated[PlainFormat, typer.Option("--format", help="table or json.")] = PlainFormat.table,
) -> None:
    """Copy a dataset to a node-local folder, checked by its digests; once per node, and on where it was interrupted."""
    from benchsuite.cli import datasets as staging_verb

    (staging_verb.remove if remove else staging_verb.stage)(source, to, format)
