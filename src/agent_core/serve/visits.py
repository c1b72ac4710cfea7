"""One request: its sender, and the runtimes it may reach."""

from collections.abc import Awaitable, Mapping
from dataclasses import replace
from typing import Any, cast

from msgspec import Struct, field
from starlette.requests import Request

from agent_core.api import AgentRuntime, RunHandle
from agent_core.api.handles import AnyDecision
from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.loop.options import NO_OPTIONS, RunOptions
from agent_core.serve.places import OnePlace, ServedFolders
from agent_core.serve.principals import Principal, Right
from agent_core.serve.problems import HttpProblem
from agent_core.serve.streams import Streams
from agent_core.types import Mode, SessionRecord, UserMessage


class Console(Struct):
    """The state that the handlers of one application share.

    Attributes:
        places: the runtimes.
        read_only: nothing can be changed.
        is_stopping: no new requests are taken.
        questions_wait: questions of runs that workers carry out wait for an answer.
        signs_out: browsers are signed in here, and can be signed out.
        streams: the open streams.
    """

    places: OnePlace | ServedFolders
    read_only: bool = False
    is_stopping: bool = False
    questions_wait: bool = False
    signs_out: bool = False
    streams: Streams = field(default_factory=Streams)


class Visit(Struct, frozen=True):
    """A request of a principal, for the handlers: `visit_of(request)`.

    Attributes:
        console: the state of the application.
        principal: the sender.
        used: the runtimes that act for the request; they stay open until it is answered.
        sessions: the sessions that it is about.
    """

    console: Console
    principal: Principal
    used: list[AgentRuntime] = []
    sessions: list[str] = []

    @property
    def runtime(self) -> AgentRuntime:
        """The runtime that reads; its methods that read get `tenant=visit.tenant`."""
        return self.console.places.reader

    @property
    def tenant(self) -> str | None:
        """The tenant whose sessions exist for the principal; None: as for the runtime."""
        return self.principal.tenant

    def require(self, right: Right) -> None:
        """Raise a 403 if the principal may not do this, or nothing may be changed.

        Raises:
            HttpProblem: 403.
        """
        if right not in self.principal.may:
            raise HttpProblem(403, f"{self.principal.name} may not {right}")
        if right in {"run", "answer"} and self.console.read_only:
            raise HttpProblem(403, "this console is read-only")

    async def session(self, session_id: str) -> SessionRecord:
        """Return a session that the principal may see.

        Raises:
            StorageError: `session_not_found`: there is none, or it is not theirs.
        """
        page = await self.runtime.replay_session(session_id, 1, 0, tenant=self.tenant)
        self.sessions.append(session_id)
        return page.session

    async def has(self, session_id: str) -> bool:
        """Return whether there is a session with this id.

        Raises:
            StorageError: `session_not_found`: there is one, and the principal may not see it.
        """
        if await _is_found(self.session(session_id)):
            return True
        if not await _is_found(self.runtime.replay_session(session_id, 1, 0)):
            return False
        await self.session(session_id)  # perhaps it was made just now
        return True

    async def acting(self, session_id: str) -> AgentRuntime:
        """Return the runtime that acts for a session that the principal may see.

        Raises:
            StorageError: `session_not_found`, `session_elsewhere`.
        """
        session = await self.session(session_id)
        return self._use(await self.console.places.of_session(session_id, session.cwd))

    async def acting_in(self, project: str | None) -> AgentRuntime:
        """Return the runtime of a folder; None is where new sessions work.

        Raises:
            HttpProblem: 403: the console does not serve the folder.
        """
        return self._use(await self.console.places.of_project(project))

    def _use(self, runtime: AgentRuntime) -> AgentRuntime:
        self.used.append(runtime)
        return runtime

    def leave(self) -> None:
        """Let go of the runtimes that the request has used."""
        for runtime in self.used:
            self.console.places.release(runtime)

    async def start(
        self,
        message: UserMessage,
        session_id: str | None = None,
        mode: Mode = "normal",
        *,
        options: RunOptions[Any] = NO_OPTIONS,
        project: str | None = None,
        is_new: bool = False,
        **placement: Any,
    ) -> RunHandle[Any]:
        """Start a run.

        The name of the principal is stored as `user` in the metadata of the run, unless the options
        name another one.

        Args:
            message: the message of the user.
            session_id: the session to continue; None begins a new one.
            mode: as for `AgentRuntime.start`.
            options: the options of the run.
            project: the folder of a new session; None: where new sessions work.
            is_new: the session with this id is to be a new one.
            placement: keywords of a Postgres database, as for `AgentRuntime.start`.

        Raises:
            HttpProblem: 403: the principal may start no runs, or none there.
            StorageError: `session_not_found`, `session_elsewhere`, `session_active`.
            AgentCoreError, ConfigError: as for `AgentRuntime.start`.
        """
        self.require("run")
        if session_id is None or is_new:
            runtime = await self.acting_in(project)
        else:
            runtime = await self.acting(session_id)
        if self.tenant is not None:
            placement["tenant"] = self.tenant
        if not placement.get("here"):
            placement |= await self._place_of(session_id, is_new)
        named = {"user": self.principal.name, **options.metadata}
        options = replace(options, metadata=named)
        handle = await runtime.start(message, session_id, mode, options=options, **placement)
        self.sessions.append(handle.session_id)
        return handle

    async def _place_of(self, session_id: str | None, is_new: bool) -> dict[str, Any]:
        """Return the placement of a run that workers carry out: where the session's files are."""
        placement: dict[str, Any] = {}
        if self.console.questions_wait:
            placement["questions_wait"] = True
        if session_id is not None and not is_new:
            session = await self.session(session_id)
            if session.place is not None:
                placement["place"] = session.place
        return placement

    async def answer(
        self,
        runtime: AgentRuntime,
        request_id: str,
        decision: str,
        reason: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> RunHandle[Any]:
        """Answer a question in the name of the principal, and return the run that asked it.

        Args:
            runtime: acts for the session of the question, which the principal may see.
            request_id: the question.
            decision: as for `AgentRuntime.answer`.
            reason: likewise.
            arguments: likewise.

        Raises:
            HttpProblem: 403: the principal may answer nothing.
            StorageError, AgentCoreError, ConfigError: as for `AgentRuntime.answer`.
        """
        self.require("answer")
        given = cast("AnyDecision", decision)
        return await runtime.answer(
            request_id,
            given,
            reason,
            arguments=arguments,
            decided_by="console",
            decider=self.principal.name,
        )


async def _is_found(reading: Awaitable[object]) -> bool:
    try:
        await reading
    except AgentCoreError as error:
        if error.code is not ErrorCode.SESSION_NOT_FOUND:
            raise
        return False
    return True


def has_visit(request: Request) -> bool:
    """Return whether the sender of a request has been let in."""
    return "agent_core.visit" in request.scope


def visit_of(request: Request) -> Visit:
    """Return the visit that the guard at the door has let in."""
    visit: Visit = request.scope["agent_core.visit"]
    return visit
