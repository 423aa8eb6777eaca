"""What users write for the planner: numbers with units and bounds, and what is wrong with a file, in one line."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from benchsuite.contract.errors import MAX_SHOWN, UserError, dotted, in_words, problems, several, shown

Made = TypeVar("Made", bound=BaseModel)
OURS = "told"
"""The type of errors whose text is ours."""
GIVE: Mapping[str, str] = {
    "string_type": "give text",
    "list_type": "give a list",
    "dict_type": "give keys and values",
    "bool_type": "give true or false",
    "bool_parsing": "give true or false",
    "int_type": "give a whole number",
    "int_parsing": "give a whole number",
    "int_from_float": "give a whole number",
    "float_type": "give a number",
    "float_parsing": "give a number",
    "finite_number": "give a finite number",
    "too_short": "give one at least",
}
"""What pydantic tells of Python, in words of YAML."""
ALLOWED: Mapping[str, str] = {
    "greater_than": "above {gt:g}",
    "greater_than_equal": "{ge:g} and above",
    "less_than": "below {lt:g}",
    "less_than_equal": "{le:g} and below",
}


def told(text: str) -> PydanticCustomError:
    """An error of a field; the line that is printed begins with its key and what was given."""
    return PydanticCustomError(OURS, "{text}", {"text": text})


@dataclass(frozen=True)
class Quantity:
    """Metadata of a number: its unit, the bounds of what is plausible, and one as it is written."""

    unit: str
    low: float
    high: float
    example: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), "unit": self.unit, "minimum": self.low, "maximum": self.high}

    def _checked(self, value: Any, parse: ValidatorFunctionWrapHandler) -> Any:
        try:
            number = math.nan if isinstance(value, bool) else parse(value)
        except ValidationError:
            number = math.nan
        if not self.low <= number <= self.high:
            raise told(f"in {self.unit}, such as {self.example}; allowed: {self.low:g} to {self.high:g}")
        return number


class Part(BaseModel):
    """Part of a file: unknown keys are errors, values don't change. Docstrings of fields stand in the JSON Schema."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _keys(cls, values: Any) -> Any:
        if not isinstance(values, dict | BaseModel):
            raise told(f"give keys and values below it: {', '.join(cls.model_fields)}")
        return values

    def changed(self, **values: Any) -> Self:
        """A copy with other values, which are taken as they are."""
        return self.model_copy(update=values)


def checked(model: type[Made], values: Any, where: str) -> Made:
    """A file's content as a model.

    Raises:
        UserError: keys are unknown, missing or wrong; a line for each names the file, the key, and what is allowed.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        told = several(_in_words(error, model)) or UserError(str(error))
        raise told.within(f"{where}: ") from None


def _in_words(error: ValidationError, model: type[BaseModel]) -> Iterator[str]:
    """What is wrong with numbers in the planner's words, all else in everyone's."""
    ours = {}
    for each in problems(error):
        kind = each["type"]
        words = each["msg"] if kind == OURS else GIVE.get(kind, "")
        if kind in ALLOWED:
            words = f"allowed: {ALLOWED[kind].format(**each['ctx'])}"
        if words:
            ours[each["loc"]] = f"{dotted(each['loc']) or 'the file'} {as_written(each['input'])}: {words}"
    yield from in_words(error, model, told=ours)


def as_written(value: Any) -> str:
    """A value as YAML has it; text in quotes."""
    return shown(value) if isinstance(value, str) else json.dumps(value, default=str)[:MAX_SHOWN]


Values = dict[str, Any]


def shipped_files(folder: str) -> dict[str, str]:
    """The text of every YAML file of a folder of this package, by name without its ending."""
    found = (files("benchsuite_plan.layout") / folder).iterdir()
    return {file.name.removesuffix(".yaml"): file.read_text() for file in found if file.name.endswith(".yaml")}
