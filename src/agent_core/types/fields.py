"""Models whose constructors say which field is wrong, and which name was probably meant."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, ValidationError

from agent_core.errors import ArgumentError
from agent_core.text import kind_of, nearest, shortened, shown_value, with_article

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_MOST_LISTED = 12
_MOST_BITS = 128
_CHOICES = frozenset({"enum", "literal_error", "none_required"})
_WITH_COMMAS = ("enum", "literal_error", "string_pattern_mismatch")
_KEY = "[key]"
_VERBS = ("is ", "names ")
"""Beginnings of reasons that continue the name of a field."""

_OURS = {
    r"valid (dictionary|list) or instance of (\w+)": r"\2",
    r"valid dictionary": "dict",
    r"valid string": "text",
    r"valid boolean": "True or False",
    r"valid (?=[a-z])": "",
    r"instance of (?=\w)": "",
}
"""Words of pydantic, and ours."""

_QUOTE = "'"


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
                raise misfit(error, type(self), values) from None

        __init__.__pydantic_base_init__ = True  # pydantic does not call it to read data


def misfit(
    error: ValidationError,
    model: type[BaseModel],
    given: Mapping[str, Any],
    owner: str | None = None,
) -> ArgumentError:
    """Return the error for the first field that does not fit.

    Args:
        error: of the fields.
        model: their model.
        given: the values of the fields.
        owner: what has the fields, for the message; by default the name of the model. Empty for
            the arguments of a function.
    """
    owner = model.__name__ if owner is None else owner
    found = error.errors(include_url=False)
    # A misspelt name is also a missing one: the name says more.
    first = next((each for each in found if each["type"] == "extra_forbidden"), found[0])
    name = str(first["loc"][0]) if first["loc"] else ""
    if len(first["loc"]) == 1 and first["type"] == "extra_forbidden":
        message = f"{owner} has no field {name}{_meant(name, list(model.model_fields))}"
    elif len(first["loc"]) == 1 and first["type"] == "missing":
        message = f"{owner} needs {name}"
    else:
        ours = [each for each in found if each["loc"][:1] == first["loc"][:1]]
        deepest = max(len(each["loc"]) for each in ours)  # the alternative that fits best
        ours = [each for each in ours if len(each["loc"]) == deepest]
        place = _place(ours[0], given)
        ours = [each for each in ours if _place(each, given) == place]
        message = _sentence(" of ".join(filter(None, (place, owner))), ours)
    return ArgumentError(message, name)


def fault_in_words(subject: str, fault: "ErrorDetails") -> str:
    """Return one fault that pydantic has found as a sentence about its subject.

    Args:
        subject: the place of the fault, to its last part.
        fault: what is wrong there.
    """
    match fault["type"]:
        case "missing":
            return f"{subject} is missing"
        case "extra_forbidden":
            return f"{subject} is not a known field"
        case _:
            return _sentence(subject, [fault])


def _sentence(subject: str, faults: "Sequence[ErrorDetails]") -> str:
    """Return what is wrong with a value, which all alternatives of its type refuse."""
    first = faults[0]
    context = first.get("ctx", {})
    match first["type"]:
        case "missing" if isinstance(first["loc"][-1], str):
            return f"{subject} lacks {first['loc'][-1]}"
        case "missing":
            return f"{subject} has too few items"
        case "extra_forbidden":
            return f"{subject} has an unknown field {first['loc'][-1]}"
        case "value_error":
            reason = first["msg"].removeprefix("Value error, ")
            return f"{subject} {reason}" if reason.startswith(_VERBS) else f"{subject}: {reason}"
        case "union_tag_not_found":
            return f"{subject} lacks {context['discriminator'].strip(_QUOTE)}"
        case "union_tag_invalid":
            which, tag = context["discriminator"].strip(_QUOTE), shortened(context["tag"], 40)
            return f"{subject}: its {which} must be one of {context['expected_tags']}, not {tag!r}"
        case "too_long" | "too_short":
            rule = first["msg"].partition(" should ")[2].replace(" after validation", "")
            return f"{subject} must {rule}"
        case _:
            pass
    rules = dict.fromkeys(map(_rule, faults))
    if "" in rules:  # another form: pydantic's own words
        return f"{subject}: {first['msg'][:1].lower()}{first['msg'][1:]}"
    said = " or ".join(rules).replace(" or be ", " or ")
    shown = {_shown(each["type"], each["input"]) for each in faults}
    # With a text among alternatives, its value says more than its type.
    kept = min(shown, key=lambda words: words == kind_of(first["input"]))
    return f"{subject} must {said}, not {kept}" if kept else f"{subject} must {said}"


def _rule(fault: "ErrorDetails") -> str:
    """Return what a value must be or have, such as `be greater than 0`; empty if unclear."""
    kind, message = fault["type"], fault["msg"]
    if kind == "path_type":
        return "be a path"
    subject, _, rule = message.partition(" should ")
    if subject not in {"Input", "String"}:
        return ""
    if kind.startswith(_WITH_COMMAS):
        return rule
    # What follows is the parser's reason, which the shown value makes plain.
    rule = rule.partition(", ")[0]
    for theirs, ours in _OURS.items():
        rule = re.sub(theirs, ours, rule)
    return re.sub(r"\b(an?) (\w+)", lambda each: _with_article(each[2]), rule)


def _with_article(word: str) -> str:
    return word if word == "True" else with_article(word)


def _shown(kind: str, value: object) -> str:
    """Return a wrong value for a message: its type if that is wrong, else itself if it is short."""
    if kind.endswith("_type") or kind.startswith("is_"):
        return value.__name__ if isinstance(value, type) else kind_of(value)
    if isinstance(value, str) and not kind.startswith("url_"):  # an address may hold a password
        return shown_value(value) if "://" in value else repr(shortened(str(value), 40))
    if isinstance(value, float) or (isinstance(value, int) and value.bit_length() <= _MOST_BITS):
        return repr(value)
    return kind_of(value) if kind in _CHOICES or isinstance(value, bytes) else ""


def _place(fault: "ErrorDetails", given: Mapping[str, Any]) -> str:
    """Return where a fault is, such as `content[0].text`: the value that is wrong or incomplete."""
    if not fault["loc"]:
        return ""
    field, *parts = fault["loc"]
    if parts and parts[-1] == _KEY:
        return f"a key of {field}"
    if parts and fault["type"] in {"missing", "extra_forbidden"}:
        parts.pop()
    steps = _steps(given.get(str(field)), parts, fault)
    if steps is None:  # a validator has changed the value
        steps = [f"[{part}]" for part in parts if isinstance(part, int)]
    return f"{field}{''.join(steps)}"


def _steps(value: Any, parts: Sequence[int | str], fault: "ErrorDetails") -> list[str] | None:
    """Return the steps from a value to the one at fault; None if the parts do not lead to it.

    Some of the parts are not steps: they name an alternative of the value's type.
    """
    if not parts:
        if fault["type"] == "extra_forbidden":
            is_it = isinstance(value, Mapping) and fault["loc"][-1] in value
        else:
            is_it = value is fault["input"]
        return [] if is_it else None
    part, rest = parts[0], parts[1:]
    step = ""
    if isinstance(part, str) and isinstance(value, Mapping):
        step = f".{part}" if part.isidentifier() else f"[{shortened(part, 40)!r}]"
    elif isinstance(part, int) and isinstance(value, list | tuple | Mapping):
        step = f"[{part}]"
    if step:
        with suppress(LookupError):
            if (found := _steps(cast("Any", value)[part], rest, fault)) is not None:
                return [step, *found]
    return _steps(value, rest, fault)


def _meant(name: str, known: Sequence[str]) -> str:
    if hint := nearest(name, known):
        return hint
    more = ", …" if len(known) > _MOST_LISTED else ""
    return f"; there are {', '.join(known[:_MOST_LISTED])}{more}"
