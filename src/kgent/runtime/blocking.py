"""Coroutines for callers that block."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

from agent_core.aio import end_uncancelled, is_loop_running
from agent_core.aio.loops import call_in_loop
from kgent.errors import config_error

T = TypeVar("T")


def run_blocking(
    work: Callable[[], Coroutine[Any, Any, T]], loop: asyncio.AbstractEventLoop | None = None
) -> T:
    """Run a coroutine to its end, and block until then, even in a thread with an event loop.

    Args:
        work: the coroutine.
        loop: the event loop of another thread that runs it; a new one without it.

    Raises:
        KgentError: category `config`; this thread runs `loop`, and would wait for itself.
    """
    if loop is not None and loop.is_running():
        if is_loop_running() and asyncio.get_running_loop() is loop:
            raise config_error("this call would block its own event loop; await its async form")
        return call_in_loop(loop, work)
    if not is_loop_running():
        return asyncio.run(work())
    return _in_thread(lambda: asyncio.run(work()))


def _in_thread(function: Callable[[], T]) -> T:
    context = copy_context()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="kgent") as pool:
        return pool.submit(context.run, function).result()


async def finish_in_thread(function: Callable[[], T]) -> T:
    """Call a function in a thread of its own, and return its result.

    It is not interrupted: if the caller is cancelled, the function still runs to its end.
    """
    context, pool = copy_context(), ThreadPoolExecutor(max_workers=1, thread_name_prefix="kgent")

    def call() -> tuple[T, None] | tuple[None, BaseException]:
        try:
            return context.run(function), None
        except BaseException as error:  # noqa: BLE001 - an interrupt would end the event loop
            return None, error

    async def wait() -> tuple[T, None] | tuple[None, BaseException]:
        return await asyncio.get_running_loop().run_in_executor(pool, call)

    try:
        match await end_uncancelled(wait()):
            case result, None:
                return result
            case _, error:
                raise error
    finally:
        pool.shutdown(wait=False)
