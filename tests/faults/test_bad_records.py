"""One bad record costs one record: every verb shows what stands around it, and counts it."""

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchsuite.results.store.store import SAMPLES, ResultsStore
from tests.results.made import made_record
from tests.results.scaled import ENV, made_spec

RunCli = Callable[..., tuple[int, str, str]]
NAN, HUGE, GONE = "@NaN@", "@1e999@", "@gone@"
"""Stand for what json.dumps would not write so, and for what is not there."""
DATA = {"source": "storage", "format": "files", "loader": "torch", "cache": "cold", "num_workers": 2, "staging": "none"}
MEASURE = {"steps": 20, "warmup_steps": 5, "repeats": 2, "profile": None}
OPERATION = {"count": 4, "errors": 0, "bytes": 4096, "seconds": 0.1, "max_s": 0.05, "p50_s": 0.01, "p95_s": 0.04}
PROFILE = {
    "by": "wrappers",
    "ranks": 1,
    "workers": 2,
    "threads": 2,
    "seconds": 1.0,
    "cost_s_per_call": None,
    "observed_fraction": 1.0,
    "operations": {"read": OPERATION | {"p99_s": 0.05, "latencies": {"1024": 4}}},
    "io_s": 0.1,
    "metadata_fraction": 0.0,
    "read_sizes": {"1024": 4},
    "order": {"first": 1, "onward": 2, "elsewhere": 1},
    "sequential_fraction": 0.66,
    "files": {
        "listed": 4,
        "followed": 4,
        "distinct": 4,
        "opens": 4,
        "opens_per_file": 1.0,
        "most_opens": 1,
        "reads_per_file": 1.0,
        "bytes_per_size": 1.0,
    },
    "counters": None,
    "counters_of": "workers",
    "bytes": {"delivered": 4096, "seen": 4096, "only_counted": None, "mapped": 0},
    "seen_fraction": None,
}
NODE = {"node": "here", "ranks": [0, 0], "cores": 8, "memory_bytes": 1 << 34, "facts": {"host": "here"}}
MOMENT = {"cpu_mhz": 2600.5, "users": ["ann"], "memory_limit_bytes": 1 << 34}
DEVICE = {"name": "H100", "memory_bytes": 1 << 36, "driver": "570", "vbios": None}
STEPS = {
    "load_s": 0.01,
    "h2d_s": 0.001,
    "forward_s": 0.02,
    "backward_s": 0.04,
    "communication_s": 0.005,
    "step_s_mean": 0.08,
}


def good(number: int, ranks: int = 1, session: str = "default") -> dict[str, Any]:
    """A trial as it stands in a segment, with all that verbs look at."""
    spec = made_spec(ranks, data=DATA, measure=MEASURE, device="emulated:180ms", threads_per_rank=1)
    env = {**ENV, "nodes": [NODE], "moment": MOMENT, "devices": [DEVICE], "memory_bytes": 1 << 34, "commit": "0" * 12}
    env |= {"data": {"file_system": "ext4", "server_cache": "no"}, "planned_world_sizes": [1, 2], "load_average": 0.5}
    record = made_record(
        number,
        record_id=f"record-{session}-{ranks}-{number}",
        trial_id=f"point{ranks}.{session}.{number}",
        point_id=f"point{ranks}",
        session=session,
        label=f"{ranks} ranks",
        spec=spec,
        env=env,
        dataset={"dataset_id": "d", "num_samples": 1000, "stored_bytes": 10**9, "num_files": 1000},
        figures=STEPS | {"samples_per_s": 100.0 * ranks + number, "au": 0.5, "bottleneck": "compute", "mfu": 0.1},
        io_profile=PROFILE,
        wall_s=3.0,
        samples_file=f"made{SAMPLES}",
    )
    fields: dict[str, Any] = json.loads(record.model_dump_json())
    return fields


GOOD = [good(number, ranks, session) for session in ("one", "two") for ranks in (1, 2) for number in (0, 1)]
BLOCK = {"kind": "loader", "start_s": 0.0, "end_s": 0.4, "parts": {"forward": [0.1, 0.1], "load": [0.1, 0.1]}}


