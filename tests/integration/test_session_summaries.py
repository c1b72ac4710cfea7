"""What a list of sessions says: titles, states, costs, and the beginnings of ids."""

import sqlite3
from pathlib import Path

import pytest

from agent_core import AgentCoreError, ErrorCode, ImageBlock, StorageError, TextBlock, UserMessage
from agent_core.providers.scripted import Fails, Says
from agent_core.types import RunStatus, Usage
from isolation import Home
from runtimes import ask, runtime
from sweeps import sampled


@pytest.mark.parametrize(
    ("message", "title"),
    sampled(
        [
            ("Fix the parser", "Fix the parser"),
            ("\n\n  Fix\tthe \x1b[31m parser\u202e now  \n", "Fix the [31m parser now"),
            ("/commit all of it", "/commit all of it"),
            ("word " * 40, "word " * 15 + "word…"),
            ("長" * 200, "長" * 79 + "…"),
            (" " * 9000 + "late words", "late words"),
            ("my key is sk-abcdefgh12345678abcdefgh", "my key is [redacted:api_key]"),
        ],
        keep=2,
    ),
)
async def test_a_title_is_the_first_words_of_the_first_message(
    home: Home, project: Path, message: str, title: str
) -> None:
    async with runtime(home, project, ["a", "b"]) as made:
        await ask(made, message)
        await ask(made, "a second message")
        (found,) = await made.session_summaries()
    assert found.title == title
    assert "sk-abcdefgh" not in title


async def test_a_session_that_begins_with_an_image_is_named_by_its_words_or_as_an_image(
    home: Home, project: Path
) -> None:
    image = ImageBlock(mime_type="image/png", data="aGVsbG8=")
    async with runtime(home, project, ["a", "b"]) as made:
        await (await made.start(UserMessage(content=[image]), session_id="alone")).wait()
        both = UserMessage(content=[image, TextBlock(text="What is this?")])
        await (await made.start(both, session_id="both")).wait()
        found = {each.session_id: each.title for each in await made.session_summaries()}
    assert found == {"alone": "[image]", "both": "What is this?"}


async def test_a_summary_counts_turns_tokens_and_cost_and_says_how_the_last_run_ended(
    home: Home, project: Path
) -> None:
    priced = [Says(text="a", usage=Usage(total_tokens=10, input_tokens=7, output_tokens=3, cost=c))
              for c in (0.5, 0.25)]  # fmt: skip
    async with runtime(home, project, [*priced, Fails()]) as made:
        await ask(made)
        await ask(made)
        (found,) = await made.session_summaries()
        assert (found.status, found.turns, found.usage.total_tokens) == ("completed", 2, 20)
        assert found.usage.input_tokens == 14
        await ask(made)
        (found,) = await made.session_summaries()
    assert found.status is RunStatus.FAILED
    assert not found.is_waiting
    assert found.cwd == str(project)


async def test_a_cost_that_is_not_known_of_one_run_is_not_known_of_the_session(
    home: Home, project: Path
) -> None:
    async with runtime(home, project, ["a"]) as made:
        await ask(made)
        (found,) = await made.session_summaries()
    assert found.usage.total_tokens > 0
    assert found.usage.cost is None


async def test_summaries_are_narrowed_by_project_and_words_and_come_in_pages(
    home: Home, project: Path, tmp_path: Path
) -> None:
    async with runtime(home, project, ["a"] * 3) as made:
        for number, text in enumerate(("Mend the LAMP", "Ärger mit Lampen", "something else")):
            await ask(made, text, f"s{number}")

        async def ids(**narrowed: object) -> list[str]:
            return [each.session_id for each in await made.session_summaries(**narrowed)]  # type: ignore[arg-type]

        assert await ids() == ["s2", "s1", "s0"]
        assert await ids(limit=1, offset=1) == ["s1"]
        assert await ids(query="lamp") == ["s1", "s0"]
        assert await ids(query="ärger") == ["s1"]
        assert await ids(query="lamp the") == ["s0"]
        assert await ids(query="%") == []
        assert await ids(query="\ud800") == []
        assert await ids(query="  ") == ["s2", "s1", "s0"]
        assert await ids(project=tmp_path) == []
        assert await ids(project=project) == ["s2", "s1", "s0"]
        assert await made.last_session(project) == "s2"
        assert await made.last_session() == "s2"
        assert await made.last_session(tmp_path) is None


