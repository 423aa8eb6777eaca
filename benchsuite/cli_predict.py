"""The verb `predict`. Imports little until it is used."""

from pathlib import Path
from typing import Annotated

import typer

from benchsuite.options import TableFormat

Store = Annotated[
    Path,
    typer.Option("--store", envvar="BENCHSUITE_STORE", help="Results store.", show_default=True),
]


def predict(
    ranks: Annotated[str, typer.Option("--ranks", metavar="N,N", help="Numbers of ranks: 16,64,256.")] = "",
    store: Store = Path("benchsuite-store"),
    table: Annotated[
        Path | None, typer.Option("--table", metavar="FILE", help="Measured times from a CSV or JSON, not a store.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="KEY=VALUE", help="Only such trials or rows: parallelism=ddp; again."),
    ] = None,
    back_test: Annotated[
        bool, typer.Option("--back-test", help="Leave out the largest scales, predict them, and print the errors.")
    ] = False,
    scaling: Annotated[
        str, typer.Option("--scaling", help="Of layouts in a table: weak or strong (the batch of all ranks stays).")
    ] = "weak",
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
    from benchsuite import predict_verb

    asked = predict_verb.Asked(
        ranks=predict_verb.numbers(ranks, back_test),
        where=tuple(where or []),
        network=network,
        storage=storage,
        shared_bandwidth=shared_bandwidth,
        staging=staging,
        far=far,
        scaling=scaling,
        mix_environments=mix_environments,
    )
    predict_verb.predict(store, table, asked, back_test, format)
