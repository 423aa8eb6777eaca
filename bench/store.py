"""(m) The store at scale: compaction of a million records, then a query and a frame over them."""

import json
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.tables import goal
from benchsuite.results.store.record import TrialFigures, TrialRecord

MAX_COMPACT_S, MAX_COMPACT_BYTES = 120.0, 2e9
MAX_QUERY_S, MAX_FRAME_S = 1.0, 2.0
NUM_RECORDS = 1_000_000
NUM_SEGMENTS = 100
NUM_SESSIONS = 10
RETRIED_EVERY = 100
"""One record in so many is a second attempt at the trial before it."""
STEPS = 20
FIGURES = 8
"""Different numbers in a record; its other figures repeat them."""
QUERY = """
    SELECT "spec.workload" AS workload, "spec.data.format" AS format, count(*) AS trials, median(au) AS au,
        avg(samples_per_s) AS samples_per_s
    FROM trials WHERE status = 'ok' AND "spec.world_size" >= 4 GROUP BY ALL ORDER BY ALL"""
COLUMNS = [
    "trial_id",
    "session",
    "status",
    "caveats",
    "samples_per_s",
    "au",
    "step_s_mean",
    "load_s",
    "bottleneck",
    "spec.workload",
    "spec.data.format",
    "spec.world_size",
    "env.host",
]
CHILD = """
import json, resource, sys, time
start = time.perf_counter()
from benchsuite.results.store.store import ResultsStore
store, arguments = ResultsStore(sys.argv[1]), json.loads(sys.argv[3])
imported = time.perf_counter()
found = getattr(store, sys.argv[2])(**arguments)
first = time.perf_counter()
again = None
if sys.argv[2] != "compact":
    getattr(store, sys.argv[2])(**arguments)
    again = time.perf_counter() - first
count = found.num_records if again is None else len(found)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
total = int(found["trials"].sum()) if again is not None and "trials" in found else None
print(json.dumps([first - imported, again, count, total, peak]))
"""
WORKLOADS = ("resnet50", "unet3d", "bert", "gpt_neox")
FORMATS = ("files", "webdataset", "hdf5", "lmdb")
WORLD_SIZES = (1, 2, 4, 8)


@dataclass(frozen=True)
class Call:
    """What one call cost in a process of its own: the first time with its imports, and the second."""

    seconds: float
    again_s: float | None
    num_rows: int
    num_trials: int | None
    peak_bytes: int


def called(store: Path, method: str, **arguments: Any) -> Call:
    """Call a method of a store in a new process."""
    command = [sys.executable, "-c", CHILD, str(store), method, json.dumps(arguments)]
    return Call(*json.loads(subprocess.run(command, check=True, capture_output=True).stdout))


def template() -> str:
    """A record as a trial of one rank leaves it, as a text to be filled in: `%(name)s` is what varies."""
    data = {"root": "/data/imagenet", "format": "@format@", "loader": "torch", "source": "storage", "cache": "warm"}
    data |= {"staging": "none", "staging_dir": None, "num_workers": 4, "prefetch_factor": 2, "shuffle": True}
    measure = {"steps": STEPS, "warmup_steps": 5, "epochs": None, "repeats": 6, "timeout_s": 900, "seed": 0}
    spec = {"workload": "@workload@", "variant": "tiny", "data": data, "device": "cpu", "precision": "fp32"}
    spec |= {"parallelism": "ddp", "world_size": 1, "batch_size": 4, "measure": measure}
    libraries = {"torch": "2.13.0", "numpy": "2.4.6", "simplejpeg": "1.9.0", "webdataset": "1.0.2", "h5py": "3.16.0"}
    env = {"benchsuite": "0.1.0", "commit": "25ac8fd88c26", "host": "@host@", "os": "Linux-6.18", "cores": 2}
    env |= {"memory_bytes": 25276510208, "devices": [], "libraries": libraries, "load_average": 0.0}
    texts = ("record_id", "trial_id", "point_id", "session", "status", "samples_file")
    fields: dict[str, Any] = {name: f"@{name}@" for name in texts}
    fields |= {"sweep": "million", "question": "Does the store hold a million records?", "label": "@format@"}
    moment = "2026-01-01T00:00:00.000000+00:00"
    fields |= {"repeat": 0, "started_at": moment, "finished_at": moment, "spec": spec, "env": env}
    fields["dataset"] = {"dataset_id": "0edfedfed38f2266f6dca05b2a293db1", "format": "@format@", "num_samples": 96}
    record = TrialRecord.model_validate(fields | {"status": "ok"}).model_dump()
    record |= {"status": "@status@", "started_at": "@moment@", "finished_at": "@moment@"}
    record["spec"]["world_size"], record["env"]["load_average"] = "@world_size@", "@figure0@"
    numbers = [name for name, field in TrialFigures.model_fields.items() if field.annotation == float | None]
    record["figures"] |= {name: f"@figure{place % FIGURES}@" for place, name in enumerate(numbers)} | {
        "parameters": 25557032,
        "bottleneck": "compute",
    }
    text = json.dumps(record).replace("%", "%%")
    return re.sub("@([a-z_0-9]+)@", r"%(\1)s", re.sub('"@(figure[0-9]|world_size)@"', r"%(\1)s", text))


