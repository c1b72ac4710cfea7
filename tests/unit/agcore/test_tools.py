"""Tools: registered, allowed, called alone and together, bounded, and how they fail."""

import asyncio
import base64
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from agcore.llm import ChatMessage, ChatResponse, LlmCycle, MockProvider
from agcore.tools import (
    BaseTool,
    Permission,
    PermissionChecker,
    PermissionConfig,
    ToolContext,
    ToolError,
    ToolInvocation,
    ToolRegistry,
    ToolReturn,
    tool,
)
from agent_core.errors import ConfigError, ErrorCode, ToolError as CoreToolError
from agent_core.types import (
    ArtifactRefBlock,
    Decision,
    ErrorPayload,
    ImageBlock,
    PermissionDecision,
    PermissionRequest,
    TextBlock,
    ToolCall,
    ToolPermission,
    ToolResult,
    ToolResultBlock,
)
from agent_parts import cancel_once
from tables import together


class Weather(BaseTool):
    name = "get_weather"
    description = "The weather in a city."
    permission = ToolPermission.READONLY

    def parameters(self) -> dict[str, Any]:
        city = {"type": "string"}
        return {"type": "object", "properties": {"city": city}, "required": ["city"]}

    async def execute(self, arguments: dict[str, Any], context: ToolContext) -> ToolReturn:
        return {"city": arguments["city"], "temperature": 22}


class Fails(BaseTool):
    name = "fails"

    async def execute(self, arguments: dict[str, Any], context: ToolContext) -> ToolReturn:
        raise RuntimeError("boom")


class Sleeps(BaseTool):
    name = "sleeps"

    def parameters(self) -> dict[str, Any]:
        return {"type": "object", "properties": {"seconds": {"type": "number"}}}

    async def execute(self, arguments: dict[str, Any], context: ToolContext) -> ToolReturn:
        await asyncio.sleep(arguments["seconds"])
        return arguments["seconds"]


@tool(permission="readonly")
def where(context: ToolContext) -> str:
    """The session."""
    return context.session_id


async def answer(tools: ToolRegistry, calls: Sequence[ToolCall]) -> list[ToolResultBlock]:
    """The results of the calls of one reply, as the model gets them."""
    reply = ChatResponse(ChatMessage.assistant_text("", calls))
    cycle = LlmCycle(MockProvider([reply, "done"]))
    await cycle.submit_with_tools("go", tools)
    return [block for block in cycle.messages()[2].content if isinstance(block, ToolResultBlock)]


def registry(**settings: Any) -> ToolRegistry:
    return ToolRegistry([Weather(), Fails(), Sleeps(), where], **settings)


async def test_phase2_a_tool_is_registered_found_and_called() -> None:
    tools, weather = ToolRegistry(), Weather()
    tools.register(weather)
    assert tools.get("get_weather") is weather
    assert tools.get("other") is None
    assert tools.list_tools() == ["get_weather"]
    assert tools.definitions() == [weather.definition()]
    answer = await tools.invoke("get_weather", {"city": "Genf"})
    assert answer == {"city": "Genf", "temperature": 22}


async def test_a_function_is_a_tool_too_and_knows_its_session() -> None:
    assert await registry().for_session("s-1").invoke("where", {}) == "s-1"


def test_a_name_is_given_once() -> None:
    with pytest.raises(ToolError.ExecutionFailed, match="already"):
        registry().register(Weather())


@together("name", ["mcp.files.read", "code.run", "agent__x", "internal.x"])
def test_a_tool_of_the_callers_has_no_name_of_the_engines(name: str) -> None:
    class Posing(Weather):
        pass

    Posing.name = name

    @tool(name=name)
    def decorated() -> None:
        """Does nothing."""

    for each in (Posing(), decorated):
        with pytest.raises(ToolError.ExecutionFailed, match="choose another"):
            registry().register(each)


async def test_phase2_an_unknown_tool_is_not_found_and_not_recoverable() -> None:
    with pytest.raises(ToolError.NotFound, match="did you mean get_weather") as caught:
        await registry().invoke("get_wether", {})
    assert not caught.value.is_recoverable()


async def test_phase2_a_tool_that_breaks_has_failed_and_is_recoverable() -> None:
    with pytest.raises(ToolError.ExecutionFailed, match="boom") as caught:
        await registry().invoke("fails", {})
    assert caught.value.is_recoverable()
    assert isinstance(caught.value.__cause__, RuntimeError)


