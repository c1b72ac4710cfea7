"""Facts that a compaction carries over word for word, independent of the model's summary.

A summary is a model's words: it may omit that a user has forbidden something. The facts collected
here cannot be forgotten: they precede every summary, and are collected again from the whole path
each time.
"""

import re
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

from msgspec import Struct
from msgspec.structs import asdict, replace

from agent_core.text import estimate_text
from agent_core.text.json_text import JsonObject, JsonValue, table
from agent_core.text.quotes import QUOTED, without_quotes
from agent_core.types import (
    JsonBlock,
    Node,
    NodeType,
    ToolCallBlock,
    ToolResultBlock,
    UtcDatetime,
    is_user_message,
)

LONGEST_STATEMENT = 300
"""Longest text of one rule, and of a message that is kept whole, in characters."""

_LARGE = 3
"""The goal and the latest message may each take one part in `_LARGE` of the room."""
_CHANGES_FILES = {"code.write_file", "code.edit_file"}
_CREATES_TASK = "agent.task_create"
_ENDS_TASK = {"agent.task_complete", "agent.task_fail", "agent.task_cancel"}
_LOADED = {
    NodeType.INSTRUCTION_CONTEXT: ("instructions", "path"),
    NodeType.SKILL_CONTEXT: ("skill", "name"),
    NodeType.MEMORY_CONTEXT: ("memory", "ids"),
    NodeType.TOOL_CONTEXT: ("tool", "name"),
}
_HASH_CHARS = 16
_SENTENCE_END = re.compile(r"(?<=[.!?;])[\s\"')\]]+|(?<=[\u3002\uff01\uff1f\uff1b])|[\r\n]+")
_LIST_MARK = re.compile(r"\A(?:[-*+•>]|\d{1,3}[.)])\s+")
_MARK = r"['`\u00b4\u02bc\u2018\u2019]"
_ENGLISH = (
    rf"always|never|must|mustn{_MARK}?t|don{_MARK}?t|do\s+not|shall|shan{_MARK}?t|should\s+not|"
    rf"shouldn{_MARK}?t|can\s?not|can{_MARK}t|may\s+not|make\s+sure|be\s+sure|ensure|avoid|"
    r"from\s+now\s+on|at\s+all\s+times|under\s+no\s+circumstances|no\s+matter\s+what|"
    r"forbidden|prohibited|not\s+allowed|required|only\s+use|use\s+only|prefer|remember|"
    r"insist|every\s+time|without\s+exception|refrain|stop|no\s+longer|mandatory"
)
_CHINESE = (
    r"必须|必需|不要|不得|不许|不准|不可|不能|不应|禁止|严禁|务必|一定要|永远|永不|总是|始终|一律|"
    r"绝不|绝对不|切勿|请勿|切记|"
    r"(?<![特分级級类類区區差告个個性辨识識])[别別](?![的人处處名墅])|勿|只能|只许|只准|只用|"
    r"从现在起|从今以后|今后|以后都|"
    r"以后请|记住|每次都|应当|应该|無論|無须|必須|總是|絕不|請勿|從現在起"
)
_RULE = re.compile(rf"\b(?:{_ENGLISH})\b|{_CHINESE}", re.IGNORECASE)


class Statement(Struct, frozen=True):
    """Words of the user, or about a node, and the id of their node."""

    node_id: str
    text: str


class KeptFacts(Struct, frozen=True, kw_only=True):
    """Facts that are carried over.

    All that the user says is in the user's own words: without content that came with a message, and
    without what a message quotes.

    Attributes:
        as_of: the time of the last node of the path; None if the path is empty.
        goal, latest: the first and the last message of the user.
        rules: sentences that set a rule, oldest first, each once.
        messages: short messages of the user, newest first, each once, but for those above.
        loaded: instructions, skills and memories in view, with their hashes; attached again.
        tasks: Tasks that have not ended.
        plans: plan and task instructions that have not been acted on.
        files: changed files, in the order of their first change.
    """

    as_of: UtcDatetime | None = None
    goal: Statement | None = None
    latest: Statement | None = None
    rules: Sequence[Statement] = ()
    messages: Sequence[Statement] = ()
    loaded: Sequence[Statement] = ()
    tasks: Sequence[Statement] = ()
    plans: Sequence[Statement] = ()
    files: Sequence[str] = ()

    def details(self, artifact_id: str | None) -> JsonObject:
        """Return the facts as they are stored with the compaction."""
        return {
            "as_of": self.as_of and self.as_of.isoformat(),
            "goal": asdict(self.goal) if self.goal else None,
            "latest_message": asdict(self.latest) if self.latest else None,
            "rules": list(map(asdict, self.rules)),
            "messages": list(map(asdict, self.messages)),
            "loaded": list(map(asdict, self.loaded)),
            "tasks": list(map(asdict, self.tasks)),
            "plans": list(map(asdict, self.plans)),
            "files_changed": list(self.files),
            "artifact_id": artifact_id,
        }

    def texts(self) -> Iterator[str]:
        """Yield every text that the result has to contain."""
        said = (self.goal, self.latest, *self.rules, *self.messages)
        for fact in (*said, *self.loaded, *self.tasks, *self.plans):
            if fact is not None:
                yield fact.text
        yield from self.files


