"""Run the user's hooks at fixed points of a run; `on_failure` says what a failed hook means."""

import asyncio
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import takewhile
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from agent_core.aio import finish_soon
from agent_core.config.models import HooksConfig, ToolsConfig
from agent_core.errors import AgentCoreError, ErrorCode, PermissionDeniedError, ToolError
from agent_core.events import Journal
from agent_core.extensions import Extension, ExtensionContext, Rank, RunTool
from agent_core.hooks.answer import HookAnswer, HookError, last_part, read_answer
from agent_core.hooks.file import HookCommand, HookFile, HookPoint, matches
from agent_core.process import Command, Launcher, run
from agent_core.process.environment import HOOK
from agent_core.process.starts import explain_exit
from agent_core.providers.requests import result_text
from agent_core.text.json_text import JsonObject, JsonValue
from agent_core.tools.base import ToolReturn
from agent_core.types import (
    EFFECT_UNKNOWN,
    AgentRole,
    EventLevel,
    EventType,
    Node,
    RunIdentity,
    ToolCall,
    ToolDefinition,
    ToolResult,
)

if TYPE_CHECKING:
    from agent_core.process.sandbox import Sandbox

logger = logging.getLogger(__name__)

_SHELL = "/bin/sh"
_GRACE_S = 4.0
"""Seconds that the hooks after a call have left when the run is cancelled."""


class HookRunner:
    """The hooks of one runtime: JSON in, JSON out, with the limits of a command.

    Args:
        file: the result of `load_hooks`; None without hooks.
        hooks: the default timeout, and the switch for all hooks.
        tools: the limits of commands, which hooks share.
        project: where hooks run, resolved.
        env: the environment of hooks, which also names their event.
        launcher: starts them.
        sandbox: confines them; None for no confinement.
    """

    def __init__(
        self,
        file: HookFile | None,
        *,
        hooks: HooksConfig,
        tools: ToolsConfig,
        project: Path,
        env: Mapping[str, str],
        launcher: Launcher,
        sandbox: "Sandbox | None" = None,
    ) -> None:
        self.project = project
        self.file = file
        self._file = file if hooks.enabled else None
        self._default_timeout_ms = hooks.default_timeout_ms
        self._limits = tools
        self._env = dict(env)
        self._launcher = launcher
        self._sandbox = sandbox
        self._started: set[str] = set()

    @property
    def is_on(self) -> bool:
        """Return whether there are hooks, and the settings do not turn them off."""
        return self._file is not None and any(self._file.hooks.values())

    def begins(self, session_id: str) -> bool:
        """Return whether this is the session's first run in this process, and remember it."""
        is_new = session_id not in self._started
        self._started.add(session_id)
        return is_new

    def select(
        self, point: HookPoint, call: ToolCall | None, definition: ToolDefinition | None
    ) -> Iterator[HookCommand]:
        """Yield the hooks to run here, in the order of the file."""
        for group in self._file.hooks.get(point, ()) if self._file else ():
            if matches(group.matcher, call, definition, project=self.project):
                yield from group.hooks

    async def ask(
        self, point: HookPoint, hook: HookCommand, facts: Mapping[str, JsonValue]
    ) -> tuple[HookAnswer, str]:
        """Run one hook, and return its answer and its text on stderr.

        Raises:
            HookError: it did not start, ran too long, ended badly or answered unreadably.
            ToolError: `tool_not_available`; the sandbox is required, and cannot be set up.
        """
        timeout_ms = hook.timeout_ms or self._default_timeout_ms
        timeout_ms = min(timeout_ms, self._limits.max_timeout_ms)
        plan = self._sandbox and await asyncio.to_thread(self._sandbox.plan, "own")
        try:
            stdin = json.dumps(facts, default=str).encode()
            argv = [_SHELL, "-c", hook.command]
            env = self._env | {HOOK: point.value}
            command = Command(argv=argv, cwd=self.project, env=env, stdin=stdin)
            async with plan.confine(command) if plan else nullcontext(command) as command:
                finished = await run(
                    command,
                    launcher=self._launcher,
                    timeout_s=timeout_ms / 1000,
                    stdout_limit_bytes=self._limits.stdout_limit_bytes,
                    stderr_limit_bytes=self._limits.stderr_limit_bytes,
                )
        except (AgentCoreError, OSError, ValueError, RecursionError) as error:
            raise HookError(f"it cannot be run: {error}") from error
        stderr = finished.stderr.text.strip()
        try:
            answer = await asyncio.to_thread(read_answer, finished, timeout_ms, point)
        except HookError as error:
            why = explain_exit(finished.exit_code, argv, stderr, cwd=self.project, env=self._env)
            raise HookError(f"{error.message}; {why}" if why else error.message) from error
        finally:
            finished.discard()
        return answer, stderr


