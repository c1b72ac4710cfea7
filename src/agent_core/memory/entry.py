"""One memory: a Markdown file with a head. The file is the truth; users may edit it."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import cast

from msgspec import Struct, field

from agent_core.assets import FrontMatter, parse_front_matter
from agent_core.text import one_line
from agent_core.text.content import content_hash
from agent_core.text.json_text import JsonObject, JsonValue, strict_json

CATEGORIES = ("user", "feedback", "reference")
"""The folders of the memory."""

_ID = r"[A-Za-z0-9_.:\-]{1,128}"
_WORD_OF_ID = r"[A-Za-z0-9_.:\-]+"
_LONGEST_SLUG = 60
_FIELDS = {
    *("id", "category", "summary", "tags", "created_at", "updated_at"),
    *("source_session_id", "source_node_ids"),
}


class Memory(Struct, frozen=True, kw_only=True, eq=False):
    """The content of one file.

    Attributes:
        memory_id: never changes, nor does the path.
        path: below the memory folder: `user/prefers-tabs-20260102-mem_….md`.
        content: the text below the head.
        extra: other fields of the head, which are kept.
        version: a hash of the file as it was read; empty for one not written yet.
    """

    memory_id: str
    category: str
    path: str
    summary: str
    content: str
    tags: Sequence[str] = ()
    created_at: datetime
    updated_at: datetime
    source_session_id: str = ""
    source_node_ids: Sequence[str] = ()
    extra: Mapping[str, JsonValue] = field(default_factory=JsonObject)
    version: str = ""

    @property
    def head(self) -> JsonObject:
        """Return our own fields of the front matter."""
        return {
            "id": self.memory_id,
            "category": self.category,
            "summary": self.summary,
            "tags": list(self.tags),
            "created_at": self.created_at.isoformat(timespec="seconds"),
            "updated_at": self.updated_at.isoformat(timespec="seconds"),
            "source_session_id": self.source_session_id,
            "source_node_ids": list(self.source_node_ids),
        }

    def as_file(self) -> str:
        """Return the file's text. Values are written as JSON, which YAML reads correctly."""
        head = {**self.head, **self.extra}.items()
        lines = "\n".join(f"{json.dumps(key)[1:-1]}: {_to_json(value)}" for key, value in head)
        return f"---\n{lines}\n---\n\n{self.content.strip()}\n"

    def as_json_line(self) -> str:
        """Return the head as one line of JSON, for a model that chooses or compares."""
        head = {
            "id": self.memory_id,
            "category": self.category,
            "summary": self.summary,
            "tags": list(self.tags),
            "updated_at": self.updated_at.date().isoformat(),
            "source_node_ids": list(self.source_node_ids)[-5:],
        }
        return json.dumps(head, ensure_ascii=False)

    def as_catalog_line(self) -> str:
        """Return the entry in the catalog file."""
        tags = f" [{', '.join(map(one_line, self.tags))}]" if self.tags else ""
        line = f"- [{self.memory_id}]({self.path}) {self.category}: {one_line(self.summary)}"
        return f"{line}{tags}"


def parse_memory(text: str, path: str) -> Memory:
    """Parse the text of a file; `path` is its place below the memory folder.

    Raises:
        ValueError: it is not a memory; the message is for its author.
    """
    head = parse_front_matter(text)
    if head.problem:
        raise ValueError(head.problem)
    memory_id, summary = head.text("id"), one_line(head.text("summary"))
    if not re.fullmatch(_ID, memory_id):
        raise ValueError("the front matter needs an id of letters, digits, _ . : or -")
    if not summary:
        raise ValueError("the front matter needs a summary")
    created = _time(head, "created_at") or datetime.fromtimestamp(0, UTC)
    return Memory(
        memory_id=memory_id,
        category=path.partition("/")[0],
        path=path,
        summary=summary,
        content=head.body.strip(),
        tags=_texts(head.fields.get("tags")),
        created_at=created,
        updated_at=_time(head, "updated_at") or created,
        source_session_id=head.text("source_session_id"),
        source_node_ids=_texts(head.fields.get("source_node_ids")),
        extra={key: value for key, value in head.fields.items() if key not in _FIELDS},
        version=content_hash(text.encode("utf-8", "surrogatepass")),
    )


def find_id(text: str, known: Collection[str]) -> str:
    """Return the one known id in a text, as in `[user node_1]`; else the text itself."""
    if text in known:
        return text
    words = {word.strip(".:") for word in re.findall(_WORD_OF_ID, text)}
    found = [one for one in words if one in known]
    return found[0] if len(found) == 1 else text


def file_name(name: str, memory_id: str, day: datetime) -> str:
    """Return `<name>-<YYYYMMDD>-<id>.md`, with the name made safe for a file."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.removesuffix(".md").lower()).strip("-")
    return f"{slug[:_LONGEST_SLUG].strip('-') or 'memory'}-{day:%Y%m%d}-{memory_id}.md"


def _to_json(value: object) -> str:
    try:
        return strict_json(value, ensure_ascii=False, default=str)
    except (ValueError, RecursionError):
        return json.dumps(str(value)[:200], ensure_ascii=False)


def _texts(value: object) -> list[str]:
    items = cast("list[object]", value) if isinstance(value, list) else [value] if value else []
    return [one_line(str(item)) for item in items]


def _time(head: FrontMatter, key: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(head.text(key))
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
