"""Fixtures made from stored sessions, and a model that replays them.

A recording is YAML, to be read and compared by people: the definitions of the program's own tools,
and the model calls of a session, each with the new part of its request and with the reply.
"""

import asyncio
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import unified_diff
from itertools import count
from pathlib import Path
from typing import Any, cast

import yaml

from agent_core.api.session import Session
from agent_core.errors import ConfigError, ErrorCode, ProviderError, StorageError
from agent_core.opening import read_text, write_text
from agent_core.providers.scripted import Piece, Says, ScriptedCall, ScriptedProvider
from agent_core.redaction import Redactor
from agent_core.text import join_surrogates
from agent_core.tools.registry import RESERVED
from agent_core.types import (
    ContentBlock,
    EventType,
    ImageBlock,
    InspectResult,
    ModelMessage,
    ModelReasoningDelta,
    ModelRequest,
    ReasoningBlock,
    Role,
    StopReason,
    TextBlock,
    ToolCallBlock,
    ToolDefinition,
    ToolResultBlock,
    Usage,
)
from agent_core.types.event_details import (
    ChildEvent,
    ContextBuilt,
    ErrorDetails,
    ModelGaveUp,
    ModelReplied,
)

FORMAT = 1
_IDS = re.compile(r"\b(sess|run|agent|node|evt|art|req|mem)_[0-9a-f]{28}\b")
_TIMES = re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?")
_QUOTED = re.compile(r"[\x7f-\x9f\u2028\u2029\ufeff]")
"""Characters that YAML reads as line breaks, or drops, unless they are escaped."""
_OF_MEMORY = frozenset({"system.memory", "memory_catalog", "internal.recall_memory"})
"""Parts of a request with the user's memories, which a runtime without a disk does not have."""
_SHOWN_DIFFERENCES = 8
_NO_SECRETS = Redactor({})

Plain = dict[str, Any]
"""A request in the form that is recorded and compared: `system`, `tools` and `messages`."""


