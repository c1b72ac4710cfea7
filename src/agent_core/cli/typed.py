"""`run --output-schema FILE`: the schema that is asked for, and the answer as JSON."""

import json
from pathlib import Path
from typing import Any, cast

from agent_core.config.problems import read_json_file, unusable
from agent_core.errors import ConfigError
from agent_core.text import visible
from agent_core.text.json_text import JsonObject
from agent_core.tools.output import expected_output

_WHAT = "schema of the answer"


def read_output_schema(path: str) -> JsonObject:
    """The JSON Schema in a file.

    Raises:
        ConfigError: there is no such file, or no such schema in it.
    """
    file = Path(path)
    try:
        schema = read_json_file(file, _WHAT)
    except ValueError as error:  # a name that no file can have
        raise unusable(file, _WHAT, str(error)) from None
    if schema is None and not file.exists():
        raise unusable(file, _WHAT, "it does not exist")
    if not isinstance(schema, dict):
        raise unusable(file, _WHAT, "a JSON Schema is an object here")
    try:
        expected_output(schema, mode="auto", retries=0)
    except ConfigError as error:
        reason = error.message.removeprefix("output_type cannot be used: ")
        raise unusable(file, _WHAT, reason) from None
    return cast("JsonObject", schema)


def json_text(value: Any) -> str:
    """Return the value on one line of JSON, whose characters cannot act on a terminal."""
    text = json.dumps(value, ensure_ascii=False)
    return text if visible(text, zero_width=False) == text else json.dumps(value)
