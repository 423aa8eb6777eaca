"""The verbs under `benchsuite probe`. Each imports torch, and most else, only when it runs."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from benchsuite.cli.common import LauncherName
from benchsuite.contract.errors import UserError
from benchsuite.contract.terminal import PlainFormat
from benchsuite.storage.objects.path import ObjectPath, path_of

probe_app = typer.Typer(
    help="Measure what a path, a device or a network gives: raw reads, matrix products, checkpoints, collectives.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

CheckpointMode = Literal["rank0", "sharded", "async"]
Framework = Literal["fsdp", "megatron", "deepspeed"]
CommBackend = Literal["auto", "gloo", "nccl"]
Target = Annotated[
    Path,
    typer.Argument(
        parser=path_of, metavar="PATH", help="A folder, or s3://bucket/prefix. The probe removes what it writes there."
    ),
]
Store = Annotated[
    Path | None, typer.Option("--store", envvar="BENCHSUITE_STORE", help="Append a record to this results store.")
]
Session = Annotated[str, typer.Option("--session", help="Name of the measuring campaign.")]
Format = Annotated[PlainFormat, typer.Option("--format", help="json prints the record with its raw samples.")]

Overlap = Annotated[
    bool, typer.Option("--overlap", help="Also train with DDP, with its exchange during backward and after it.")
]
Buckets = Annotated[
    str | None, typer.Option("--buckets", help="With --overlap: sizes of DDP's buckets; default: 1MiB,4MiB,25MiB.")
]
LlmModel = Annotated[
    str | None,
    typer.Option("--model", help="Write files of an LLM's trainer, without its devices: llama3-8b, -70b, -405b."),
]
LlmFramework = Annotated[
    Framework, typer.Option("--framework", help="With --model: whose files: fsdp, megatron, deepspeed (ZeRO-3).")
]
Subset = Annotated[
    int | None, typer.Option("--subset", min=1, help="With --model: number of ranks that write here; default: all.")
]
TensorParallelism = Annotated[
    int | None,
    typer.Option(
        "--tp", min=1, help="With megatron: tensor parallelism; default: as MLPerf Storage (8 for 70b, 405b)."
    ),
]
PipelineStages = Annotated[
    int | None, typer.Option("--pp", min=1, help="With megatron: pipeline stages; default: 32 for 405b.")
]
Timeout = Annotated[float, typer.Option("--timeout", min=1, help="Seconds until every rank is killed.")]
CollectiveName = Annotated[
    str,
    typer.Option(
        "--op",
        help="Collective: all, all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, send_recv.",
    ),
]
Algorithm = Annotated[
    str,
    typer.Option(
        "--algorithm",
        help="Algorithm: all, backend (its own choice), or a step table over send/recv: ring, recursive_doubling, "
        "halving_doubling, torus, tree, parameter_server, parameter_server_sharded, all_to_all, binomial.",
    ),
]


@probe_app.command("storage")
def probe_storage(
    path: Target,
    size: Annotated[
        str, typer.Option("--size", help="Size of the file to read, larger than a server's cache; or of all objects.")
    ] = "1GB",
    seconds: Annotated[float, typer.Option("--seconds", help="Seconds for each cell, in three rounds.")] = 2.0,
    engine: Annotated[
        Literal["auto", "fio", "own"],
        typer.Option("--engine", help="What reads: auto (fio where it is installed), fio, own."),
    ] = "auto",
    block: Annotated[
        str, typer.Option("--block", help="Sizes of a read; in a bucket of an object.")
    ] = "4KiB,64KiB,1MiB,16MiB",
    depth: Annotated[str, typer.Option("--depth", help="Numbers of reads or requests at once.")] = "1,4,16",
    store: Store = None,
    session: Session = "default",
    format: Format = "table",
) -> None:
    """Measure reads by pattern, block size and depth, and files made, opened and removed per second.

    In a bucket it writes objects, reads them whole and by ranges, by size and number at once, and lists them.
    """
    from benchsuite.probe import storage

    options = storage.asked(size, seconds, engine, block, depth)
    if isinstance(path, ObjectPath):
        from benchsuite.probe import bucket

        raise typer.Exit(bucket.verb(path, options, store, session, format))
    raise typer.Exit(storage.verb(path, options, store, session, format))


@probe_app.command("device")
def probe_device(
    device: Annotated[
        str, typer.Option("--device", help="Devices: auto (every CUDA device, else the CPU), cpu, cuda, cuda:N.")
    ] = "auto",
    seconds: Annotated[float, typer.Option("--seconds", min=0.0, help="Seconds for each measurement.")] = 0.5,
    store: Store = None,
    session: Session = "default",
    format: Format = "table",
) -> None:
    """Measure matrix products, memory and copies of devices: the most that MFU and loaders can reach."""
    from benchsuite.probe import device as probe

    raise typer.Exit(probe.verb(device, seconds, store, session, format))


@probe_app.command("nodes")
def probe_nodes(
    path: Annotated[
        Path | None, typer.Option("--path", help="A folder in which each node writes, reads and removes its own file.")
    ] = None,
    size: Annotated[str, typer.Option("--size", help="Size of that file, larger than a server's cache.")] = "1GB",
    seconds: Annotated[float, typer.Option("--seconds", min=0.0, help="Seconds for each measurement.")] = 1.0,
    thresholds: Annotated[
        Path | None,
        typer.Option("--thresholds", help="YAML with what each node must give, such as h2d_bytes_per_s: 40e9."),
    ] = None,
    exclude_list: Annotated[
        Path | None, typer.Option("--exclude-list", help="File for the names of slow nodes, for sbatch --exclude.")
    ] = None,
    launcher: LauncherName = "auto",
    timeout: Timeout = 900,
    store: Store = None,
    session: Session = "default",
    format: Format = "table",
) -> None:
    """Measure all nodes side by side, devices, storage and links, and name those that are slow."""
    from benchsuite.contract.units import parse_bytes
    from benchsuite.probe import nodes

    options = nodes.Asked(
        seconds, path, parse_bytes(size, "--size"), nodes.thresholds_of(thresholds), exclude_list, float(timeout)
    )
    raise typer.Exit(nodes.verb(options, launcher, store, session, format))


@probe_app.command("checkpoint")
def probe_checkpoint(
    context: typer.Context,
    path: Target,
    workload: Annotated[
        str, typer.Option("--workload", help="Workload whose model and optimizer are written.")
    ] = "resnet50",
    variant: Annotated[str, typer.Option("--variant", help="Variant of the workload.")] = "reference",
    model: LlmModel = None,
    framework: LlmFramework = "fsdp",
    subset: Subset = None,
    tp: TensorParallelism = None,
    pp: PipelineStages = None,
    world_size: Annotated[int, typer.Option("--world-size", "--ranks", min=1, help="Number of ranks.")] = 1,
    parallelism: Annotated[
        str,
        typer.Option("--parallelism", help="Mode: none, ddp, zero2, fsdp, hsdp, tp; default: fsdp, none for one rank."),
    ] = "",
    mode: Annotated[
        CheckpointMode,
        typer.Option(
            "--save", "--mode", help="How to save: rank0 (gathered, torch.save), sharded or async (torch's DCP)."
        ),
    ] = "sharded",
    optimizer: Annotated[
        str, typer.Option("--optimizer", help="Optimizer: sgd, momentum, adam, adamw, adafactor.")
    ] = "adamw",
    batch_size: Annotated[
        int, typer.Option("--batch-size", min=1, help="Samples per rank in the training steps between checkpoints.")
    ] = 2,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Number of checkpoints to write and read.")] = 5,
    timeout: Timeout = 900,
    store: Store = None,
    session: Session = "default",
    format: Format = "table",
) -> None:
    """Write model and optimizer, read them back cold, and compare every tensor."""
    typed_options = _typed_options(context)
    if model is not None:
        from benchsuite.probe.llm import probe

        _refuse(typed_options & {"workload", "variant", "parallelism", "optimizer", "batch_size"}, "without --model")
        if mode != "sharded":
            raise UserError(f"--save {mode} with --model: allowed: sharded")
        options = probe.asked(model, framework, world_size, subset, (tp, pp), repeats, float(timeout))
        raise typer.Exit(probe.verb(path, options, store, session, format))
    from benchsuite.probe import checkpoint

    _refuse(typed_options & {"framework", "subset", "tp", "pp"}, "with --model")
    values = {
        "workload": workload,
        "variant": variant,
        "world_size": world_size,
        "parallelism": parallelism or ("fsdp" if world_size > 1 else "none"),
        "optimizer": optimizer,
        "batch_size": batch_size,
        "measure": {"timeout_s": float(timeout)},
    }
    raise typer.Exit(checkpoint.verb(path, mode, repeats, values, store, session, format))


def _typed_options(context: typer.Context) -> set[str]:
    """Return the names of the options that stand on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def _refuse(names: set[str], allowed: str) -> None:
    """Raise UserError for the first of these options, where there is one."""
    if names:
        raise UserError(f"--{min(names).replace('_', '-')} is allowed only {allowed}")


