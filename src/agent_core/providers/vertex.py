"""Google Vertex AI: Gemini models in Google's protocol, Claude models in Anthropic's.

`provider_options.vertex` accepts the options of `gemini` or `anthropic`, by the model, and for
Gemini `streamFunctionCallArguments`.
"""

import os
import re
from urllib.parse import quote

from agent_core.config.models import ModelConfig
from agent_core.errors import ConfigError, ErrorCode
from agent_core.providers.anthropic import AnthropicProvider
from agent_core.providers.failures import Called
from agent_core.providers.gemini import KNOWN_OPTIONS as GEMINI_OPTIONS, GeminiProvider
from agent_core.providers.google_credentials import GoogleTokens, project_in_credentials
from agent_core.providers.http_provider import HttpProvider, PreparedRequest
from agent_core.providers.keys import HeldKey
from agent_core.text.json_text import JsonObject
from agent_core.types import ModelRequest

KNOWN_OPTIONS = GEMINI_OPTIONS | {"streamFunctionCallArguments"}

_ANTHROPIC_VERSION = "vertex-2023-10-16"
_VERSIONED = re.compile(r"/v\d\w*$")
_MULTI_REGIONS = frozenset({"eu", "us"})
_GLOBAL = "global"
_NAMES = {
    "project": r"([a-z0-9][a-z0-9.-]*:)?[a-z0-9][a-z0-9-]*",
    "location": r"[a-z0-9]{1,30}(-[a-z0-9]{1,30}){0,5}",
}
"""Old projects have their domain before their name."""


def _first_set(*names: str) -> str:
    values = (os.environ.get(name, "").strip() for name in names)
    return next(filter(None, values), "")


def is_claude(model: str) -> bool:
    """Return whether a model speaks Anthropic's protocol."""
    return model.rpartition("/")[2].startswith("claude-")


class _VertexProvider(HttpProvider):
    """The address and the credentials of Vertex AI, for both of its protocols.

    Raises:
        ConfigError: no project is known, a name cannot be used, or `google-auth` is missing.
    """

    publisher: str
    version: str
    method: str

    def __init__(self, config: ModelConfig) -> None:
        own_project = ("ANTHROPIC_VERTEX_PROJECT_ID",) if is_claude(config.name) else ()
        project = (config.project or "").strip() or _first_set(*own_project, "GOOGLE_CLOUD_PROJECT")
        project = project or project_in_credentials()
        regions = ("GOOGLE_CLOUD_LOCATION", "CLOUD_ML_REGION")
        location = (config.location or "").strip().lower() or _first_set(
            *(reversed(regions) if is_claude(config.name) else regions)
        )
        location = location or _GLOBAL
        for name, value in (("project", project), ("location", location)):
            if not re.fullmatch(_NAMES[name], value):
                raise ConfigError(
                    ErrorCode.CONFIG_ERROR,
                    f"provider vertex needs a {name}: set [model] {name} or GOOGLE_CLOUD_"
                    f"{name.upper()}" + (f"; {value!r} cannot be one" if value else ""),
                )
        host = _host_of(location)
        base = (config.base_url or f"https://{host}").strip().rstrip("/")
        if not _VERSIONED.search(base):
            base += f"/{self.version}"
        super().__init__(config.at_address(base))
        self._place = f"/projects/{quote(project, safe=':')}/locations/{location}"
        has_key = config.api_key_env or self._held_key
        self._tokens = None if has_key else GoogleTokens()
        if self._tokens is not None:
            self._held_key = HeldKey(self._tokens)

    def address(self, model: str) -> str:
        """Return the address for calls of `model`."""
        name = quote(model.rpartition("/")[2], safe="@")
        return f"{self._base}{self._place}/publishers/{self.publisher}/models/{name}:{self.method}"

    async def authorized(self, prepared: PreparedRequest, key: str) -> dict[str, str]:
        """Return the headers of one attempt, with the project that pays if there is another."""
        headers = await super().authorized(prepared, key)
        if self._tokens is not None and (project := self._tokens.billed_project):
            headers.setdefault("x-goog-user-project", project)
        return headers


def _host_of(location: str) -> str:
    if location == _GLOBAL:
        return "aiplatform.googleapis.com"
    if location in _MULTI_REGIONS:
        return f"aiplatform.{location}.rep.googleapis.com"
    return f"{location}-aiplatform.googleapis.com"


class VertexGeminiProvider(_VertexProvider, GeminiProvider):
    """The adapter for Gemini models of `provider = "vertex"`."""

    provider = "vertex"
    path = ""
    publisher = "google"
    reports_tools = False
    version = "v1beta1"
    method = "streamGenerateContent?alt=sse"
    tool_form = "gemini"
    known_options = KNOWN_OPTIONS
    key_header = HttpProvider.key_header

    def write_body(self, request: ModelRequest, options: JsonObject, called: Called) -> bytes:
        """Write a generateContent body."""
        self.streams_arguments = options.pop("streamFunctionCallArguments", False) is True
        return super().write_body(request, options, called)


class VertexClaudeProvider(_VertexProvider, AnthropicProvider):
    """The adapter for Claude models of `provider = "vertex"`: the model is in the address."""

    provider = "vertex"
    path = ""
    publisher = "anthropic"
    provider_tools = {"web_search": AnthropicProvider.provider_tools["web_search"]}
    version = "v1"
    method = "streamRawPredict"
    tool_form = "anthropic"
    headers = HttpProvider.headers
    key_header = HttpProvider.key_header

    def named(self, model: str) -> JsonObject:  # noqa: ARG002 - it is in the address
        """Return the version of the protocol, which is in the body here."""
        return {"anthropic_version": _ANTHROPIC_VERSION}


def create(config: ModelConfig) -> HttpProvider:
    """Create the adapter for `provider = "vertex"`, by the name of the model."""
    return (VertexClaudeProvider if is_claude(config.name) else VertexGeminiProvider)(config)