class RunHooks(Extension):
    """The hooks of one run, at the points where the loop calls them."""

    rank = Rank.HOOKS

    def __init__(self, runner: HookRunner, identity: RunIdentity, journal: Journal) -> None:
        self._runner = runner
        self._run = identity
        self._journal = journal
        self._is_users = identity.parent_run_id is None
        self._definitions: dict[str, ToolDefinition] = {}
        self._begun: set[str] = set()
        self._warned: set[HookPoint] = set()

    async def run_started(self, context: ExtensionContext) -> None:  # noqa: ARG002
        """Run the hooks of a session's first run in this process, and of calls cut by a crash."""
        interrupted = list(_interrupted_calls(self._journal.path, self._run.run_id))
        if self._is_users and self._runner.begins(self._run.session_id):
            await self._run_hooks(HookPoint.SESSION_START)
        for call, result in interrupted:
            await self._run_after(call, result, "unknown")

    async def on_message(self, context: ExtensionContext, message: str) -> None:  # noqa: ARG002
        """Run the hooks for a message of the user; tasks between agents have no such hooks."""
        if self._is_users:
            await self._run_hooks(HookPoint.USER_PROMPT_SUBMIT, prompt=message)

    async def before_tool_call(
        self,
        context: ExtensionContext,  # noqa: ARG002
        call: ToolCall,
        definition: ToolDefinition,
    ) -> Mapping[str, JsonValue] | None:
        """Ask the hooks about a call, and return the summary of the last answer.

        Raises:
            PermissionDeniedError: a hook denied it; `details.hook_summary` says which and why.
        """
        self._definitions[call.tool_call_id] = definition
        summary = await self._run_hooks(HookPoint.PRE_TOOL_USE, call=call, definition=definition)
        if summary is not None and summary["decision"] == "deny":
            raise PermissionDeniedError(
                ErrorCode.PERMISSION_DENIED,
                f"a hook refused {call.name}: {summary['reason']}",
                details={"reason": "hook_denied", "hook_summary": summary},
            )
        return summary

    async def wrap_tool_call(
        self,
        context: ExtensionContext,  # noqa: ARG002
        call: ToolCall,
        proceed: RunTool,
    ) -> ToolReturn:
        """Note that a call begins."""
        self._begun.add(call.tool_call_id)
        return await proceed()

    async def after_tool_call(
        self,
        context: ExtensionContext,  # noqa: ARG002
        call: ToolCall,
        result: ToolResult,
    ) -> None:
        """Run the hooks after a call that began; `result` is the stored one, without large parts.

        If the run is cancelled, they have a few seconds to end.
        """
        call_id = call.tool_call_id
        if call_id in self._begun:
            self._begun.discard(call_id)
            definition = self._definitions.get(call_id)
            if any(self._runner.select(HookPoint.POST_TOOL_USE, call, definition)):
                await finish_soon(self._run_after(call, result, _outcome_of(result)), _GRACE_S)
        self._definitions.pop(call_id, None)

    async def _run_after(self, call: ToolCall, result: ToolResult, outcome: str) -> None:
        await self._run_hooks(
            HookPoint.POST_TOOL_USE,
            call=call,
            definition=self._definitions.get(call.tool_call_id),
            outcome=outcome,
            result=result.model_dump(mode="json"),
            result_text=result_text(result),
        )

    async def before_stop(
        self,
        context: ExtensionContext,  # noqa: ARG002
        answer: str,
    ) -> str | None:
        """Ask the hooks if the run may end, and return the reason if not."""
        if self._run.role is AgentRole.COMPACT:
            return None  # it has no tools to act on an objection
        mine = (node for node in self._journal.path if node.run_id == self._run.run_id)
        denied_before = sum(node.metadata.get("reason") == "stop_hook" for node in mine)
        summary = await self._run_hooks(
            HookPoint.STOP, result_text=answer, denied_before=denied_before
        )
        return summary["reason"] if summary is not None and summary["decision"] == "deny" else None

    async def _run_hooks(
        self,
        point: HookPoint,
        *,
        call: ToolCall | None = None,
        definition: ToolDefinition | None = None,
        **more: Any,
    ) -> dict[str, Any] | None:
        """Run the hooks of this point up to the first effective objection.

        Returns:
            The `hook_summary` of the last answer; None if no hook has answered.
        """
        run, summary = self._run, None
        facts: dict[str, Any] = {
            "event": point.value,
            "session_id": run.session_id,
            "run_id": run.run_id,
            "agent_id": run.agent_id,
            "agent_role": run.role.value,
            "cwd": str(self._runner.project),
        }
        if call is not None:
            facts["tool_call_id"] = call.tool_call_id
            facts["tool_name"] = call.name
            facts["arguments"] = call.arguments
        for hook in self._runner.select(point, call, definition):
            await self._journal.commit()  # a command must only run after its event is stored
            answer = await self._ask(point, hook, call, facts | more)
            if answer is None:
                continue
            denies = answer.decision == "deny" and point.may_deny
            objection = (answer.reason or "").strip() or "no reason was given"
            summary = {
                "event": point.value,
                "command": hook.command,
                "decision": "deny" if denies else "allow",
                "reason": objection if denies else answer.reason,
            }
            if denies:
                break
        return summary

    async def _ask(
        self,
        point: HookPoint,
        hook: HookCommand,
        call: ToolCall | None,
        facts: Mapping[str, JsonValue],
    ) -> HookAnswer | None:
        """Run one hook, record its result, and return its answer; None if it failed.

        Raises:
            ToolError: `tool_not_available`: a hook before a call cannot be confined.
        """
        started = perf_counter()
        payload: JsonObject = {"event": point.value, "command": hook.command}

        def note(event: EventType, **more: Any) -> None:
            call_id = call.tool_call_id if call else None
            facts = payload | more
            self._journal.note(event, facts, level=EventLevel.DEBUG, tool_call_id=call_id)

        note(EventType.HOOK_STARTED)
        try:
            answer, stderr = await self._runner.ask(point, hook, facts)
        except asyncio.CancelledError:
            stopped = "it was stopped, because the run was cancelled"
            code, duration_ms = ErrorCode.CANCELLED, _since(started)
            note(EventType.HOOK_FAILED, code=code, error=stopped, duration_ms=duration_ms)
            raise
        except (HookError, ToolError) as error:
            shown = self._journal.clean(f"{point.value} hook {hook.command!r} failed: {error}")
            logger.warning("the %s", shown)
            denies = hook.on_failure == "deny" and point.may_deny
            facts_of_failure: JsonObject = {"code": error.code, "error": error.message}
            if denies:
                facts_of_failure["decision"] = "deny"
            note(EventType.HOOK_FAILED, **facts_of_failure, duration_ms=_since(started))
            if denies:
                reason = f'the hook failed, and its on_failure is "deny": {error.message}'
                return HookAnswer(decision="deny", reason=reason)
            if isinstance(error, ToolError) and point is HookPoint.PRE_TOOL_USE:
                raise  # a guard that cannot run must not let the call pass
            return None
        if stderr:
            shown = self._journal.clean(f"{point.value} hook {hook.command!r} wrote: {stderr}")
            logger.info("the %s", shown)
        is_denial = answer.decision == "deny" and point.may_deny
        if answer.decision == "deny" and not point.may_deny:
            self._warn_once(point, hook)
        outcome = EventType.HOOK_DENIED if is_denial else EventType.HOOK_COMPLETED
        duration_ms = _since(started)
        note(outcome, **answer.model_dump(), stderr=last_part(stderr), duration_ms=duration_ms)
        return answer

    def _warn_once(self, point: HookPoint, hook: HookCommand) -> None:
        """Log that a deny at this point changes nothing, once in a run."""
        if point not in self._warned:
            self._warned.add(point)
            shown = self._journal.clean(repr(hook.command))
            message = "a deny of a %s hook has no effect (%s): only PreToolUse and Stop can deny"
            logger.warning(message, point.value, shown)


def _outcome_of(result: ToolResult) -> str:
    if not result.is_error:
        return "completed"
    code = result.error.code if result.error else None
    if code is ErrorCode.TIMEOUT:
        return "timed_out"
    return "cancelled" if code is ErrorCode.CANCELLED else "failed"


def _interrupted_calls(path: Sequence[Node], run_id: str) -> Iterator[tuple[ToolCall, ToolResult]]:
    """Yield the calls whose process died during them, and that this run has just answered."""
    added = list(takewhile(lambda node: not node.node_seq, reversed(path)))
    mine = [node for node in reversed(added) if node.run_id == run_id]  # a fork's may be others'
    results = [result for node in mine for result in node.results]
    results = [result for result in results if result.metadata.get("reason") == EFFECT_UNKNOWN]
    if not results:
        return
    calls = {call.tool_call_id: call for node in path for call in node.calls}
    for result in results:
        call = ToolCall(**calls[result.tool_call_id].model_dump(exclude={"type"}))
        yield call, ToolResult(tool_name=call.name, **result.model_dump(exclude={"type"}))


def _since(started: float) -> int:
    return round((perf_counter() - started) * 1e3)
