"""What the model is about to see, within its window."""

from agent_core.errors import ErrorCode, ProviderError
from agent_core.loop.context import BuiltRequest, RunContext
from agent_core.types import EventType, ModelRequest


async def compose(ctx: RunContext) -> ModelRequest:
    """Build the next request; one that does not fit is compacted first, then cut.

    Raises:
        ProviderError: `prompt_too_long`: it does not fit whatever is left out.
    """
    built = ctx.composer.build(ctx.journal.path, ctx.toolbox.definitions)
    if built.over_budget:
        built = await _shorter(ctx)
    return _announced(ctx, built)


async def recover(ctx: RunContext, refused: ModelRequest, error: ProviderError) -> ModelRequest:
    """Build a shorter request, after the provider has refused one as too long.

    Raises:
        ProviderError: `error`, if nothing can be made shorter.
    """
    ctx.composer.refused()
    built = ctx.composer.build(ctx.journal.path, ctx.toolbox.definitions)
    if built.over_budget:
        built = await _shorter(ctx)
    if built.request.messages == refused.messages:
        raise error
    return _announced(ctx, built)


async def _shorter(ctx: RunContext) -> BuiltRequest:
    await ctx.journal.commit()
    compacted = await ctx.compactor.recover(ctx.journal)
    built = ctx.composer.build(ctx.journal.path, ctx.toolbox.definitions, may_drop=not compacted)
    if built.over_budget:
        message = "the conversation does not fit the model's context window, whatever is left out"
        raise ProviderError(ErrorCode.PROMPT_TOO_LONG, message)
    return built


def _announced(ctx: RunContext, built: BuiltRequest) -> ModelRequest:
    ctx.journal.note(EventType.CONTEXT_BUILT, built.report_payload())
    return built.request
