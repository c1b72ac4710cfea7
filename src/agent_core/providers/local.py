"""A GGUF file run inside this process by llama.cpp, through the optional package `xllamacpp`.

Loading and generating happen in their own threads. The engine works on one reply at a time; further
calls wait for their turn. A cancelled reply is abandoned at once, although the engine notices it
only at the next token. `[model] timeout_ms` limits the time between tokens; a prompt takes as long
as it takes, unless `first_byte_ms` or `timeout_ms` is set.
"""

import asyncio
import secrets
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from typing import Any, Protocol, cast

from msgspec import Struct

from agent_core.aio.loops import LoopLock, used_elsewhere
from agent_core.config.models import ModelConfig, expand_home
from agent_core.errors import ConfigError, ErrorCode
from agent_core.opening import read_text, refuse_open_database
from agent_core.providers.arranging import HistoryForms
from agent_core.providers.base import require_real_models
from agent_core.providers.compat import dialect_of
from agent_core.providers.failures import UNREAD_CALL, Called, CallError
from agent_core.providers.images import ImageRules
from agent_core.providers.openai_wire import OpenAIChunks, OpenAIRequests
from agent_core.providers.output_schema import has_other_tools, with_output_mode
from agent_core.providers.reply import ReplyAccumulator
from agent_core.providers.requests import (
    EXTRA_BODY,
    ToolNames,
    effort_of,
    own_options,
    sampling_fields,
)
from agent_core.providers.think_tags import TaggedReply
from agent_core.providers.tool_forms import FORMS, ToolFitter
from agent_core.text import bounded_line
from agent_core.text.json_text import JsonObject, JsonValue, table
from agent_core.types import (
    ErrorPayload,
    ModelEvent,
    ModelFailed,
    ModelRequest,
    ModelRetry,
    ModelStarted,
    Usage,
)

KEY = "local"
KNOWN_OPTIONS = frozenset(
    {
        "chat_template_kwargs",
        "frequency_penalty",
        "json_schema",
        "min_p",
        "presence_penalty",
        "repeat_penalty",
        "response_format",
        "seed",
        "top_k",
        "top_p",
        EXTRA_BODY,
    }
)


class Engine(Protocol):
    """The part of `xllamacpp.Server` that is used."""

    def handle_chat_completions(
        self, prompt: str, callback: Callable[[str | JsonObject], bool]
    ) -> None:
        """Generate a reply; `callback` gets each chunk in this thread, and returns true to stop."""
        ...


class _Ended(Struct, frozen=True):
    """The end of the engine's reply, with the reason if it refused the request."""

    reason: str | None


