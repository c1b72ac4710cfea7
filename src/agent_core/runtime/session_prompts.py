"""Facts that the prompts of a session are built on, and that stay the same in every process.

The part of a prompt before the conversation is what a service keeps in its cache. So its budgets,
and its block about the repository, are fixed when the session is opened.
"""

import asyncio
from collections import OrderedDict
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from agent_core.config.models import ModelConfig
from agent_core.events import Journal, SessionJournal
from agent_core.git.repository import Repository
from agent_core.text.json_text import table
from agent_core.types import BEGAN_GIVEN, SESSION_INSTRUCTIONS, SessionRecord

_KEY = "prompt"
_KNOWN_SESSIONS = 1024


class SessionPrompt(Struct, frozen=True, kw_only=True):
    """The facts of one session.

    Attributes:
        is_new: the session has had no run yet.
        model, window: the model when it was opened, with its server, and its window; None where
            the settings name the window.
        repository: the branch and whether files were changed, as the prompt says it; empty without
            a repository.
        windows: windows that services named in refusals, by model.
        instructions: those that came with the session, for all its runs.
    """

    is_new: bool = False
    model: str | None = None
    window: int | None = None
    repository: str = ""
    windows: dict[str, int] = {}
    instructions: str = ""

    def system_window(self, model: ModelConfig) -> int:
        """Return the window that the budgets of the system part follow."""
        if self.window is None or self.model != _name_of(model):
            return model.window
        return min(self.window, model.window)

    def sized(self, model: ModelConfig) -> ModelConfig:
        """Return the model with the window that its server has named in this session."""
        if self.window is None and not self.windows:
            return model
        window = self.windows.get(_name_of(model))
        if window is None and model.is_window_assumed and self.model == _name_of(model):
            window = self.window  # the server does not say it again
        return model if window is None else model.with_window(window)


class SessionPrompts:
    """Keeps the facts with the sessions.

    Args:
        journal: stores them.
        project: the folder whose repository they are about.
    """

    def __init__(self, journal: SessionJournal, project: Path) -> None:
        self._journal = journal
        self._project = project
        self._known: OrderedDict[str, SessionPrompt] = OrderedDict()

    def load(self, session: SessionRecord) -> None:
        """Load the facts that an earlier process stored, unless the session is known."""
        if session.session_id in self._known:
            self._known.move_to_end(session.session_id)
        else:
            self._set(session.session_id, _parsed(session))

    async def open(self, journal: Journal, model: ModelConfig) -> SessionPrompt:
        """Return the facts of a run's session; its first run determines and stores them."""
        session_id = journal.run.session_id
        known = self._known.get(session_id, SessionPrompt())
        if not known.is_new:
            return known
        known = SessionPrompt(
            model=_name_of(model),
            window=None if model.is_window_fixed else model.window,
            repository=await self.describe_repository(),
            windows=known.windows,
            instructions=known.instructions,
        )
        self._set(session_id, known)
        if known.window is not None or known.repository:
            journal.remember(_stored(known))
        return known

    async def correct(self, session_id: str, model: ModelConfig, window: int) -> None:
        """Keep the window that a service has named in a refusal.

        Raises:
            StorageError: it cannot be stored.
        """
        known = self._known.get(session_id, SessionPrompt())
        windows = {**known.windows, _name_of(model): window}
        known = replace(known, is_new=False, windows=windows)
        self._set(session_id, known)
        await self._journal.remember(session_id, _stored(known))

    async def describe_repository(self) -> str:
        """Return the branch and whether files are changed now; empty without a repository."""
        repository = Repository.around(self._project)
        if repository is None:
            return ""
        from agent_core.git.work_tree import (  # noqa: PLC0415 - for the first run of a session
            describe_repository,
        )

        return await asyncio.to_thread(describe_repository, repository)

    def _set(self, session_id: str, known: SessionPrompt) -> None:
        self._known[session_id] = known
        self._known.move_to_end(session_id)
        if len(self._known) > _KNOWN_SESSIONS:
            self._known.popitem(last=False)


def _name_of(model: ModelConfig) -> str:
    """Return the name of a model with its server, without what may be secret in the address."""
    address = (model.base_url or "").partition("://")[2]
    server = address.rpartition("@")[2].partition("/")[0].partition("?")[0]
    return f"{model.full_name}@{server}" if server else model.full_name


def _stored(known: SessionPrompt) -> dict[str, Any]:
    """Return the facts as the session's metadata has them."""
    facts = {
        "model": known.model,
        "window": known.window,
        "repository": known.repository,
        "windows": known.windows,
    }
    return {_KEY: {key: value for key, value in facts.items() if value}}


def _parsed(session: SessionRecord) -> SessionPrompt:
    """Read the stored facts; what cannot be read counts as unknown."""
    is_new = session.active_node_id is None or BEGAN_GIVEN in session.metadata
    instructions: object = session.metadata.get(SESSION_INSTRUCTIONS)
    facts = table(session.metadata.get(_KEY))
    model, window = facts.get("model"), facts.get("window")
    repository, named = facts.get("repository"), table(facts.get("windows"))
    return SessionPrompt(
        is_new=is_new and not facts,
        model=model if isinstance(model, str) else None,
        window=window if isinstance(window, int) and window > 0 else None,
        repository=repository if isinstance(repository, str) else "",
        windows={key: size for key, size in named.items() if isinstance(size, int) and size > 0},
        instructions=instructions if isinstance(instructions, str) else "",
    )
