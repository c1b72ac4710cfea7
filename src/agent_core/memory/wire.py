"""What the extraction model answers: a strict form, checked before a single file is touched."""

import json
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agent_core.errors import ErrorCode, SchemaError
from agent_core.providers.jsontext import unfenced
from agent_core.tools.schema import json_path, model_schema

_MOST_ENTRIES = 50

Line = Annotated[str, Field(max_length=500)]
NodeId = Annotated[str, Field(min_length=1, max_length=128)]


class Decision(StrEnum):
    """What is to be done with a thing worth a decision."""

    NEW = "new"
    DUPLICATE = "duplicate"
    UPDATE = "update"
    CONFLICT = "conflict"
    IGNORE = "ignore"


WRITES = frozenset({Decision.NEW, Decision.UPDATE, Decision.CONFLICT})
REWRITES = frozenset({Decision.UPDATE, Decision.CONFLICT})


class Entry(BaseModel):
    """One thing worth a decision."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    decision: Decision
    category: Literal["user", "feedback", "reference"]
    filename: Annotated[str, Field(max_length=200)]
    memory_id: Annotated[str, Field(max_length=128)] | None = None
    summary: Line
    tags: Annotated[list[Annotated[str, Field(max_length=60)]], Field(max_length=12)]
    content: Annotated[str, Field(max_length=6000)]
    source_node_ids: Annotated[list[NodeId], Field(min_length=1, max_length=100)]


class Answer(BaseModel):
    """The whole answer."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    explicit: bool = Field(description="The user asked for something to be remembered.")
    memories: Annotated[list[Entry], Field(max_length=_MOST_ENTRIES)]


def answer_schema() -> str:
    """The JSON schema of an answer, with every reference put in place."""
    return json.dumps(model_schema(Answer), sort_keys=True, ensure_ascii=False)


def parse_answer(text: str) -> Answer:
    """Read an answer.

    Raises:
        SchemaError: it does not have the form; says where.
    """
    try:
        return Answer.model_validate(json.loads(unfenced(text)), strict=False)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise _refused(f"{json_path(first['loc'])}: {first['msg']}") from None
    except (ValueError, RecursionError) as error:
        raise _refused(f"it is no JSON: {str(error)[:200]}") from None


def check_provenance(
    answer: Answer,
    *,
    range_ids: Collection[str],
    user_ids: Collection[str],
    known: Mapping[str, str],
    categories: Collection[str],
) -> None:
    """Make sure that every entry comes from where it may come from.

    Args:
        answer: what the model answered.
        range_ids: the messages it was asked about.
        user_ids: those of them that the user wrote.
        known: the category of every memory there is, by id.
        categories: those that are in use.

    Raises:
        SchemaError: names the entry and what is wrong with it.
    """
    for number, entry in enumerate(answer.memories):
        place = f"$.memories[{number}]"
        if unknown := [one for one in entry.source_node_ids if one not in range_ids]:
            raise _refused(f"{place}.source_node_ids: {unknown[0]!r} is no message of the range")
        if entry.category != "reference" and not set(entry.source_node_ids) <= set(user_ids):
            raise _refused(f"{place}.source_node_ids: {entry.category} takes the user's words only")
        if entry.category not in categories:
            raise _refused(f"{place}.category: {entry.category} is not in use")
        if entry.decision in REWRITES and known.get(entry.memory_id or "") != entry.category:
            raise _refused(f"{place}.memory_id: {entry.memory_id!r} is no {entry.category} memory")
        if entry.decision in WRITES:
            _check_text(entry, place)


def _check_text(entry: Entry, place: str) -> None:
    if not entry.summary.strip() or not entry.content.strip():
        raise _refused(f"{place}: there is nothing to remember in it")
    parts = entry.filename.replace("\\", "/").split("/")
    if ".." in parts or parts[0] in {"", "~"}:
        raise _refused(f"{place}.filename: {entry.filename!r} leads out of the memory folder")


def _refused(what: str) -> SchemaError:
    return SchemaError(ErrorCode.SCHEMA_ERROR, f"the extraction's answer cannot be used: {what}")