class LocalProvider:
    """The adapter of one model file.

    Args:
        load: creates the engine; it runs in a thread, when the first reply is requested.
    """

    def __init__(self, config: ModelConfig, load: Callable[[], Engine]) -> None:
        self._config = config
        self._load = load
        self._requests = OpenAIRequests(KEY)
        dialect = dialect_of(config.compat.server, config.compat)
        self._forms = HistoryForms(dialect.form)
        self._reply_class = ReplyAccumulator if dialect.think_tags is False else TaggedReply
        self._fitter = ToolFitter(FORMS[KEY])
        self._loading: asyncio.Task[Engine] | None = None
        self._turn = LoopLock("the adapter of the model file")
        self._stops: set[threading.Event] = set()
        self._closed = False

    async def close(self) -> None:
        """Stop generating and release the model's memory. Does nothing when called again."""
        self._closed = True
        for stop in self._stops:
            stop.set()
        if self._loading is not None:
            held = [self._loading]
            self._loading = None
            if not held[0].done():  # otherwise its event loop may have ended
                await asyncio.wait(held)
            # Destroying the engine takes a while, and happens where its last reference is dropped:
            # here, or in the thread of a reply that has not noticed yet.
            await asyncio.to_thread(held.clear)

    async def require_ready(self) -> None:
        """Return if a call can be made; see `Preflight.require_ready`.

        Raises:
            ProviderError: `unsupported_capability`: an option is not known.
        """
        called = Called(KEY, self._config.name)
        own_options(self._config, None, called, known=KNOWN_OPTIONS)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        """Make one model call; see `ProviderAdapter.stream`.

        Raises:
            ConfigError: the model file cannot be loaded.
        """
        require_real_models(KEY, request.model)
        called = Called(KEY, request.model, offers_tools=bool(request.tools))
        output = request.output
        is_alone = output is not None and (output.mode == "native" or not has_other_tools(request))
        is_native = output is not None and output.mode != "tool" and is_alone
        request = with_output_mode(request, called, is_native=is_native)
        fitted = self._fitter.fit(request.tools)
        if fitted.is_changed:
            request = request.model_copy(update={"tools": fitted.tools})
        options = own_options(self._config, request, called, known=KNOWN_OPTIONS)
        extra = table(options.pop(EXTRA_BODY, None))
        head = sampling_fields(self._config, request, "max_tokens", seed="seed")
        head["stream_options"] = {"include_usage": True}
        if request.output is not None:
            head["response_format"] = {
                "type": "json_schema",
                "json_schema": {"schema": request.output.output_schema},
            }
        if effort := effort_of(self._config, request):  # each model's template knows one of the two
            thinks = effort != "none"
            head["chat_template_kwargs"] = {
                "enable_thinking": thinks,
                **({"reasoning_effort": effort} if thinks else {}),
            }
        # An engine without a projector takes no pictures.
        rules = ImageRules(supports_images=False)
        rules.require_newest(request, called)
        request = rules.apply(request)
        fields = {**head, **options, **extra}
        body = self._written(request, fields, called)
        names = ToolNames(tool.name for tool in request.tools)
        engine = await self._engine()
        yield ModelStarted(
            provider=KEY,
            model=request.model,
            native_output=is_native,
            left_out=fitted.faults,
        )
        for number in count(1):
            draft = self._reply_class(called, names.canonical, history=request.messages)
            refusal: CallError | None = None
            try:
                async with aclosing(self._reply(engine, body, called, draft, names)) as events:
                    async for event in events:
                        yield event
            except CallError as failure:
                for event in draft.rest():
                    yield event
                refusal = failure
            if refusal is None:
                return
            error = ErrorPayload.of(refusal)
            adjusted = None if draft.begun else self._adjusted(request, fields, called, body, error)
            if adjusted is None:
                yield ModelFailed(error=error)
                return
            body = adjusted
            yield ModelRetry(attempt=number, delay_ms=0, error=error)

    async def _reply(
        self, engine: Engine, body: str, called: Called, draft: ReplyAccumulator, names: ToolNames
    ) -> AsyncGenerator[ModelEvent]:
        """Yield the events of one attempt; a call that the engine could not parse is invalid.

        Raises:
            CallError: the engine refused the request, or took too long.
        """
        parser = OpenAIChunks(called, draft)
        try:
            async with aclosing(self._chunks(engine, body, called)) as chunks:
                async for chunk in chunks:
                    if isinstance(chunk, dict):
                        parser.take_chunk(chunk)
                    else:
                        parser.take(chunk.encode())
                    for event in draft.deltas():
                        yield event
            last = parser.finish()
        except CallError as failure:
            if UNREAD_CALL not in failure.details:
                raise
            last = draft.finish_unread(failure, names, raw_stop=None, usage=Usage())
        for event in last:
            yield event

    def _written(
        self, request: ModelRequest, fields: Mapping[str, JsonValue], called: Called
    ) -> str:
        """Write the body, in the form that the template of the model accepts."""
        reasoning = self._forms.of(request.model).reasoning
        request = self._forms.arranged(request)
        return self._requests.body(request, fields, called, reasoning=reasoning).decode()

    def _adjusted(
        self,
        request: ModelRequest,
        fields: Mapping[str, JsonValue],
        called: Called,
        body: str,
        refusal: ErrorPayload,
    ) -> str | None:
        """Return the body in another form of the conversation, if the template refuses this one."""
        for _ in self._forms.tries(refusal.details, request.model):
            adjusted = self._written(request, fields, called)
            if adjusted != body:
                return adjusted
        return None

    async def _engine(self) -> Engine:
        """Return the loaded engine. Loading continues if a caller is cancelled."""
        loading = self._loading
        if loading is not None and not loading.done():
            loop = loading.get_loop()
            if loop.is_closed():
                self._loading = None
            elif loop is not asyncio.get_running_loop():
                raise used_elsewhere("the adapter of the model file")
        if self._loading is None:
            self._loading = asyncio.create_task(asyncio.to_thread(self._load))
            # A failure that no caller awaits any more is not reported as unhandled.
            self._loading.add_done_callback(lambda task: task.cancelled() or task.exception())
        loading = self._loading
        try:
            return await asyncio.shield(loading)
        except ConfigError:
            self._loading = None  # the file may exist the next time
            raise

    async def _chunks(
        self, engine: Engine, body: str, called: Called
    ) -> AsyncGenerator[str | JsonObject]:
        """Yield the engine's output as it arrives.

        Raises:
            CallError: the engine refused the request, or took too long.
        """
        said: asyncio.Queue[str | JsonObject | _Ended] = asyncio.Queue()
        stop = threading.Event()
        loop = asyncio.get_running_loop()

        def ended(reason: str | None) -> None:
            self._stops.discard(stop)
            self._turn.release()
            said.put_nowait(_Ended(reason))

        await self._turn.acquire()
        if self._closed:
            self._turn.release()
            raise called.protocol_error("was asked after its adapter had been closed")
        self._stops.add(stop)
        tell = partial(loop.call_soon_threadsafe, said.put_nowait)
        generation = _Generation(engine, body, stop=stop, tell=tell)
        finish = partial(loop.call_soon_threadsafe, ended)
        # A daemon, so that a long prompt does not delay the end of the program.
        threading.Thread(target=generation.run, args=(finish,), daemon=True).start()
        limit_ms = self._config.first_byte_limit_ms
        try:
            while True:
                async with asyncio.timeout(limit_ms / 1000 or None):
                    chunk = await said.get()
                limit_ms = self._config.timeout_ms
                if isinstance(chunk, _Ended):
                    break
                yield chunk
        except TimeoutError as error:
            raise called.broke(
                "was silent for too long",
                "nothing arrived in time",
                cure="[model] timeout_ms can be raised",
                code=ErrorCode.PROVIDER_TIMEOUT,
            ) from error
        finally:
            stop.set()
        if chunk.reason is not None:
            raise called.refused(400, chunk.reason)


