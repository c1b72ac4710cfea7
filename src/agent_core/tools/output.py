"""Typed answers: the expected shape of a run's answer, how to ask for it, and how to read it."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, cast

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import (
    PydanticSchemaGenerationError,
    PydanticUndefinedAnnotation,
    PydanticUserError,
)

from agent_core.errors import AgentCoreError, ArgumentError, ErrorCode
from agent_core.text import kind_of, plural, quoted, shorten_text
from agent_core.text.json_text import JsonSchema
from agent_core.tools.base import OutputMisfitError
from agent_core.tools.json_schema import BoundedValidator, CheckTooSlowError, SchemaUnusableError
from agent_core.tools.output_functions import (
    OutputFunction,
    is_choice_of,
    is_function,
    read_functions,
)
from agent_core.tools.results import parse_answer
from agent_core.tools.schema import Json, json_path
from agent_core.tools.signatures import type_schema, with_readable_typed_dicts
from agent_core.types import FINAL_ANSWER, OutputFormat, OutputMode, StoredOptions, ToolDefinition

_MAX_ERRORS = 5
_MAX_MESSAGE = 300
_MAX_TEXT = 2_000
_MAX_SCHEMA_SHOWN = 8_000
_MAX_NAME = 64
_MAX_STEPS = 100_000
_FOREIGN = re.compile(r"[^A-Za-z0-9_-]+")
_OF_THE_ROOT = frozenset(("$defs", "definitions", "$schema", "$id"))
_DEFINITIONS = ("#/$defs/", "#/definitions/")
_BY_NAME = frozenset(
    ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
)
_VALUES = frozenset(("const", "enum", "default", "examples"))
_WRAPPED = "answer"
"""The one property of an answer that is no object: tools and schema modes take objects only."""


class ExpectedOutput:
    """The expected answer of a run.

    Args:
        output_type: whatever pydantic can read as a type, or a JSON Schema; or a function, or a
            list of types and functions. The value of an answer is then a `FunctionCall`.
        mode: how it is asked for.
        retries: how often an answer that does not fit goes back to the model.
        name: name of a JSON Schema; by default its title.

    Attributes:
        schema: the JSON Schema of the answer.
        name: name of the type.
        format: its form in a request.
        tool: the tool a model calls to answer; None in the service's schema mode.
        check: validates an answer.
        functions: of the program, one of which makes the output from the answer.

    Raises:
        ArgumentError: the type has no form in JSON Schema, or the schema is none
            that can be used.
    """

    def __init__(
        self,
        output_type: Any,
        *,
        mode: OutputMode = "auto",
        retries: int = 2,
        name: str | None = None,
    ) -> None:
        self.retries = retries
        self.functions: Sequence[OutputFunction] = ()
        self.check: TypeAdapter[Any] | BoundedValidator
        try:
            if isinstance(output_type, Mapping):
                self.schema = dict(cast("JsonSchema", output_type))
                self.name = name or str(self.schema.get("title") or _WRAPPED)
                self.check = BoundedValidator(self.schema)
            else:
                self.name = name or str(getattr(output_type, "__name__", _WRAPPED))
                if misfit := _no_type(output_type):
                    raise SchemaUnusableError(misfit)
                if is_choice_of(output_type) or is_function(output_type):
                    output_type, self.functions = read_functions(output_type)
                self.check = adapter = TypeAdapter[Any](with_readable_typed_dicts(output_type))
                self.schema = type_schema(adapter)
        except SchemaUnusableError as error:
            raise _unusable(str(error)) from error
        except Exception as error:  # pydantic and foreign types raise anything
            raise _unusable(_reason(cast("object", output_type), error)) from error
        self._is_wrapped = self.schema.get("type") != "object" or bool(
            self.schema.keys() & {"anyOf", "oneOf", "allOf", "$ref"}
        )
        self.format = OutputFormat(
            name=_FOREIGN.sub("_", self.name)[:_MAX_NAME],
            description=str(self.schema.get("description", "")),
            output_schema=_wrapped(self.schema) if self._is_wrapped else self.schema,
            mode=mode,
        )
        self.tool = None if mode == "native" else _answer_tool(self.format)

    @classmethod
    def stored(cls, options: StoredOptions | None) -> "ExpectedOutput | None":
        """Return the expected answer of a run by its stored options; None for plain text."""
        if options is None or options.output_schema is None:
            return None
        return cls(
            options.output_schema,
            mode=options.output_mode,
            retries=options.output_retries,
            name=options.output_name,
        )

    def text_of(self, arguments: Mapping[str, Any]) -> str:
        """The answer that a call of the tool gives, as text."""
        value: Any = arguments
        if self._is_wrapped and list(arguments) == [_WRAPPED]:
            value = arguments[_WRAPPED]
        return json.dumps(value, ensure_ascii=False)

    def read(self, pieces: Sequence[str]) -> Any:
        """Return the value of an answer, of the expected type.

        Args:
            pieces: the answer, in several parts if it was cut off and continued. The last part may
                also be a complete answer of its own.

        Raises:
            OutputMisfitError: it does not have the expected shape.
        """
        try:
            return self._read("".join(pieces))
        except OutputMisfitError:
            if len(pieces) > 1:
                return self._read(pieces[-1])
            raise

    def objection(self, misfit: OutputMisfitError) -> str:
        """Return the message that asks a model to correct an answer."""
        again = "Answer again, with nothing but one JSON value that fits the expected schema"
        if self.tool is not None:
            again = (
                f"Give the whole answer again: call {FINAL_ANSWER}, or, without that tool, answer"
            )
            again += " with nothing but one JSON value that fits the expected schema"
        shown = json.dumps(self.format.output_schema, ensure_ascii=False, sort_keys=True)
        if not misfit.is_json and len(shown) <= _MAX_SCHEMA_SHOWN:
            again += f":\n{shown}"
        return f"Your answer does not have the expected shape: {misfit}. {again}"

    def failure(self, misfit: OutputMisfitError, text: str) -> AgentCoreError:
        """Return the error of a run whose answer is still wrong after all retries."""
        return AgentCoreError(
            ErrorCode.OUTPUT_INVALID,
            f"the answer does not have the expected shape after"
            f" {plural(self.retries, 'retry', 'retries')}: {misfit}",
            details={"errors": misfit.errors, "text": shorten_text(text, _MAX_TEXT)},
        )

    def _read(self, text: str) -> Any:
        if not text.strip():
            raise OutputMisfitError([{"path": "$", "message": "it is empty"}], is_json=False)
        try:
            value = parse_answer(text)
        except ValueError as error:
            with suppress(OutputMisfitError):  # a plain text may be one itself, or name a choice
                return self.validated(text.strip())
            reason = {"path": "$", "message": f"it is not JSON: {error}"}
            raise OutputMisfitError([reason], is_json=False) from None
        misfits: list[OutputMisfitError] = []
        for candidate, _ in self.candidates(value):
            try:
                return self.validated(candidate)
            except OutputMisfitError as misfit:
                misfits.append(misfit)
        raise misfits[0]

    def candidates(self, value: Any, *, is_open: bool = False) -> Iterator[tuple[Any, int]]:
        """Yield the values the answer may mean: as it came, and with wrapping objects removed.

        A service in a strict mode writes null for what is absent.

        Args:
            value: of the answer, or of its beginning.
            is_open: more may follow in it: a property of the type is no wrapping then.

        Yields:
            A value, and how many objects were taken off around it.
        """
        table: Json = cast("Json", value) if isinstance(value, dict) else {}
        is_wrapped = self._is_wrapped and _WRAPPED in table
        inner: list[Any] = list(table.values()) if len(table) == 1 else []
        if not is_wrapped:  # of the models' own making, such as {"city": {...}}
            inner = [each for each in inner if isinstance(each, dict | list)]
            if is_open and table.keys() & self._own_properties():
                inner = []
        taken_off: list[tuple[Any, int]] = [(each, 1) for each in inner]
        whole: tuple[Any, int] = (cast("Any", value), 0)
        given = [*taken_off, whole] if is_wrapped else [whole, *taken_off]
        for found, levels in given:
            yield found, levels
            bare = _NullsLeftOut(self.schema).of(found, self.schema)
            if bare != found:
                yield bare, levels

    def _own_properties(self) -> set[str]:
        """Return the names of the properties that the type has, or one of its choices."""
        definitions: Json = {**self.schema.get("definitions", {}), **self.schema.get("$defs", {})}
        named, waiting, seen = set[str](), [self.schema], 0
        while waiting and seen < _MAX_STEPS:
            node, seen = waiting.pop(), seen + 1
            named |= cast("Json", node.get("properties", {})).keys()
            for key in ("anyOf", "oneOf", "allOf"):
                waiting += [each for each in node.get(key, []) if isinstance(each, dict)]
            name = str(node.get("$ref", "")).rpartition("/")[2]
            if name in definitions:
                waiting.append(definitions.pop(name))
        return named

    def validated(self, value: Any) -> Any:
        """The value as the type has it.

        Raises:
            OutputMisfitError: it does not fit.
            AgentCoreError: a check of the type's own broke.
        """
        try:
            if isinstance(self.check, TypeAdapter):
                return self.check.validate_json(json.dumps(value))
            found = list(islice(self.check.errors(value), _MAX_ERRORS))
        except ValidationError as error:
            wrong = error.errors(include_url=False, include_context=False, include_input=False)
            raise OutputMisfitError(
                [_error(each["loc"], each["msg"]) for each in wrong[:_MAX_ERRORS]]
            ) from None
        except (CheckTooSlowError, RecursionError):
            message = "it takes too long to check, or is nested too deeply"
            raise OutputMisfitError([{"path": "$", "message": message}]) from None
        except Exception as error:
            message = f"the check of {self.name} broke: {type(error).__name__}: {error}"
            raise AgentCoreError(ErrorCode.INTERNAL_ERROR, message) from error
        if found:
            raise OutputMisfitError([_error(e.absolute_path, e.message) for e in found])
        return value


@lru_cache(maxsize=64)
def _expected_once(output_type: Any, mode: OutputMode, retries: int) -> ExpectedOutput:
    return ExpectedOutput(output_type, mode=mode, retries=retries)


def expected_output(output_type: Any, *, mode: OutputMode, retries: int) -> ExpectedOutput:
    """Return the expected answer for an `output_type`, compiled once for all runs with this type.

    Raises:
        ConfigError: see `ExpectedOutput`.
    """
    if isinstance(output_type, ExpectedOutput):
        return output_type
    try:
        hash(output_type)
    except TypeError:  # a JSON Schema, or an annotation that cannot be hashed
        return ExpectedOutput(output_type, mode=mode, retries=retries)
    return _expected_once(output_type, mode, retries)


def _no_type(given: object) -> str | None:
    """Return why something can be no type: it is an instance of one; None if it may be a type."""
    kind = type(given)
    if isinstance(given, BaseModel) or (is_dataclass(given) and not isinstance(given, type)):
        return f"it is {kind_of(given)}; give the class, output_type={kind.__name__}"
    if isinstance(given, bool | int | float | bytes | set | frozenset):
        what = kind_of(cast("object", given))
        return f"it is {what}; give a type, such as output_type={kind.__name__}"
    return None


def _error(place: Any, message: str) -> dict[str, str]:
    return {"path": json_path(place), "message": str(message)[:_MAX_MESSAGE]}


def _reason(output_type: object, error: Exception) -> str:
    """Return why a type cannot be used, without pydantic's advice."""
    if isinstance(error, PydanticSchemaGenerationError):
        what = error.message.partition(" for ")[2].partition(". Set ")[0] or kind_of(output_type)
        return f"{what} has no JSON Schema; give a pydantic model, a dataclass or a TypedDict"
    if isinstance(error, PydanticUndefinedAnnotation):
        return f"it mentions {quoted(str(error.name))}, which is not defined where it is used"
    if isinstance(output_type, str) or (
        isinstance(error, PydanticUserError) and error.code == "class-not-fully-defined"
    ):
        named = re.search(r"should define `(?:ForwardRef\('(.*?)'\)|([^`]*))`", str(error))
        name = output_type if isinstance(output_type, str) else named and (named[1] or named[2])
        what = quoted(name) if name else "a name"
        return f"{what} is a text that names no class known here; give the class itself"
    return str(error)


