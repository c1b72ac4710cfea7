"""Runs with a memory, and the models that extract and recall: shared by the tests of memory."""

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent_core import AgentRuntime, EventType, ModelRequest
from agent_core.providers.scripted import Calls, Fails, Hangs, Says, ScriptedProvider
from agent_core.types import RuntimeEvent, TextBlock, Usage
from isolation import Home

Reply = str | Says | Calls | Fails | Hangs
Script = Reply | Callable[[ModelRequest], Reply]
WISH = "Please remember that I like short answers."
OUTCOMES = {EventType.MEMORY_EXTRACTION_COMPLETED, EventType.MEMORY_EXTRACTION_FAILED}


def purpose(request: ModelRequest) -> str:
    return str(request.metadata.get("purpose", "run"))


def said(request: ModelRequest) -> str:
    return "\n".join(
        b.text for m in request.messages for b in m.content if isinstance(b, TextBlock)
    )


def user_ids(request: ModelRequest) -> list[str]:
    return re.findall(r"\[user (node_\w+)\]", said(request))


def entry(sources: list[str], **values: Any) -> dict[str, Any]:
    return {
        "decision": "new",
        "category": "user",
        "filename": "short-answers",
        "summary": "Likes short answers",
        "tags": ["style"],
        "content": "The user wants short answers.",
        "source_node_ids": sources,
    } | values


def answer(*entries: dict[str, Any], explicit: bool = True) -> str:
    return json.dumps({"explicit": explicit, "memories": list(entries)})


def remembers(request: ModelRequest) -> Reply:
    return Says(text=answer(entry(user_ids(request)[:1])), usage=Usage(total_tokens=9))


def split(run: Script, **others: Script) -> ScriptedProvider:
    def reply(request: ModelRequest) -> Reply:
        chosen = others.get(purpose(request), run)
        return chosen(request) if callable(chosen) else chosen

    return ScriptedProvider(reply)


async def told(made: AgentRuntime, *types: EventType, session_id: str = "s1") -> list[RuntimeEvent]:
    page = await made.replay_session(session_id)
    return [event for event in page.events if event.event_type in types]


async def until_scanned(
    made: AgentRuntime, count: int = 1, session_id: str = "s1"
) -> list[RuntimeEvent]:
    for _ in range(300):
        if len(found := await told(made, *OUTCOMES, session_id=session_id)) >= count:
            return found
        await asyncio.sleep(0.02)
    raise AssertionError(f"fewer than {count} extractions ended")


def files(home: Home) -> list[Path]:
    return sorted((home.path / "memory").glob("*/*.md"))
