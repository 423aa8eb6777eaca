"""The verb `plan` and those below it, as the entry point `benchsuite.verbs` names them."""

import typer

from benchsuite_plan.cli import reference, table
from benchsuite_plan.cli.plan import plan

EXAMPLES = """\b
Examples:
  benchsuite plan --model gpt-neox-20b --machine polaris --devices 96 --batch 1536
  benchsuite plan --schedule zb-h1 --pipeline-parallel 4 --microbatches 8
  benchsuite plan list machines --yaml polaris
  benchsuite plan table measured.csv --ranks 64"""

app = typer.Typer(add_completion=False, rich_markup_mode=None)
app.callback(invoke_without_command=True, epilog=EXAMPLES)(plan)
app.command("list")(reference.list_)
app.command("schema")(reference.schema)
app.command("table", epilog=table.EPILOG)(table.table)