class _Generation:
    """One reply, generated in a thread."""

    def __init__(
        self, engine: Engine, body: str, *, stop: threading.Event, tell: Callable[[Any], object]
    ) -> None:
        self._engine = engine
        self._body = body
        self._stop = stop
        self._tell = tell

    def run(self, finish: Callable[[str | None], object]) -> None:
        """Generate until the end or until the reply is stopped."""

        def take(chunk: str | JsonObject) -> bool:
            if not self._stop.is_set():
                try:
                    self._tell(chunk)
                except RuntimeError:
                    self._stop.set()
            return self._stop.is_set()

        reason = None
        try:
            self._engine.handle_chat_completions(self._body, take)
        except Exception as error:  # noqa: BLE001  whatever the engine raises is its answer
            reason = bounded_line(str(error)) or type(error).__name__
        del self._engine
        with suppress(RuntimeError):  # the loop has ended, and the reply with it
            finish(reason)


def create(config: ModelConfig) -> LocalProvider:
    """Create the adapter for `provider = "local"`. The file is loaded when it is first needed.

    Raises:
        ConfigError: the extra is not installed, or `[model] path` is not a file.
    """
    if find_spec("xllamacpp") is None:
        from agent_core.installation import extra_command  # noqa: PLC0415 - rarely missing

        cure = extra_command("local")
        raise ConfigError(
            ErrorCode.CONFIG_ERROR,
            f'[model] provider = "local" needs the extra local; to install it:\n{cure}',
        )
    if not config.path or not expand_home(config.path).is_file():
        raise ConfigError(
            ErrorCode.CONFIG_ERROR,
            f'[model] provider = "local" needs path = "<file.gguf>", the model to run; '
            f"{config.path!r} is no file",
        )
    return LocalProvider(config, partial(load_engine, config))


def load_engine(config: ModelConfig) -> Engine:
    """Load the model into this process; takes seconds.

    Raises:
        ConfigError: llama.cpp cannot load the file.
    """
    xllamacpp = cast("Any", import_module("xllamacpp"))
    params = xllamacpp.CommonParams()
    params.model.path = str(expand_home(config.path or ""))
    params.n_ctx = config.window
    params.n_parallel = 1
    params.use_jinja = True
    params.verbosity = -1
    # The engine opens a port on this host; without this key it refuses every request there.
    params.api_keys = [secrets.token_hex(32)]
    params.ui = params.endpoint_slots = False
    if config.chat_template:
        template = config.chat_template
        if "{" not in template:  # it is the name of a file
            try:
                template = read_text(expand_home(template))
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(
                    ErrorCode.CONFIG_ERROR,
                    f"[model] chat_template = {template!r} is neither a template nor a readable "
                    "file",
                ) from error
        params.chat_template = template
    if config.threads:
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = config.threads
    try:
        refuse_open_database(params.model.path)
        engine: Engine = xllamacpp.Server(params)
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            ErrorCode.CONFIG_ERROR,
            f"the model file {config.path} cannot be loaded: {bounded_line(str(error))}",
        ) from error
    return engine
