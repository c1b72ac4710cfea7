"""Functions of a program for the value of an answer: they make it, and check it, at the end."""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec import Struct

from agent_core.errors import AgentCoreError, ErrorCode, ToolRetry
from agent_core.extensions import ExtensionContext
from agent_core.loop.context import RunContext
from agent_core.loop.tool_turn import open_answer
from agent_core.text import plural, shorten_text
from agent_core.tools.base import OutputMisfitError

_MAX_TEXT = 2_000

OutputValidator = (
    Callable[[Any], Any | Awaitable[Any]] | Callable[[Any, ExtensionContext], Any | Awaitable[Any]]
)
"""Returns the value of an answer, the same or another; raises `ToolRetry` to refuse it."""


class OutputChecks(Struct, frozen=True):
    """The output functions and the validators of a run.

    Attributes:
        validators: called in order, each with the value of the one before.
        retries: how often a refused answer goes back to the model.
    """

    validators: Sequence[OutputValidator]
    retries: int

    async def checked(self, ctx: RunContext, value: Any) -> Any:
        """Return the value as the output function and the validators leave it.

        Raises:
            ToolRetry: one refuses it.
            AgentCoreError: one failed, or forgot to return the value.
        """
        if ctx.toolbox.expected is not None and ctx.toolbox.expected.functions:
            value = await _made(ctx, value)
        for validate in self.validators:
            name = getattr(validate, "__name__", type(validate).__name__)
            takes_context = len(inspect.signature(validate).parameters) > 1
            given = (value, ctx.extensions.context) if takes_context else (value,)
            try:
                found: Any = validate(*given)
                found = await found if inspect.isawaitable(found) else found
            except (AgentCoreError, ToolRetry):
                raise
            except Exception as error:
                message = f"the validator {name} failed: {type(error).__name__}: {error}"
                raise AgentCoreError(ErrorCode.INTERNAL_ERROR, message) from error
            if found is None and value is not None and not _may_be_none(ctx):
                message = f"the validator {name} returned None; return the value, or a replacement"
                raise AgentCoreError(ErrorCode.INTERNAL_ERROR, message)
            value = found
        return value

    def failure(self, refusal: ToolRetry, text: str) -> AgentCoreError:
        """Return the error of a run whose answer is still refused after all retries."""
        reason = refusal.reason
        return AgentCoreError(
            ErrorCode.OUTPUT_INVALID,
            f"the answer was refused after {plural(self.retries, 'retry', 'retries')}: {reason}",
            details={
                "errors": [{"path": "$", "message": reason}],
                "text": shorten_text(text, _MAX_TEXT),
            },
        )


def _may_be_none(ctx: RunContext) -> bool:
    """Return whether the type of the answer accepts None, as far as the run knows it."""
    expected = ctx.toolbox.expected
    if expected is None or expected.functions:
        return False
    try:
        return expected.validated(None) is None
    except OutputMisfitError:
        return False


async def _made(ctx: RunContext, value: Any) -> Any:
    """Return what an output function makes of a value, if the value is a call of one.

    Raises:
        ToolRetry: it refuses the answer.
        AgentCoreError: it failed.
    """
    from agent_core.tools.output_functions import FunctionCall  # noqa: PLC0415 - loaded by now

    if not isinstance(value, FunctionCall):
        return value
    name = value.function.name
    try:
        with open_answer(ctx, name) as context:
            return await value.run(context)
    except (AgentCoreError, ToolRetry):
        raise
    except Exception as error:
        message = f"the output function {name} failed: {type(error).__name__}: {error}"
        raise AgentCoreError(ErrorCode.INTERNAL_ERROR, message) from error
