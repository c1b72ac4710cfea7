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
        raise _too_long(built)
    return built


def _too_long(built: BuiltRequest) -> ProviderError:
    report = built.report_payload()
    use, room = report["use"], report["budget"]["prompt"]
    fixed = round((use["static_system"] + use["tools"]) * use["scale"])
    return ProviderError(
        ErrorCode.PROMPT_TOO_LONG,
        f"the request needs about {use['total']} tokens, {fixed} of them for the system prompt and"
        f" the tools, and the context window has room for {room}; raise [model] context_window to"
        " what the model really has, name tools in [tools] disabled, or send less at once",
        details={"tokens": use["total"], "fixed_tokens": fixed, "room": room},
    )


def _announced(ctx: RunContext, built: BuiltRequest) -> ModelRequest:
    ctx.journal.note(EventType.CONTEXT_BUILT, built.report_payload())
    return built.request
