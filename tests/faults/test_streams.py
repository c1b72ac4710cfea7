"""Provider streams cut at every byte and split at every byte, seen from whole runs."""

from contextlib import suppress
from pathlib import Path

import pytest

from agcore.agent import Agent, AgentConfig, AgentError, AgentSession, RuntimeBundle
from agcore.llm import (
    AdapterProvider,
    AssistantTextDelta,
    CycleConfig,
    ModelConfig,
    RetryConfig,
    TurnComplete,
)
from agent_core import AgentRuntime, RunStatus, tool
from agent_core.providers.scripted import Calls, Says, ScriptedCall
from agent_core.types import Role
from agent_parts import bundle
from faults.depth import Depth, Tally
from isolation import Home
from model_server import Ending, ModelServer, Received, Reply, Sends
from model_server_wire import Protocol, events as wire_events
from sweeps import paired

pytestmark = pytest.mark.timeout(600)
NAMES = ["openai", "responses", "anthropic", "ollama", "gemini", "bedrock"]
PROTOCOLS = pytest.mark.parametrize("protocol", NAMES)
REPLY = Calls(
    text="Grüße 🌍",
    reasoning="hm",
    calls=[
        ScriptedCall(name="note", arguments={"text": "ä\n1"}, tool_call_id="one"),
        ScriptedCall(name="note", arguments={"text": "2"}, tool_call_id="two"),
    ],
)
STOPS = {
    "openai": b'"finish_reason":"tool_calls"',
    "responses": b'"type":"response.completed"',
    "anthropic": b'"stop_reason":"tool_use"',
    "ollama": b'"done":true',
    "gemini": b'"finishReason":"STOP"',
    "bedrock": b'"stopReason":"tool_use"',
}


def body_of(protocol: str) -> bytes:
    return b"".join(wire_events(Protocol(protocol), REPLY, serial=1))


class Service:
    """Answers a first request as told, and every other with `done`."""

    def __init__(self) -> None:
        self.first: Sends = Sends(REPLY)

    def __call__(self, asked: Received) -> Reply:
        is_first = "noted" not in asked.text and "and now?" not in asked.text
        return self.first if is_first else Says(text="done")


class Notes:
    """A runtime against the service, and what its tool was called with."""

    def __init__(self, home: Home, project: Path, protocol: str, server: ModelServer) -> None:
        self.taken: list[str] = []
        service = "".join(f'{key} = "{told}"\n' for key, told in server.settings(protocol).items())
        home.write_config(
            f'[model]\n{service}name = "m"\ncontext_window = 32000\n'
            "retry = { max_attempts = 1 }\n"
        )
        self.runtime = AgentRuntime(home_dir=home.path, project_dir=project)

        @tool(permission="readonly")
        async def note(text: str) -> str:
            """Remember a text."""
            self.taken.append(text)
            return "noted"

        self.runtime.register_tool(note)

    async def ask(self, text: str, session_id: str) -> tuple[RunStatus, str]:
        self.taken.clear()
        handle = await self.runtime.start(text, session_id=session_id)
        await handle.wait()
        return handle.status, handle.result_text or ""


@pytest.mark.long
@PROTOCOLS
@pytest.mark.faults("streams: split at a byte")
async def test_a_run_is_the_same_wherever_its_stream_is_split(
    home: Home, project: Path, protocol: str, tally: Tally, depth: Depth
) -> None:
    body, service = body_of(protocol), Service()
    async with ModelServer(service) as server:
        notes = Notes(home, project, protocol, server)
        async with notes.runtime:
            for at in depth.of(range(1, len(body)), 3):
                with tally.case(f"split at {at}"):
                    service.first = Sends([body[:at], body[at:]], pause_s=0.0003)
                    assert await notes.ask("go", f"s{at}") == (RunStatus.COMPLETED, "done")
                    assert sorted(notes.taken) == ["2", "ä\n1"]
                    page = await notes.runtime.replay_session(f"s{at}")
                    said = [node.text for node in page.nodes if node.role is Role.ASSISTANT]
                    assert said == ["Grüße 🌍", "done"]
    tally.verdict()


