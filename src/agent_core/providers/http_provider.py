"""A model call over HTTP: one session per adapter, retries before the first delta, nothing after.

What a service expects and answers is its `Dialect`; everything that is the same for all of them
is here: keys, connections, timeouts, attempts, cancellation.
"""

import asyncio
import io
import os
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

import aiohttp

from agent_core.config.models import ModelConfig
from agent_core.errors import ConfigError, ErrorCode
from agent_core.providers.base import RawExchange, RawExchangeSink
from agent_core.providers.decoding import Decoder
from agent_core.providers.failures import Called, CallError, explanation_of
from agent_core.providers.reply import ChunkParser
from agent_core.providers.requests import has_result_images, without_result_images
from agent_core.providers.retry import pause_before_retry_s, retry_after_s
from agent_core.types import (
    ErrorPayload,
    ModelCompleted,
    ModelEvent,
    ModelFailed,
    ModelRequest,
    ModelRetry,
    ModelStarted,
)

MAX_CONNECTIONS = 1000
MAX_ERROR_BODY = 64 * 1024
MAX_TRACED = 4 * 1024 * 1024
LARGE_BODY = 1024 * 1024
TAIL_S = 5.0
"""How long usage and the end of the stream may take after the stop reason."""
REUSE_S = 0.05
"""How long the connection may take to become free after the last event."""
KEEPALIVE_LIMIT = 10
"""Comments and pings alone hold a call open for this many times the timeout."""

_IMAGE_REFUSALS = {400, 415, 422}
HTTP_TOO_LARGE = 413


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request in a service's own words. `new_parser` makes the parser of one attempt."""

    body: bytes
    headers: Mapping[str, str]
    new_parser: Callable[[], ChunkParser]


class Dialect(Protocol):
    """How one kind of service is spoken to. Holds no connection; may keep serialised history."""

    provider: str
    default_url: str
    path: str
    is_event_stream: bool

    def prepare(self, request: ModelRequest, called: Called) -> Prepared:
        """Say the request in the service's words.

        Raises:
            ProviderError: there is no way to say it.
        """
        ...

    def key_header(self, key: str) -> tuple[str, str]:
        """Name and value of the header that carries the key."""
        ...

    def new_decoder(self) -> Decoder:
        """The decoder of one stream."""
        ...


@dataclass(slots=True)
class _Attempt:
    """One try of one call: what is sent, who reads the answer, what came back."""

    called: Called
    prepared: Prepared
    key: str
    headers: dict[str, str]
    parser: ChunkParser
    status: int | None = None
    raw: list[bytes] | None = None
    raw_size: int = 0

    def record(self, block: bytes) -> None:
        """Keep what came back, if somebody wants to see it."""
        if self.raw is not None and self.raw_size < MAX_TRACED:
            self.raw.append(block)
            self.raw_size += len(block)


