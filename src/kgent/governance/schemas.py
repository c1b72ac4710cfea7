"""Checks of a deliverable's content (a JSON, YAML or CSV file) with a JSON Schema.

A CSV file is a list of rows, and a row is an object with the columns as keys. A schema of type
`array` applies to the list; any other applies to each row.
"""

import csv
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import TextIOWrapper
from pathlib import Path, PurePosixPath
from typing import Any, Literal, cast
from urllib.parse import unquote

import yaml

from agent_core.config.problems import parse_json
from agent_core.errors import AgentCoreError
from agent_core.text import bounded_line, plural
from agent_core.text.json_text import JsonObject, JsonSchema, table
from agent_core.tools.files import open_file
from agent_core.tools.json_schema import BoundedValidator, CheckTooSlowError
from kgent.config.models import DeliverableSpec

MAX_CHECKED_BYTES = 64 * 2**20
MAX_YAML_BYTES = 4 * 2**20
CHECK_SECONDS = 30.0
"""Processor time in seconds that the check of one file may take."""
_MAX_FAULTS = 5
_SUFFIXES: Mapping[str, Literal["json", "yaml", "csv"]] = {
    ".json": "json",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".csv": "csv",
}


_CONTENT_TYPES: Mapping[str, Literal["json", "yaml", "csv"]] = {
    "application/json": "json",
    "application/yaml": "yaml",
    "application/x-yaml": "yaml",
    "text/yaml": "yaml",
    "text/csv": "csv",
}


_CHOICES = ("anyOf", "oneOf", "allOf")
_INTEGER = re.compile(r"[+-]?\d{1,40}")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?")


class _InvalidContentError(ValueError):
    """The content does not match the file's format, for the reason in the message."""


def content_format(spec: DeliverableSpec) -> Literal["json", "yaml", "csv"] | None:
    """Return the format of a deliverable, by its content type or the ending of its name."""
    declared = (spec.content_type or "").partition(";")[0].strip().lower()
    return _CONTENT_TYPES.get(declared) or _SUFFIXES.get(PurePosixPath(spec.path).suffix.lower())


def find_fault(path: Path, spec: DeliverableSpec, schema: JsonSchema) -> str | None:
    """Return the first problem of a file's content in one line; None if it fits.

    Args:
        path: the file, resolved.
        spec: its deliverable.
        schema: a validated schema.
    """
    try:
        match content_format(spec):
            case "json":
                faults = _faults(BoundedValidator(schema), _read_json(path))
            case "yaml":
                faults = _faults(BoundedValidator(schema), _read_yaml(path))
            case "csv":
                faults = _table_faults(schema, path)
            case None:
                return "its format is not known: a schema is for JSON, YAML and CSV"
        found = [fault for _, fault in zip(range(_MAX_FAULTS), faults, strict=False)]
    except CheckTooSlowError:
        return "it takes too long to compare it with its schema"
    except RecursionError:
        return "it is nested too deeply"
    except UnicodeDecodeError:
        return "it is not UTF-8"
    except TypeError:
        return "it has a key that is not text"
    except (OSError, AgentCoreError, _InvalidContentError) as error:
        return str(error)
    except (ArithmeticError, ValueError) as error:  # such as a number with a thousand digits
        return f"it cannot be compared with its schema: {bounded_line(str(error))}"
    return f"it does not fit its schema: {'; '.join(found)}" if found else None


def _faults(
    checks: BoundedValidator, value: Any, *, place: str = "$", seconds: float = CHECK_SECONDS
) -> Iterator[str]:
    for error in checks.errors(value, seconds=seconds):
        where = place + str(error.json_path).removeprefix("$")
        yield f"{where}: {bounded_line(str(error.message))[:200]}"


# --- reading ----------------------------------------------------------------------------------


def _read_text(path: Path, limit: int) -> str:
    with open_file(path) as file:
        raw = file.read(limit + 1)
    if len(raw) > limit:
        raise _InvalidContentError(f"it has more than {limit:,} bytes; a schema checks no more")
    return raw.decode("utf-8-sig")


def _read_json(path: Path) -> Any:
    text = _read_text(path, MAX_CHECKED_BYTES)
    try:
        return parse_json(text)
    except ValueError as error:
        raise _InvalidContentError(f"it is not JSON: {error}") from None


class _PlainLoader(yaml.SafeLoader):
    """Reads dates as text, because JSON Schema has no dates."""

    yaml_implicit_resolvers = {
        sign: [(tag, found) for tag, found in known if not tag.endswith(":timestamp")]
        for sign, known in cast(
            "dict[str, list[tuple[str, Any]]]", yaml.SafeLoader.yaml_implicit_resolvers
        ).items()
    }


def _read_yaml(path: Path) -> Any:
    loader = _PlainLoader(_read_text(path, MAX_YAML_BYTES))
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _count_nodes(node, {})
        construct = cast("Callable[[yaml.Node], Any]", loader.construct_document)  # pyright: ignore[reportUnknownMemberType] - untyped
        return construct(node)
    except _InvalidContentError:
        raise
    except (yaml.YAMLError, ValueError) as error:
        raise _InvalidContentError(f"it is not YAML: {bounded_line(str(error))}") from None
    finally:
        loader.dispose()


