"""Extensions of a program: what they see, change, refuse and contribute, as a run meets them."""

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_core import (
    AgentCoreError,
    AgentRuntime,
    AskModel,
    ConfigError,
    Decision,
    ErrorCode,
    EventType,
    Extension,
    ExtensionContext,
    GuardStop,
    ModelEvent,
    ModelRequest,
    ModelTextDelta,
    PermissionDecision,
    PermissionDeniedError,
    PermissionRequest,
    RunError,
    RunStatus,
    RunTool,
    ToolCall,
    ToolDefinition,
    ToolResult,
    ToolReturn,
    Toolset,
    on_tool_call,
    tool,
)
from agent_core.extensions import Admit, JudgedCall
from agent_core.providers.scripted import Calls, Hangs, Says, ScriptedCall, ScriptedProvider, calls
from agent_core.testing import ScriptedRuntime
from isolation import Home
from sweeps import sampled
from tables import together


@tool(permission="readonly")
async def look(place: str) -> str:
    """Look at a place."""
    return f"saw {place}"


@tool(permission="write")
async def launch() -> str:
    """Launch it."""
    return "launched"


class Recorder(Extension):
    """Notes all that it is told, under a name."""

    def __init__(self, name: str, said: list[str]) -> None:
        self.name = name
        self.said = said

    def note(self, text: str) -> None:
        self.said.append(f"{self.name} {text}")

    @asynccontextmanager
    async def wrap_run(self, context: ExtensionContext) -> AsyncGenerator[None]:
        self.note("begins")
        try:
            yield
        except BaseException as error:
            self.note(f"fails: {error}")
            raise
        self.note("ends")

    async def run_started(self, context: ExtensionContext) -> None:
        self.note("started")

    async def on_message(self, context: ExtensionContext, message: str) -> None:
        self.note(f"message {message}")

    async def wrap_model_call(
        self, context: ExtensionContext, request: ModelRequest, proceed: AskModel
    ) -> AsyncIterator[ModelEvent]:
        self.note("asks")
        async for event in proceed(request):
            yield event
        self.note("was answered")

    async def before_tool_call(
        self, context: ExtensionContext, call: ToolCall, definition: ToolDefinition
    ) -> None:
        self.note(f"before {call.name} ({definition.permission})")

    async def wrap_tool_call(
        self, context: ExtensionContext, call: ToolCall, proceed: RunTool
    ) -> ToolReturn:
        self.note(f"makes {call.name}")
        value = await proceed()
        self.note(f"made {call.name}: {value}")
        return value

    async def after_tool_call(
        self, context: ExtensionContext, call: ToolCall, result: ToolResult
    ) -> None:
        self.note(f"after {call.name}")

    async def before_stop(self, context: ExtensionContext, answer: str) -> None:
        self.note(f"may it end with {answer!r}")


async def test_extensions_are_nested_the_runtimes_outside_those_of_the_run() -> None:
    said: list[str] = []
    outer, inner = Recorder("outer", said), Recorder("inner", said)
    script = [calls("look", place="home"), "done"]
    async with ScriptedRuntime(script, extensions=[outer]) as runtime:
        result = await runtime.run("go", tools=[look], extensions=[inner])
    assert result.text == "done"
    pairs = [
        ("begins", None),
        ("started", None),
        ("message go", None),
        ("asks", "was answered"),
        ("before look (readonly)", None),
        ("makes look", "made look: saw home"),
        ("after look", None),
        ("asks", "was answered"),
        ("may it end with 'done'", None),
    ]
    expected: list[str] = []
    for before, after in pairs:
        expected += [f"outer {before}", f"inner {before}"]
        expected += [f"inner {after}", f"outer {after}"] if after else []
    assert said == [*expected, "inner ends", "outer ends"]


