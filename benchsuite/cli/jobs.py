"""The verbs `submit` and `status`. Imports little until one is used."""

from pathlib import Path
from typing import Annotated

import typer

from benchsuite.contract.exit_codes import STORE_VARIABLE, JobMode, PlainFormat, Scheduler

Text = str | None
Number = int | None


def submit(
    scheduler: Annotated[Scheduler, typer.Argument(help="slurm or pbs.")],
    file: Annotated[Path, typer.Argument(help="A sweep file (YAML).")],
    nodes: Annotated[Number, typer.Option("--nodes", min=1, help="Default: what the largest world size needs.")] = None,
    time: Annotated[Text, typer.Option("--time", metavar="[D-]HH:MM:SS", help="The job's limit.")] = None,
    account: Annotated[Text, typer.Option("--account", help="Whom it is charged to.")] = None,
    partition: Annotated[Text, typer.Option("--partition", help="PBS: the queue.")] = None,
    qos: Annotated[Text, typer.Option("--qos", help="Quality of service (Slurm).")] = None,
    constraint: Annotated[Text, typer.Option("--constraint", help="Of nodes; PBS: NAME=VALUE.")] = None,
    gres: Annotated[Text, typer.Option("--gres", help="Of each node: gpu:4; PBS: ngpus=4.")] = None,
    ranks_per_node: Annotated[
        Number,
        typer.Option("--ranks-per-node", min=1, help="Default: one a GPU of --gres, else spread over --nodes, else 1."),
    ] = None,
    cpus_per_rank: Annotated[Number, typer.Option("--cpus-per-rank", min=1, help="Cores of a rank.")] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="Any other directive, again.")
    ] = None,
    mode: Annotated[
        JobMode | None,
        typer.Option("--mode", help="sweep: one job; array: sweeps that share the trials; per-world-size: a job each."),
    ] = None,
    array_tasks: Annotated[Number, typer.Option("--array-tasks", min=1, help="Of --mode array; default 4.")] = None,
    max_requeues: Annotated[
        Number, typer.Option("--max-requeues", min=0, help="Of a job that stops early; default 20.")
    ] = None,
    session: Annotated[str, typer.Option("--session", help="Measuring campaign.")] = "default",
    store: Annotated[Path, typer.Option("--store", envvar=STORE_VARIABLE, help="Results store.")] = Path(
        "benchsuite-store"
    ),
    launcher: Annotated[Text, typer.Option("--launcher", help="Of the sweep.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("-o", "--override", metavar="KEY=VALUE", help="Set a field.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write the script; submit nothing.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Where scripts and output go; default STORE/jobs.")] = None,
) -> None:
    """Run a sweep as batch jobs: write the job script, check the plan, hand it to sbatch or qsub."""
    from benchsuite.batch import submit as submitting

    asked = {"nodes": nodes, "time": time, "account": account, "partition": partition, "qos": qos} | {
        "constraint": constraint,
        "gres": gres,
        "ranks_per_node": ranks_per_node,
        "cpus_per_rank": cpus_per_rank,
        "mode": mode.value if mode else None,
        "array_tasks": array_tasks,
        "max_requeues": max_requeues,
        "launcher": launcher,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    request = submitting.Request(file, session, store, overrides or [], dry_run, out)
    raise typer.Exit(submitting.submit(scheduler, request, given, option or []))


def status(
    file: Annotated[Path | None, typer.Argument(help="The sweep file; it tells what is still to come.")] = None,
    session: Annotated[str, typer.Option("--session", help="Which measuring campaign.")] = "default",
    store: Annotated[
        Path, typer.Option("--store", envvar="BENCHSUITE_STORE", help="Results store.", show_default=True)
    ] = Path("benchsuite-store"),
    overrides: Annotated[
        list[str] | None, typer.Option("-o", "--override", metavar="KEY=VALUE", help="As the sweep was given.")
    ] = None,
    format: Annotated[PlainFormat, typer.Option("--format", help="table or json.")] = PlainFormat.table,
) -> None:
    """Where a session stands: done, failed, running and by whom, waiting, and how long it may take."""
    from benchsuite.cli import status_tables as examination

    raise typer.Exit(examination.status(file, session, store, overrides or [], format))
