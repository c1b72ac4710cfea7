"""The connection to an editor: requests both ways, each of which can be cancelled."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from acp.connection import Connection
from acp.exceptions import RequestError
from msgspec import Struct
from pydantic import BaseModel, ValidationError

from agent_core.cli.json_lines import INVALID_PARAMS, Lines
from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.redaction import log_failure
from agent_core.text.json_text import JsonObject

logger = logging.getLogger(__name__)

CANCEL = "$/cancel_request"
_CANCELLED = -32800
_INTERNAL = -32603
_NOT_FOUND = -32002
_GONE = "the editor is gone"
_CODES = {
    ErrorCode.SESSION_NOT_FOUND: _NOT_FOUND,
    ErrorCode.VALIDATION_ERROR: INVALID_PARAMS,
}


class Method(Struct, frozen=True):
    """The parameters of a method, and the function that answers it."""

    takes: type[BaseModel]
    do: Callable[[Any], Awaitable[BaseModel | None]]


class EditorConnection(Connection):
    """A connection whose messages are answered by `methods`.

    Args:
        methods: by method; requests and notifications.
        lines: carries the messages.
        clean: takes secrets out of error messages.
    """

    def __init__(
        self, methods: Mapping[str, Method], lines: Lines, *, clean: Callable[[str], str]
    ) -> None:
        super().__init__(self._answer, lines, listening=False)
        self._methods = methods
        self._lines = lines
        self._clean = clean
        self._answering: dict[object, asyncio.Task[object]] = {}
        self._unwanted: set[object] = set()
        self._is_lost = False

    async def send_request(self, method: str, params: Any = None) -> Any:
        """Send a request and return its result; a caller that is cancelled cancels it there, too.

        Raises:
            RequestError: the editor answers with an error.
            ConnectionError: the editor is gone.
        """
        if self._is_lost:
            raise ConnectionError(_GONE)
        number = self._next_request_id
        try:
            return await super().send_request(method, params)
        except asyncio.CancelledError:
            if not self._closed:
                self._tasks.create(self._tell_cancelled(number))
            raise

    @property
    def is_behind(self) -> bool:
        """Return whether messages wait for the editor to read."""
        return self._lines.is_writing

    def lose(self) -> None:
        """Fail the requests that wait for an answer, because none will come.

        Messages are still written if only the input has ended.
        """
        self._is_lost = True
        self._reject_all_outgoing(ConnectionError(_GONE))

    def _disconnect(self) -> None:  # called by the package at the end of the input
        self.lose()

    async def settle(self, seconds: float) -> None:
        """Wait for the answers that are under way, but no longer than this."""
        if self._answering:
            await asyncio.wait([*self._answering.values()], timeout=seconds)

    async def _tell_cancelled(self, number: int) -> None:
        try:
            await self.send_notification(CANCEL, {"requestId": number})
        except ConnectionError:
            logger.debug("the editor is gone, and request %d with it", number)

    async def _execute_request(self, message: JsonObject) -> JsonObject:
        number, task = message["id"], asyncio.current_task()
        if task is not None:
            self._answering[number] = task
        try:
            return await super()._execute_request(message)
        except asyncio.CancelledError:
            if number not in self._unwanted:
                raise
            error = {"code": _CANCELLED, "message": "the request was cancelled"}
            return {"jsonrpc": "2.0", "id": number, "error": error}
        finally:
            self._answering.pop(number, None)
            self._unwanted.discard(number)

    async def _answer(self, method: str, params: Any, is_notification: bool) -> Any:
        if method == CANCEL:
            self._cancel(cast("JsonObject", params or {}).get("requestId"))
            return None
        known = self._methods.get(method)
        if known is None:
            if is_notification:
                return None
            raise RequestError.method_not_found(method)
        try:
            return await known.do(known.takes.model_validate(params or {}))
        except RequestError:
            raise
        except ConnectionError:
            fault = RequestError(_CANCELLED, _GONE)
        except ValidationError as error:
            fault = RequestError(INVALID_PARAMS, self._clean(_first_problem(error)))
        except AgentCoreError as error:
            fault = request_error(error, clean=self._clean)
        except Exception as error:  # noqa: BLE001 - the client gets an answer
            log_failure(logger, f"{method} failed", error=error, clean=self._clean)
            fault = RequestError(_INTERNAL, f"internal error: {type(error).__name__}")
        if is_notification:
            return None
        raise fault

    def _cancel(self, number: object) -> None:
        if isinstance(number, str | int) and (task := self._answering.get(number)) is not None:
            self._unwanted.add(number)
            task.cancel()


def request_error(error: AgentCoreError, *, clean: Callable[[str], str]) -> RequestError:
    """The error as an editor shows it."""
    code = _CODES.get(error.code, _INTERNAL)
    return RequestError(code, clean(error.message), {"code": error.code.value})


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"])) or "params"
    return f"{place}: {first['msg']}"
