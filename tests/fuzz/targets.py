"""What is fuzzed, and what must hold whatever comes: no traceback, no hang, documented exit codes, neighbours read."""

import json
import shutil
import socket
import subprocess
import threading
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from benchsuite.cli import sweep as _imported_before_memory_is_bounded  # noqa: F401
from benchsuite.launch.link import Link
from benchsuite.launch.rendezvous import Invitation, Rendezvous, answer
from benchsuite.storage.create.convert import in_order
from benchsuite.storage.dataset.manifest import open_dataset
from benchsuite.storage.dataset.opened import LocalFile
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.formats.tf_example import decode, encode
from benchsuite.storage.formats.tfrecord import _record, records
from benchsuite.storage.formats.tokens import IDX, read_index
from tests.fuzz.arguments import ARGUMENTS, check_arguments
from tests.fuzz.mutations import byte_changes, changed_bytes, changed_tree, tree_changes
from tests.fuzz.running import COMMAND, Target, check_said, command
from tests.fuzz.segments import SEGMENTS, check_segments
from tests.storage.samples import small_shards, some_samples, store

SWEEP: dict[str, Any] = {
    "name": "s",
    "question": "why?",
    "base": {
        "workload": "resnet50",
        "variant": "tiny",
        "batch_size": 4,
        "data": {"source": "synthetic", "num_workers": 1, "shuffle": True},
        "measure": {"steps": 3, "repeats": 2, "timeout_s": 9.5},
    },
    "grid": {"world_size": [1, 2], "parallelism": ["none", "ddp", {"dp": 2}]},
    "zip": {"precision": ["fp32", "bf16"], "measure.seed": [1, 2]},
    "exclude": [{"world_size": 2, "parallelism": "none"}],
    "include": [{"world_size": 1, "data.num_workers": 0}],
    "scaling": "weak",
}
YAML_TEXT = "base: &b {workload: resnet50, variant: tiny, batch_size: 4, data: {source: synthetic}}\ngrid:\n  a: [*b]\n"
ONE_IN_A_HUNDRED = st.integers(0, 99).map(lambda number: number == 57)


def check_sweep(example: tuple[list[Any], list[Any], str, bool], folder: Path) -> None:
    tree, changes, soup, apart = example
    text = soup or yaml.safe_dump(changed_tree(SWEEP, tree), allow_unicode=True)
    path = folder / "mine.yaml"
    path.write_bytes(changed_bytes(text.encode(errors="surrogateescape"), changes))
    words = ("sweep", str(path), "--dry-run", "--store", str(folder / "store"))
    if apart:
        ran = subprocess.run([*COMMAND, *words], capture_output=True, text=True, errors="replace", timeout=60)
        check_said(ran.returncode, ran.stderr, (0, 2, 4))
    else:
        code, _, err = command(*words)
        check_said(code, err, (0, 2, 4))
    assert not (folder / "store").exists(), "a dry run writes nothing"


soup = st.text(alphabet="[]{}:,&*-?|>!%@'\"\n #<=a1.~\t", max_size=60).map(lambda text: text and YAML_TEXT + text)
SWEEPS = st.tuples(tree_changes, byte_changes, st.one_of(st.just(""), soup), ONE_IN_A_HUNDRED)


@cache
def dataset(folder: Path, name: str, kind: str) -> Path:
    """A small sound dataset, made once."""
    return store(some_samples(6, kind), kind, folder / f"sound-{name}", name, small_shards(name)).folder


def damaged_copy(folder: Path, name: str, kind: str, file: str, content: bytes) -> Path:
    """A copy of a dataset in which one file holds something else; files are linked where they are the same."""
    copy = folder / "damaged"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(dataset(folder, name, kind), copy)
    (copy / file).write_bytes(content)
    return copy


def check_manifest(example: tuple[str, list[Any], list[Any]], folder: Path) -> None:
    name, tree, changes = example
    kind = "tokens" if name == "tokens" else "image"
    sound = dataset(folder, name, kind)
    value = changed_tree(json.loads((sound / "manifest.json").read_text()), tree)
    content = changed_bytes(json.dumps(value).encode(), changes)
    copy = damaged_copy(folder, name, kind, "manifest.json", content)
    code, _, err = command("data", "verify", copy)
    check_said(code, err, (0, 2))
    code, _, err = command("data", "inspect", copy, "--format", "json")
    check_said(code, err, (0, 2))
    sweep = folder / "reads.yaml"
    root = {"root": str(copy), "format": name, "num_workers": 1}
    of_it = SWEEP["base"] | {"workload": "gpt_neox" if kind == "tokens" else "resnet50", "data": root}
    sweep.write_text(yaml.safe_dump({"base": of_it}))
    code, _, err = command("sweep", sweep, "--dry-run", "--store", folder / "store")
    check_said(code, err, (0, 2, 4))
    assert command("data", "verify", sound)[0] == 0, "its neighbour is read as before"


