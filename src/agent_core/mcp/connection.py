"""One live session with one server, opened and closed by a task of its own.

The SDK's sessions and transports hold task groups, which must be entered and left in one task;
runs come and go in many. So every connection has an owner task that opens it, waits, and closes
it. Calls are made by tasks of their own too: a run that is cancelled leaves at once, while the
cancellation is still on its way to the server.
"""

import asyncio
import json
import logging
import math
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast
from urllib.parse import urlsplit

import anyio
import httpx2
from mcp import Client, MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    INVALID_PARAMS,
    URL_ELICITATION_REQUIRED,
    CallToolResult,
    ElicitationRequiredErrorData,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitResult,
    Implementation,
    LoggingMessageNotificationParams,
    Tool,
    ToolListChangedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from msgspec.structs import replace
from pydantic import ValidationError

from agent_core.aio.loops import HomeLoop
from agent_core.errors import AgentCoreError, ErrorCode, ToolError
from agent_core.loading import installed_version
from agent_core.mcp.config import HttpServer, ServerConfig
from agent_core.mcp.discovery import (
    MAX_INSTRUCTIONS_CHARS,
    MAX_REASON_CHARS,
    OLDER_SWITCH,
    Host,
    Offer,
    SessionForgottenError,
    ToolSpec,
    read_tool,
    server_failed,
)
from agent_core.mcp.elicitation import (
    form_request,
    put_question,
    secret_answers,
    url_request,
)
from agent_core.mcp.login import Login
from agent_core.mcp.readable import Streams, with_readable_messages
from agent_core.mcp.transports import StdioTransport, http_streams
from agent_core.process.environment import HOOK
from agent_core.text import quoted, shortened
from agent_core.text.json_text import JsonValue
from agent_core.types import ElicitationAnswer, ElicitationRequest

if TYPE_CHECKING:
    from mcp.client.context import ClientRequestContext
    from mcp.client.session import IncomingMessage

T = TypeVar("T")

Mode = Literal["auto", "legacy"]
"""The handshake: asking for the newest protocol first, or the one of the older protocols."""

CLOSE_SECONDS = 5.0
"""Seconds that the end of a session may take, including the end of its process."""

CLIENT = Implementation(name="soong-agent", version=installed_version() or "0")
MAX_TOOLS = 1000
MAX_DATA_CHARS = 500

_MAX_PAGES = 100
_MOST_ODDITIES = 20
_NO_TASKS = "and tasks are not supported"
_BAD_ARGUMENTS = {INVALID_PARAMS, -32002}  # -32002: no such resource, from older servers
_MOST_PAGES_TO_VISIT = 3
_END_REPORT_SECONDS = 0.5

# Without this the SDK's warnings about a server's nonsense would appear on the user's terminal.
for _name in ("mcp", "client", "httpx2"):
    logging.getLogger(_name).addHandler(logging.NullHandler())