async def test_a_model_call_can_be_changed_repeated_and_answered_without_the_model() -> None:
    class Rewrites(Extension):
        async def wrap_model_call(
            self, context: ExtensionContext, request: ModelRequest, proceed: AskModel
        ) -> AsyncIterator[ModelEvent]:
            async for _ in proceed(request):
                pass
            async for event in proceed(request.model_copy(update={"temperature": 0.25})):
                is_text = isinstance(event, ModelTextDelta)
                yield event.model_copy(update={"text": event.text.upper()}) if is_text else event

    async with ScriptedRuntime(["first", "second"], extensions=[Rewrites()]) as runtime:
        handle = await runtime.start("go")
        shown = [e.payload["text"] async for e in handle.events() if "text_delta" in e.event_type]
        await handle.wait()
        assert "".join(shown) == "SECOND"
        assert handle.result_text == "second"
        assert [r.temperature for r in runtime.script.requests][-1] == 0.25
        assert len(runtime.script.requests) == 2


@pytest.mark.sweep
async def test_streams_that_an_extension_leaves_open_are_closed() -> None:
    class Adapter(ScriptedProvider):
        closed = 0

        async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
            try:
                async for event in super().stream(request):
                    yield event
            finally:
                Adapter.closed += 1

    class Peeks(Extension):
        async def wrap_model_call(
            self, context: ExtensionContext, request: ModelRequest, proceed: AskModel
        ) -> AsyncIterator[ModelEvent]:
            self.peeked = proceed(request)
            await anext(self.peeked)
            async for event in proceed(request):
                yield event

    peeks = Peeks()
    adapter = Adapter([Says(text="one two"), Says(text="three"), Says(text="x"), Hangs()])
    async with ScriptedRuntime(adapter, extensions=[peeks]) as runtime:
        assert (await runtime.run("go")).text == "three"
        assert Adapter.closed == 2
        handle = await runtime.start("again")
        async for event in handle.events():
            if event.event_type == "context_built":
                await handle.cancel()
        assert handle.status is RunStatus.CANCELLED


async def test_a_tool_call_can_be_replaced_and_refused() -> None:
    class Shield(Extension):
        async def wrap_tool_call(
            self, context: ExtensionContext, call: ToolCall, proceed: RunTool
        ) -> ToolReturn:
            place = call.arguments["place"]
            if place == "attic":
                raise PermissionDeniedError(ErrorCode.PERMISSION_DENIED, "the attic is closed")
            if place == "cellar":
                raise KeyError(place)
            return f"{await proceed()}, {context.deps} says"

    script = [calls("look", place=each) for each in ("attic", "cellar", "hall")]
    async with ScriptedRuntime([*script, "done"]) as runtime:
        result = await runtime.run(
            "go", tools=[look], extensions=[Shield()], deps="Ann", events=True
        )
        nodes = (await runtime.replay_session(result.session_id)).nodes
    results = [each for node in nodes for each in node.results]
    assert [each.is_error for each in results] == [True, True, False]
    assert results[0].error is not None
    assert results[0].error.message == "the attic is closed"
    assert results[2].content[0].model_dump()["text"] == "saw hall, Ann says"
    kinds = [e.event_type for e in result.events or () if e.event_type.startswith("tool_")]
    assert [each for each in kinds if each != "tool_started"] == [
        *("tool_denied", "tool_failed", "tool_completed")
    ]


async def test_an_extension_makes_only_calls_that_permissions_and_guards_allow() -> None:
    said: list[str] = []

    @on_tool_call
    async def not_home(call: ToolCall) -> str | None:
        return "not there" if call.arguments.get("place") == "home" else None

    script = [calls("launch"), calls("look", place="home"), "done"]
    async with ScriptedRuntime(script, extensions=[Recorder("it", said)]) as runtime:
        await runtime.run("go", tools=[launch, look], guards=[not_home])
    assert [line for line in said if line.startswith("it makes")] == []
    assert said.count("it after launch") == said.count("it after look") == 1


