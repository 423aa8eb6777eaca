"""Segments with bytes flipped, cut, doubled and strewn in: no reader crashes, and no intact record is lost."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from results.record import TrialRecord
from results.store import SAMPLES, ResultsStore
from tests.results.made import made_record

WRITERS, RECORDS = 3, 8
SEEDS, FRAME_EVERY = 12, 6
"""Damaged stores of each kind, and of how many one is read as a frame and compacted, too."""
Damage = Callable[[bytearray, random.Random], None]


def flip_bits(content: bytearray, chance: random.Random) -> None:
    for _ in range(chance.randint(1, 8)):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)


def flip_bytes(content: bytearray, chance: random.Random) -> None:
    for _ in range(chance.randint(1, 8)):
        content[chance.randrange(len(content))] = chance.randrange(256)


def cut_the_end(content: bytearray, chance: random.Random) -> None:
    del content[chance.randrange(len(content)) :]


def cut_out(content: bytearray, chance: random.Random) -> None:
    start = chance.randrange(len(content))
    del content[start : start + chance.randint(1, 3000)]


def double_a_part(content: bytearray, chance: random.Random) -> None:
    start = chance.randrange(len(content))
    content[start:start] = content[start : start + chance.randint(1, 3000)]


def double_lines(content: bytearray, chance: random.Random) -> None:
    lines = bytes(content).splitlines(keepends=True)
    content[:] = b"".join(line * chance.randint(1, 3) for line in lines)


def strew_in(content: bytearray, chance: random.Random) -> None:
    noise = [
        b"\n",
        b"\n\n\r\n",
        b"null\n",
        b"[[\n",
        b"\0" * 4096,
        b'{"record_id":',
        b"\xff\xfe\n",
        b"NaN\n",
        b"9" * 5000,
    ]
    for _ in range(chance.randint(1, 4)):
        start = chance.randrange(len(content) + 1)
        content[start:start] = chance.choice(noise)


def everything(content: bytearray, chance: random.Random) -> None:
    for _ in range(chance.randint(2, 5)):
        if content:
            chance.choice(KINDS[:-1])(content, chance)


KINDS: tuple[Damage, ...] = (
    flip_bits,
    flip_bytes,
    cut_the_end,
    cut_out,
    double_a_part,
    double_lines,
    strew_in,
    everything,
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of several segments with raw samples; records with all kinds of text and numbers."""
    path = tmp_path_factory.mktemp("sound")
    for writer in range(WRITERS):
        store = ResultsStore(path)
        for number in range(RECORDS):
            unique = {"record_id": f"w{writer}n{number}" * 4, "trial_id": f"p{number}.default.{writer}"}
            env = {"host": "ünïcode\n", "cores": 2, "moment": {"users": ["ann"], "cpu_mhz": 2600.5}}
            record = made_record(number, **unique, env=env, caveats=["not_steady"] * (number % 2))
            store.append(record, {"ranks": [{"rank": 0, "blocks": [number, 0.5]}]})
    return path


def intact(damaged: list[Path], sound: dict[bytes, str]) -> set[str]:
    """Records that still stand as whole lines, and of which there is no copy that reads otherwise."""
    lines = {line for path in damaged for line in path.read_bytes().split(b"\n")}
    whole = {name for line, name in sound.items() if line in lines}
    altered = set()
    for line in lines - sound.keys():
        try:
            altered.add(json.loads(line)["record_id"])
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
    return whole - altered


def check_reading(store: ResultsStore, originals: dict[str, TrialRecord], expected: set[str]) -> None:
    records = store.records()
    found = {record.record_id: record for record in records}
    assert len(found) == len(records), "doubles are read once"
    assert {name for name in expected if found.get(name) != originals[name]} == set(), "intact records were lost"
    for record in records:
        samples = store.samples(record)
        assert samples is None or samples["record_id"] == record.record_id


@pytest.mark.parametrize("damage", KINDS, ids=lambda damage: damage.__name__)
def test_no_reader_crashes_and_no_intact_record_is_lost(sound: Path, tmp_path: Path, damage: Damage) -> None:
    originals = {record.record_id: record for record in ResultsStore(sound).records()}
    assert len(originals) == WRITERS * RECORDS
    for seed in range(SEEDS):
        chance = random.Random(f"{damage.__name__}:{seed}")
        path = Path(shutil.copytree(sound, tmp_path / str(seed)))
        files = sorted((path / "segments").iterdir())
        segments = [file for file in files if not file.name.endswith(SAMPLES)]
        names = {line: json.loads(line)["record_id"] for file in segments for line in file.read_bytes().splitlines()}
        for file in files if damage is everything else chance.sample(files, 2):
            content = bytearray(file.read_bytes())
            damage(content, chance)
            file.write_bytes(content)
        expected = intact(segments, names)
        store = ResultsStore(path)
        check_reading(store, originals, expected)
        if seed % FRAME_EVERY == 0:
            altered = [record for record in store.records() if record != originals.get(record.record_id)]
            assert altered or expected <= {*store.frame()["record_id"]}, "an altered record may be a trial's latest"
            store.sql("SELECT count(*), max(samples_per_s) FROM trials")
            store.compact()
            check_reading(store, originals, expected)
        shutil.rmtree(path)


def test_a_verb_warns_of_lines_that_it_passed_over(
    sound: Path, tmp_path: Path, run_cli: Callable[..., tuple[int, str, str]]
) -> None:
    path = Path(shutil.copytree(sound, tmp_path / "store"))
    segment = next(file for file in sorted((path / "segments").iterdir()) if not file.name.endswith(SAMPLES))
    segment.write_bytes(segment.read_bytes()[:-40] + b"\nnot json\n")
    code, out, err = run_cli("report", "--store", path, "--format", "json")
    assert code == 0 and f"warning: 2 lines of {path} could not be read" in err
    assert len(json.loads(out)) >= 1
