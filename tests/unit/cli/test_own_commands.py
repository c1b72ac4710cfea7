"""The user's own commands: which files are commands, what they say, and what is wrong with them."""

import os
from pathlib import Path

import pytest

from agent_core.cli.chat.own_commands import MOST_BYTES, OwnCommand, OwnCommands
from tables import together


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "commands"
    made.mkdir()
    return made


def commands(folder: Path) -> OwnCommands:
    return OwnCommands(folder, {"undo"})


def write(path: Path, text: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)


def filled(text: str, line: str) -> str:
    return OwnCommand("review", Path("review.md"), text).fill(line)


@together(
    ("text", "line", "message"),
    [
        ("Review $ARGUMENTS.", "/review src/a.py  b", "Review src/a.py  b."),
        ("Review $ARGUMENTS.", "/review", "Review ."),
        ("$ARGUMENTS or $ARGUMENTS", "/review $ARGUMENTS \\1", r"$ARGUMENTS \1 or $ARGUMENTS \1"),
        ("Review $ARGUMENTS.", "/review don't \"stop", "Review don't \"stop."),
        ("Review $ARGUMENTS.", "/review two\n\n lines", "Review two\n\n lines."),
        (r"awk '{print \$1}' $0 $$ $x", "/review", "awk '{print $1}' $0 $$ $x"),
        ("Review it.", "/review the tests too", "Review it.\n\nthe tests too"),
        ("Review $ARGUMENTSX.", "/review", "Review $ARGUMENTSX."),
    ],
)
def test_what_follows_the_name_takes_its_place_verbatim(text: str, line: str, message: str) -> None:
    assert filled(text, line) == message


@together(
    ("text", "line", "message"),
    [
        ("Fix #$1 in $2.", "/fix 42 cart.py", "Fix #42 in cart.py."),
        ("Fix #$1 in $2.", "/fix 42", "Fix #42 in ."),
        ("Fix #$1 in $2.", "/fix", "Fix # in ."),
        ("Say $1 to $2.", """/say 'good day' "to $ARGUMENTS" """, "Say good day to to $ARGUMENTS."),
        ("Say $1$1.", '/say ""', "Say ."),
        ("$2 before $1", "/swap a b", "b before a"),
        ("Fix $1.", "/fix it and be brief", "Fix it.\n\nand be brief"),
        ("Fix $1, of $ARGUMENTS.", "/fix 'a b' c", "Fix a b, of 'a b' c."),
        ("Fix $1.", "/fix don't stop", "Fix don't.\n\nstop"),
        (
            "It costs $10, not \\$1 or \\$ARGUMENTS.",
            "/it x",
            "It costs $10, not $1 or $ARGUMENTS.\n\nx",
        ),
        ("$$1 $1st $1.50", "/it 7", "$7 7st 7.50"),
        ("See $1.", '/see @"my file.py"', 'See @"my file.py".'),
        (
            "See $1 and $2",
            "/see [pasted text 1: 40 lines] x",
            "See [pasted text 1: 40 lines] and x",
        ),
    ],
)
def test_single_arguments_take_their_places(text: str, line: str, message: str) -> None:
    command = OwnCommand("fix", Path("fix.md"), text)
    assert command.fill(line, ["[pasted text 1: 40 lines]"]) == message


def test_files_and_folders_are_commands_with_their_descriptions(folder: Path) -> None:
    head = "---\ndescription: Look at it\nargument-hint: [file] [line]\nmodel: other\n---\n"
    write(folder / "review.md", f"{head}Review $ARGUMENTS.\n")
    write(folder / "git/tidy/log.md", "# Tidy the log\n\nNow.")
    write(folder / "größe.md", "Wie groß ist es?")
    for other in (".hidden.md", "notes.txt", ".git/config.md"):
        write(folder / other, "no")
    found = commands(folder).usable()
    assert {name: (each.what, each.usage, each.text) for name, each in found.items()} == {
        "review": ("Look at it", "[file] [line]", "Review $ARGUMENTS."),
        "git:tidy:log": ("Tidy the log", "", "# Tidy the log\n\nNow."),
        "größe": ("Wie groß ist es?", "", "Wie groß ist es?"),
    }


BROKEN = {
    "undo.md": (b"Mine.", "/undo is built in"),
    "latin.md": ("größe".encode("latin-1"), "it is not UTF-8, from byte 2 on"),
    "head.md": (b"---\ndescription: [open\n---\nText", "the front matter is not readable"),
    "endless.md": (b"---\ndescription: x\nText", "no end line"),
    "large.md": (b"x" * (MOST_BYTES + 1), "100,000 bytes"),
    "empty.md": (b"---\ndescription: x\n---\n \n", "it is empty"),
    "two words.md": (b"Text", "letters, digits"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_is_no_command_is_named_and_the_others_work(folder: Path, name: str) -> None:
    content, problem = BROKEN[name]
    write(folder / name, content)
    write(folder / "fine.md", "Fine.")
    found = commands(folder).listed()
    assert problem in found[name.removesuffix(".md")].problem
    assert list(commands(folder).usable()) == ["fine"]


def test_links_lead_where_the_user_wants_but_not_in_a_circle(folder: Path, tmp_path: Path) -> None:
    write(tmp_path / "dotfiles/deploy.md", "Deploy.")
    (folder / "mine").symlink_to(tmp_path / "dotfiles")
    (folder / "again").symlink_to(tmp_path / "dotfiles")
    (folder / "up").symlink_to(folder)
    (folder / "self.md").symlink_to(folder / "self.md")
    (folder / "gone.md").symlink_to(folder / "nowhere")
    os.mkfifo(folder / "pipe.md")
    found = commands(folder).listed()
    assert {name: each.problem for name, each in found.items()} == {
        "mine:deploy": "",
        "again:deploy": "",
        "up": "a link leads back to a folder above it",
        "self": "Too many levels of symbolic links",
        "gone": "No such file or directory",
        "pipe": "it is not a regular file",
    }


def test_a_changed_file_is_read_again_and_a_deleted_one_is_gone(folder: Path) -> None:
    own = commands(folder)
    assert own.listed() == {}
    write(folder / "review.md", "One.")
    first = own.find("review")
    assert first is not None
    assert first is own.find("review")
    write(folder / "review.md", "Another one.")
    second = own.find("review")
    assert second is not None
    assert second.text == "Another one."
    (folder / "review.md").unlink()
    assert own.find("review") is None


def test_without_the_folder_there_is_none(tmp_path: Path) -> None:
    assert commands(tmp_path / "commands").listed() == {}
    assert commands(tmp_path / "commands").find("review") is None
