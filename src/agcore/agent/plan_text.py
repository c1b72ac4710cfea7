"""Read the steps of a plan from a model's reply; reasoning, prose and fences are ignored."""

import json
import re
from collections.abc import Iterator
from typing import Any, cast

from agcore.agent.error import PlanParseError
from agent_core.providers.jsontext import parse
from agent_core.text import join_surrogates
from agent_core.text.json_text import table

_THOUGHTS = re.compile(r"\s*<(think\w*|thought\w*|reasoning)>.*?</\1>", re.DOTALL | re.IGNORECASE)
_BRACKET = re.compile(r"[\[{]")
_BEGINS_PLAN = re.compile(r'\{\s*["}]|\[\s*\{')
_STRING_OR_SPARE_COMMA = re.compile(r'"(?:[^"\\\n]|\\.)*+"?|,(?=\s*[\]}])')
_DECODER = json.JSONDecoder(strict=False)  # accepts line breaks in strings
_MOST_READ = 20
"""Characters that may be read, as a multiple of the text's length, before parsing stops."""
_DEEP = 900
"""Levels of nesting that every Python can parse; some parse ten times as many."""

_LINE_COUNTING = 50
"""Counting the lines for a `JSONDecodeError` is this many times faster than parsing them."""


def read_steps(raw: str) -> list[str]:
    """Return the step descriptions of the last plan in a reply, ignoring reasoning.

    Takes time in proportion to the text.

    Raises:
        PlanParseError: the text has no valid plan; the message says why.
    """
    thoughts = _THOUGHTS.match(raw)
    text = raw[thoughts.end() :] if thoughts else raw
    complaint: PlanParseError | None = None
    for each in (text, _STRING_OR_SPARE_COMMA.sub(_keep_string, text)):
        steps: list[str] = []
        for value in _plan_values(each):
            try:
                steps = _descriptions(value)
            except PlanParseError as error:
                complaint = error
        if steps:
            return steps
    if complaint is not None:
        raise complaint
    begin = _BRACKET.search(text)
    try:
        parse(text[begin.start() :] if begin else text.strip())
    except ValueError as error:
        raise PlanParseError(f"the plan is not JSON: {error}") from error
    raise PlanParseError('the plan has no array "steps"')


def _keep_string(found: re.Match[str]) -> str:
    return "" if found[0] == "," else found[0]


def _plan_values(text: str) -> Iterator[Any]:
    """Yield the JSON values of a text that may be plans: objects, and lists of objects.

    A value inside a broken one is skipped, unless it has `steps` itself.
    """
    at, reach, left = 0, 0, _MOST_READ * len(text)
    while left > 0 and (begin := _BEGINS_PLAN.search(text, at)):
        start = begin.start()
        try:
            value, at = _DECODER.raw_decode(text, start)
        except ValueError as error:
            broken_at: int = getattr(error, "pos", start + _DEEP)
            reach = max(reach, broken_at)
            left -= broken_at - start + broken_at // _LINE_COUNTING + 1
            at = start + 1
            continue
        except RecursionError:  # a value that starts so soon is nested in this one, and as deep
            at = start + _DEEP
            reach = max(reach, at)
            continue
        if isinstance(value, list):
            items = cast("list[object]", value)
            if not items or not all(isinstance(item, dict) for item in items):
                continue
        if start >= reach or "steps" in value:
            yield value


def _descriptions(value: Any) -> list[str]:
    steps = cast("dict[str, Any]", value).get("steps") if isinstance(value, dict) else value
    if not isinstance(steps, list):
        raise PlanParseError('the plan has no array "steps"')
    found: list[str] = []
    for index, step in enumerate(cast("list[object]", steps)):
        text = table(step).get("description")
        if not isinstance(text, str) or not text.strip():
            raise PlanParseError(f'step {index} of the plan has no "description"')
        found.append(join_surrogates(text))
    if not found:
        raise PlanParseError("the plan has no steps; it needs at least one")
    return found
