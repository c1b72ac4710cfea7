"""The status line of the chat: what matters most at every width."""

from agent_core.cli.chat.state import State, fit_state
from agent_core.cli.layout import cells
from agent_core.types import Usage
from tables import together

WORKING = State(
    model="anthropic:claude-opus-4-1",
    mode="accept-edits",
    sandbox="auto",
    used=4300,
    window=32_000,
    usage=Usage(input_tokens=5000, output_tokens=100, total_tokens=5100, cost=0.0123),
    elapsed_s=75.0,
)


@together(
    ("width", "line"),
    [
        (39, "claude-opus-… · accept-edits · 1 m 15 s"),
        (79, "claude-op… · accept-edits · 4,300/32.0k 13% · 5,100 tokens · $0.0123 · 1 m 15 s"),
        (
            119,
            (
                "anthropic:claude-opus-4-1 · accept-edits · 4,300/32.0k 13% · 5,100 tokens"
                " · $0.0123 · 1 m 15 s · sandbox auto"
            ),
        ),
    ],
)
def test_the_line_drops_what_matters_least(width: int, line: str) -> None:
    assert fit_state(WORKING, width, " · ") == line


def test_the_line_never_exceeds_the_window() -> None:
    for width in range(1, 200):
        assert cells(fit_state(WORKING, width, " · ")) <= width


def test_a_new_session_shows_its_settings() -> None:
    state = State(model="openai:m", mode="ask", sandbox="off")
    assert fit_state(state, 39, " | ") == "openai:m | ask | sandbox off"
