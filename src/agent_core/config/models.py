"""The configuration file as types: every section, every key, every default."""

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    Tag,
    model_validator,
)

from agent_core.config.model_names import model_fields
from agent_core.config.proxies import checked_proxy
from agent_core.config.rules import Rules
from agent_core.config.section import Section
from agent_core.config.servers import OLLAMA_VARIABLE, is_public, ollama_address
from agent_core.config.services import (
    SERVICES,
    provider_named,
    public_service,
)
from agent_core.config.stores import (
    LONGEST_MS,
    RunWorkerConfig,
    StoreConfig,
    WorkspaceConfig,
)
from agent_core.config.terminal import TerminalConfig
from agent_core.errors import ConfigError, ErrorCode
from agent_core.types.options import (
    Amount,
    Dollars,
    ProviderTools,
    ReasoningEffort,
    Seconds,
    Temperature,
)

_MOST_TOKENS = 1_000_000_000
_MOST_BYTES = 2**30
_MOST = 1_000_000

# Every number of a configuration has limits: a number that no machine could honour would overflow a
# clock or a buffer long after it was written.
Milliseconds = Annotated[int, Field(gt=0, le=LONGEST_MS)]
Pause = Annotated[int, Field(ge=0, le=LONGEST_MS)]
Tokens = Annotated[int, Field(gt=0, le=_MOST_TOKENS)]
TokenRoom = Annotated[int, Field(ge=0, le=_MOST_TOKENS)]
Bytes = Annotated[int, Field(gt=0, le=_MOST_BYTES)]
Count = Annotated[int, Field(gt=0, le=_MOST)]
CountOrNone = Annotated[int, Field(ge=0, le=_MOST)]
Threads = Annotated[int, Field(gt=0, le=4096)]
OpenAIProtocol = Literal["auto", "responses", "chat"]


ServerName = Literal[
    "azure",
    "cerebras",
    "deepseek",
    "fireworks",
    "gemini",
    "github",
    "groq",
    "llamacpp",
    "lmstudio",
    "minimax",
    "mistral",
    "moonshot",
    "openai",
    "openrouter",
    "qwen",
    "sglang",
    "snowflake",
    "together",
    "vllm",
    "xai",
    "zhipu",
]
"""Servers whose support for chat completions is known."""


def _sendable(options: dict[str, Any]) -> dict[str, Any]:
    """Check that JSON can carry the options: TOML also has infinities, dates and long integers."""
    pending: list[object] = [options]
    while pending:
        value = pending.pop()
        match value:
            case dict():
                table = cast("dict[Any, object]", value)
                if unfit := [key for key in table if not isinstance(key, str)]:
                    raise ValueError(f"must have strings as keys, not {unfit[0]!r}")
                pending.extend(table.values())
            case list():
                pending.extend(cast("list[object]", value))
            case None | str() | bool():
                pass
            case int() if -(2**63) <= value < 2**64:
                pass
            case float() if math.isfinite(value):
                pass
            case _:
                raise ValueError(
                    "must hold what JSON can: strings, true and false, finite numbers of 64 bits,"
                    f" arrays and tables; a value in it is of type {type(value).__name__}"
                )
    return options


ProviderOptions = Annotated[dict[str, Any], AfterValidator(_sendable)]


def _variable_name(value: str) -> str:
    # If the key itself was pasted here, an error message must not repeat it.
    if value and not (value.isascii() and value.isidentifier()):
        raise ValueError("must be the name of an environment variable, never the key itself")
    return value


ProviderName = Annotated[str, Field(min_length=1), AfterValidator(provider_named)]
"""Key of a provider; the spellings of a service's name are one key."""

KeyCommandLine = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]
"""A program and its arguments; it prints a key, or JSON with a key and the time it expires."""

VariableName = Annotated[str, AfterValidator(_variable_name)]
"""Name of an environment variable that holds a secret; empty for no secret."""


def _proxy_address(value: str) -> str:
    if value:
        try:
            checked_proxy(value, "it")
        except ConfigError as error:
            raise ValueError(error.message.removeprefix("it ")) from None
    return value


ProxyAddress = Annotated[str, AfterValidator(_proxy_address)]
"""`http://host:port` or `https://host:port`; empty for no proxy."""