async def test_an_objection_to_the_end_goes_back_to_the_model() -> None:
    class Wants(Extension):
        async def before_stop(self, context: ExtensionContext, answer: str) -> str | None:
            return None if "tests" in answer else "Say that the tests pass."

    async with ScriptedRuntime(["done", "done, the tests pass"]) as runtime:
        result = await runtime.run("go", extensions=[Wants()])
        assert result.text == "done, the tests pass"
        assert "Say that the tests pass." in str(runtime.script.requests[1].messages[-1])


@pytest.mark.long
@together("given", [None, (), (look,)], ids=["all", "none", "one"])
async def test_instructions_tools_and_toolsets_are_contributed(given: Any) -> None:
    opened: list[str] = []

    class Held(Toolset):
        async def open(self) -> list[Any]:
            opened.append("open")
            return [held]

        async def close(self) -> None:
            opened.append("close")

    @tool(permission="readonly")
    async def held() -> str:
        """Hold."""
        return "held"

    def plain(n: int) -> int:
        """Count.

        Args:
            n: a number.
        """
        return n

    class Adds(Extension):
        def instructions(self, context: ExtensionContext) -> str:
            return f"You work for {context.deps}."

        def tools(self, context: ExtensionContext) -> list[Any]:
            return [plain, Held("held")]

    async with ScriptedRuntime([calls("held"), "done"], extensions=[Adds()]) as runtime:
        await runtime.run("go", tools=given, instructions="Be brief.", deps="Ann")
        request = runtime.script.requests[0]
    assert opened == ["open", "close"]
    system = "\n".join(block.content for block in request.system)
    assert "Be brief.\n\nYou work for Ann." in system
    names = {each.name for each in request.tools}
    assert {"plain", "held"} <= names
    assert ("look" in names) is (given == (look,))
    assert ("code.read_file" in names) is (given is None)


async def test_what_wraps_a_run_sees_its_failure_and_cannot_suppress_it() -> None:
    class Swallows(Extension):
        seen: list[str] = []

        @asynccontextmanager
        async def wrap_run(self, context: ExtensionContext) -> AsyncGenerator[None]:
            try:
                yield
            except AgentCoreError as error:
                self.seen.append(error.code)

    async with ScriptedRuntime([calls("look", place="x")] * 3) as runtime:
        with pytest.raises(RunError) as failed:
            await runtime.run("go", tools=[look], extensions=[Swallows()], max_turns=2)
    assert failed.value.code is ErrorCode.MAX_TURNS
    assert Swallows.seen == ["max_turns"]


async def test_a_cancelled_run_stays_cancelled_whatever_its_wrapper_raises() -> None:
    class Breaks(Extension):
        @asynccontextmanager
        async def wrap_run(self, context: ExtensionContext) -> AsyncGenerator[None]:
            try:
                yield
            finally:
                raise ZeroDivisionError

    async with ScriptedRuntime([Hangs()], extensions=[Breaks()]) as runtime:
        handle = await runtime.start("go")
        async for event in handle.events():
            if event.event_type == "context_built":
                await handle.cancel()
    assert handle.status is RunStatus.CANCELLED


@pytest.mark.parametrize("failure", [GuardStop("no more"), RuntimeError("broken")])
async def test_a_cancelled_run_stays_cancelled_whatever_fails_after_its_call(
    failure: Exception,
) -> None:
    begun, seen = asyncio.Event(), list[str]()

    @tool(permission="readonly")
    async def endless() -> None:
        """Never end."""
        begun.set()
        await asyncio.Event().wait()

    class Failing(Extension):
        async def after_tool_call(
            self, context: ExtensionContext, call: ToolCall, result: ToolResult
        ) -> None:
            seen.append(call.name)
            raise failure

    async with ScriptedRuntime([calls("endless")]) as runtime, asyncio.timeout(30):
        handle = await runtime.start("go", tools=[endless], extensions=[Failing()])
        await begun.wait()
        assert (await handle.cancel()).status is RunStatus.CANCELLED
    assert seen == ["endless"]


async def test_every_run_of_a_session_is_begun_for_an_extension() -> None:
    said: list[str] = []
    async with ScriptedRuntime(["one", "two"], extensions=[Recorder("it", said)]) as runtime:
        await runtime.run("go", "s1")
        await runtime.run("again", "s1")
    assert said.count("it started") == 2


