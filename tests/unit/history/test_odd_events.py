"""Readers of events that another version, or a damaged database, has written."""

import copy
import pickle
import random
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import fields

from agent_core.cli.acp.updates import Translation
from agent_core.cli.terminal import Terminal
from agent_core.cli.view import RunView
from agent_core.events.projection import Projection
from agent_core.history.words import outcome_word, remarks, story_words
from agent_core.types import EventLevel, EventType, RuntimeEvent, utc_now
from agent_core.types.event_details import read_details

ODD: list[Any] = [
    *(None, True, -1, 0, 2**70, 1.5, float("nan"), float("inf"), "", "text", "a\nb\x1b[2J\u202e"),
    *([], {}, [None], ["a"], [{"path": "x", "line": -1}], {"code": "c", "message": "m"}),
    *({"details": {"fallback": {"model": None}}}, {"total_tokens": -3, "cost": float("nan")}),
    *("@@ -1 +1 @@\n-x\n+y\n", "@@ -999999999999999999999,1 +0 @@\n ", {"total": 3, "window": -2}),
]


class Screen(StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", ["xterm", "dumb"])
def test_no_payload_breaks_the_view_the_story_or_an_editor(terminal: str) -> None:
    chance = random.Random(terminal)  # noqa: S311 - for the same payloads each time
    screen = Screen()
    view = RunView(Terminal(screen, screen, environ={"TERM": terminal}))
    live, stored = Translation(Path("/p")), Translation(Path("/p"))
    projection = Projection()
    for kind in [*EventType] * 4:
        names = [known.name for known in fields(type(read_details(kind, {})))]
        event = RuntimeEvent.of_checked(
            event_id="evt_1",
            seq=None,
            run_seq=None,
            session_id="s1",
            agent_id="agent_1",
            run_id=chance.choice(["run_1", "run_2"]),
            level=chance.choice([*EventLevel]),
            event_type=kind,
            node_id=None,
            tool_call_id=chance.choice([None, "c1", "c2"]),
            payload={name: chance.choice(ODD) for name in names if chance.random() < 0.5},
            created_at=utc_now(),
        )
        view.event(event)
        list(live.updates(event))
        list(stored.stored(event, None))
        placed = projection.take(event)
        assert isinstance(story_words(placed), str)
        if placed.call is not None:
            assert isinstance(f"{outcome_word(placed.call)}{remarks(placed.call)}", str)
    view.end(None, None, None)
    assert screen.getvalue()


@pytest.mark.long
@pytest.mark.parametrize("kind", [each.value for each in EventType])
def test_what_an_event_says_can_be_copied_and_sent_to_another_process(kind: str) -> None:
    details = read_details(kind, {})
    assert copy.deepcopy(details) == details
    assert pickle.loads(pickle.dumps(details)) == details  # noqa: S301 - our own
