"""Messages to a run that works: stored first, read at the next boundary, never lost or doubled."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from agent_core import (
    AgentCoreError,
    AgentRuntime,
    ErrorCode,
    EventType,
    Extension,
    PermissionDeniedError,
    RunHandle,
    RunStatus,
    UserMessage,
    on_message,
    tool,
)
from agent_core.extensions import ExtensionContext
from agent_core.providers.scripted import Hangs, ScriptedProvider, calls
from agent_core.runtime.run import Run
from agent_core.types import WORDS, ModelRequest
from isolation import Home
from loop_parts import spoken
from runtimes import CONFIG, Asked, collect, runtime
from sweeps import sampled
from takeovers import carried_out, services_of


class Pause:
    """A tool that waits: a test sends messages meanwhile."""

    def __init__(self) -> None:
        self.entered, self.go = asyncio.Event(), asyncio.Event()

    @property
    def tool(self) -> Any:
        @tool(permission="readonly")
        async def pause() -> str:
            """Waits."""
            self.entered.set()
            await self.go.wait()
            return "waited"

        return pause


Open = Callable[..., AbstractAsyncContextManager[tuple[AgentRuntime, Pause]]]


@pytest.fixture(params=["sqlite", "postgres"])
def opened(request: pytest.FixtureRequest, home: Home, project: Path) -> Open:
    """Opens a runtime with the tool, on a file or on a server."""
    url = request.getfixturevalue("database_url") if request.param == "postgres" else None

    @asynccontextmanager
    async def opened(script: Any) -> AsyncGenerator[tuple[AgentRuntime, Pause]]:
        home.write_config(CONFIG)
        made = AgentRuntime(project_dir=project, home_dir=home.path, database_url=url)
        provider = script if isinstance(script, ScriptedProvider) else ScriptedProvider(script)
        made.register_provider("custom", lambda _: provider)
        async with made:
            yield made, Pause()

    return opened


async def start(made: AgentRuntime, pause: Pause, text: str = "go", **more: Any) -> RunHandle[Any]:
    is_shared = made._options.database_url is not None
    placed: dict[str, Any] = {"here": True} if is_shared else {}
    return await made.start(text, "s1", tools=[pause.tool], **placed, **more)


async def until(is_true: Callable[[], bool]) -> None:
    """Wait for something that no event tells."""
    while True:
        if is_true():
            return
        await asyncio.sleep(0.01)


async def path_of(made: AgentRuntime) -> list[str]:
    (session,) = await made.list_sessions()
    assert session.active_node_id is not None
    return spoken(await made.get_node_path(session.active_node_id))


def last_words(request: ModelRequest) -> str:
    """Answer with the last thing that the user has said."""
    said = [m for m in request.messages if m.role == "user"]
    return "you said " + "".join(b.text for b in said[-1].content if b.type == "text")


async def test_a_message_is_read_after_the_results_of_the_turn(opened: Open) -> None:
    provider = ScriptedProvider([calls("pause"), last_words])
    async with opened(provider) as (made, pause):
        handle = await start(made, pause)
        reading = asyncio.create_task(collect(handle))
        await pause.entered.wait()
        message = UserMessage(content="rather this\nFILE", metadata={WORDS: "rather this"})
        message_id = await handle.send(message)
        (waiting,) = await made.waiting_messages("s1")
        assert (waiting.message_id, waiting.run_id) == (message_id, handle.run_id)
        pause.go.set()
        events = await reading
        assert handle.result_text == "you said rather this\nFILE"
        assert await made.waiting_messages("s1") == []
        path = await path_of(made)
        replayed = (await made.replay_run(handle.run_id)).events
    assert path == [
        "user: go",
        "calls pause({})",
        "result ok",
        "user: rather this\nFILE",
        "assistant: you said rather this\nFILE",
    ]
    for seen in (events, replayed):
        mine = [e for e in seen if e.payload.get("message_id") == message_id]
        kinds = [EventType.MESSAGE_WAITING, EventType.MESSAGE_CREATED]
        assert [event.event_type for event in mine] == kinds
        assert mine[0].payload["text"] == "rather this"
    roles = [message.role for message in provider.requests[-1].messages]
    assert roles[-2:] == ["tool", "user"]


async def test_the_run_takes_one_more_turn_for_a_message_that_finds_it_finished(
    opened: Open,
) -> None:
    async def answer(request: ModelRequest) -> str:
        if len(provider.requests) == 1:
            await handle.send("one")
            await handle.send("two")
            return "finished"
        return last_words(request)

    provider = ScriptedProvider(answer)
    async with opened(provider) as (made, pause):
        handle = await start(made, pause)
        assert await handle.wait() is RunStatus.COMPLETED
        assert handle.result_text == "you said two"
        assert (await path_of(made))[1:4] == ["assistant: finished", "user: one", "user: two"]
        assert len(provider.requests) == 2


async def test_a_message_that_comes_too_late_or_to_the_last_turn_stays(opened: Open) -> None:
    async with opened([calls("pause"), "never asked"]) as (made, pause):
        handle = await start(made, pause, max_turns=1)
        await pause.entered.wait()
        message_id = await handle.send("late")
        pause.go.set()
        assert await handle.wait() is RunStatus.FAILED
        (waiting,) = await made.waiting_messages("s1")
        assert waiting.message_id == message_id
        with pytest.raises(AgentCoreError) as refused:
            await handle.send("later")
        assert refused.value.code is ErrorCode.RUN_ENDED
        assert await handle.take_back(message_id)
        assert not await handle.take_back(message_id)
        assert await made.waiting_messages("s1") == []


async def test_a_message_is_taken_back_until_it_is_delivered(opened: Open) -> None:
    async with opened([calls("pause"), last_words]) as (made, pause):
        handle = await start(made, pause)
        reading = asyncio.create_task(collect(handle))
        await pause.entered.wait()
        kept, dropped = await handle.send("kept"), await handle.send("dropped")
        assert await handle.take_back(dropped)
        pause.go.set()
        events = await reading
        assert not await handle.take_back(kept)
        assert handle.result_text == "you said kept"
    taken = [e for e in events if e.event_type is EventType.MESSAGE_TAKEN_BACK]
    assert [event.payload["message_id"] for event in taken] == [dropped]


async def test_a_cancelled_run_leaves_its_messages(opened: Open) -> None:
    async with opened([calls("pause"), "no"]) as (made, pause):
        handle = await start(made, pause)
        await pause.entered.wait()
        await handle.send("not now")
        await handle.cancel()
        assert len(await made.waiting_messages("s1")) == 1
        with pytest.raises(AgentCoreError, match="has ended"):
            await handle.send("again")


class Refuses(Extension):
    """Refuses messages with a word."""

    async def on_message(self, context: ExtensionContext, message: str) -> None:
        if "refuse" in message:
            raise PermissionDeniedError(ErrorCode.PERMISSION_DENIED, "not like this")


async def test_an_extension_may_refuse_a_message_and_the_run_continues(opened: Open) -> None:
    async with opened([calls("pause"), last_words]) as (made, pause):
        handle = await start(made, pause, extensions=[Refuses()])
        reading = asyncio.create_task(collect(handle))
        await pause.entered.wait()
        refused = await handle.send("refuse me")
        pause.go.set()
        events = await reading
        assert handle.result_text == "you said go"
        assert await made.waiting_messages("s1") == []
    (event,) = [e for e in events if e.event_type is EventType.MESSAGE_REFUSED]
    assert event.payload["message_id"] == refused
    assert event.details.message == "not like this"


async def test_a_message_refused_at_the_end_asks_the_model_nothing(opened: Open) -> None:
    async def answer(_: ModelRequest) -> str:
        await handle.send("refuse me")
        return "finished"

    provider = ScriptedProvider(answer)
    async with opened(provider) as (made, pause):
        handle = await start(made, pause, extensions=[Refuses()])
        assert await handle.wait() is RunStatus.COMPLETED
        assert handle.result_text == "finished"
        assert len(provider.requests) == 1


async def test_guards_check_a_message_before_it_is_stored(home: Home, project: Path) -> None:
    @on_message
    async def mask(text: str) -> str:
        return text.replace("4711", "####")

    pause = Pause()
    async with runtime(home, project, [calls("pause"), last_words]) as made:
        handle = await made.start("go", "s1", tools=[pause.tool], guards=[mask])
        await pause.entered.wait()
        await handle.send("the pin is 4711")
        (waiting,) = await made.waiting_messages("s1")
        assert "4711" not in waiting.model_dump_json()
        pause.go.set()
        await handle.wait()
        assert handle.result_text == "you said the pin is ####"


async def test_a_run_that_only_summarises_and_an_empty_message_are_refused(
    home: Home, project: Path
) -> None:
    pause = Pause()
    async with runtime(home, project, ["hello", Hangs(text="hm ")]) as made:
        handle = await made.start("go", "s1", tools=[pause.tool])
        with pytest.raises(AgentCoreError, match="the message is empty"):
            await handle.send(" ")
        await handle.wait()
        summary = await made.compact_session("s1")
        with pytest.raises(AgentCoreError, match="only summarises"):
            await summary.send("hello")
        await summary.cancel()


async def test_undo_reverts_the_run_with_every_message_that_it_has_read(
    home: Home, project: Path
) -> None:
    config = f'{CONFIG}\n[workspace]\nsnapshots = "turn"\n'
    write = calls("code.write_file", path="a.txt", content="new", overwrite=True)
    pause, script = Pause(), ["Hello.", write, calls("pause"), "Done."]
    made = runtime(home, project, script, config=config, permission_callback=Asked("allow_once"))
    made.register_tool(pause.tool)
    async with made:
        await (await made.start("hi", "s1")).wait()
        handle = await made.start("go", "s1")
        await pause.entered.wait()
        await handle.send("rather this")
        pause.go.set()
        await handle.wait()
        assert (project / "a.txt").exists()
        undone = await made.undo("s1")
        assert undone.message == "go\nrather this"
        assert not (project / "a.txt").exists()
        assert await path_of(made) == ["user: hi", "assistant: Hello."]


VICTIM = """
import asyncio, os, sys
from agent_core import AgentRuntime, tool
from agent_core.providers.scripted import ScriptedProvider, calls

