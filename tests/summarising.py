"""A scripted model that talks much and summarises when it is asked to."""

from agent_core.providers.scripted import Reply, Says, ScriptedProvider
from agent_core.types import ModelRequest

SUMMARY = '{"summary": "## Goal\\nwhat was said before, in as many words as it needs"}'


def model(*lines: str | Reply) -> ScriptedProvider:
    """Return a model that says the lines, and then always the same long answer."""
    waiting = list(lines)

    def reply(request: ModelRequest) -> str | Reply:
        if request.metadata.get("purpose") == "compact":
            return Says(text=SUMMARY)
        return waiting.pop(0) if waiting else "answer " * 150

    return ScriptedProvider(reply)