def collect_kept(
    path: Sequence[Node], open_plans: Iterable[Node], changed: Iterable[str] = ()
) -> KeptFacts:
    """Collect the facts of a whole path, root first, that must not be lost.

    `changed` are files known to have changed, besides the files that tools have written.
    """
    asked = [
        Statement(node.node_id, without_quotes(node.words).strip())
        for node in path
        if is_user_message(node)
    ]
    said = [message for message in asked if not _is_quoted(message.text)]
    rules: dict[str, Statement] = {}
    for message in said:
        for text in rule_statements(message.text):
            _put_last(rules, Statement(message.node_id, text))
    goal = said[0] if said else None
    # A message without words, such as a picture, leaves no other one in its place.
    latest = said[-1] if len(said) > 1 and said[-1] is asked[-1] else None
    messages: dict[str, Statement] = {}
    above = {_key(fact.text) for fact in (goal, latest) if fact} | rules.keys()
    for node, message in zip(filter(is_user_message, path), asked, strict=True):
        text = message.text
        if _is_quoted(text):  # nothing else was said: a short paste is the message itself
            text = without_quotes(node.words, pastes=False).strip()
        if len(text) <= LONGEST_STATEMENT and not _is_quoted(text) and _key(text) not in above:
            _put_last(messages, Statement(node.node_id, text))
    return KeptFacts(
        as_of=path[-1].created_at if path else None,
        goal=goal,
        latest=latest,
        rules=list(rules.values()),
        messages=list(messages.values())[::-1],
        loaded=_loaded_texts(path),
        tasks=_open_tasks(path),
        plans=[Statement(node.node_id, node.node_type.value) for node in open_plans],
        files=_changed_files(path, list(changed)),
    )


def _is_quoted(text: str) -> bool:
    """Return whether nothing of a text is its author's own."""
    return not text.replace(QUOTED, "").strip()


def _changed_files(path: Sequence[Node], changed: Sequence[str]) -> list[str]:
    """Return the files that tools have written, and the changed ones, each once."""
    known = set(changed)
    names: list[str] = []
    for call, _, _ in _successful_calls(path):
        file = call.arguments.get("path") if call.name in _CHANGES_FILES else None
        if isinstance(file, str):
            above = (at for at, sign in enumerate(file) if sign == "/")
            ends = (file[at + 1 :] for at in above) if file.startswith("/") else ()
            names.append(next((end for end in ends if end in known), file.removeprefix("./")))
    return list(dict.fromkeys(" ".join(name.split()) for name in (*names, *changed)))


def _put_last(statements: dict[str, Statement], statement: Statement) -> None:
    """Add a statement; what was said before moves to its last place."""
    key = _key(statement.text)
    statements.pop(key, None)
    statements[key] = statement


def _key(text: str) -> str:
    """Return the part of a text that is the same in its repetitions."""
    return " ".join(text.split()).casefold().rstrip(" .!\u3002\uff01")