async def test_titles_of_an_older_database_are_made_when_they_are_first_listed(
    home: Home, project: Path
) -> None:
    made = runtime(home, project, ["a"] * 3)
    async with made:
        for number in range(3):
            await ask(made, f"message {number}", f"s{number}")
        await made.rename_session("s1", "my own name")
    database = sqlite3.connect(home.path / "sessions.sqlite")
    with database:
        database.execute("UPDATE sessions SET title = NULL WHERE session_id != 's1'")
        database.execute("UPDATE nodes SET content_json = '[{}]' WHERE session_id = 's2'")
    database.close()
    async with runtime(home, project, []) as made:
        found = {each.session_id: each.title for each in await made.session_summaries()}
        assert found == {"s0": "message 0", "s1": "my own name", "s2": None}
        assert (await made.list_sessions())[-1].title == "message 0"


async def test_a_session_is_renamed_and_a_title_has_to_have_words(
    home: Home, project: Path
) -> None:
    async with runtime(home, project, ["a"]) as made:
        await ask(made)
        renamed = await made.rename_session("s1", " a \n better\x07 name \ud800")
        assert renamed.title == "a better name �"
        assert (await made.session_summaries())[0].title == renamed.title
        for empty in ("", " \n", "\x00\u200b"):
            with pytest.raises(AgentCoreError, match="needs a visible word"):
                await made.rename_session("s1", empty)
        with pytest.raises(StorageError) as caught:
            await made.rename_session("s2", "x")
        assert caught.value.code is ErrorCode.SESSION_NOT_FOUND
        secret = await made.rename_session("s1", "key sk-abcdefgh12345678abcdefgh")
        assert "sk-" not in (secret.title or "")


async def test_the_beginning_of_an_id_is_enough_if_no_other_begins_so(
    home: Home, project: Path
) -> None:
    async with runtime(home, project, ["a"] * 4) as made:
        for session_id in ("sess_18aa1", "sess_18ab2", "18c", "18cd"):
            await ask(made, session_id=session_id)
        assert await made.resolve_session_id("sess_18aa") == "sess_18aa1"
        assert await made.resolve_session_id("18aa") == "sess_18aa1"
        assert await made.resolve_session_id("18c") == "18c", "an exact id wins"
        for ambiguous in ("18", "sess_18", "sess_18a", "18a"):
            with pytest.raises(AgentCoreError) as caught:
                await made.resolve_session_id(ambiguous)
            assert caught.value.code is ErrorCode.VALIDATION_ERROR
            assert {"sess_18aa1", "sess_18ab2"} <= set(caught.value.details["candidates"])
        for short in ("", "sess_"):
            with pytest.raises(AgentCoreError) as caught:
                await made.resolve_session_id(short)
            assert caught.value.code is ErrorCode.VALIDATION_ERROR
        for unknown in ("19", "SESS_18AA", "%", "sess_18aa12", "\ud800", "*"):
            with pytest.raises(StorageError) as unknown_error:
                await made.resolve_session_id(unknown)
            assert unknown_error.value.code is ErrorCode.SESSION_NOT_FOUND
        short_ids = {each.session_id: each.short_id for each in await made.session_summaries()}
        for session_id, short_id in short_ids.items():
            assert await made.resolve_session_id(short_id) == session_id


async def test_the_beginnings_of_ids_of_runs_and_nodes_are_enough(
    home: Home, project: Path
) -> None:
    async with runtime(home, project, ["a"] * 2) as made:
        handle = await ask(made)
        await ask(made, session_id="s2")
        assert await made.resolve_run_id(handle.run_id[:20]) == handle.run_id
        page = await made.replay_session("s1")
        node_id = page.nodes[0].node_id
        assert await made.resolve_node_id(node_id[5:-2], "s1") == node_id
        with pytest.raises(StorageError) as caught:
            await made.resolve_node_id(node_id, "s2")
        assert caught.value.code is ErrorCode.NODE_NOT_FOUND