@tool(permission="readonly")
async def pause() -> str:
    "Waits for ever."
    entered.set()
    await asyncio.Event().wait()
    return ""

async def main():
    global entered
    entered = asyncio.Event()
    runtime = AgentRuntime(home_dir=sys.argv[1], project_dir=sys.argv[2])
    runtime.register_provider("custom", lambda model: ScriptedProvider([calls("pause")]))
    async with runtime:
        handle = await runtime.start("go", "s1", tools=[pause])
        await entered.wait()
        await handle.send("do not lose me")
        os.kill(os.getpid(), 9)

asyncio.run(main())
"""


async def test_a_message_outlives_its_process(home: Home, project: Path) -> None:
    home.write_config(CONFIG)
    arguments = [sys.executable, str(home.write("victim.py", VICTIM)), str(home.path), str(project)]
    done = await asyncio.to_thread(
        subprocess.run, arguments, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    async with runtime(home, project, ["The answer."]) as made:
        (waiting,) = await made.waiting_messages("s1")
        assert waiting.prompt.content[0].model_dump()["text"] == "do not lose me"
        handle = await made.start("next", "s1")
        await handle.wait()
        assert len(await made.waiting_messages("s1")) == 1  # it is no part of another run
        assert await (await made.attach(waiting.run_id)).take_back(waiting.message_id)


TAKEN_OVER = """
import asyncio, os, sys
from pathlib import Path
from agent_core import tool
from agent_core.providers.scripted import ScriptedProvider, calls
from agent_core.types import Draft, Role, TextBlock
from takeovers import queue, services_of

