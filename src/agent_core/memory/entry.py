"""One remembered thing: a Markdown file with a head. The file is the truth; users may edit it."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

from agent_core.assets import FrontMatter, parse_front_matter

CATEGORIES = ("user", "feedback", "reference")
"""The folders of the memory."""

_ID = re.compile(r"[A-Za-z0-9_.:\-]{1,128}")
_FIELDS = (
    "id",
    "category",
    "summary",
    "tags",
    "created_at",
    "updated_at",
    "source_session_id",
    "source_node_ids",
)
_LONGEST_SLUG = 60


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Memory:
    """What one file says.

    Attributes:
        memory_id: never changes, nor does the path.
        path: below the memory folder: `user/prefers-tabs-20260102-mem_….md`.
        content: the text below the head.
        extra: fields of the head that are not ours; they are kept.
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
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    version: str = ""

    def as_file(self) -> str:
        """The file's text. Values are written as JSON, which YAML reads as it is meant."""
        head: dict[str, Any] = {
            "id": self.memory_id,
            "category": self.category,
            "summary": self.summary,
            "tags": list(self.tags),
            "created_at": self.created_at.isoformat(timespec="seconds"),
            "updated_at": self.updated_at.isoformat(timespec="seconds"),
            "source_session_id": self.source_session_id,
            "source_node_ids": list(self.source_node_ids),
            **self.extra,
        }
        lines = (f"{json.dumps(k)[1:-1]}: {_json(value)}" for k, value in head.items())
        return "---\n" + "\n".join(lines) + f"\n---\n\n{self.content.strip()}\n"


def parse_memory(text: str, path: str) -> Memory:
    """Read a file; `path` is where it lies below the memory folder.

    Raises:
        ValueError: it is no memory; the message is for whoever edited it.
    """
    head = parse_front_matter(text)
    if head.problem:
        raise ValueError(head.problem)
    memory_id, summary = head.text("id"), one_line(head.text("summary"))
    if not _ID.fullmatch(memory_id):
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
        version=version_of(text),
    )


def version_of(text: str) -> str:
    """A hash by which versions of a text are told apart."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def file_name(name: str, memory_id: str, day: datetime) -> str:
    """`<name>-<YYYYMMDD>-<id>.md`, whatever somebody called it."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.removesuffix(".md").lower()).strip("-")
    return f"{slug[:_LONGEST_SLUG].strip('-') or 'memory'}-{day:%Y%m%d}-{memory_id}.md"


def one_line(text: str) -> str:
    """Without line breaks and control characters: a line of a list stays one."""
    return "".join(c for c in " ".join(text.split()) if c.isprintable())


def _json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
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
