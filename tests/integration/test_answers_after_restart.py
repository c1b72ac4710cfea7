"""Questions that outlive their process: what a run needs of its program is handed over again."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from agent_core import (
    Agent,
    AgentCoreError,
    AgentRuntime,
    Budget,
    ConfigError,
    ErrorCode,
    RunHandle,
    ToolContext,
    tool,
)
from agent_core.loop.guards import on_tool_call
from agent_core.providers.scripted import Calls, ScriptedCall, ScriptedProvider, calls
from agent_core.tools.toolsets import Toolset
from agent_core.types import ApprovalState, Decision, RunStatus, ToolCall
from isolation import Home, program_file
from model_server import ModelServer
from runtimes import CONFIG, Asked, runtime
from sweeps import paired, sampled

pytestmark = pytest.mark.timeout(120)

PARK = f'{CONFIG}\n[permissions]\nunattended = "park"\n'


class Place:
    """A place to deploy to: the dependency of a run."""

    def __init__(self, name: str = "here") -> None:
        self.name = name
        self.deployed: list[str] = []


class Shop:
    """The functions of a program, as another process of it would have them, too."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.checked: list[str] = []
        shop = self

        @tool(name="deploy")
        def deploy(version: str) -> str:
            """Deploy a version."""
            shop.done.append(version)
            return "deployed"

        @tool(name="place")
        def place(version: str, context: ToolContext[Place]) -> str:
            """Deploy a version where the dependencies say."""
            shop.done.append(f"{version} {context.deps.name}")
            return "placed"

        @on_tool_call
        async def check(call: ToolCall) -> None:
            shop.checked.append(call.name)

        self.deploy, self.place, self.check = deploy, place, check


@pytest.fixture
def shop() -> Shop:
    return Shop()


def call(name: str, version: str = "1", call_id: str = "call_1") -> ScriptedCall:
    return ScriptedCall(name=name, arguments={"version": version}, tool_call_id=call_id)


async def parked(made: AgentRuntime, **options: Any) -> RunHandle[Any]:
    handle = await made.start("go", "s1", **options)
    assert await handle.wait() is RunStatus.WAITING, handle.error
    return handle


async def park(home: Home, project: Path, *asked: ScriptedCall, **options: Any) -> RunHandle[Any]:
    """A run that waits, and whose process has ended."""
    made = runtime(home, project, [Calls(calls=list(asked))], config=PARK)
    async with made:
        return await parked(made, **options)


async def is_untouched(made: AgentRuntime, handle: RunHandle[Any]) -> bool:
    """Return whether every question of a run is still open, and the run waits."""
    asked = await made.approvals(is_open=False)
    return (
        all(each.state is ApprovalState.OPEN for each in asked)
        and (await made.attach(handle.run_id)).status is RunStatus.WAITING
        and len(await made.session_runs("s1")) == 1
    )


async def results(made: AgentRuntime) -> dict[str, str]:
    """Return the outcome of each call of the session: the code of its error, or `ok`."""
    page = await made.replay_session("s1")
    blocks = [block for node in page.nodes for block in node.results]
    return {b.tool_call_id: str(b.error.code) if b.error else "ok" for b in blocks}


def no_tools_and(*tools: Any) -> list[dict[str, Any]]:
    return [{}, {"tools": list(tools)}]


class Version(BaseModel):
    number: int


LACKING: dict[str, tuple[str, str, set[str]]] = {
    "a function": ("deploy", "tools=[deploy]", {"tools"}),
    "dependencies": ("place", "deps=…", {"tools", "deps"}),
    "a guard": ("deploy", "guards=…", {"tools", "guards"}),
    "a model": ("deploy", "model=…", {"tools", "model"}),
    "a toolset": ("shop.deploy", "tools=[shop", {"tools"}),
    "everything": ("place", "tools=[place], deps=…, guards=…, model=…", {"tools", "deps"}),
}


def options_of(shop: Shop, name: str, model: ScriptedProvider) -> dict[str, Any]:
    """Everything that a run is started with, and given again when it continues."""
    return {
        "a function": {"tools": [shop.deploy]},
        "dependencies": {"tools": [shop.place], "deps": Place()},
        "a guard": {"tools": [shop.deploy], "guards": [shop.check]},
        "a model": {"tools": [shop.deploy], "model": model},
        "a toolset": {"tools": [Toolset("shop", [shop.deploy], prefix="shop.")]},
        "everything": {
            "tools": [shop.place],
            "deps": Place(),
            "guards": [shop.check],
            "model": model,
        },
    }[name]


