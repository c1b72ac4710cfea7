"""Dropped files: the forms in which terminals paste their paths, and what the line shows."""

import base64
from pathlib import Path

import pytest

from agent_core.cli.chat.drops import MOST_IMAGE_BYTES, find_paths, take_drop
from agent_core.cli.chat.pastes import Pastes
from agent_core.tools.workspace import PathPolicy

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = (tmp_path / "my pictures").resolve()
    made.mkdir()
    (made / "a b.png").write_bytes(PNG)
    (made / "notes.txt").write_text("Notes.")
    return made


FORMS = {
    "escaped": "{escaped}/a\\ b.png ",
    "quoted": "'{plain}/a b.png'",
    "double": '"{plain}/a b.png"\n',
    "url": "file://{url}/a%20b.png\r\n",
    "host": "file://localhost{url}/a%20b.png",
    "raw": "{plain}/a b.png",
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_path_names_the_file(folder: Path, form: str) -> None:
    plain = str(folder)
    names = {"plain": plain, "escaped": plain.replace(" ", "\\ "), "url": plain.replace(" ", "%20")}
    assert find_paths(FORMS[form].format(**names)) == [folder / "a b.png"]


@pytest.mark.parametrize("between", [" ", "\n", "\r\n"])
def test_several_files_come_together(folder: Path, between: str) -> None:
    pasted = between.join(f"'{folder / name}'" for name in ("a b.png", "notes.txt"))
    assert find_paths(pasted) == [folder / "a b.png", folder / "notes.txt"]


def test_a_text_that_is_more_than_paths_of_files_is_a_text(folder: Path) -> None:
    path = f"'{folder}/notes.txt'"
    for text in (
        "",
        "notes.txt",
        f"see {path}",
        f"{path} is wrong",
        "/nowhere/at.all",
        f"{path} '",
    ):
        assert find_paths(text) == []


def test_an_image_is_attached_until_its_name_is_deleted(folder: Path) -> None:
    pastes, policy = Pastes(), PathPolicy(folder)
    shown = take_drop(f"{folder}/a b.png", pastes, policy)
    assert shown == "[image a_b.png 1 kB] "
    (image,) = pastes.images_in(f"see {shown}")
    assert (image.mime_type, base64.b64decode(image.data or "")) == ("image/png", PNG)
    assert pastes.images_in("see [image a_b.png 1 kB") == []
    assert pastes.image_before("see [image a_b.png 1 kB]") == "[image a_b.png 1 kB]"
    assert len(pastes.images_in(f"{shown}{shown}")) == 1


def test_another_file_becomes_a_mention_if_it_may_be_read(folder: Path) -> None:
    policy = PathPolicy(folder, sensitive=[".env"])
    (folder / "two words.md").write_text("x")
    (folder / ".env").write_text("KEY=1")
    (folder / "fake.png").write_text("no picture")
    (folder / "large.png").write_bytes(PNG)
    with (folder / "large.png").open("r+b") as file:
        file.truncate(MOST_IMAGE_BYTES + 1)
    expected = {
        "notes.txt": "@notes.txt ",
        "two words.md": '@"two words.md" ',
        "fake.png": "@fake.png ",
        "large.png": "@large.png ",
        ".env": None,
    }
    for name, shown in expected.items():
        assert take_drop(str(folder / name), Pastes(), policy) == shown
    assert take_drop(str(folder), Pastes(), policy) is None