def _count_nodes(node: yaml.Node, known: dict[yaml.Node, int]) -> int:
    """Return the number of nodes with all aliases and merged keys expanded.

    Raises:
        _InvalidContentError: there are more than any file without aliases has.
    """
    if node in known:
        if not known[node]:
            raise _InvalidContentError("it contains itself")
        return known[node]
    known[node], number = 0, 1
    if not isinstance(node, yaml.ScalarNode):
        for item in cast("Iterable[Any]", node.value):
            parts = cast("tuple[yaml.Node, ...]", item) if isinstance(item, tuple) else (item,)
            number += sum(_count_nodes(part, known) for part in parts)
    if number > MAX_YAML_BYTES:
        raise _InvalidContentError("it repeats itself until it is far too large")
    known[node] = number
    return number


# --- tables -------------------------------------------------------------------------------------


def _table_faults(schema: JsonSchema, path: Path) -> Iterator[str]:
    is_list = schema.get("type") == "array"
    items: object = schema.get("items")
    row_schema = schema
    if is_list:
        row_schema = table(items)
    while isinstance(part := _find_part(schema, row_schema.get("$ref")), dict):  # cannot loop
        row_schema = cast("JsonSchema", part)
    if path.stat().st_size > MAX_CHECKED_BYTES:
        reason = f"it has more than {MAX_CHECKED_BYTES:,} bytes; a schema checks no more"
        raise _InvalidContentError(reason)
    with open_file(path) as file:
        text = TextIOWrapper(file, encoding="utf-8-sig", newline="")
        lines = csv.reader(text, strict=True)
        try:
            columns = next(lines, None)
            if columns is None:
                raise _InvalidContentError("it has no header")
            yield from _header_faults(row_schema, columns)
            rows = _rows(lines, columns, row_schema, root=schema)
            if is_list:
                yield from _faults(BoundedValidator(schema), [row for _, row in rows])
                return
            checks, end = BoundedValidator(schema), time.thread_time() + CHECK_SECONDS
            for line, row in rows:
                left = end - time.thread_time()
                yield from _faults(checks, row, place=f"line {line}", seconds=left)
        except csv.Error as error:
            raise _InvalidContentError(f"line {lines.line_num}: it is not CSV: {error}") from None


def _header_faults(schema: JsonSchema, columns: list[str]) -> Iterator[str]:
    if twice := sorted({name for name in columns if columns.count(name) > 1}):
        raise _InvalidContentError(f"it has a column twice: {bounded_line(', '.join(twice))}")
    required = cast("Iterable[str]", schema.get("required", ()))
    if missing := [name for name in required if name not in columns]:
        raise _InvalidContentError(f"it lacks the columns: {', '.join(missing)}")
    known = cast("JsonSchema", schema.get("properties", {}))
    is_closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    if is_closed and (more := [name for name in columns if name not in known]):
        yield f"columns that the schema does not have: {bounded_line(', '.join(more))}"


def _rows(
    lines: Any, columns: list[str], schema: JsonSchema, *, root: JsonSchema
) -> Iterator[tuple[int, JsonObject]]:
    """Yield the number of each row's last line, and its values by column."""
    properties = cast("JsonSchema", schema.get("properties", {}))
    types = [_types_of(properties.get(name), root) for name in columns]
    for values in lines:
        if not values:
            continue  # an empty line
        if len(values) != len(columns):
            header = plural(len(columns), "column")
            reason = f"{plural(len(values), 'value')}, and the header has {header}"
            raise _InvalidContentError(f"line {lines.line_num}: {reason}")
        read = (read_scalar(text, kinds) for text, kinds in zip(values, types, strict=True))
        yield lines.line_num, dict(zip(columns, read, strict=True))


def _types_of(schema: object, root: JsonSchema) -> set[str]:
    """Return the types that the values of a column may have according to its schema."""
    kinds, seen, waiting = set[str](), set[int](), [schema]
    while waiting:
        part = waiting.pop()
        if not isinstance(part, Mapping) or id(cast("JsonSchema", part)) in seen:
            continue
        table = cast("JsonSchema", part)
        seen.add(id(table))
        if "type" in table:
            named: object = table["type"]
            kinds |= {named} if isinstance(named, str) else set(cast("Iterable[str]", named))
        else:
            values = [*table.get("enum", ()), *([table["const"]] if "const" in table else ())]
            kinds |= {_type_of(value) for value in values}
        waiting += [one for word in _CHOICES for one in table.get(word, ())]
        waiting.append(_find_part(root, table.get("$ref")))
    return kinds


def _type_of(value: object) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    return "number" if isinstance(value, int | float) else "string"


def _find_part(root: JsonSchema, place: object) -> Any:
    """Return the part of a schema that a reference like `#/$defs/row` names; None for others."""
    if not isinstance(place, str) or not place.startswith("#/"):
        return None
    found: Any = root
    for word in place.removeprefix("#/").split("/"):
        name = unquote(word).replace("~1", "/").replace("~0", "~")
        found = table(found).get(name)
    return found


def read_scalar(text: str, kinds: set[str]) -> Any:
    """Convert a text to one of these types of JSON; keep it as it is if it fits none of them."""
    if not text and "null" in kinds:
        return None
    if kinds & {"integer", "number"} and _INTEGER.fullmatch(text):
        return int(text)
    if "number" in kinds and _NUMBER.fullmatch(text):
        return float(text)
    if "boolean" in kinds and text.lower() in {"true", "false"}:
        return text.lower() == "true"
    return text
