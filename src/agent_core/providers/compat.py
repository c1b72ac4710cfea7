"""Differences between servers that implement OpenAI's chat completions.

A server without a row is sent what most of them accept. Fields that it still refuses are left out
of its later requests (`HttpProvider.optional_fields`).
"""

from collections.abc import Mapping, Set as AbstractSet
from types import MappingProxyType
from typing import Literal, cast
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from agent_core.config.models import CompatConfig, ServerName
from agent_core.config.services import COMPATIBLE
from agent_core.providers.histories import HistoryForm, ReasoningHistory, RoleOrder
from agent_core.text.json_text import JsonObject, JsonValue


class Dialect(Struct, frozen=True):
    """The parts of chat completions that a server accepts; `CompatConfig` has the same switches.

    Attributes:
        tool_result_images: place of a result's pictures: in a user message after it, in its own
            parts, or nowhere.
        tool_call_ids: `nine` is Mistral's rule, nine letters and digits.
        named_tool_choice: `tool_choice` may name a tool.
        reasoning_field: field for the amount of reasoning: a level, `{"type": "enabled"}`, or true.
        json_schema: `response_format` holds the model to the schema of a typed answer: always, only
            without tools, or never.
        roles: order of the messages, as in `providers.histories`.
        reasoning_history: reasoning that is sent back, as in `providers.histories`.
        think_tags: a reply may begin with reasoning between tags; None is yes for models on this
            machine and in private networks.
        system_role: the system prompt is a message of its own; otherwise it is the beginning of the
            user's first one.
    """

    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    stream_options: bool = True
    strict_tools: bool = False
    tool_result_images: Literal["user", "parts", "none"] = "user"
    tool_call_ids: Literal["any", "nine"] = "any"
    named_tool_choice: bool = True
    tool_choice: bool = True
    parallel_tool_calls: bool = True
    temperature: bool = True
    reasoning_effort: bool = True
    reasoning_field: Literal["reasoning_effort", "thinking", "enable_thinking"] = "reasoning_effort"
    json_schema: Literal["always", "alone", "never"] = "always"
    key_header: Literal["authorization", "api-key"] = "authorization"
    roles: RoleOrder = "free"
    reasoning_history: ReasoningHistory = "own"
    system_role: bool = True
    think_tags: bool | None = None

    @property
    def form(self) -> HistoryForm:
        """The form of conversations that the server accepts."""
        return HistoryForm(self.roles, self.system_role, self.reasoning_history)

    @property
    def left_out(self) -> frozenset[str]:
        """The fields that are left out of the server's requests."""
        taken = {
            "parallel_tool_calls": self.parallel_tool_calls,
            "reasoning_effort": self.reasoning_effort,
            "stream_options": self.stream_options,
            "strict": self.strict_tools,
            "temperature": self.temperature,
            "tool_choice": self.tool_choice,
        }
        return frozenset(field for field, is_taken in taken.items() if not is_taken)


