"""Takes secrets out of changes, before they are written, applied or shown."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from pydantic import ValidationError

from agent_core.errors import ErrorCode, TaskError
from agent_core.redaction.redactor import Redactor
from agent_core.tasks.changes import Change

_PROSE = frozenset({"title", "summary", "result_summary", "reason"})
"""Texts of a model, which lose token shapes too; ids lose only the values of known secrets."""


def without_secrets(change: Change, redactor: Redactor) -> Change:
    """The change without secrets; the same object if there are none in it.

    Raises:
        TaskError: `validation_error`: without the secret, an id or a name is none any more.
    """
    before = change.payload.model_dump(mode="json")
    after = _walked(before, redactor.secrets_only, redactor)
    if after == before:
        return change
    try:
        return replace(change, payload=type(change.payload).model_validate(after))
    except ValidationError as error:
        places = [".".join(map(str, each["loc"])) for each in error.errors(include_input=False)]
        message = (
            f"the value of a configured secret stands in {places[0]}, which cannot be without it; "
            "choose another value"
        )
        details = {"places": places[:20]}
        raise TaskError(ErrorCode.VALIDATION_ERROR, message, details=details) from None


def require_no_secret(name: str, redactor: Redactor) -> None:
    """Return if the name of a log holds no configured secret.

    Raises:
        TaskError: `validation_error`.
    """
    if redactor.secrets_only(name) != name:
        message = "wal_name holds the value of a configured secret; choose another name"
        raise TaskError(ErrorCode.VALIDATION_ERROR, message)


def _walked(value: Any, clean: Callable[[str], str], redactor: Redactor) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [_walked(item, clean, redactor) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        return {
            key: _walked(item, redactor.text if key in _PROSE else redactor.secrets_only, redactor)
            for key, item in table.items()
        }
    return value