@pytest.mark.long
@pytest.mark.parametrize(
    ("decision", "name"),
    sampled(paired(["allow_once", "allow_for_session", "deny"], LACKING), keep=2),
)
async def test_an_answer_without_what_the_run_needs_is_refused_and_with_it_the_run_continues(
    home: Home, project: Path, shop: Shop, name: str, decision: Any
) -> None:
    tool_name, said, lacking = LACKING[name]
    first = ScriptedProvider([Calls(calls=[call(tool_name)])])
    made = runtime(home, project, first, config=PARK)
    async with made:
        handle = await parked(made, **options_of(shop, name, first))
    (request_id,) = handle.pending_requests
    provider = ScriptedProvider(["done", "next"])
    async with runtime(home, project, provider, config=PARK) as made:
        is_needed = decision != "deny" or lacking != {"tools"} or name == "a toolset"
        if is_needed:
            with pytest.raises(AgentCoreError, match="nothing was answered") as caught:
                await made.answer(request_id, decision)
            assert caught.value.code is ErrorCode.VALIDATION_ERROR
            assert handle.run_id in caught.value.message
            assert f"soong-agent cancel {handle.run_id}" in caught.value.message
            if decision != "deny":
                assert said in caught.value.message
                assert lacking <= set(caught.value.details["options"])
            assert await is_untouched(made, handle)
        handed = options_of(shop, name, provider)
        again = await made.answer(request_id, decision, **handed)
        assert await again.wait() is RunStatus.COMPLETED, again.error
        assert again.result_text == "done"
        is_denied = decision == "deny"
        place = " here" if tool_name == "place" else ""
        assert shop.done == ([] if is_denied else [f"1{place}"])
        assert await results(made) == {"call_1": "permission_denied" if is_denied else "ok"}
        if "guards" in handed:
            assert shop.checked == ([] if is_denied else [tool_name])
        following = await made.run("and now?", "s1")
        assert following.text == "next"


@pytest.mark.parametrize("is_allowed", [True, False])
async def test_an_answer_may_be_true_or_false(
    home: Home, project: Path, shop: Shop, is_allowed: bool
) -> None:
    handle = await park(home, project, call("deploy"), tools=[shop.deploy])
    async with runtime(home, project, ["next"], config=PARK) as made:
        answered = await made.answer(handle.pending_requests[0], is_allowed, tools=[shop.deploy])
        assert await answered.wait() is RunStatus.COMPLETED
        assert await results(made) == {"call_1": "ok" if is_allowed else "permission_denied"}


async def test_a_message_after_a_refused_answer_is_answered(
    home: Home, project: Path, shop: Shop
) -> None:
    handle = await park(home, project, call("deploy"), tools=[shop.deploy])
    async with runtime(home, project, ["next"], config=PARK) as made:
        with pytest.raises(AgentCoreError, match="nothing was answered"):
            await made.answer(handle.pending_requests[0], "allow_once")
        following = await made.run("never mind", "s1")
        assert following.text == "next"
        assert (await made.attach(handle.run_id)).status is RunStatus.CANCELLED
        assert shop.done == []


async def test_a_process_that_can_ask_does_not_continue_what_it_cannot(
    home: Home, project: Path, shop: Shop
) -> None:
    handle = await park(home, project, call("deploy"), tools=[shop.deploy])
    user = Asked("allow_once")
    made = runtime(home, project, ["next"], config=PARK, permission_callback=user)
    async with made:
        following = await made.start("and now?", "s1")
        assert await following.wait() is RunStatus.COMPLETED
        assert (following.result_text, user.requests) == ("next", [])
        (warning,) = following.warnings
        assert handle.run_id in warning
        assert "tools" in warning
        closed = await made.attach(handle.run_id)
        assert (closed.status, closed.error) == (RunStatus.CANCELLED, None)


async def test_a_denied_call_needs_no_tool_and_keeps_its_reason(
    home: Home, project: Path, shop: Shop
) -> None:
    handle = await park(home, project, call("deploy"), tools=[shop.deploy, "code.list_dir"])
    provider = ScriptedProvider([calls("deploy", version="2"), "then not"])
    async with runtime(home, project, provider, config=PARK) as made:
        again = await made.answer(handle.pending_requests[0], "deny", "not on a Friday")
        assert await again.wait() is RunStatus.COMPLETED, again.error
        assert "the user denied deploy: not on a Friday" in provider.requests[0].model_dump_json()
        assert "no longer available" in provider.requests[1].model_dump_json()
        assert sorted((await results(made)).values()) == [
            "permission_denied",
            "tool_not_available",
        ]