async def test_phase2_arguments_that_do_not_fit_are_refused_before_anything_runs() -> None:
    with pytest.raises(ToolError.InvalidArguments) as caught:
        await registry().invoke("get_weather", {"city": 7})
    assert caught.value.details["path"] == "$.city"


async def test_phase2_a_tool_that_takes_too_long_is_stopped() -> None:
    with pytest.raises(ToolError.Timeout):
        await registry().invoke("sleeps", {"seconds": 60}, timeout_s=0.01)


@together("timeout_s", [0, -1.5, float("nan")])
async def test_a_time_limit_in_which_no_call_can_end_is_refused(timeout_s: float) -> None:
    with pytest.raises(ToolError.ExecutionFailed, match="give seconds above 0"):
        await registry().invoke("get_weather", {"city": "Genf"}, timeout_s=timeout_s)
    wanted = [ToolInvocation("get_weather", {"city": "Genf"})]
    (outcome,) = await registry().invoke_all(wanted, timeout_s)
    assert isinstance(outcome.error, ToolError.ExecutionFailed)
    with pytest.raises(ConfigError, match="give seconds above 0"):
        ToolRegistry(timeout_s=timeout_s)


async def test_a_timeout_inside_a_tool_is_its_own_failure() -> None:
    @tool
    async def times_out() -> None:
        raise TimeoutError("inside")

    with pytest.raises(ToolError.ExecutionFailed, match="inside"):
        await ToolRegistry([times_out]).invoke("times_out", {})


async def test_phase2_calls_run_at_once_and_answer_in_order_whatever_happens_to_others() -> None:
    wanted = [
        ToolInvocation("sleeps", {"seconds": 0.2}),
        ToolInvocation("fails"),
        ToolInvocation("sleeps", {"seconds": 0.1}),
        ToolInvocation("sleeps", {"seconds": 60}),
        ToolInvocation("nobody"),
        ToolInvocation("get_weather", {"city": "Genf"}),
    ]
    loop = asyncio.get_running_loop()
    begun = loop.time()
    outcomes = await registry().invoke_all(wanted, 0.5)
    assert loop.time() - begun < 30
    assert [outcome.name for outcome in outcomes] == [call.name for call in wanted]
    assert [outcome.value for outcome in outcomes if not outcome.is_error] == [
        0.2,
        0.1,
        {"city": "Genf", "temperature": 22},
    ]
    assert [type(outcome.error) for outcome in outcomes if outcome.is_error] == [
        ToolError.ExecutionFailed,
        ToolError.Timeout,
        ToolError.NotFound,
    ]
    with pytest.raises(ToolError.ExecutionFailed):
        outcomes[1].unwrap()


async def test_phase2_a_white_list_allows_its_names_only() -> None:
    checker = PermissionChecker(PermissionConfig.white_list(["get_weather"]))
    checker.check("get_weather")
    with pytest.raises(ToolError.PermissionDenied):
        checker.check("delete_file")
    tools = registry(permissions=checker)
    assert [definition.name for definition in tools.definitions()] == ["get_weather"]
    with pytest.raises(ToolError.PermissionDenied) as caught:
        await tools.invoke("fails", {})
    assert caught.value.tool_name == "fails"
    assert not caught.value.is_recoverable()


@pytest.mark.parametrize("arguments", [{"seconds": 0}, {"unknown": 1}])
async def test_a_name_that_is_denied_is_refused_before_its_arguments_are_read(
    arguments: dict[str, Any],
) -> None:
    tools = registry(permissions=PermissionChecker(PermissionConfig.black_list(["sleeps"])))
    with pytest.raises(ToolError.PermissionDenied):
        await tools.invoke("sleeps", arguments)
    call = ToolCall(tool_call_id="1", name="sleeps", arguments=arguments)
    (result,) = await answer(tools, [call])
    assert result.error is not None
    assert result.error.code is ErrorCode.PERMISSION_DENIED


def test_phase2_a_black_list_forbids_its_names_and_patterns() -> None:
    checker = PermissionChecker(PermissionConfig.black_list(["mcp.files.*", "fails"]))
    found = [checker.permission(name) for name in ("fails", "mcp.files.read", "mcp.web.read")]
    assert found == [Permission.DENIED, Permission.DENIED, Permission.ALLOWED]