class Raises(Extension):
    """Raises at one of its points."""

    def __init__(self, point: str, error: Exception) -> None:
        self.point = point
        self.error = error

    def raise_at(self, point: str) -> None:
        if point == self.point:
            raise self.error

    def instructions(self, context: ExtensionContext) -> None:
        self.raise_at("instructions")

    def tools(self, context: ExtensionContext) -> tuple[()]:
        self.raise_at("tools")
        return ()

    @asynccontextmanager
    async def wrap_run(self, context: ExtensionContext) -> AsyncGenerator[None]:
        self.raise_at("wrap_run")
        yield
        self.raise_at("wrap_run's end")

    async def run_started(self, context: ExtensionContext) -> None:
        self.raise_at("run_started")

    async def on_message(self, context: ExtensionContext, message: str) -> None:
        self.raise_at("on_message")

    async def wrap_model_call(
        self, context: ExtensionContext, request: ModelRequest, proceed: AskModel
    ) -> AsyncIterator[ModelEvent]:
        self.raise_at("wrap_model_call")
        async for event in proceed(request):
            yield event

    async def wrap_tool_call(
        self, context: ExtensionContext, call: ToolCall, proceed: RunTool
    ) -> ToolReturn:
        self.raise_at("wrap_tool_call")
        return await proceed()

    async def before_tool_call(
        self, context: ExtensionContext, call: ToolCall, definition: ToolDefinition
    ) -> None:
        self.raise_at("before_tool_call")

    async def after_tool_call(
        self, context: ExtensionContext, call: ToolCall, result: ToolResult
    ) -> None:
        self.raise_at("after_tool_call")

    async def admit_tool_call(
        self, context: ExtensionContext, judged: JudgedCall, proceed: Admit
    ) -> float | None:
        self.raise_at("admit_tool_call")
        return await proceed()

    async def before_stop(self, context: ExtensionContext, answer: str) -> None:
        self.raise_at("before_stop")


POINTS = (
    *("instructions", "tools", "wrap_run", "wrap_run's end", "run_started", "on_message"),
    *("wrap_model_call", "after_tool_call", "before_stop"),
)


class RaisesOnce(Raises):
    """Raises only the first time."""

    def raise_at(self, point: str) -> None:
        if point == self.point:
            self.point = ""
            raise self.error


class StopsLooks(Extension):
    """Stops the run at a look."""

    async def before_tool_call(
        self, context: ExtensionContext, call: ToolCall, definition: ToolDefinition
    ) -> None:
        if call.name == "look":
            raise GuardStop


@on_tool_call
async def stop_looks(call: ToolCall) -> None:
    """Stop the run at a look."""
    if call.name == "look":
        raise GuardStop


PAY = ScriptedCall(name="pay", arguments={})
AT_CALLS = ("before_tool_call", "admit_tool_call", "wrap_tool_call")


@pytest.mark.long
@together("point", [*POINTS, *AT_CALLS])
async def test_an_extension_can_stop_the_run_at_every_point(point: str) -> None:
    extension = Raises(point, GuardStop("enough"))
    async with ScriptedRuntime([calls("look", place="x"), "done"]) as runtime:
        with pytest.raises(RunError) as failed:
            await runtime.run("go", tools=[look], extensions=[extension])
    assert failed.value.code is ErrorCode.GUARD_STOPPED
    assert "enough" in failed.value.message
    assert failed.value.details["reason"] == "enough"