async def test_a_denial_still_needs_what_the_rest_of_the_run_does(
    home: Home, project: Path, shop: Shop
) -> None:
    handle = await park(
        home, project, call("deploy"), tools=[shop.deploy, shop.place], deps=Place()
    )
    async with runtime(home, project, ["done"], config=PARK) as made:
        with pytest.raises(AgentCoreError, match=r"continues after a denial.*tool place.*deps"):
            await made.answer(handle.pending_requests[0], "deny")
        assert await is_untouched(made, handle)
        again = await made.answer(
            handle.pending_requests[0], "deny", tools=[shop.place], deps=Place()
        )
        assert await again.wait() is RunStatus.COMPLETED


async def test_one_of_two_calls_of_a_missing_tool_is_not_denied_alone(
    home: Home, project: Path, shop: Shop
) -> None:
    config = PARK.replace("[permissions]", '[permissions]\nreadonly_default = "ask"')

    @tool(permission="readonly")
    async def look(version: str) -> str:
        """Look."""
        shop.done.append(version)
        return version

    asked = [call("look", "1", "call_1"), call("look", "2", "call_2")]
    async with runtime(home, project, [Calls(calls=asked)], config=config) as made:
        handle = await parked(made, tools=[look])
    one, two = handle.pending_requests
    async with runtime(home, project, ["done"], config=config) as made:
        with pytest.raises(AgentCoreError, match=r"tools=\[look\]"):
            await made.answer(one, "deny")
        assert await is_untouched(made, handle)
        again = await made.answer(one, "deny", tools=[look])
        assert await again.wait() is RunStatus.WAITING
        assert again.pending_requests == [two]
        again = await made.answer(two, "allow_once")  # this process has the tool by now
        assert await again.wait() is RunStatus.COMPLETED, again.error
        assert shop.done == ["2"]
        assert await results(made) == {"call_1": "permission_denied", "call_2": "ok"}


@pytest.mark.sweep
async def test_the_questions_of_one_turn_are_answered_by_one_process_after_another(
    home: Home, project: Path, shop: Shop
) -> None:
    asked = [call("deploy", "1", "call_1"), call("deploy", "2", "call_2")]
    handle = await park(home, project, *asked, tools=[shop.deploy])
    done: list[RunStatus] = []
    for number in (1, 2):
        async with runtime(home, project, ["done"], config=PARK) as made:
            question, *_ = await made.approvals()
            with pytest.raises(AgentCoreError, match="nothing was answered"):
                await made.answer(question.request_id, "allow_once")
            again = await made.answer(question.request_id, "allow_once", tools=[shop.deploy])
            done.append(await again.wait())
            assert shop.done == [str(each) for each in range(1, number + 1)]
    assert done == [RunStatus.WAITING, RunStatus.COMPLETED]
    assert again.run_id == handle.run_id


@pytest.mark.sweep
async def test_what_a_runtime_had_is_needed_as_well(home: Home, project: Path, shop: Shop) -> None:
    made = runtime(home, project, [Calls(calls=[call("deploy")])], config=PARK)
    made.register_tool(shop.deploy)
    async with made:
        handle = await parked(made)
    (request_id,) = handle.pending_requests
    async with runtime(home, project, ["done"], config=PARK) as made:
        with pytest.raises(AgentCoreError, match=r"the tool deploy.*tools=\[deploy\]"):
            await made.answer(request_id, "allow_once")
        assert await is_untouched(made, handle)
    provider = ScriptedProvider([calls("code.list_dir", path="."), "done"])
    async with runtime(home, project, provider, config=PARK) as made:
        again = await made.answer(request_id, "allow_once", tools=[shop.deploy])
        assert await again.wait() is RunStatus.COMPLETED, again.error
        assert shop.done == ["1"]
        names = {each.name for each in provider.requests[0].tools}
        assert {"deploy", "code.list_dir"} <= names, "it has every tool beside the given one"


@pytest.mark.sweep
async def test_a_runtime_that_has_the_tool_registered_needs_no_more(
    home: Home, project: Path, shop: Shop
) -> None:
    handle = await park(home, project, call("deploy"), tools=[shop.deploy])
    made = runtime(home, project, ["done"], config=PARK)
    made.register_tool(shop.deploy)
    async with made:
        again = await made.answer(handle.pending_requests[0], "allow_once")
        assert await again.wait() is RunStatus.COMPLETED, again.error
        assert shop.done == ["1"]