SERVERS: Mapping[ServerName, Dialect] = MappingProxyType(
    {
        "azure": Dialect(max_tokens_field="max_completion_tokens", key_header="api-key"),
        "cerebras": Dialect(
            max_tokens_field="max_completion_tokens",
            named_tool_choice=False,
            parallel_tool_calls=False,
            json_schema="alone",
        ),
        "deepseek": Dialect(
            parallel_tool_calls=False, json_schema="never", reasoning_history="always"
        ),
        "fireworks": Dialect(json_schema="alone"),
        "gemini": Dialect(parallel_tool_calls=False, json_schema="alone"),
        "github": Dialect(named_tool_choice=False, parallel_tool_calls=False),
        "groq": Dialect(max_tokens_field="max_completion_tokens", json_schema="never"),
        "llamacpp": Dialect(named_tool_choice=False, json_schema="alone", think_tags=True),
        "lmstudio": Dialect(
            named_tool_choice=False,
            parallel_tool_calls=False,
            json_schema="alone",
            think_tags=True,
        ),
        "minimax": Dialect(
            max_tokens_field="max_completion_tokens",
            tool_choice=False,
            parallel_tool_calls=False,
            reasoning_field="thinking",
            json_schema="never",
        ),
        "mistral": Dialect(stream_options=False, tool_call_ids="nine", roles="no_user_after_tool"),
        "moonshot": Dialect(
            max_tokens_field="max_completion_tokens",
            named_tool_choice=False,
            parallel_tool_calls=False,
            json_schema="alone",
            reasoning_history="always",
        ),
        "openai": Dialect(max_tokens_field="max_completion_tokens"),
        "openrouter": Dialect(),
        "qwen": Dialect(
            named_tool_choice=False, reasoning_field="enable_thinking", json_schema="never"
        ),
        "sglang": Dialect(json_schema="alone", think_tags=True),
        "snowflake": Dialect(max_tokens_field="max_completion_tokens", parallel_tool_calls=False),
        "together": Dialect(json_schema="alone"),
        "vllm": Dialect(json_schema="alone", think_tags=True),
        "xai": Dialect(max_tokens_field="max_completion_tokens"),
        "zhipu": Dialect(
            stream_options=False,
            tool_choice=False,
            parallel_tool_calls=False,
            reasoning_field="thinking",
            json_schema="never",
        ),
    }
)

HOSTS: Mapping[str, ServerName] = MappingProxyType(
    {
        "aliyuncs.com": "qwen",
        "api.cerebras.ai": "cerebras",
        "api.deepseek.com": "deepseek",
        "api.fireworks.ai": "fireworks",
        "api.groq.com": "groq",
        "api.minimax.io": "minimax",
        "api.minimaxi.com": "minimax",
        "api.mistral.ai": "mistral",
        "api.moonshot.ai": "moonshot",
        "api.moonshot.cn": "moonshot",
        "api.together.ai": "together",
        "api.together.xyz": "together",
        "api.x.ai": "xai",
        "api.z.ai": "zhipu",
        "cognitiveservices.azure.com": "azure",
        "generativelanguage.googleapis.com": "gemini",
        "models.github.ai": "github",
        "models.inference.ai.azure.com": "github",
        "open.bigmodel.cn": "zhipu",
        "openai.azure.com": "azure",
        "openai.com": "openai",
        "openrouter.ai": "openrouter",
        "services.ai.azure.com": "azure",
        "snowflakecomputing.com": "snowflake",
    }
)
"""The server of each host, which includes its subdomains."""

_RENAMED: Mapping[str, str] = MappingProxyType(
    {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
)


def server_of(url: str, config: CompatConfig, provider: str = "") -> ServerName | None:
    """Return the server that the configuration names, or that the address is known to belong to."""
    if config.server:
        return config.server
    if provider in COMPATIBLE:
        return cast("ServerName", provider)
    host = host_of(url)
    known = (suffix for suffix in HOSTS if f".{host}".endswith(f".{suffix}"))
    return HOSTS.get(next(known, ""))


def host_of(url: str) -> str:
    """Return the host of an address in lower case; empty if it is no address."""
    try:
        parts = urlsplit(url)
        return (parts.hostname or "").lower() if parts.port != 0 else ""
    except ValueError:
        return ""


def dialect_of(server: ServerName | None, config: CompatConfig) -> Dialect:
    """Return what the server accepts: its row, overridden by the configuration."""
    row = SERVERS[server] if server else Dialect()
    said = {name: value for name, value in config if name != "server" and value is not None}
    return replace(row, **said)


def without(fields: Mapping[str, JsonValue], refused: AbstractSet[str]) -> JsonObject:
    """Return the fields of a body for a server that refuses some; one may be renamed."""
    sent: JsonObject = {}
    for field, value in fields.items():
        name = _RENAMED.get(field, field) if field in refused else field
        if name not in refused:
            sent[name] = value
    return sent
