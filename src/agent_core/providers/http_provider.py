"""Model calls over HTTP: connections, and retries only before the first delta.

A subclass writes the requests of its service and names the parser of its replies; everything common
to all services is here: keys, connections, timeouts, attempts, cancellation.
"""

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, closing, suppress
from operator import is_
from typing import Any, ClassVar, cast
from urllib.parse import urlsplit

import orjson
from msgspec import Struct
from msgspec.structs import replace

from agent_core.aio.loops import running_loop
from agent_core.config.models import ModelConfig
from agent_core.config.servers import OLLAMA_VARIABLE, is_public
from agent_core.errors import ConfigError, ErrorCode
from agent_core.http.client import Client
from agent_core.http.errors import HttpError
from agent_core.http.opening import Route
from agent_core.http.response import Response
from agent_core.providers.arranging import HistoryForms
from agent_core.providers.base import RawExchange, RawExchangeSink, require_real_models
from agent_core.providers.compat import dialect_of, server_of
from agent_core.providers.connections import closed_with_loop, failure_of
from agent_core.providers.decoding import Decoder, EventDecoder
from agent_core.providers.error_answers import (
    document_of,
    explanation_in,
    retry_after_s,
    retry_delay_in,
)
from agent_core.providers.failures import (
    HTTP_OK,
    HTTP_PROXY_AUTH,
    UNREAD_CALL,
    Called,
    CallError,
    is_refused_request,
    pause_before_retry_s,
    refused_field,
)
from agent_core.providers.images import ImageRules
from agent_core.providers.keys import HeldKey, KeyCommand, hidden, key_of
from agent_core.providers.output_schema import has_other_tools, with_output_mode
from agent_core.providers.reply import ChunkParser, ReplyAccumulator
from agent_core.providers.requests import (
    HEADERS,
    ToolNames,
    own_options,
)
from agent_core.providers.route import fault_in_address, find_route, shown_proxy
from agent_core.providers.think_tags import TaggedReply
from agent_core.providers.token_limits import smaller_output
from agent_core.providers.tool_forms import (
    FORMS,
    FittedTools,
    ToolFitter,
    ToolForm,
    with_left_out,
)
from agent_core.providers.usage import completed_usage
from agent_core.text.json_text import JsonObject, JsonValue
from agent_core.types import (
    ErrorPayload,
    ModelCompleted,
    ModelEvent,
    ModelFailed,
    ModelRequest,
    ModelRetry,
    ModelStarted,
    ToolDefinition,
)

MAX_CONNECTIONS = 1000
MAX_ERROR_BODY = 64 * 1024
MAX_TRACED = 4 * 1024 * 1024
HTTP_UNAUTHORIZED = 401
MAX_BEGINNING = 16 * 1024
"""Bytes kept of the beginning of an answer, in case it is not a stream."""
REUSE_S = 0.05
"""Seconds that the connection may take to become free after the last event."""
_LEAST_PER_TOKEN = 2
"""Bytes of a request for each token of the window from which on a 413 may be about tokens."""
KEEPALIVE_LIMIT = 10
"""A call with only comments and pings is held open for this many times the timeout."""

_HEADERS = {"User-Agent": "soong-agent", "Accept": "*/*", "Accept-Encoding": "gzip, deflate"}
_LOST = (TimeoutError, HttpError)


class PreparedRequest(Struct, frozen=True):
    """A request in the service's form, without the key, and the tools by wire name.

    `is_native` says that the service's own mode holds it to the schema of a typed answer.
    """

    called: Called
    url: str
    body: bytes
    headers: Mapping[str, str]
    names: ToolNames
    is_native: bool = False
    fitted: FittedTools = FittedTools()


class _Session(Struct, frozen=True):
    """The connections of one event loop, and the generator that closes them when it ends."""

    client: Client
    keeper: AsyncGenerator[None]