async def record(session: Session, path: str | Path | None = None) -> Path:
    """Write the model calls of a stored session and its children as a fixture.

    Texts that look like secrets are replaced, as when a session is replayed. Calls that were
    cancelled, or refused by a budget, are left out. An existing file is overwritten.

    Args:
        session: `runtime.session("id")`.
        path: of the fixture, for example `tests/recordings/lamps.yaml`; by default the session's
            id with `.yaml`, in the current folder.

    Returns:
        The path of the fixture.

    Raises:
        StorageError: `session_not_found`, or the file cannot be written.
    """
    run_ids: list[str] = []
    project, seq = "", 1
    while seq is not None:
        page = await session.replay(seq)
        project, seq = page.session.cwd, page.next_seq
        found = dict.fromkeys(event.run_id for event in page.events if event.run_id)
        run_ids += [run_id for run_id in found if run_id not in run_ids]
    tools: dict[str, Any] = {}
    calls: list[tuple[str, Plain]] = []
    for run_id in run_ids:  # grows by the runs of children
        run = await session.inspect_run(run_id)
        for event in run.events:
            details = event.details
            child = details.child_run_id if isinstance(details, ChildEvent) else None
            if child is not None and child not in run_ids:
                run_ids.append(child)
        calls += _calls_of(run, project, tools)
    calls.sort(key=lambda call: call[0])
    recording = {"recording": FORMAT, "tools": tools, "calls": list(_shortened(calls))}
    text = yaml.dump(recording, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    target = Path(path or f"{session.session_id}.yaml")
    try:
        await asyncio.to_thread(_write, target, text)
    except OSError as error:
        message = f"the recording {target} cannot be written: {error.strerror}"
        raise StorageError(ErrorCode.STORAGE_ERROR, message) from error
    return target


def _write(target: Path, text: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    write_text(target, text)


def replay(path: str | Path, *, project_dir: str | Path | None = None) -> ScriptedProvider:
    """Return a model that gives the recorded replies to the recorded requests, and fails otherwise.

    The system prompt, the messages, the names of the tools and the definitions of the program's own
    tools are compared. The model's name and settings are not; nor are prompts and tools of this
    package, which change with its versions; the user's memories, which no runtime in memory has;
    and ids, points in time and the path of the project, which appear in a recording as `<run_1>`,
    `<time>` and `<project>`. Each reply is given once. A request that was not recorded fails with
    its differences from the nearest one.

    Args:
        path: a fixture that `record` has written.
        project_dir: the project of the run; the current folder by default.

    Raises:
        ConfigError: the file is missing, is not a recording, or is of another version.
    """
    tools, calls = _read(Path(path))
    project = str(Path(project_dir or Path.cwd()).resolve())
    waiting = list(enumerate(calls, start=1))

    def answer(request: ModelRequest) -> list[Piece]:
        names = _Names(project)
        asked = _plain(request, names)
        own = {tool.name: _definition(tool) for tool in request.tools if tool.name in tools}
        for place, (_, call) in enumerate(waiting):
            if call["request"] == asked and all(tools[name] == own[name] for name in own):
                del waiting[place]
                return _reply(call["reply"], names)
        raise AssertionError(_explain(asked, own, waiting, tools, path))

    made = ScriptedProvider([answer] * len(calls), provider="replay")
    made.retries_itself = True  # the recorded failures had been retried by then
    return made


# --- requests and replies in plain words ----------------------------------------------------------


class _Names:
    """Placeholders for ids, points in time and the project's path, numbered as they occur."""

    def __init__(self, project: str) -> None:
        self._project = project
        self._shown: dict[str, str] = {}
        self._counts: dict[str, Iterator[int]] = {}

    def id(self, raw: str, kind: str) -> str:
        """Return the placeholder of an id."""
        if raw not in self._shown:
            number = next(self._counts.setdefault(kind, count(1)))
            self._shown[raw] = f"<{kind}_{number}>"
        return self._shown[raw]

    def hide(self, value: Any, *, is_reply: bool = False) -> Any:
        """Replace the parts of a JSON-like value that differ from run to run by placeholders.

        A reply keeps what could not be restored: times, and ids that are not in its request.
        """
        if isinstance(value, str):
            text = join_surrogates(value)
            if self._project and self._project != "/":
                text = text.replace(self._project, "<project>")
            if is_reply:
                return _IDS.sub(lambda found: self._shown.get(found[0], found[0]), text)
            text = _IDS.sub(lambda found: self.id(found[0], found[1]), text)
            return _TIMES.sub("<time>", text)
        return _walk(value, lambda inner: self.hide(inner, is_reply=is_reply))

    def restore(self, value: Any) -> Any:
        """Replace the placeholders in a recorded value by the values of this request."""
        if isinstance(value, str):
            for raw, shown in self._shown.items():
                value = value.replace(shown, raw)
            return value.replace("<project>", self._project)
        return _walk(value, self.restore)


def _walk(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        if "child_run_id" in fields:  # the price of a child's model is not part of its report
            fields = {key: inner for key, inner in fields.items() if key != "usage"}
        return {change(key): change(inner) for key, inner in fields.items()}
    if isinstance(value, list):
        return [change(each) for each in cast("list[Any]", value)]
    return value


def _plain(request: ModelRequest, names: _Names) -> Plain:
    """Return a request without the parts that differ from run to run or belong to the package."""
    plain = {
        "system": [
            {block.block_id: names.hide(block.content)}
            if not (block.metadata.get("asset_id") or block.block_id == "runtime_state")
            else block.block_id
            for block in request.system
            if block.block_id not in _OF_MEMORY
        ],
        "tools": _tool_names(tool.name for tool in request.tools),
        "messages": [_message(message, names) for message in request.messages],
    }
    return _NO_SECRETS.payload(plain)


def _tool_names(tools: Iterable[str]) -> list[str]:
    return sorted(name for name in tools if name not in _OF_MEMORY)


def _definition(tool: ToolDefinition) -> dict[str, Any]:
    return {"description": join_surrogates(tool.description), "parameters": tool.input_schema}


def _message(message: ModelMessage, names: _Names) -> dict[str, Any]:
    """Return a message as JSON: its content, with its role as the key."""
    blocks = [_block(block, names) for block in message.content]
    only = blocks[0] if len(blocks) == 1 else {}
    content = only["text"] if only.keys() == {"text"} else blocks
    return {message.role.value: content}


def _block(block: ContentBlock, names: _Names, *, is_reply: bool = False) -> dict[str, Any]:
    plain: dict[str, Any]
    match block:
        case TextBlock(text=text):
            plain = {"text": text}
        case ReasoningBlock(text=text):
            plain = {"reasoning": text}
        case ToolCallBlock():
            shown = names.id(block.tool_call_id, "call")
            said = block.metadata.get("invalid_arguments", block.arguments)
            plain = {"call": block.name, "id": shown, "arguments": said}
        case ToolResultBlock():
            inner = [_block(part, names) for part in block.content]
            plain = {"result": names.id(block.tool_call_id, "call"), "content": inner}
            if block.is_error:
                plain["is_error"] = True
        case ImageBlock(data=data):
            digest = hashlib.sha256((data or "").encode()).hexdigest()[:16]
            plain = {"image": block.mime_type, "sha256": digest}
        case _:
            plain = block.model_dump(mode="json", exclude_defaults=True, exclude={"metadata"})
            plain = {block.type: plain}
    return names.hide(plain, is_reply=is_reply)


def _calls_of(
    run: InspectResult, project: str, tools: dict[str, Any]
) -> Iterator[tuple[str, Plain]]:
    """Yield the model calls of a run with their times; add definitions of tools to `tools`."""
    nodes = {node.node_id: node for node in run.nodes}
    requests = iter(run.requests)
    offered: Sequence[str] = ()
    call: Plain | None = None
    names, begun, reported = _Names(project), "", ModelReplied()
    for event in run.events:
        details = event.details
        if isinstance(details, ContextBuilt):
            request, names = next(requests), _Names(project)
            offered = offered if details.tools is None else details.tools
            begun = event.created_at.isoformat()
            call = {"request": {**_plain(request, names), "tools": _tool_names(offered)}}
            for tool in request.tools:
                if not tool.name.startswith(RESERVED):
                    tools[tool.name] = _definition(tool)
        elif isinstance(details, ModelReplied):
            reported = details
        elif call is None:
            continue
        elif isinstance(details, ModelGaveUp) and isinstance(
            failure := details.error, ErrorDetails
        ):
            error = {
                "code": failure.code,
                "message": failure.message,
                "retryable": failure.retryable,
            }
            if failure.code != ErrorCode.BUDGET_EXCEEDED:  # no model was called
                yield begun, {**call, "reply": {"error": error}}
            call = None
        elif event.event_type is EventType.MESSAGE_COMPLETED and event.node_id in nodes:
            node = nodes[event.node_id]
            if node.role is Role.ASSISTANT:
                content = [_block(block, names, is_reply=True) for block in node.content]
                usage = reported.usage or Usage()
                counts = usage.model_dump(exclude={"raw_usage"}, exclude_defaults=True)
                reply = {"content": content, "stop_reason": reported.stop_reason}
                yield begun, {**call, "reply": {**reply, "usage": counts}}
                call = None


def _reply(reply: Mapping[str, Any], names: _Names) -> list[Piece]:
    """Return the pieces of a recorded reply, with the ids of this request."""
    if error := reply.get("error"):
        return [ProviderError(error["code"], error["message"], error["retryable"])]
    pieces: list[Piece] = []
    for block in names.restore(reply["content"]):
        if "text" in block:
            pieces.append(Says(text=block["text"]))
        elif "reasoning" in block:
            pieces.append(ModelReasoningDelta(text=block["reasoning"]))
        elif "call" in block:
            pieces.append(ScriptedCall(name=block["call"], arguments=block["arguments"]))
    usage = Usage.model_validate(reply.get("usage", {}))
    stop = StopReason(reply["stop_reason"])
    return [*pieces, Says(text="", stop_reason=stop, usage=usage)]


# --- the file -------------------------------------------------------------------------------------


def _shortened(calls: Sequence[tuple[str, Plain]]) -> Iterator[Plain]:
    """Yield the calls, each with the part of its request that is new since the call before it."""
    before: Plain = {}
    history: list[Any] = []
    for _, call in calls:
        request = call["request"]
        messages = request["messages"]
        same = 0
        while same < min(len(messages), len(history)) and messages[same] == history[same]:
            same += 1
        short: Plain = {key: request[key] for key in ("system", "tools")}
        short = {key: value for key, value in short.items() if before.get(key) != value}
        if same:
            short["after"] = same
        short["messages"] = messages[same:]
        yield {"request": short, "reply": call["reply"]}
        before, history = request, messages


def _read(path: Path) -> tuple[dict[str, Any], list[Plain]]:
    """Read the tools and the whole calls of a recording.

    Raises:
        ConfigError: it cannot be used.
    """
    try:
        raw: Any = yaml.load(read_text(path), Loader=_LOADER)  # noqa: S506 - a safe one
    except OSError as error:
        message = f"the recording {path} cannot be read: {error.strerror}; write it with record()"
        raise ConfigError(ErrorCode.CONFIG_ERROR, message) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        message = f"the recording {path} is not YAML: {' '.join(str(error).split())}"
        raise ConfigError(ErrorCode.CONFIG_ERROR, message) from error
    recording = cast("Plain", raw) if isinstance(raw, dict) else {}
    version = recording.get("recording")
    if version != FORMAT:
        message = (
            f"{path} is not a recording of format {FORMAT} (`recording: {version}`); record again"
        )
        raise ConfigError(ErrorCode.CONFIG_ERROR, message)
    try:
        calls: list[Plain] = []
        request: Plain = {"messages": []}
        for call in cast("list[Plain]", recording["calls"]):
            new: Plain = call["request"]
            messages = request["messages"][: new.get("after", 0)] + new["messages"]
            request = {**request, **new, "messages": messages}
            request.pop("after", None)
            calls.append({"request": request, "reply": call["reply"]})
        tools: dict[str, Any] = dict(recording["tools"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        message = f"the recording {path} is damaged: {type(error).__name__} {error}; record again"
        raise ConfigError(ErrorCode.CONFIG_ERROR, message) from error
    return tools, calls


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, and repeats values instead of referring to them."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - as the base class has it
        """Return true, so that every value is written in full."""
        return True


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text.strip("\n") else None
    if _QUOTED.search(text):
        style = '"'
    node: yaml.ScalarNode = dumper.represent_scalar(  # pyright: ignore[reportUnknownMemberType]
        "tag:yaml.org,2002:str", text, style=style
    )
    return node


_Dumper.add_representer(str, _write_text)
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


# --- what differs ---------------------------------------------------------------------------------


def _explain(
    asked: Plain,
    own: Mapping[str, Any],
    waiting: Sequence[tuple[int, Plain]],
    tools: Mapping[str, Any],
    path: str | Path,
) -> str:
    """Describe the differences between a request and the nearest recorded one."""
    head = f"the request was not recorded in {path}"
    if not waiting:
        return f"{head}: all of its replies have been given"
    ranked = [
        (len(found), number, found)
        for number, call in waiting
        if (found := list(_differences(call["request"], asked, "")) + _of_tools(own, tools))
    ]
    _, number, found = min(ranked, key=lambda entry: entry[:2])
    lines = found[:_SHOWN_DIFFERENCES]
    if len(found) > len(lines):
        lines.append(f"… and {len(found) - len(lines)} more")
    return "\n".join([f"{head}; from call {number} it differs in", *lines])


def _of_tools(own: Mapping[str, Any], tools: Mapping[str, Any]) -> list[str]:
    return [
        line
        for name in sorted(own)
        for line in _differences(tools[name], own[name], f"definition of {name}")
    ]


def _differences(recorded: Any, asked: Any, place: str) -> Iterator[str]:
    """Yield the places where two values differ, each with both values."""
    if recorded == asked:
        return
    if isinstance(recorded, dict) and isinstance(asked, dict):
        before, after = cast("Plain", recorded), cast("Plain", asked)
        for key in dict.fromkeys([*before, *after]):
            inner = f"{place}.{key}" if place else key
            yield from _differences(before.get(key), after.get(key), inner)
    elif isinstance(recorded, list) and isinstance(asked, list):
        olds, news = cast("list[Any]", recorded), cast("list[Any]", asked)
        for index in range(max(len(olds), len(news))):
            old, new = (each[index] if index < len(each) else None for each in (olds, news))
            yield from _differences(old, new, f"{place}[{index}]")
    elif isinstance(recorded, str) and isinstance(asked, str) and "\n" in recorded + asked:
        lines = unified_diff(recorded.splitlines(), asked.splitlines(), "", "", lineterm="", n=1)
        shown = "\n".join(f"    {line}" for line in list(lines)[2:40])
        yield f"- {place}:\n{shown}"
    else:
        yield f"- {place}: recorded {_short(recorded)}, asked {_short(asked)}"


def _short(value: Any) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 300 else f"{text[:300]}…"
