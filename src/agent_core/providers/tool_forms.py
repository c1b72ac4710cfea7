"""The schemas of tools in the forms that services accept.

One tool that a service refuses would fail every request. A schema is therefore rewritten where its
meaning is kept: a call is checked against the tool's own schema in any case, so the service may be
shown a wider one that says the rest in words. A tool without such a form is left out alone, and so
is a tool that the service refuses, for the rest of the run.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from operator import is_
from typing import Any, cast

from msgspec import Struct, field

from agent_core.config.services import COMPATIBLE
from agent_core.providers.failures import is_refused_request
from agent_core.providers.requests import wire_name
from agent_core.text.json_text import JsonSchema, JsonValue
from agent_core.types import (
    ErrorPayload,
    ModelCompleted,
    ModelEvent,
    ModelRequest,
    ToolCallBlock,
    ToolDefinition,
)

LEFT_OUT = "left_out"
"""Key of the details of a `model_retry`: the tools that are left out from now on."""

MOST_REFUSALS = 16
"""The most refusals after which a run continues without the refused tools; a later one fails."""

_MOST_SEARCHES = 10
"""The most requests in which a run looks for a refused tool that is not named, halving the rest."""

_MOST_RUNS = 256
_OWN = ("code.", "agent.", "internal.")

_CHOICES = ("anyOf", "oneOf", "allOf")
_CONDITIONS = (
    *("not", "enum", "const", "if", "then", "else", "dependentRequired"),
    *("dependentSchemas", "dependencies", "$ref"),
)
_MEMBERS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MOST_STEPS = 20
_LONGEST_WORDS = 400


class NoFormError(ValueError):
    """A schema has no form that the service accepts; the text is the reason as one clause."""


class ToolForm(Struct, frozen=True):
    """The part of JSON Schema that a service accepts in the schema of a tool.

    Attributes:
        service: for messages.
        choices: `anyOf`, `oneOf`, `allOf` and conditions may be at the top.
        plain_keys: the names of arguments have letters, digits, `_`, `.` and `-`, at most 64.
        tuples: a list of schemas for the first elements of an array is `prefixItems`; otherwise
            every element may have any of them.
        known_required: every required argument is described.
    """

    service: str
    choices: bool = True
    plain_keys: bool = False
    tuples: bool = True
    known_required: bool = False

    def of(self, schema: Mapping[str, JsonValue]) -> tuple[JsonSchema, Mapping[str, str]]:
        """Return a schema in this form, and the arguments' own names by the names it has.

        Raises:
            NoFormError: it has none.
        """
        root = self._part(schema)
        if not self.choices and root.keys() & {*_CHOICES, *_CONDITIONS}:
            root = _without_choices(root)
        kind = root.get("type", "object")
        if kind != "object":
            if not (isinstance(kind, list) and "object" in kind):
                raise NoFormError("its arguments are not an object")
            root["type"] = "object"
        root.setdefault("type", "object")
        if self.known_required and (missing := _undescribed(root)):
            root["properties"] = {**root.get("properties", {}), **{name: {} for name in missing}}
        names: Mapping[str, str] = {}
        if self.plain_keys:
            root, names = _with_plain_keys(root)
        return root, names

    def _part(self, schema: Any) -> JsonSchema:
        node: JsonSchema = dict(cast("Mapping[str, JsonValue]", schema))
        for key, value in node.items():
            if key in _MEMBERS and isinstance(value, dict):
                members = cast("JsonSchema", value)
                node[key] = {name: self._any_part(part) for name, part in members.items()}
            elif key in _CHOICES and isinstance(value, list):
                node[key] = [self._any_part(part) for part in cast("list[Any]", value)]
            elif key in {"items", "not", "additionalProperties"}:
                node[key] = self._any_part(value)
        if isinstance(node.get("items"), list) or "prefixItems" in node:
            self._write_tuple(node)
        kind = node.get("type")
        if (kind == "array" or (isinstance(kind, list) and "array" in kind)) and (
            node.get("items") is True or not node.keys() & {"items", "prefixItems"}
        ):
            node["items"] = {}
        for word, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if isinstance(is_exclusive := node.get(word), bool):  # as in the fourth draft
                del node[word]
                if is_exclusive and limit in node:
                    node[word] = node.pop(limit)
        return node

    def _any_part(self, part: Any) -> Any:
        if isinstance(part, list):
            return [self._any_part(each) for each in cast("list[Any]", part)]
        return self._part(part) if isinstance(part, dict) else part

    def _write_tuple(self, node: JsonSchema) -> None:
        """Write the elements of a tuple, which has two spellings, as the service does."""
        older = isinstance(node.get("items"), list)
        first = cast("list[Any]", node.pop("items") if older else node.pop("prefixItems"))
        first = [self._any_part(each) for each in first]
        rest = node.pop("additionalItems", None) if older else node.get("items")
        if "$schema" in node:
            del node["$schema"]  # its words belong to the newest draft now
        if self.tuples:
            node["prefixItems"] = first
            if rest is not None:
                node["items"] = self._any_part(rest)
            return
        kinds = [cast("JsonSchema", each) for each in [*first, rest] if isinstance(each, dict)]
        distinct = [each for number, each in enumerate(kinds) if each not in kinds[:number]]
        node["items"] = {"anyOf": distinct} if len(distinct) > 1 else dict(*distinct)
        if len(distinct) > 1:
            _say(node, f"the elements in order: {_words(first)}")


FORMS: Mapping[str, ToolForm] = {
    "anthropic": ToolForm("Anthropic", choices=False, plain_keys=True),
    "bedrock": ToolForm("Bedrock", choices=False, plain_keys=True),
    "gemini": ToolForm("Gemini", choices=False, known_required=True),
    "ollama": ToolForm("Ollama", choices=False, tuples=False),
    "openai": ToolForm("OpenAI", choices=False, tuples=False),
    "local": ToolForm("the local engine", choices=False, tuples=False),
    **{name: ToolForm(name, choices=False, tuples=False) for name in COMPATIBLE},
}
"""The form of each built-in provider."""


def tool_fault(provider: str, tool: ToolDefinition) -> str:
    """Return why a provider cannot be offered this tool, as one clause; empty if it can."""
    form = FORMS.get(provider)
    try:
        if form is not None:
            form.of(tool.input_schema)
    except NoFormError as error:
        return f"{form.service if form else provider} takes no such schema: {error}"
    return ""


class FittedTools(Struct, frozen=True):
    """The tools of a request as the service is offered them.

    Attributes:
        tools: in the service's form, without those that are left out.
        faults: why others are left out, by name.
        names: the arguments' own names by those that the service gets, by the tool's name.
        is_changed: they differ from the tools of the request.
    """

    tools: Sequence[ToolDefinition] = ()
    faults: Mapping[str, str] = field(default_factory=dict[str, str])
    names: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    is_changed: bool = False

    def restored(self, reply: ModelEvent) -> ModelEvent:
        """Return a reply whose calls have the arguments' own names; other events as they are."""
        if not self.names or not isinstance(reply, ModelCompleted):
            return reply
        if not any(call.name in self.names for call in reply.tool_calls):
            return reply
        content = [
            block.model_copy(update={"arguments": self._own(block.name, block.arguments)})
            if isinstance(block, ToolCallBlock)
            else block
            for block in reply.content
        ]
        calls = [
            call.model_copy(update={"arguments": self._own(call.name, call.arguments)})
            for call in reply.tool_calls
        ]
        return reply.model_copy(update={"content": content, "tool_calls": calls})

    def _own(self, tool: str, arguments: Any) -> Any:
        names = self.names.get(tool)
        if not names or not isinstance(arguments, dict):
            return arguments
        given = cast("JsonSchema", arguments)
        return {names.get(name, name): value for name, value in given.items()}