class HttpProvider:
    """The adapter of every service that is reached over HTTP.

    Raises:
        ConfigError: `[model] base_url` is not a plain HTTP address.
    """

    def __init__(self, config: ModelConfig, dialect: Dialect) -> None:
        self._config = config
        self._dialect = dialect
        self._url = _base_url(config, dialect) + dialect.path
        self._timeout_s = config.timeout_ms / 1000
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        self._sink: RawExchangeSink | None = None
        self._shows_result_images = True

    def trace(self, sink: RawExchangeSink | None) -> None:
        """Give `sink` every attempt once it is over; None stops that."""
        self._sink = sink

    async def close(self) -> None:
        """Close every connection; streams that are open fail. Harmless when called again."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        """Make one model call; see `ProviderAdapter.stream`.

        A service that refuses the pictures in results is asked again with words in their place,
        and given words from then on if it takes those.
        """
        called = Called(self._dialect.provider, request.model, offers_tools=bool(request.tools))
        has_images = has_result_images(request.messages)
        shows_images = has_images and self._shows_result_images
        worded = without_result_images(request) if has_images else request
        prepared = self._dialect.prepare(request if shows_images else worded, called)
        key = _key(self._config, called)
        yield ModelStarted(provider=called.provider, model=request.model)

        refusal: ErrorPayload | None = None
        async with aclosing(self._tries(request, called, prepared, key=key)) as events:
            async for event in events:
                if shows_images and isinstance(event, ModelFailed) and _is_of_images(event.error):
                    refusal = event.error
                else:
                    yield event
        if refusal is None:
            return
        yield ModelRetry(attempt=1, delay_ms=0, error=refusal)
        prepared = self._dialect.prepare(worded, called)
        async with aclosing(self._tries(worded, called, prepared, key=key)) as events:
            async for event in events:
                if isinstance(event, ModelCompleted):
                    self._shows_result_images = False
                yield event

    async def _tries(
        self, request: ModelRequest, called: Called, prepared: Prepared, *, key: str
    ) -> AsyncGenerator[ModelEvent]:
        """As many attempts as it takes, or as there may be."""
        number = 0
        while True:
            number += 1
            attempt = self._attempt(called, prepared, key)
            failure = None
            try:
                async with aclosing(self._events(attempt)) as events:
                    async for event in events:
                        yield event
            except CallError as error:
                failure = error
            await self._report(request, attempt)
            if failure is None:
                return

            for event in attempt.parser.draft.rest():
                yield event
            pause_s = None
            if not attempt.parser.draft.begun:
                pause_s = pause_before_retry_s(self._config.retry, number, failure)
            error = ErrorPayload.of(_without_key(failure, key))
            if pause_s is None:
                yield ModelFailed(error=error)
                return
            yield ModelRetry(attempt=number, delay_ms=round(pause_s * 1000), error=error)
            await asyncio.sleep(pause_s)

    def _attempt(self, called: Called, prepared: Prepared, key: str) -> _Attempt:
        headers = {"Content-Type": "application/json", **prepared.headers}
        if key:
            name, value = self._dialect.key_header(key)
            headers[name] = value
        raw: list[bytes] | None = [] if self._sink else None
        return _Attempt(called, prepared, key, headers, prepared.new_parser(), raw=raw)

    async def _events(self, attempt: _Attempt) -> AsyncGenerator[ModelEvent]:
        """The events of one attempt: one delta per block and network read.

        Raises:
            CallError: it failed; what arrived before is in the draft.
        """
        parser = attempt.parser
        decoder = self._dialect.new_decoder()
        async with self._posted(attempt) as response:
            await self._check(attempt, response)
            async with aclosing(self._blocks(attempt, response)) as blocks:
                async for block in blocks:
                    for payload in decoder.feed(block):
                        parser.take(payload)
                        if parser.done:
                            break
                    for event in parser.draft.deltas():
                        yield event
            if not parser.done:
                _take_rest(parser, decoder)
            for event in parser.finish():
                yield event

    async def _blocks(
        self, attempt: _Attempt, response: aiohttp.ClientResponse
    ) -> AsyncGenerator[bytes]:
        """What the network gives, until the reply is complete or the stream ends."""
        parser, content = attempt.parser, response.content
        clock = asyncio.get_running_loop().time
        heard = clock()
        while not parser.done:
            if parser.raw_stop is None:
                block = await content.readany()
            else:
                block = await _tail(content)
            if not block:
                return
            attempt.record(block)
            seen = parser.chunks
            yield block
            if parser.chunks != seen:
                heard = clock()
            elif clock() - heard > KEEPALIVE_LIMIT * self._timeout_s:
                raise attempt.called.broke(
                    "sent nothing but signs of life", code=ErrorCode.PROVIDER_TIMEOUT
                )
        await _drain(content)

    async def _check(self, attempt: _Attempt, response: aiohttp.ClientResponse) -> None:
        """Return if the answer is a stream.

        Raises:
            CallError: it is a refusal, a redirect, or a page from something else.
        """
        called, status = attempt.called, response.status
        attempt.status = status
        kind = response.content_type
        if status == 200 and not (
            kind == "text/html" or (self._dialect.is_event_stream and kind == "application/json")
        ):
            return
        if 300 <= status < 400:
            raise called.protocol_error(
                f"redirects from {self._url} (status {status}), and a key is never sent to another "
                "address: set [model] base_url to the final one"
            )
        body = await _start_of(response.content, self._timeout_s)
        attempt.record(body)
        explanation = explanation_of(body, kind)
        if status < 400:
            raise called.protocol_error(
                f"answered {self._url} with no stream of events: {explanation}"
            )
        if status in {401, 403} and not attempt.key:
            explanation += "; no key was sent, [model] api_key_env can name one"
        raise called.refused(
            status, explanation, url=self._url, retry_after_s=retry_after_s(response.headers)
        )

    @asynccontextmanager
    async def _posted(self, attempt: _Attempt) -> AsyncGenerator[aiohttp.ClientResponse]:
        """The answer to one POST; its connection is closed at once unless it was read to its end.

        Raises:
            CallError: for everything that goes wrong on the way, there or back.
        """
        with _as_call_errors(attempt.called, self._url):
            body = attempt.prepared.body
            response = await self._open_session(attempt.called).post(
                self._url,
                data=io.BytesIO(body) if len(body) > LARGE_BODY else body,
                headers=attempt.headers,
                allow_redirects=False,
            )
            try:
                yield response
            finally:
                if response.content.at_eof():
                    response.release()
                else:
                    response.close()

    def _open_session(self, called: Called) -> aiohttp.ClientSession:
        if self._closed:
            raise called.protocol_error("was asked after its adapter had been closed")
        if self._session is None:
            timeout = self._timeout_s
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=MAX_CONNECTIONS),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": "soong-agent"},
                # No total: an answer may take as long as it keeps coming.
                timeout=aiohttp.ClientTimeout(
                    total=None, connect=timeout, sock_connect=timeout, sock_read=timeout
                ),
            )
        return self._session

    async def _report(self, request: ModelRequest, attempt: _Attempt) -> None:
        if self._sink is None or attempt.raw is None:
            return
        called = attempt.called
        exchange = RawExchange(
            provider=called.provider,
            model=called.model,
            url=self._url,
            request=attempt.prepared.body,
            status=attempt.status,
            response=b"".join(attempt.raw)[:MAX_TRACED],
        )
        await self._sink(request, exchange)


async def _start_of(content: aiohttp.StreamReader, timeout_s: float) -> bytes:
    """The beginning of a refusal's body, or what can be had of it: the status says the most."""
    blocks: list[bytes] = []
    with suppress(TimeoutError, aiohttp.ClientError, OSError):
        async with asyncio.timeout(timeout_s):
            while sum(map(len, blocks)) < MAX_ERROR_BODY and (block := await content.readany()):
                blocks.append(block)
    return b"".join(blocks)[:MAX_ERROR_BODY]


