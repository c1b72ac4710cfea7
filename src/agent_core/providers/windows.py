"""Finds the context window that a server reports for a model; servers report it in many ways."""

from collections.abc import Iterable, Mapping
from typing import Any, cast
from urllib.parse import quote

from agent_core.config.models import ModelConfig
from agent_core.providers.base import ProviderAdapter
from agent_core.providers.http_provider import HttpProvider

_KEYS = (
    "max_model_len",  # vLLM, SGLang
    "loaded_context_length",  # LM Studio
    "max_context_length",  # LM Studio, Mistral
    "context_window",  # Groq
    "context_length",  # OpenRouter, Ollama
    "n_ctx",  # llama.cpp
    "n_ctx_train",
    "inputTokenLimit",  # Gemini
    "max_input_tokens",  # Anthropic
)


async def find_window(adapter: ProviderAdapter, model: ModelConfig) -> int | None:
    """Return the window of a model in tokens, as its server reports it; None if it does not.

    Args:
        adapter: adapter of the model; only HTTP adapters are queried.
        model: the resolved model.
    """
    if not isinstance(adapter, HttpProvider):
        return None
    match model.provider:
        case "ollama":
            found = await adapter.look_up("/api/show", {"model": model.name})
            return _window_in([found.get("model_info")])
        case "gemini":
            from agent_core.providers.gemini import segment_of  # noqa: PLC0415 - for Gemini only

            return _window_in([await adapter.look_up(f"/v1beta/models/{segment_of(model.name)}")])
        case "anthropic":
            name = quote(model.name, safe="")
            return _window_in([await adapter.look_up(f"/v1/models/{name}")])
        case "openai":
            listed = (await adapter.look_up("/models")).get("data")
            entries = cast("list[Any]", listed) if isinstance(listed, list) else []
            own = [entry for entry in entries if _name_of(entry) == model.name]
            if window := _window_in(own):
                return window
            found = await adapter.look_up("/props", from_root=True)
            return _window_in([found.get("default_generation_settings")])
        case _:
            return None


def _name_of(entry: object) -> object:
    return cast("Mapping[str, object]", entry).get("id") if isinstance(entry, Mapping) else None


def _window_in(places: Iterable[object]) -> int | None:
    """Return the first number under one of the known keys, or under a key that ends with one."""
    for place in places:
        if not isinstance(place, Mapping):
            continue
        table = cast("Mapping[str, object]", place)
        inner = table.get("meta")
        known = {
            **(cast("Mapping[str, object]", inner) if isinstance(inner, Mapping) else {}),
            **table,
        }
        for key in _KEYS:
            for name, value in known.items():
                is_key = name.rpartition(".")[2] == key
                if is_key and isinstance(value, int) and value and value is not True:
                    return value
    return None