@pytest.mark.parametrize("handed", ["runtime", "answer"])
async def test_the_toolsets_of_a_runtime_are_needed_as_well(
    home: Home, project: Path, shop: Shop, handed: str
) -> None:
    home.write_config(PARK)

    def opened(*toolsets: Toolset) -> AgentRuntime:
        made = AgentRuntime(project_dir=project, home_dir=home.path, toolsets=toolsets)
        script = [Calls(calls=[call("shop.deploy")])] if toolsets and not opened_once else ["done"]
        provider = ScriptedProvider(script)
        made.register_provider("custom", lambda _: provider)
        return made

    opened_once: list[bool] = []
    toolset = Toolset("shop", [shop.deploy], prefix="shop.")
    async with opened(toolset) as made:
        handle = await parked(made)
    opened_once.append(True)
    (request_id,) = handle.pending_requests
    async with opened() as made:
        with pytest.raises(AgentCoreError, match=r"shop\.deploy"):
            await made.answer(request_id, "allow_once")
        assert await is_untouched(made, handle)
    is_runtime = handed == "runtime"
    async with opened(toolset) if is_runtime else opened() as made:
        tools = None if is_runtime else [toolset]
        again = await made.answer(request_id, "allow_once", tools=tools)
        assert await again.wait() is RunStatus.COMPLETED, again.error
        assert shop.done == ["1"]


async def test_a_toolset_that_does_not_open_keeps_the_question(
    home: Home, project: Path, shop: Shop
) -> None:
    class Broken(Toolset):
        async def open(self) -> Any:
            raise OSError("no connection")

    toolset = Toolset("shop", [shop.deploy], prefix="shop.")
    handle = await park(home, project, call("shop.deploy"), tools=[toolset])
    async with runtime(home, project, ["done"], config=PARK) as made:
        with pytest.raises(AgentCoreError, match=r"nothing was answered.*no connection"):
            await made.answer(handle.pending_requests[0], "allow_once", tools=[Broken("shop")])
        assert await is_untouched(made, handle)


async def test_other_dependencies_and_other_types_are_refused(
    home: Home, project: Path, shop: Shop
) -> None:
    options: dict[str, Any] = {"tools": [shop.place], "deps": Place(), "output_type": Version}
    handle = await park(home, project, call("place"), **options)
    (request_id,) = handle.pending_requests
    final = calls("final_answer", number=2)
    async with runtime(home, project, [final], config=PARK) as made:
        wrongs: list[dict[str, Any]] = [
            {"deps": 5},
            {"output_type": list[int]},
            {"tools": [5]},
            {"guards": [print]},
            {"model": "nothing"},
        ]
        for wrong in wrongs:
            with pytest.raises(AgentCoreError):
                await made.answer(request_id, "allow_once", **{**options, **wrong})
            assert await is_untouched(made, handle)
        again = await made.answer(request_id, "allow_once", **options)
        result = await again.result()
        assert result.output == Version(number=2)


async def test_another_tool_of_that_name_is_refused(home: Home, project: Path, shop: Shop) -> None:
    @tool(name="deploy")
    def other(folder: Path) -> str:
        """Deploy a folder."""
        shop.done.append(str(folder))
        return "deployed"

    handle = await park(home, project, call("deploy"), tools=[shop.deploy])
    (request_id,) = handle.pending_requests
    async with runtime(home, project, ["done"], config=PARK) as made:
        with pytest.raises(AgentCoreError, match="does not take the arguments") as caught:
            await made.answer(request_id, "allow_once", tools=[other])
        assert caught.value.code is ErrorCode.VALIDATION_ERROR
        with pytest.raises(AgentCoreError, match="reason must be a text or None, not an int"):
            await made.answer(request_id, "deny", reason=5, tools=[other])  # type: ignore[arg-type]
        assert await is_untouched(made, handle)
        again = await made.answer(request_id, "allow_once", tools=[shop.deploy])
        assert await again.wait() is RunStatus.COMPLETED
    assert shop.done == ["1"]


async def test_without_the_type_the_answer_is_a_json_value(
    home: Home, project: Path, shop: Shop
) -> None:
    options: dict[str, Any] = {"tools": [shop.deploy], "output_type": Version}
    handle = await park(home, project, call("deploy"), **options)
    async with runtime(home, project, [calls("final_answer", number=2)], config=PARK) as made:
        again = await made.answer(handle.pending_requests[0], "allow_once", tools=[shop.deploy])
        assert (await again.result()).output == {"number": 2}


async def test_a_model_that_cannot_be_asked_here_keeps_the_question(
    home: Home, project: Path
) -> None:
    write = ScriptedCall(name="code.write_file", arguments={"path": "a", "content": "x"})
    handle = await park(home, project, write)
    config = PARK.replace('provider = "custom"', 'provider = "openai"\napi_key_env = "NO_KEY"')
    home.write_config(config)
    async with AgentRuntime(project_dir=project, home_dir=home.path) as made:
        with pytest.raises(ConfigError, match=r"nothing was answered.*NO_KEY is not set"):
            await made.answer(handle.pending_requests[0], "allow_once")
        assert await is_untouched(made, handle)
    async with runtime(home, project, ["done"], config=PARK) as made:
        again = await made.answer(handle.pending_requests[0], "allow_once")
        assert await again.wait() is RunStatus.COMPLETED
    assert (project / "a").exists()


