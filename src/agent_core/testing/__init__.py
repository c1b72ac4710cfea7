"""Models for the tests of a program: scripted, made of a function, or recorded.

    from agent_core.testing import ScriptedProvider, calls

    model = ScriptedProvider([calls("stock", item="lamp"), "There are twelve lamps."])

Names are imported when they are first used, so the pytest plugin, which every test run loads, costs
nothing unless it is used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent_core.providers.scripted import (
        Answer,
        Calls,
        Fails,
        Hangs,
        Pauses,
        Piece,
        Says,
        ScriptedCall,
        ScriptedProvider,
        calls,
    )
    from agent_core.testing.models import allow_real_models, function_model
    from agent_core.testing.recording import record, replay
    from agent_core.testing.runtime import ScriptedRuntime
    from agent_core.testing.tools import FakeToolContext
else:
    from agent_core.loading import lazy_names

_HOMES = {
    **dict.fromkeys(("allow_real_models", "function_model"), "agent_core.testing.models"),
    **dict.fromkeys(("record", "replay"), "agent_core.testing.recording"),
    "FakeToolContext": "agent_core.testing.tools",
    "ScriptedRuntime": "agent_core.testing.runtime",
}

__all__ = [
    "Answer",
    "Calls",
    "Fails",
    "FakeToolContext",
    "Hangs",
    "Pauses",
    "Piece",
    "Says",
    "ScriptedCall",
    "ScriptedProvider",
    "ScriptedRuntime",
    "allow_real_models",
    "calls",
    "function_model",
    "record",
    "replay",
]


if not TYPE_CHECKING:  # hidden from type checkers, which would accept any name otherwise
    __getattr__ = lazy_names(
        __name__, dict.fromkeys(__all__, "agent_core.providers.scripted") | _HOMES
    )


def __dir__() -> list[str]:
    return sorted(__all__)
