"""Command lines: the verbs' own options with other values, in other orders, in folders that hold a little of all."""

import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from benchsuite.cli.app import VERBS, added_verbs, load_verb
from benchsuite.results.store.store import ResultsStore
from tests.fuzz.running import COMMAND, check_said, command, inside
from tests.results.made import made_record

WORKS = frozenset(
    {"demo", "submit", "search", "advise", "data generate", "data convert", "data stage", "data prepare"}
    | {"probe storage", "probe comm", "probe checkpoint", "probe nodes", "probe device", "nightly init", "nightly run"}
)
"""Verbs that make, copy, measure or start something: they are not for words by chance."""
ALWAYS = {"sweep": ["--dry-run"], "trial": ["--validate"]}
WORDS = (
    *("mine.yaml", "store", "folder", "gone", "", ".", "-", "--", "/", "/dev/zero", "a\nb\x1b[31m", "é" * 200, "*"),
    *("0", "1", "-1", "2", "8", "64", "1e308", "nan", "inf", "9" * 400, "1:30", "0x10", "[[[[", "{a: 1}", "a=1", "="),
    *("json", "csv", "md", "table", "trial", "point", "resnet50", "gpt3-1.3b", "dgx-a100", "latest", "select 1"),
    *("batch_size=1:30", "measure.steps=[1,2", "world_size=1000000000", "data.format=hdf5", "default", "s/../t"),
)


@cache
def verbs() -> dict[str, tuple[str, ...]]:
    """Each verb that only reads, and its options."""
    found: dict[str, tuple[str, ...]] = {}

    def look_at(verb: str, command: Any) -> None:
        for name, each in getattr(command, "commands", {}).items():
            look_at(f"{verb} {name}", each)
        if (not hasattr(command, "commands") or command.invoke_without_command) and verb not in WORKS:
            found[verb] = tuple(
                option for parameter in command.params for option in parameter.opts if option[:1] == "-"
            )

    for name in (*VERBS, *added_verbs()):
        look_at(name, load_verb(name))
    return found


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    """A verb and words after it, mostly options of its own."""
    verb = draw(st.sampled_from(sorted(verbs())))
    word = st.sampled_from(WORDS)
    option = st.sampled_from(verbs()[verb] or ("--help",))
    parts = draw(st.lists(st.one_of(st.tuples(option, word), st.tuples(word), st.tuples(option)), max_size=5))
    return [*verb.split(), *ALWAYS.get(verb, []), *(each for part in parts for each in part)]


ARGUMENTS = st.tuples(lines(), st.integers(0, 99).map(lambda number: number == 57))


def prepared(folder: Path) -> Path:
    """A folder with a sweep file, a store and a folder."""
    here = folder / "here"
    if not here.exists():
        (here / "folder").mkdir(parents=True)
        (here / "mine.yaml").write_text(
            "base: {workload: resnet50, variant: tiny, batch_size: 4, data: {source: synthetic}}\n"
        )
        store = ResultsStore(here / "store")
        for number in range(3):
            store.append(made_record(number))
    return here


def check_arguments(example: tuple[list[str], bool], folder: Path) -> None:
    arguments, apart = example
    with inside(prepared(folder)):
        if apart and not any("\0" in word for word in arguments):
            ran = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, errors="replace", timeout=60)
            code, err = ran.returncode, ran.stderr
        else:
            code, _, err = command(*arguments)
    check_said(code, err, (0, 2, 3, 4, 10))