async def test_the_process_that_lives_still_answers_with_what_it_has(
    home: Home, project: Path, shop: Shop
) -> None:
    made = runtime(home, project, [Calls(calls=[call("deploy")]), "done"], config=PARK)
    async with made, runtime(home, project, ["elsewhere"], config=PARK) as other:
        handle = await parked(made, tools=[shop.deploy])
        (request_id,) = handle.pending_requests
        with pytest.raises(AgentCoreError, match="nothing was answered"):
            await other.answer(request_id, "allow_once")
        again = await made.answer(request_id, "allow_once")
        assert await again.wait() is RunStatus.COMPLETED
        assert (again.result_text, shop.done) == ("done", ["1"])


async def test_another_process_continues_while_the_first_one_lives(
    home: Home, project: Path, shop: Shop
) -> None:
    made = runtime(home, project, [Calls(calls=[call("deploy")]), "first"], config=PARK)
    async with made, runtime(home, project, ["elsewhere"], config=PARK) as other:
        handle = await parked(made, tools=[shop.deploy])
        (request_id,) = handle.pending_requests
        again = await other.answer(request_id, "allow_once", tools=[shop.deploy])
        assert await again.wait() is RunStatus.COMPLETED
        assert await handle.wait() is RunStatus.COMPLETED
        assert (handle.result_text, shop.done) == ("elsewhere", ["1"])
        assert (await made.run("and now?", "s1")).text == "first"


async def test_a_run_that_is_under_way_elsewhere_needs_nothing_of_whoever_answers(
    home: Home, project: Path, shop: Shop
) -> None:
    config = PARK.replace("park", "wait")
    made = runtime(home, project, [Calls(calls=[call("deploy")]), "done"], config=config)
    async with made, runtime(home, project, [], config=config) as other:
        handle = await made.start("go", "s1", tools=[shop.deploy])
        while not (asked := await other.approvals()):  # noqa: ASYNC110 - another process asks
            await asyncio.sleep(0.01)
        await other.answer(asked[0].request_id, "allow_once")
        assert await handle.wait() is RunStatus.COMPLETED
        assert shop.done == ["1"]


async def test_of_two_that_answer_at_once_one_is_told_so(
    home: Home, project: Path, shop: Shop
) -> None:
    handle = await park(home, project, call("deploy"), tools=[shop.deploy])
    (request_id,) = handle.pending_requests
    one = runtime(home, project, ["one"], config=PARK)
    two = runtime(home, project, ["two"], config=PARK)
    async with one, two:
        answers = await asyncio.gather(
            *(each.answer(request_id, "allow_once", tools=[shop.deploy]) for each in (one, two)),
            return_exceptions=True,
        )
        (late,) = [each for each in answers if isinstance(each, BaseException)]
        assert isinstance(late, AgentCoreError)
        assert late.code is ErrorCode.ALREADY_ANSWERED
        (first,) = [each for each in answers if isinstance(each, RunHandle)]
        assert await first.wait() is RunStatus.COMPLETED
        assert shop.done == ["1"]
        with pytest.raises(AgentCoreError) as caught:
            await one.answer(request_id, "deny")
        assert caught.value.code is ErrorCode.ALREADY_ANSWERED
        assert caught.value.details["state"] == "answered"


@pytest.mark.parametrize(
    "request_id", sampled(["req_nothing", "", "\ud800", "x" * 1_000, "req_é"], keep=2)
)
async def test_an_unknown_question_is_not_found(home: Home, project: Path, request_id: str) -> None:
    async with runtime(home, project, config=PARK) as made:
        with pytest.raises(AgentCoreError, match="there is no request") as caught:
            await made.answer(request_id, "allow_once")
        assert caught.value.code is ErrorCode.APPROVAL_NOT_FOUND
        assert len(caught.value.message) < 200


async def test_a_question_of_a_run_that_has_ended_is_closed(
    home: Home, project: Path, shop: Shop
) -> None:
    handle = await park(home, project, call("deploy"), tools=[shop.deploy])
    async with runtime(home, project, config=PARK) as made:
        await (await made.attach(handle.run_id)).cancel()
        with pytest.raises(AgentCoreError, match="ended without an answer") as caught:
            await made.answer(handle.pending_requests[0], "allow_once", tools=[shop.deploy])
        assert caught.value.code is ErrorCode.ALREADY_ANSWERED
        assert caught.value.details["state"] == "withdrawn"


