"""The methods of the Agent Client Protocol, with which an editor uses this agent."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from importlib.metadata import version

from acp.exceptions import RequestError
from acp.meta import PROTOCOL_VERSION
from acp.schema import (
    AgentCapabilities,
    AuthenticateRequest,
    AvailableCommand,
    AvailableCommandsUpdate,
    CancelNotification,
    CloseSessionRequest,
    CloseSessionResponse,
    ConfigOptionUpdate,
    CurrentModeUpdate,
    DeleteSessionRequest,
    DeleteSessionResponse,
    ElicitationCapabilities,
    ForkSessionRequest,
    ForkSessionResponse,
    Implementation,
    InitializeRequest,
    InitializeResponse,
    ListSessionsRequest,
    ListSessionsResponse,
    LoadSessionRequest,
    LoadSessionResponse,
    McpCapabilities,
    NewSessionRequest,
    NewSessionResponse,
    PromptCapabilities,
    PromptRequest,
    PromptResponse,
    ResumeSessionRequest,
    ResumeSessionResponse,
    SessionCapabilities,
    SessionCloseCapabilities,
    SessionDeleteCapabilities,
    SessionForkCapabilities,
    SessionInfo,
    SessionListCapabilities,
    SessionResumeCapabilities,
    SetSessionConfigOptionResponse,
    SetSessionConfigOptionSelectRequest,
    SetSessionModeRequest,
    SetSessionModeResponse,
)

from agent_core.api import AgentRuntime
from agent_core.cli.acp.choices import LEADS, MODES, has_workers, modes_of, options_of
from agent_core.cli.acp.connection import EditorConnection, Method
from agent_core.cli.acp.content import (
    AnyServer,
    absolute_path,
    existing_folder,
    toolsets,
    user_message,
)
from agent_core.cli.acp.elicitation import EditorElicitation
from agent_core.cli.acp.session import AnyUpdate, EditorSession
from agent_core.cli.json_lines import INVALID_PARAMS, Lines
from agent_core.cli.setup import open_runtime, read_command_setup
from agent_core.errors import AgentCoreError
from agent_core.permissions import PermissionCallback
from agent_core.storage.rows import session_not_found
from agent_core.types import TextBlock, new_id

PAGE_SESSIONS = 50
_SETTLE_S = 3.0
"""Seconds for which the end of the process waits for answers to open requests."""
_CLOSE_S = 10.0
"""Seconds for which the end of the process waits for runtimes to close."""
_COMMANDS = {
    "compact": "Summarise the conversation so far, to make room",
    "undo": "Revert the last message and the changes of its run to files",
    "redo": "Return to the state before the last undo",
}


class EditorAgent:
    """The sessions of one editor.

    Args:
        lines: carry the messages.
        model: model of sessions that choose none; None: the configured one.
        clean: takes secrets out of error messages.
    """

    def __init__(self, lines: Lines, *, model: str | None, clean: Callable[[str], str]) -> None:
        self._model = model
        self._clean = clean
        self._sessions: dict[str, EditorSession] = {}
        self._catalogue: asyncio.Task[AgentRuntime] | None = None
        self._elicitation: ElicitationCapabilities | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.connection = EditorConnection(
            {
                "initialize": Method(InitializeRequest, self.initialize),
                "authenticate": Method(AuthenticateRequest, self.authenticate),
                "session/new": Method(NewSessionRequest, self.new_session),
                "session/load": Method(LoadSessionRequest, self.load_session),
                "session/resume": Method(ResumeSessionRequest, self.resume_session),
                "session/list": Method(ListSessionsRequest, self.list_sessions),
                "session/close": Method(CloseSessionRequest, self.close_session),
                "session/delete": Method(DeleteSessionRequest, self.delete_session),
                "session/fork": Method(ForkSessionRequest, self.fork_session),
                "session/set_mode": Method(SetSessionModeRequest, self.set_mode),
                "session/set_config_option": Method(
                    SetSessionConfigOptionSelectRequest, self.set_config_option
                ),
                "session/prompt": Method(PromptRequest, self.prompt),
                "session/cancel": Method(CancelNotification, self.cancel),
            },
            lines,
            clean=clean,
        )

    async def initialize(self, asked: InitializeRequest) -> InitializeResponse:
        """Return the version of the protocol, and the abilities of this agent."""
        if asked.client_capabilities is not None:
            self._elicitation = asked.client_capabilities.elicitation
        return InitializeResponse(
            protocol_version=PROTOCOL_VERSION,
            agent_capabilities=AgentCapabilities(
                load_session=True,
                prompt_capabilities=PromptCapabilities(
                    image=True, audio=False, embedded_context=True
                ),
                mcp_capabilities=McpCapabilities(http=True, sse=True),
                session_capabilities=SessionCapabilities(
                    list=SessionListCapabilities(),
                    delete=SessionDeleteCapabilities(),
                    resume=SessionResumeCapabilities(),
                    fork=SessionForkCapabilities(),
                    close=SessionCloseCapabilities(),
                ),
            ),
            auth_methods=[],
            agent_info=Implementation(
                name="soong-agent", title="soong-agent", version=version("soong-agent")
            ),
        )

    async def authenticate(self, asked: AuthenticateRequest) -> None:
        """Refuse: keys are in the environment, and there is no login."""
        message = f"there is no login {asked.method_id!r}: keys are in the environment"
        raise RequestError(INVALID_PARAMS, message)

    async def new_session(self, asked: NewSessionRequest) -> NewSessionResponse:
        """Open a session in a project; it is stored with its first message."""
        session = await self._opened(new_id("sess"), asked.cwd, asked.mcp_servers)
        self._sessions[session.session_id] = session
        self._offer_commands(session)
        return NewSessionResponse(
            session_id=session.session_id,
            modes=modes_of(session),
            config_options=options_of(session),
        )

    async def load_session(self, asked: LoadSessionRequest) -> LoadSessionResponse:
        """Open an existing session, and show its conversation."""
        session = await self._reopen(asked.session_id, asked.cwd, asked.mcp_servers, shows=True)
        return LoadSessionResponse(modes=modes_of(session), config_options=options_of(session))

    async def resume_session(self, asked: ResumeSessionRequest) -> ResumeSessionResponse:
        """Open a session that there is, without showing it."""
        servers = asked.mcp_servers or []
        session = await self._reopen(asked.session_id, asked.cwd, servers, shows=False)
        return ResumeSessionResponse(modes=modes_of(session), config_options=options_of(session))

    async def fork_session(self, asked: ForkSessionRequest) -> ForkSessionResponse:
        """Begin another session with the conversation so far; in another folder with a copy."""
        into, servers = absolute_path(asked.cwd), asked.mcp_servers or []
        toolsets(servers)  # a refused request leaves no copy behind
        origin = self._sessions.get(asked.session_id)
        runtime = origin.runtime if origin else await self._any_runtime()
        page = await runtime.replay_session(asked.session_id, 1, 1)
        is_here = str(await asyncio.to_thread(into.resolve)) == page.session.cwd
        if is_here:
            existing_folder(asked.cwd)
        forked = await runtime.fork(asked.session_id, into=None if is_here else into)
        session = await self._opened(forked.session.session_id, asked.cwd, servers)
        self._sessions[session.session_id] = session
        self._offer_commands(session)
        return ForkSessionResponse(
            session_id=session.session_id,
            modes=modes_of(session),
            config_options=options_of(session),
        )

    async def list_sessions(self, asked: ListSessionsRequest) -> ListSessionsResponse:
        """Return one page of the sessions, of one project or of all."""
        cursor = asked.cursor or "0"
        if not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 19):
            raise RequestError(
                INVALID_PARAMS, "unknown cursor; pass one that session/list has returned"
            )
        project = None if asked.cwd is None else absolute_path(asked.cwd)
        runtime = await self._any_runtime()
        offset = int(cursor)
        found = await runtime.session_summaries(PAGE_SESSIONS + 1, offset, project=project)
        sessions = [
            SessionInfo(
                session_id=each.session_id,
                cwd=each.cwd,
                title=each.title,
                updated_at=each.updated_at.isoformat(),
            )
            for each in found[:PAGE_SESSIONS]
        ]
        more = str(offset + PAGE_SESSIONS) if len(found) > PAGE_SESSIONS else None
        return ListSessionsResponse(sessions=sessions, next_cursor=more)

    async def close_session(self, asked: CloseSessionRequest) -> CloseSessionResponse:
        """Cancel the work of a session, and close it."""
        await self._close(self._session(asked.session_id))
        return CloseSessionResponse()

    async def delete_session(self, asked: DeleteSessionRequest) -> DeleteSessionResponse:
        """Delete a session with all that was said in it."""
        session = self._sessions.get(asked.session_id)
        if session is None:
            await (await self._any_runtime()).delete_session(asked.session_id)
            return DeleteSessionResponse()
        with session.prompts.take() as turn:
            await session.prompts.cancel()
            async with turn.order:  # no other prompt begins any more
                await session.prompts.cancel()
                await turn.wait_for_turn()
                if await session.is_stored():
                    await session.runtime.delete_session(asked.session_id)
                await self._close(session)
        return DeleteSessionResponse()

    async def set_mode(self, asked: SetSessionModeRequest) -> SetSessionModeResponse:
        """Choose how much is done unasked; it holds from the next message on."""
        session = self._session(asked.session_id)
        if asked.mode_id not in MODES:
            raise RequestError(INVALID_PARAMS, f"there is no mode {asked.mode_id!r}")
        session.mode = asked.mode_id
        options = options_of(session)
        await session.show(
            ConfigOptionUpdate(session_update="config_option_update", config_options=options)
        )
        return SetSessionModeResponse()

    async def set_config_option(
        self, asked: SetSessionConfigOptionSelectRequest
    ) -> SetSessionConfigOptionResponse:
        """Choose a mode, a model, or who leads; it holds from the next message on."""
        session = self._session(asked.session_id)
        match asked.config_id:
            case "mode" if asked.value in MODES:
                session.mode = asked.value
                await session.show(
                    CurrentModeUpdate(
                        session_update="current_mode_update", current_mode_id=asked.value
                    )
                )
            case "model":
                session.choose_model(asked.value)
            case "lead" if asked.value in LEADS and has_workers(session):
                session.lead = LEADS[asked.value][0]
            case _:
                message = f"there is no option {asked.config_id!r} with a value {asked.value!r}"
                raise RequestError(INVALID_PARAMS, message)
        return SetSessionConfigOptionResponse(config_options=options_of(session))

    async def prompt(self, asked: PromptRequest) -> PromptResponse:
        """Run a message to its end."""
        session = self._session(asked.session_id)
        message = user_message(asked.prompt)
        with session.prompts.take() as turn:
            match message.content:
                case [TextBlock(text=text)] if text.split(maxsplit=1)[:1] == ["/compact"]:
                    focus = text.removeprefix("/compact").strip()
                    answering = session.summarise(turn, focus or None)
                case [TextBlock(text=text)] if text.rstrip() in {"/undo", "/redo"}:
                    answering = session.move(turn, back=text.rstrip() == "/undo")
                case _:
                    answering = session.answer(turn, message)
            return await turn.finish(answering)

    async def cancel(self, asked: CancelNotification) -> None:
        """Cancel the present work of a session."""
        if (session := self._sessions.get(asked.session_id)) is not None:
            await session.prompts.cancel()

    def warn(self, run_ids: Collection[str], warning: str) -> None:
        """Tell the user a warning about one of these runs, with the next update of its prompt."""
        for session in self._sessions.values():
            if (turn := session.prompts.turn_of(*run_ids)) is not None:
                turn.warnings.append(warning)

    async def close(self) -> None:
        """End all sessions, because the editor is gone, and answer its open requests."""
        self.connection.lose()
        await asyncio.gather(*(session.leave() for session in self._sessions.values()))
        await self.connection.settle(_SETTLE_S)
        for session in self._sessions.values():
            self._end(session, 0)
        if self._catalogue is not None:
            self._tasks.add(asyncio.create_task(_close_catalogue(self._catalogue)))
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_S)
        await self.connection.close()

    def _offer_commands(self, session: EditorSession) -> None:
        """Name the commands, once the editor has the session's id."""
        commands = [
            AvailableCommand(name=name, description=what) for name, what in _COMMANDS.items()
        ]
        update = AvailableCommandsUpdate(
            session_update="available_commands_update", available_commands=commands
        )
        showing = asyncio.create_task(_shown(session, update))
        self._tasks.add(showing)
        showing.add_done_callback(self._tasks.discard)

    def _session(self, session_id: str) -> EditorSession:
        session = self._sessions.get(session_id)
        if session is None:
            raise session_not_found(session_id)
        return session

    async def _reopen(
        self, session_id: str, cwd: str, servers: Sequence[AnyServer], *, shows: bool
    ) -> EditorSession:
        """Open an existing session, in place of the same one if that is open.

        Raises:
            StorageError: there is no such session, it works in another folder, or cannot be read;
                the open one was left as it is.
            ConnectionError: the editor is gone.
        """
        session = await self._opened(session_id, cwd, servers)
        try:
            await session.check(reads_all=session_id in self._sessions)
        except BaseException:
            await session.runtime.close()
            raise
        last = self._sessions.get(session_id)
        self._sessions[session_id] = session
        try:
            with session.prompts.take() as turn:
                async with turn.order:  # prompts for it wait until it is shown
                    if last is not None:
                        self._end(last)
                    if closing := [each for each in self._tasks if each.get_name() == session_id]:
                        await asyncio.wait(closing)  # until then it is not free
                    await session.restore(shows=shows)
        except BaseException:
            await self._close(session)
            raise
        self._offer_commands(session)
        return session

    async def _opened(
        self, session_id: str, cwd: str, servers: Sequence[AnyServer]
    ) -> EditorSession:
        """Return a session in a project, with an open runtime of its own.

        Raises:
            AgentCoreError: the project, a server or the configuration cannot be used.
        """
        folder, chosen = existing_folder(cwd), toolsets(servers)
        setup = await asyncio.to_thread(read_command_setup, folder, self._model)
        can = self._elicitation
        elicit = None if can is None else EditorElicitation(session_id, self.connection, can)

        def make(ask: PermissionCallback) -> AgentRuntime:
            return open_runtime(
                setup, permission_callback=ask, elicitation_callback=elicit, toolsets=chosen
            )

        session = EditorSession(
            session_id, setup, self.connection, open_runtime=make, clean=self._clean
        )
        await session.runtime.__aenter__()
        return session

    async def _close(self, session: EditorSession) -> None:
        """Cancel the work of a session; its runtime is closed in the background."""
        if self._sessions.get(session.session_id) is session:
            del self._sessions[session.session_id]
        await session.prompts.cancel()
        self._end(session, _SETTLE_S)

    def _end(self, session: EditorSession, timeout_s: float | None = None) -> None:
        """End a session in the background; `timeout_s` is for the answers to its prompts."""
        ending = asyncio.create_task(session.end(timeout_s), name=session.session_id)
        self._tasks.add(ending)
        ending.add_done_callback(self._tasks.discard)

    async def _any_runtime(self) -> AgentRuntime:
        """Return a runtime for requests that concern no open session."""
        opened = self._catalogue
        if opened is None or (opened.done() and opened.exception() is not None):
            opened = self._catalogue = asyncio.create_task(self._open_catalogue())
        return await asyncio.shield(opened)

    async def _open_catalogue(self) -> AgentRuntime:
        return open_runtime(await asyncio.to_thread(read_command_setup, None, self._model))


async def _close_catalogue(opened: "asyncio.Task[AgentRuntime]") -> None:
    with suppress(AgentCoreError):  # it could not be opened
        await (await opened).close()


async def _shown(session: EditorSession, update: AnyUpdate) -> None:
    with suppress(ConnectionError):
        await session.show(update)
