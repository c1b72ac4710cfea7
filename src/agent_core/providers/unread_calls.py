"""Calls of a model that its service could not parse: it reports them as failures of its own.

Groq's, Ollama's and Bedrock's words, and those of llama.cpp and SGLang, are from public reports;
others are guessed. The tests say which.
"""

import re
from collections.abc import Mapping
from typing import Any

from agent_core.providers import jsontext

UNREAD_CALL = "unread_call"
"""Detail of a failure: the text that the service could not read as a call."""

_CALL = (
    r"(\b(tool|function)[ _-]?(calls?|calling|use)\b|\b(tool|function|call)('s|s'?)? arguments\b)"
)
_FAULT = r"\b(un)?(pars|decod|deseriali[sz]|readable|malformed|invalid(?!_)|unexpected)\w*"
_WORDS = (
    rf"(?i){_FAULT}[^.;]{{0,40}}{_CALL}"
    rf"|{_CALL}[^.;]{{0,40}}({_FAULT}|\b(validat|fail)\w*|\b(be read|cut off|not (a )?valid)\b)"
    r"|not a valid (tool|function) call|\btool_use_failed\b"
    r"|failed to (call a function|parse (input at pos|xml|fc related))"
    r"|xml syntax error|expected element type <|model produced (invalid|output)"
)
_MOST = 10_000
UNREAD_STOPS = frozenset(
    {
        "function_call_filter",
        "malformed_function_call",
        "malformed_tool_use",
        "unexpected_tool_call",
    }
)
"""Stop reasons of Gemini, of gateways to it, and of Bedrock."""


def unread_call(explanation: str, error: Mapping[str, Any]) -> str | None:
    """Return what a service could not read as a call; None if a refusal is about something else.

    Args:
        explanation: the words of the refusal.
        error: the fields of the error, among which Groq puts the text.
    """
    given = error.get("failed_generation")
    if given is None and not re.search(_WORDS, explanation):
        return None
    return (given if isinstance(given, str) else jsontext.dump_text(given))[:_MOST] if given else ""