async def test_a_child_that_waits_needs_what_its_parent_was_started_with(
    home: Home, project: Path, shop: Shop
) -> None:
    sub = calls("agent.create_sub_agent", task="go", allowed_tools=["deploy"])
    provider = ScriptedProvider([sub, Calls(calls=[call("deploy")])])
    async with runtime(home, project, provider, config=PARK) as made:
        handle = await parked(made, tools=[shop.deploy, "agent.create_sub_agent"])
        (question,) = await made.approvals()
        assert question.run_id != handle.run_id
    async with runtime(home, project, ["child done", "done"], config=PARK) as made:
        with pytest.raises(AgentCoreError, match="nothing was answered"):
            await made.answer(question.request_id, "allow_once")
        again = await made.answer(question.request_id, "allow_once", tools=[shop.deploy])
        assert await again.wait() is RunStatus.COMPLETED, again.error
        assert (again.result_text, shop.done) == ("done", ["1"])


async def test_a_run_of_another_project_is_answered_there(
    home: Home, project: Path, tmp_path: Path, shop: Shop
) -> None:
    handle = await park(home, project, call("deploy"), tools=[shop.deploy])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    async with runtime(home, elsewhere, ["done"], config=PARK) as made:
        for handed in no_tools_and(shop.deploy):
            with pytest.raises(AgentCoreError, match="nothing was answered") as caught:
                await made.answer(handle.pending_requests[0], "allow_once", **handed)
            assert caught.value.details["cwd"] == str(project)
        assert await is_untouched(made, handle)


async def test_sessions_and_handles_answer_as_well(home: Home, project: Path, shop: Shop) -> None:
    asked = [call("deploy", "1", "call_1"), call("deploy", "2", "call_2")]
    handle = await park(home, project, *asked, tools=[shop.deploy])
    async with runtime(home, project, ["done"], config=PARK) as made:
        async with made.session("s1") as session:
            first = await session.answer(
                handle.pending_requests[0], "allow_once", tools=[shop.deploy]
            )
        assert first.status is RunStatus.WAITING
        attached = await made.attach(handle.run_id)
        (request_id,) = attached.pending_requests
        with pytest.raises(AgentCoreError, match="there is no request"):
            await attached.answer("req_of_nobody", "allow_once")
        last = await attached.answer(request_id, "allow_once")
        assert await last.wait() is RunStatus.COMPLETED
        assert shop.done == ["1", "2"]


async def test_a_session_answers_only_its_own_questions(
    home: Home, project: Path, shop: Shop
) -> None:
    handle = await park(home, project, call("deploy"), tools=[shop.deploy])
    async with runtime(home, project, ["done"], config=PARK) as made:
        with pytest.raises(AgentCoreError, match="there is no request"):
            await made.session("s2").answer(
                handle.pending_requests[0], "allow_once", tools=[shop.deploy]
            )
        assert await is_untouched(made, handle)
        assert shop.done == []


async def test_a_budget_of_one_run_is_not_given_with_an_answer(
    home: Home, project: Path, shop: Shop
) -> None:
    handle = await park(home, project, call("deploy"), tools=[shop.deploy])
    async with runtime(home, project, ["done"], config=PARK) as made:
        with pytest.raises(AgentCoreError, match="budget must be a BudgetPool"):
            await made.answer(
                handle.pending_requests[0],
                "allow_once",
                tools=[shop.deploy],
                budget=Budget(requests=9),  # type: ignore[arg-type]
            )
        assert await is_untouched(made, handle)


@pytest.mark.sweep
@pytest.mark.parametrize("by", sampled(["the runtime", "a session", "a handle"], keep=1))
async def test_agents_and_validators_are_given_again_with_an_answer(
    home: Home, project: Path, shop: Shop, by: str
) -> None:
    seen: list[int] = []

    def validate(version: Version) -> Version:
        seen.append(version.number)
        return version

    options: dict[str, Any] = {
        "tools": [shop.deploy],
        "agents": [Agent("writer", "You write.", description="Writes.")],
        "handoffs": [Agent("refunds", "You handle refunds.", description="Refunds.")],
        "output_type": Version,
        "output_validators": [validate],
    }
    handle = await park(home, project, call("deploy"), **options)
    (request_id,) = handle.pending_requests
    async with runtime(home, project, [calls("final_answer", number=2)], config=PARK) as made:
        answer = {
            "the runtime": made.answer,
            "a session": made.session("s1").answer,
            "a handle": (await made.attach(handle.run_id)).answer,
        }[by]
        for name in ("agents", "handoffs", "output_validators"):
            without: dict[str, Any] = {**options, name: ()}
            with pytest.raises(AgentCoreError, match="was started with") as refused:
                await answer(request_id, "allow_once", **without)
            assert name in refused.value.details["options"]
            assert await is_untouched(made, handle)
        again = await answer(request_id, "allow_once", **options)
        assert (await again.result()).output == Version(number=2)
    assert seen == [2]


