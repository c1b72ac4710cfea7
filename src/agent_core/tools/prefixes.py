"""Reads the beginning of a typed answer the way its end is read.

A beginning is completed at the last places where that is possible: with the text at its end,
without it, without the last object, and so on. Each is read like a whole answer. What has not ended
yet is open: the functions of a program, such as validators, are not called for what is open,
because the model has not finished it.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct
from pydantic import BaseModel, TypeAdapter
from pydantic_core import PydanticUndefined, SchemaValidator

from agent_core.tools.base import OutputMisfitError
from agent_core.tools.output_functions import FunctionCall
from agent_core.tools.results import parse_answer
from agent_core.tools.schema import Json
from agent_core.tools.values import storable_text

if TYPE_CHECKING:
    from agent_core.tools.output import ExpectedOutput

_MAX_CUTS = 12
"""Places at which a beginning is completed, the last ones first."""
_MAX_OBJECTS = 5
"""Objects in a text that may be the answer that follows it."""
_TOKENS = re.compile(
    r'"(?:[^"\\]++|\\.)*+(?:(")|\\?\Z)'  # a text, and whether it has ended
    r"|[\[\]{},:]"
    r'|[^\s\[\]{},:"]++',  # a number or a word
    re.DOTALL,
)
_HALF_ESCAPE = re.compile(
    r"(?<!\\)(?:\\\\)*((?:\\u[dD][89abAB][0-9a-fA-F]{2})?(?:\\(?:u[0-9a-fA-F]{0,3})?)?)\Z"
)
_NUMBER = re.compile(r"-?(?:\d[\d.eE+-]*)?\Z")
_WORDS = ("true", "false", "null", "NaN", "Infinity", "-Infinity")
_FENCE_END = re.compile(r"\s*`{0,3}\s*\Z")
_CLOSERS = {"{": "}", "[": "]"}
_BRACKETS = "[]{},:"
_NOTHING: Any = object()
_READS = 16
"""A long answer is read again once it has grown by this part of its length."""
_GROWTH = "~"
"""Represents whatever may follow a text."""


class _NotJsonError(ValueError):
    """A text is not the beginning of a JSON value."""


class _Cut(Struct, frozen=True):
    """A beginning, completed.

    Attributes:
        text: a JSON text.
        path: the keys that lead from its value to what is open in it, each to the next; None for
            the last item of a list.
        depth: how many values are open: objects, lists, and a text at the end.
        longer: the same with more text at its end; None if no text is open.
    """

    text: str
    path: Sequence[str | None] = ()
    depth: int = 0
    longer: str | None = None


class _Container(Struct):
    """An object or a list that has not ended.

    Attributes:
        opener: its bracket.
        kept: where its last complete member ends.
        takes_key: the next text is a key.
        key: the last key.
    """

    opener: str
    kept: int
    takes_key: bool
    key: str | None = None


class AnswerReader:
    """Reads the answer of one run while it arrives.

    Args:
        expected: the expected answer; None for plain text.
    """

    def __init__(self, expected: "ExpectedOutput | None") -> None:
        self._expected = expected
        self._before = ""
        self._text = ""
        self._open: Sequence[Any] = ()
        self._check: SchemaValidator | None = None
        self._is_blind = False
        if expected is None or not isinstance(expected.check, TypeAdapter):
            return
        try:
            schema = _Gates(self._is_open).add_to(expected.check)
            self._check = _compile(schema) if schema is not None else None
        except Exception:  # noqa: BLE001 - a schema of a foreign type may have any shape
            self._is_blind = True

    def begin(self, *, continues: bool) -> None:
        """Begin with another message; it may continue the one before, which was cut off."""
        self._before = self._before + self._text if continues else ""
        self._text = ""

    def add(self, text: str, *, from_start: bool = False) -> int:
        """Add the text that has arrived, or with `from_start` replace it; return its length."""
        self._text = text if from_start else self._text + text
        return len(self._before) + len(self._text)

    def read(self) -> Any:
        """Return the value of what has arrived, where that is one of the type already.

        Raises:
            OutputMisfitError: it is not of the type yet.
        """
        if self._expected is None:
            return self._before + self._text
        if self._before:
            try:
                return self._read(self._before + self._text, self._expected)
            except OutputMisfitError:  # perhaps it has started over
                pass
        return self._read(self._text, self._expected)

    def _read(self, text: str, expected: "ExpectedOutput") -> Any:
        body = _without_fence(text)
        if body is None:
            raise _misfit("it is not JSON yet")
        try:
            cuts = _cuts(body)
        except _NotJsonError:
            pass
        else:
            for cut in cuts:
                found = self._read_cut(cut, expected)
                if found is not None:
                    return found[0]
            raise _misfit("it is none of the type yet")
        if expected.tool is not None:  # words may come before the call that answers
            for start in [match.start() for match in re.finditer(r"\{", text)][:_MAX_OBJECTS]:
                try:
                    cuts = _cuts(text[start:])
                except _NotJsonError:
                    continue
                for cut in cuts:
                    found = self._read_cut(cut, expected)
                    if found is not None:
                        return found[0]
        plain = text.strip()
        self._validated(plain + _GROWTH, [plain + _GROWTH], expected)
        return self._validated(plain, [plain], expected)

    def _read_cut(self, cut: _Cut, expected: "ExpectedOutput") -> tuple[Any] | None:
        """Return the value of a completed beginning, in a tuple; None if it is not of the type."""
        if cut.longer is not None and self._fitting(cut.longer, cut, expected) is None:
            return None  # nothing may follow it
        return self._fitting(cut.text, cut, expected)

    def _fitting(self, text: str, cut: _Cut, expected: "ExpectedOutput") -> tuple[Any] | None:
        try:
            value = parse_answer(text)
        except ValueError:
            return None
        for candidate, taken_off in expected.candidates(value, is_open=cut.depth > 0):
            try:
                opened = _open_values(candidate, cut, taken_off)
                return (self._validated(candidate, opened, expected),)
            except OutputMisfitError:
                continue
        return None

    def _validated(self, value: Any, opened: Sequence[Any], expected: "ExpectedOutput") -> Any:
        """Validate a value; raise if anything goes wrong, since it is not of the type yet."""
        if self._is_blind and opened:
            raise _misfit("it has not ended")
        self._open = opened
        try:
            if self._check is None:
                return expected.validated(value)
            return self._check.validate_json(json.dumps(value))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a validator of a program raises anything
            raise _misfit(type(error).__name__) from None

    def _is_open(self, value: Any) -> bool:
        """Return whether a value has not ended; an equal value counts as the same."""
        return any(type(value) is type(each) and value == each for each in self._open)


class PartialValues:
    """Gives each new value of an answer that arrives, once."""

    def __init__(self, reader: AnswerReader) -> None:
        self._reader = reader
        self._read_next = 0
        self._shown: Any = _NOTHING

    def begin(self, *, continues: bool) -> None:
        """Begin with another message, see `AnswerReader.begin`."""
        self._reader.begin(continues=continues)
        self._read_next = 0

    def add(self, text: str, *, from_start: bool = False) -> list[Any]:
        """Add text of the message, and return the value that there is now, if it is another one."""
        length = self._reader.add(text, from_start=from_start)
        if length < self._read_next:
            return []
        self._read_next = length + length // _READS  # reading costs time in proportion to the text
        try:
            return self.end(self._reader.read())
        except OutputMisfitError:
            return []

    def end(self, value: Any) -> list[Any]:
        """Return the value, if it is another one than the last, and no function is to be called."""
        if isinstance(value, FunctionCall):
            return []
        try:
            is_same = self._shown is not _NOTHING and bool(value == self._shown)
        except Exception:  # noqa: BLE001 - classes of a program compare as they like
            is_same = False
        self._shown = value
        return [] if is_same else [value]


def _misfit(message: str) -> OutputMisfitError:
    return OutputMisfitError([{"path": "$", "message": message}])


def _without_fence(text: str) -> str | None:
    """Return the beginning without a code fence around it; None: a fence may be about to begin."""
    body = text.lstrip()
    if not body.startswith("`"):
        return text
    if not body.startswith("```"):
        return None if "```".startswith(body) else text
    first, line_end, rest = body.partition("\n")
    language = first[3:].strip()
    if any(not (sign.isalnum() or sign in "_-") for sign in language):
        return text
    return _FENCE_END.sub("", rest) if line_end else None


def _cuts(text: str) -> list[_Cut]:
    """Return where the beginning of a JSON text can be completed, the last place first.

    Raises:
        _NotJsonError: it is not JSON. The parser finds the faults that this misses.
    """
    scan = _Scan()
    for match in _TOKENS.finditer(text):
        if scan.whole:
            raise _NotJsonError
        sign = match[0][0]
        if sign in _BRACKETS:
            scan.take_bracket(match)
        elif sign == '"':
            scan.take_text(match)
        else:
            scan.take_word(match, is_last=match.end() == len(text))
    return [_Cut(text)] if scan.whole else scan.cuts(text)


class _Scan:
    """The state of a JSON text that is read token by token."""

    def __init__(self) -> None:
        self.whole = False
        self._stack: list[_Container] = []
        self._open_text: int | None = None

    def take_bracket(self, match: re.Match[str]) -> None:
        """Take a bracket, a comma or a colon."""
        sign = match[0]
        inner = self._stack[-1] if self._stack else None
        if sign in _CLOSERS:
            self._stack.append(_Container(sign, match.end(), takes_key=sign == "{"))
        elif inner is None:
            raise _NotJsonError
        elif sign in ",:":
            inner.takes_key = sign == "," and inner.opener == "{"
        elif _CLOSERS[inner.opener] == sign:
            self._stack.pop()
            self._end_value(match.end())
        else:
            raise _NotJsonError

    def take_text(self, match: re.Match[str]) -> None:
        """Take a text, which may be a key, and may not have ended."""
        has_ended = match[1] is not None
        inner = self._stack[-1] if self._stack else None
        if inner is not None and inner.takes_key:
            inner.key = match[0] if has_ended else None
        elif has_ended:
            self._end_value(match.end())
        else:
            self._open_text = match.start()

    def take_word(self, match: re.Match[str], *, is_last: bool) -> None:
        """Take a number or a word; the last one of a text may be incomplete."""
        word = match[0]
        if not (_NUMBER.match(word) or any(each.startswith(word) for each in _WORDS)):
            raise _NotJsonError
        if not is_last or word in _WORDS:
            self._end_value(match.end())

    def cuts(self, text: str) -> list[_Cut]:
        """Return the places at which the text can be completed."""
        found: list[_Cut] = []
        stack = self._stack
        closing = "".join(_CLOSERS[each.opener] for each in reversed(stack))
        path = [_name_of(each.key) for each in stack]
        if self._open_text is not None:
            half = _HALF_ESCAPE.search(text, self._open_text)
            said = text[: half.start(1)] if half else text
            longer = f'{said}{_GROWTH}"{closing}'
            found.append(_Cut(f'{said}"{closing}', path, len(stack) + 1, longer))
        for depth in range(len(stack), max(0, len(stack) - _MAX_CUTS), -1):
            kept = text[: stack[depth - 1].kept]
            found.append(_Cut(kept + closing[len(stack) - depth :], path[: depth - 1], depth))
        return found

    def _end_value(self, end: int) -> None:
        if self._stack:
            self._stack[-1].kept = end
        else:
            self.whole = True


def _name_of(token: str | None) -> str | None:
    """Return the key that a token is, as it is read."""
    if token is None:
        return None
    try:
        return storable_text(json.loads(token))
    except ValueError:
        return None


def _open_values(value: Any, cut: _Cut, taken_off: int) -> list[Any]:
    """Return what is open in a value, from the outermost inwards.

    Args:
        value: of the cut, or a part of that.
        cut: where the text was completed.
        taken_off: how many objects were taken off around the value.
    """
    opened: list[Any] = []
    for step in range(taken_off, cut.depth):
        if opened:
            key = cut.path[step - 1]
            try:
                value = value[-1] if key is None else value[key]
            except (LookupError, TypeError):
                break
        opened.append(value)
    return opened


# --- functions of a program in the schema of a type -----------------------------------------------


_FUNCTIONS = frozenset(("function-before", "function-after", "function-wrap"))
_NO_SCHEMAS = frozenset((
    "metadata", "serialization", "config", "function", "cls", "expected", "members", "default",
    "custom_error_context", "computed_fields", "return_schema",
))  # fmt: skip
"""Parts of a schema that are no schemas, or not of what is checked."""
_ESCAPES = "__get_pydantic_core_schema__"


class _Gates:
    """Puts a gate before each function of a program in the schema of a type.

    A gate passes a value that has ended to the function, and an open value past it. Where
    the function makes the value what it is, nothing open gets through.
    """

    def __init__(self, is_open: Callable[[Any], bool]) -> None:
        self._is_open = is_open
        self._count = 0

    def add_to(self, adapter: TypeAdapter[Any]) -> Any:
        """Return the schema with gates; None if the type needs none."""
        schema = self._node(cast("Any", adapter.core_schema))
        return schema if self._count else None

    def _node(self, schema: Json) -> Json:
        node = {key: self._child(key, value) for key, value in schema.items()}
        kind = node["type"]
        if kind in _FUNCTIONS and _is_of_a_program(node["function"]["function"]):
            is_maker = kind != "function-before" and _makes_another_type(node)
            return self._gate(node, None if is_maker else node["schema"])
        if kind == "function-plain" and _is_of_a_program(node["function"]["function"]):
            return self._gate(node, None)
        if kind == "model" and _has_own_code(node):
            bare = _without(node, "custom_init", "post_init")
            return self._gate(node, _then(bare, _with_private_attributes))
        if kind == "dataclass" and node.get("post_init"):
            return self._gate(node, _then(_without(node, "post_init"), _require_all_fields))
        return node

    def _child(self, key: str, value: Any) -> Any:
        if key in _NO_SCHEMAS:
            return value
        if isinstance(value, dict):
            inner = cast("Json", value)
            if isinstance(inner.get("type"), str):
                return self._node(inner)
            return {name: self._child("", each) for name, each in inner.items()}
        if isinstance(value, list):
            return [self._child("", each) for each in cast("list[Any]", value)]
        if isinstance(value, tuple):  # a choice of a union, with its label
            return tuple(self._child("", each) for each in cast("tuple[Any, ...]", value))
        return value

    def _gate(self, node: Json, bare: Json | None) -> Json:
        self._count += 1
        reference = {"ref": node["ref"]} if "ref" in node else {}
        choices = {"ended": _without(node, "ref")}
        if bare is not None:
            choices["open"] = _without(bare, "ref")

        def choose(value: Any) -> str | None:
            if not self._is_open(value):
                return "ended"
            return None if bare is None else "open"

        return {"type": "tagged-union", "choices": choices, "discriminator": choose, **reference}


def _without(node: Json, *keys: str) -> Json:
    return {key: value for key, value in node.items() if key not in keys}


def _then(node: Json, function: Callable[[Any], Any]) -> Json:
    function_schema = {"type": "no-info", "function": function}
    return {
        "type": "function-after",
        "function": function_schema,
        "schema": _without(node, "ref"),
    }


def _is_of_a_program(function: Any) -> bool:
    """Tell whether a function is not one of pydantic's own."""
    while hasattr(function, "func"):
        function = function.func
    function = getattr(function, "__func__", function)
    module = getattr(function, "__module__", None) or ""
    return module.partition(".")[0] not in {"pydantic", "pydantic_core"}


