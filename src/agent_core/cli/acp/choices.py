"""The choices of an editor for a session: its mode, its model, and who leads."""

from collections.abc import Sequence
from typing import Literal

from acp.schema import (
    SessionConfigOptionBoolean,
    SessionConfigOptionSelect,
    SessionConfigSelectOption,
    SessionMode,
    SessionModeState,
)

from agent_core.cli.acp.session import EditorSession
from agent_core.types import Mode, PermissionMode

ConfigOptions = list[SessionConfigOptionSelect | SessionConfigOptionBoolean]
SessionConfigOptionCategory = Literal["mode", "model"]

LEADS: dict[str, tuple[Mode, str]] = {
    "agent": ("normal", "One agent does the work"),
    "orchestrator": ("orchestrator", "An orchestrator plans the work and dispatches workers"),
}
MODES: dict[PermissionMode, tuple[str, str]] = {
    "ask": ("Ask", "Asks before it changes something"),
    "accept-edits": ("Accept edits", "Writes project files without asking"),
    "plan": ("Plan", "Changes nothing; the answer is a plan"),
}


def modes_of(session: EditorSession) -> SessionModeState:
    """Return the mode of a session, and the modes it could have."""
    return SessionModeState(
        current_mode_id=session.mode,
        available_modes=[
            SessionMode(id=mode, name=name, description=what)
            for mode, (name, what) in MODES.items()
        ],
    )


def has_workers(session: EditorSession) -> bool:
    """Return whether workers are configured."""
    return bool(session.setup.config.agents.worker_pools)


def options_of(session: EditorSession) -> ConfigOptions:
    """Return the choices of a session, and their alternatives."""
    lead = next(name for name, (mode, _) in LEADS.items() if mode == session.lead)
    models = [(each, each, None) for each in session.models]
    modes = [(mode, *said) for mode, said in MODES.items()]
    leads = [(name, name.title(), what) for name, (_, what) in LEADS.items()]
    return [
        _select("mode", "Mode", session.mode, modes, category="mode"),
        _select("model", "Model", session.model_name, models, category="model"),
        *([_select("lead", "Lead", lead, leads)] if has_workers(session) else []),
    ]


def _select(
    option_id: str,
    name: str,
    current: str,
    choices: Sequence[tuple[str, str, str | None]],
    *,
    category: SessionConfigOptionCategory | None = None,
) -> SessionConfigOptionSelect:
    return SessionConfigOptionSelect(
        type="select",
        id=option_id,
        name=name,
        category=category,
        current_value=current,
        options=[
            SessionConfigSelectOption(value=value, name=title, description=what)
            for value, title, what in choices
        ],
    )
