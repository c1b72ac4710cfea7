"""What must not be lost in a compaction: core carries it over itself, word for word.

A model's summary may forget that the user said "never push". What is collected here cannot be
forgotten: it stands before every summary, and is collected anew from the whole path each time.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent_core.compact.cut import is_user_message
from agent_core.compact.facts import changed_files, loaded_texts, open_tasks
from agent_core.compact.rules import rule_statements
from agent_core.types import Node

Estimate = Callable[[str], int]
"""Tokens of a text."""

_LARGE = 3
"""The goal and the latest message take at most one part in `_LARGE` of the room each."""


@dataclass(frozen=True, slots=True)
class Statement:
    """Words of the user, or about a node, and where they stand."""

    node_id: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What is carried over.

    Attributes:
        goal, latest: the first and the last message of the user.
        rules: sentences that set a rule, oldest first, each once.
        loaded: instructions, skills and memories in view, with their hashes; attached again.
        tasks: Tasks that go on.
        plans: plan and task instructions that have not been acted on.
        files: what was changed so far, in the order of the first change.
    """

    goal: Statement | None = None
    latest: Statement | None = None
    rules: Sequence[Statement] = ()
    loaded: Sequence[Statement] = ()
    tasks: Sequence[Statement] = ()
    plans: Sequence[Statement] = ()
    files: Sequence[str] = ()

    def details(self, artifact_id: str | None) -> dict[str, Any]:
        """As it is stored with the compaction."""
        one = {"goal": self.goal, "latest_message": self.latest}
        many = {"rules": self.rules, "loaded": self.loaded, "tasks": self.tasks}
        return {
            **{name: _stored(said) if said else None for name, said in one.items()},
            **{name: list(map(_stored, said)) for name, said in many.items()},
            "plans": list(map(_stored, self.plans)),
            "files_changed": list(self.files),
            "artifact_id": artifact_id,
        }

    def texts(self) -> Iterator[str]:
        """Everything that has to be found in the result."""
        for said in (self.goal, self.latest, *self.rules, *self.loaded, *self.tasks, *self.plans):
            if said is not None:
                yield said.text
        yield from self.files


def collect_kept(path: Sequence[Node], open_plans: Iterable[Node]) -> Kept:
    """Find what must not be lost on a whole path, root first."""
    said = [Statement(n.node_id, n.text.strip()) for n in path if is_user_message(n)]
    spoken = [statement for statement in said if statement.text]
    return Kept(
        goal=spoken[0] if spoken else None,
        latest=spoken[-1] if len(spoken) > 1 else None,
        rules=list(_rules(spoken)),
        loaded=[Statement(node_id, text) for node_id, text in loaded_texts(path)],
        tasks=[Statement(node_id, text) for node_id, text in open_tasks(path)],
        plans=[Statement(node.node_id, node.node_type.value) for node in open_plans],
        files=changed_files(path),
    )


def fitted(kept: Kept, room: int, estimate: Estimate) -> tuple[Kept, str]:
    """Bring what is kept within `room` tokens.

    Long messages keep their beginning, and the oldest rules go first; then, should it still be
    too much, the oldest files.

    Returns:
        What stays, and the text of all that does not, for an artifact; empty if all of it stays.
    """
    share = room // _LARGE
    left: list[str] = []
    short = replace(
        kept,
        goal=_shortened(kept.goal, share, estimate, left),
        latest=_shortened(kept.latest, share, estimate, left),
    )
    rules = _fewest(
        len(short.rules),
        lambda gone: _costs(replace(short, rules=short.rules[gone:]), estimate) <= room,
    )
    short, gone_rules = replace(short, rules=short.rules[rules:]), short.rules[:rules]
    files = _fewest(
        len(short.files),
        lambda gone: _costs(replace(short, files=short.files[gone:]), estimate) <= room,
    )
    short, gone_files = replace(short, files=short.files[files:]), short.files[:files]
    if gone_rules:
        left.append(_list("Older rules the user has set", (rule.text for rule in gone_rules)))
    if gone_files:
        left.append(_list("Files changed earlier", gone_files))
    return short, "\n\n".join(left)


def rendered(kept: Kept, artifact_id: str | None) -> str:
    """The `<kept>` part of a compaction."""
    parts: list[str] = []
    if kept.goal:
        parts.append(f"First goal of the user:\n{kept.goal.text}")
    if kept.latest:
        parts.append(f"Latest message of the user:\n{kept.latest.text}")
    lists = {
        "Rules the user has set": kept.rules,
        "Loaded (attached again where there is room)": kept.loaded,
        "Open Tasks": kept.tasks,
        "Instructions not acted on yet": kept.plans,
    }
    parts += [_list(title, (one.text for one in said)) for title, said in lists.items() if said]
    if kept.files:
        parts.append(_list("Files changed so far", kept.files))
    if artifact_id:
        parts.append(f"More of this, older or longer, is in artifact {artifact_id}.")
    return f"<kept>\n{escaped(chr(10).join(parts))}\n</kept>"


def escaped(text: str) -> str:
    """`text` as it stands in the part, which it cannot close."""
    return text.replace("</kept", "&lt;/kept")


def _rules(spoken: Iterable[Statement]) -> Iterator[Statement]:
    """Each rule once, where it was said last: what is said again is in force again."""
    found: dict[str, Statement] = {}
    for message in spoken:
        for text in rule_statements(message.text):
            key = text.casefold().rstrip(" .!\u3002\uff01")
            found.pop(key, None)
            found[key] = Statement(message.node_id, text)
    yield from found.values()


def _shortened(
    said: Statement | None, room: int, estimate: Estimate, left: list[str]
) -> Statement | None:
    if said is None or estimate(said.text) <= room:
        return said
    left.append(f"Message {said.node_id} of the user, whole:\n{said.text}")
    size = len(said.text) * room // estimate(said.text)
    return Statement(said.node_id, said.text[:size].rstrip() + " […]")


def _costs(kept: Kept, estimate: Estimate) -> int:
    return estimate(rendered(kept, "art_" + "0" * 28))


def _fewest(most: int, fits: Callable[[int], bool]) -> int:
    """How many of `most` have to go until it fits; all of them if it never does."""
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return low


def _list(title: str, texts: Iterable[str]) -> str:
    return f"{title}:\n" + "\n".join(f"- {text}" for text in texts)


def _stored(said: Statement) -> dict[str, str]:
    return {"node_id": said.node_id, "text": said.text}