def _makes_another_type(node: Json) -> bool:
    """Return whether a function builds the value, as in the schemas of a program's own classes."""
    function = node["function"]["function"]
    owner = getattr(function, "__self__", None)
    if isinstance(function, type):
        return True
    if isinstance(owner, type) and not (
        issubclass(owner, BaseModel) or is_dataclass(cast("Any", owner))
    ):
        return True
    if getattr(function, "__module__", None) == FunctionCall.__module__:
        return True
    return _ESCAPES in getattr(function, "__qualname__", "")


def _has_own_code(node: Json) -> bool:
    """Tell whether a model runs code of a program when it is made."""
    if node.get("custom_init"):
        return True
    name = node.get("post_init")
    return bool(name) and getattr(node["cls"], name).__name__ != "init_private_attributes"


def _with_private_attributes(model: BaseModel) -> BaseModel:
    """Give a model that was made without its own code its private attributes."""
    kind = type(model)
    found = ((name, each.get_default()) for name, each in kind.__private_attributes__.items())
    defaults = {name: default for name, default in found if default is not PydanticUndefined}
    object.__setattr__(model, "__pydantic_private__", defaults or None)
    return model


def _require_all_fields(made: Any) -> Any:
    """Refuse an object whose own code would have set some of its fields."""
    if all(hasattr(made, each.name) for each in fields(made)):
        return made
    raise ValueError("some of its fields are not set yet")


def _compile(schema: Any) -> SchemaValidator:
    """Compile a schema; the classes in it must not bring their own validators along."""
    compile_anew: Any = SchemaValidator
    return cast("SchemaValidator", compile_anew(schema, _use_prebuilt=False))
