"""OpenAI's Responses protocol, also for compatible servers."""

import re
from collections.abc import Mapping, Set as AbstractSet

from agent_core.config.models import ModelConfig
from agent_core.providers.chat_completions import CHAT_ONLY, OpenAIProvider, refuse_options
from agent_core.providers.compat import without
from agent_core.providers.failures import Called
from agent_core.providers.http_provider import PreparedRequest
from agent_core.providers.output_schema import openai_format
from agent_core.providers.requests import EXTRA_BODY, effort_of, sampling_fields
from agent_core.providers.responses_events import ResponsesEvents
from agent_core.providers.responses_wire import ResponsesRequests
from agent_core.text.json_text import JsonObject, JsonValue, table
from agent_core.types import ErrorPayload, ModelRequest

_TOOLS: Mapping[str, JsonValue] = {
    "web_search": {"type": "web_search"},
    "code_execution": {"type": "code_interpreter", "container": {"type": "auto"}},
}
"""The tools that Responses runs itself; its search opens pages, too."""
_INCLUDED: Mapping[str, str] = {
    "web_search": "web_search_call.action.sources",
    "code_execution": "code_interpreter_call.outputs",
}
"""What the service leaves out of its answers if it is not asked for."""
_LEAST_OUTPUT = 16
"""Smallest number of tokens that may be requested for an answer."""
_UNREADABLE = r"invalid_encrypted_content|encrypted content.{0,200}(verified|decrypted|parsed)"
"""OpenAI's words about reasoning from another organisation, or from before a change of keys."""
_WITHOUT_REASONING = r"(ft:)?(gpt-3|gpt-4|chatgpt-4)"
"""OpenAI's models that refuse a request for encrypted reasoning; all later ones reason."""


class OpenAIResponsesProvider(OpenAIProvider):
    """The adapter for `provider = "openai"` over Responses.

    The service stores nothing: every request has the whole conversation, with the reasoning
    in its encrypted form.
    """

    path = "/responses"
    parser = ResponsesEvents
    output_fields = frozenset({"format", "json_schema", "response_format"})
    optional_fields = frozenset(
        {
            "effort",
            "include",
            "parallel_tool_calls",
            "prompt_cache_key",
            "summary",
            "temperature",
            "top_p",
        }
    )

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.provider_tools = _TOOLS if self._server in {None, "azure", "openai", "xai"} else {}
        strict = self._dialect.strict_tools
        self._items = ResponsesRequests(self.provider, strict_tools=strict)

    @property
    def shows_images_apart(self) -> bool:
        """Return False: a result of a call can have images here."""
        return False

    def _versioned_place(self, model: str) -> str:  # noqa: ARG002 - it is in the body
        return ""

    def write_body(self, request: ModelRequest, options: JsonObject, called: Called) -> bytes:
        """Write a Responses body."""
        refuse_options(options, CHAT_ONLY, called, protocol="chat")
        extra = table(options.pop(EXTRA_BODY, None))
        refused = self.refused(request.model)
        head = sampling_fields(self._config, request, "max_output_tokens")
        head["max_output_tokens"] = max(
            request.max_output_tokens or self._config.max_output_tokens, _LEAST_OUTPUT
        )
        head["store"] = False
        if not re.match(_WITHOUT_REASONING, request.model):
            head["include"] = ["reasoning.encrypted_content"]
        reasoning = self._reasoning(request, options, refused)
        if reasoning:
            head["reasoning"] = reasoning
        if reasoning.get("effort", "none") != "none":  # refused beside reasoning
            head.pop("temperature", None)
        if request.output is not None:
            options["response_format"] = {"type": "json_schema", **openai_format(request)}
        if answer := _text_fields(options):
            head["text"] = answer
        fields = {**without({**head, **options}, refused), **extra}
        if not request.provider_tools:
            return self._items.body(request, fields, called)
        if self._server in {None, "openai", "azure"} and "include" not in options:
            more = [_INCLUDED[name] for name in request.provider_tools if name in _INCLUDED]
            known = fields.get("include")
            fields["include"] = [*(known if isinstance(known, list) else ()), *more]
        return self._items.body(request, fields, called, self.own_tools(request))

    def _adjusted(
        self, request: ModelRequest, before: PreparedRequest, refusal: ErrorPayload
    ) -> PreparedRequest | None:
        """Adjust a request; also drops reasoning that the service can no longer decrypt."""
        if not re.search(_UNREADABLE, refusal.message, re.IGNORECASE):
            return super()._adjusted(request, before, refusal)
        self._items.disown(request.messages, request.model)
        prepared = self.prepare(request, before.called)
        return prepared if prepared.body != before.body else None

    def _reasoning(
        self, request: ModelRequest, options: JsonObject, refused: AbstractSet[str]
    ) -> JsonObject:
        """Return the effort and the summary of reasoning; removes these options from `options`."""
        effort = options.pop("reasoning_effort", None) or effort_of(self._config, request)
        said = {"effort": effort, "summary": "auto"} if effort else {}
        if effort == "none":
            del said["summary"]
        said |= table(options.pop("reasoning", None))
        if "effort" in refused or "reasoning_effort" in refused:
            return {}
        return {field: value for field, value in said.items() if field not in refused}


def _text_fields(options: JsonObject) -> JsonObject:
    """Return the format of the answer, from the options of both protocols."""
    said: JsonObject = {}
    if verbosity := options.pop("verbosity", None):
        said["verbosity"] = verbosity
    if wanted := table(options.pop("response_format", None)):
        form = wanted | table(wanted.get("json_schema"))
        form.pop("json_schema", None)
        said["format"] = form
    return said | table(options.pop("text", None))