class _Refusals(Struct):
    """The tools that a service has refused in one run.

    Attributes:
        faults: why tools are left out, by name.
        untried: tools that are withheld until the tools in `trial` were accepted, in groups.
        trial: tools among which a refused one is looked for.
        turn: length of the conversation at the last refusal: a longer one was accepted.
        count: refusals that named a tool.
        searches: refusals that named none.
    """

    faults: dict[str, str] = field(default_factory=dict[str, str])
    untried: list[list[str]] = field(default_factory=list[list[str]])
    trial: list[str] = field(default_factory=list[str])
    turn: int = 0
    count: int = 0
    searches: int = 0


class _FittedTool(Struct, frozen=True):
    """One tool and its form.

    Attributes:
        tool: as the request has it.
        shown: as the service is offered it; None if it is left out.
        fault: why it is left out.
        names: the arguments' own names by those that the service gets.
    """

    tool: ToolDefinition
    shown: ToolDefinition | None
    fault: str = ""
    names: Mapping[str, str] = field(default_factory=dict[str, str])


class ToolFitter:
    """Fits the tools of requests to a service, and remembers for each run which ones it refuses."""

    def __init__(self, form: ToolForm) -> None:
        self._form = form
        self._runs: dict[object, _Refusals] = {}
        self._last: tuple[Sequence[ToolDefinition], FittedTools] = ((), FittedTools())
        self._made: dict[int, _FittedTool] = {}

    def fit(
        self, tools: Sequence[ToolDefinition], request: ModelRequest | None = None
    ) -> FittedTools:
        """Return the tools in the service's form; the same ones are fitted once.

        Args:
            tools: to be fitted.
            request: whose tools they are; those that were refused in its run are left out.
        """
        known, fitted = self._last
        if not (len(known) == len(tools) and all(map(is_, known, tools))):
            self._made = {id(tool): self._made.get(id(tool)) or self._fit(tool) for tool in tools}
            made = [self._made[id(tool)] for tool in tools]
            shown = [each.shown for each in made if each.shown is not None]
            fitted = FittedTools(
                shown,
                {each.tool.name: each.fault for each in made if each.fault},
                {each.tool.name: each.names for each in made if each.names},
                len(shown) != len(tools) or not all(map(is_, shown, tools)),
            )
            self._last = tools, fitted
        if not self._runs or request is None:
            return fitted
        refusals = self._runs.get(request.metadata.get("run_id"))
        return _without_refused(fitted, refusals, request) if refusals else fitted

    def leave_out(
        self, refusal: ErrorPayload, offered: Sequence[ToolDefinition], request: ModelRequest
    ) -> list[str]:
        """Leave out the offered tools that a refusal names, in this run; return their names."""
        known = self._runs.get(request.metadata.get("run_id"))
        is_enough = known is not None and known.count >= MOST_REFUSALS
        refused = [] if is_enough else refused_tools(refusal, offered)
        if refused:
            refusals = self._of(request)
            refusals.count += 1
            why = f"{self._form.service} refuses its schema"
            refusals.faults |= dict.fromkeys(refused, why)
        return refused

    def narrow(
        self, refusal: ErrorPayload, offered: Sequence[ToolDefinition], request: ModelRequest
    ) -> bool:
        """Withhold half of the tools among which one is refused that the service does not name.

        The tools of the program itself are known to be accepted. Return False if there is
        nothing to withhold, or the refusal is about something else.
        """
        if not (is_refused_request(refusal) and re.search(_ABOUT_SCHEMAS, refusal.message)):
            return False
        foreign = [tool.name for tool in offered if not tool.name.startswith(_OWN)]
        known = self._runs.get(request.metadata.get("run_id"))
        trial = (known and known.trial) or foreign
        hidden = len(trial) - len(trial) // 2 if len(trial) > 1 else len(trial)
        if not trial or hidden >= len(offered) or (known and known.searches > _MOST_SEARCHES):
            return False
        refusals = self._of(request)
        refusals.searches += 1
        if refusals.searches > _MOST_SEARCHES:
            withheld = [*trial, *(name for group in refusals.untried for name in group)]
            refusals.faults |= dict.fromkeys(withheld, f"{self._form.service} refuses one of them")
            refusals.untried, refusals.trial = [], []
        elif len(trial) > 1:
            middle = len(trial) // 2
            refusals.untried.append(trial[middle:])
            refusals.trial = trial[:middle]
        else:
            refusals.faults[trial[0]] = f"{self._form.service} refuses a request with it"
            refusals.trial = refusals.untried.pop() if refusals.untried else []
        return True

    def _of(self, request: ModelRequest) -> _Refusals:
        """Return the refusals of a run; those of the oldest run are forgotten."""
        run = request.metadata.get("run_id")
        if run not in self._runs and len(self._runs) >= _MOST_RUNS:
            del self._runs[next(iter(self._runs))]
        refusals = self._runs.setdefault(run, _Refusals())
        refusals.turn = len(request.messages)
        return refusals

    def _fit(self, tool: ToolDefinition) -> _FittedTool:
        try:
            schema, names = self._form.of(tool.input_schema)
        except NoFormError as error:
            return _FittedTool(tool, None, f"{self._form.service} takes no such schema: {error}")
        shown = tool
        if schema != tool.input_schema:
            shown = tool.model_copy(update={"input_schema": schema})
        return _FittedTool(tool, shown, names=names)