def bad(place: str, changes: dict[str, Any]) -> bytes:
    """The line of a good record of a third point, of the newest session, with fields changed by where they stand."""
    fields = good(7, 4, "two") | {"record_id": place, "trial_id": place, "point_id": place}
    for name, value in changes.items():
        *parents, last = name.split("/")
        inner = fields
        for parent in parents:
            inner = inner[int(parent)] if isinstance(inner, list) else inner[parent]
        if value == GONE:
            del inner[last]
        else:
            inner[last] = value
    text = json.dumps(fields)
    return text.replace(f'"{NAN}"', "NaN").replace(f'"{HUGE}"', "1e999").encode()


CHANGES: dict[str, dict[str, Any]] = {
    "repeat beyond 64 bits": {"repeat": 2**64},
    "repeat of text": {"repeat": "many"},
    "repeat in text": {"repeat": "7"},
    "repeat below zero": {"repeat": -1},
    "order beyond 64 bits": {"order": 2**64},
    "order of thousands of digits": {"order": 10**4000},
    "no such date": {"finished_at": "2026-02-31T00:00:00+00:00"},
    "a date in words": {"finished_at": "yesterday"},
    "a start in words": {"started_at": "yesterday"},
    "a date without its zone": {"finished_at": "2026-01-01T00:00:07"},
    "an empty date": {"finished_at": ""},
    "world size as a list": {"spec/world_size": [2]},
    "world size in text": {"spec/world_size": "2"},
    "world size zero": {"spec/world_size": 0},
    "world size beyond 64 bits": {"spec/world_size": 2**64},
    "world size NaN": {"spec/world_size": NAN},
    "batch as a mapping": {"spec/batch_size": {"a": 1}},
    "batch of text": {"spec/batch_size": "many"},
    "workload as a list": {"spec/workload": ["resnet50"]},
    "variant as a number": {"spec/variant": 3},
    "data as text": {"spec/data": "files"},
    "data as a list": {"spec/data": [1]},
    "measure as a list": {"spec/measure": [1]},
    "measure profile as a list": {"spec/measure/profile": ["io"]},
    "format as a number": {"spec/data/format": 3},
    "source as a list": {"spec/data/source": ["storage"]},
    "parallelism as a list": {"spec/parallelism": ["ddp"]},
    "parallelism of unknown degrees": {"spec/parallelism": {"dp": "two"}},
    "device as a number": {"spec/device": 5},
    "threads in text": {"spec/threads_per_rank": "many"},
    "dotted keys": {"spec/data.format": [1], "spec/data.source": 5},
    "spec as a list": {"spec": []},
    "env as text": {"env": "here"},
    "cores as text": {"env/cores": "many"},
    "memory as text": {"env/memory_bytes": "much"},
    "nodes as text": {"env/nodes": "here"},
    "nodes of text": {"env/nodes": ["here"]},
    "devices as a mapping": {"env/devices": {"a": 1}},
    "libraries as a list": {"env/libraries": ["torch"]},
    "scheduler as text": {"env/scheduler": "slurm"},
    "env data as text": {"env/data": "ext4"},
    "moment as text": {"env/moment": "now"},
    "users of numbers": {"env/moment/users": [1, "ann", None]},
    "users of lists": {"env/moment/users": [[1]]},
    "planned sizes of text": {"env/planned_world_sizes": ["two"]},
    "load beyond 64 bits": {"env/load_average": 2**2000},
    "dataset as a list": {"dataset": [1]},
    "stored bytes as text": {"dataset/stored_bytes": "much"},
    "no samples": {"dataset/num_samples": 0},
    "text for a figure": {"figures/samples_per_s": "fast"},
    "a number in text": {"figures/samples_per_s": "100"},
    "a figure near the largest": {"figures/samples_per_s": 1e308},
    "a figure near the least": {"figures/step_s_mean": -1e308},
    "a figure NaN": {"figures/samples_per_s": NAN},
    "an infinite figure": {"figures/samples_per_s": HUGE},
    "a count beyond 64 bits": {"figures/delivered_bytes": 2**64},
    "figures as a list": {"figures": [1]},
    "an unknown verdict": {"figures/bottleneck": "sunspots"},
    "an unknown status": {"status": "fine"},
    "an unknown kind": {"kind": "dance"},
    "a newer schema": {"schema_version": 99},
    "schema in text": {"schema_version": "two"},
    "wall time NaN": {"wall_s": NAN},
    "caveats as text": {"caveats": "not_steady"},
    "traces of numbers": {"traces": [1]},
}
LINES: dict[str, bytes] = {name: bad(name, changes) for name, changes in CHANGES.items()} | {
    "no JSON": b"not json",
    "a list": b"[1, 2]",
    "brackets": b"[" * 60_000,
    "nothing": b"{}",
    "bytes that are no text": b'{"record_id": "\xff\xfe"}',
    "half a pair": bad("half", {"label": "@"}).replace(b'"@"', b'"\\ud800"'),
    "zeros": b"\0" * 4096,
    "digits": b"9" * 5000,
}
UNUSUAL: dict[str, bytes] = {
    name: bad(name, changes)
    for name, changes in {
        "devices of text": {"env/devices": ["H100"]},
        "an unknown profile": {"io_profile": {"x": 1}},
        "a profile of lists": {"io_profile/operations": [1]},
        "a profile with text for counts": {"io_profile/read_sizes": {"1024": "four"}},
        "a profile by an unknown tool": {"io_profile/by": "magic"},
        "an unknown figure beyond 64 bits": {"figures/later": 2**64},
        "unknown columns": {"": 1, "_segment": 5, "_offset": "x", "_record": None, "spec": {"": 1, "odd": [NAN]}},
        "unlike values": {"spec/seed": {"a": [1]}, "spec/data/later": 2**70, "env/later": HUGE, "env/site": ["x"]},
        "no spec": {"spec": {}},
        "no workload": {"spec/workload": GONE},
        "no ranks": {"spec/world_size": None},
        "no batch": {"spec/batch_size": None},
        "a batch to be found": {"spec/batch_size": "auto"},
        "no data": {"spec/data": None, "dataset": None},
        "no env": {"env": {}},
        "a node without facts": {"env/nodes": [{}]},
        "no figures": {"figures": {}},
        "no text": {"label": "", "session": "", "sweep": "", "point_id": "", "trial_id": ""},
        "odd text": {"label": "a\x00b\x1b[31m\n", "reason": "\u2028", "session": "../two"},
        "moments far apart": {"started_at": "1970-01-01T00:00:00Z", "finished_at": "9998-12-31T23:59:59+23:59"},
        "many ranks": {"spec/world_size": 2**31, "spec/parallelism": {"pp": 2**31, "microbatches": 2**31}},
        "a sidecar of another place": {"samples_file": "x" * 300},
        "a sidecar without a name": {"samples_file": "\x00"},
    }.items()
}
"""Records all the same: nothing that is known of them is wrong."""


