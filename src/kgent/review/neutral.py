"""The texts of a run without values that differ between equal runs: places, ids and times."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from agent_core.redaction.redactor import walk
from kgent.records.archive import ARCHIVE
from kgent.review.report import RunReport
from kgent.sandbox.workspace import FILES

_SHORTEST_ID = 8
"""Shorter ids are not replaced: a caller may have chosen an ordinary word as an id."""
_OWN_ID = re.compile(
    r"\b(?:[a-z]+_[0-9a-f]{28}|(?:sess|task|run)_[0-9]{8}T[0-9]{12}Z_[0-9a-f]{8})\b"
)


_KEPT_OUTPUT = re.compile(r"\barchive/tool-output/[A-Za-z0-9_-]+")
_TIME = re.compile(
    r"\b[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}"
    r"(?:\.[0-9]{1,6})?(?:Z|[+-][0-9]{2}:?[0-9]{2})?"
)


_PLAIN_KEY = re.compile(r"\w+")
_NEVER = datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)
_MARGIN = timedelta(seconds=1)  # for times that are written in whole seconds


class NeutralTexts:
    """Makes the texts of two runs comparable.

    The following are replaced: the places of the run folder and of the profile, the ids of the run,
    ids in the form that this program generates, and times between the start and the end of the run.
    Any other time or id is content.
    """

    def __init__(self, report: RunReport) -> None:
        state = report.state
        places = {
            str(report.root): "RUN_DIR",
            state.sandbox_root: "RUN_DIR",
            state.config_path: "PROFILE",
        }
        ids = {state.session_id: "SESSION_ID", state.task_id: "TASK_ID", state.run_id: "RUN_ID"}
        self._words: dict[str, str] = {
            form: word
            for text, word in places.items()
            if len(text) > 1
            for form in (text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
        }
        self._words |= {text: word for text, word in ids.items() if len(text) >= _SHORTEST_ID}
        longest_first = sorted(self._words, key=len, reverse=True)
        self._pattern = re.compile(f"(?:{'|'.join(map(re.escape, longest_first))})(?![\\w-])")
        self._begin, self._end = _span(state.created_at, state.ended_at or state.updated_at)

    def text(self, text: str) -> str:
        """Return the text with each place, id and time of the run replaced by a word."""
        if self._words:
            text = self._pattern.sub(lambda found: self._words[found[0]], text)
        text = _KEPT_OUTPUT.sub("archive/tool-output/CALL", _OWN_ID.sub("ID", text))
        return _TIME.sub(self._replace_time, text)

    def lines(self, value: object) -> Iterator[str]:
        """Yield a JSON value line by line, with sorted keys and one line for each line of texts."""
        return _lines(walk(value, self.text), "")

    def _replace_time(self, found: re.Match[str]) -> str:
        moment = _moment(found[0])
        is_own = moment is not None and self._begin <= moment <= self._end
        return "TIME" if is_own else found[0]


def _lines(value: Any, place: str) -> Iterator[str]:
    """Yield a value, each line with its place in the whole; different values differ."""
    match value:
        case dict() if value:
            table = cast("dict[str, Any]", value)
            for key in sorted(table):
                shown = key if _PLAIN_KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False)
                yield from _lines(table[key], f"{place}.{shown}" if place else shown)
        case list() if value:
            for number, item in enumerate(cast("list[Any]", value)):
                yield from _lines(item, f"{place}[{number}]")
        case str() if "\n" in value:
            yield from (f"{place}| {line}" for line in value.split("\n"))
        case _:
            yield f"{place}: {json.dumps(value, ensure_ascii=False)}"


def without_own_sizes(result: object) -> object:
    """Return the result of `list_files` without the sizes of the run's own records.

    The records contain places and times of the run, which change their sizes; and calls of one turn
    are recorded in the order in which they end, so a record may be longer in one of two equal runs.
    """
    if not isinstance(result, dict):
        return result
    answer = cast("dict[str, Any]", result)
    data = answer.get("data")
    entries = cast("dict[str, Any]", data).get("entries") if isinstance(data, dict) else None
    if not isinstance(entries, list):
        return answer
    kept = [_without_size(entry) for entry in cast("list[object]", entries)]
    return {**answer, "data": {**cast("dict[str, Any]", data), "entries": kept}}


def _without_size(entry: object) -> object:
    if not isinstance(entry, dict):
        return entry
    table = cast("dict[str, Any]", entry)
    path = str(table.get("path"))
    is_own = path in FILES or path.startswith(f"{ARCHIVE}/")
    return {key: value for key, value in table.items() if not (is_own and key == "size")}


def _span(begin: str, end: str) -> tuple[datetime, datetime]:
    """Return the start and the end of a run; an empty span if they cannot be read."""
    first, last = _moment(begin), _moment(end)
    try:
        if first is not None and last is not None:
            return first - _MARGIN, last + _MARGIN
    except OverflowError:  # no real run is that old
        pass
    return _NEVER


def _moment(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
