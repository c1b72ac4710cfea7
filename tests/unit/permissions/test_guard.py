"""The guard asks when it must, remembers what it may, and takes every failure for a no."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from agent_core.config.models import PermissionsConfig
from agent_core.errors import ErrorCode, PermissionDeniedError
from agent_core.permissions.answers import PermissionCallback
from agent_core.permissions.gate import PermissionGate, ToolLists
from agent_core.permissions.request import MAX_DIFF, MAX_SUMMARY
from agent_core.redaction.redactor import Redactor
from agent_core.types import (
    Access,
    AgentRole,
    Decision,
    EventLevel,
    EventType,
    PermissionDecision,
    PermissionRequest,
    RunIdentity,
    ToolCall,
    ToolDefinition,
    ToolPermission,
)
from tables import together

SECRET = "value-of-the-key"  # noqa: S105
CALL = ToolCall(tool_call_id="call_1", name="code.write_file")
TOOL = ToolDefinition(name="code.write_file", description="writes")
ASKS = Access(asks=True, scope="/p/src", summary="a.py", target="/p/src/a.py")
RUN = RunIdentity(session_id="s1", agent_id="a1", run_id="r1")


class Record:
    """A journal that keeps its events."""

    def __init__(self) -> None:
        self.events: list[tuple[EventType, dict[str, Any]]] = []
        self.committed = 0

    def note(
        self,
        event_type: EventType,
        payload: Mapping[str, Any] | None = None,
        *,
        level: EventLevel = EventLevel.INFO,
        tool_call_id: str | None = None,
    ) -> None:
        assert tool_call_id == CALL.tool_call_id
        self.events.append((event_type, dict(payload or {})))

    async def commit(self) -> None:
        self.committed = len(self.events)

    @property
    def kinds(self) -> list[str]:
        return [str(event_type) for event_type, _ in self.events]


class User:
    """Gives these answers, and remembers the questions."""

    def __init__(self, *answers: str) -> None:
        self._answers = [Decision(answer) for answer in answers]
        self.asked: list[PermissionRequest] = []

    async def __call__(self, request: PermissionRequest) -> PermissionDecision:
        self.asked.append(request)
        return PermissionDecision(decision=self._answers.pop(0), reason="because")


def new_guard(
    callback: PermissionCallback | None,
    *,
    timeout_s: float | None = None,
    **permissions: Any,
) -> PermissionGate:
    return PermissionGate(
        callback,
        PermissionsConfig.model_validate(permissions),
        project_dir=Path("/p"),
        redactor=Redactor({"KEY": SECRET}),
        timeout_s=timeout_s,
    )


async def test_h1_what_does_not_ask_passes_without_a_word() -> None:
    journal = Record()
    tool = TOOL.model_copy(update={"permission": ToolPermission.READONLY})
    await new_guard(None).require(CALL, tool, Access(), RUN, journal)
    assert journal.events == []


async def test_h2_a_deny_is_a_refusal_with_the_users_reason() -> None:
    journal = Record()
    with pytest.raises(PermissionDeniedError, match="because") as caught:
        await new_guard(User("deny")).require(CALL, TOOL, ASKS, RUN, journal)
    assert caught.value.code is ErrorCode.PERMISSION_DENIED
    assert journal.kinds == ["permission_requested", "permission_decided"]


@together(
    ("allowed", "denied", "passes"),
    [
        (None, (), True),
        (["code.*"], (), True),
        (["code.read_file"], (), False),
        (None, ["code.write_file"], False),
        (["code.write_file"], ["code.*"], False),
    ],
)
async def test_lists_of_names_decide_alone_where_nothing_is_to_be_asked(
    allowed: list[str] | None, denied: Collection[str], passes: bool
) -> None:
    user, journal = User(), Record()
    lists = ToolLists(allowed=allowed, denied=denied, mode="allow")
    guard = PermissionGate(user, lists=lists)
    assert guard.is_listed(TOOL.name) is passes
    if passes:
        await guard.require(CALL, TOOL, ASKS, RUN, journal)
    else:
        with pytest.raises(PermissionDeniedError, match=r"lists do not allow code\.write_file"):
            await guard.require(CALL, TOOL, ASKS, RUN, journal)
    assert (user.asked, journal.events) == ([], [])


async def test_what_a_list_allows_is_still_asked_for_by_the_rules() -> None:
    user = User("allow_once")
    guard = PermissionGate(user, lists=ToolLists(allowed=["code.*"]))
    await guard.require(CALL, TOOL, ASKS, RUN, Record())
    assert len(user.asked) == 1


async def test_h3_allow_once_is_asked_again() -> None:
    user = User("allow_once", "allow_once")
    guard = new_guard(user)
    for _ in range(2):
        await guard.require(CALL, TOOL, ASKS, RUN, Record())
    assert len(user.asked) == 2


async def test_h4_allow_for_session_covers_the_same_tool_scope_and_session_only() -> None:
    user = User("allow_for_session", "allow_once", "allow_once", "allow_once", "allow_once")
    guard = new_guard(user)
    await guard.require(CALL, TOOL, ASKS, RUN, Record())
    await guard.require(CALL, TOOL, ASKS, RUN, Record())
    assert len(user.asked) == 1
    elsewhere = Access(asks=True, scope="/p/docs")
    other_tool = TOOL.model_copy(update={"name": "code.edit_file"})
    changed = TOOL.model_copy(update={"description": "writes, honestly"})
    other_session = RUN.model_copy(update={"session_id": "s2"})
    await guard.require(CALL, TOOL, elsewhere, RUN, Record())
    await guard.require(CALL, other_tool, ASKS, RUN, Record())
    await guard.require(CALL, changed, ASKS, RUN, Record())
    await guard.require(CALL, TOOL, ASKS, other_session, Record())
    assert len(user.asked) == 5


async def test_h5_nothing_is_remembered_beyond_the_guard_or_the_session() -> None:
    user = User("allow_for_session", "allow_for_session", "allow_once")
    guard = new_guard(user)
    await guard.require(CALL, TOOL, ASKS, RUN, Record())
    await guard.forget(RUN.session_id)
    await guard.require(CALL, TOOL, ASKS, RUN, Record())
    await new_guard(user).require(CALL, TOOL, ASKS, RUN, Record())
    assert len(user.asked) == 3


async def test_the_user_can_switch_remembering_off() -> None:
    user = User("allow_for_session", "allow_for_session")
    guard = new_guard(user, allow_for_session_enabled=False)
    for _ in range(2):
        await guard.require(CALL, TOOL, ASKS, RUN, Record())
    assert len(user.asked) == 2


async def test_a_deny_is_not_remembered() -> None:
    user = User("deny", "allow_once")
    guard = new_guard(user)
    with pytest.raises(PermissionDeniedError):
        await guard.require(CALL, TOOL, ASKS, RUN, Record())
    await guard.require(CALL, TOOL, ASKS, RUN, Record())


async def test_h6_without_a_callback_the_refusal_is_the_one_of_the_access() -> None:
    journal = Record()
    outside = Access(asks=True, refusal=ErrorCode.WRITE_OUTSIDE_ALLOWED_ROOTS)
    with pytest.raises(PermissionDeniedError) as caught:
        await new_guard(None).require(CALL, TOOL, outside, RUN, journal)
    assert caught.value.code is ErrorCode.WRITE_OUTSIDE_ALLOWED_ROOTS
    with pytest.raises(PermissionDeniedError) as caught:
        await new_guard(None).require(CALL, TOOL, ASKS, RUN, journal)
    assert caught.value.code is ErrorCode.PERMISSION_DENIED
    assert journal.events == []


async def _breaks(request: PermissionRequest) -> PermissionDecision:
    raise RuntimeError(SECRET)


async def _times_out(request: PermissionRequest) -> PermissionDecision:
    raise TimeoutError


async def _hangs(request: PermissionRequest) -> PermissionDecision:
    await asyncio.sleep(60)
    return PermissionDecision(decision=Decision.ALLOW_ONCE)


async def _withdraws(request: PermissionRequest) -> PermissionDecision:
    raise asyncio.CancelledError


async def _answers_another_string(request: PermissionRequest) -> str:
    return "yes"


async def _answers_none(request: PermissionRequest) -> None:
    return None


async def _answers_one(request: PermissionRequest) -> int:
    return 1


def _answers_at_once(request: PermissionRequest) -> Decision:
    return Decision.ALLOW_ONCE


class _Asks:
    async def __call__(self, request: PermissionRequest) -> PermissionDecision:
        return PermissionDecision(decision=Decision.ALLOW_ONCE)


async def _waits(request: PermissionRequest) -> str:
    await asyncio.sleep(0)
    return "allow_once"


def _blocks(request: PermissionRequest) -> PermissionDecision:
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()  # a plain function may block, and so has a thread
    return PermissionDecision(decision=Decision.ALLOW_ONCE)


@together(
    "callback",
    [
        _Asks(),
        _waits,
        _blocks,
        _answers_at_once,
        partial(_waits),
    ],
)
async def test_a_callback_may_be_any_callable_and_answer_with_the_decision_alone(
    callback: PermissionCallback,
) -> None:
    journal = Record()
    await new_guard(callback).require(CALL, TOOL, ASKS, RUN, journal)
    assert journal.kinds[-1] == "permission_decided"


async def test_a_callback_may_answer_with_a_bool() -> None:
    for answer, allows in ((True, True), (False, False)):
        journal = Record()
        guard = new_guard(lambda _, answer=answer: answer)
        if allows:
            await guard.require(CALL, TOOL, ASKS, RUN, journal)
        else:
            with pytest.raises(PermissionDeniedError):
                await guard.require(CALL, TOOL, ASKS, RUN, journal)
        assert journal.kinds == ["permission_requested", "permission_decided"]
        decided = journal.events[-1][1]["decision"]
        assert decided == ("allow_once" if allows else "deny")


async def test_a_wrong_answer_says_what_to_return() -> None:
    journal = Record()
    guard = new_guard(cast("PermissionCallback", _answers_one))
    with pytest.raises(PermissionDeniedError) as caught:
        await guard.require(CALL, TOOL, ASKS, RUN, journal)
    assert "returned 1; return a PermissionDecision" in journal.events[-1][1]["error"]
    assert "returned 1" not in caught.value.message


@together(
    "callback",
    [
        _breaks,
        _times_out,
        _hangs,
        _withdraws,
        _answers_another_string,
        _answers_none,
        _answers_one,
    ],
)
async def test_a_callback_that_fails_in_any_way_denies(
    callback: Callable[[PermissionRequest], Awaitable[object]],
) -> None:
    journal = Record()
    guard = new_guard(cast("PermissionCallback", callback), timeout_s=0.05)
    with pytest.raises(PermissionDeniedError) as caught:
        await guard.require(CALL, TOOL, ASKS, RUN, journal)
    assert caught.value.code is ErrorCode.PERMISSION_DENIED
    assert journal.kinds == ["permission_requested", "permission_failed"]
    assert SECRET not in str(journal.events) + caught.value.message


async def test_the_question_is_stored_before_it_is_asked() -> None:
    journal = Record()

    async def callback(request: PermissionRequest) -> PermissionDecision:
        assert journal.committed == 1
        assert journal.kinds == ["permission_requested"]
        assert journal.events[0][1]["request_id"] == request.request_id
        return PermissionDecision(decision=Decision.ALLOW_ONCE)

    await new_guard(callback).require(CALL, TOOL, ASKS, RUN, journal)
    assert journal.events[1][1]["decision"] == "allow_once"


async def test_cancelling_does_not_wait_for_a_callback_that_will_not_let_go() -> None:
    entered, release = asyncio.Event(), asyncio.Event()

    async def callback(request: PermissionRequest) -> PermissionDecision:
        entered.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return PermissionDecision(decision=Decision.ALLOW_ONCE)

    asking = asyncio.create_task(new_guard(callback).require(CALL, TOOL, ASKS, RUN, Record()))
    await entered.wait()
    asking.cancel()
    await asyncio.wait([asking], timeout=50)
    assert asking.cancelled()
    release.set()
    await asyncio.sleep(0)


async def test_questions_of_several_runs_are_asked_side_by_side() -> None:
    both = asyncio.Barrier(2)

    async def callback(request: PermissionRequest) -> PermissionDecision:
        await both.wait()
        return PermissionDecision(decision=Decision.ALLOW_ONCE)

    guard = new_guard(callback)
    async with asyncio.timeout(50):
        await asyncio.gather(*(guard.require(CALL, TOOL, ASKS, RUN, Record()) for _ in range(2)))


async def test_a_host_the_policy_refuses_is_not_asked_for() -> None:
    user = User()
    guard = new_guard(user, network_policy={"default": "deny"})
    tool = TOOL.model_copy(update={"tags": {"network"}})
    call = CALL.model_copy(update={"arguments": {"to": [{"where": "evil.example"}]}})
    with pytest.raises(PermissionDeniedError, match=r"evil\.example"):
        await guard.require(call, tool, Access(), RUN, Record())
    assert user.asked == []


def reader(**changes: Any) -> ToolDefinition:
    fields = {"name": "own.tool", "description": "", "permission": ToolPermission.READONLY}
    return ToolDefinition.model_validate(fields | changes)


def calling(**arguments: Any) -> ToolCall:
    return CALL.model_copy(update={"arguments": arguments})


@together("reason", ["sensitive", "outside_roots", "program_home"])
async def test_a_call_with_a_reason_is_asked_for_whatever_was_allowed(reason: str) -> None:
    user = User(*["allow_for_session"] * 5)
    guard = new_guard(user)
    await guard.require(CALL, TOOL, ASKS, RUN, Record())
    with_reason = replace(ASKS, reason=reason)
    await guard.require(CALL, TOOL, with_reason, RUN, Record())
    await guard.require(CALL, TOOL, with_reason, RUN, Record())
    assert len(user.asked) == 3
    assert user.asked[1].target_scope == "this call only"


async def test_an_answer_to_a_call_with_a_reason_covers_no_call_without_one() -> None:
    user = User(*["allow_for_session"] * 2)
    guard = new_guard(user)
    await guard.require(CALL, TOOL, replace(ASKS, reason="sensitive"), RUN, Record())
    await guard.require(CALL, TOOL, ASKS, RUN, Record())
    assert len(user.asked) == 2


@together(
    "tool",
    [
        TOOL,
        reader(tags={"dangerous"}),
        reader(tags={"network"}),
        TOOL.model_copy(update={"tags": {"network"}}),
    ],
)
async def test_a_tool_without_a_scope_of_its_own_is_remembered_with_its_arguments(
    tool: ToolDefinition,
) -> None:
    user = User(*["allow_for_session"] * 9)
    guard = new_guard(user)
    asks = Access(asks=True)
    for _ in range(2):
        await guard.require(calling(a=1, b=[2]), tool, asks, RUN, Record())
    await guard.require(calling(b=[2], a=1), tool, asks, RUN, Record())
    assert len(user.asked) == 1
    for other in ({"a": 1}, {"a": 1, "b": [2, 3]}, {"a": "1", "b": [2]}, {"a": True, "b": [2]}):
        await guard.require(calling(**other), tool, asks, RUN, Record())
    assert len(user.asked) == 5
    assert user.asked[0].target_scope == f'{tool.name} with exactly {{"a": 1, "b": [2]}}'


async def test_what_a_question_cuts_off_is_still_distinguished() -> None:
    user = User(*["allow_for_session"] * 2)
    guard = new_guard(user)
    long = "x" * 50_000
    for end in ("one", "two", "one"):
        await guard.require(calling(text=long + end), TOOL, Access(asks=True), RUN, Record())
    assert len(user.asked) == 2
    first, second = (str(request.target_scope) for request in user.asked)
    assert "SHA-256" in first
    assert "(+" in first
    assert first != second


async def test_a_tool_that_only_reads_is_remembered_as_a_whole() -> None:
    user = User("allow_for_session")
    guard = new_guard(user, readonly_default="ask")
    for number in range(3):
        await guard.require(calling(a=number), reader(), Access(), RUN, Record())
    assert [request.target_scope for request in user.asked] == ["every call of own.tool"]


@together(
    "changed",
    [
        {"description": "other"},
        {"input_schema": {"type": "object"}},
        {"permission": ToolPermission.WRITE},
        {"tags": {"network"}},
        {"metadata": {"version": "2"}},
    ],
)
async def test_a_tool_that_changed_is_asked_for_again(changed: dict[str, Any]) -> None:
    user = User(*["allow_for_session"] * 2)
    guard = new_guard(user, readonly_default="ask")
    for tool in (reader(), reader(), reader(**changed)):
        await guard.require(calling(), tool, Access(asks=True), RUN, Record())
    assert len(user.asked) == 2


async def test_an_answer_for_hosts_covers_these_hosts_only() -> None:
    user = User(*["allow_for_session"] * 4)
    guard = new_guard(user)
    tool = reader(tags={"network"})
    for page in ("https://a.example/1", "https://a.example/2", "https://a.example/?b.example"):
        await guard.require(calling(url=page), tool, Access(asks=True), RUN, Record())
    both = calling(url="https://a.example", also="b.example")
    await guard.require(both, tool, Access(asks=True), RUN, Record())
    assert [request.network_host for request in user.asked] == ["a.example", "a.example,b.example"]


async def test_calls_side_by_side_never_run_unasked() -> None:
    entered: list[PermissionRequest] = []
    release = asyncio.Event()

    async def callback(request: PermissionRequest) -> PermissionDecision:
        entered.append(request)
        await release.wait()
        return PermissionDecision(decision=Decision.ALLOW_FOR_SESSION)

    guard = new_guard(callback)
    waiting = [
        asyncio.create_task(guard.require(CALL, TOOL, ASKS, RUN, Record())) for _ in range(2)
    ]
    while len(entered) < 2:  # noqa: ASYNC110 - both questions are put before one is answered
        await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    release.set()
    await asyncio.gather(*waiting)
    await guard.require(CALL, TOOL, ASKS, RUN, Record())
    assert len(entered) == 2


async def test_i10_the_request_tells_who_asks_for_what() -> None:
    user = User("allow_once")
    run = RunIdentity(
        session_id="s1",
        agent_id="a2",
        run_id="r2",
        role=AgentRole.SUB,
        parent_agent_id="a1",
        parent_run_id="r1",
    )
    access = Access(
        asks=True,
        scope="/usr/bin/make /p",
        summary='["make", "all"]',
        target="/usr/bin/make all",
        cwd="/p/sub",
        env_names=("PATH", "HOME"),
        dangerous=True,
        diff="--- a\n+++ b\n",
    )
    tool = TOOL.model_copy(update={"tags": {"code", "dangerous"}})
    await new_guard(user).require(CALL, tool, access, run, Record())
    asked = user.asked[0]
    assert (asked.agent_id, asked.run_id) == ("a2", "r2")
    assert (asked.parent_agent_id, asked.parent_run_id) == ("a1", "r1")
    assert (asked.agent_role, asked.cwd, asked.env_summary) == ("sub", "/p/sub", "PATH, HOME")
    assert (asked.target_scope, asked.tags) == (
        "code.write_file: /usr/bin/make /p",
        {"code", "dangerous"},
    )
    assert asked.dangerous
    assert asked.suggested_decision is Decision.DENY
    assert asked.metadata == {
        "project": "/p",
        "sandbox": "off",
        "tool_call_id": "call_1",
        "agent_path": ["a1", "a2"],
        "target": "/usr/bin/make all",
        "diff": "--- a\n+++ b\n",
        "diff_is_whole": True,
    }


async def test_the_places_that_are_the_reason_are_named_in_the_question() -> None:
    user = User(*["allow_once"] * 2)
    places = tuple(f"/elsewhere/{number}" for number in range(60))
    access = replace(ASKS, reason="outside_roots", places=places)
    await new_guard(user).require(CALL, TOOL, access, RUN, Record())
    asked = user.asked[0]
    assert asked.metadata["reason"] == "outside_roots"
    assert asked.metadata["places"][0] == "/elsewhere/0"
    assert asked.metadata["places"][-1] == "… (+10 more)"
    assert asked.suggested_decision is Decision.DENY


async def test_a_request_hides_secrets_and_hides_nothing_else() -> None:
    user = User("allow_once")
    journal = Record()
    access = Access(
        asks=True,
        summary=f"echo {SECRET}\n\x1b[2J\u202e\u200b\U000e0041 password=hunter2 \udc80",
        target="/p/a\rb",
        diff=f"+{SECRET}\n+\x1b]0;title\x07\n" + "x" * MAX_DIFF,
    )
    await new_guard(user).require(CALL, TOOL, access, RUN, journal)
    asked = user.asked[0]
    assert asked.args_summary == (
        r"echo [redacted:KEY]\n\x1b[2J\u202e\u200b\U000e0041 password=[redacted:password] \udc80"
    )
    assert asked.metadata["target"] == r"/p/a\rb"
    assert asked.metadata["diff"].startswith("+[redacted:KEY]\n+\\x1b]0;title\\x07\n")
    assert asked.metadata["diff"].endswith("characters)")
    assert SECRET not in str(journal.events)


async def test_a_long_summary_is_cut_with_a_mark() -> None:
    user = User("allow_once")
    access = Access(asks=True, summary="x" * (MAX_SUMMARY + 5))
    await new_guard(user).require(CALL, TOOL, access, RUN, Record())
    assert user.asked[0].args_summary == "x" * MAX_SUMMARY + "… (+5 characters)"


async def test_the_question_shows_the_summary_of_a_hook_that_let_the_call_pass() -> None:
    user = User("deny")
    summary = {"event": "PreToolUse", "command": "check", "decision": "allow", "reason": SECRET}
    with pytest.raises(PermissionDeniedError):
        await new_guard(user).require(
            CALL, TOOL, replace(ASKS, hook_summary=summary), RUN, Record()
        )
    shown = user.asked[0].hook_summary
    assert shown is not None
    assert shown["command"] == "check"
    assert SECRET not in shown["reason"]