async def test_the_agent_of_a_run_is_given_again_with_all_that_it_has(
    home: Home, project: Path, shop: Shop
) -> None:
    refunds = Agent("refunds", "You handle refunds.", description="Refunds.", tools=())
    triage = Agent("triage", "You ask.", tools=[shop.deploy], handoffs=[refunds])
    handle = await park(home, project, call("deploy"), agent=triage)
    (request_id,) = handle.pending_requests
    script = [calls("handoff_to_refunds"), "Refunded."]
    async with runtime(home, project, script, config=PARK) as made:
        with pytest.raises(AgentCoreError, match="nothing was answered") as refused:
            await made.answer(request_id, "allow_once", tools=[shop.deploy], handoffs=[refunds])
        assert refused.value.details["options"] == ["agents"]
        assert await is_untouched(made, handle)
        again = await made.answer(request_id, "allow_once", tools=[shop.deploy], agents=[triage])
        assert (await again.result()).text == "Refunded."
    assert shop.done == ["1"]


async def test_a_run_in_memory_continues_after_its_runtime_was_opened_again(
    home: Home, project: Path, shop: Shop
) -> None:
    home.write_config(PARK)
    made = AgentRuntime(project_dir=project, home_dir=home.path, persist=False)
    provider = ScriptedProvider([Calls(calls=[call("deploy")]), "done"])
    made.register_provider("custom", lambda _: provider)
    async with made:
        handle = await parked(made, tools=[shop.deploy])
    async with made:
        with pytest.raises(AgentCoreError, match="nothing was answered"):
            await made.answer(handle.pending_requests[0], "allow_once")
        again = await made.answer(handle.pending_requests[0], "allow_once", tools=[shop.deploy])
        assert await again.wait() is RunStatus.COMPLETED
        assert shop.done == ["1"]


async def test_a_run_of_a_postgres_database_continues_in_another_process(
    home: Home, project: Path, database_url: str, shop: Shop
) -> None:
    home.write_config(PARK)

    def opened(*script: Any) -> AgentRuntime:
        made = AgentRuntime(project_dir=project, home_dir=home.path, database_url=database_url)
        provider = ScriptedProvider(script)
        made.register_provider("custom", lambda _: provider)
        return made

    async with opened(Calls(calls=[call("place")])) as made:
        handle = await parked(made, here=True, tools=[shop.place], deps=Place())
    async with opened("done", "next") as made:
        with pytest.raises(AgentCoreError, match=r"tools=\[place\], deps"):
            await made.answer(handle.pending_requests[0], "allow_once")
        assert await is_untouched(made, handle)
        again = await made.answer(
            handle.pending_requests[0], "allow_once", tools=[shop.place], deps=Place("there")
        )
        assert await again.wait() is RunStatus.COMPLETED, again.error
        assert shop.done == ["1 there"]
        assert (await made.run("and now?", "s1", here=True)).text == "next"


async def test_a_run_whose_process_died_right_after_the_answer_continues_with_a_late_one(
    home: Home, project: Path, shop: Shop
) -> None:
    handle = await park(home, project, call("deploy"), tools=[shop.deploy])
    (request_id,) = handle.pending_requests
    async with runtime(home, project, ["done"], config=PARK) as made:
        store = (await made._home.services()).store
        await store.answer(
            request_id, Decision.ALLOW_ONCE, reason=None, by="sdk", decider="a dead process"
        )
        for handed in no_tools_and(shop.deploy):
            with pytest.raises(AgentCoreError, match="already answered"):
                await made.answer(request_id, "allow_once", **handed)
        again = await made.attach(handle.run_id)
        assert await again.wait() is RunStatus.COMPLETED, again.error
        assert shop.done == ["1"]


ASKING = """
import asyncio, sys
from agent_core import AgentRuntime

def deploy(version: str) -> str:
    "Deploy a version."

async def ask(request):
    print(request.request_id, flush=True)
    await asyncio.Event().wait()

async def main():
    async with AgentRuntime(".", permission_callback=ask) as runtime:
        await runtime.run("go", "s1", tools=[deploy])

asyncio.run(main())
"""


