"""Removes secrets and deceptive characters from all text that is stored, logged or shown."""

from agent_core.redaction.redactor import Redactor, log_failure
from agent_core.text import visible

__all__ = ["Redactor", "log_failure", "visible"]
