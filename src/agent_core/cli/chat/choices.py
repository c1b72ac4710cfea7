"""The lists that a conversation chooses from: sessions and models."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from agent_core.cli.chat.conversation import Chat
from agent_core.cli.chat.picker import Pages, Picker, PickerEntry
from agent_core.cli.sheet import status_of, title_of
from agent_core.config.load import resolve_model
from agent_core.config.models import ModelConfig
from agent_core.config.services import COMPATIBLE, public_service
from agent_core.errors import AgentCoreError
from agent_core.history.figures import format_age
from agent_core.text import visible_line
from agent_core.text.json_text import JsonObject, array
from agent_core.types import SessionSummary

_FIRST_PAGE = 30
_PAGE = 200
_ASK_S = 5.0
_LISTS = {
    "ollama": ("/api/tags", "models", "name"),
    **dict.fromkeys(("openai", *COMPATIBLE), ("/models", "data", "id")),
}
"""Where a server of each kind lists its models: the path, the key of the list, and of a name."""


async def choose_session(chat: Chat, *, everywhere: bool) -> str | None:
    """Let the user choose a session of this project, or of all; None: they did not."""
    title = "Sessions of all projects" if everywhere else "Sessions of this project (--all: all)"
    picker = Picker(title, _sessions(chat, everywhere=everywhere))
    return await chat.line.pick(picker)


async def choose_model(chat: Chat) -> str | None:
    """Let the user choose a model, configured or of its server; None: they did not."""
    picker = Picker("Model of the next messages", _models(chat), takes_other=True)
    return await chat.line.pick(picker)


async def choose_waiting(chat: Chat) -> str | None:
    """Let the user choose a message that waits; None: they did not."""

    async def pages() -> Pages:
        waiting = [
            PickerEntry(each.key, visible_line(each.text), [f"{each.word:<7}"])
            for each in chat.waiting()
        ]
        yield waiting[::-1]

    return await chat.line.pick(Picker("Messages that wait; Enter takes one back", pages()))


async def _sessions(chat: Chat, *, everywhere: bool) -> Pages:
    project = None if everywhere else chat.setup.project
    offset, size = 0, _FIRST_PAGE
    while True:
        found = await chat.runtime.session_summaries(size, offset, project=project)
        yield [_session(chat, each, names_project=everywhere) for each in found]
        if len(found) < size:
            return
        offset, size = offset + size, _PAGE


def _session(chat: Chat, summary: SessionSummary, *, names_project: bool) -> PickerEntry:
    title, folder = chat.clean(title_of(summary)), chat.clean(summary.cwd)
    facts = [f"{format_age(summary.updated_at):<10}", f"{status_of(summary):<9}"]
    if names_project:
        title = f"{title}  {_from_home(folder)}"
    bare = summary.session_id.removeprefix("sess_")
    return PickerEntry(
        summary.session_id,
        title,
        facts,
        words=f"{bare} {folder}" if names_project else bare,
        is_current=chat.has_sent and summary.session_id == chat.session_id,
    )


def _from_home(folder: str) -> str:
    home = str(Path.home())
    return f"~{folder[len(home) :]}" if folder.startswith(f"{home}/") else folder


async def _models(chat: Chat) -> Pages:
    config = chat.setup.config
    known = dict.fromkeys([chat.model_name, config.model.full_name, *config.model_overrides])
    yield [_model(chat, name) for name in known]
    model = config.model
    with suppress(AgentCoreError):
        model = resolve_model(config, chat.model)
    async for names in _served(model):
        yield [_model(chat, name) for name in names]


def _model(chat: Chat, name: str) -> PickerEntry:
    profile = chat.setup.config.model_overrides.get(name)
    text = name
    if profile is not None:
        with suppress(AgentCoreError):
            text = f"{name}  {resolve_model(chat.setup.config, name).full_name}"
    return PickerEntry(name, text, is_current=name == chat.model_name)


async def _served(model: ModelConfig) -> AsyncIterator[Sequence[str]]:
    """Yield the models that a server of the user's own has; a silent server yields none."""
    place = _LISTS.get(model.provider)
    if place is None or public_service(model.provider, model.base_url) is not None:
        return
    from agent_core.providers.base import ProviderRegistry  # noqa: PLC0415 - needs the HTTP modules
    from agent_core.providers.http_provider import HttpProvider  # noqa: PLC0415

    path, key, name = place
    listed: Any = None
    with suppress(AgentCoreError, TimeoutError, OSError, ValueError):
        adapter = ProviderRegistry().create(model)
        try:
            async with asyncio.timeout(_ASK_S):
                if isinstance(adapter, HttpProvider):
                    listed = (await adapter.look_up(path)).get(key)
        finally:
            await adapter.close()
    entries = array(listed)
    tables = [cast("JsonObject", each) for each in entries if isinstance(each, dict)]
    names = [table.get(name) for table in tables]
    yield [f"{model.provider}:{each}" for each in names if isinstance(each, str) and each]
