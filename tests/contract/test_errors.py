"""User-facing errors: what was given, what is allowed, the nearest match."""

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from benchsuite.contract.errors import UserError, dotted_keys, in_words, nearest, refuse


class Wheel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    spokes: int = 36


class Bicycle(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    front: Wheel = Wheel()
    colour: str


def told(value: object) -> str:
    with pytest.raises(ValidationError) as caught:
        Bicycle.model_validate(value)
    return "\n".join(in_words(caught.value, Bicycle, {"colour": ("ultraviolet",)}))


@pytest.mark.parametrize(
    ("given", "hint"),
    [("fiels", "; nearest: files"), ("webdataset2", "; nearest: webdataset"), ("zzz", ""), ("", "")],
)
def test_nearest(given: str, hint: str):
    assert nearest(given, ["files", "webdataset"]) == hint


def test_refuse_says_given_allowed_and_nearest():
    error = refuse("data.format", "fiels", ["files", "webdataset"])
    assert isinstance(error, UserError)
    assert str(error) == "data.format 'fiels' is unknown; nearest: files; allowed: files, webdataset"


def test_dotted_keys():
    assert dotted_keys(Bicycle) == ["front", "front.spokes", "colour"]


def test_unknown_key_names_those_of_its_level():
    assert told({"colour": "red", "front": {"spoke": 3}}) == (
        "unknown key 'front.spoke'; nearest: front.spokes; allowed here: front.spokes"
    )
    assert told({"colour": "red", "color": "blue"}) == (
        "unknown key 'color'; nearest: colour; allowed here: front, colour"
    )


def test_unknown_key_of_another_level_finds_it():
    assert told({"colour": "red", "spokes": 3}).startswith("unknown key 'spokes'; nearest: front.spokes; ")


def test_missing_and_wrong_values():
    assert told({}) == "'colour' is missing"
    assert told({"colour": 3}).startswith("colour 3: ")
    assert told({"colour": "red", "front": {"spokes": "many"}}).startswith("front.spokes 'many': ")
