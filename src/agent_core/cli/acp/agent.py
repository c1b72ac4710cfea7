"""The methods of the Agent Client Protocol, with which an editor uses this agent."""

import asyncio
from collections.abc import Callable, Sequence
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
from agent_core.cli.acp.lines import INVALID_PARAMS, Lines
from agent_core.cli.acp.session import AnyUpdate, EditorSession
from agent_core.cli.setup import open_runtime, read_command_setup
from agent_core.errors import ErrorCode, StorageError
from agent_core.permissions import PermissionCallback
from agent_core.storage.rows import session_not_found
from agent_core.types import TextBlock, UserMessage, new_id

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
        self._catalogue: AgentRuntime | None = None
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
        """Refuse: keys are in the environment, and there is no log-in."""
        message = f"there is no log-in {asked.method_id!r}: keys are in the environment"
        raise RequestError(INVALID_PARAMS, message)

    async def new_session(self, asked: NewSessionRequest) -> NewSessionResponse:
        """Open a session in a project; it is stored with its first message."""
        session = await self._open(new_id("sess"), asked.cwd, asked.mcp_servers)
        self._offer_commands(session)
        return NewSessionResponse(
            session_id=session.session_id,
            modes=modes_of(session),
            config_options=options_of(session),
        )

    async def load_session(self, asked: LoadSessionRequest) -> LoadSessionResponse:
        """Open an existing session, and show its conversation."""
        session = await self._reopen(asked.session_id, asked.cwd, asked.mcp_servers)
        await session.restore(shows=True)
        self._offer_commands(session)
        return LoadSessionResponse(modes=modes_of(session), config_options=options_of(session))

    async def resume_session(self, asked: ResumeSessionRequest) -> ResumeSessionResponse:
        """Open a session that there is, without showing it."""
        session = await self._reopen(asked.session_id, asked.cwd, asked.mcp_servers or [])
        await session.restore(shows=False)
        self._offer_commands(session)
        return ResumeSessionResponse(modes=modes_of(session), config_options=options_of(session))

    async def fork_session(self, asked: ForkSessionRequest) -> ForkSessionResponse:
        """Begin another session with the conversation so far; in another folder with a copy."""
        into = absolute_path(asked.cwd)
        origin = self._sessions.get(asked.session_id)
        runtime = origin.runtime if origin else await self._any_runtime()
        page = await runtime.replay_session(asked.session_id, 1, 1)
        is_here = str(await asyncio.to_thread(into.resolve)) == page.session.cwd
        forked = await runtime.fork(asked.session_id, into=None if is_here else into)
        session = await self._open(forked.session.session_id, asked.cwd, asked.mcp_servers or [])
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
            raise RequestError(INVALID_PARAMS, "the cursor is none that session/list has returned")
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
        self._session(asked.session_id)
        await self._close(asked.session_id)
        return CloseSessionResponse()

    async def delete_session(self, asked: DeleteSessionRequest) -> DeleteSessionResponse:
        """Delete a session with all that was said in it."""
        if (session := self._sessions.get(asked.session_id)) is not None:
            await session.cancel()
        runtime = session.runtime if session else await self._any_runtime()
        await runtime.delete_session(asked.session_id)
        await self._close(asked.session_id)
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
        match message.content:
            case [TextBlock(text=text)] if text.startswith("/"):
                return await self._command(session, text.strip(), message)
            case _:
                return await session.answer(message)

    async def cancel(self, asked: CancelNotification) -> None:
        """Cancel the present work of a session."""
        if (session := self._sessions.get(asked.session_id)) is not None:
            await session.cancel()

    async def close(self) -> None:
        """End all sessions, because the editor is gone, and answer its open requests."""
        self.connection.lose()
        await asyncio.gather(*(session.leave() for session in self._sessions.values()))
        await self.connection.settle(_SETTLE_S)
        for session_id in [*self._sessions]:
            await self._close(session_id)
        if self._catalogue is not None:
            await self._catalogue.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_S)
        await self.connection.close()

    async def _command(
        self, session: EditorSession, text: str, message: UserMessage
    ) -> PromptResponse:
        name = text.removeprefix("/")
        runtime, session_id = session.runtime, session.session_id
        match name:
            case "compact":
                return await session.summarise()
            case "undo" | "redo":
                move = runtime.undo if name == "undo" else runtime.redo
                moved = await move(session_id)
                done = "Taken back." if name == "undo" else "Restored."
                files = [*moved.restored, *moved.deleted]
                lines = [done, *(f"- {path}" for path in files), *moved.remarks]
                await session.say("\n".join(lines))
                return PromptResponse(stop_reason="end_turn")
            case _:
                return await session.answer(await session.expanded(message))

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
        self, session_id: str, cwd: str, servers: Sequence[AnyServer]
    ) -> EditorSession:
        """Open an existing session.

        Raises:
            StorageError: there is no such session, or it works in another folder.
        """
        await self._close(session_id)
        if closing := [task for task in self._tasks if task.get_name() == session_id]:
            await asyncio.wait(closing)  # until then it is not free
        session = await self._open(session_id, cwd, servers)
        try:
            page = await session.runtime.replay_session(session_id, 1, 1)
            if page.session.cwd != str(session.setup.project):
                raise _elsewhere(session_id, page.session.cwd)
        except BaseException:
            await self._close(session_id)
            raise
        return session

    async def _open(self, session_id: str, cwd: str, servers: Sequence[AnyServer]) -> EditorSession:
        """Open a session in a project, with a runtime of its own.

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
        self._sessions[session_id] = session
        return session

    async def _close(self, session_id: str) -> None:
        if (session := self._sessions.pop(session_id, None)) is None:
            return
        await session.cancel()
        closing = asyncio.create_task(session.runtime.close(), name=session_id)
        self._tasks.add(closing)
        closing.add_done_callback(self._tasks.discard)

    async def _any_runtime(self) -> AgentRuntime:
        """Return a runtime for requests that concern no project."""
        for session in self._sessions.values():
            return session.runtime
        if self._catalogue is None:
            setup = await asyncio.to_thread(read_command_setup, None, self._model)
            self._catalogue = open_runtime(setup)
        return self._catalogue


async def _shown(session: EditorSession, update: AnyUpdate) -> None:
    with suppress(ConnectionError):
        await session.show(update)


def _elsewhere(session_id: str, cwd: str) -> StorageError:
    message = f"session {session_id} works in {cwd}; open it there"
    return StorageError(ErrorCode.SESSION_ELSEWHERE, message, details={"cwd": cwd})
