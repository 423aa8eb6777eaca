"""The verb `predict`. Imports little until it is used."""

from pathlib import Path
from typing import Annotated

import typer

from benchsuite.contract.exit_codes import TableFormat

EPILOG = (
    "Columns: efficiency: samples/s over those of the smallest measured scale times as many ranks; compute, exchange, "
    "bubble, imbalance, load: shares of the step that go to computation, communication which it does not hide, waiting "
    "for pipeline stages, for the slowest rank, for input; [ ]: 90 % interval. All follows from what was measured; "
    "what is assumed beside it stands below each table."
)

Store = Annotated[
    Path,
    typer.Option("--store", envvar="BENCHSUITE_STORE", help="Results store.", show_default=True),
]
Table = Annotated[
    Path | None,
    typer.Option(
        "--table",
        metavar="FILE",
        help="Measured times from a CSV or JSON, not a store; `benchsuite schema table` has its columns.",
    ),
]
BackTest = Annotated[
    bool,
    typer.Option(
        "--back-test",
        help="How far to trust it here: hide the largest scales, predict them from the others, print the errors.",
    ),
]
Scaling = Annotated[
    str,
    typer.Option(
        "--scaling",
        help="Of layouts in a table: weak (the batch of a data-parallel rank stays) or strong (that of all).",
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        "--batch-size",
        min=1,
        metavar="N",
        help="What if a rank had N samples a step: from two measured batches, which may be others.",
    ),
]

BucketCap = Annotated[
    float | None,
    typer.Option(
        "--bucket-cap-mb",
        min=0.01,
        metavar="X",
        help="What if DDP's gradient buckets were of X MiB.",
    ),
]
NodeBandwidth = Annotated[
    str | None,
    typer.Option(
        "--node-bandwidth",
        metavar="SIZE",
        help="What a node sends a second, all its devices together (200GB), for a table of layouts on one node.",
    ),
]


def predict(
    ranks: Annotated[str, typer.Option("--ranks", metavar="N,N", help="Numbers of ranks: 16,64,256.")] = "",
    store: Store = Path("benchsuite-store"),
    table: Table = None,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="KEY=VALUE", help="Only such trials or rows: parallelism=ddp; again."),
    ] = None,
    back_test: BackTest = False,
    scaling: Scaling = "weak",
    batch_size: BatchSize = None,
    bucket_cap_mb: BucketCap = None,
    node_bandwidth: NodeBandwidth = None,
    network: Annotated[
        float, typer.Option("--network", min=0.001, metavar="X", help="What if the network were X times as fast.")
    ] = 1.0,
    storage: Annotated[
        float, typer.Option("--storage", min=0.001, metavar="X", help="What if shared storage were X times as fast.")
    ] = 1.0,
    shared_bandwidth: Annotated[
        str | None,
        typer.Option("--shared-bandwidth", metavar="SIZE", help="What all ranks together read a second: 5GB."),
    ] = None,
    staging: Annotated[bool, typer.Option("--staging", help="What if the data lay on each node.")] = False,
    far: Annotated[bool, typer.Option("--far", help="Also beyond 8 times the most ranks measured.")] = False,
    mix_environments: Annotated[
        bool, typer.Option("--mix-environments", help="Also join trials of unlike machines, libraries, file systems.")
    ] = False,
    format: Annotated[TableFormat, typer.Option("--format", help="table, json, csv or md.")] = TableFormat.table,
) -> None:
    """Steps, rates, efficiency and utilization at more ranks than were measured, each with a 90 % interval."""
    from benchsuite.cli import predict_tables

    asked = predict_tables.Asked(
        ranks=predict_tables.numbers(ranks, back_test),
        where=tuple(where or []),
        network=network,
        storage=storage,
        shared_bandwidth=shared_bandwidth,
        staging=staging,
        far=far,
        scaling=scaling,
        mix_environments=mix_environments,
        batch_size=batch_size,
        bucket_cap_mb=bucket_cap_mb,
        node_bandwidth=node_bandwidth,
    )
    predict_tables.predict(store, table, asked, back_test, format)
