"""Runs one hook: JSON in, JSON out, with the limits of a command."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError

from agent_core.config.models import HooksConfig, ToolsConfig
from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.hooks.config import Hook, HookEvent, HookFile
from agent_core.hooks.matching import matches
from agent_core.process import Command, CompletedProcess, Launcher, run
from agent_core.types import (
    Frozen,
    ToolCall,
    ToolDefinition,
)

_SHELL = "/bin/sh"
MOST_SHOWN = 2000
"""Characters that are kept of what a hook complains about, and of each part of its answer."""


class HookAnswer(Frozen):
    """What a hook prints; nothing at all means allow."""

    decision: Literal["allow", "deny"] = "allow"
    reason: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
    logs: list[str] | str = Field(default_factory=list[str])

    def shortened(self) -> Self:
        """The answer as it is recorded and shown: every part of a bounded size."""
        logs = self.logs if isinstance(self.logs, str) else "\n".join(self.logs)
        is_long = len(logs) > MOST_SHOWN
        changes: dict[str, Any] = {"logs": _cut(logs) if is_long else self.logs}
        if self.reason is not None:
            changes["reason"] = _cut(self.reason)
        size = len(json.dumps(self.metadata))
        if size > MOST_SHOWN:
            changes["metadata"] = {"left_out": f"{size} bytes; at most {MOST_SHOWN} are kept"}
        return self.model_copy(update=changes)


class HookError(AgentCoreError):
    """A hook could not be run, or did not answer in a way that can be read."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.HOOK_FAILED, message)


class HookRunner:
    """The hooks of one runtime.

    Args:
        file: what `load_hooks` has read; None without hooks.
        hooks: the default timeout, and whether hooks run at all.
        tools: the limits of commands, which hooks share.
        project: where hooks run, resolved.
        env: all that hooks see of the environment.
        launcher: starts them.
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
    ) -> None:
        self.project = project
        self._file = file if hooks.enabled else None
        self._default_timeout_ms = hooks.default_timeout_ms
        self._limits = tools
        self._env = dict(env)
        self._launcher = launcher
        self._started: set[str] = set()

    def begins(self, session_id: str) -> bool:
        """Whether this is the session's first run in this process."""
        is_new = session_id not in self._started
        self._started.add(session_id)
        return is_new

    def chosen(
        self, event: HookEvent, call: ToolCall | None, definition: ToolDefinition | None
    ) -> Iterator[Hook]:
        """The hooks that hear of this, in the order of the file."""
        for group in self._file.groups(event) if self._file else ():
            if matches(group.matcher, call, definition, project=self.project):
                yield from group.hooks

    async def ask(self, hook: Hook, facts: Mapping[str, Any]) -> tuple[HookAnswer, str]:
        """Run one hook; returns its answer and what it wrote to stderr.

        Raises:
            HookError: it did not start, ran too long, ended badly or answered unreadably.
        """
        timeout_ms = hook.timeout_ms or self._default_timeout_ms
        timeout_ms = min(timeout_ms, self._limits.max_timeout_ms)
        try:
            stdin = json.dumps(facts, default=str).encode()
            finished = await run(
                Command(
                    argv=[_SHELL, "-c", hook.command],
                    cwd=self.project,
                    env=self._env,
                    stdin=stdin,
                ),
                launcher=self._launcher,
                timeout_s=timeout_ms / 1000,
                stdout_limit_bytes=self._limits.stdout_limit_bytes,
                stderr_limit_bytes=self._limits.stderr_limit_bytes,
            )
        except (AgentCoreError, OSError, ValueError, RecursionError) as error:
            raise HookError(f"it cannot be run: {error}") from error
        finished.discard()
        return _answer(finished, timeout_ms), finished.stderr.text.strip()


def last_shown(text: str) -> str:
    """The end of what a hook wrote."""
    return text if len(text) <= MOST_SHOWN else f"…{text[-MOST_SHOWN:]}"


def _answer(finished: CompletedProcess, timeout_ms: int) -> HookAnswer:
    complaints = last_shown(finished.stderr.text.strip())
    if finished.timed_out:
        raise HookError(f"it did not end within {timeout_ms} ms")
    if finished.exit_code != 0:
        raise HookError(f"it ended with exit code {finished.exit_code}: {complaints}")
    said = finished.stdout.text.strip()
    if not said:
        return HookAnswer()
    if finished.stdout.truncated:
        raise HookError(f"its answer has {finished.stdout.size_bytes} bytes, which is too long")
    try:
        return HookAnswer.model_validate_json(said).shortened()
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = "".join(f"{part}: " for part in first["loc"])
        raise HookError(f"its answer cannot be read: {place}{first['msg']}"[:MOST_SHOWN]) from error


def _cut(text: str) -> str:
    left_out = len(text) - MOST_SHOWN
    return text if left_out <= 0 else f"{text[:MOST_SHOWN]}… (+{left_out} characters)"