class _Attempt(Struct):
    """One attempt of a call: the parser of the answer, and the received data."""

    called: Called
    parser: ChunkParser
    decoder: Decoder
    status: int | None = None
    raw: list[bytes] | None = None
    raw_size: int = 0
    waiting: bytes = b""
    first: bytes = b""
    chunks: int = 0
    last_chunk_at: float = 0.0
    is_begun: bool = False

    def read(self, block: bytes) -> Iterable[ModelEvent]:
        """Return the events of a block: one delta for each part of the reply that it extends.

        Raises:
            CallError: the block cannot be understood, or says that the call failed.
        """
        parser = self.parser
        if not parser.chunks and len(self.first) < MAX_BEGINNING:
            self.first += block[: MAX_BEGINNING - len(self.first)]
        try:
            for payload in self.decoder.feed(block):
                parser.take(payload)
                if parser.done:
                    break
            return parser.draft.deltas()
        except CallError as error:
            raise self._explained(error) from error

    def finish(self) -> Iterable[ModelEvent]:
        """Return the last events, at the end of the stream.

        Raises:
            CallError: the reply is not complete, or the stream ended inside a payload.
        """
        parser = self.parser
        try:
            if not parser.done:
                parser.at_end = True
                for payload in self.decoder.end():
                    parser.take(payload)
            return parser.finish()
        except CallError as error:
            raise self._explained(error) from error

    def _explained(self, failure: CallError) -> CallError:
        """Return what it means that the answer cannot be read: it may not be a stream at all."""
        if self.parser.chunks or self.decoder.may_begin(self.first):
            return self.called.named(failure)
        return self.called.answered_otherwise(self.first)

    def end(
        self, failure: CallError | None, names: ToolNames
    ) -> tuple[Iterable[ModelEvent], CallError | None]:
        """Return the last events of a failed attempt, and the failure if there is no reply.

        A call that the service could not parse makes an invalid call.
        """
        draft = self.parser.draft
        if failure is None:
            return (), None
        if UNREAD_CALL not in failure.details:
            return draft.rest(), failure
        usage, raw_stop = completed_usage(self.parser.usage()), self.parser.raw_stop
        return draft.finish_unread(failure, names, raw_stop=raw_stop, usage=usage), None

    def record(self, block: bytes) -> None:
        """Keep the received data, if the call is traced."""
        if self.raw is not None and self.raw_size < MAX_TRACED:
            self.raw.append(block)
            self.raw_size += len(block)