def _without_refused(
    fitted: FittedTools, refusals: _Refusals, request: ModelRequest
) -> FittedTools:
    """Return the tools without those that the service refuses in this run."""
    if len(request.messages) != refusals.turn:
        refusals.turn = len(request.messages)
        refusals.trial = refusals.untried.pop() if refusals.untried else []
    withheld = {name for group in refusals.untried for name in group}
    shown = [
        tool
        for tool in fitted.tools
        if tool.name not in withheld and tool.name not in refusals.faults
    ]
    return FittedTools(shown, {**fitted.faults, **refusals.faults}, fitted.names, is_changed=True)


def say_left_out(faults: Mapping[str, str]) -> str:
    """Return which tools are left out, and why."""
    return f"left out: {', '.join(f'{name} ({fault})' for name, fault in faults.items())}"


def with_left_out(refusal: ErrorPayload, faults: Mapping[str, str]) -> ErrorPayload:
    """Return a refusal that says which tools are left out of the rest of the run, if any are."""
    if not faults:
        return refusal
    message = f"{refusal.message} - {say_left_out(faults)}"
    details = {**refusal.details, LEFT_OUT: list(faults)}
    return refusal.model_copy(update={"message": message, "details": details})


_NUMBERED = (
    r"(?i)(?:tools|function_?declarations)\W{1,6}(\d{1,4})\b"
    r"(?!\W{0,2}\w*function_declarations)"
)
_ABOUT_SCHEMAS = r"(?i)schema|declaration|grammar"
_ABOUT_A_TOOL = r"(?i)schema|function|tool|parameter|propert|declaration|grammar|pattern"


