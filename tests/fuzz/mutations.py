"""Changes to what is valid, as data that hypothesis can shrink: of bytes, and of trees of values."""

import copy
from typing import Any

from hypothesis import strategies as st

NOISE = (
    b"\n",
    b"\r\n\n",
    b"null\n",
    b"[[\n",
    b"\0" * 512,
    b"{",
    b'{"record_id":',
    b"\xff\xfe\n",
    b"NaN",
    b"9" * 5000,
    b"[" * 5000,
    b"\xff" * 9,
    b"\x80" * 12,
    b"-1",
    b"\x1b[31m",
    b"&a [*a]",
    b"1e999",
    b"\\ud800",
)
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1 << 31,
    1 << 63,
    10**40,
    1e308,
    -0.5,
    float("nan"),
    float("inf"),
    "",
    "x",
    "x" * 3000,
    "1:30",
    "on",
    "a\nb\x1b[31m",
    "\0",
    "../../etc",
    "é\u202e",
    [],
    {},
    [[[[[[]]]]]],
    [1, "a", None],
    {"": {"": {}}},
)
KINDS = ("flip", "set", "cut", "remove", "double", "insert", "swap", "repeat line")
Bytes = tuple[str, int, int, int]
Tree = tuple[str, int, int]

byte_changes = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 1 << 20), st.integers(0, 400), st.integers(0, 255)), max_size=5
)
tree_changes = st.lists(
    st.tuples(st.sampled_from(("value", "key", "delete", "wrap", "copy")), st.integers(0, 999), st.integers(0, 99)),
    max_size=4,
)


def changed_bytes(content: bytes, changes: list[Bytes]) -> bytes:
    """The content with changes, one after another; places and sizes wrap around."""
    made = bytearray(content)
    for kind, place, size, value in changes:
        at = place % (len(made) + 1)
        if kind == "flip" and at < len(made):
            made[at] ^= 1 << value % 8
        elif kind == "set" and at < len(made):
            made[at] = value
        elif kind == "cut":
            del made[at:]
        elif kind == "remove":
            del made[at : at + size]
        elif kind == "double":
            made[at:at] = made[at : at + size]
        elif kind == "insert":
            made[at:at] = NOISE[value % len(NOISE)]
        elif kind == "swap":
            made[at : at + size], made[:0] = b"", made[at : at + size]
        elif kind == "repeat line":
            lines = bytes(made).splitlines(keepends=True) or [b""]
            made += lines[at % len(lines)] * (value % 3)
    return bytes(made)


def changed_tree(value: Any, changes: list[Tree]) -> Any:
    """A value of mappings and lists with changes: other values and keys, parts removed, wrapped or put elsewhere."""
    made = {"": copy.deepcopy(value)}
    for kind, place, choice in changes:
        spots = [*_spots(made)]
        inside, key = spots[place % len(spots)]
        if kind == "value":
            inside[key] = copy.deepcopy(VALUES[choice % len(VALUES)])
        elif kind == "wrap":
            inside[key] = [inside[key]] if choice % 2 else {"a": inside[key]}
        elif kind == "copy":
            other, name = spots[choice % len(spots)]
            inside[key] = copy.deepcopy(other[name])
        elif key != "" and kind == "delete":
            del inside[key]
        elif key != "" and isinstance(inside, dict):
            inside[f"{key}x" if choice % 2 else str(VALUES[choice % len(VALUES)])] = inside.pop(key)
    return made[""]


def _spots(value: Any) -> Any:
    """Every place in a tree: what it lies in, and by what key."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _spots(value[key])
