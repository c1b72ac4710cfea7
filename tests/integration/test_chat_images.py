"""Images that are dropped on the terminal are attached, and not sent to a model that takes none."""

import base64
import os
import re
from pathlib import Path
from typing import Any

import pytest

from captures import Key
from chats import AT_REST, BACKSPACE, CTRL_D, ENTER, READY, converse
from isolation import Home
from model_server import ModelServer

pytestmark = pytest.mark.timeout(90)

PIXEL = base64.b64decode(
    b"iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    b"+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
DATA = base64.b64encode(PIXEL).decode()


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
        converse(home, project, server, keys, config="supports_images = false")
        assert [each.body["messages"][-1]["content"] for each in server.requests] == ["hello"]


@pytest.mark.sweep
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
        env = {"PATH": path, "WAYLAND_DISPLAY": "w", "DISPLAY": ""}
        converse(home, project, server, keys, env=env)
        assert DATA in str(server.requests[0].body["messages"][-1]["content"])
        keys = [Key(READY, "/paste-image" + ENTER), Key("no clipboard can be read", CTRL_D)]
        converse(home, project, server, keys, env={"WAYLAND_DISPLAY": "", "DISPLAY": ""})