async def test_a_name_on_both_lists_is_denied() -> None:
    config = PermissionConfig(allowed=frozenset({"fails"}), denied=frozenset({"fails"}))
    assert PermissionChecker(config).permission("fails") is Permission.DENIED


@pytest.mark.parametrize("decision", [Decision.ALLOW_ONCE, Decision.DENY])
async def test_a_user_who_can_be_asked_is_asked_before_a_write(decision: Decision) -> None:
    asked: list[PermissionRequest] = []

    async def ask(request: PermissionRequest) -> PermissionDecision:
        asked.append(request)
        return PermissionDecision(decision=decision)

    tools = registry(permissions=PermissionChecker(PermissionConfig(ask=ask)))
    await tools.invoke("get_weather", {"city": "Genf"})
    assert asked == []
    (outcome,) = await tools.invoke_all([ToolInvocation("sleeps", {"seconds": 0})])
    assert [request.tool_name for request in asked] == ["sleeps"]
    is_denied = isinstance(outcome.error, ToolError.PermissionDenied)
    assert is_denied is (decision is Decision.DENY)


async def test_phase2_a_result_that_is_too_large_keeps_its_beginning_and_its_end() -> None:
    @tool
    def talks() -> str:
        return "a" * 5000 + "z" * 5000

    answer = await ToolRegistry([talks], result_limit_bytes=900).invoke("talks", {})
    assert answer.startswith("aaa")
    assert answer.endswith("zzz")
    assert "[… 9100 bytes left out …]" in answer
    assert len(answer) < 1000


async def test_large_json_becomes_text() -> None:
    @tool
    def lists() -> list[int]:
        return list(range(1000))

    tools = ToolRegistry([lists], result_limit_bytes=300)
    assert "bytes left out" in await tools.invoke("lists", {})


async def test_a_registry_takes_rules_as_well_as_a_checker() -> None:
    @tool
    def works() -> str:
        return "done"

    tools = ToolRegistry([works], permissions=PermissionConfig.black_list(["works"]))
    assert tools.definitions() == []
    with pytest.raises(ToolError):
        await tools.invoke("works", {})


async def test_an_artifact_is_refused_with_what_to_do_instead() -> None:
    @tool
    async def keeps(*, context: ToolContext) -> str:
        return await context.artifact(b"x", filename="x.txt")

    with pytest.raises(ToolError, match="return the content itself"):
        await ToolRegistry([keeps]).invoke("keeps", {})


def a_picture(size: int) -> ImageBlock:
    content = b"\x89PNG\r\n\x1a\n" + b"p" * size
    return ImageBlock(mime_type="image/png", data=base64.b64encode(content).decode())


async def test_pictures_are_shown_as_the_engine_shows_them() -> None:
    small, large = a_picture(5_000), a_picture(4_000_000)

    @tool
    def draws() -> ToolResult:
        kept = ImageBlock(mime_type="image/png", artifact_id="a1")
        return ToolResult(content=[TextBlock(text="see"), small, large, kept])

    call = ToolCall(tool_call_id="1", name="draws")
    (result,) = await answer(ToolRegistry([draws], result_limit_bytes=300), [call])
    see, shown, left_out, unknown = result.content
    assert (see, shown) == (TextBlock(text="see"), small)
    assert isinstance(left_out, TextBlock)
    assert "too large to be shown to a model" in left_out.text
    assert isinstance(unknown, TextBlock)
    assert "there are no artifacts here" in unknown.text


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


HUGE: dict[str, Callable[[], Any]] = {
    "many small texts": lambda: ToolResult(content=[TextBlock(text="w" * 20)] * 30_000),
    "metadata": lambda: ToolResult(content=[], metadata={"m": "x" * 3_000_000}),
    "references": lambda: ToolResult(content=[ArtifactRefBlock(artifact_id="a")] * 3_000),
    "an exception": lambda: _raise(ValueError("x" * 3_000_000)),
    "an error": lambda: _raise(CoreToolError(ErrorCode.TIMEOUT, "x", details={"d": "y" * 10**6})),
    "an error in a result": lambda: ToolResult(
        is_error=True,
        error=ErrorPayload(type="T", code=ErrorCode.TIMEOUT, message="m" * 3_000_000),
    ),
    "no text": lambda: _raise(UnspeakableError()),
}