@together("point", AT_CALLS)
async def test_no_later_call_of_a_reply_is_made_once_an_extension_has_stopped_the_run(
    point: str,
) -> None:
    made: list[str] = []

    @tool(permission="write")
    async def pay() -> str:
        """Pay."""
        made.append("pay")
        return "paid"

    async def allow(request: PermissionRequest) -> PermissionDecision:
        return PermissionDecision(decision=Decision.ALLOW_ONCE)

    reply = Calls(calls=[ScriptedCall(name="look", arguments={"place": "x"}), PAY])
    async with ScriptedRuntime([reply, "done"], permission_callback=allow) as runtime:
        handle = await runtime.start(
            "go", tools=[look, pay], extensions=[RaisesOnce(point, GuardStop("enough"))]
        )
        assert await handle.wait() is RunStatus.FAILED
        nodes = (await runtime.replay_session(handle.session_id)).nodes
    assert made == []
    errors = [each.error for node in nodes for each in node.results]
    assert [error and error.code for error in errors] == [ErrorCode.GUARD_STOPPED] * 2


@pytest.mark.parametrize("options", [{"extensions": [StopsLooks()]}, {"guards": [stop_looks]}])
async def test_a_run_that_is_stopped_does_not_wait_for_an_answer(
    home: Home, project: Path, options: Any
) -> None:
    @tool(permission="readonly")
    async def peek() -> str:
        """Peek."""
        return "peeked"

    rules = [{"decision": "ask", "tool": ["peek"]}]
    config = {
        "model": {"provider": "custom", "name": "script"},
        "permissions": {"unattended": "park", "rules": rules},
    }
    both = [ScriptedCall(name="peek"), ScriptedCall(name="look", arguments={"place": "x"})]
    model = ScriptedProvider([Calls(calls=both), "done"])
    async with AgentRuntime(project, config=config, model=model, home_dir=home.path) as runtime:
        handle = await runtime.start("go", tools=[look, peek], **options)
        assert await handle.wait() is RunStatus.FAILED
        assert handle.error is not None
        assert handle.error.code is ErrorCode.GUARD_STOPPED
        page = await runtime.replay_session(handle.session_id)
        assert await runtime.approvals() == []
    assert len([each for node in page.nodes for each in node.results]) == 2


async def test_every_call_is_answered_when_an_extension_breaks_after_one() -> None:
    extension = RaisesOnce("after_tool_call", ZeroDivisionError("nothing to divide"))
    again = ScriptedCall(name="look", arguments={"place": "y"})
    both = [ScriptedCall(name="look", arguments={"place": "x"}), again]
    reply = Calls(calls=[*both, ScriptedCall(name="launch", arguments={})])
    async with ScriptedRuntime([reply, "done"]) as runtime:
        handle = await runtime.start("go", tools=[look, launch], extensions=[extension])
        assert await handle.wait() is RunStatus.FAILED
        page = await runtime.replay_session(handle.session_id)
        await runtime.run("more", session_id=handle.session_id, tools=[look, launch])
    results = [each for node in page.nodes for each in node.results]
    assert [each.is_error for each in results] == [False, False, True]
    assert results[-1].error is not None
    assert results[-1].error.message == "not run: the run failed before this call began"
    ended = [each for each in page.events if each.event_type is EventType.TOOL_FAILED]
    assert [each.tool_call_id for each in ended] == [results[-1].tool_call_id]
    assert "saw x" in str(runtime.script.requests[-1].messages)


@together("point", POINTS)
async def test_an_extension_that_breaks_ends_the_run_and_is_named(point: str) -> None:
    extension = Raises(point, ZeroDivisionError("nothing to divide"))
    async with ScriptedRuntime([calls("look", place="x"), "done"]) as runtime:
        with pytest.raises(RunError) as failed:
            await runtime.run("go", tools=[look], extensions=[extension])
    assert failed.value.code is ErrorCode.INTERNAL_ERROR
    words = "the extension Raises failed: ZeroDivisionError: nothing to divide"
    assert failed.value.message == words
    assert failed.value.details == {"extension": "Raises"}