class ServerConnection:
    """A session that opens when it is made; `opened()` waits for it.

    Args:
        server_id: for messages.
        config: how the server is reached.
        host: the program's settings and callbacks for servers.
        on_change: called when the server announces that its tools have changed.
        starts_older: begin with the handshake of the older protocol, without asking for the newest.

    Attributes:
        is_older: the server could only be used with the handshake of the older protocol.
        was_late: the server was given up because it was silent.
    """

    def __init__(
        self,
        server_id: str,
        config: ServerConfig,
        host: Host,
        *,
        on_change: Callable[[], None],
        starts_older: bool = False,
    ) -> None:
        self._home = HomeLoop(f"the MCP server {server_id!r}", kind="another client")
        self._server_id = server_id
        self._config = config
        self._host = host
        self._on_change = on_change
        self._scope = anyio.CancelScope()
        self._over = asyncio.Event()
        self._has_stopped = False
        self._modes: tuple[Mode, ...] = ("legacy",)
        if config.protocol == "auto":
            self._modes = ("legacy", "auto") if starts_older else ("auto", "legacy")
        self.is_older = False
        self.was_late = False
        self._is_forgotten = False
        self._http_status: int | None = None
        self._calls: set[asyncio.Task[Any]] = set()
        self._clocks: set[_Clock] = set()
        self._questions: set[asyncio.Task[ElicitationAnswer]] = set()
        self._login: Login | None = None
        self._stdio: StdioTransport | None = None
        self._client: Client | None = None
        self._is_stale = True
        self._specs: dict[str, ToolSpec] = {}
        self._oddities: list[str] = []
        self._losses: tuple[str, ...] = ()
        self._failure: ToolError | None = None
        self._opened = asyncio.Event()
        self._owner = asyncio.create_task(self._own(), name=f"mcp:{server_id}")

    @property
    def is_over(self) -> bool:
        """True if the session has ended and takes no more requests."""
        return self._over.is_set() or self._owner.done() or self._home.loop.is_closed()

    @property
    def is_ready(self) -> bool:
        """True if the server has answered and the session has not ended since."""
        return self._opened.is_set() and not self.is_over

    @property
    def is_gone(self) -> bool:
        """True if the session has ended and everything that belongs to it is closed."""
        return self._owner.done()

    async def opened(self) -> None:
        """Wait until the server has answered and listed its tools.

        Raises:
            ToolError: `mcp_server_failed`, with the reason.
        """
        self._home.require()
        await self._opened.wait()
        if self._failure is not None:
            raise self._failure

    async def offer(self, *, refresh: bool = False) -> Offer:
        """Return the server's offer; lists its tools as `specs` does.

        Raises:
            ToolError: `mcp_server_failed`.
            SessionForgottenError: a new connection may list them.
        """
        specs = await self.specs(refresh=refresh)
        client = self._live()
        words = shortened(client.instructions or "", MAX_INSTRUCTIONS_CHARS)
        has_resources = client.server_capabilities.resources is not None
        return Offer(
            tuple(specs.values()), words, has_resources, is_older=self.is_older, losses=self._losses
        )

    async def specs(self, *, refresh: bool = False) -> Mapping[str, ToolSpec]:
        """Return the server's tools by name, listed again if they have changed or `refresh` is set.

        Raises:
            ToolError: `mcp_server_failed`.
            SessionForgottenError: a new connection may list them.
        """
        if self._is_stale or refresh:
            try:
                async with asyncio.timeout(self._config.timeout_ms / 1e3):
                    await self._list(self._live())
            except AgentCoreError:
                raise
            except Exception as error:
                # A server that is busy with another call may be late; only a dead one ends the
                # session.
                cause = _cause(error)
                if self._has_forgotten(cause):
                    self._over.set()
                    raise SessionForgottenError from error
                if isinstance(cause, MCPError) and self._has_ended(cause):
                    self._over.set()
                raise self._failed(cause) from error
        return self._specs

    async def call(
        self,
        name: str,
        arguments: Mapping[str, JsonValue],
        *,
        silence_s: float,
        total_s: float,
        show: Callable[[float, float | None, str | None], None],
    ) -> CallToolResult:
        """Call a tool, which may be silent for `silence_s` and run for `total_s` seconds.

        If the caller is cancelled, the server is notified in the background.

        Raises:
            ToolError: `timeout`, `validation_error`, or `mcp_server_failed`.
            SessionForgottenError: the call was not run; a new connection may run it.
        """
        clock = _Clock(silence_s, total_s)

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            if clock in self._clocks:
                clock.note_sign_of_life()
                show(progress, total, message)

        call = self._live().call_tool(name, dict(arguments), progress_callback=on_progress)
        return await self._answer(name, call, clock)

    async def request(
        self, what: str, ask: Callable[[Client], Coroutine[Any, Any, T]], *, seconds: float
    ) -> T:
        """Ask for something that changes nothing, and wait `seconds` for it at most.

        Raises:
            ToolError: `timeout`, `validation_error`, or `mcp_server_failed`.
            SessionForgottenError: a new connection may answer.
        """
        return await self._answer(what, ask(self._live()), _Clock(seconds, seconds))

    async def _answer(self, what: str, call: Coroutine[Any, Any, T], clock: "_Clock") -> T:
        self._http_status = None
        task = asyncio.create_task(call)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        try:
            async with clock.timeout:
                self._clocks.add(clock)
                if self._questions:
                    clock.stop()
                try:
                    return await asyncio.shield(task)
                except asyncio.CancelledError:
                    task.cancel()  # which notifies the server, however long that takes
                    raise
                except Exception as error:
                    raise await self._refusal(_cause(error)) from error
        except TimeoutError:
            message = f"MCP server {self._server_id!r} gave no answer to {what} in time"
            raise ToolError(ErrorCode.TIMEOUT, message, retryable=True) from None
        finally:
            self._clocks.discard(clock)
            if not self._clocks and self.is_ready:
                for question in self._questions:  # of a call that was given up
                    question.cancel()

    async def close(self) -> None:
        """End the session and the server's process; safe to repeat."""
        if not self._opened.is_set():
            self._failure = self._error("was closed while it was starting")
            self._scope.cancel()
        self._over.set()
        self._scope.deadline = anyio.current_time() + CLOSE_SECONDS
        await asyncio.wait([self._owner])
        if self._calls:
            await asyncio.wait(self._calls, timeout=CLOSE_SECONDS)

    async def _refusal(self, cause: BaseException) -> Exception:
        """Build the error for the caller of a failed call."""
        match cause:
            case _ if self._has_forgotten(cause):
                self._over.set()
                return SessionForgottenError()
            case MCPError(code=code) if code == CONNECTION_CLOSED and self._has_ended(cause):
                self._over.set()
                await asyncio.wait([self._owner], timeout=_END_REPORT_SECONDS)
                reason = "ended while the call ran; whether the call took effect is unknown"
                reason += self._end_report()
            case MCPError(code=code) if code == URL_ELICITATION_REQUIRED:
                return await self._send_to_pages(cause)
            case MCPError(code=code) if code in _BAD_ARGUMENTS:
                message = f"MCP server {self._server_id!r} refused the arguments: {cause}"
                return ToolError(ErrorCode.VALIDATION_ERROR, shortened(message, MAX_REASON_CHARS))
            case MCPError(data=data):
                said = "" if data is None else f" ({shortened(_words_of(data), MAX_DATA_CHARS)})"
                status = f" (HTTP status {self._http_status})" if self._http_status else ""
                return self._with_status(self._error(f"failed the call{status}: {cause}{said}"))
            case ValidationError():
                reason = "made the call, but its answer is not a tool result"
                return self._error(reason, retryable=False)
            case _:
                reason = f"made the call and gave an unusable answer: {cause}"
                return self._error(reason, retryable=False)
        return self._error(reason)

    def _has_forgotten(self, cause: BaseException) -> bool:
        return isinstance(cause, MCPError) and self._is_forgotten

    def _has_ended(self, cause: MCPError) -> bool:
        # Servers use the same code for failures of their own; only the text distinguishes them.
        return self._over.is_set() or cause.message == "Connection closed"

    async def _own(self) -> None:
        """Open the session, stay until it is over, and close it."""
        seconds = self._config.timeout_ms / 1e3
        try:
            with self._scope:
                first, *others = self._modes
                try:
                    await self._stay(first, seconds)
                except Exception as error:
                    if not others or not self._may_be_the_probe(_cause(error)):
                        raise
                    text = f"ended at the handshake {first!r}: {_cause(error)}"
                    self._host.log(self._server_id, shortened(text, MAX_REASON_CHARS))
                    await self._stay(others[0], seconds)
        except Exception as error:  # noqa: BLE001 - raised by every caller of `opened`
            self._failure = self._failed(_cause(error))
        finally:
            if self._failure is None and not self._opened.is_set():
                late = self._error(
                    f"was not ready in {seconds:g} s{self._end_report()}{self._switch}"
                )
                self._failure = (self._login and self._login.failure) or late
                self.was_late = self._failure is late
            self._over.set()
            self._opened.set()

    async def _stay(self, mode: "Mode", seconds: float) -> None:
        """Open the session with this handshake, and stay until it is over."""
        self._scope.deadline = anyio.current_time() + seconds
        self._has_stopped, self._client = False, None
        async with Client(
            with_readable_messages(self._transport(), self._note_oddity),
            client_info=CLIENT,
            mode=mode,
            cache=None,
            message_handler=self._on_message,
            logging_callback=self._on_log,
            elicitation_callback=self._elicit if self._host.elicit else None,
        ) as client:
            self._client = client
            await self._list(client)
            self._scope.deadline = math.inf
            self.is_older = mode == "legacy" and len(self._modes) > 1
            self._opened.set()
            if self._has_stopped:
                self._over.set()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._listen, client)
                await self._over.wait()
                tasks.cancel_scope.cancel()

    def _may_be_the_probe(self, cause: BaseException) -> bool:
        """Return whether the server may only have been unable to stand the first request.

        Servers exist that end, or drop the connection, when they are asked for the newest protocol.
        """
        if self._opened.is_set() or self._client is not None:
            return False
        if self._login is not None and self._login.failure is not None:
            return False
        if isinstance(self._config, HttpServer):
            return isinstance(cause, httpx2.NetworkError | httpx2.RemoteProtocolError) and not (
                isinstance(cause, httpx2.ConnectError)
            )
        return isinstance(cause, MCPError)

    def _note_stop(self) -> None:
        self._has_stopped = True
        if self._opened.is_set():
            self._over.set()

    @property
    def _switch(self) -> str:
        """The setting for servers that cannot stand to be asked for the newest protocol."""
        is_open = self._config.protocol == "auto"
        return f"; if it is made for an older protocol, set {OLDER_SWITCH}" if is_open else ""

    def _transport(self) -> AbstractAsyncContextManager[Streams]:
        config, server_id, host = self._config, self._server_id, self._host
        if isinstance(config, HttpServer):
            authorization = None
            if host.authorize:
                authorization = host.authorize(server_id, config.url)
            elif host.home and not any(name.lower() == "authorization" for name in config.headers):
                self._login = Login(
                    server_id,
                    config,
                    host.home,
                    ask=self._ask,
                    learn=host.learn,
                    persist=host.persist,
                )
                authorization = self._login.authorization
            return http_streams(config, authorization=authorization, on_refusal=self._on_refusal)
        names = (*host.env_allowlist, HOOK)
        inherited = {name: os.environ[name] for name in names if name in os.environ}
        self._stdio = StdioTransport(
            config,
            inherited | config.env,
            launcher=host.launcher,
            sandbox=host.sandbox,
            log=lambda line: host.log(server_id, line),
            on_end=self._note_stop,
        )
        return self._stdio.streams()

    async def _elicit(
        self, context: "ClientRequestContext", params: ElicitRequestParams
    ) -> ElicitResult:
        """Answer a question of the server with the user's answer."""
        del context  # names the request; the SDK routes the answer
        try:
            if isinstance(params, ElicitRequestFormParams):
                request = form_request(self._server_id, params.message, params.requested_schema)
            else:
                request = url_request(self._server_id, params.message, params.url)
        except ValueError as error:
            self._host.log(self._server_id, f"a question cannot be asked: {error}")
            return ElicitResult(action="decline")
        answer = await self._ask(request)
        is_filled_in = answer.action == "accept" and request.mode == "form"
        return ElicitResult(action=answer.action, content=answer.content if is_filled_in else None)

    async def _send_to_pages(self, cause: MCPError) -> ToolError:
        """Send the user to the pages that a call requires; the model may then repeat the call."""
        outcome = "cannot be read"
        with suppress(ValidationError, ValueError):
            wanted = ElicitationRequiredErrorData.model_validate(cause.data).elicitations
            for params in wanted[:_MOST_PAGES_TO_VISIT]:
                request = url_request(self._server_id, params.message, params.url)
                answer = await self._ask(request)
                outcome = f"was answered with {answer.action}"
                if answer.action != "accept":
                    break
        message = (
            f"MCP server {self._server_id!r} wants the user to do something in the browser first"
            f" ({shortened(str(cause), 200)}), which {outcome}; call again once that is done"
        )
        return ToolError(ErrorCode.TOOL_ERROR, message, retryable=True)

    async def _ask(self, request: ElicitationRequest) -> ElicitationAnswer:
        """Put a question to the user; the time limits of start and calls are paused meanwhile."""
        task = asyncio.create_task(put_question(self._host.elicit, request, self._host.clean))
        self._questions.add(task)
        stopped_at, deadline = anyio.current_time(), self._scope.deadline
        for clock in self._clocks:
            clock.stop()
        if not self._opened.is_set():
            self._scope.deadline = math.inf
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
            self._questions.discard(task)
            if not self._questions:
                for clock in self._clocks:
                    clock.resume()
            if not self._opened.is_set() and not self._scope.cancel_called:
                self._scope.deadline = deadline + anyio.current_time() - stopped_at
        answer = ElicitationAnswer(action="cancel") if task.cancelled() else task.result()
        self._host.learn(secret_answers(request, answer))
        return answer

    async def _listen(self, client: Client) -> None:
        """Subscribe to changes of the tools, if the protocol requires it."""
        tools = client.server_capabilities.tools
        is_modern = client.protocol_version in MODERN_PROTOCOL_VERSIONS
        if not is_modern or tools is None or not tools.list_changed:
            return
        try:
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self._note_change()
        except Exception as error:  # noqa: BLE001 - the cache grows old by itself
            self._host.log(self._server_id, f"changes cannot be listened to: {_cause(error)}")

    async def _list(self, client: Client) -> None:
        self._is_stale = False  # set before asking, so that no change is missed
        specs: dict[str, ToolSpec] = {}
        cursors: set[str | None] = {None}
        cursor: str | None = None
        self._oddities = []
        try:
            while client.server_capabilities.tools is not None:
                page = await client.list_tools(cursor=cursor)
                if len(specs) + len(page.tools) > MAX_TOOLS:
                    raise self._error(f"lists more than {MAX_TOOLS} tools")
                # In a thread, because checking a complex schema takes milliseconds.
                for spec in await asyncio.to_thread(_read_all, page.tools):
                    if spec.fault:
                        self._host.log(self._server_id, spec.fault)
                    if spec.name not in specs:
                        specs[spec.name] = spec
                    elif spec != specs[spec.name]:
                        fault = f"it lists the tool {spec.name!r} twice, and the first one is used"
                        self._note_oddity(fault)
                cursor = page.next_cursor
                if cursor is None:
                    break
                if cursor in cursors or len(cursors) == _MAX_PAGES:
                    self._note_oddity("the pages of its list of tools do not end; some are missing")
                    break
                cursors.add(cursor)
        except BaseException:
            self._is_stale = True
            raise
        self._specs, self._losses = specs, tuple(self._oddities)

    def _note_oddity(self, what: str) -> None:
        """Log what is wrong with an answer, and keep it for the list of tools that is read."""
        line = shortened(what, MAX_REASON_CHARS)
        self._host.log(self._server_id, line)
        if len(self._oddities) < _MOST_ODDITIES:
            self._oddities.append(f"MCP server {self._server_id!r}: {line}")

    async def _on_message(self, message: "IncomingMessage") -> None:
        if isinstance(message, ToolListChangedNotification):
            self._note_change()

    async def _on_log(self, params: LoggingMessageNotificationParams) -> None:
        line = shortened(f"{params.level}: {params.data}", MAX_REASON_CHARS)
        self._host.log(self._server_id, line)

    def _on_refusal(self, status: int, is_unknown: bool, /) -> None:
        self._http_status = status
        self._is_forgotten |= is_unknown

    def _note_change(self) -> None:
        self._is_stale = True
        self._on_change()

    def _live(self) -> Client:
        self._home.require()
        if self._client is None or self.is_over:
            raise self._error("is no longer connected")
        return self._client

    def _failed(self, cause: BaseException) -> ToolError:
        """Build the error for a connection that could not be opened, or has ended."""
        if self._login is not None and self._login.failure is not None:
            return self._login.failure
        match cause:
            case ToolError(code=ErrorCode.MCP_SERVER_FAILED):
                return cause
            case AgentCoreError() if self._stdio is not None and self._client is None:
                reason = f"cannot be started: {cause.message}"
                return self._error(reason, retryable=cause.retryable)
            case TimeoutError():
                reason = f"did not answer in {self._config.timeout_ms / 1e3:g} s"
            case MCPError() if self._stdio is not None:
                reason = f"ended before it was ready{self._end_report()}{self._switch}"
            case MCPError() if self._http_status:
                reason = f"answered with HTTP status {self._http_status}: {cause}"
                return self._with_status(self._error(reason))
            case httpx2.ConnectError() if isinstance(self._config, HttpServer):
                host = urlsplit(self._config.url).netloc
                reason = f"cannot be reached at {host}: {cause}; start it, or correct its url"
            case _:
                reason = f"cannot be used: {cause or type(cause).__name__}"
        return self._error(reason)

    def _error(self, reason: str, *, retryable: bool = True) -> ToolError:
        return server_failed(self._server_id, reason, retryable=retryable)

    def _with_status(self, error: ToolError) -> ToolError:
        if self._http_status:
            error.details["status"] = self._http_status
        return error

    def _end_report(self) -> str:
        words = self._stdio.end_report if self._stdio else ""
        return f" ({words})" if words else ""