def _raise(error: BaseException) -> Any:
    raise error


@together("kind", HUGE)
async def test_whatever_a_tool_leaves_is_answered_within_bounds(kind: str) -> None:
    @tool
    async def leaves() -> Any:
        return HUGE[kind]()

    (result,) = await answer(ToolRegistry([leaves]), [ToolCall(tool_call_id="1", name="leaves")])
    assert (result.tool_call_id, result.metadata["tool_name"]) == ("1", "leaves")
    assert len(result.model_dump_json()) < 100_000


async def test_every_call_of_a_model_is_answered_in_order() -> None:
    calls = [
        ToolCall(tool_call_id="1", name="nobody"),
        ToolCall(tool_call_id="2", name="get_weather", metadata={"invalid_arguments": "{"}),
        ToolCall(tool_call_id="3", name="get_weather", arguments={"city": "Genf"}),
        ToolCall(tool_call_id="4", name="fails"),
    ]
    results = await answer(registry(), calls)
    assert [result.tool_call_id for result in results] == ["1", "2", "3", "4"]
    assert [result.is_error for result in results] == [True, True, False, True]
    assert all(result.error for result in results if result.is_error)


class Log:
    """Tools that write down when they begin and end."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def tool(self, name: str, permission: ToolPermission | None, **behaviour: Any) -> BaseTool:
        log = self.lines

        class Logged(BaseTool):
            async def execute(self, arguments: dict[str, Any], context: ToolContext) -> ToolReturn:
                log.append(f"{name}+")
                await asyncio.sleep(0.01)
                log.append(f"{name}-")
                if behaviour.get("fails"):
                    raise RuntimeError("boom")
                return ToolResult(is_error=behaviour.get("answers_error", False))

        Logged.name = name
        if permission is not None:
            Logged.permission = permission
        return Logged()


def called(*names: str) -> list[ToolCall]:
    return [ToolCall(tool_call_id=f"{n}_{name}", name=name) for n, name in enumerate(names)]


@pytest.mark.parametrize("permission", [ToolPermission.WRITE, None])
async def test_writers_run_alone_and_readers_together(permission: ToolPermission | None) -> None:
    log = Log()
    reads = [log.tool(name, ToolPermission.READONLY) for name in ("r1", "r2", "r3")]
    writes = [log.tool(name, permission) for name in ("w1", "w2")]
    results = await answer(ToolRegistry([*reads, *writes]), called("r1", "r2", "w1", "w2", "r3"))
    assert log.lines == ["r1+", "r2+", "r1-", "r2-", "w1+", "w1-", "w2+", "w2-", "r3+", "r3-"]
    assert not any(result.is_error for result in results)


@pytest.mark.parametrize("behaviour", [{"fails": True}, {"answers_error": True}])
async def test_after_a_failed_write_only_the_calls_that_read_are_run(
    behaviour: dict[str, bool],
) -> None:
    log = Log()
    tools = [
        log.tool("w1", None, **behaviour),
        log.tool("w2", None),
        log.tool("r1", ToolPermission.READONLY),
    ]
    calls = called("r1", "w1", "r1", "w2", "nobody")
    results = await answer(ToolRegistry(tools), calls)
    assert log.lines == ["r1+", "r1-", "w1+", "w1-", "r1+", "r1-"]
    assert [result.tool_call_id for result in results] == [call.tool_call_id for call in calls]
    assert [result.metadata.get("reason") for result in results] == [
        None, None, None, "previous_write_failed", None,
    ]  # fmt: skip
    assert results[3].error is not None
    assert "not run" in results[3].error.message


async def test_after_a_denied_write_only_the_calls_that_read_are_run() -> None:
    log = Log()

    async def says_no(_: PermissionRequest) -> PermissionDecision:
        return PermissionDecision(decision=Decision.DENY)

    checker = PermissionChecker(PermissionConfig(ask=says_no))
    tools = [log.tool("w1", None), log.tool("r1", ToolPermission.READONLY)]
    calls = called("w1", "r1", "w1")
    results = await answer(ToolRegistry(tools, permissions=checker), calls)
    assert log.lines == ["r1+", "r1-"]
    assert [result.is_error for result in results] == [True, False, True]
    assert results[2].metadata["reason"] == "previous_write_failed"


async def test_a_failed_read_does_not_stop_what_follows() -> None:
    log = Log()
    tools = [log.tool("r1", ToolPermission.READONLY, fails=True), log.tool("w1", None)]
    results = await answer(ToolRegistry(tools), called("r1", "w1"))
    assert [result.is_error for result in results] == [True, False]


@pytest.mark.parametrize("is_timeout", [True, False])
async def test_a_tool_in_a_thread_learns_that_its_call_is_over(is_timeout: bool) -> None:
    begun, heard = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    @tool
    def works(context: ToolContext) -> None:
        loop.call_soon_threadsafe(begun.set)
        while not context.is_cancelled():
            time.sleep(0.005)
        loop.call_soon_threadsafe(heard.set)

    registry = ToolRegistry([works], timeout_s=0.5 if is_timeout else 30)
    if is_timeout:
        (result,) = await answer(registry, called("works"))
        assert result.is_error
    else:
        await cancel_once(begun, answer(registry, called("works")))
    async with asyncio.timeout(50):
        await heard.wait()


@together("error", [SystemExit(3), asyncio.CancelledError(), KeyboardInterrupt()])
async def test_a_tool_that_raises_what_ends_programs_ends_its_own_call(
    error: BaseException,
) -> None:
    @tool
    async def ends() -> None:
        raise error

    (result,) = await answer(ToolRegistry([ends]), called("ends"))
    assert result.is_error


async def test_a_narrower_registry_has_no_other_tools() -> None:
    tools = registry().only(["get_weather"])
    assert tools.list_tools() == ["get_weather"]
    with pytest.raises(ToolError.NotFound):
        await tools.invoke("sleeps", {"seconds": 0})


async def test_a_tool_that_answers_with_an_error_has_failed() -> None:
    @tool
    def complains() -> ToolResult:
        return ToolResult(content=[TextBlock(text="out of paper")], is_error=True)

    with pytest.raises(ToolError.ExecutionFailed, match="out of paper"):
        await ToolRegistry([complains]).invoke("complains", {})


async def test_cancelling_the_caller_cancels_the_tools() -> None:
    begun, started = asyncio.Event(), list[str]()
    ended: list[str] = []

    @tool
    async def waits() -> None:
        started.append("waits")
        if len(started) == 3:
            begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("waits")

    calls = ToolRegistry([waits]).invoke_all([ToolInvocation("waits")] * 3)
    await cancel_once(begun, calls)
    assert ended == ["waits"] * 3


async def test_a_tool_is_called_with_its_dependencies() -> None:
    @tool(permission="readonly")
    def stock(item: str, context: ToolContext[dict[str, int]]) -> int:
        """How many there are."""
        return context.deps[item]

    registry = ToolRegistry([stock])
    assert await registry.invoke("stock", {"item": "lamp"}, deps={"lamp": 12}) == 12
    (outcome,) = await registry.invoke_all(
        [ToolInvocation("stock", {"item": "lamp"})], deps={"lamp": 7}
    )
    assert outcome.value == 7
    with pytest.raises(ToolError.ExecutionFailed, match=r"ToolContext\[dict\[str, int\]\]"):
        await registry.invoke("stock", {"item": "lamp"}, deps=[1])


class Held:
    """An object of a program, without a form in JSON."""


async def test_a_tool_that_returns_what_cannot_be_written_has_been_called() -> None:
    made: list[str] = []

    @tool
    def act() -> Any:
        made.append("act")
        return {"id": 7, "held": Held(), "raw": bytes(range(128, 160))}

    call = ToolCall(tool_call_id="c1", name="act", arguments={})
    cycle = LlmCycle(MockProvider([ChatResponse(ChatMessage.assistant_text("", [call])), "done"]))
    reply = await cycle.submit_with_tools("go", ToolRegistry([act]))
    assert reply.text == "done"
    assert made == ["act"]
    (result,) = (
        block
        for message in cycle.messages()
        for block in message.content
        if isinstance(block, ToolResultBlock)
    )
    assert not result.is_error
    written = result.model_dump_json()
    assert "The call was made" in written
    assert base64.b64encode(bytes(range(128, 160))).decode() in written


async def test_a_direct_call_keeps_what_can_be_written() -> None:
    @tool(permission="readonly")
    def act() -> Any:
        return [1, Held()]

    value, said = await ToolRegistry([act]).invoke("act", {})
    assert value == [1, "(Held)"]
    assert said.startswith("The call was made")