def made_store(path: Path, *others: bytes) -> Path:
    """Two segments of good records; other lines between those of the second."""
    (path / "segments").mkdir(parents=True)
    lines = [json.dumps(fields).encode() for fields in GOOD]
    (path / "segments" / "made-1.jsonl").write_bytes(b"".join(line + b"\n" for line in lines[:4]))
    rest = [*lines[4:6], *others, *lines[6:]]
    (path / "segments" / "made-2.jsonl").write_bytes(b"".join(line + b"\n" for line in rest))
    samples = [{"record_id": fields["record_id"], "ranks": [{"rank": 0, "blocks": [BLOCK]}]} for fields in GOOD]
    (path / "segments" / f"made{SAMPLES}").write_text("".join(json.dumps(one) + "\n" for one in samples))
    return path


WRITTEN = "OUT"
"""Stands for a file or folder that a verb writes."""
VERBS: list[list[str]] = [
    ["report"],
    ["report", "--format", "md"],
    ["report", "--format", "json"],
    ["report", "--session", "latest"],
    ["report", "--html", WRITTEN],
    ["report", "--json", WRITTEN],
    ["report", "--mlperf-storage"],
    ["results", "show"],
    ["results", "show", "--by", "point", "--format", "csv"],
    ["results", "show", "--kind", "comm"],
    ["results", "query", 'select label, samples_per_s, "spec.world_size" from trials'],
    ["results", "profile"],
    ["results", "export", "csv"],
    ["results", "export", "junit"],
    ["results", "export", "prometheus"],
    ["results", "export", "latex"],
    ["results", "export", "parquet", "--out", WRITTEN],
    ["results", "export", "trace", WRITTEN],
    ["scaling"],
    ["predict", "--ranks", "4,8"],
    ["compare", "session=one", "session=two"],
    ["baseline", "set", "--session", "one"],
    ["check"],
    ["status", "--session", "two"],
    ["results", "compact"],
    ["report"],
    ["results", "show"],
    ["scaling"],
]
"""In this order: the last ones read what was compacted."""
ALIKE = (["report", "--session", "latest"], ["report", "--json", WRITTEN])
"""What only shows again what another one reads."""
SOME_AND_ALL = pytest.mark.parametrize(
    "verbs",
    [[verb for verb in VERBS if verb not in ALIKE], pytest.param(VERBS, marks=pytest.mark.full)],
    ids=["some", "all"],
)
NUM_NEWER = 1