def rule_statements(text: str) -> list[str]:
    """Return the sentences of `text` that set a rule, each at most `LONGEST_STATEMENT` long."""
    statements: list[str] = []
    for sentence in _SENTENCE_END.split(text):
        statement = _LIST_MARK.sub("", " ".join(sentence.split()))
        found = _RULE.search(statement)
        if found is None:
            continue
        if len(statement) > LONGEST_STATEMENT:  # keep the part that holds the rule
            last = len(statement) - LONGEST_STATEMENT
            start = max(0, min(found.start() - LONGEST_STATEMENT // 3, last))
            statement = statement[start : start + LONGEST_STATEMENT].strip()
        statements.append(statement)
    return statements


def _loaded_texts(path: Sequence[Node]) -> list[Statement]:
    """Return the latest versions of loaded instructions, skills and memories, with hashes."""
    found: dict[tuple[str, str], Statement] = {}
    for node in path:
        if node.node_type not in _LOADED:
            continue
        kind, key = _LOADED[node.node_type]
        names, hashes = node.metadata.get(key, []), node.metadata.get("hashes")
        known = table(hashes)
        for name in cast("list[Any]", names) if isinstance(names, list) else [names]:
            version = str(known.get(str(name)) or node.metadata.get("hash") or "")
            line = f"{kind} {_line(name)} {version[:_HASH_CHARS]}".rstrip()
            found.pop((kind, _line(name)), None)
            found[kind, _line(name)] = Statement(node.node_id, line)
    return list(found.values())


def _open_tasks(path: Sequence[Node]) -> list[Statement]:
    """Return the Tasks that were created and have not ended, by id and title."""
    tasks: dict[str, Statement] = {}
    for call, result, node in _successful_calls(path):
        fields: Mapping[str, JsonValue] = call.arguments
        for block in result.content:
            data: object = block.data if isinstance(block, JsonBlock) else None
            if isinstance(data, dict):
                fields = {**fields, **cast("JsonObject", data)}
                break
        task_id = fields.get("task_id")
        if not isinstance(task_id, str):
            continue
        if call.name == _CREATES_TASK:
            title = call.arguments.get("title") or call.arguments.get("goal") or ""
            tasks[task_id] = Statement(node.node_id, f"{task_id}: {_line(title)}".rstrip(": "))
        elif call.name in _ENDS_TASK:
            tasks.pop(task_id, None)
    return list(tasks.values())


def _successful_calls(
    path: Sequence[Node],
) -> Iterator[tuple[ToolCallBlock, ToolResultBlock, Node]]:
    """Yield every call that succeeded, its result, and the node that holds the result."""
    calls: dict[str, ToolCallBlock] = {}
    for node in path:
        calls.update((call.tool_call_id, call) for call in node.calls)
        for result in node.results:
            call = calls.get(result.tool_call_id)
            if call is not None and not result.is_error:
                yield call, result, node


def _line(value: object) -> str:
    return " ".join(str(value).split())[:200]


def fit_kept(kept: KeptFacts, room: int) -> tuple[KeptFacts, str]:
    """Reduce the kept facts to `room` tokens.

    Long messages keep their beginning. Then the oldest are dropped of what does not fit: files
    beyond a quarter of the room, short messages, rules, and all other files.

    Returns:
        The facts that stay, and the text of all others for an artifact; empty if all of them stay.
    """
    rest: list[str] = []

    def shorten(message: Statement | None) -> Statement | None:
        most = room // _LARGE
        if message is None or estimate_text(message.text) <= most:
            return message
        rest.append(f"Message {message.node_id} of the user, whole:\n{message.text}")
        size = len(message.text) * most // estimate_text(message.text)
        return Statement(message.node_id, message.text[:size].rstrip() + " […]")

    def fits(kept: KeptFacts) -> bool:
        return estimate_text(render_kept(kept, "art_" + "0" * 28)) <= room

    short = replace(kept, goal=shorten(kept.goal), latest=shorten(kept.latest))
    rules, messages = short.rules, short.messages[::-1]

    def drop_files(fits: Callable[[Sequence[str]], bool]) -> None:
        nonlocal short
        if gone := _count_excess(short.files, fits):
            rest.append(_list("Files changed earlier", short.files[:gone]))
            short = replace(short, files=short.files[gone:])

    drop_files(lambda files: sum(map(estimate_text, files)) <= room // 4 or fits(short))
    if gone := _count_excess(messages, lambda left: fits(replace(short, messages=left))):
        rest.append(_list("Older messages of the user", (text.text for text in messages[:gone])))
        short = replace(short, messages=messages[gone:][::-1])
    if gone := _count_excess(rules, lambda left: fits(replace(short, rules=left))):
        rest.append(_list("Older rules the user has set", (rule.text for rule in rules[:gone])))
        short = replace(short, rules=rules[gone:])
    drop_files(lambda files: fits(replace(short, files=files)))
    return short, "\n\n".join(rest)


_T = TypeVar("_T")


def _count_excess(items: Sequence[_T], fits: Callable[[Sequence[_T]], bool]) -> int:
    """Return how many of the first items to drop until the rest fits; all if it never does."""
    return bisect(range(len(items)), False, key=lambda count: fits(items[count:]))


def render_kept(kept: KeptFacts, artifact_id: str | None) -> str:
    """Return the `<kept>` part of a compaction."""
    parts: list[str] = []
    if kept.goal:
        parts.append(f"First goal of the user:\n{kept.goal.text}")
    if kept.latest:
        parts.append(f"Latest message of the user:\n{kept.latest.text}")
    lists = {
        "Rules the user has set": kept.rules,
        "Short messages of the user, newest first": kept.messages,
        "Loaded (attached again where there is room)": kept.loaded,
        "Open Tasks": kept.tasks,
        "Instructions not acted on yet": kept.plans,
    }
    parts += [
        _list(title, (fact.text for fact in facts)) for title, facts in lists.items() if facts
    ]
    if kept.files:
        parts.append(_list("Files changed so far", kept.files))
    if artifact_id:
        parts.append(f"More of this, older or longer, is in artifact {artifact_id}.")
    if kept.as_of:
        parts.append(f"(as of {kept.as_of:%Y-%m-%d %H:%M} UTC: later messages are newer than this)")
    return f"<kept>\n{escape_kept(chr(10).join(parts))}\n</kept>"


def escape_kept(text: str) -> str:
    """Escape `text` so that it cannot close the `<kept>` part."""
    return text.replace("</kept", "&lt;/kept")


def _list(title: str, texts: Iterable[str]) -> str:
    return f"{title}:\n" + "\n".join(f"- {text}" for text in texts)
