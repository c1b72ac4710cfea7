"""Conversations in a terminal of their own, with a scripted model.

`converse` types prepared keys and returns what was shown. With `open_chat` a test holds a
conversation step by step, and looks at each message as it was sent:

    with open_chat(home, project) as chat:
        assert chat.send("hello") == "hello"
"""

import re
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from agent_core.cli.lines import AT_ONCE_S
from captures import Key, Recording, Session, Shown, open_session, record
from isolation import Home
from model_server import Answer, ModelServer, Reply

READY = "sandbox off"
AT_REST = re.compile(r"answer\.[\s\S]*sandbox off")
"""The answer stands there, and the line below it."""
ENTER, ESCAPE, TAB, BACKSPACE = "\r", "\x1b", "\t", "\x7f"
CTRL_C, CTRL_D, CTRL_U, CTRL_X_CTRL_E = "\x03", "\x04", "\x15", "\x18\x05"
UP, DOWN, RIGHT, LEFT = "\x1b[A", "\x1b[B", "\x1b[C", "\x1b[D"
DATABASE = "CHAT_TEST_DATABASE"
SECONDS = 60


def configure(home: Home, server: ModelServer, more: str = "", database_url: str = "") -> None:
    """Write a configuration whose model is the server.

    Args:
        more: lines of the table `[model]`, and tables.
        database_url: of the sessions, which stands in the environment.
    """
    store = f'[store]\nurl_env = "{DATABASE}"\n' if database_url else ""
    home.write_config(
        f"[memory]\nenabled = false\n{store}"
        f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
        f"context_window = 32000\n{more}\n"
    )


def converse(
    home: Home,
    project: Path,
    server: ModelServer,
    keys: Sequence[Key],
    *words: str,
    command: Sequence[str] = ("chat",),
    config: str = "",
    env: dict[str, str] | None = None,
    database_url: str = "",
    **more: Any,
) -> Recording:
    """Hold one conversation to its end.

    Args:
        words: follow the command.
        config, database_url: see `configure`.
        more: see `captures.record`.
    """
    configure(home, server, config, database_url)
    return record(
        [sys.executable, "-m", "agent_core.cli", *command, *words],
        env=home.env(**{DATABASE: database_url, **(env or {})}),
        cwd=project,
        keys=keys,
        **more,
    )


def sent(server: ModelServer, number: int = -1) -> str:
    """Return the text of the last message of a request."""
    content = server.requests[number].body["messages"][-1]["content"]
    return content if isinstance(content, str) else str(content)


def pasted(text: str) -> str:
    """Return what a terminal with bracketed paste sends for a pasted text."""
    return f"\x1b[200~{text}\x1b[201~"


def words(scene: Recording) -> str:
    """Return everything that was shown, as words with one blank between them."""
    return " ".join(scene.text.split())


class OpenChat:
    """A conversation that is held step by step.

    Args:
        session: the terminal.
        server: the model.
    """

    def __init__(self, session: Session, server: ModelServer) -> None:
        self._session = session
        self.server = server

    def type(self, keys: str, *, shows: str | re.Pattern[str] | Shown = "") -> None:
        """Type keys, and wait until the terminal shows something."""
        self._session.ends_at = time.monotonic() + SECONDS
        self._session.type(keys)
        if shows:
            self._session.wait_for(shows)

    def type_each(self, *keys: str) -> None:
        """Type keys one by one, each when the line was drawn after the one before."""
        for key in keys:
            self.type(key, shows=re.compile("."))

    def pause(self) -> None:
        """Let so much time pass that the next key does not belong to a paste."""
        time.sleep(2 * AT_ONCE_S)

    def send(self, keys: str) -> str:
        """Type a message and Enter; return the message when it is answered."""
        number = len(self.server.requests)
        self.type(keys + ENTER, shows=re.compile(rf"Answer {number + 1}\.[\s\S]*{READY}"))
        return sent(self.server, number)

    @property
    def screen(self) -> str:
        """Return the lines on the screen."""
        return self._session.screen


@contextmanager
def open_chat(
    home: Home,
    project: Path,
    *words: str,
    replies: Sequence[Reply | Answer] | Answer | None = None,
    config: str = "",
    env: dict[str, str] | None = None,
    columns: int = 80,
    rows: int = 40,
) -> Generator[OpenChat]:
    """Hold a conversation; it is left, and its exit code is checked, at the end.

    Args:
        words: follow the command.
        replies: of the model; by default `Answer 1.`, `Answer 2.` and so on.
        config: see `configure`.
    """
    number = count(1)
    answer: Answer = lambda _: f"Answer {next(number)}."  # noqa: E731
    with ModelServer.in_thread(answer if replies is None else replies) as server:
        configure(home, server, config)
        session = open_session(
            [sys.executable, "-m", "agent_core.cli", "chat", *words],
            env=home.env(**(env or {})),
            cwd=project,
            columns=columns,
            rows=rows,
            seconds=SECONDS,
        )
        with closing(session):
            session.wait_for("> " if "--plain" in words else READY)
            chat = OpenChat(session, server)
            yield chat
            chat.type(CTRL_D)
            assert session.wait_for_end() == 0