def _take_rest(parser: ChunkParser, decoder: Decoder) -> None:
    """Read what stands behind the last line end. A torn rest after the stop changes nothing."""
    try:
        for payload in decoder.end():
            parser.take(payload)
    except CallError:
        if parser.raw_stop is None:
            raise


async def _tail(content: aiohttp.StreamReader) -> bytes:
    """What follows the stop reason: usage, if the service is quick about it."""
    try:
        async with asyncio.timeout(TAIL_S):
            return await content.readany()
    except (TimeoutError, aiohttp.ClientError, OSError):
        return b""


async def _drain(content: aiohttp.StreamReader) -> None:
    """Read to the end, if it is there, so that the connection can serve the next call."""
    with suppress(TimeoutError, aiohttp.ClientError, OSError):
        async with asyncio.timeout(REUSE_S):
            while not content.at_eof() and await content.readany():
                pass


@contextmanager
def _as_call_errors(called: Called, url: str) -> Generator[None]:
    """Name what the HTTP client raises in our words."""
    try:
        yield
    except CallError:
        raise
    except TimeoutError as error:
        message = f"was silent for too long at {url} ([model] timeout_ms)"
        raise called.broke(message, code=ErrorCode.PROVIDER_TIMEOUT) from error
    except aiohttp.ClientSSLError as error:
        raise called.protocol_error(f"cannot be trusted at {url}: {_reason(error)}") from error
    except aiohttp.ClientConnectorError as error:
        raise called.unreachable(url, _reason(error)) from error
    except (aiohttp.InvalidURL, aiohttp.ClientResponseError, aiohttp.ContentTypeError) as error:
        raise called.protocol_error(f"answered {url} with something that is not HTTP") from error
    except (aiohttp.ClientError, OSError) as error:
        raise called.broke(f"lost the connection at {url}: {type(error).__name__}") from error


def _reason(error: aiohttp.ClientConnectorError) -> str:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return str(error.certificate_error)
    fault = error.os_error
    if fault.errno is not None and fault.errno > 0:
        return os.strerror(fault.errno)
    return fault.strerror or str(fault)


def _base_url(config: ModelConfig, dialect: Dialect) -> str:
    url = (config.base_url or dialect.default_url).strip().rstrip("/")
    scheme, _, rest = url.partition("://")
    if scheme not in {"http", "https"} or not rest or any(char in rest for char in "?#@ "):
        raise ConfigError(
            ErrorCode.CONFIG_ERROR,
            "[model] base_url must be http://host/path or https://host/path, without a name, a "
            f"password or a query (provider {dialect.provider})",
        )
    return url


def _key(config: ModelConfig, called: Called) -> str:
    """The key from the environment, or nothing if the configuration names no variable."""
    name = config.api_key_env
    if not name:
        return ""
    key = os.environ.get(name, "").strip()
    where = (
        f"[model] api_key_env (or a profile of [model_overrides]) names it as the key of provider "
        f"{called.provider}, model {called.model}"
    )
    if not key:
        raise ConfigError(
            ErrorCode.CONFIG_ERROR,
            f"the environment variable {name} is not set; {where}. "
            'Set it, or say api_key_env = "" if the service takes no key',
            details={**called.details, "variable": name},
        )
    if not key.isascii() or not key.isprintable():
        raise ConfigError(
            ErrorCode.CONFIG_ERROR,
            f"the value of {name} has characters that no key has; {where}",
            details={**called.details, "variable": name},
        )
    return key


def _is_of_images(error: ErrorPayload) -> bool:
    """Whether the pictures in results may be why a call was refused."""
    missing = error.details.get("capability")
    if missing is not None:
        return missing == "images"
    status = error.details.get("status")
    too_large = error.code is ErrorCode.PROMPT_TOO_LONG and status == HTTP_TOO_LARGE
    return too_large or (error.code is ErrorCode.PROVIDER_ERROR and status in _IMAGE_REFUSALS)


def _without_key(failure: CallError, key: str) -> CallError:
    """Services repeat the key they refuse; it must not be stored or shown."""
    if key and key in failure.message:
        failure.message = failure.message.replace(key, "[redacted]")
    return failure
