"""Conversations with a Responses service that refuses what OpenAI's refuses."""

import base64
from pathlib import Path

import pytest

from agent_core import AgentRuntime, RunStatus, ToolResult, UserMessage, tool
from agent_core.providers.scripted import Calls, Says, ScriptedCall
from agent_core.types import ImageBlock, TextBlock
from isolation import Home
from model_server import ModelServer
from model_server_wire import SIGNATURE
from responses_events import Event, call, message, reasoning
from responses_service import ResponsesService

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(30)).decode()


def note(text: str, number: int) -> Event:
    arguments = f'{{"text": "{text}"}}'
    return call("note", arguments, call_id=f"call_{number}", item_id=f"fc_{number}")


def thought(number: int) -> Event:
    return reasoning(f"Thought {number}.", "More of it.", item_id=f"rs_{number}")


def said(text: str, number: int, phase: str = "final_answer") -> Event:
    return message(text, item_id=f"msg_{number}", phase=phase)


class Host:
    """Runs against a service, each in a process of its own as far as memory goes."""

    def __init__(self, home: Home, project: Path, server: ModelServer, **more: str) -> None:
        self._home, self._project = home, project
        told = {"name": "gpt-5", **server.settings("responses"), **more}
        settings = "".join(f'{key} = "{value}"\n' for key, value in told.items())
        home.write_config(
            f"[model]\n{settings}context_window = 64000\ntemperature = 0.5\n"
            'reasoning = "medium"\n[memory]\nenabled = false\n'
        )
        self.noted: list[str] = []

    async def ask(self, message: str | UserMessage, session_id: str = "s1") -> str:
        async with AgentRuntime(home_dir=self._home.path, project_dir=self._project) as runtime:

            @tool(permission="readonly")
            async def note(text: str) -> ToolResult | str:
                """Remember a text."""
                self.noted.append(text)
                return "noted"

            runtime.register_tool(note)
            handle = await runtime.start(message, session_id=session_id)
            await handle.wait()
            assert handle.status is RunStatus.COMPLETED, handle.error
            return handle.result_text or ""


async def test_three_turns_with_parallel_calls_reasoning_and_a_picture(
    home: Home, project: Path
) -> None:
    service = ResponsesService(
        [thought(1), said("I note two.", 1, "commentary"), note("a", 1), note("b", 2)],
        [thought(2), note("c", 3)],
        [thought(3), said("All noted.", 3)],
        [note("d", 4)],
        [said("A dot.", 5)],
        [thought(6), thought(7), said("Bye.", 6)],
    )
    picture = ImageBlock(mime_type="image/png", data=PNG)
    async with ModelServer(service) as server:
        host = Host(home, project, server)
        assert await host.ask("Note a, b, then c.") == "All noted."
        shown = UserMessage(content=[TextBlock(text="What is this?"), picture])
        assert await host.ask(shown) == "A dot."
        assert await host.ask("Thanks.") == "Bye."

    assert host.noted == ["a", "b", "c", "d"]
    sent = server.requests[-1].body["input"]
    assert [item["id"] for item in sent if item["type"] == "reasoning"] == ["rs_1", "rs_2", "rs_3"]
    assert [item["id"] for item in sent if item["type"] == "function_call"] == [
        "fc_1",
        "fc_2",
        "fc_3",
        "fc_4",
    ]
    assert "temperature" not in server.requests[0].body
    for earlier, later in zip(server.requests, server.requests[1:], strict=False):
        assert later.raw.startswith(earlier.raw.removesuffix(b"]}"))


@pytest.mark.sweep
async def test_a_session_that_another_model_began_goes_on(home: Home, project: Path) -> None:
    """What only Claude can read stays away from OpenAI, and the other way round."""
    calls = [ScriptedCall(name="note", arguments={"text": "a"}, tool_call_id="toolu." + "1" * 90)]
    claude = [Calls(text="Noting.", reasoning="Claude thinks", calls=calls), "Noted."]
    ours = ResponsesService([thought(1), note("b", 1)], [thought(2), said("Also noted.", 2)])
    async with ModelServer(claude) as first, ModelServer(ours) as second:
        host = Host(home, project, first, provider="anthropic", api="auto", base_url=first.url)
        assert await host.ask("Note a.") == "Noted."
        host = Host(home, project, second)
        assert await host.ask("Note b.") == "Also noted."
    assert "Claude thinks" not in second.requests[0].text

    async with ModelServer([Says(text="Bye.")]) as third:
        host = Host(home, project, third, provider="anthropic", api="auto", base_url=third.url)
        assert await host.ask("Thanks.") == "Bye."
    seen = third.requests[0].text
    assert SIGNATURE in seen
    for word in ("rs_1", "fc_1", "msg_2", "gAAAA", "Thought 1"):
        assert word not in seen


async def test_another_model_or_protocol_gets_no_items(home: Home, project: Path) -> None:
    service = ResponsesService(
        [thought(1), note("a", 1)],
        [thought(2), said("Noted.", 2)],
        [thought(3), said("As another model.", 3)],
        [thought(4), said("As the first.", 4)],
    )
    async with ModelServer(service) as server, ModelServer(["Over chat."]) as chat:
        assert await Host(home, project, server).ask("Note a.") == "Noted."
        other = Host(home, project, server, name="gpt-5-mini")
        assert await other.ask("Who are you?") == "As another model."
        over_chat = Host(home, project, chat, api="chat")
        assert await over_chat.ask("And now?") == "Over chat."
        assert await Host(home, project, server).ask("Back?") == "As the first."

    for word in ("rs_1", "fc_1", "msg_2", "gAAAA", "opaque", "Thought 1"):
        assert word not in chat.requests[0].text
    assert [item["id"] for item in server.requests[-1].body["input"] if "id" in item] == [
        "rs_1",
        "fc_1",
        "rs_2",
        "msg_2",
    ]


async def test_a_fork_takes_the_reasoning_of_its_parent_along(home: Home, project: Path) -> None:
    fork = '{"task": "Say hello."}'
    service = ResponsesService(
        [thought(1), call("agent__fork_agent", fork, call_id="call_1", item_id="fc_1")],
        [thought(2), said("Hello from the fork.", 2)],
        [thought(3), said("It said hello.", 3)],
    )
    async with ModelServer(service) as server:
        assert await Host(home, project, server).ask("Fork.") == "It said hello."


async def test_a_reply_that_broke_off_while_it_was_reasoning_is_continued(
    home: Home, project: Path
) -> None:
    cut = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    service = ResponsesService([thought(1)], [thought(2), said("There it is.", 2)])
    service.more = [cut]
    async with ModelServer(service) as server:
        assert await Host(home, project, server).ask("Think hard.") == "There it is."

    assert "rs_1" not in server.requests[1].text