home, project, stop_at = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])

@tool(permission="readonly")
async def note(text: str) -> str:
    "Sends a message to its own run, as a person does meanwhile."
    if text == "one":
        await services.runs.send("run_1", Draft(Role.USER, [TextBlock(text="mind me")]))
        (project / "sent.txt").touch()
    return "noted"

async def main():
    global services
    script = ScriptedProvider([calls("note", text="one"), calls("note", text="two"), "done"])
    async with services_of(home, project, script, note) as services:
        await queue(services)
        run = await services.runs.pipeline.take(await services.store.run("run_1"))
        seen = 0
        async for event in services.runs.watch("run_1", debug=True):
            seen += 1
            if seen == stop_at:
                os.kill(os.getpid(), 9)

asyncio.run(main())
"""


@tool(permission="readonly")
async def note(text: str) -> str:
    """Notes something."""
    return f"noted {text}"


@pytest.mark.parametrize("stop_at", sampled(range(5, 19), keep=1))
async def test_whoever_takes_the_run_of_a_dead_worker_over_delivers_its_messages_once(
    home: Home, project: Path, stop_at: int
) -> None:
    home.write_config(CONFIG)
    file = home.write("victim.py", TAKEN_OVER)
    arguments = [sys.executable, str(file), str(home.path), str(project), str(stop_at)]
    environ = home.env(PYTHONPATH=str(Path(__file__).parents[1]))
    done = await asyncio.to_thread(
        subprocess.run, arguments, capture_output=True, timeout=60, check=False, env=environ
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    provider = ScriptedProvider(last_words)
    async with services_of(home.path, project, provider, note) as services:
        await carried_out(services)
        page = await services.store.page("s1")
        assert page.session.active_node_id is not None
        path = spoken(await services.store.path(page.session.active_node_id))
        assert await services.store.waiting_messages("s1") == []
    is_sent = (project / "sent.txt").exists()
    assert path.count("user: mind me") == 1 if is_sent else path.count("user: mind me") <= 1


@pytest.mark.sweep
async def test_another_process_sends_a_message_and_its_heartbeat_or_notice_brings_it(
    home: Home, project: Path, database_url: str
) -> None:
    """Two runtimes, as two machines have them: one executes the run, the other one sends."""
    home.write_config(CONFIG + "[worker]\nheartbeat_s = 0.2\nlease_s = 5\n")
    pause, provider = Pause(), ScriptedProvider([calls("pause"), last_words])
    here = AgentRuntime(project_dir=project, home_dir=home.path, database_url=database_url)
    here.register_provider("custom", lambda _: provider)
    there = AgentRuntime(project_dir=project, home_dir=home.path, database_url=database_url)
    there.register_provider("custom", lambda _: ScriptedProvider(["not asked"]))
    async with here, there:
        handle = await here.start("go", "s1", tools=[pause.tool], here=True)
        reading = asyncio.create_task(collect(handle))
        await pause.entered.wait()
        remote = await there.attach(handle.run_id)
        message_id = await remote.send("from afar")
        await until(lambda: cast("Run", handle._run).inbox.has_mail)
        pause.go.set()
        events = await reading
        assert handle.result_text == "you said from afar"
    mine = [e.event_type for e in events if e.payload.get("message_id") == message_id]
    assert mine == [EventType.MESSAGE_WAITING, EventType.MESSAGE_CREATED]