@pytest.mark.long
@pytest.mark.parametrize(
    ("protocol", "ending"), paired(NAMES, [Ending.CLOSE, Ending.RESET, Ending.COMPLETE])
)
@pytest.mark.faults("streams: cut at a byte")
async def test_a_run_whose_stream_is_cut_fails_and_its_session_goes_on(
    home: Home, project: Path, protocol: str, ending: Ending, tally: Tally, depth: Depth
) -> None:
    body, service = body_of(protocol), Service()
    stop = body.index(STOPS[protocol]) + len(STOPS[protocol])
    async with ModelServer(service) as server:
        notes = Notes(home, project, protocol, server)
        async with notes.runtime:
            for at in depth.of(range(0, len(body), 1 if ending is Ending.CLOSE else 3), 2):
                with tally.case(f"cut at {at} of {len(body)}, {ending.name}"):
                    service.first = Sends(body, cut=at, ending=ending)
                    status, _ = await notes.ask("go", f"s{at}")
                    assert is_honest(status, notes.taken, is_whole=at >= stop)
                    again = await notes.ask("and now?", f"s{at}")
                    assert again == (RunStatus.COMPLETED, "done")
                    page = await notes.runtime.replay_session(f"s{at}")
                    kept = [node.text for node in page.nodes if node.is_partial]
                    assert all("Grüße 🌍".startswith(text) for text in kept)
                    seen = server.requests[-1].text
                    assert status is RunStatus.COMPLETED or "Gr" not in seen
    tally.verdict()


def is_honest(status: RunStatus, taken: list[str], *, is_whole: bool) -> bool:
    """A reply that was not whole is no finished turn, and no tool ran for it."""
    if status is RunStatus.COMPLETED:
        return is_whole and sorted(taken) == ["2", "ä\n1"]
    return status is RunStatus.FAILED and not taken


@pytest.mark.long
@PROTOCOLS
@pytest.mark.faults("streams: cut at a byte, toolkit")
async def test_an_agent_of_the_toolkit_never_finishes_a_turn_that_did_not(
    protocol: str, tally: Tally, depth: Depth
) -> None:
    body = b"".join(wire_events(Protocol(protocol), Says(text="Grüße 🌍"), serial=1))
    stop = next(body.index(each) for each in ENDS if each in body)
    config = AgentConfig(cycle=CycleConfig(retry=RetryConfig(max_attempts=1)))
    service = Service()
    async with ModelServer(service) as server:
        model = ModelConfig(name="m", **server.settings(protocol))
        async with AdapterProvider.open(model) as provider:
            for at in depth.of(range(len(body)), 4):
                for ending in (Ending.CLOSE, Ending.COMPLETE):
                    with tally.case(f"cut at {at} of {len(body)}, {ending.name}"):
                        service.first = Sends(body, cut=at, ending=ending)
                        text = await answer_of(bundle(provider, config=config))
                        assert text is None or at > stop, f"finished with {text!r}"
                        assert text in {None, "Grüße 🌍"}
    tally.verdict()


async def answer_of(parts: RuntimeBundle) -> str | None:
    """What an agent says, joined from its stream; None if the turn fails."""
    session = AgentSession(Agent("a", "You."), "s1", parts)
    said: list[str] = []
    with suppress(AgentError):
        async for event in session.submit_turn_stream("go"):
            if isinstance(event, AssistantTextDelta):
                said.append(event.text)
            if isinstance(event, TurnComplete):
                return "".join(said)
    return None


ENDS = (
    b'"finish_reason":"stop"',
    b'"type":"response.completed"',
    b'"stop_reason":"end_turn"',
    b'"done":true',
    b'"finishReason":"STOP"',
    b'"stopReason":"end_turn"',
)