def raw_samples(draw: random.Random) -> str:
    """What one rank measured in its steps, less the opening brace and the record's id."""
    parts = {
        part: [draw.random() / 10 for _ in range(STEPS)] for part in ("load", "h2d", "forward", "backward", "optimizer")
    }
    return json.dumps({"ranks": [{"rank": 0, "status": "ok", "blocks": [{"kind": "loader", "parts": parts}]}]})[1:]


def values(number: int, samples_file: str, figures: Sequence[float]) -> dict[str, Any]:
    """What varies in a record: one in RETRIED_EVERY is a second attempt, after a failed first."""
    trial = number - (number % RETRIED_EVERY == RETRIED_EVERY - 1)
    seconds = f"{number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}"
    return {
        "format": FORMATS[trial % 4],
        "workload": WORKLOADS[trial // 4 % 4],
        "world_size": WORLD_SIZES[trial // 16 % 4],
        "host": f"node{trial % 97}",
        "status": "failed" if number % RETRIED_EVERY == RETRIED_EVERY - 2 else "ok",
        "record_id": f"{number:032x}",
        "trial_id": f"{trial // 6:012x}.s{trial % NUM_SESSIONS}.{trial % 6}",
        "point_id": f"{trial // 6:012x}",
        "session": f"s{trial % NUM_SESSIONS}",
        "moment": f"2026-01-{1 + number // 86_400:02d}T{seconds}.000000+00:00",
        "samples_file": samples_file,
        **{f"figure{place}": repr(figure) for place, figure in enumerate(figures)},
    }


def make(store: Path, num_records: int = NUM_RECORDS) -> int:
    """Write segments directly, as that many attempts would have; how many trials they are attempts at."""
    folder = store / "segments"
    folder.mkdir(parents=True)
    text, draw = template(), random.Random(0)
    raw = [raw_samples(draw) for _ in range(100)]
    each = num_records // NUM_SEGMENTS
    for index in range(NUM_SEGMENTS):
        sidecar = folder / f"million-{index:03d}.samples.jsonl"
        with sidecar.with_name(f"million-{index:03d}.jsonl").open("w") as out, sidecar.open("w") as samples:
            for number in range(index * each, (index + 1) * each):
                samples.write(f'{{"record_id": "{number:032x}", {draw.choice(raw)}\n')
                figures = [draw.random() for _ in range(FIGURES)]
                out.write(text % values(number, sidecar.name, figures) + "\n")
    return num_records - num_records // RETRIED_EVERY


def folder_bytes(folder: Path, pattern: str) -> int:
    """The size of the files in a folder that a pattern fits."""
    return sum(path.stat().st_size for path in folder.glob(pattern))


def show(folder: Path) -> None:
    """Print what compaction, a query and a frame take."""
    path = folder / "store"
    num_trials = make(path)
    size, raw = (folder_bytes(path / "segments", name) / 1e9 for name in ("*[0-9].jsonl", "*.samples.jsonl"))
    print(f"(m) {NUM_RECORDS:,} records ({size:.1f} GB, and {raw:.1f} GB raw samples) of {num_trials:,} trials")
    done = called(path, "compact")
    assert done.num_rows == NUM_RECORDS
    parquet = folder_bytes(path / "parquet", "*.parquet") / 1e9
    print(
        f"    results compact: {done.seconds:.1f} s, {done.peak_bytes / 1e9:.2f} GB of memory, {parquet:.2f} GB Parquet"
    )
    met = done.seconds <= MAX_COMPACT_S and done.peak_bytes <= MAX_COMPACT_BYTES
    print(goal(met, f"<= {MAX_COMPACT_S:.0f} s, <= {MAX_COMPACT_BYTES / 1e9:.0f} GB"))
    query = called(path, "sql", query=QUERY)
    assert query.again_s is not None and query.num_trials == num_trials // 2
    print(f"    filter and group by two columns: {query.again_s:.2f} s; first time with imports {query.seconds:.2f} s")
    print(goal(query.again_s <= MAX_QUERY_S, f"<= {MAX_QUERY_S:.0f} s"))
    frame = called(path, "frame", columns=COLUMNS, where="session = 's3'")
    assert frame.again_s is not None
    what = f"frame() of {frame.num_rows:,} rows, {len(COLUMNS)} columns"
    print(f"    {what}: {frame.again_s:.2f} s; first time with imports {frame.seconds:.2f} s")
    print(goal(frame.again_s <= MAX_FRAME_S and frame.num_rows >= 99_000, f"<= {MAX_FRAME_S:.0f} s"))