async def test_a_run_whose_process_was_killed_over_the_question_is_answered_by_another(
    home: Home, project: Path, shop: Shop
) -> None:
    with ModelServer.in_thread([calls("deploy", version="1"), "done"]) as server:
        configure(home, server)
        async with AgentRuntime(project_dir=project, home_dir=home.path) as made:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                program_file(ASKING),
                stdout=subprocess.PIPE,
                cwd=project,
                env=home.env(),
            )
            assert process.stdout is not None
            request_id = (await process.stdout.readline()).decode().strip()
            process.kill()
            await process.wait()
            with pytest.raises(AgentCoreError, match="nothing was answered"):
                await made.answer(request_id, "allow_once")
            again = await made.answer(request_id, "allow_once", tools=[shop.deploy])
            assert await again.wait() is RunStatus.COMPLETED, again.error
    assert shop.done == ["1"]


PROGRAM = """
import asyncio, os, signal, sys
from agent_core import AgentRuntime

def deploy(version: str) -> str:
    "Deploy a version."
    open("deployed", "a").write(version)
    return "deployed"

async def main(what, request_id):
    async with AgentRuntime(".") as runtime:
        if what == "start":
            handle = await runtime.start("go", "s1", tools=[deploy])
            print(await handle.wait(), *handle.pending_requests, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        handle = await runtime.answer(request_id, "allow_once", tools=[deploy])
        print((await handle.result()).text)

asyncio.run(main(*sys.argv[1:]))
"""


def configure(home: Home, server: ModelServer) -> None:
    home.write_config(
        f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
        '[permissions]\nunattended = "park"\n[memory]\nenabled = false\n'
    )


def run_in(home: Home, project: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own programs
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=project,
        env=home.env(),
    )


def run_program(home: Home, project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_in(home, project, sys.executable, program_file(PROGRAM), *words)


@pytest.mark.sweep
def test_commands_refuse_at_once_and_the_program_continues(home: Home, project: Path) -> None:
    replies = [calls("deploy", version="1"), "deployed it", "the next answer"]
    with ModelServer.in_thread(replies) as server:
        configure(home, server)
        status, request_id = run_in(
            home, project, sys.executable, program_file(PROGRAM), "start", ""
        ).stdout.split()
        assert status == "waiting"
        command = (sys.executable, "-m", "agent_core.cli")
        refused = run_in(home, project, *command, "approvals", "answer", request_id, "allow")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "the tool deploy" in refused.stderr
        assert "tools=[deploy]" in refused.stderr
        listed = run_in(home, project, *command, "approvals", "list", "--json")
        (question,) = [json.loads(line) for line in listed.stdout.splitlines()]
        assert question["state"] == "open"
        seen = run_in(home, project, *command, "attach", question["root_run_id"])
        assert seen.returncode == 0, seen.stderr
        assert request_id in seen.stderr
        answered = run_in(
            home, project, sys.executable, program_file(PROGRAM), "answer", request_id
        )
        assert answered.stdout == "deployed it\n", answered.stderr
        assert (project / "deployed").read_text() == "1"
        late = run_in(home, project, *command, "approvals", "answer", request_id, "allow")
        assert late.returncode == 2
        assert "already answered" in late.stderr
        following = run_in(home, project, *command, "run", "--continue", "and now?")
        assert following.stdout == "the next answer\n", following.stderr


@pytest.mark.sweep
async def test_a_command_whose_run_another_process_has_says_so_and_ends(
    home: Home, project: Path
) -> None:
    write = calls("code.write_file", path="a.txt", content="x")
    with ModelServer.in_thread([write, "done"]) as server:
        configure(home, server)
        async with AgentRuntime(project_dir=project, home_dir=home.path) as made:
            handle = await parked(made)
            (request_id,) = handle.pending_requests
            services = await made._home.services()
            await services.store.resume_run(
                handle.run_id,
                services.runs.leases.claim(),
                cwd=str(project),
            )
            command = (
                sys.executable,
                "-m",
                "agent_core.cli",
                "approvals",
                "answer",
                request_id,
                "allow",
            )
            done = await asyncio.to_thread(run_in, home, project, *command)
        assert done.returncode == 0
        assert "continues with the next message to the session s1" in done.stderr


@pytest.mark.sweep
def test_a_message_from_the_command_line_is_answered_while_such_a_run_waits(
    home: Home, project: Path
) -> None:
    with ModelServer.in_thread([calls("deploy", version="1"), "the next answer"]) as server:
        configure(home, server)
        command = (sys.executable, "-m", "agent_core.cli")
        run_program(home, project, "start", "")
        following = run_in(home, project, *command, "run", "--continue", "and now?")
        assert (following.returncode, following.stdout) == (0, "the next answer\n")
        assert "ends with this message: it was started with tools" in following.stderr
    assert not (project / "deployed").exists()
