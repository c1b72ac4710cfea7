"""The parameters of a profile: their values are checked, and filled into its texts.

A value is data: it replaces `{{ name }}` once, and placeholders in it are not replaced.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from agent_core.config.problems import nearest
from agent_core.errors import ErrorCode
from agent_core.text import shortened
from kgent.config.models import (
    CheckSpec,
    DeliverablesConfig,
    KgentConfig,
    ParameterSpec,
    ParameterValue,
    has_parameter_type,
)
from kgent.errors import KgentError, config_error

_PLACEHOLDER = re.compile(r"\{\{([^{}\n]*)\}\}")
_INTEGER = re.compile(r"[+-]?\d{1,40}")
_NUMBER = re.compile(r"[+-]?(\d{1,40}(\.\d{0,40})?|\.\d{1,40})([eE][+-]?\d{1,3})?")
_TRUTH = {"true": True, "false": False}


def set_parameters(config: KgentConfig, given: Mapping[str, ParameterValue]) -> KgentConfig:
    """Return the profile with a value for every parameter: the given one, or the default.

    A text given for another type is converted to that type.

    Raises:
        KgentError: category `config`; a name is not known, a value does not fit, or a required
          value is not given.
    """
    specs = config.parameters
    for name in given:
        if name not in specs:
            known = ", ".join(specs) or "none"
            hint = nearest(name, specs)
            raise _invalid(name, f"is not in the profile{hint}; there are: {known}")
    valued = dict[str, ParameterSpec]()
    for name, spec in specs.items():
        value = spec.default if spec.value is None else spec.value
        if name in given:
            value = _read_value(name, spec, given[name])
        if value is None and spec.is_required:
            raise _invalid(name, f"is required: --param {name}=<{spec.type}>")
        valued[name] = spec.model_copy(update={"value": value})
    return config.model_copy(update={"parameters": valued})


def fill_text(config: KgentConfig, text: str, place: str) -> str:
    """Return `text` with the values of the parameters; unchanged if the profile has none.

    Raises:
        KgentError: category `config`; it names an unknown parameter. The message contains `place`.
    """
    if not config.parameters:
        return text

    def value_of(found: re.Match[str]) -> str:
        spec = config.parameters.get(found[1].strip())
        if spec is None:
            line = text.count("\n", 0, found.start()) + 1
            where = f"{place}, line {line}" if "\n" in text.strip() else place
            raise config_error(f"{where}: {_explain_unknown(config, found[1])}")
        if isinstance(spec.value, bool):
            return str(spec.value).lower()
        return "" if spec.value is None else str(spec.value)

    return _PLACEHOLDER.sub(value_of, text)


def fill_config(config: KgentConfig) -> KgentConfig:
    """Return the profile with parameters filled into its texts, paths and checks.

    Raises:
        KgentError: category `config`; a path or an argument is invalid with its values filled in.
    """
    if not config.parameters:
        return config
    texts = iter([fill_text(config, text, key) for key, text in templated_texts(config)])

    def next_lines(lines: list[str]) -> list[str]:
        return [next(texts) for _ in lines]

    profile = config.profile
    filled = profile.model_copy(
        update={
            "role": next(texts),
            "responsibilities": next_lines(profile.responsibilities),
            "style": next_lines(profile.style),
            "constraints": next_lines(profile.constraints),
        }
    )
    required = [{**spec.model_dump(), "path": next(texts)} for spec in config.deliverables.required]
    checks = [spec.model_copy(update={"argv": next_lines(spec.argv)}) for spec in config.checks]
    try:
        deliverables = DeliverablesConfig.model_validate({"required": required})
    except ValidationError as error:
        number, reason = _first_problem(error)
        path = shortened(required[number]["path"], 200)
        raise _misfilled(f"deliverables.required[{number}].path", path, reason) from None
    for number, check in enumerate(checks):
        try:
            CheckSpec.model_validate(check.model_dump())
        except ValidationError as error:
            position, reason = _first_problem(error)
            word = shortened(check.argv[position], 200)
            raise _misfilled(f"checks[{number}].argv[{position}]", word, reason) from None
    changes = {"profile": filled, "deliverables": deliverables, "checks": checks}
    return config.model_copy(update=changes)


def _first_problem(error: ValidationError) -> tuple[int, str]:
    """Return the position of the first problem in its list, and the reason."""
    problem = error.errors()[0]
    number = next((part for part in problem["loc"] if isinstance(part, int)), 0)
    if problem["type"] in {"string_pattern_mismatch", "string_unicode"}:
        return number, "has a character that no argument can hold"
    return number, problem["msg"].removeprefix("Value error, ")


def _misfilled(place: str, text: str, reason: str) -> KgentError:
    message = f"{place}: {text!r}, with its parameters filled in, {reason}"
    return config_error(message, ErrorCode.VALIDATION_ERROR)


def templated_texts(config: KgentConfig) -> Iterator[tuple[str, str]]:
    """Yield the key and the text of each part of a profile that may contain parameters."""
    profile = config.profile
    yield "profile.role", profile.role
    for name in ("responsibilities", "style", "constraints"):
        for number, line in enumerate(getattr(profile, name)):
            yield f"profile.{name}[{number}]", line
    for number, spec in enumerate(config.deliverables.required):
        yield f"deliverables.required[{number}].path", spec.path
    for number, check in enumerate(config.checks):
        for position, word in enumerate(check.argv):
            yield f"checks[{number}].argv[{position}]", word


def unknown_names(config: KgentConfig) -> Iterator[tuple[str, str]]:
    """Yield the key of each text that names an unknown parameter, and an explanation."""
    for key, text in templated_texts(config) if config.parameters else ():
        for found in _PLACEHOLDER.finditer(text):
            if found[1].strip() not in config.parameters:
                yield key, _explain_unknown(config, found[1])


def _explain_unknown(config: KgentConfig, name: str) -> str:
    hint = nearest(name.strip(), config.parameters)
    known = ", ".join(config.parameters)
    return f"{{{{{name[:80]}}}}} is no parameter of the profile{hint}; there are: {known}"


def _read_value(name: str, spec: ParameterSpec, given: ParameterValue) -> ParameterValue:
    value: ParameterValue | None = given
    if isinstance(given, str) and spec.type != "string":
        value = _READERS[spec.type](given.strip())
    if value is None or not has_parameter_type(value, spec.type):
        shown = shortened(str(given), 80)
        raise _invalid(name, f"must be {_TYPES[spec.type]}, not {shown!r}")
    if spec.choices is not None and value not in spec.choices:
        listed = ", ".join(map(str, spec.choices))
        raise _invalid(name, f"must be one of: {listed}")
    return value


def _read_integer(text: str) -> int | None:
    return int(text) if _INTEGER.fullmatch(text) else None


def _read_number(text: str) -> int | float | None:
    if _INTEGER.fullmatch(text):
        return int(text)
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    return value if math.isfinite(value) else None


_READERS: Mapping[str, Callable[[str], Any]] = {
    "integer": _read_integer,
    "number": _read_number,
    "boolean": _TRUTH.get,
}


_TYPES = {
    "string": "a text",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
}


def _invalid(name: str, reason: str) -> KgentError:
    shown = shortened(name, 80)
    return config_error(f"the parameter {shown!r} {reason}", ErrorCode.VALIDATION_ERROR)
