"""The points of a run at which its hooks are heard; what goes wrong in one is no objection."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

from agent_core.errors import ErrorCode, PermissionDeniedError
from agent_core.hooks.config import Hook, HookEvent
from agent_core.hooks.runner import HookAnswer, HookError, HookRunner, last_shown
from agent_core.types import (
    AgentRole,
    EventLevel,
    EventType,
    Node,
    RunIdentity,
    TextBlock,
    ToolCall,
    ToolDefinition,
    ToolResult,
)

logger = logging.getLogger(__name__)


class HookJournal(Protocol):
    """Where a run's hooks are written down; `path` is the conversation so far."""

    @property
    def path(self) -> Sequence[Node]: ...

    def note(
        self,
        event_type: EventType,
        payload: Mapping[str, Any] | None = None,
        *,
        level: EventLevel = EventLevel.INFO,
        tool_call_id: str | None = None,
    ) -> None:
        """Record an event; it is stored with the next commit."""
        ...

    def clean(self, value: str) -> str:
        """The text without secrets, for the log."""
        ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the hooks of an event have decided: the one that objected, else the last one."""

    event: HookEvent
    command: str
    denies: bool
    reason: str | None

    @property
    def objection(self) -> str:
        """Why not."""
        return (self.reason or "").strip() or "no reason was given"

    @property
    def summary(self) -> dict[str, Any]:
        """What `hook_summary` holds."""
        return {
            "event": self.event.value,
            "command": self.command,
            "decision": "deny" if self.denies else "allow",
            "reason": self.objection if self.denies else self.reason,
        }


class RunHooks:
    """The hooks of one run, at the points where the loop calls them."""

    def __init__(self, runner: HookRunner, identity: RunIdentity, journal: HookJournal) -> None:
        self._runner = runner
        self._run = identity
        self._journal = journal
        self._is_users = identity.parent_run_id is None
        self._definitions: dict[str, ToolDefinition] = {}

    async def session_start(self) -> None:
        """Tell of the session, once in this process."""
        if self._is_users and self._runner.begins(self._run.session_id):
            await self._tell(HookEvent.SESSION_START)

    async def user_prompt(self, text: str) -> None:
        """Tell what the user has said; tasks that agents give each other are no prompts."""
        if self._is_users:
            await self._tell(HookEvent.USER_PROMPT_SUBMIT, prompt=text)

    async def before_tool(
        self, call: ToolCall, definition: ToolDefinition
    ) -> Mapping[str, Any] | None:
        """Ask about a call that is about to be made; returns what the last hook said of it.

        Raises:
            PermissionDeniedError: a hook said no; `details.hook_summary` says which and why.
        """
        self._definitions[call.tool_call_id] = definition
        verdict = await self._tell(HookEvent.PRE_TOOL_USE, call=call, definition=definition)
        if verdict is None:
            return None
        if verdict.denies:
            raise PermissionDeniedError(
                ErrorCode.PERMISSION_DENIED,
                f"a hook refused {call.name}: {verdict.objection}",
                details={"reason": "hook_denied", "hook_summary": verdict.summary},
            )
        return verdict.summary

    async def after_tool(self, call: ToolCall, result: ToolResult) -> None:
        """Tell how a call was answered; `result` is what was stored, large parts as artifacts."""
        text = "\n".join(b.text for b in result.content if isinstance(b, TextBlock))
        await self._tell(
            HookEvent.POST_TOOL_USE,
            call=call,
            definition=self._definitions.pop(call.tool_call_id, None),
            result=result.model_dump(mode="json"),
            result_text=text,
        )

    async def before_stop(self) -> str | None:
        """Ask whether the run may end; returns the reason why not."""
        if self._run.role is AgentRole.COMPACT:
            return None  # it has no tools to act on an objection with
        path = self._journal.path
        text = path[-1].text if path else ""
        verdict = await self._tell(HookEvent.STOP, result_text=text)
        return verdict.objection if verdict is not None and verdict.denies else None

    async def _tell(
        self,
        event: HookEvent,
        *,
        call: ToolCall | None = None,
        definition: ToolDefinition | None = None,
        **more: Any,
    ) -> Verdict | None:
        """Run the hooks that hear of this; the first objection that counts ends the round.

        None if no hook has answered.
        """
        last: Verdict | None = None
        for hook in self._runner.chosen(event, call, definition):
            answer = await self._ask(event, hook, call, self._facts(event, call) | more)
            if answer is None:
                continue
            denies = answer.decision == "deny" and event.may_deny
            last = Verdict(event, hook.command, denies, answer.reason)
            if denies:
                break
        return last

    async def _ask(
        self, event: HookEvent, hook: Hook, call: ToolCall | None, facts: Mapping[str, Any]
    ) -> HookAnswer | None:
        """Run one hook and record how it went; None if it failed."""
        call_id = call.tool_call_id if call else None
        told = {"event": event.value, "command": hook.command}
        self._note(EventType.HOOK_STARTED, told, call_id)
        started = perf_counter()
        try:
            answer, complaints = await self._runner.ask(hook, facts)
        except HookError as error:
            shown = self._journal.clean(f"{event.value} hook {hook.command!r} failed: {error}")
            logger.warning("the %s", shown)
            failure = {"code": error.code, "error": error.message}
            self._note(EventType.HOOK_FAILED, told | failure | _since(started), call_id)
            return None
        if complaints:
            shown = self._journal.clean(f"{event.value} hook {hook.command!r} wrote: {complaints}")
            logger.info("the %s", shown)
        is_denial = answer.decision == "deny" and event.may_deny
        outcome = EventType.HOOK_DENIED if is_denial else EventType.HOOK_COMPLETED
        said = answer.model_dump() | {"stderr": last_shown(complaints)}
        self._note(outcome, told | said | _since(started), call_id)
        return answer

    def _facts(self, event: HookEvent, call: ToolCall | None) -> dict[str, Any]:
        run_facts: dict[str, Any] = {
            "event": event.value,
            "session_id": self._run.session_id,
            "run_id": self._run.run_id,
            "agent_id": self._run.agent_id,
            "agent_role": self._run.role.value,
            "cwd": str(self._runner.project),
        }
        if call is None:
            return run_facts
        return run_facts | {
            "tool_call_id": call.tool_call_id,
            "tool_name": call.name,
            "arguments": call.arguments,
        }

    def _note(self, outcome: EventType, payload: Mapping[str, Any], call_id: str | None) -> None:
        self._journal.note(outcome, payload, level=EventLevel.DEBUG, tool_call_id=call_id)


def _since(started: float) -> dict[str, int]:
    return {"duration_ms": round((perf_counter() - started) * 1e3)}
