"""Words of sentences, and commands as they are to be typed again."""

import os
import subprocess
from pathlib import Path

import pytest

from benchsuite.results.render.words import typed


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("/data/photos", "/data/photos"),
        ("my photos", "'my photos'"),
        ("it's $HOME; rm -r *", "'it'\"'\"'s $HOME; rm -r *'"),
        ("a\nb\\c'd", r"$'a\x0ab\x5cc\x27d'"),
        ("\x1b[2Jä", r"$'\x1b[2Jä'"),
        ("c\udcffd", r"$'c\xffd'"),
        ("", "''"),
        (Path("/a b"), "'/a b'"),
    ],
)
def test_a_shell_takes_what_is_shown_for_the_word(word: str, shown: str) -> None:
    assert typed(word) == shown
    printed = subprocess.run(["bash", "-c", f"printf %s {shown}"], capture_output=True, check=True).stdout
    assert printed == os.fsencode(word)


def test_several_words() -> None:
    assert typed("benchsuite", "report", "--store", Path("a b")) == "benchsuite report --store 'a b'"
