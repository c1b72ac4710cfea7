"""Images that are dropped on the terminal are attached, and not sent to a model that takes none."""

import base64
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from captures import Key, Recording, record
from isolation import Home
from model_server import ModelServer

pytestmark = pytest.mark.timeout(90)

READY = "sandbox off"
ENTER, CTRL_D, BACKSPACE = "\r", "\x04", "\x7f"
AT_REST = re.compile(r"answer\.[\s\S]*sandbox off")
PIXEL = base64.b64decode(
    b"iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    b"+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
DATA = base64.b64encode(PIXEL).decode()


def converse(
    home: Home,
    project: Path,
    server: ModelServer,
    keys: Sequence[Key],
    config: str = "",
    **env: str,
) -> Recording:
    home.write_config(
        f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
        f"context_window = 32000\n{config}[memory]\nenabled = false\n"
    )
    command = [sys.executable, "-m", "agent_core.cli", "chat"]
    return record(command, env=home.env(**env), cwd=project, keys=keys)


@pytest.fixture
def dropped(project: Path) -> str:
    """What a terminal pastes for a dropped image."""
    (project / "my lamp.png").write_bytes(PIXEL)
    path = str(project / "my lamp.png").replace(" ", "\\ ")
    return f"\x1b[200~{path} \x1b[201~"


def test_a_dropped_image_is_sent_unless_its_name_is_deleted(
    home: Home, project: Path, dropped: str
) -> None:
    with ModelServer.in_thread(["One answer.", "Another answer."]) as server:
        keys = [
            Key(READY, "see " + dropped),
            Key("1 kB]", "now" + ENTER),
            Key(AT_REST, "not " + dropped),
            Key("1 kB]", BACKSPACE * 2 + "this" + ENTER),
            Key(re.compile(r"Another answer\.[\s\S]*sandbox off"), CTRL_D),
        ]
        converse(home, project, server, keys)
        first, second = (each.body["messages"][-1]["content"] for each in server.requests)
    assert first[0]["text"] == "see [image my_lamp.png 1 kB] now"
    assert DATA in str(first[1:])
    assert second == "not this"


def test_a_model_without_vision_is_sent_nothing_and_the_draft_stays(
    home: Home, project: Path, dropped: str
) -> None:
    with ModelServer.in_thread(["The answer."]) as server:
        keys: list[Any] = [
            Key(READY, dropped),
            Key("1 kB]", "what is it?" + ENTER),
            Key("m takes no images", BACKSPACE * 12 + BACKSPACE + "hello" + ENTER),
            Key(AT_REST, CTRL_D),
        ]
        converse(home, project, server, keys, "supports_images = false\n")
        assert [each.body["messages"][-1]["content"] for each in server.requests] == ["hello"]


def test_an_image_is_taken_from_the_clipboard_where_there_is_one(
    home: Home, project: Path, tmp_path: Path
) -> None:
    (tmp_path / "image.png").write_bytes(PIXEL)
    reader = tmp_path / "wl-paste"
    reader.write_text(f"#!/bin/sh\ncat {tmp_path}/image.png\n")
    reader.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    with ModelServer.in_thread(["The answer."]) as server:
        keys = [
            Key(READY, "/paste-image" + ENTER),
            Key("[image clipboard 1 kB]", "see" + ENTER),
            Key(AT_REST, CTRL_D),
        ]
        converse(home, project, server, keys, PATH=path, WAYLAND_DISPLAY="w", DISPLAY="")
        assert DATA in str(server.requests[0].body["messages"][-1]["content"])
        keys = [Key(READY, "/paste-image" + ENTER), Key("no clipboard can be read", CTRL_D)]
        converse(home, project, server, keys, WAYLAND_DISPLAY="", DISPLAY="")
