"""Commands that are given a place which cannot be looked at: too long a name, a closed folder."""

import asyncio
from pathlib import Path

import pytest

from agent_core.cli import main
from isolation import Home
from rights import as_anyone
from runtimes import CONFIG, ask, runtime

COMMANDS = {
    "doctor": ("doctor", "--json", "--path", "{}"),
    "undo": ("undo", "--path", "{}"),
    "source": ("store", "copy", "--from", "sqlite:{}", "--to", "sqlite:new.sqlite"),
    "target": ("store", "copy", "--from", "sqlite:{home}/sessions.sqlite", "--to", "sqlite:{}"),
    "fork": ("sessions", "fork", "s1", "--into", "{}"),
    "export": ("sessions", "export", "s1", "--html", "{}/page.html"),
}


@pytest.mark.parametrize("why", ["closed", "long"])
def test_a_place_that_cannot_be_looked_at_is_named_as_the_fault(
    home: Home,
    project: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    why: str,
) -> None:
    async def begin() -> None:
        async with runtime(home, project, ["done"]) as made:
            await ask(made)

    home.write_config(CONFIG)
    asyncio.run(begin())
    monkeypatch.chdir(project)
    folder = tmp_path / "closed"
    (folder / "inside").mkdir(parents=True)
    place = "n" * 300 if why == "long" else str(folder / "inside")
    folder.chmod(0)
    try:
        for name, command in COMMANDS.items():
            words = [each.format(place, home=home.path) for each in command]
            with as_anyone():
                code = main(words)
            said = "".join(capsys.readouterr())
            assert code in {1, 2}, (name, said)
            assert "standard output" not in said, said
            assert place[-100:] in said, said
    finally:
        folder.chmod(0o700)
