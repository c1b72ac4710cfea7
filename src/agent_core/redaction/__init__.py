"""Keeps secrets, and characters that deceive the eye, out of what is stored, logged or shown."""

from agent_core.redaction.redactor import Redactor
from agent_core.redaction.visible import visible

__all__ = ["Redactor", "visible"]
