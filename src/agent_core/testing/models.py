"""A model made of a function, and the switch that keeps real models out of a test run."""

import os
from contextlib import AbstractContextManager, ExitStack

from agent_core.callbacks import callback_problem
from agent_core.config.models import RetryConfig
from agent_core.errors import ArgumentError
from agent_core.providers.base import ALLOW_REAL_MODELS
from agent_core.providers.scripted import Answer, ScriptedProvider
from agent_core.text import kind_of


def function_model(
    answer: Answer, *, provider: str = "function", retry: RetryConfig | None = None
) -> ScriptedProvider:
    """Make a model that answers every request by calling a function with it.

    Args:
        answer: a function of a `ModelRequest`, plain or async. It returns text, tool calls
            (`calls(...)`, a `ToolCall`, a list of them), events of a model or an error; or it
            yields such pieces, as a generator, plain or async, and each text is one delta.
        provider: its name in events.
        retry: as for `ScriptedProvider`.

    Raises:
        ArgumentError: it cannot be called with one request.
    """
    if problem := callback_problem(answer, "request"):
        raise ArgumentError(f"answer {problem}", "answer")
    made = ScriptedProvider(answer, provider=provider)
    made.retry = retry or made.retry
    return made


def allow_real_models(allowed: bool) -> AbstractContextManager[object]:
    """Allow or refuse calls of real services, everywhere in this process.

    It takes effect with the call, also in processes that are started later: it sets the
    environment variable `SOONG_AGENT_ALLOW_REAL_MODELS`, which may also be set from outside. As
    a context manager it restores the earlier value at the end.

    Every call of an adapter of the package is refused, in runtimes, in `agcore` and in `kgent`. An
    adapter from an installed distribution is refused when a runtime makes it. A program's own
    adapter for a real service calls `agent_core.providers.base.require_real_models`.

    Raises:
        ArgumentError: `allowed` is neither True nor False.
    """
    if not isinstance(allowed, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - typed by users
        raise ArgumentError(f"allowed must be True or False, not {kind_of(allowed)}", "allowed")
    before = os.environ.get(ALLOW_REAL_MODELS)
    os.environ[ALLOW_REAL_MODELS] = "1" if allowed else "0"
    restoring = ExitStack()
    restoring.callback(_restore, before)
    return restoring


def _restore(value: str | None) -> None:
    if value is None:
        os.environ.pop(ALLOW_REAL_MODELS, None)
    else:
        os.environ[ALLOW_REAL_MODELS] = value
