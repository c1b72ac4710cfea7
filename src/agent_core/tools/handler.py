"""A tool from a definition and a function: registered, declarative-like, or decorated."""

import asyncio
import concurrent.futures
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import orjson

from agent_core.tools.addresses import hosts_in
from agent_core.tools.base import Action, Lane, Tool, ToolContext, ToolReturn
from agent_core.tools.results import storable
from agent_core.tools.schema import SchemaCheck
from agent_core.types import Access, ToolDefinition, ToolPermission

Handler = Callable[[dict[str, Any], ToolContext], Awaitable[ToolReturn] | ToolReturn]
"""What `register` takes. A plain function runs in a thread of its own."""

ALWAYS_ASKS = frozenset({"dangerous", "network"})
"""Tags that ask even where the tool only reads."""

_MAX_SUMMARY = 4000


def tool_from(definition: ToolDefinition, handler: Handler) -> Tool:
    """Make a tool of a raw definition; its JSON Schema is compiled at the first call."""

    async def prepare(arguments: dict[str, Any], context: ToolContext) -> Action:
        return Action(
            access=plain_access(definition, arguments),
            run=partial(call, handler, arguments, context),
        )

    return Tool(
        definition=definition,
        parse=SchemaCheck(definition.name, definition.input_schema),
        prepare=prepare,
        lane=lane_of(definition),
    )


def lane_of(definition: ToolDefinition) -> Lane:
    """Readers share the road, everything else is alone on it."""
    return Lane.READ if definition.permission is ToolPermission.READONLY else Lane.WRITE


def plain_access(definition: ToolDefinition, arguments: Mapping[str, Any]) -> Access:
    """What is known of a call whose effects are not: it asks unless it only reads.

    An `allow_for_session` covers the tool as a whole, of a tool tagged `network` the hosts that
    this call names.
    """
    writes = definition.permission is ToolPermission.WRITE
    hosts = ",".join(hosts_in(arguments)) if "network" in definition.tags else ""
    return Access(
        asks=writes or not ALWAYS_ASKS.isdisjoint(definition.tags),
        scope=hosts,
        summary=summary_of(arguments),
        network_host=hosts or None,
        dangerous="dangerous" in definition.tags,
    )


def summary_of(arguments: Mapping[str, Any]) -> str:
    """The arguments on one line, as JSON; what is cut off is counted."""
    line = orjson.dumps(storable(arguments)).decode()
    cut = len(line) - _MAX_SUMMARY
    return line if cut <= 0 else f"{line[:_MAX_SUMMARY]}… (+{cut} characters)"


async def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function of either colour; a plain one does not hold up the event loop."""
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    result = await in_own_thread(partial(function, *args, **kwargs))
    return await result if inspect.isawaitable(result) else result


async def in_own_thread(function: Callable[[], Any]) -> Any:
    """Run a foreign function in a thread that nobody has to wait for.

    A pooled thread that never comes back would keep others waiting and the process from ending.
    """
    outcome: concurrent.futures.Future[Any] = concurrent.futures.Future()
    state = contextvars.copy_context()

    def work() -> None:
        outcome.set_running_or_notify_cancel()
        try:
            outcome.set_result(state.run(function))
        except StopIteration as error:  # no future takes one
            outcome.set_exception(RuntimeError(f"the tool raised {error!r}"))
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            outcome.set_exception(error)

    threading.Thread(target=work, name="tool", daemon=True).start()
    return await asyncio.wrap_future(outcome)
