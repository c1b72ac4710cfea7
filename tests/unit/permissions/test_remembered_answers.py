"""What a question says an answer covers is what is stored, and what is let through afterwards."""

import asyncio
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from agent_core.errors import PermissionDeniedError
from agent_core.permissions.gate import PermissionGate
from agent_core.permissions.request import coverage_of
from agent_core.types import (
    Access,
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
from sweeps import examples
from tables import together


@dataclass(frozen=True)
class Call:
    """A call, and what it would do."""

    kind: str
    name: str
    words: tuple[str, ...]
    reason: str | None
    session: str

    @property
    def definition(self) -> ToolDefinition:
        tags = {"write": {"code"}, "run": {"code", "dangerous"}, "served": {"mcp"}}
        reads = self.kind == "look"
        permission = ToolPermission.READONLY if reads else ToolPermission.WRITE
        return ToolDefinition(
            name=f"t.{self.kind}",
            description="",
            permission=permission,
            tags=tags.get(self.kind, set()),
        )

    @property
    def access(self) -> Access:
        line, folder = shlex.join(self.words), self.words[0]
        path = f"/p/{folder}/{self.name}"
        scope = {
            "write": f"the files in /p/{folder}, not below it",
            "run": f"exactly: {line}",
            "look": path,
        }
        return Access(
            asks=True,
            scope=scope.get(self.kind, ""),
            target=path if self.kind in {"write", "look"} else line,
            dangerous=self.kind == "run",
            reason=self.reason,
            paths=(path,) if self.kind in {"write", "look"} else (),
        )

    @property
    def means(self) -> tuple[Any, ...]:
        """What has to be the same in two calls, so that one answer is for both."""
        shared = {
            "write": self.words[0],
            "run": self.words,
            "look": (self.words[0], self.name),
            "served": (self.words, self.name),
        }
        return self.session, self.kind, shared[self.kind]


class Silent:
    def note(
        self,
        event_type: EventType,
        payload: Mapping[str, Any] | None = None,
        *,
        level: EventLevel = EventLevel.INFO,
        tool_call_id: str | None = None,
    ) -> None:
        """Keep nothing."""

    async def commit(self) -> None:
        """Have nothing to store."""


words = st.sampled_from(["a", "b", "a b", "'", "*", "--x", "\u00e9"])
ANSWERS = [Decision.ALLOW_ONCE, Decision.ALLOW_FOR_SESSION, Decision.DENY]
"""These calls take no wider answer."""

made_calls = st.builds(
    Call,
    kind=st.sampled_from(["write", "run", "look", "served"]),
    name=st.sampled_from(["x", "y"]),
    words=st.lists(words, min_size=1, max_size=3).map(tuple),
    reason=st.sampled_from([None, None, None, "sensitive"]),
    session=st.sampled_from(["s1", "s2"]),
)


@pytest.mark.long
@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.tuples(made_calls, st.sampled_from(ANSWERS)), min_size=2, max_size=8))
def test_a_call_passes_unasked_if_and_only_if_an_answer_before_covers_it(
    history: list[tuple[Call, Decision]],
) -> None:
    asyncio.run(replay(history))


async def replay(history: list[tuple[Call, Decision]]) -> None:
    asked: list[PermissionRequest] = []
    answer = Decision.DENY

    async def callback(request: PermissionRequest) -> PermissionDecision:
        asked.append(request)
        return PermissionDecision(decision=answer)

    guard = PermissionGate(callback)
    granted: dict[tuple[Any, ...], str] = {}
    for made, answer in history:
        run = RunIdentity(session_id=made.session, agent_id="a", run_id="r")
        arguments = {"words": list(made.words), "name": made.name}
        call = ToolCall(tool_call_id="c", name=made.definition.name, arguments=arguments)
        count = len(asked)
        verdict = await guard.decide(call, made.definition, made.access, run)
        try:
            await guard.require(call, made.definition, made.access, run, Silent())
            passed = True
        except PermissionDeniedError:
            passed = False
        is_covered = made.reason is None and made.means in granted
        assert (len(asked) == count) is is_covered
        assert verdict.decision == ("allow" if is_covered else "ask")
        assert passed is (is_covered or answer is not Decision.DENY)
        if is_covered:
            assert verdict.grant is not None
            assert verdict.grant.covers == granted[made.means]
        elif answer is Decision.ALLOW_FOR_SESSION and made.reason is None:
            granted[made.means] = str(asked[-1].target_scope)
        elif made.reason is not None:
            assert asked[-1].target_scope == "this call only"
    stored = sorted(grant.covers for grant in await guard.grants.grants())
    assert stored == sorted(granted.values())


class Slow(Silent):
    """Stores a question only when it may."""

    def __init__(self) -> None:
        self.may_go_on = asyncio.Event()

    async def commit(self) -> None:
        """Wait."""
        await self.may_go_on.wait()


async def test_a_question_that_was_covered_meanwhile_is_put_to_nobody() -> None:
    asked: list[PermissionRequest] = []

    async def callback(request: PermissionRequest) -> PermissionDecision:
        asked.append(request)
        return PermissionDecision(decision=Decision.ALLOW_FOR_SESSION)

    guard, slow = PermissionGate(callback), Slow()
    made = Call("run", "x", ("a",), None, "s1")
    run = RunIdentity(session_id="s1", agent_id="a", run_id="r")
    call = ToolCall(tool_call_id="c", name=made.definition.name, arguments={})
    late = asyncio.create_task(guard.require(call, made.definition, made.access, run, slow))
    await asyncio.sleep(0)
    await guard.require(call, made.definition, made.access, run, Silent())
    slow.may_go_on.set()
    await late
    assert len(asked) == 1


@together(
    ("scope", "is_told"),
    [("t.run: exactly: a", True), ("t.run: [redacted:KEY]", False), (r"t.run: \x1b", False)],
)
def test_words_that_may_stand_for_others_cover_no_other_question(scope: str, is_told: bool) -> None:
    request = PermissionRequest.model_construct(tool_name="t.run", target_scope=scope, metadata={})
    assert (coverage_of(request, Decision.ALLOW_FOR_SESSION) is not None) is is_told
    assert coverage_of(request, Decision.ALLOW_ONCE) is None