@pytest.mark.long
@together("point", AT_CALLS)
async def test_the_program_and_not_the_model_learns_why_an_extension_broke_at_a_call(
    point: str, caplog: pytest.LogCaptureFixture
) -> None:
    extension = Raises(point, ZeroDivisionError("nothing to divide"))
    async with ScriptedRuntime([calls("look", place="x"), "done"]) as runtime:
        result = await runtime.run("go", tools=[look], extensions=[extension])
        nodes = (await runtime.replay_session(result.session_id)).nodes
        events = (await runtime.replay_session(result.session_id)).events
    [found] = [each for node in nodes for each in node.results]
    assert found.error is not None
    assert found.error.code is ErrorCode.INTERNAL_ERROR
    assert found.error.details == {"extension": "Raises"}
    assert "nothing to divide" not in str(runtime.script.requests)
    [failed] = [each for each in events if each.event_type is EventType.TOOL_FAILED]
    words = "the extension Raises failed: ZeroDivisionError: nothing to divide"
    assert failed.payload["message"] == words
    assert words.partition(": ")[2] in caplog.text


async def test_what_a_tool_raises_is_not_blamed_on_an_extension_around_it() -> None:
    @tool(permission="readonly")
    def divide() -> str:
        """Divide."""
        raise ZeroDivisionError("nothing to divide")

    async with ScriptedRuntime([calls("divide"), "done"]) as runtime:
        await runtime.run("go", tools=[divide], extensions=[Recorder("it", [])])
    assert "nothing to divide" in str(runtime.script.requests[-1])


async def test_what_an_adapter_does_wrong_is_not_blamed_on_an_extension() -> None:
    class Broken:
        async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
            raise ZeroDivisionError
            yield

        async def close(self) -> None:
            """Keep nothing."""

    said: list[str] = []
    async with AgentRuntime(model=Broken(), persist=False) as runtime:
        with pytest.raises(RunError) as failed:
            await runtime.run("go", extensions=[Recorder("it", said)])
    assert failed.value.code is ErrorCode.PROVIDER_ERROR
    assert "Recorder" not in failed.value.message


async def test_calls_that_are_no_generators_are_explained() -> None:
    class Wrong(Extension):
        async def wrap_model_call(  # pyright: ignore[reportIncompatibleMethodOverride]
            self, context: ExtensionContext, request: ModelRequest, proceed: AskModel
        ) -> Any:
            return proceed(request)

    class Unclear(Extension):
        def wrap_model_call(
            self, context: ExtensionContext, request: ModelRequest, proceed: AskModel
        ) -> Any:
            return proceed(request), request

    with pytest.raises(AgentCoreError, match="write wrap_model_call as an async generator"):
        ScriptedRuntime(["done"], extensions=[Wrong()])
    async with ScriptedRuntime(["done"], extensions=[Unclear()]) as runtime:
        with pytest.raises(RunError, match="write wrap_model_call as an async generator"):
            await runtime.run("go")


async def test_children_are_extended_too() -> None:
    said: list[tuple[str, str]] = []

    class Counts(Extension):
        async def wrap_model_call(
            self, context: ExtensionContext, request: ModelRequest, proceed: AskModel
        ) -> AsyncIterator[ModelEvent]:
            said.append(("asks", "child" if context.run.parent_run_id else "main"))
            async for event in proceed(request):
                yield event

    script = [calls("agent.create_sub_agent", task="look around"), "I looked", "done"]
    async with ScriptedRuntime(script, extensions=[Counts()]) as runtime:
        await runtime.run("go")
    assert ("asks", "child") in said
    assert ("asks", "main") in said


async def test_a_waiting_run_needs_its_extensions(home: Home, project: Path) -> None:
    said: list[str] = []
    config = {
        "model": {"provider": "custom", "name": "script"},
        "permissions": {"unattended": "park"},
    }

    def opened(script: list[Any]) -> AgentRuntime:
        return AgentRuntime(
            project, config=config, model=ScriptedProvider(script), home_dir=home.path
        )

    async with opened([calls("launch")]) as runtime:
        run = await runtime.run("go", tools=[launch], extensions=[Recorder("it", said)])
    [request_id] = run.pending_requests
    async with opened(["done"]) as runtime:
        with pytest.raises(AgentCoreError) as refused:
            await runtime.answer(request_id, "allow_once", tools=[launch])
        assert "extensions" in refused.value.message
        said.clear()
        handle = await runtime.answer(
            request_id, "allow_once", tools=[launch], extensions=[Recorder("it", said)]
        )
        await handle.wait()
    assert handle.result_text == "done"
    assert "it made launch: launched" in said


