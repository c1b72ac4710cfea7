"""How an engine's end is put into words, the same for every engine."""

import asyncio
import os
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

from agent_core.errors import ErrorCode
from kgent.config.models import KgentConfig
from kgent.engine.base import AgentResult, AgentRunRequest, EngineStatus
from kgent.errors import ErrorCategory, ErrorInfo, KgentError, error_info
from kgent.runtime.cancellation import Cancellation


def conclude(request: AgentRunRequest, work: Callable[[], AgentResult]) -> AgentResult:
    """Do an engine's work within its time; whatever happens, there is one result.

    Raises:
        KgentError: category `config`; the profile does not suit the engine.
    """
    token = request.cancellation_token
    try:
        with _deadline(token, request.timeout_seconds):
            if token.reason is not None:
                return interrupted(token.reason)
            return work()
    except (asyncio.CancelledError, KeyboardInterrupt):
        token.cancel("the run was interrupted")
        return interrupted(token.reason)
    except KgentError as error:
        if error.category is ErrorCategory.CONFIG:
            raise
        return failed(error_info(error, ErrorCategory.ENGINE))
    except Exception as error:  # noqa: BLE001 - a run's fate, decided here
        if token.reason is not None:
            return interrupted(token.reason)
        return failed(error_info(error, ErrorCategory.ENGINE))


def failed(error: ErrorInfo, *, usage: Mapping[str, int] | None = None) -> AgentResult:
    """The engine could not do its part."""
    return AgentResult(status=EngineStatus.FAILED, error=error, usage=dict(usage or {}))


def interrupted(
    reason: ErrorInfo | None, *, text: str | None = None, usage: Mapping[str, int] | None = None
) -> AgentResult:
    """The engine was stopped before it had finished."""
    return AgentResult(
        status=EngineStatus.INTERRUPTED, final_text=text, error=reason, usage=dict(usage or {})
    )


def out_of_steps(
    max_steps: int | None, *, text: str | None = None, usage: Mapping[str, int] | None = None
) -> AgentResult:
    """The engine was stopped because it had made as many model calls as it may."""
    error = ErrorInfo(
        code=ErrorCode.MAX_TURNS.value,
        message=f"no final answer after {max_steps} model calls; raise runtime.max_steps",
        category=ErrorCategory.ENGINE,
    )
    return interrupted(error, text=text, usage=usage)


def api_key(config: KgentConfig) -> str | None:
    """The secret of the profile's model, from the environment; None if it needs none.

    Raises:
        KgentError: category `config`; the variable is not set.
    """
    name = config.model.api_key_env
    if not name:
        return None
    if key := os.environ.get(name):
        return key
    message = f"the environment variable {name}, which model.api_key_env names, is not set"
    raise KgentError(ErrorCode.CONFIG_ERROR, message, category=ErrorCategory.CONFIG)


def model_secrets(config: KgentConfig) -> dict[str, str]:
    """The secret of the profile's model, if there is one, by the name of its variable."""
    name = config.model.api_key_env
    value = os.environ.get(name) if name else None
    return {name: value} if name and value else {}


def required(value: str | None, key: str, config: KgentConfig) -> str:
    """A setting that this engine cannot do without.

    Raises:
        KgentError: category `config`; it is not there.
    """
    if value:
        return value
    message = f"runtime.engine {config.runtime.engine} needs {key} in the profile"
    raise KgentError(ErrorCode.CONFIG_ERROR, message, category=ErrorCategory.CONFIG)


@contextmanager
def _deadline(token: Cancellation, seconds: float | None) -> Generator[None]:
    if seconds is None:
        yield
        return
    message = f"the run took longer than {seconds:g} s (runtime.timeout_seconds)"
    timer = threading.Timer(seconds, lambda: token.cancel(message, code=ErrorCode.TIMEOUT))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
