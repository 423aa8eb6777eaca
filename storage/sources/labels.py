"""Classes of images by what lies beside them: .cls, a field of .json, a number in .txt; else by their folders.

Labels that are there are used, or refused with where they were looked for: none may become class 0 unnoticed.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from benchsuite.storage.errors import DatasetError, told
from benchsuite.storage.sources.classes import Classes

BESIDE = ("cls", "json", "txt")
"""Files and members that may hold the class of the image whose name they share."""
FIELDS = ("label", "class", "cls")
"""What the class is called in a .json."""
NO_FIELD = "none"
"""Given for the name of a field: what lies beside the images holds no classes."""
FOLDER = "its folder"
_TABLES = (".csv", ".tsv", ".json", ".jsonl", ".xml", ".parquet", ".arff")
_NOTES = (".txt", ".cls", ".npy", ".mat", ".pkl", ".pickle", ".yaml", ".yml")
_TELLING = re.compile(
    r"label|class|annot|target|categor|synset|metadata|ground.?truth|\b(train|val|test|list|split|map|gt|lbl)",
    re.IGNORECASE,
)
"""What files of notes are called that hold labels, such as val.txt or synset_words.txt."""
MAX_NAMED = 8
MAX_LOOKED_AT = 20


@dataclass(frozen=True)
class Labels:
    """Where classes are looked for."""

    folders: Classes
    has_cls: bool = False
    """Some images have a .cls: then all must."""
    field: str | None = None
    """The field of the .json that was asked for, or NO_FIELD."""
    origin: str = FOLDER
    """Where all classes come from."""

    def label(self, name: str, beside: Mapping[str, bytes], where: str) -> int:
        """The class of an image.

        Raises:
            DatasetError: as `of`, or it comes from elsewhere than that of the others.
        """
        label, origin = self.of(name, beside, where)
        if origin == FOLDER != self.origin:
            raise DatasetError(f"{where}: no label; others have {self.origin}")
        if origin != self.origin:
            raise DatasetError(f"{where}: its class comes from {origin}, that of others from {self.origin}")
        return label

    def of(self, name: str, beside: Mapping[str, bytes], where: str) -> tuple[int, str]:
        """The class of an image, and where it comes from.

        Raises:
            DatasetError: it is no number, several fields could be it, or what lies beside the image holds none.
        """
        if self.field == NO_FIELD:
            return self.folders.of(name), FOLDER
        if self.has_cls and self.field is None:
            if "cls" not in beside:
                raise DatasetError(f"{where} lacks .cls, which others have")
            return _class_in_cls(beside["cls"], where), ".cls"
        facts = _facts(beside, where)
        if self.field is not None:
            return _asked(facts, self.field, where), f"{self.field} in .json"
        if (field := _field_of(facts, where)) is not None:
            return _number(facts[field]), f"{field} in .json"  # type: ignore[return-value]
        text = beside.get("txt", b"").strip()
        if text.isdigit():
            return int(text), ".txt"
        if len(self.folders.numbers) < 2 and (facts or text):
            raise DatasetError(f"{where}: {_unlabelled(facts, text)}")
        return self.folders.of(name), FOLDER


def settled(labels: Labels, looked_at: Iterable[tuple[str, Mapping[str, bytes], str]], may_skip: bool) -> Labels:
    """Where classes come from, by the first image beside which something lies, as `Labels.of` takes it.

    Raises:
        DatasetError: as `Labels.of`. Where images may be skipped, the first MAX_LOOKED_AT are asked.
    """
    failure = None
    for name, beside, where in islice(looked_at, MAX_LOOKED_AT if may_skip else 1):
        try:
            return replace(labels, origin=labels.of(name, beside, where)[1])
        except DatasetError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return labels


def _class_in_cls(content: bytes, where: str) -> int:
    try:
        return int(content)
    except ValueError:
        held = _short(content.decode(errors="replace"))
        raise DatasetError(f"{where}: its .cls holds {held}, not a whole number") from None


def _facts(beside: Mapping[str, bytes], where: str) -> dict[str, Any]:
    """What the .json beside an image says; nothing where there is none, or no mapping."""
    if "json" not in beside:
        return {}
    with told(f"{where}: .json", ValueError, RecursionError):
        facts = json.loads(beside["json"])
    return {str(name): value for name, value in facts.items()} if isinstance(facts, dict) else {"": facts}


def _number(value: object) -> int | None:
    """A class as a .json says it: a whole number, or its digits."""
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdecimal():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _asked(facts: Mapping[str, Any], field: str, where: str) -> int:
    number = _number(facts.get(field))
    if number is not None:
        return number
    if field in facts:
        raise DatasetError(f"{where}: {field} in its .json is {_short(facts[field])}, not a whole number")
    raise DatasetError(f"{where}: its .json has no field {field!r}; found {_named(facts) or 'nothing'}")


def _field_of(facts: Mapping[str, Any], where: str) -> str | None:
    """The field that holds the class; None where no field holds a number.

    Raises:
        DatasetError: several could be it, or one that has another name.
    """
    numbers = {name: number for name, value in facts.items() if (number := _number(value)) is not None}
    usual = [name for name in numbers if name.lower() in FIELDS]
    if len({numbers[name] for name in usual}) == 1:
        return usual[0]
    if usual or any(not isinstance(facts[name], str) for name in numbers):
        found = ", ".join(f"{name} ({number})" for name, number in [*numbers.items()][:MAX_NAMED])
        missing = "differ" if usual else f"have no {', '.join(FIELDS)} among them"
        raise DatasetError(f"{where}: the numbers in its .json {missing}: {found}; {_choose()}")
    return None


def _choose() -> str:
    return f"give --label-field NAME, or --label-field {NO_FIELD} where none of them is the class"


def _unlabelled(facts: Mapping[str, Any], text: bytes) -> str:
    """What lies beside an image that has no class."""
    what = f"its .json holds {_named(facts)}" if facts else f"its .txt holds {_short(text.decode(errors='replace'))}"
    looked_for = f".cls, {', '.join(FIELDS)} in .json, a number in .txt, and a folder per class"
    return f"no label found: looked for {looked_for}; {what}; {_choose()}"


def _named(facts: Mapping[str, Any]) -> str:
    shown = [f"{name} ({_short(value)})" if name.lower() in FIELDS else name for name, value in facts.items()]
    return ", ".join(shown[:MAX_NAMED]) + (", ..." if len(shown) > MAX_NAMED else "")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def refuse_unread(source: object, names: Iterable[str], labels: Labels) -> None:
    """Refuse files that may hold labels and are not read, where nothing else says the classes.

    Raises:
        DatasetError: which files.
    """
    if len(labels.folders.numbers) > 1 or labels.field == NO_FIELD:
        return
    found = [name for name in names if may_hold_labels(name)]
    if found:
        named = ", ".join(found[:3]) + (" and others" if len(found) > 3 else "")
        what = f"{named} may hold labels and {'is' if len(found) == 1 else 'are'} not read"
        remedy = f"make a folder per class, or give --label-field {NO_FIELD} if no labels are meant"
        raise DatasetError(
            f"{source}: no labels found: looked for .cls, .json and .txt of each image's name, and for a folder per "
            f"class; {what}: {remedy}"
        )


def may_hold_labels(name: str) -> bool:
    """Whether a file's name lets one think of labels: a table, or notes that are called so."""
    suffix = f".{name.rpartition('.')[2].lower()}"
    return suffix in _TABLES or (suffix in _NOTES and _TELLING.search(name) is not None)
