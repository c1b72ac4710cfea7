"""What the user sees of wishes for the memory."""

from agent_core.cli.wishes import show_wishes
from agent_core.types import MemoryWish


def test_what_came_to_nothing_is_said_in_its_own_session_only() -> None:
    lines: list[str] = []
    wishes = [
        MemoryWish(session_id="s1"),
        MemoryWish(session_id="s2"),
        MemoryWish(session_id="s2", remembered=["Likes tea"]),
    ]
    show_wishes(wishes, "s1", lambda text, _: lines.append(text))
    assert lines == ["nothing new to remember", "remembered: Likes tea (from session s2)"]