@probe_app.command("comm")
def probe_comm(
    op: CollectiveName = "all_reduce",
    sizes: Annotated[
        str,
        typer.Option(
            "--sizes", help="Sizes of the whole array, as in nccl-tests: FIRST:LAST in powers of two, or a list."
        ),
    ] = "1KiB:16MiB",
    dtype: Annotated[
        str, typer.Option("--dtype", help="Type: all, or fp64, fp32, fp16, bf16, int64, int32, int8.")
    ] = "fp32",
    world_size: Annotated[
        str, typer.Option("--world-size", help="Numbers of ranks, measured one after the other: 2,4.")
    ] = "2",
    backend: Annotated[
        CommBackend, typer.Option("--backend", help="Backend: auto (nccl where there are CUDA devices), gloo, nccl.")
    ] = "auto",
    algorithm: Algorithm = "backend",
    overlap: Overlap = False,
    buckets: Buckets = None,
    iterations: Annotated[int, typer.Option("--iterations", min=2, help="Least number of samples of each size.")] = 20,
    seconds: Annotated[float, typer.Option("--seconds", min=0, help="Least time for each size.")] = 0.2,
    launcher: LauncherName = "auto",
    ranks_per_node: Annotated[
        int | None, typer.Option("--ranks-per-node", min=1, help="Ranks per node, as in a trial.")
    ] = None,
    timeout: Timeout = 900,
    store: Store = None,
    session: Session = "default",
    format: Format = "table",
) -> None:
    """Measure collectives by size, dtype and ranks, each checked by its contents; fit alpha and beta."""
    from benchsuite.probe.comm import probe

    options = probe.asked(
        op=op,
        sizes=sizes,
        dtype=dtype,
        world_size=world_size,
        backend=backend,
        algorithm=algorithm,
        overlap=overlap,
        buckets=buckets,
        iterations=iterations,
        seconds=seconds,
        ranks_per_node=ranks_per_node,
        timeout_s=float(timeout),
    )
    raise typer.Exit(probe.verb(options, launcher, store, session, format))