def said(
    store: Path, run_cli: RunCli, verbs: Sequence[Sequence[str]] = VERBS
) -> Iterator[tuple[str, int, str, str, bytes | None]]:
    """What each verb says and writes of a store: code, output, what it says beside it, and the file it writes."""
    for number, verb in enumerate(verbs):
        out = store.with_name(f"{store.name}-{number}")
        code, told, errors = run_cli(*(str(out) if word == WRITTEN else word for word in verb), "--store", store)
        told, errors = (text.replace(str(out), WRITTEN).replace(str(store), "STORE") for text in (told, errors))
        yield " ".join(verb), code, told, errors, out.read_bytes() if out.is_file() else None


def without(patterns: Sequence[str], text: str) -> str:
    """A text without what differs between two stores that say the same."""
    for pattern in patterns:
        text = re.sub(pattern, "", text)
    return text


@SOME_AND_ALL
def test_every_verb_shows_the_good_ones_and_counts_the_bad(
    tmp_path: Path, run_cli: RunCli, verbs: list[list[str]]
) -> None:
    num_bad = len(LINES) - NUM_NEWER
    alone = said(made_store(tmp_path / "good"), run_cli, verbs)
    with_bad = said(made_store(tmp_path / "bad", *LINES.values()), run_cli, verbs)
    for expected, found in zip(alone, with_bad, strict=True):
        verb = expected[0]
        warnings = [line for line in found[3].splitlines() if line.startswith("warning: ")]
        counted = f"warning: {num_bad} lines of STORE could not be read; the first: made-2.jsonl, byte "
        assert any(line.startswith(counted) for line in warnings), (verb, found)
        assert f"warning: {NUM_NEWER} record of STORE of a newer schema: upgrade benchsuite" in warnings, verb
        assert found[1] == expected[1], (verb, found)
        sizes = [r"[\d.,]+ [KMG]?B", r"warning: .*\n"]
        assert without(sizes, found[2]) == without(sizes, expected[2]), verb
        assert without(sizes, found[3]) == without(sizes, expected[3]), verb
        if not verb.startswith(("report --html", "results export parquet")):  # with moments of their own
            assert found[4] == expected[4], verb


@SOME_AND_ALL
@pytest.mark.full
def test_what_is_unusual_ends_no_verb(tmp_path: Path, run_cli: RunCli, verbs: list[list[str]]) -> None:
    for verb, code, told, errors, _ in said(made_store(tmp_path / "odd", *UNUSUAL.values()), run_cli, verbs):
        assert code in (0, 2, 4), (verb, errors)
        assert code != 2 or verb.startswith(("results export trace", "report --mlperf")), (verb, errors)
        assert "warning: " not in errors, verb
        if verb == "results show":
            assert told.count("\n") > len(GOOD) + len(UNUSUAL) - 2


@pytest.mark.parametrize("name", LINES)
def test_a_bad_line_costs_no_other(tmp_path: Path, name: str) -> None:
    path = made_store(tmp_path / "store", LINES[name])
    store = ResultsStore(path)
    for read in (store.records, store.outcomes):
        assert len(read()) == len(GOOD)
        (passed,) = store.passed
        assert passed.reason and passed.newer == (name == "a newer schema")
    assert {record.record_id for record in store.records()} == {fields["record_id"] for fields in GOOD}


UNLIKE = ("unlike values", "unknown columns")
"""Parquet has one type a column."""