class _Clock:
    """Limits of a call's silence and of its duration, which can be paused."""

    def __init__(self, silence_s: float, total_s: float) -> None:
        self._now = asyncio.get_running_loop().time
        self._silence_s = silence_s
        self._end = self._now() + total_s
        self._stopped_at: float | None = None
        self.timeout = asyncio.timeout_at(self._next())

    def note_sign_of_life(self) -> None:
        if self._stopped_at is None and not self.timeout.expired():
            self.timeout.reschedule(self._next())

    def stop(self) -> None:
        if self._stopped_at is None and not self.timeout.expired():
            self._stopped_at = self._now()
            self.timeout.reschedule(None)

    def resume(self) -> None:
        if self._stopped_at is not None:
            self._end += self._now() - self._stopped_at
            self._stopped_at = None
            self.timeout.reschedule(self._next())

    def _next(self) -> float:
        return min(self._now() + self._silence_s, self._end)


def _read_all(tools: Iterable[Tool]) -> list[ToolSpec]:
    return [_read(tool) for tool in tools]


def _read(tool: Tool) -> ToolSpec:
    hints = tool.annotations
    # A tool that claims to be both asks: one of the two claims is wrong.
    is_readonly = hints is not None and hints.read_only_hint is True and not hints.destructive_hint
    if tool.execution is not None and tool.execution.task_support == "required":
        fault = (
            f"the tool {quoted(tool.name, 100)} is left out: it runs as a task only, {_NO_TASKS}"
        )
        return ToolSpec(tool.name[:100], fault=fault)
    spec = read_tool(
        tool.name,
        tool.description,
        tool.input_schema,
        is_readonly=is_readonly,
        is_open=hints is not None and hints.open_world_hint is True,
    )
    if spec.fault:
        fault = f"the tool {quoted(tool.name, 100)} is left out: {spec.fault}"
        spec = replace(spec, fault=shortened(fault, MAX_REASON_CHARS))
    return spec


def _words_of(data: object) -> str:
    return data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, default=str)


def _cause(error: BaseException) -> BaseException:
    """Return the first real failure inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
