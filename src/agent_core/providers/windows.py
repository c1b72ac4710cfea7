"""Finds the context window that a server reports for a model; servers report it in many ways."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast
from urllib.parse import quote

from agent_core.config.models import ModelConfig
from agent_core.config.services import COMPATIBLE
from agent_core.errors import AgentCoreError
from agent_core.providers.base import ProviderAdapter
from agent_core.providers.token_limits import is_window
from agent_core.text.json_text import JsonValue, tables

_KEYS = (
    "max_model_len",  # vLLM, SGLang
    "loaded_context_length",  # LM Studio
    "max_context_length",  # LM Studio, Mistral
    "context_window",  # Groq
    "context_length",  # OpenRouter, Ollama
    "n_ctx",  # llama.cpp
    "inputTokenLimit",  # Gemini
    "max_input_tokens",  # Anthropic
)
_TRAINED = ("n_ctx_train",)
"""Names the window a model was trained with: llama.cpp may serve it with a much smaller one."""

_MOST_S = 2.0
"""Seconds for the questions about one model; a run waits for them once."""
_ASKED = frozenset({"anthropic", "gemini", "ollama", "openai", *COMPATIBLE})
_Key = tuple[str, str | None, str]


class ServerWindows:
    """Asks servers for the windows of models that the settings do not name, each only once.

    Args:
        create: returns a new adapter of a model.
    """

    def __init__(self, create: Callable[[ModelConfig], ProviderAdapter]) -> None:
        self._create = create
        self._found: dict[_Key, int | None] = {}
        self._asking: dict[_Key, asyncio.Task[None]] = {}
        self._answers: dict[tuple[str, str | None], Answers] = {}

    def known(self, model: ModelConfig) -> ModelConfig:
        """Return the model with the window that its server has reported, if it has."""
        if not model.is_window_assumed:
            return model
        window = self._found.get(_key_of(model))
        return model if window is None else model.with_window(window)

    async def ask(self, model: ModelConfig) -> ModelConfig:
        """Return the model with the window that its server reports, if it does so in time.

        Models of public services, and of adapters that are not called over HTTP, are not asked for.
        """
        key = _key_of(model)
        is_asked = model.provider in _ASKED and model.adapter is None
        if not (is_asked and model.is_window_assumed) or key in self._found:
            return self.known(model)
        task = self._asking.get(key)
        if task is None or task.get_loop() is not asyncio.get_running_loop():
            task = self._asking[key] = asyncio.create_task(self._look_up(key, model))
        await asyncio.shield(task)  # other runs wait for the same answer
        return self.known(model)

    async def close(self) -> None:
        """Stop asking."""
        loop = asyncio.get_running_loop()
        tasks = [task for task in self._asking.values() if task.get_loop() is loop]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look_up(self, key: _Key, model: ModelConfig) -> None:
        window: int | None = None
        try:
            adapter = self._create(model)
            try:
                async with asyncio.timeout(_MOST_S):
                    answers = self._answers.setdefault(key[:2], {})
                    window = await find_window(adapter, model, answers)
            finally:
                await adapter.close()
        except (AgentCoreError, TimeoutError, OSError):
            pass  # the call itself fails with the reason
        finally:
            self._asking.pop(key, None)
        self._found[key] = window


def _key_of(model: ModelConfig) -> _Key:
    return model.provider, model.base_url, model.name


Answers = dict[str, Mapping[str, JsonValue]]
"""What a server has answered, by path, about all of its models."""


async def find_window(
    adapter: ProviderAdapter, model: ModelConfig, answers: Answers | None = None
) -> int | None:
    """Return the window of a model in tokens, as its server reports it; None if it does not.

    Args:
        adapter: adapter of the model; only HTTP adapters are queried.
        model: the resolved model.
        answers: earlier answers of its server, which is not asked for them again.
    """
    known: Answers = {} if answers is None else answers
    from agent_core.providers.http_provider import HttpProvider  # noqa: PLC0415 - slow to import

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
        case provider if provider == "openai" or provider in COMPATIBLE:
            if "/models" not in known:
                known["/models"] = await adapter.look_up("/models")
            listed = tables(known["/models"].get("data"))
            own = [entry for entry in listed if entry.get("id") == model.name]
            if window := _window_in(own):
                return window
            if "/props" not in known:
                known["/props"] = await adapter.look_up("/props", from_root=True)
            found = known["/props"]
            served = _window_in([found.get("default_generation_settings")])
            return served or _window_in(own, _TRAINED)
        case _:
            return None


def _window_in(places: Iterable[object], keys: Sequence[str] = _KEYS) -> int | None:
    """Return the first window under one of the keys, or under a key that ends with one."""
    for place in places:
        if not isinstance(place, Mapping):
            continue
        table = cast("Mapping[str, JsonValue]", place)
        inner = table.get("meta")
        known = {
            **(cast("Mapping[str, JsonValue]", inner) if isinstance(inner, Mapping) else {}),
            **table,
        }
        for key in keys:
            for name, value in known.items():
                is_key = name.rpartition(".")[2] == key
                if is_key and isinstance(value, int) and is_window(value):
                    return value
    return None