def refused_tools(refusal: ErrorPayload, offered: Sequence[ToolDefinition]) -> list[str]:
    """Return the names of the offered tools that a refusal names, or counts from zero."""
    if not is_refused_request(refusal) or not re.search(_ABOUT_A_TOOL, refusal.message):
        return []
    said = refusal.message.partition("\n")[2]  # the first line is the program's own
    words = set(re.findall(r"[A-Za-z0-9_-]+", said))
    found = [tool.name for tool in offered if wire_name(tool.name) in words]
    if not found:
        numbers = sorted({int(number) for number in re.findall(_NUMBERED, refusal.message)})
        found = [offered[number].name for number in numbers if number < len(offered)]
    return found if len(found) < len(offered) else []  # without any tool the run could do nothing


def _without_choices(root: JsonSchema) -> JsonSchema:
    """Return an object's schema without choices and conditions at its top, which it says in words.

    The arguments of all alternatives are arguments then, and required is what all require.

    Raises:
        NoFormError: no alternative is an object.
    """
    node = _with_target(root)
    said = {key: node[key] for key in _CONDITIONS if key in node}
    properties: JsonSchema = dict(node.get("properties", {}))
    required: list[str] = list(node.get("required", ()))
    for key in _CHOICES:
        parts = [_with_target(part, node) for part in _objects(node.get(key, ()), root)]
        if key in node and not parts:
            raise NoFormError(f"no alternative in {key} at its top is an object")
        for part in parts:
            if nested := part.keys() & {*_CHOICES}:
                raise NoFormError(f"{min(nested)} is nested in {key} at its top")
            for name, value in part.get("properties", {}).items():
                known = properties.setdefault(name, value)
                if known != value and known is not True:
                    properties[name] = _either(known, value, both=key == "allOf")
        needs: list[set[str]] = [{*part.get("required", ())} for part in parts]
        shared: set[str] = {name for each in needs for name in each}
        if needs and key != "allOf":
            shared = {name for name in shared if all(name in each for each in needs)}
            alternatives = [sorted(each - shared) for each in needs]
            if any(alternatives):
                said[key] = [{"required": each} for each in alternatives]
        required += sorted(shared - {*required})
    kept = {key: node[key] for key in node if key not in {*_CHOICES, *_CONDITIONS}}
    kept["properties"] = properties
    if required:
        kept["required"] = required
    if said:
        _say(kept, _words(said))
    return kept


