"""Models whose constructors say which field is wrong, and which name was probably meant."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from agent_core.errors import ArgumentError
from agent_core.text import kind_of, nearest, shortened

_MOST_LISTED = 12
_ABOUT_A_TEXT = ("enum", "literal_error", "string_")


class Fields(BaseModel):
    """Base of models that programs make: what does not fit is named in one line.

    `model_validate` reads data, and raises pydantic's `ValidationError`.
    """

    if not TYPE_CHECKING:  # type checkers list the fields

        def __init__(self, /, *given: Any, **values: Any) -> None:
            if given:
                names = ", ".join(list(type(self).model_fields)[:_MOST_LISTED])
                raise TypeError(f"{type(self).__name__}() takes its fields by name: {names}")
            try:
                self.__pydantic_validator__.validate_python(values, self_instance=self)
            except ValidationError as error:
                raise misfit(error, type(self)) from None

        __init__.__pydantic_base_init__ = True  # pydantic does not call it to read data


def misfit(error: ValidationError, model: type[BaseModel], called: str = "") -> ArgumentError:
    """Return the error for the first field that does not fit.

    Args:
        error: of the fields.
        model: their model.
        called: for the message; by default the name of the model.
    """
    owner = called or model.__name__
    found = error.errors(include_url=False, include_context=False)
    # A misspelt name is also a missing one: the name says more.
    first = next((each for each in found if each["type"] == "extra_forbidden"), found[0])
    name = str(first["loc"][0]) if first["loc"] else ""
    ours = [each for each in found if each["loc"][:1] == first["loc"][:1]]
    deepest = max(len(each["loc"]) for each in ours)  # the alternative that fits best
    ours = [each for each in ours if len(each["loc"]) == deepest]
    loc = ours[0]["loc"]
    place = name + "".join(f"[{part}]" for part in loc[1:] if isinstance(part, int))
    match ours[0]["type"]:
        case "extra_forbidden" if deepest == 1:
            message = f"{owner} has no field {name}{_meant(name, list(model.model_fields))}"
        case "missing" if deepest == 1:
            message = f"{owner} needs {name}"
        case "missing" | "extra_forbidden" as kind:
            what = "lacks" if kind == "missing" else "has an unknown field"
            message = f"{place} of {owner} {what} {loc[-1]}"
        case "value_error":
            reason = ours[0]["msg"].removeprefix("Value error, ")
            message = f"{place} of {owner}: {reason}" if place else reason
        case _:
            wanted = dict.fromkeys(each["msg"].partition(", unable")[0] for each in ours)
            said = " or ".join(wanted).replace("Input should", "must")
            said = said.replace("or must be", "or").replace("String should", "must")
            message = f"{place} of {owner} {said}, not {_shown(ours[0]['type'], ours[0]['input'])}"
    return ArgumentError(message, name)


def _shown(kind: str, value: object) -> str:
    """Return a wrong value for a message: a text of the right type itself, else its type."""
    if kind != "string_type" and isinstance(value, str) and kind.startswith(_ABOUT_A_TEXT):
        return repr(shortened(value, 40))
    return kind_of(value)


def _meant(name: str, known: Sequence[str]) -> str:
    if hint := nearest(name, known):
        return hint
    more = ", …" if len(known) > _MOST_LISTED else ""
    return f"; there are {', '.join(known[:_MOST_LISTED])}{more}"
