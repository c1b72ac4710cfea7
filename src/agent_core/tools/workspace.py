"""What the code tools share: where they are, what they may do, how much, and how one is defined."""

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from inspect import cleandoc
from pathlib import Path
from typing import Protocol, Self

from agent_core.config.models import ToolsConfig
from agent_core.config.paths import Setup
from agent_core.disk.unfinished import UnfinishedWrites
from agent_core.errors import ErrorCode
from agent_core.process import Launcher, Output
from agent_core.tools.base import ArtifactWriter, Prepare, Tool, ToolContext
from agent_core.tools.files import FileVersionTracker
from agent_core.tools.handler import model_tool
from agent_core.tools.paths import PathPolicy, ResolvedPath
from agent_core.tools.schema import Arguments
from agent_core.types import (
    Access,
    ContentBlock,
    Draft,
    ErrorPayload,
    ToolPermission,
    ToolResult,
)


@dataclass(frozen=True, slots=True)
class Reading:
    """What reading a file means to the conversation, beyond the text in the result.

    Attributes:
        already_loaded: the conversation has this very version of the file.
        adds: what to put into the conversation.
    """

    already_loaded: bool = False
    adds: Sequence[Draft] = ()


class ReadingRegister(Protocol):
    """Recognises files that are more than files, such as instructions."""

    def in_order(self, path: Path, /) -> AbstractAsyncContextManager[None]:
        """Held while the file at this resolved path is read.

        Reads that mean something to the conversation take place in the order of their calls.
        """
        ...

    async def note(self, path: Path, context: ToolContext, /) -> Reading:
        """Called with the resolved path of a text file that was just read."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """The collaborators of the code tools, the same for every call.

    Attributes:
        boundaries: where things are, and where writing needs a question or is out of the question.
        limits: sizes and times.
        env: all that commands see of the environment.
        asks_to_read: reading asks too (`permissions.readonly_default = "ask"`).
        plans_dir: in this folder file names are restricted, and nothing is overwritten.
        register: recognises instruction files.
        seen: which versions of files the agents know.
        launcher: starts programs.
        unfinished: notes of writes in progress.
    """

    boundaries: PathPolicy
    limits: ToolsConfig = field(default_factory=ToolsConfig)
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    asks_to_read: bool = False
    plans_dir: Path | None = None
    register: ReadingRegister | None = None
    seen: FileVersionTracker = field(default_factory=FileVersionTracker)
    launcher: Launcher = field(default_factory=Launcher)
    unfinished: UnfinishedWrites

    @classmethod
    def of(
        cls,
        setup: Setup,
        *,
        launcher: Launcher,
        environ: Mapping[str, str] = os.environ,
        register: ReadingRegister | None = None,
    ) -> Self:
        """The workspace a configuration describes."""
        tools = setup.config.tools
        return cls(
            boundaries=PathPolicy.of(setup),
            limits=tools,
            env={name: environ[name] for name in tools.env_allowlist if name in environ},
            asks_to_read=setup.config.permissions.readonly_default == "ask",
            launcher=launcher,
            unfinished=UnfinishedWrites.at(setup.home),
            plans_dir=setup.plans_dir,
            register=register,
        )

    def look(self, place: ResolvedPath, *, summary: str) -> Access:
        """What reading takes: a question if a place may hold a secret or is the program's own."""
        own = "program_home" if place.is_own else None
        return Access(
            asks=place.is_closed or self.asks_to_read,
            scope=str(place.path),
            summary=summary,
            target=str(place.path),
            reason="sensitive" if place.sensitive else own,
        )

    def change(self, place: ResolvedPath, *, summary: str, diff: str | None) -> Access:
        """What writing a file takes: always a question; a refusal of its own outside the roots.

        Agreeing for the session covers the files of the same folder that need no reason of their
        own to be asked for.
        """
        reason = "sensitive" if place.sensitive else None
        refusal = ErrorCode.PERMISSION_DENIED
        if not place.writable:
            reason, refusal = "outside_roots", ErrorCode.WRITE_OUTSIDE_ALLOWED_ROOTS
        return Access(
            asks=True,
            scope=f"the files in {place.path.parent}, not below it",
            summary=summary,
            target=str(place.path),
            reason=reason,
            diff=diff,
            refusal=refusal,
        )


def code_tool(
    name: str,
    arguments: type[Arguments],
    prepare: Prepare,
    *,
    permission: ToolPermission = ToolPermission.READONLY,
    tag: str = "filesystem",
    keeps_own_limits: bool = False,
) -> Tool:
    """A `code.*` tool, described by the docstring of its argument model.

    Args:
        name: without the `code.` in front.
        arguments: what `prepare` takes; its schema is what the model sees.
        prepare: works out what a call would touch, without doing it.
        permission: whether it only reads.
        tag: beside `code` and the permission.
        keeps_own_limits: the general limit of results does not apply.
    """
    return model_tool(
        f"code.{name}",
        cleandoc(arguments.__doc__ or ""),
        arguments,
        prepare,
        permission=permission,
        tags={"code", permission.value, tag},
        keeps_own_limits=keeps_own_limits,
        is_side_effect_free=permission is ToolPermission.READONLY,
    )


async def keep_output(output: Output, name: str, artifact: ArtifactWriter) -> str | None:
    """Make an artifact of output that was cut; its id, or None if all of it is in the text.

    Args:
        output: what a program wrote to one stream; its spool file is read.
        name: the stream, for people.
        artifact: the writer of the call's context.
    """
    if output.spool is None:
        return None
    summary = f"{name} of a command, {output.size_bytes} bytes"
    return await artifact(
        output.spool, filename=f"{name}.txt", mime_type="text/plain", summary=summary
    )


def timeout_result(program: str, timeout_ms: int, content: Sequence[ContentBlock]) -> ToolResult:
    """The answer for a program whose time was up, with what it had written until then."""
    error = ErrorPayload(
        type="ToolError",
        code=ErrorCode.TIMEOUT,
        message=f"{program} was stopped after {timeout_ms} ms",
        details={"timed_out": True, "timeout_ms": timeout_ms},
    )
    return ToolResult(content=list(content), is_error=True, error=error)