MANIFESTS = st.tuples(
    st.sampled_from(("files", "webdataset", "tfrecord", "parquet", "mds", "tokens")), tree_changes, byte_changes
)


def check_idx(changes: list[Any], folder: Path) -> None:
    sound = dataset(folder, "tokens", "tokens")
    content = (sound / IDX).read_bytes()
    copy = damaged_copy(folder, "tokens", "tokens", IDX, changed_bytes(content, changes))
    whole = (copy / IDX).read_bytes() == content
    try:
        read_index(copy / IDX)
        found = [sample.key for sample in in_order(open_dataset(copy))]
        assert not whole or len(found) == 6
    except DatasetError as error:
        assert not whole and "\n" not in str(error)
    code, _, err = command("data", "verify", copy)
    check_said(code, err, (0,) if whole else (0, 2))
    converted = folder / "converted"
    shutil.rmtree(converted, ignore_errors=True)
    code, _, err = command(
        "data", "convert", copy, converted, "--workload", "gpt_neox", "--variant", "tiny", "--format", "tfrecord"
    )
    check_said(code, err, (0, 2))
    assert command("data", "verify", sound)[0] == 0


def check_example(example: tuple[str, list[Any]], folder: Path) -> None:
    """A damaged record between two sound ones: it is told as damage or read, and both neighbours are what they were."""
    kind, changes = example
    sample = some_samples(1, kind)[0]
    payload = changed_bytes(b"".join(encode(sample)), changes)
    good = b"".join(bytes(part) for part in encode(sample))
    path = folder / "shard.tfrecord"
    path.write_bytes(b"".join(bytes(part) for each in (good, payload, good) for part in _record([each])))
    with LocalFile(path) as file:
        found = [bytes(each) for each in records(file)]
    assert found == [good, payload, good]
    for number, each in enumerate(found):
        try:
            key, fields = decode(kind, each, f"record {number}")
            assert number == 1 or (key == sample.key and fields.keys() == sample.fields.keys())
        except DatasetError as error:
            assert number == 1 and str(error).startswith("record 1") and "\n" not in str(error)


EXAMPLES = st.tuples(st.sampled_from(("image", "volume", "mlm", "tokens")), byte_changes)
MESSAGES = (b'{"rank": 0, "phase": "steps"}\n', b'{"spec": {"workload": "resnet50"}, "ranks": [0, 1]}\n', b"{}\n")


def check_link(example: tuple[list[Any], bool], folder: Path) -> None:
    """What comes over a link is messages, or its peer is given up; never an exception, never a wait without end."""
    changes, cut = example
    mine, theirs = socket.socketpair()
    link = Link(mine)
    try:
        theirs.setblocking(False)
        sent = MESSAGES[0] + changed_bytes(b"".join(MESSAGES), changes)
        theirs.send(sent)
        if cut:
            theirs.close()
        assert link.receive(1) == json.loads(MESSAGES[0]), "what came before damage is read"
        for _ in range(sent.count(b"\n") + 1):
            try:
                said = link.receive(0.01)
            except TimeoutError:
                assert not cut
                break
            assert said is None or isinstance(said, dict)
            if said is None:
                break
    finally:
        theirs.close()
        link.close()


def check_meeting(changes: list[Any], folder: Path) -> None:
    """Of two that come one talks rubbish, which may be as long as a proof: it is not let in, the other is."""
    meeting = Rendezvous()
    try:
        stranger = socket.create_connection(("127.0.0.1", meeting.invitation.port))
        stranger.sendall(changed_bytes(b"n" * 32 + b"p" * 32 + b"".join(MESSAGES), changes))
        agent = threading.Thread(target=_come, args=[meeting.invitation])
        agent.start()
        ((link, said),) = meeting.gather(1, 5)
        agent.join()
        link.close()
        assert said == {"node": "a"}
        stranger.close()
    finally:
        meeting.close()


def _come(invitation: Invitation) -> None:
    link = answer(invitation)
    assert link is not None and link.send({"node": "a"})
    link.close()


TARGETS = (
    Target("sweeps", SWEEPS, check_sweep),
    Target("segments", SEGMENTS, check_segments),
    Target("manifests", MANIFESTS, check_manifest),
    Target("token-indexes", byte_changes, check_idx),
    Target("examples", EXAMPLES, check_example),
    Target("links", st.tuples(byte_changes, st.booleans()), check_link),
    Target("meetings", byte_changes, check_meeting),
    Target("arguments", ARGUMENTS, check_arguments),
)
