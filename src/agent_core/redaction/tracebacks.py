"""Tracebacks for the log: an exception's own words may hold a secret, so they are cleaned too."""

import logging
import traceback
from collections.abc import Callable

from agent_core.redaction.visible import visible

_MOST_SHOWN = 10_000


def log_failure(
    logger: logging.Logger, what: str, *, error: BaseException, clean: Callable[[str], str]
) -> None:
    """Log an unexpected exception with its traceback, as text: an `exc_info` cannot be cleaned.

    The text is one that every log and terminal can take: control characters and half characters
    are shown escaped.

    Args:
        logger: whose name the line carries.
        what: what failed, for a person.
        error: what happened.
        clean: removes secrets from text.
    """
    text = visible(clean("".join(traceback.format_exception(error)).rstrip()))
    if len(text) > 2 * _MOST_SHOWN:
        left_out = len(text) - 2 * _MOST_SHOWN
        text = f"{text[:_MOST_SHOWN]}\n[… {left_out} characters …]\n{text[-_MOST_SHOWN:]}"
    logger.error("%s\n%s", what, text)