@pytest.mark.parametrize(
    "names",
    [[name for name in UNUSUAL if name not in UNLIKE], UNLIKE]
    + [pytest.param([name], marks=pytest.mark.full) for name in UNUSUAL],
    ids=["all but unlike ones", "unlike ones", *UNUSUAL],
)
def test_an_unusual_line_is_a_record(tmp_path: Path, names: Sequence[str]) -> None:
    """Many in one store; in the full matrix each in its own."""
    store = ResultsStore(made_store(tmp_path / "store", *(UNUSUAL[name] for name in names)))
    assert (len(store.records()), len(store.passed)) == (len(GOOD) + len(names), 0)
    frame = store.frame()
    store.compact()
    by_value = frame.astype(object), store.frame().astype(object)  # of texts, too, that lie elsewhere in memory
    assert by_value[0].equals(by_value[1]) or {*names} <= {*UNLIKE}, "from Parquet as from segments"
    known = {fields["record_id"] for fields in GOOD}
    unusual = [record for record in store.records() if record.record_id not in known]
    assert len(unusual) == len(names)
    assert all(store.steps(record) is None for record in unusual), "its sidecar has none"


SIDECARS = [
    b"not json",
    b"[" * 100_000,
    b'{"record_id": "%s"}',
    b'{"record_id": "%s", "ranks": 3}',
    b'{"record_id": "%s", "ranks": [{"rank": 0, "blocks": [{"kind": "loader", "start_s": 0, "parts": {"load": [1]}}'
    b', {"kind": "loader", "start_s": 0, "parts": {"load": [1, 2], "forward": [1]}}]}]}',
    b'{"record_id": "%s", "ranks": [{"rank": 0, "blocks": [{"kind": "loader", "start_s": NaN, "parts": {}}]}]}',
    b'{"record_id": "%s", "ranks": [{"rank": 0, "blocks": [{"kind": "loader", "start_s": 1e308, "parts": {}}]}]}',
]
"""Lines of a sidecar in place of those of trials, whose ids stand for %s."""


def test_a_bad_line_of_a_sidecar_costs_the_steps_of_one_trial(tmp_path: Path, run_cli: RunCli) -> None:
    """Of all trials but one the line is bad, each in another way."""
    path = made_store(tmp_path / "store")
    sidecar = path / "segments" / f"made{SAMPLES}"
    *struck, other = GOOD
    lines = [line.replace(b"%s", fields["record_id"].encode()) for fields, line in zip(struck, SIDECARS, strict=True)]
    sidecar.write_bytes(b"".join(line + b"\n" for line in (*lines, sidecar.read_bytes().splitlines()[-1])))
    for fields, line in zip(struck, lines, strict=True):
        words = ("results", "export", "trace", fields["trial_id"], tmp_path / "a.json", "--store", path)
        code, _, errors = run_cli(*words)
        assert code == 2 and errors.startswith("error: ") and errors.count("\n") == 1, (line[:100], errors)
    code, _, _ = run_cli("results", "export", "trace", other["trial_id"], tmp_path / "b.json", "--store", path)
    assert code == 0 and (tmp_path / "b.json").exists()
    assert run_cli("report", "--html", tmp_path / "r.html", "--store", path)[0] == 0


READ = [
    ["report", "--format", "md"],
    ["results", "show"],
    ["results", "query", "select label from trials"],
    ["results", "export", "parquet", "--out", WRITTEN],
    ["status", "--session", "two"],
    ["results", "compact"],
    ["results", "show"],
]
"""One of each way to read segments."""


def test_segments_with_names_of_any_bytes(tmp_path: Path, run_cli: RunCli) -> None:
    path = made_store(tmp_path / "store")
    segments = os.fsencode(path / "segments")
    os.rename(segments + b"/made-1.jsonl", segments + b"/made-\xff\xfe.jsonl")
    os.rename(segments + b"/made-2.jsonl", segments + b"/made-\x1b[31m\n.jsonl")
    for verb, code, _, errors, _ in said(path, run_cli, READ):
        assert code in (0, 4) and "warning" not in errors, (verb, errors)
    store = ResultsStore(path)
    assert len(store.records()) == len(GOOD) == store.compact().num_records


def test_a_pipe_is_no_sidecar(tmp_path: Path) -> None:
    path = made_store(tmp_path / "store")
    (path / "segments" / f"made{SAMPLES}").unlink()
    os.mkfifo(path / "segments" / f"made{SAMPLES}")
    store = ResultsStore(path)
    assert store.samples(store.records()[0]) is None
