"""What the compact agent answered: JSON if it did as told, plain text if it did not."""

import json
import re
from typing import Any, cast

from agent_core.errors import ErrorCode, SchemaError
from agent_core.providers.jsontext import unfenced

_LEAST_CHARS, _LEAST_WORDS, _LEAST_LETTERS = 40, 4, 4
_LOOKED_AT = 20_000
_WORD = re.compile(r"[^\W\d_]+")
_BROKEN = re.compile(r"""\A\s*\{\s*"summary"\s*:\s*"(.*)\Z""", re.DOTALL)


def summary_of(text: str) -> str:
    """The summary in an answer; other keys are ignored, plain text counts as the summary.

    Raises:
        SchemaError: there is none: nothing, less than `_LEAST_CHARS`, or no prose.
    """
    summary = _from_json(unfenced(text).strip())
    summary = (summary or "").strip()
    if len(summary) < _LEAST_CHARS or not _is_prose(summary):
        message = f"the compact agent answered without a summary: {summary[:40]!r}"
        raise SchemaError(ErrorCode.SCHEMA_ERROR, message)
    return summary


def _is_prose(text: str) -> bool:
    """Several words (or signs of a script without spaces) of different letters, and no markup."""
    seen = [sign for sign in text[:_LOOKED_AT].casefold() if not sign.isspace()]
    letters = [sign for sign in seen if sign.isalpha()]
    signs = sum(sign > "\u2e7f" for sign in letters)
    words = len(_WORD.findall(text, 0, _LOOKED_AT))
    is_page = text.lower().startswith(("<!doctype", "<html", "<?xml"))
    is_long_enough = words >= _LEAST_WORDS or signs >= 4 * _LEAST_WORDS
    has_letters = 3 * len(letters) >= len(seen) and len(set(letters)) >= _LEAST_LETTERS
    return is_long_enough and has_letters and not is_page


def _from_json(text: str) -> str | None:
    if text.startswith("[") and _is_json(text):
        return None
    if not text.startswith("{"):
        return text
    try:
        value: Any = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return _from_broken(text)
    summary = cast("dict[str, Any]", value).get("summary")
    return summary if isinstance(summary, str) else None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _from_broken(text: str) -> str | None:
    """JSON that was cut off, or is wrong somewhere behind its beginning; else it is just text."""
    match = _BROKEN.match(text)
    if match is None:
        return text
    rest = re.sub(r'(?<!\\)"\s*(?:[,}][^"]*)?\Z', "", match[1])
    return rest.replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")
