"""Answers that change the arguments of a call: it is made with these, and the model sees these."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agent_core import AgentCoreError, AgentRuntime, ErrorCode, PermissionRequest, RunHandle, tool
from agent_core.providers.scripted import Calls, ScriptedCall, ScriptedProvider
from agent_core.types import ApprovalState, Budget, EventType, RunStatus, ToolCallBlock
from isolation import Home
from otlp_receiver import OtlpReceiver
from runtimes import CONFIG, runtime
from sweeps import sampled

PARK = f'{CONFIG}\n[permissions]\nunattended = "park"\n'
WAIT = PARK.replace("park", "wait")
SECRET = "value-of-the-key-1234567890"  # noqa: S105
CHANGED = {"path": "b.txt", "content": "better\n"}


def write(call_id: str = "call_1") -> ScriptedCall:
    arguments = {"path": "a.txt", "content": "new\n"}
    return ScriptedCall(name="code.write_file", arguments=arguments, tool_call_id=call_id)


def script(*asked: ScriptedCall) -> list[Any]:
    return [Calls(calls=list(asked or [write()])), "done", "next"]


async def parked(made: AgentRuntime, **options: Any) -> RunHandle[Any]:
    handle = await made.start("go", "s1", **options)
    assert await handle.wait() is RunStatus.WAITING, handle.error
    return handle


async def asked_by(made: AgentRuntime) -> str:
    """The id of the question that is open, as soon as there is one."""
    async with asyncio.timeout(20):
        while not (found := await made.approvals()):  # noqa: ASYNC110 - another task asks
            await asyncio.sleep(0.01)
    return found[0].request_id


def calls_in(provider: ScriptedProvider, number: int = -1) -> list[dict[str, Any]]:
    """The arguments of the calls that the model is shown."""
    content = [block for each in provider.requests[number].messages for block in each.content]
    return [block.arguments for block in content if isinstance(block, ToolCallBlock)]


async def test_a_call_is_made_with_the_arguments_of_the_answer(home: Home, project: Path) -> None:
    provider = ScriptedProvider(script())
    async with runtime(home, project, provider, config=PARK) as made:
        handle = await parked(made)
        (question,) = await made.approvals()
        assert question.arguments == {"path": "a.txt", "content": "new\n"}
        again = await made.answer(question.request_id, "allow_once", arguments=CHANGED)
        assert await again.wait() is RunStatus.COMPLETED, again.error
        assert [each.name for each in project.iterdir()] == ["b.txt"]
        assert (project / "b.txt").read_text() == "better\n"
        assert calls_in(provider) == [CHANGED]
        events = (await made.replay_run(handle.run_id)).events
        decided = [e.payload for e in events if e.event_type is EventType.PERMISSION_DECIDED]
        assert [each["arguments"] for each in decided] == [CHANGED]
        (closed,) = await made.approvals(is_open=False)
        assert (closed.state, closed.changed_arguments) == (ApprovalState.ANSWERED, CHANGED)
        await made.run("and now?", "s1")
        assert calls_in(provider) == [CHANGED]
    provider = ScriptedProvider(["later"])
    async with runtime(home, project, provider, config=PARK) as made:
        await made.run("and later?", "s1")
        assert calls_in(provider) == [CHANGED]


@pytest.mark.parametrize(
    "config", sampled([PARK, WAIT], keep=1), ids=sampled(["park", "wait"], keep=1)
)
async def test_another_process_changes_them_too(home: Home, project: Path, config: str) -> None:
    first = ScriptedProvider(script())
    made = runtime(home, project, first, config=config)
    async with made:
        handle = await made.start("go", "s1")
        request_id = await asked_by(made)
        if config == WAIT:
            async with runtime(home, project, config=config) as other:
                await other.answer(request_id, "allow_once", arguments=CHANGED)
            assert await handle.wait() is RunStatus.COMPLETED
            assert calls_in(first) == [CHANGED]
        else:
            await handle.wait()
    if config == PARK:
        second = ScriptedProvider(["done"])
        async with runtime(home, project, second, config=config) as made:
            again = await made.answer(request_id, "allow_once", arguments=CHANGED)
            assert await again.wait() is RunStatus.COMPLETED
            assert calls_in(second) == [CHANGED]
    assert [each.name for each in project.iterdir()] == ["b.txt"]


async def test_a_question_that_a_callback_asks_is_answered_with_other_arguments(
    home: Home, project: Path
) -> None:
    async def never(request: PermissionRequest) -> Any:
        await asyncio.Event().wait()

    provider = ScriptedProvider(script())
    made = runtime(home, project, provider, permission_callback=never)  # type: ignore[arg-type]
    async with made:
        handle = await made.start("go", "s1", budget=Budget(tool_calls=1))
        await made.answer(await asked_by(made), "allow_once", arguments=CHANGED)
        assert await handle.wait() is RunStatus.COMPLETED, handle.error
        assert [each.name for each in project.iterdir()] == ["b.txt"]
        kinds = [e.event_type for e in (await made.replay_run(handle.run_id)).events]
        for kind in (EventType.PERMISSION_REQUESTED, EventType.PERMISSION_DECIDED):
            assert kinds.count(kind) == 1
        assert kinds.count(EventType.TOOL_STARTED) == 1


async def test_a_call_with_other_arguments_is_one_span(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with OtlpReceiver.open() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        async with runtime(home, project, script(), config=WAIT) as made:
            handle = await made.start("go", "s1")
            await made.answer(await asked_by(made), "allow_once", arguments=CHANGED)
            assert await handle.wait() is RunStatus.COMPLETED
    assert collector.named("execute_tool code.write_file").status == "unset"


UNFIT: dict[str, tuple[str, Any, str]] = {
    "a field that is missing": ("allow_once", {"path": "b.txt"}, "content"),
    "a field that there is not": ("allow_once", {**CHANGED, "mood": "good"}, "mood"),
    "a value of another type": ("allow_once", {**CHANGED, "content": 5}, "content"),
    "no dict": ("allow_once", ["b.txt"], "dict"),
    "no JSON": ("allow_once", {**CHANGED, "content": object()}, "JSON"),
    "no number": ("allow_once", {**CHANGED, "content": float("nan")}, "JSON"),
    "a secret": ("allow_once", {**CHANGED, "content": f"key={SECRET}"}, "secret"),
    "what was removed": ("allow_once", {**CHANGED, "content": "[redacted:KEY]"}, "secret"),
    "a denial": ("deny", CHANGED, "allow_once"),
    "the session": ("allow_for_session", CHANGED, "allow_once"),
}


@pytest.mark.parametrize("name", sampled(UNFIT, keep=2))
async def test_arguments_that_do_not_fit_keep_the_question(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    decision, arguments, said = UNFIT[name]
    monkeypatch.setenv("MY_KEY", SECRET)
    config = PARK.replace('name = "script"', 'name = "script"\napi_key_env = "MY_KEY"')
    async with runtime(home, project, script(), config=config) as made:
        await parked(made)
        (question,) = await made.approvals()
        with pytest.raises(AgentCoreError, match=said) as caught:
            await made.answer(question.request_id, decision, arguments=arguments)  # type: ignore[arg-type]
        assert caught.value.code is ErrorCode.VALIDATION_ERROR
        assert SECRET not in caught.value.message
        assert await made.approvals() == [question]
        again = await made.answer(question.request_id, "allow_once", arguments=CHANGED)
        assert await again.wait() is RunStatus.COMPLETED
    assert [each.name for each in project.iterdir()] == ["b.txt"]


async def test_a_rule_counts_for_changed_arguments_too(home: Home, project: Path) -> None:
    rule = '[[permissions.rules]]\ndecision = "deny"\ntool = "code.write_file"\npath = "b.txt"\n'
    provider = ScriptedProvider(script())
    async with runtime(home, project, provider, config=PARK + rule) as made:
        handle = await parked(made)
        again = await made.answer(handle.pending_requests[0], "allow_once", arguments=CHANGED)
        assert await again.wait() is RunStatus.COMPLETED
        assert list(project.iterdir()) == []
        assert calls_in(provider) == [CHANGED]
        assert "denied by" in provider.requests[-1].model_dump_json()


async def test_a_rule_that_allows_the_call_by_now_does_not_bring_its_old_arguments_back(
    home: Home, project: Path
) -> None:
    async with runtime(home, project, script(), config=PARK) as made:
        handle = await parked(made)
    rule = '[[permissions.rules]]\ndecision = "allow"\ntool = "code.write_file"\npath = "*.txt"\n'
    async with runtime(home, project, ["done"], config=PARK + rule) as made:
        again = await made.answer(handle.pending_requests[0], "allow_once", arguments=CHANGED)
        assert await again.wait() is RunStatus.COMPLETED
    assert [each.name for each in project.iterdir()] == ["b.txt"]


async def test_only_the_call_that_was_asked_about_is_changed(home: Home, project: Path) -> None:
    provider = ScriptedProvider(script(write("call_1"), write("call_2")))
    async with runtime(home, project, provider, config=PARK) as made:
        handle = await parked(made)
        again = await made.answer(handle.pending_requests[0], "allow_once", arguments=CHANGED)
        assert await again.wait() is RunStatus.WAITING
        again = await made.answer(again.pending_requests[0], "allow_once")
        assert await again.wait() is RunStatus.COMPLETED
        assert calls_in(provider) == [CHANGED, {"path": "a.txt", "content": "new\n"}]
    assert sorted(each.name for each in project.iterdir()) == ["a.txt", "b.txt"]


async def test_the_arguments_of_a_function_are_validated_by_it(home: Home, project: Path) -> None:
    done: list[int] = []

    @tool
    def deploy(version: int) -> str:
        """Deploy a version."""
        done.append(version)
        return "deployed"

    asked = ScriptedCall(name="deploy", arguments={"version": 1}, tool_call_id="call_1")
    async with runtime(home, project, script(asked), config=WAIT) as made:
        handle = await made.start("go", "s1", tools=[deploy])
        request_id = await asked_by(made)
        async with runtime(home, project, config=WAIT) as other:
            with pytest.raises(AgentCoreError, match="tools="):
                await other.answer(request_id, "allow_once", arguments={"version": 2})
            wrong: dict[str, Any] = {"version": "x"}
            with pytest.raises(AgentCoreError, match="version"):
                await other.answer(request_id, "allow_once", arguments=wrong, tools=[deploy])
        with pytest.raises(AgentCoreError, match="version"):
            await made.answer(request_id, "allow_once", arguments={"version": "x"})
        await made.answer(request_id, "allow_once", arguments={"version": 2})
        assert await handle.wait() is RunStatus.COMPLETED
    assert done == [2]


async def test_a_child_makes_its_call_with_them(home: Home, project: Path) -> None:
    sub = ScriptedCall(
        name="agent.create_sub_agent",
        arguments={"task": "write", "allowed_tools": ["code.write_file"]},
        tool_call_id="call_sub",
    )
    turns: list[Any] = [Calls(calls=[sub]), Calls(calls=[write()])]
    async with runtime(home, project, turns, config=PARK) as made:
        handle = await parked(made)
    provider = ScriptedProvider(["child done", "done"])
    async with runtime(home, project, provider, config=PARK) as made:
        again = await made.answer(handle.pending_requests[0], "allow_once", arguments=CHANGED)
        assert await again.wait() is RunStatus.COMPLETED
        assert calls_in(provider, 0) == [CHANGED]
    assert [each.name for each in project.iterdir()] == ["b.txt"]


@pytest.mark.sweep
async def test_a_database_of_several_machines_keeps_them(
    home: Home, project: Path, database_url: str
) -> None:
    home.write_config(PARK)

    def opened(*turns: Any) -> AgentRuntime:
        made = AgentRuntime(project_dir=project, home_dir=home.path, database_url=database_url)
        provider = ScriptedProvider(turns)
        made.register_provider("custom", lambda _: provider)
        return made

    async with opened(*script()) as made:
        handle = await parked(made, here=True)
    async with opened("done") as made:
        again = await made.answer(handle.pending_requests[0], "allow_once", arguments=CHANGED)
        assert await again.wait() is RunStatus.COMPLETED
        (question,) = await made.approvals(is_open=False)
        assert question.changed_arguments == CHANGED
    assert [each.name for each in project.iterdir()] == ["b.txt"]