class RetryConfig(Section):
    """Number of attempts of a model call, and the pauses between them in milliseconds."""

    max_attempts: Annotated[int, Field(gt=0, le=1000)] = 3
    initial_backoff_ms: Pause = 500
    max_backoff_ms: Pause = 8000


class CompatConfig(Section):
    """The parts of OpenAI's chat completions that a server supports, where servers differ.

    A key that is not set is taken from the server's row in `providers.compat`, which is chosen by
    `server`, or else by the host of `base_url`.
    """

    server: ServerName | None = None
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] | None = None
    stream_options: bool | None = None
    strict_tools: bool | None = None
    tool_result_images: Literal["user", "parts", "none"] | None = None
    tool_call_ids: Literal["any", "nine"] | None = None
    named_tool_choice: bool | None = None
    tool_choice: bool | None = None
    parallel_tool_calls: bool | None = None
    temperature: bool | None = None
    reasoning_effort: bool | None = None
    reasoning_field: Literal["reasoning_effort", "thinking", "enable_thinking"] | None = None
    json_schema: Literal["always", "alone", "never"] | None = None
    key_header: Literal["authorization", "api-key"] | None = None
    roles: Literal["free", "no_user_after_tool", "alternate"] | None = None
    system_role: bool | None = None
    reasoning_history: Literal["own", "always", "never"] | None = None
    think_tags: bool | None = None


class PriceConfig(Section):
    """Prices of a model, in US dollars for a million tokens.

    If neither `input` nor `output` is set, the public price lists apply; if one is set, the other
    is free. Without a price of their own, tokens that are read from a cache or written to one cost
    as much as other tokens of the prompt, and those that are kept for an hour as much as the others
    that are written. `searches` is the price of a thousand searches that the service runs itself.
    """

    input: Dollars | None = None
    output: Dollars | None = None
    cache_read: Dollars | None = None
    cache_write: Dollars | None = None
    cache_write_hour: Dollars | None = None
    searches: Dollars | None = None


HOSTED_FIRST_BYTE_MS = 600_000
"""Milliseconds that the answer of a hosted service may take to begin, if not set."""

UNKNOWN_WINDOW = 32_768
"""Tokens of a context window that neither the settings nor the server name."""


_ADDRESS_IN_NAME = "the address in the model's name"


