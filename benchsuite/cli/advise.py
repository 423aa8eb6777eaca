"""The verb `advise`: which format, reader and number of workers suit one's own data, on the path where they lie."""

import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from benchsuite.cli import data
from benchsuite.cli.common import DEFAULT_STORE, Overrides, Store
from benchsuite.cli.sweep import SweepOptions, sweep_file
from benchsuite.contract.errors import UserError, refuse
from benchsuite.contract.terminal import echo
from benchsuite.host.machine import this_machine
from benchsuite.launch.launcher import check_alone
from benchsuite.results.store.store import ResultsStore
from benchsuite.storage.dataset.manifest import is_dataset, read_manifest
from benchsuite.storage.sources import suggested_kind

FORMATS = ("files", "webdataset", "hdf5", "lmdb")
WORKLOADS = {"image": "resnet50", "volume": "unet3d", "mlm": "bert", "tokens": "gpt_neox"}
"""By what samples are."""
BATCHES = {"image": 16, "volume": 2, "mlm": 16, "tokens": 8}
MAX_SAMPLES = {"image": 2048, "volume": 64, "mlm": 8192, "tokens": 8192}
"""So many are converted at most: enough for cold trials of STEPS steps."""
STEPS, REPEATS, SHARDS = 24, 3, 16
BATCHES_OF_A_TRIAL = 50
"""That one reader takes of them, about, and holds: of few samples batches are smaller."""


def advise(
    path: Annotated[Path, typer.Argument(help="Your data: what `benchsuite data convert` takes, or a dataset.")],
    minutes: Annotated[float, typer.Option("--minutes", min=1, help="How long it may measure.")] = 5,
    out: Annotated[
        Path | None, typer.Option("--out", help="Where converted samples go; default: PATH-advise, beside the data.")
    ] = None,
    workload: Annotated[
        str | None, typer.Option("--workload", help="What the samples are for; default: by what they look like.")
    ] = None,
    store: Store = DEFAULT_STORE,
    overrides: Overrides = None,
) -> None:
    """Find the format and the workers for your data: a sample of it is converted into each, and measured cold."""
    check_alone("advise")
    began_s = time.monotonic()
    ResultsStore(store).check_writable()
    path = path.expanduser().absolute()
    kinds = {name: kind for kind, name in WORKLOADS.items()}
    if workload is not None and workload not in kinds:
        raise refuse("--workload", workload, kinds)
    kind = kinds[workload] if workload else read_manifest(path).kind if is_dataset(path) else suggested_kind(path)
    folder = (out or path.with_name(f"{path.name}-advise")).absolute()
    formats = _converted(path, folder, kind)
    file = folder / "advise.yaml"
    batch = max(1, min(BATCHES[kind], read_manifest(folder / formats[0]).num_samples // BATCHES_OF_A_TRIAL))
    file.write_text(yaml.safe_dump(sweep_of(kind, folder, formats, batch, this_machine().cores), sort_keys=False))
    left_s = 60 * minutes - (time.monotonic() - began_s)
    if left_s <= 0:
        raise UserError(f"--minutes {minutes:g}: converting took {time.monotonic() - began_s:.0f} s; give it more")
    session = f"advise-{datetime.now():%Y%m%d-%H%M%S}"
    asked = SweepOptions(file, session, store, overrides or [], until=f"+{left_s:.0f}s")
    code = sweep_file(asked)
    echo(f"the same again: benchsuite sweep {file} --session NAME · remove the samples: rm -r {folder}")
    raise typer.Exit(code)


def _converted(path: Path, folder: Path, kind: str) -> list[str]:
    """The formats that a sample of the data is there in; each is converted from the first."""
    formats = [name for name in FORMATS if kind != "tokens"] or ["tokens"]
    for name in formats:
        if is_dataset(folder / name):
            continue
        wanted = data.asked(WORKLOADS[kind], variant(), name, [])
        first = folder / formats[0]
        if name == "webdataset":
            samples = max(1, read_manifest(first).num_samples // SHARDS)
            wanted = data.asked(WORKLOADS[kind], variant(), name, [f"shard_samples={samples}"])
        if name == formats[0]:
            data.convert(path, folder / name, wanted, None, MAX_SAMPLES[kind])
        else:
            data.convert(first, folder / name, wanted, None)
    return formats


def variant() -> str:
    """The reference where there is a GPU to train it; else what a CPU trains in seconds, on samples as large."""
    if this_machine().cuda_devices:
        return "reference"
    return "tiny"


def sweep_of(kind: str, folder: Path, formats: list[str], batch: int, cores: int) -> dict[str, Any]:
    """The sweep: every format with 1, 2, 4 ... workers, as many as there are cores."""
    workers = [1 << power for power in range(5) if 1 << power <= max(2, cores)]
    return {
        "name": "advise",
        "question": "Which format, and how many workers, keep training on these data fed?",
        "base": {
            "workload": WORKLOADS[kind],
            "variant": variant(),
            "batch_size": batch,
            "data": {"root": str(folder), "cache": "cold", "shuffle_buffer": 2 * batch},
            "measure": {"steps": STEPS, "repeats": REPEATS},
        },
        "grid": {"data.format": formats, "data.num_workers": workers},
    }
