"""What the compact agent answered: JSON if it did as told, plain text if it did not."""

import json
import re
from typing import Any, cast

from agent_core.errors import ErrorCode, SchemaError
from agent_core.providers.jsontext import unfenced

_BROKEN = re.compile(r"""\A\s*\{\s*"summary"\s*:\s*"(.*)\Z""", re.DOTALL)


def summary_of(text: str) -> str:
    """The summary in an answer; other keys are ignored, plain text counts as the summary.

    Raises:
        SchemaError: there is none.
    """
    summary = _from_json(unfenced(text).strip())
    if summary is None or not summary.strip():
        message = "the compact agent answered without a summary"
        raise SchemaError(ErrorCode.SCHEMA_ERROR, message)
    return summary.strip()


def _from_json(text: str) -> str | None:
    if not text.startswith("{"):
        return text
    try:
        value: Any = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return _from_broken(text)
    summary = cast("dict[str, Any]", value).get("summary")
    return summary if isinstance(summary, str) else None


def _from_broken(text: str) -> str | None:
    """JSON that was cut off, or is wrong somewhere behind its beginning; else it is just text."""
    match = _BROKEN.match(text)
    if match is None:
        return text
    rest = re.sub(r'(?<!\\)"\s*(?:[,}][^"]*)?\Z', "", match[1])
    return rest.replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")