class ModelConfig(Section):
    """One resolved model, as a provider factory gets it.

    `context_window` is None if the settings do not name it; `window` is the effective one. A window
    configured for another model counts as assumed, because the server knows better. `reasoning` has
    one spelling for all providers; each adapter translates it for its service. `supports_images` is
    None if only a try can tell. `provider_tools` are tools that the service runs itself, by the
    names used for all services. `api_key` is a callable, async or not, that returns the key, or a
    pair of the key and the time when it expires: a datetime, or seconds since 1970. It belongs to
    the program and is never stored. `project` and `location` are for `provider = "vertex"`, `api`
    is the protocol of `"openai"`; `path`, `chat_template` and `threads` are for `"local"`. For
    `"scripted"`, `path` is the script.
    """

    provider: ProviderName
    name: str = Field(min_length=1)
    base_url: str | None = None
    api_key_env: VariableName | None = None
    api_key_command: KeyCommandLine | None = None
    context_window: Tokens | None = None
    max_output_tokens: Tokens = 4096
    temperature: Temperature | None = None
    reasoning: ReasoningEffort | None = None
    supports_images: bool | None = None
    max_image_bytes: Bytes = 3_750_000
    timeout_ms: Milliseconds = 60_000
    first_byte_ms: Pause | None = None
    proxy: ProxyAddress | None = None
    ca_file: str | None = None
    provider_options: ProviderOptions = {}
    provider_tools: ProviderTools = []
    api: OpenAIProtocol = "auto"
    project: str | None = None
    location: str | None = None
    compat: CompatConfig = CompatConfig.model_construct()
    retry: RetryConfig = RetryConfig.model_construct()
    price: PriceConfig = PriceConfig.model_construct()
    fallbacks: bool = True
    path: str | None = None
    chat_template: str | None = None
    threads: Threads | None = None
    _key_origin: str = PrivateAttr(default="model.api_key_env")
    _address_setting: str | None = PrivateAttr(default=None)
    _adapter: Any = PrivateAttr(default=None)
    _key_source: Callable[[], Any] | None = PrivateAttr(default=None)
    _window_from: Literal["settings", "another", "server"] = PrivateAttr(default="settings")

    @model_validator(mode="before")
    @classmethod
    def _with_key_of_service(cls, given: Any) -> Any:
        """Name the variable with the key of a service that is called by its name."""
        match given:
            case {"provider": str() as provider} if not (
                given.get("api_key_command") or given.get("api_key_env") is not None
            ):
                service = public_service(provider_named(provider), given.get("base_url"))
                return {**given, "api_key_env": service.key} if service else given
            case _:
                return given

    if TYPE_CHECKING:  # `_with_key` takes `api_key`, which is no field

        def __init__(self, *, api_key: Callable[[], Any] | None = None, **fields: Any) -> None: ...

    @model_validator(mode="wrap")
    @classmethod
    def _with_key(cls, given: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """Keep a callable `api_key`; any other one is refused like every key that is not known."""
        if not isinstance(given, Mapping) or "api_key" not in given:
            return validate(given)
        fields = dict(cast("Mapping[str, Any]", given))
        if (api_key := fields.pop("api_key")) is None:
            return validate(fields)
        if not callable(api_key):
            return validate(given)
        from agent_core.callbacks import callback_problem  # noqa: PLC0415 - few models have one

        if problem := callback_problem(api_key):
            raise ValueError(f"api_key {problem}")
        if fields.get("api_key_env") is None:
            fields["api_key_env"] = ""  # not the variable of a service either
        made = validate(fields)
        made._key_source = api_key  # noqa: SLF001 - its own
        return made

    @property
    def key_source(self) -> Callable[[], Any] | None:
        """The callable that returns the key, if a program gave one; it is never stored."""
        return self._key_source

    @classmethod
    def of_adapter(cls, adapter: object) -> "ModelConfig":
        """Describe an adapter given by a program as a model; its real context window is unknown."""
        model = cls(provider="in_code", name=type(adapter).__name__, context_window=128_000)
        model._adapter = adapter
        return model

    def with_retry_of(self, configured: "ModelConfig") -> "ModelConfig":
        """Return this model; an adapter given by a program gets the configured `[model.retry]`."""
        if self._adapter is None:
            return self
        return self.model_copy(update={"retry": configured.retry})

    @property
    def adapter(self) -> Any:
        """The adapter given by a program, if any."""
        return self._adapter

    @property
    def window(self) -> int:
        """The context window in tokens: as configured, or of the public service, or assumed."""
        if self.context_window is not None:
            return self.context_window
        return self._service_window or UNKNOWN_WINDOW

    @property
    def is_window_assumed(self) -> bool:
        """True if neither the settings nor a public service name the window of this model."""
        if self.context_window is not None and self._window_from != "another":
            return False
        return self._service_window is None

    @property
    def _service_window(self) -> int | None:
        service = public_service(self.provider, self.base_url)
        return service.window_of(self.name) if service else None

    @property
    def is_window_fixed(self) -> bool:
        """True if the window is the same in every process that reads these settings."""
        source = self._window_from
        if self.context_window is not None and source != "another":
            return source != "server"
        return self._service_window is not None

    def with_window(self, window: int) -> "ModelConfig":
        """Copy the model, with the context window that its server has named."""
        sized = self.model_copy(update={"context_window": window})
        sized._window_from = "server"  # noqa: SLF001 - a copy of itself
        return sized

    @property
    def address(self) -> str | None:
        """The address of the server, if the settings or the environment name it."""
        if self.base_url:
            return self.base_url
        if self.provider == "ollama":
            return ollama_address(os.environ)
        service = SERVICES.get(self.provider)
        return service.url if service and service.is_compatible else None

    @property
    def address_setting(self) -> str:
        """The setting that names the address of the server; empty if it is the service's own."""
        if self._address_setting is not None:
            return self._address_setting
        if self.base_url:
            return "[model] base_url"
        is_named = self.provider == "ollama" and os.environ.get(OLLAMA_VARIABLE, "").strip()
        return f"${OLLAMA_VARIABLE}" if is_named else ""

    @property
    def first_byte_limit_ms(self) -> int:
        """The time that an answer may take to begin, in milliseconds; 0 means no limit.

        If `first_byte_ms` is not set, a set `timeout_ms` counts for this wait as well. If neither
        is, a hosted service has ten minutes, and a model on this machine or in a private network
        has no limit.
        """
        if self.first_byte_ms is not None:
            return self.first_byte_ms
        if "timeout_ms" in self.model_fields_set:
            return self.timeout_ms
        if self.provider == "local":
            return 0
        address = self.address
        return 0 if address and not is_public(address) else HOSTED_FIRST_BYTE_MS

    @property
    def has_address_in_name(self) -> bool:
        """Return whether a model string named the address: `openai:m@http://127.0.0.1:8000/v1`."""
        return self._address_setting == _ADDRESS_IN_NAME

    @property
    def key_origin(self) -> str:
        """Place where `api_key_env` was configured, for the message about a missing variable."""
        return self._key_origin

    @property
    def full_name(self) -> str:
        """Provider and name in one string, `provider:name`."""
        return f"{self.provider}:{self.name}"

    def at_address(self, url: str) -> "ModelConfig":
        """Copy the model with an address that an adapter has made of its settings."""
        placed = self.model_copy(update={"base_url": url})
        placed._address_setting = self.address_setting  # noqa: SLF001 - a copy of itself
        return placed

    def with_key_origin(
        self,
        place: str,
        *,
        adapter: object = None,
        window_of_another: bool = False,
        key_source: Callable[[], Any] | None = None,
        has_address_in_name: bool = False,
    ) -> "ModelConfig":
        """Copy the model, with the place that named its key, its callable, and an adapter."""
        located = self.model_copy()
        located._key_source = key_source or located._key_source  # noqa: SLF001 - a copy of itself
        if window_of_another:
            located._window_from = "another"  # noqa: SLF001 - a copy of itself
        located._adapter = adapter  # noqa: SLF001 - a copy of itself
        located._key_origin = place  # noqa: SLF001 - a copy of itself
        located._address_setting = _ADDRESS_IN_NAME if has_address_in_name else None  # noqa: SLF001
        return located


class ModelProfile(Section):
    """A partial model: only what it sets replaces the base model's value."""

    provider: ProviderName | None = None
    name: str | None = Field(default=None, min_length=1)
    base_url: str | None = None
    api_key_env: VariableName | None = None
    api_key_command: KeyCommandLine | None = None
    context_window: Tokens | None = None
    max_output_tokens: Tokens | None = None
    temperature: Temperature | None = None
    reasoning: ReasoningEffort | None = None
    supports_images: bool | None = None
    max_image_bytes: Bytes | None = None
    timeout_ms: Milliseconds | None = None
    first_byte_ms: Pause | None = None
    proxy: ProxyAddress | None = None
    ca_file: str | None = None
    provider_options: ProviderOptions | None = None
    provider_tools: ProviderTools | None = None
    api: OpenAIProtocol | None = None
    project: str | None = None
    location: str | None = None
    compat: CompatConfig | None = None
    retry: RetryConfig | None = None
    price: PriceConfig | None = None
    fallbacks: bool | None = None
    path: str | None = None
    chat_template: str | None = None
    threads: Threads | None = None
    _is_named: bool = PrivateAttr(default=False)

    @property
    def is_named(self) -> bool:
        """True if a string named the model, so that unset values come from its public service."""
        return self._is_named

    @classmethod
    def named(cls, text: str) -> "ModelProfile":
        """Parse a model string into a partial model.

        Raises:
            ValueError: it is not a model string.
        """
        profile = cls(**_placed(model_fields(text)))
        profile._is_named = True
        return profile


def expand_home(path: str | Path) -> Path:
    """Replace a leading `~` or `~name` with the home of that user.

    Raises:
        ConfigError: there is no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        message = f"the path {str(path)!r} cannot be resolved: it begins with the home of a user"
        raise ConfigError(ErrorCode.CONFIG_ERROR, f"{message} that there is not") from None


def _placed(fields: dict[str, Any]) -> dict[str, Any]:
    """Resolve a path in a model string from the current folder, as on a command line."""
    path = fields.get("path")
    return fields | {"path": str(expand_home(path).absolute())} if path else fields


def as_model(model: Any) -> Any:
    """Return a model given by a program; an adapter becomes a `ModelConfig`."""
    methods = () if isinstance(model, type) else ("stream", "close")
    is_adapter = methods and all(callable(getattr(model, name, None)) for name in methods)
    return ModelConfig.of_adapter(model) if is_adapter else model


def named_model(value: object) -> object:
    """Build the model that a string names, with the key of its public service."""
    if not isinstance(value, str):
        return as_model(value)
    fields = _placed(model_fields(value))
    if service := public_service(fields["provider"], fields.get("base_url")):
        window = service.window_of(fields["name"])
        fields |= {"api_key_env": service.key, "context_window": window}
    # The string was parsed, so its parts fit; to build the validator takes a fiftieth of a start.
    model = ModelConfig.model_construct(**fields)
    return model.with_key_origin(
        f"the model string {value!r}", has_address_in_name="base_url" in fields
    )


def _named_profile(value: object) -> object:
    return ModelProfile.named(value) if isinstance(value, str) else value


NamedModel = Annotated[ModelConfig, BeforeValidator(named_model)]
"""A table, or `provider:name` in one string."""

NamedProfile = Annotated[ModelProfile, BeforeValidator(_named_profile)]
"""A table, or `provider:name` in one string."""

PROFILE_TAGS = frozenset({"<name>", "<table>"})
"""Parts of the location of a validation error below a profile that are not keys."""


def _profile_tag(value: object) -> str:
    return "<table>" if isinstance(value, dict | ModelProfile) else "<name>"


ModelProfileRef = Annotated[
    Annotated[str, Tag("<name>")] | Annotated[ModelProfile, Tag("<table>")],
    Discriminator(_profile_tag),
]
"""The name of a `[model_overrides.<name>]` table, a model string, or an inline partial model."""


class RuntimeConfig(Section):
    """Limits of the runtime itself."""

    cancel_timeout_ms: Milliseconds = 10_000
    max_turns: Count = 100
    max_concurrent_runs: Count = 256
    extensions: list[str] = []


class ContextConfig(Section):
    """The session database, and the parts of a prompt, with their room in tokens."""

    instructions: Literal["listed", "preloaded"] = "listed"
    active_path_only: Literal[True] = True
    allow_branch_from: Literal["user_message"] = "user_message"
    branch_summary: Literal[False] = False
    session_db_path: str = "${SOONG_AGENT_HOME}/sessions.sqlite"
    reserve_output_tokens: TokenRoom = 4096
    dynamic_system_budget: TokenRoom = 12_000
    task_board_token_budget: TokenRoom = 1200
    task_recent_changes_limit: CountOrNone = 20
    task_recent_changes_window_minutes: CountOrNone = 30


class BudgetConfig(Section):
    """Spending limits of one session over all its runs; unset ones do not limit."""

    usd: Dollars | None = None
    input_tokens: Amount | None = None
    output_tokens: Amount | None = None
    total_tokens: Amount | None = None
    requests: Amount | None = None
    tool_calls: Amount | None = None
    wall_s: Seconds | None = None
    on_unknown_price: Literal["ignore_usd", "refuse"] = "ignore_usd"

    @property
    def is_limited(self) -> bool:
        """True if a session has a limit of any kind."""
        return any(v is not None for name, v in self if name != "on_unknown_price")


class CompactionConfig(Section):
    """Settings of the summaries of histories; sizes are in tokens."""

    enabled: bool = True
    reserve_tokens: TokenRoom = 8000
    keep_recent_tokens: TokenRoom = 16_000
    auto_background: bool = True
    recovery_sync: bool = True
    model_profile: ModelProfileRef | None = None
    max_summary_tokens: Tokens = 2048


class MemoryConfig(Section):
    """Long-term memory."""

    enabled: bool = True
    memory_dir: str = "${SOONG_AGENT_HOME}/memory"
    categories: list[Literal["user", "feedback", "reference"]] = ["user", "feedback", "reference"]
    extract_every_messages: Count = 32
    extract_every_tokens: Tokens = 12_000
    idle_seconds: Count = 120
    catalog_max_tokens: Tokens = 4000
    recall_top_k: Count = 5
    memory_context_token_budget: Tokens = 6000
    exit_wait_ms: Pause = 2000
    extract_model_profile: ModelProfileRef | None = None
    recall_model_profile: ModelProfileRef | None = None


class WorkerConfig(Section):
    """One long-lived worker of a pool."""

    worker_id: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_.:\-]{1,128}$")
    agent_definition_id: str = Field(min_length=1)
    allowed_tools: list[str] | None = None


class WorkerPoolConfig(Section):
    """A named group of workers."""

    pool_id: str = Field(pattern=r"^[A-Za-z0-9_.:\-]{1,128}$")
    workers: list[WorkerConfig] = Field(min_length=1)

    @model_validator(mode="after")
    def _unique_workers(self) -> "WorkerPoolConfig":
        named = [worker.worker_id for worker in self.workers if worker.worker_id]
        twice = sorted({worker_id for worker_id in named if named.count(worker_id) > 1})
        if twice:
            raise ValueError(f"worker_id used twice in pool {self.pool_id!r}: {', '.join(twice)}")
        return self


class AgentsConfig(Section):
    """Children and workers."""

    max_children_per_run: Count = 4
    max_concurrent_children_per_session: Count = 8
    max_depth: Annotated[int, Field(gt=0, le=16)] = 3
    when_full: Literal["refuse", "wait"] = "refuse"
    default_sub_agent_definition: str = "default_sub_agent"
    default_fork_agent_definition: str = "default_fork_agent"
    default_child_timeout_ms: Milliseconds = 600_000
    max_child_timeout_ms: Milliseconds = 3_600_000
    child_cancel_timeout_ms: Milliseconds = 30_000
    worker_pools: list[WorkerPoolConfig] = []

    @model_validator(mode="after")
    def _unique_pools(self) -> "AgentsConfig":
        ids = [pool.pool_id for pool in self.worker_pools]
        twice = sorted({pool_id for pool_id in ids if ids.count(pool_id) > 1})
        if twice:
            raise ValueError(f"pool_id used twice: {', '.join(twice)}")
        return self


class PlanConfig(Section):
    """Plans are files of the project."""

    default_dir: str = "<project>/.soong-agent/plans"
    template_name: Literal["default"] = "default"


class TaskConfig(Section):
    """The folder of Task logs, and how long a claim holds without a report."""

    wal_dir: str = "<project>/.soong-agent/tasks"
    step_lease_timeout_ms: Milliseconds = 300_000


class NetworkConfig(Section):
    """Hosts and domains that are reached without a question."""

    allowed_hosts: list[str] = []
    allowed_domains: list[str] = []


class NetworkPolicyConfig(NetworkConfig):
    """The hosts of `NetworkConfig`, and the rule for every other host."""

    default: Literal["confirm", "deny"] = "confirm"


class PermissionsConfig(Section):
    """Decisions about calls: defaults, rules, remembered answers and hosts."""

    readonly_default: Literal["allow", "ask"] = "allow"
    readers: Literal["ask", "allow"] = "ask"
    write_without_callback: Literal["deny"] = "deny"
    unattended: Literal["deny", "wait", "park"] = "deny"
    remember_scope: Literal["session", "session_stored"] = "session"
    allow_for_session_enabled: bool = True
    save_rules: bool | None = None
    """None: where a person is asked at a terminal."""
    rules: Rules = []
    network_policy: NetworkPolicyConfig = NetworkPolicyConfig.model_construct()


def _place(path: str) -> str:
    """Check the path of a folder or a file; a pattern would be taken as a literal name."""
    if not path or not set("*?[\0").isdisjoint(path):
        raise ValueError("must name a folder or a file, not a pattern or an empty name")
    return path


PathText = Annotated[str, AfterValidator(_place)]
_PlacesOrAll = Annotated[
    Annotated[Literal["all"], Tag("<name>")] | Annotated[list[PathText], Tag("<table>")],
    Discriminator(lambda value: "<table>" if isinstance(value, list) else "<name>"),
]


class SandboxConfig(Section):
    """Confinement of commands, hooks, declarative tools and stdio MCP servers."""

    mode: Literal["off", "auto", "required"] = "off"
    network: Literal["ask", "off", "on"] = "ask"
    write: list[PathText] | None = None
    read: _PlacesOrAll = "all"
    protect: list[Annotated[str, Field(min_length=1)]] | None = None
    caches: list[PathText] = []
    ask_inside: bool = True


class HooksConfig(Section):
    """The user's own commands at fixed points of a run."""

    enabled: bool = True
    default_timeout_ms: Milliseconds = 30_000


class ToolOverrideConfig(Section):
    """Another permission or other tags for one tool."""

    permission: Literal["readonly", "write"] | None = None
    tags: list[str] | None = None
    disabled: bool = False


class McpConfig(Section):
    """MCP servers and tools that are left out or overridden; mcp.json defines the servers."""

    disabled_servers: list[str] = []
    disabled_tools: list[str] = []
    discovery_cache_ttl_ms: Pause = 300_000
    tool_overrides: dict[str, ToolOverrideConfig] = {}


class WebConfig(Section):
    """The tool `web.fetch`, which needs the extra `web`."""

    enabled: bool = False
    max_bytes: Bytes = 5_242_880


DEFAULT_SENSITIVE_PATHS = [
    "~/.ssh",
    "~/.gnupg",
    "~/.aws",
    "~/.config/gcloud",
    "*.pem",
    "*.key",
    ".env",
    ".env.*",
]


_DEFAULT_TIMEOUT_MS = 120_000


class ToolsConfig(Section):
    """Limits and boundaries of every tool."""

    declarative_enabled: bool = True
    disabled: list[str] = []
    overrides: dict[str, ToolOverrideConfig] = {}
    allowed_write_roots: list[str] = []
    allow_tmp_write: bool = False
    default_timeout_ms: Milliseconds = _DEFAULT_TIMEOUT_MS
    max_timeout_ms: Milliseconds = 600_000
    env_allowlist: list[str] = ["PATH", "HOME", "TMPDIR"]
    stdout_limit_bytes: Bytes = 65_536
    stderr_limit_bytes: Bytes = 65_536
    result_limit_bytes: Bytes = 65_536
    defer_above_tokens: TokenRoom | None = None
    sensitive_paths: list[str] = DEFAULT_SENSITIVE_PATHS
    network: NetworkConfig = NetworkConfig.model_construct()
    web: WebConfig = WebConfig.model_construct()
    mcp: McpConfig = McpConfig.model_construct()

    @model_validator(mode="before")
    @classmethod
    def _default_within_maximum(cls, table: Any) -> Any:
        """Lower the default to a maximum that is given alone; leave both if both are given."""
        match table:
            case {"default_timeout_ms": _}:
                return table
            case {"max_timeout_ms": most} if type(most) is int and 0 < most < _DEFAULT_TIMEOUT_MS:
                return {**table, "default_timeout_ms": most}
            case _:
                return table


class Config(Section):
    """The whole file."""

    runtime: RuntimeConfig = RuntimeConfig.model_construct()
    model: NamedModel
    model_fallbacks: list[NamedModel] = []
    model_overrides: dict[str, NamedProfile] = {}
    context: ContextConfig = ContextConfig.model_construct()
    budget: BudgetConfig = BudgetConfig.model_construct()
    compact: CompactionConfig = CompactionConfig.model_construct()
    memory: MemoryConfig = MemoryConfig.model_construct()
    agents: AgentsConfig = AgentsConfig.model_construct()
    plan: PlanConfig = PlanConfig.model_construct()
    task: TaskConfig = TaskConfig.model_construct()
    permissions: PermissionsConfig = PermissionsConfig.model_construct()
    sandbox: SandboxConfig = SandboxConfig.model_construct()
    hooks: HooksConfig = HooksConfig.model_construct()
    workspace: WorkspaceConfig = WorkspaceConfig.model_construct()
    tools: ToolsConfig = ToolsConfig.model_construct()
    terminal: TerminalConfig = TerminalConfig.model_construct()
    store: StoreConfig = StoreConfig.model_construct()
    worker: RunWorkerConfig = RunWorkerConfig.model_construct()