class HttpProvider(ABC):
    """Base of the adapters for services that are called over HTTP.

    Raises:
        ConfigError: `[model] base_url` is not a plain HTTP address.
    """

    retries_itself: ClassVar[bool] = True
    provider: str
    default_url: ClassVar[str]
    path: ClassVar[str]
    known_options: ClassVar[frozenset[str]]
    parser: ClassVar[type[ChunkParser]]
    decoder: ClassVar[type[Decoder]] = EventDecoder
    headers: ClassVar[Mapping[str, str]] = {"Content-Type": "application/json"}
    key_header: tuple[str, str] = ("Authorization", "Bearer ")
    takes_documents: ClassVar[bool] = True
    tool_form: ClassVar[str] = ""
    """Name of the form of tools; empty: the provider's own form."""
    optional_fields: ClassVar[frozenset[str]] = frozenset({"temperature", "top_p"})
    """Fields of a body that can be left out or renamed if the service refuses them."""
    output_fields: ClassVar[frozenset[str]] = frozenset()
    """Fields that hold the service to a typed answer's schema; empty if it has no such mode."""
    provider_tools: Mapping[str, JsonValue] = {}
    """The tools that the service runs itself, as they are written, by their common name."""

    def __init__(self, config: ModelConfig) -> None:
        url = (config.address or self.default_url).strip().rstrip("/")
        if fault := fault_in_address(url):
            place = config.address_setting or f"${OLLAMA_VARIABLE}"
            raise ConfigError(
                ErrorCode.CONFIG_ERROR,
                f"{place} must be http://host/path or https://host/path: it {fault} "
                f"(provider {self.provider})",
            )
        self._config = config
        self._base = url
        self._url = url + self.path
        self._timeout_s = config.timeout_ms / 1000
        self._first_byte_s = config.first_byte_limit_ms / 1000 or None
        source = config.key_source
        if source is None and config.api_key_command:
            source = KeyCommand(config.api_key_command)
        self._held_key = HeldKey(source) if source else None
        self._sessions: dict[asyncio.AbstractEventLoop, _Session] = {}
        self._route: Route | None = None
        self._closed = False
        self._sink: RawExchangeSink | None = None
        self._images = ImageRules(
            supports_images=config.supports_images, takes_documents=self.takes_documents
        )
        self._refused: dict[str, frozenset[str]] = {}
        self._most_output: dict[str, int] = {}
        self._server = server_of(self._url, config.compat, config.provider)
        self._dialect = dialect_of(self._server, config.compat)
        self._forms = HistoryForms(self._dialect.form)
        self._reply = TaggedReply if self._writes_tags else ReplyAccumulator
        self._fitter = ToolFitter(
            FORMS.get(self.tool_form or type(self).provider, ToolForm(self.provider))
        )
        self._reported: tuple[object, frozenset[str]] = None, frozenset()
        self._named: tuple[Sequence[ToolDefinition], ToolNames] = ((), ToolNames(()))

    @property
    def _writes_tags(self) -> bool:
        """Return whether models may write their reasoning as text, as on local servers."""
        said = self._dialect.think_tags
        return said if said is not None else self._server is None and not is_public(self._url)

    def unreachable_cure(self, called: Called) -> str:
        """Return what to do if the service cannot be reached."""
        return called.address_cure

    def refused(self, model: str) -> frozenset[str]:
        """Return the fields not sent because the service has refused them for this model."""
        return self._refused.get(model, frozenset())

    @property
    def shows_images_apart(self) -> bool:
        """Return whether images of results are in a message of the user after them."""
        return False

    @abstractmethod
    def write_body(self, request: ModelRequest, options: JsonObject, called: Called) -> bytes:
        """Write the request in the service's form, with the provider's own `options`.

        Raises:
            ProviderError: the service has no form for a part of the request.
        """

    def takes_output(self, request: ModelRequest, *, beside_tools: bool) -> bool:  # noqa: ARG002
        """Return whether the model can be held to the schema of a typed answer, also with tools."""
        return bool(self.output_fields)

    def _is_native(self, request: ModelRequest) -> bool:
        """Return whether a typed answer is requested in the service's own schema mode."""
        output = request.output
        if output is None or output.mode == "tool":
            return False
        if self.output_fields & self.refused(request.model):
            return False
        beside_tools = output.mode == "auto" and has_other_tools(request)
        return self.takes_output(request, beside_tools=beside_tools)

    def prepare(self, request: ModelRequest, called: Called) -> PreparedRequest:
        """Write the request in the service's form.

        Raises:
            ProviderError: the service has no form for a part of it.
        """
        is_native = self._is_native(request)
        request = with_output_mode(request, called, is_native=is_native)
        fitted = self._fitter.fit(request.tools, request)
        if fitted.is_changed:
            request = request.model_copy(update={"tools": fitted.tools})
        if request.model in self._most_output:
            most = self._output_limit(request)
            request = request.model_copy(update={"max_output_tokens": most})
        request = self._forms.arranged(request, images_apart=self.shows_images_apart)
        options = own_options(self._config, request, called, known=self.known_options)
        headers = {**self.headers, **cast("dict[str, str]", options.pop(HEADERS, {}))}
        body = self.write_body(request, options, called)
        names = self._names_of(request.tools)
        address = self.address(request.model)
        return PreparedRequest(called, address, body, headers, names, is_native, fitted)

    def _names_of(self, tools: Sequence[ToolDefinition]) -> ToolNames:
        """Return the names on the wire, reusing the last call's if its tools are the same."""
        known, names = self._named
        if len(known) != len(tools) or not all(map(is_, known, tools)):
            names = ToolNames(tool.name for tool in tools)
            self._named = tools, names
        return names

    def own_tools(self, request: ModelRequest) -> list[Any]:
        """Return the wanted tools of the service; those it does not have are left out."""
        offered = self.provider_tools
        return [offered[name] for name in request.provider_tools if name in offered]

    def address(self, model: str) -> str:  # noqa: ARG002 - for services that have it there
        """Return the address for calls of `model`."""
        return self._url

    async def authorized(self, prepared: PreparedRequest, key: str) -> dict[str, str]:
        """Return the headers of one attempt: the prepared ones, and the authentication.

        Raises:
            CallError: there are no credentials.
        """
        name, prefix = self.key_header
        return {**prepared.headers, **({name: prefix + key} if key else {})}

    async def _key_of(self, called: Called) -> str:
        """Return the key of a call; empty if the settings name none.

        Raises:
            ConfigError: the variable with the key is not set.
            CallError: the callable that returns the key failed.
        """
        if self._held_key is not None:
            return await self._held_key.get(called)
        return key_of(self._config, called)

    async def require_ready(self) -> None:
        """Return if a call can be sent; see `Preflight.require_ready`.

        Raises:
            ConfigError: the key is missing, or the route to the service cannot be found.
            ProviderError: `unsupported_capability`: an option is not known.
        """
        called = Called(self.provider, self._config.name)
        own_options(self._config, None, called, known=self.known_options)
        if self._held_key is None:
            key_of(self._config, called)
        self._route = self._route or await find_route(self._url, self._config)

    def trace(self, sink: RawExchangeSink | None) -> None:
        """Report every attempt to `sink` once it is over; None stops that."""
        self._sink = sink

    async def close(self) -> None:
        """Close every connection; open streams fail. Does nothing when called again."""
        self._closed = True
        sessions, self._sessions = self._sessions, {}
        here = running_loop("a model's adapter")
        for loop, session in sessions.items():
            if loop is here:
                await session.keeper.aclose()
            elif not loop.is_closed():
                with suppress(RuntimeError):  # its loop has just been closed
                    asyncio.run_coroutine_threadsafe(session.client.close(), loop)

    async def look_up(
        self, path: str, question: Mapping[str, JsonValue] | None = None, *, from_root: bool = False
    ) -> Mapping[str, JsonValue]:
        """Ask the service something other than a call; empty if it does not answer with JSON.

        Args:
            path: path below `base_url`.
            question: body sent as JSON; without one this is a GET.
            from_root: the path is below the root of the server.

        Raises:
            ConfigError: the key is missing, or the route to the service cannot be found.
        """
        called = Called(self.provider, self._config.name, offers_tools=False)
        try:
            key = await self._key_of(called)
        except CallError:
            return {}
        route = self._route = self._route or await find_route(self._url, self._config)
        name, prefix = self.key_header
        parts = urlsplit(self._base)
        base = f"{parts.scheme}://{parts.netloc}" if from_root else self._base
        try:
            client = await self._open_client(called)
            response = await client.request(
                "GET" if question is None else "POST",
                base.rstrip("/") + path,
                headers={**self.headers, **({name: prefix + key} if key else {})},
                body=None if question is None else orjson.dumps(question),
                route=route,
                silence_s=self._timeout_s,
            )
            response.unpack()
            with closing(response):
                body = b""
                while len(body) < MAX_TRACED and (block := await response.read()):
                    body += block
                found = document_of(body) if response.status == HTTP_OK else None
        except (*_LOST, ValueError):
            return {}
        found = {"data": cast("Any", found)} if found.__class__ is list else found  # Together's
        return cast("Mapping[str, JsonValue]", found) if isinstance(found, Mapping) else {}

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        """Make one model call; see `ProviderAdapter.stream`.

        A service that refuses an optional field is called again without it, and a service that
        refuses pictures in results or in older messages is called again with text in their place;
        later calls do the same from the start.
        """
        require_real_models(self.provider, request.model)
        called = Called(
            self.provider,
            request.model,
            offers_tools=bool(request.tools),
            address_setting=self._config.address_setting,
        )
        self._images.require_newest(request, called)
        asked = self._images.apply(request)
        prepared = self.prepare(asked, called)
        if self._held_key is None:
            key_of(self._config, called)
        route = self._route = self._route or await find_route(self._url, self._config)
        yield ModelStarted.of_checked(
            type="model_started",
            provider=called.provider,
            model=request.model,
            native_output=prepared.is_native,
            left_out=self._left_out(prepared, request),
        )

        worded_for: ErrorPayload | None = None
        made = 0  # attempts, over all forms of the request
        while True:
            begun, refusal = False, None
            async with aclosing(self._tries(asked, prepared, route, made)) as events:
                async for event in events:
                    if isinstance(event, ModelFailed) and not begun:
                        refusal = event.error
                    else:
                        if isinstance(event, ModelRetry):
                            made = event.attempt
                        if worded_for and isinstance(event, ModelCompleted):
                            self._images.learn(worded_for)
                        begun = begun or not isinstance(event, ModelRetry)
                        yield event
            if refusal is None:
                return
            made += 1
            adjusted = self._adjusted(asked, prepared, refusal)
            if adjusted is None and worded_for is None:
                reduced = self._images.reduced(asked, refusal)
                if reduced is not None:
                    worded_for, asked = refusal, reduced
                    adjusted = self.prepare(asked, called)
            if adjusted is None:
                yield ModelFailed(error=refusal)
                return
            prepared = adjusted
            error = with_left_out(refusal, self._left_out(prepared, request))
            yield ModelRetry(attempt=made, delay_ms=0, error=error)

    def _output_limit(self, request: ModelRequest) -> int:
        """Return the longest answer that may be asked for."""
        asked = request.max_output_tokens or self._config.max_output_tokens
        return min(asked, self._most_output.get(request.model, asked))

    def _left_out(self, prepared: PreparedRequest, request: ModelRequest) -> dict[str, str]:
        """Return why tools are left out, by name: each once in a run."""
        faults = prepared.fitted.faults
        return {name: faults[name] for name in self._unreported(faults, request)}

    def _unreported(self, names: Collection[str], request: ModelRequest) -> list[str]:
        """Return the tools whose absence this run has not reported, and count it as reported."""
        if not names:
            return []
        run = request.metadata.get("run_id")
        known: frozenset[str] = self._reported[1] if self._reported[0] == run else frozenset()
        new = [name for name in names if name not in known]
        self._reported = run, known | {*new}
        return new

    def _adjusted(
        self, request: ModelRequest, before: PreparedRequest, refusal: ErrorPayload
    ) -> PreparedRequest | None:
        """Return the request without the refused field, in another form, or for a shorter answer.

        None if the refusal has another reason.

        A service may refuse a schema, or a schema with tools, in its own words: whatever the
        refusal of such a request says, the answer is requested by a tool instead.

        Raises:
            ProviderError: `unsupported_capability`: the requested mode is refused.
        """
        tools = before.fitted.tools
        if self._fitter.leave_out(refusal, tools, request):
            return self.prepare(request, before.called)
        smaller = smaller_output(refusal, self._output_limit(request))
        if smaller is not None:
            self._most_output[request.model] = smaller
            return self.prepare(request, before.called)
        refused = self.refused(request.model)
        named = (
            self.optional_fields | self.output_fields if before.is_native else self.optional_fields
        )
        field = refused_field(refusal, named - refused)
        for _ in self._forms.tries(refusal.details, request.model) if field is None else ():
            prepared = self.prepare(request, before.called)
            if prepared.body != before.body:
                return prepared
        is_auto = request.output is not None and request.output.mode == "auto"
        if field is None and before.is_native and is_auto and is_refused_request(refusal):
            field = min(self.output_fields)
        if field is None:
            is_narrowed = self._fitter.narrow(refusal, tools, request)
            return self.prepare(request, before.called) if is_narrowed else None
        self._refused[request.model] = refused | {field}
        prepared = self.prepare(request, before.called)
        if prepared.body != before.body:
            return prepared
        self._refused[request.model] = refused
        return None

    def _placed(self, prepared: PreparedRequest, route: Route) -> Called:
        """Return the call with what its failures report about the request and its route."""
        size = len(prepared.body)
        return replace(
            prepared.called,
            url=prepared.url,
            proxy=shown_proxy(route),
            size=size,
            is_large=size >= _LEAST_PER_TOKEN * self._config.window,
        )

    async def _tries(
        self, request: ModelRequest, prepared: PreparedRequest, route: Route, before: int
    ) -> AsyncGenerator[ModelEvent]:
        """Make attempts until one succeeds or no more are allowed; `before` were made already.

        A key of a callable that the service refuses is renewed once.
        """
        called = self._placed(prepared, route)
        number, key, is_renewed = 0, "", False
        while True:
            number += 1
            draft = self._reply(called, prepared.names.canonical, history=request.messages)
            raw: list[bytes] | None = [] if self._sink else None
            attempt = _Attempt(called, self.parser(called, draft), self.decoder(), raw=raw)
            failure = None
            try:
                key = await self._key_of(called)
                async with self._posted(attempt, prepared, key, route) as response:
                    attempt.status = response.status
                    await self._check(attempt, response, has_key=bool(key))
                    while block := await self._next_block(attempt, response):
                        for event in attempt.read(block):
                            yield event
                    for event in attempt.finish():
                        yield prepared.fitted.restored(event)
            except CallError as error:
                failure = error
            if self._sink is not None and raw is not None:
                await self._sink(request, _exchange_of(attempt, prepared, key))
            events, failure = attempt.end(failure, prepared.names)
            for event in events:
                yield event
            if failure is None:
                return

            pause_s = None
            if self._held_key and attempt.status == HTTP_UNAUTHORIZED and not is_renewed:
                self._held_key.forget(key)
                is_renewed, pause_s = True, 0.0
            elif not draft.begun:
                pause_s = pause_before_retry_s(self._config.retry, number, failure)
            failure.message = hidden(key, failure.message)
            error = ErrorPayload.of(failure)
            if pause_s is None:
                yield ModelFailed(error=error)
                return
            delay_ms = round(pause_s * 1000)
            yield ModelRetry(attempt=before + number, delay_ms=delay_ms, error=error)
            await asyncio.sleep(pause_s)

    async def _next_block(self, attempt: _Attempt, response: Response) -> bytes:
        """Return the next block; empty once the reply is complete or the stream ends.

        The limit of the first byte holds until a part of the reply itself has come: services
        announce a reply, and then the model thinks.

        Raises:
            CallError: only keep-alive data arrived for longer than a call may be silent.
        """
        parser = attempt.parser
        if attempt.waiting:
            block, attempt.waiting = attempt.waiting, b""
            attempt.record(block)
            return block
        if parser.done:
            if not response.is_read:
                with suppress(*_LOST):  # one read to its end leaves its connection to the next call
                    async with asyncio.timeout(REUSE_S):
                        while await response.read():
                            pass
            return b""
        if parser.draft.begun and not attempt.is_begun:
            attempt.is_begun = True
            response.limit_silence(self._timeout_s)
        clock = asyncio.get_running_loop().time
        if parser.chunks != attempt.chunks or not attempt.last_chunk_at:
            attempt.chunks, attempt.last_chunk_at = parser.chunks, clock()
        elif clock() - attempt.last_chunk_at > self._longest_pause_s(attempt):
            raise attempt.called.broke(
                "was silent for too long",
                "only keep-alive data arrived",
                cure="[model] timeout_ms can be raised",
                code=ErrorCode.PROVIDER_TIMEOUT,
            )
        block = await response.read()  # a stop reason alone ends nothing: more may follow
        attempt.record(block)
        return block

    def _longest_pause_s(self, attempt: _Attempt) -> float:
        """Return how long only signs of life may come."""
        most = KEEPALIVE_LIMIT * self._timeout_s
        return most if attempt.is_begun else max(most, self._first_byte_s or math.inf)

    async def _check(
        self,
        attempt: _Attempt,
        response: Response,
        *,
        has_key: bool,
    ) -> None:
        """Return if the answer is a stream.

        Raises:
            CallError: it is a refusal, a redirect, or a page from something else.
        """
        called, status, kind = attempt.called, response.status, response.media_type
        is_json = kind == "application/json" and self.decoder is EventDecoder
        if status == HTTP_OK and not (kind == "text/html" or is_json):
            return
        if 300 <= status < 400 and (location := response.headers.get("Location")):
            raise called.redirected(status, location, base=self._base)
        body = b""
        with suppress(*_LOST):  # read what is available of the body: the status matters most
            async with asyncio.timeout(self._timeout_s):
                while len(body) < MAX_ERROR_BODY and (block := await response.read()):
                    body += block
                    if status == HTTP_OK and attempt.decoder.may_begin(body):
                        attempt.waiting = body  # events, whatever they are labelled as
                        return
        body = body[:MAX_ERROR_BODY]
        attempt.record(body)
        if status < 400:
            raise called.answered_otherwise(body, status)
        document = document_of(body)
        explanation = explanation_in(document)
        if status == HTTP_PROXY_AUTH and called.proxy:
            raise called.refused_by_proxy(status, explanation, response.headers)
        asked_s = retry_after_s(response.headers)
        failure = called.refused(
            status,
            explanation,
            retry_after_s=retry_delay_in(document) if asked_s is None else asked_s,
            document=document,
            has_key=has_key,
        )
        if response.headers.get("X-Should-Retry") == "false":
            failure.retryable = False
        raise failure

    @asynccontextmanager
    async def _posted(
        self, attempt: _Attempt, prepared: PreparedRequest, key: str, route: Route
    ) -> AsyncGenerator[Response]:
        """Yield the response to one POST; closes its connection unless it was read to its end.

        Raises:
            CallError: the request or the response failed on its way.
        """
        called = attempt.called
        headers = await self.authorized(prepared, key)
        try:
            client = await self._open_client(called)
            response = await client.request(
                "POST",
                prepared.url,
                headers=headers,
                body=prepared.body,
                route=route,
                silence_s=self._first_byte_s,
            )
            response.unpack()
            with closing(response):
                yield response
        except CallError:
            raise
        except (TimeoutError, HttpError) as error:
            is_first = not attempt.is_begun and self._first_byte_s != self._timeout_s
            raise failure_of(
                error,
                called,
                limit="first_byte_ms" if is_first else "timeout_ms",
                limit_s=(self._first_byte_s or 0.0) if is_first else self._timeout_s,
                cure=self.unreachable_cure(called),
            ) from error

    async def _open_client(self, called: Called) -> Client:
        """Return the client of this event loop: connections belong to the loop that made them."""
        if self._closed:
            raise called.protocol_error("was called after its adapter had been closed")
        here = running_loop("a model's adapter")
        if (session := self._sessions.get(here)) is None:
            for loop in tuple(self._sessions):
                if loop.is_closed():
                    self._sessions.pop(loop, None)
            client = Client(headers=_HEADERS, most=MAX_CONNECTIONS, connect_s=self._timeout_s)
            keeper = closed_with_loop(client)
            session = self._sessions[here] = _Session(client, keeper)
            await anext(keeper)
        return session.client


def _exchange_of(attempt: _Attempt, prepared: PreparedRequest, key: str) -> RawExchange:
    """Return the traffic of an attempt without the key."""
    received = b"".join(attempt.raw or ())[:MAX_TRACED]
    return RawExchange(
        provider=prepared.called.provider,
        model=prepared.called.model,
        url=prepared.url,
        request=prepared.body,
        status=attempt.status,
        response=received.replace(key.encode(), b"[redacted]") if key else received,
    )