def _objects(parts: Iterable[Any], root: JsonSchema) -> list[JsonSchema]:
    """Return the alternatives that an object can fit."""
    tables = (cast("JsonSchema", part) for part in parts if isinstance(part, dict))
    found = [_with_target(part, root) for part in tables]
    return [part for part in found if part.get("type", "object") == "object"]


def _with_target(node: JsonSchema, root: JsonSchema | None = None) -> JsonSchema:
    """Return a schema with the target of its reference in place of it."""
    root = root or node
    for _ in range(_MOST_STEPS):
        target: Any = root
        reference = node.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return node
        for step in reference.removeprefix("#/").split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            target = cast("JsonSchema", target).get(name) if isinstance(target, dict) else None
        if not isinstance(target, dict):
            return node
        node = {**{key: node[key] for key in node if key != "$ref"}, **cast("JsonSchema", target)}
    raise NoFormError("its references at the top do not end")


def _either(one: Any, other: Any, *, both: bool) -> JsonSchema:
    word = "allOf" if both else "anyOf"
    known: object = cast("JsonSchema", one).get(word) if isinstance(one, dict) else None
    parts: list[Any] = cast("list[Any]", known) if isinstance(known, list) else [one]
    return {word: parts if other in parts else [*parts, other]}


def _undescribed(root: JsonSchema) -> list[str]:
    return [name for name in root.get("required", ()) if name not in root.get("properties", {})]


def _with_plain_keys(root: JsonSchema) -> tuple[JsonSchema, Mapping[str, str]]:
    """Return a schema with names of arguments that the service takes, and the own names by them."""
    properties: JsonSchema = root.get("properties", {})
    if all(map(_PLAIN_KEY.fullmatch, properties)):
        return root, {}
    taken = {name for name in properties if _PLAIN_KEY.fullmatch(name)}
    sent: dict[str, str] = {}
    for name in properties:
        plain = name
        if name not in taken:
            plain = base = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_")[:60] or "argument"
            number = 2
            while plain in taken:
                plain, number = f"{base}_{number}", number + 1
            taken.add(plain)
        sent[name] = plain
    schema = {**root, "properties": {sent[name]: properties[name] for name in properties}}
    if "required" in root:
        schema["required"] = [sent.get(name, name) for name in root["required"]]
    return schema, {plain: name for name, plain in sent.items() if plain != name}


def _say(node: JsonSchema, words: str) -> None:
    node["description"] = f"{node.get('description', '')} ({words})".strip()


def _words(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if len(text) <= _LONGEST_WORDS else f"{text[:_LONGEST_WORDS]}…"