def _unusable(reason: str) -> ArgumentError:
    first = reason.partition("\n")[0][:_MAX_MESSAGE]
    return ArgumentError(f"output_type cannot be used: {first}", "output_type")


def _wrapped(schema: Json) -> Json:
    """Return the schema of an object whose one property is the answer; definitions stay on top."""
    moved = _moved(schema)
    inner = {key: value for key, value in moved.items() if key not in _OF_THE_ROOT}
    outer: Json = {
        "type": "object",
        "properties": {_WRAPPED: inner},
        "required": [_WRAPPED],
        "additionalProperties": False,
    }
    return outer | {key: moved[key] for key in _OF_THE_ROOT - {"$id"} if key in moved}


def _moved(schema: Any) -> Any:
    """Return the schema with references that are still correct once it is wrapped."""
    if isinstance(schema, list):
        return [_moved(part) for part in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    moved: Json = {}
    for key, value in cast("Json", schema).items():
        if key == "$ref" and value.startswith("#") and not value.startswith(_DEFINITIONS):
            moved[key] = f"#/properties/{_WRAPPED}{value[1:]}"
        elif key in _BY_NAME:
            moved[key] = {name: _moved(part) for name, part in cast("Json", value).items()}
        else:
            moved[key] = value if key in _VALUES else _moved(value)
    return moved


def _answer_tool(output: OutputFormat) -> ToolDefinition:
    about = f" The answer: {output.description}" if output.description else ""
    return ToolDefinition(
        name=FINAL_ANSWER,
        description="Give the final answer, once the work is done, in place of an answer in words."
        + about,
        input_schema={"type": "object", "properties": {}, **output.output_schema},
        tags={"internal", "readonly"},
    )


class _NullsLeftOut:
    """Leaves out the optional properties that are null, as a strict mode writes absent ones.

    A schema may refer to itself in more ways than there is time for: a value is then kept as it is.
    """

    def __init__(self, schema: Json) -> None:
        named: Json = schema.get("definitions", {})
        self._definitions: Json = {"#": schema, **named, **schema.get("$defs", {})}
        self._steps = _MAX_STEPS

    def of(self, value: Any, schema: Any) -> Any:
        """The value without them."""
        self._steps -= 1
        if not isinstance(schema, dict) or not isinstance(value, dict | list) or self._steps < 0:
            return cast("Any", value)
        node, found = cast("Json", schema), cast("Any", value)
        if (reference := node.get("$ref")) is not None:
            return self.of(found, self._definitions.get(str(reference).rpartition("/")[2]))
        for key in ("anyOf", "oneOf", "allOf"):
            for choice in cast("list[Any]", node.get(key, [])):
                found = self.of(found, choice)
        if isinstance(found, list):
            return [self.of(item, node.get("items")) for item in cast("list[Any]", found)]
        properties: Json = node.get("properties", {})
        required: list[str] = node.get("required", [])
        return {
            name: self.of(item, properties.get(name))
            for name, item in cast("Json", found).items()
            if item is not None or name in required or name not in properties
        }
