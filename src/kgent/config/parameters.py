"""The parameters of a profile: their values are checked, and filled into its texts.

A value is data: it replaces `{{ name }}` once, and placeholders in it are not replaced.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from pydantic import ValidationError

from agent_core.config.positions import dotted_key
from agent_core.errors import ErrorCode
from agent_core.text import nearest, shortened
from kgent.config.models import (
    KgentConfig,
    ParameterSpec,
    ParameterValue,
    has_parameter_type,
)
from kgent.errors import KgentError, config_error
from kgent.governance.schemas import read_scalar

_TEMPLATED_PARTS = {"profile", "deliverables", "checks"}
_TEMPLATED = re.compile(
    r"profile\.(role|(responsibilities|style|constraints)\[\d+\])"
    r"|deliverables\.required\[\d+\]\.path|checks\[\d+\]\.argv\[\d+\]"
)
"""The keys of the texts that may contain parameters."""
_PLACEHOLDER = re.compile(r"\{\{([^{}\n]*)\}\}")


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
    texts: dict[str, str] = {}

    def fill(key: str, text: str) -> str:
        texts[key] = fill_text(config, text, key)
        return texts[key]

    parts = _replace_texts(config.model_dump(include=_TEMPLATED_PARTS), fill)
    try:
        filled = KgentConfig.model_validate({"kgent": config.kgent, **parts})
    except ValidationError as error:
        problem = error.errors()[0]
        key, reason = dotted_key(problem["loc"]), problem["msg"].removeprefix("Value error, ")
        if problem["type"] in {"string_pattern_mismatch", "string_unicode"}:
            reason = "has a character that it cannot hold"
        key = next((known for known in texts if known.startswith(key)), key)
        shown = shortened(texts.get(key, ""), 200)
        message = f"{key}: {shown!r}, with its parameters filled in, {reason}"
        raise config_error(message, ErrorCode.VALIDATION_ERROR) from None
    return config.model_copy(update={name: getattr(filled, name) for name in _TEMPLATED_PARTS})


def unknown_names(config: KgentConfig) -> list[tuple[str, str]]:
    """Return the key of each text that names an unknown parameter, and an explanation."""
    unknown: list[tuple[str, str]] = []

    def look(key: str, text: str) -> str:
        names = (found[1] for found in _PLACEHOLDER.finditer(text))
        wrong = (name for name in names if name.strip() not in config.parameters)
        unknown.extend((key, _explain_unknown(config, name)) for name in wrong)
        return text

    if config.parameters:
        _replace_texts(config.model_dump(include=_TEMPLATED_PARTS), look)
    return unknown


def _replace_texts(value: Any, replace: Callable[[str, str], str], key: str = "") -> Any:
    """Return a part of a profile; `replace` gets key and text of what may contain parameters."""
    match value:
        case str() if _TEMPLATED.fullmatch(key):
            return replace(key, value)
        case dict():
            fields = cast("dict[str, Any]", value).items()
            start = f"{key}." if key else ""
            return {name: _replace_texts(item, replace, f"{start}{name}") for name, item in fields}
        case list():
            items = enumerate(cast("list[Any]", value))
            return [_replace_texts(item, replace, f"{key}[{number}]") for number, item in items]
        case _:
            return value


def _explain_unknown(config: KgentConfig, name: str) -> str:
    hint = nearest(name.strip(), config.parameters)
    known = ", ".join(config.parameters)
    return f"{{{{{name[:80]}}}}} is not a parameter of the profile{hint}; there are: {known}"


def _read_value(name: str, spec: ParameterSpec, given: ParameterValue) -> ParameterValue:
    value: ParameterValue = given
    if isinstance(given, str) and spec.type != "string":
        value = read_scalar(given.strip(), {spec.type})
    if not has_parameter_type(value, spec.type):
        shown = shortened(str(given), 80)
        raise _invalid(name, f"must be {_TYPES[spec.type]}, not {shown!r}")
    if spec.choices is not None and value not in spec.choices:
        listed = ", ".join(map(str, spec.choices))
        raise _invalid(name, f"must be one of: {listed}")
    return value


_TYPES = {
    "string": "a text",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
}


def _invalid(name: str, reason: str) -> KgentError:
    shown = shortened(name, 80)
    return config_error(f"the parameter {shown!r} {reason}", ErrorCode.VALIDATION_ERROR)
