"""Reads the usage that services report, and makes its parts add up to the total.

Services differ in what a count includes: with one, reasoning is a part of the completion, with
another it comes on top; the same holds for the cached part of a prompt. The total decides.
"""

from itertools import product
from typing import Any

from agent_core.text.json_text import JsonObject
from agent_core.types import Usage

MAX_TOKENS = 10**12
"""Larger counts are not believed."""

_WAYS = sorted(product((False, True), repeat=3), key=lambda way: (sum(way), not way[0]))
"""Whether reasoning, tokens read from a cache and tokens written to one come on top."""


def count(value: Any) -> int:
    """Return the value if it is a number of tokens, else 0."""
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 < value <= MAX_TOKENS else 0


def merge_reports(known: JsonObject, report: Any) -> JsonObject:
    """Merge a report into the earlier ones of the same stream.

    Counts grow while a reply streams, and a report may leave out what an earlier one had: a figure
    replaces an earlier one unless it is empty, zero or negative.
    """
    if report.__class__ is not dict or not report:
        return known
    if not known:
        return report
    merged = dict(known)
    for key, value in report.items():
        before = merged.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            merged[key] = merge_reports(before, value)
        elif not before or not _is_nothing(value):
            merged[key] = value
    return merged


def _is_nothing(value: Any) -> bool:
    return not value or (type(value) in {int, float} and value < 0)


def cached_usage(
    raw: JsonObject,
    *,
    given: int,
    taken: int,
    read: int,
    written: int,
    written_1h: int,
    total: int = 0,
) -> Usage:
    """Return the usage of a service whose prompt count (`given`) excludes the cached part."""
    prompt = given + read + written
    return Usage(
        input_tokens=prompt,
        output_tokens=taken,
        total_tokens=max(total, prompt + taken),
        cache_read_tokens=read,
        cache_write_tokens=written,
        cache_write_1h_tokens=written_1h,
        raw_usage=raw,
    )


def completed_usage(reported: Usage) -> Usage:
    """Return the reported usage with parts that add up to its total; a total of 0 is unknown.

    If the total exceeds prompt and output by exactly the reasoning, the cached part of the prompt,
    or both, these come on top. So does a figure that is larger than the count that should include
    it. Any other difference belongs to the count that was not reported, or else to the output:
    services leave out what a model has thought.
    """
    given, taken, total = reported.input_tokens, reported.output_tokens, reported.total_tokens
    thought, read = reported.reasoning_tokens, reported.cache_read_tokens
    written = max(reported.cache_write_tokens, reported.cache_write_1h_tokens)
    fits = total == given + taken and thought <= taken and read + written <= given
    if fits and written == reported.cache_write_tokens:
        return reported
    with_thought, with_read, with_written = _on_top(given, taken, total, thought, read, written)
    given += read * with_read + written * with_written
    taken += thought * with_thought
    missing = max(total - given - taken, 0) if given or taken else 0
    if given:
        taken += missing
    else:
        given = missing
    counts = {
        "input_tokens": given,
        "output_tokens": taken,
        "total_tokens": max(total, given + taken),
        "cache_write_tokens": written,
    }
    return reported.model_copy(update=counts)


def _on_top(
    given: int, taken: int, total: int, thought: int, read: int, written: int
) -> tuple[bool, ...]:
    """Return which of the last three come on top of the prompt and the output."""
    for way in _WAYS:
        with_thought, with_read, with_written = way
        inside = read * (not with_read) + written * (not with_written)
        if inside > given or (thought > taken and not with_thought):
            continue
        if given + taken + thought * with_thought + read + written - inside == total:
            return way
    is_cache_on_top = read + written > given
    return thought > taken, is_cache_on_top, is_cache_on_top
