"""What the command line takes out of texts that do not come from a runtime's events."""

from collections.abc import Mapping

from agent_core.redaction import Redactor
from agent_core.redaction.shapes import kind_of_name


def terminal_redactor(environ: Mapping[str, str]) -> Redactor:
    """A redactor that knows the variables whose names promise a secret.

    The runtime's own redactor cleans events. This one is for errors before there is a runtime,
    for log lines that come past it, and for stored texts.
    """
    return Redactor({name: value for name, value in environ.items() if kind_of_name(name)})