PACKAGE = """
from agent_core import Extension
from agent_core.extensions import Rank

class Notary(Extension):
    def instructions(self, context):
        return "A notary reads along."

def broken():
    raise OSError("no seal")

def other():
    return 3

class Outer(Extension):
    rank = Rank.PERMISSIONS
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the module path with a distribution that has extensions."""
    site = tmp_path / "site"
    info = site / "notary-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "notary_package.py").write_text(PACKAGE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: notary\nVersion: 1.0\n")
    names = {
        "notary": "Notary",
        "broken": "broken",
        "other": "other",
        "missing": "nothing",
        "outer": "Outer",
    }
    points = "\n".join(f"{name} = notary_package:{target}" for name, target in names.items())
    (info / "entry_points.txt").write_text(f"[soong_agent.extensions]\n{points}\n")
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    monkeypatch.delitem(sys.modules, "notary_package", raising=False)
    return site


@pytest.mark.usefixtures("site")
async def test_an_installed_extension_is_used_where_the_configuration_names_it() -> None:
    async with ScriptedRuntime(["done"]) as runtime:
        await runtime.run("go")
        assert "A notary" not in str(runtime.script.requests[0].system)
    config = {"runtime": {"extensions": ["notary"]}}
    async with ScriptedRuntime(["done"], config=config) as runtime:
        await runtime.run("go")
        assert "A notary reads along." in str(runtime.script.requests[0].system)


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    ("name", "words"),
    sampled(
        [
            (
                "notory",
                "'notory' is not installed; installed: broken, missing, notary, other, outer.",
            ),
            (
                "broken",
                "'broken' of notary cannot be made (notary_package:broken): OSError: no seal",
            ),
            ("other", "'other' of notary is an int, not an Extension"),
            ("outer", "'outer' of notary is ranked among the engine's own extensions"),
            ("missing", "'missing' of notary cannot be made"),
        ],
        keep=5,
    ),
)
async def test_an_installed_extension_that_cannot_be_had_is_an_error(name: str, words: str) -> None:
    runtime = ScriptedRuntime(["done"], config={"runtime": {"extensions": [name]}})
    with pytest.raises(ConfigError) as refused:
        await runtime.run("go")
    assert words in refused.value.message
    assert refused.value.message.startswith("[runtime] extensions: ")


@together("given", [Recorder, 3, "notary"])
async def test_anything_else_is_refused(given: Any) -> None:
    async with ScriptedRuntime(["done"]) as runtime:
        with pytest.raises(AgentCoreError) as refused:
            await runtime.run("go", extensions=[given])
        assert refused.value.code is ErrorCode.VALIDATION_ERROR
        assert "an extension is an instance of a subclass of Extension" in refused.value.message
    with pytest.raises(AgentCoreError) as refused:
        async with ScriptedRuntime(["done"], extensions=[given]):
            pass
    assert refused.value.code is ErrorCode.VALIDATION_ERROR


async def test_a_note_about_a_call_is_shown_in_its_question() -> None:
    asked: list[PermissionRequest] = []

    async def answer(request: PermissionRequest) -> PermissionDecision:
        asked.append(request)
        return PermissionDecision(decision=Decision.ALLOW_ONCE)

    class Warns(Extension):
        async def before_tool_call(
            self, context: ExtensionContext, call: ToolCall, definition: ToolDefinition
        ) -> dict[str, Any]:
            return {"reason": "it is Friday"}

    script = [calls("launch"), "done"]
    async with ScriptedRuntime(script, permission_callback=answer) as runtime:
        await runtime.run("go", tools=[launch], extensions=[Warns()])
    assert asked[0].hook_summary == {"reason": "it is Friday"}
