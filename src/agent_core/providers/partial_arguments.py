"""Arguments of a call that arrive in pieces, each with the path of the value that it extends."""

import re
from typing import Any, cast

from agent_core.providers import jsontext
from agent_core.providers.reply import CallDraft, text
from agent_core.text.json_text import JsonObject, tables

_STEP = re.compile(
    r"""\.([^.\[\]'"]+)|\[(\d{1,5})\]|\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]"""
)
_MOST_ITEMS = 10_000
_MOST_STEPS = 64
_VALUES = ("stringValue", "numberValue", "boolValue", "nullValue")


class PartialArguments:
    """The arguments of one call, as far as they have arrived.

    A piece that cannot be placed makes them unusable: they are no JSON then, and the call goes back
    to the model.
    """

    def __init__(self, draft: CallDraft) -> None:
        self.draft = draft
        self._values: JsonObject = {}
        self._fault = ""

    def merge(self, given: object) -> None:
        """Add whole arguments."""
        if isinstance(given, dict):
            self._values.update(cast("JsonObject", given))

    def take(self, pieces: object) -> None:
        """Add pieces of arguments, in order."""
        for piece in tables(pieces):
            path = text(piece.get("jsonPath"))
            steps = _steps(path)
            kind = next((kind for kind in _VALUES if kind in piece), "")
            if steps and not kind:
                continue  # the end of a value
            value = None if kind == "nullValue" else piece.get(kind)
            if not steps or not self._place(steps, value):
                self._fault = self._fault or f"unreadable path {path[:200]}"

    def _place(self, steps: list[str | int], value: Any) -> bool:
        """Set a value, or extend the string that is there; returns whether there is a place."""
        place: Any = self._values
        for step, following in zip(steps, [*steps[1:], None], strict=True):
            here: Any = _at(place, step)
            if here is _NOWHERE:
                return False
            if following is None:
                is_longer = isinstance(here, str) and isinstance(value, str)
                _set(place, step, here + value if is_longer else value)
            elif here is _MISSING:
                here = cast("Any", [] if isinstance(following, int) else {})
                _set(place, step, here)
            place = here
        return True

    @property
    def written(self) -> str:
        """The arguments as JSON, or the reason why they are unusable."""
        return self._fault or jsontext.dump_text(self._values)


_MISSING, _NOWHERE = object(), object()


def _at(place: object, step: str | int) -> Any:
    """Return the value at a step, or whether one is missing there or cannot be there."""
    if isinstance(step, str):
        is_table = isinstance(place, dict)
        return cast("JsonObject", place).get(step, _MISSING) if is_table else _NOWHERE
    if not isinstance(place, list):
        return _NOWHERE
    found = cast("list[Any]", place)
    if step < len(found):
        return found[step]
    return _MISSING if step == len(found) and step < _MOST_ITEMS else _NOWHERE


def _set(place: Any, step: str | int, value: Any) -> None:
    if isinstance(step, int) and step == len(place):
        place.append(value)
    else:
        place[step] = value


def _steps(path: str) -> list[str | int]:
    """Return the names and places of a path such as `$.files[0].name`; empty if it is none."""
    steps: list[str | int] = []
    at = 1
    if not path.startswith("$"):
        return []
    while at < len(path):
        found = _STEP.match(path, at)
        if found is None or len(steps) == _MOST_STEPS:
            return []
        name, place, *quoted = found.groups()
        if place is not None:
            steps.append(int(place))
        else:
            said = name if name is not None else next(each for each in quoted if each is not None)
            steps.append(said if name is not None else re.sub(r"\\(.)", r"\1", said))
        at = found.end()
    return steps
