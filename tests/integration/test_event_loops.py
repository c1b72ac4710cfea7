"""One event loop per runtime: a use from a second one is one error that says what to do."""

import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_core import (
    AgentCoreError,
    AgentRuntime,
    ErrorCode,
    ModelRequest,
    RunHandle,
    RunStatus,
    Session,
    Worker,
)
from agent_core.aio.loops import LoopLock
from agent_core.providers.scripted import Hangs, ScriptedProvider
from agent_core.storage.connections import open_writer
from agent_core.storage.sqlite import Writer
from isolation import Home, program_file

ARGUMENTS: dict[str, Any] = {
    "arguments": {},
    "decision": "deny",
    "older_than": None,
    "project": ".",
    "secrets": {},
    "session_id": "s1",
}
"""Arguments for public methods; other required arguments get a text."""


def echo(request: ModelRequest) -> Any:
    said = "".join(getattr(block, "text", "") for block in request.messages[-1].content)
    return Hangs() if said == "hang" else f"said {said}"


def runtime(home: Home, project: Path, **options: Any) -> AgentRuntime:
    return AgentRuntime(project, home_dir=home.path, model=ScriptedProvider(echo), **options)


def asynchronous(kind: type) -> list[str]:
    """The public methods of a class that are awaited, or iterated over."""
    return [
        name
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if (not name.startswith("_") or name in {"__aenter__", "__aexit__"})
        and (
            inspect.iscoroutinefunction(member)
            or inspect.isasyncgenfunction(member)
            or "AsyncGenerator" in str(inspect.signature(member).return_annotation)
        )
    ]


async def call(thing: object, name: str) -> None:
    """Call a method with something for each argument that it requires, to its first result."""
    method = getattr(thing, name)
    if name == "__aexit__":
        await method(None, None, None)
        return
    given = {
        parameter.name: ARGUMENTS.get(parameter.name, "x")
        for parameter in inspect.signature(method).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in {parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL}
    }
    result: Any = method(**given)
    if isinstance(result, AsyncGenerator):
        await anext(result)  # pyright: ignore[reportUnknownArgumentType]
    else:
        await result


def errors_of(thing: object, names: list[str]) -> dict[str, str]:
    """Call each method in an event loop of its own; returns what is wrong with the answers."""
    wrong: dict[str, str] = {}
    for name in names:
        try:
            asyncio.run(asyncio.wait_for(call(thing, name), 20))
        except AgentCoreError as error:
            if error.code is not ErrorCode.VALIDATION_ERROR or "event loop" not in error.message:
                wrong[name] = repr(error)
        except BaseException as error:  # noqa: BLE001 - reported
            wrong[name] = repr(error)
        else:
            wrong[name] = "it works"
    return wrong


@contextmanager
def running_loop() -> Generator[asyncio.AbstractEventLoop]:
    """An event loop that runs in a thread, as in a server."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def there(loop: asyncio.AbstractEventLoop, work: Any) -> Any:
    return asyncio.run_coroutine_threadsafe(work, loop).result(30)


@pytest.mark.parametrize("is_entered", [True, False])
def test_every_method_refuses_another_event_loop(
    home: Home, project: Path, is_entered: bool
) -> None:
    with running_loop() as loop:
        made = runtime(home, project)
        if is_entered:
            there(loop, made.__aenter__())
        handle = there(loop, made.start("hang", "s1"))
        session = made.session("s2")
        there(loop, session.start("hang"))
        names = asynchronous(AgentRuntime)
        assert len(names) >= 40
        assert errors_of(made, [n for n in names if n != "__aexit__"]) == {}
        names = asynchronous(RunHandle)
        assert set(names) > {"events", "wait", "cancel", "result", "partial_output"}
        assert errors_of(handle, names) == {}
        names = [name for name in asynchronous(Session) if name != "__aenter__"]
        assert set(names) > {"start", "run", "undo", "__aexit__"}
        assert errors_of(session, names) == {}
        assert handle.status is RunStatus.RUNNING
        there(loop, made.close())
        assert there(loop, handle.wait()) is RunStatus.CANCELLED


@pytest.mark.parametrize("is_private", [True, False])
def test_the_error_says_where_the_runtime_is_and_what_to_do(
    home: Home, project: Path, is_private: bool
) -> None:
    made = runtime(home, project)
    with running_loop() as loop:
        if is_private:
            with made:
                error = refusal(made.run("hello"))
            assert "synchronous methods" in error
        else:
            there(loop, made.run("hello"))
            error = refusal(made.run("hello"))
            there(loop, made.close())
            assert "run_sync" in error
        assert "another AgentRuntime" in error
    assert asyncio.run(entered(made)) == "said hello"


def refusal(work: Any) -> str:
    with pytest.raises(AgentCoreError) as refused:
        asyncio.run(work)
    assert refused.value.code is ErrorCode.VALIDATION_ERROR
    return refused.value.message


async def entered(made: AgentRuntime) -> str:
    async with made:
        return (await made.run("hello")).text


def test_a_runtime_that_is_not_entered_ends_with_its_event_loop(home: Home, project: Path) -> None:
    text = """
import asyncio, sys
from agent_core import AgentRuntime
from agent_core.providers.scripted import ScriptedProvider

made = AgentRuntime(sys.argv[2], home_dir=sys.argv[1], model=ScriptedProvider(["a", "b", "c", "d"]))
print(asyncio.run(made.run("1", "s1")).text)
print(asyncio.run(made.run("2", "s1")).text)
print(made.run_sync("3", "s1").text)

async def main():
    async with made:
        print((await made.run("4", "s1")).text)
        print(len(await made.session_runs("s1")))

asyncio.run(main())
"""
    done = subprocess.run(  # noqa: S603 - our own text, in our own interpreter
        [sys.executable, program_file(text), str(home.path), str(project)],
        env=home.env(PYTHONWARNINGS="error"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("a\nb\nc\nd\n4\n", "")
    assert list((home.path / "sessions" / ".owners").glob("*.lock")) == []


def test_what_is_under_way_when_the_event_loop_ends_is_settled(home: Home, project: Path) -> None:
    made = runtime(home, project)

    async def leave() -> None:
        await made.start("hang", "s1")

    asyncio.run(leave())
    made.run_sync("hello", "s1")
    (first, second) = asyncio.run(runs_of(made))
    assert first.status.is_terminal
    assert second.status is RunStatus.COMPLETED


async def runs_of(made: AgentRuntime) -> list[Any]:
    async with made:
        return await made.session_runs("s1")


def test_a_closed_event_loop_is_named_and_close_makes_way_for_another(
    home: Home, project: Path
) -> None:
    made = runtime(home, project)
    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(made.run("hello")).text == "said hello"
    stopped = refusal(made.run("hello"))
    assert "not running now" in stopped
    with pytest.raises(AgentCoreError, match="not running now"):
        made.run_sync("hello")
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()  # without an end for anything in it
    assert "has been closed" in refusal(made.run("hello"))
    with pytest.raises(AgentCoreError, match="has been closed"):
        made.run_sync("hello")
    asyncio.run(made.close())
    assert asyncio.run(entered(made)) == "said hello"


@pytest.mark.sweep
def test_a_runtime_is_awaited_after_run_sync_unless_the_program_closes_it(
    home: Home, project: Path
) -> None:
    made = runtime(home, project)
    for _ in range(2):
        assert made.run_sync("hello").text == "said hello"
        assert asyncio.run(made.run("hello")).text == "said hello"
    assert asyncio.run(entered(made)) == "said hello"
    assert "enter it again" in refusal(made.run("hello"))
    with made:
        made.run_sync("hello")
    assert "enter it again" in refusal(made.run("hello"))


async def test_an_opening_that_is_cancelled_leaves_nothing_open(home: Home, project: Path) -> None:
    made = runtime(home, project)
    entering = asyncio.create_task(made.__aenter__())
    await asyncio.sleep(0)
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert made._home.opened is None
    async with made:
        assert (await made.run("hello")).text == "said hello"


async def test_first_calls_at_once_open_it_once(home: Home, project: Path) -> None:
    made = runtime(home, project)
    results = await asyncio.gather(*(made.run(f"{n}") for n in range(8)))
    assert [result.text for result in results] == [f"said {n}" for n in range(8)]
    assert len(list((home.path / "sessions" / ".owners").glob("*.lock"))) == 1
    await made.close()


async def test_only_one_block_at_a_time_enters_a_runtime(home: Home, project: Path) -> None:
    made = runtime(home, project)
    await made.run("open it first")
    async with made:
        with pytest.raises(AgentCoreError, match="use it inside") as refused:
            await made.__aenter__()
        assert refused.value.code is ErrorCode.VALIDATION_ERROR
        assert (await made.run("still open")).text
    async with made:
        assert (await made.run("again")).text


def test_only_one_block_at_a_time_enters_a_runtime_of_threads(home: Home, project: Path) -> None:
    made = runtime(home, project)
    with made:
        with pytest.raises(AgentCoreError, match="use it inside"), made:
            pass
        assert made.run_sync("still open").text
    with made:
        assert made.run_sync("again").text


async def test_a_runtime_closed_by_one_of_its_tools_ends(home: Home, project: Path) -> None:
    made = runtime(home, project)

    async def closes(request: ModelRequest) -> Any:
        await made.close()
        return "closed"

    run = asyncio.create_task(made.run("hello", model=ScriptedProvider(closes)))
    with pytest.raises(AgentCoreError):
        await asyncio.wait_for(run, 30)


def test_a_worker_runs_in_one_event_loop(home: Home, database_url: str) -> None:
    worker = Worker(model=ScriptedProvider(echo), home_dir=home.path, database_url=database_url)
    with running_loop() as loop:
        running = asyncio.run_coroutine_threadsafe(worker.run(), loop)
        while worker._home is None:
            assert not running.done(), running.exception()
        assert "another event loop" in refusal(worker.run())
        with pytest.raises(AgentCoreError, match="already running"):
            there(loop, worker.run())
        worker.drain()  # from this thread
        assert running.result(30)


async def test_a_lock_moves_between_event_loops_when_it_is_free() -> None:
    lock = LoopLock("the thing")

    async def use() -> None:
        async with lock:
            await asyncio.sleep(0)

    async def contend() -> None:
        await asyncio.gather(*(use() for _ in range(5)))

    await contend()
    await asyncio.to_thread(asyncio.run, contend())
    async with lock:
        with pytest.raises(AgentCoreError, match="the thing is in use in another event loop"):
            await asyncio.to_thread(asyncio.run, use())
        waiting = asyncio.create_task(use())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await asyncio.to_thread(asyncio.run, contend())


async def test_a_writer_serves_several_event_loops(tmp_path: Path) -> None:
    file = tmp_path / "sessions.sqlite"
    writer = Writer(await asyncio.to_thread(open_writer, file), file)
    await writer.submit(lambda c: c.execute("CREATE TABLE numbers (n INTEGER)"))

    def insert(number: int) -> Callable[[Any], Any]:
        return lambda c: c.execute("INSERT INTO numbers VALUES (?)", (number,))

    async def write(first: int) -> None:
        for n in range(first, first + 200):
            await writer.submit(insert(n), is_small=n % 3 > 0)

    def in_own_loop(first: int) -> None:
        asyncio.run(write(first))

    async def abandon() -> None:
        for n in range(900, 950):
            writer.submit(insert(n))  # its event loop ends without waiting

    others = [asyncio.to_thread(in_own_loop, 200 * n) for n in range(1, 4)]
    await asyncio.gather(write(0), *others, asyncio.to_thread(lambda: asyncio.run(abandon())))
    found = await writer.submit(lambda c: c.execute("SELECT count(*) FROM numbers").fetchone())
    assert tuple(found) == (850,)
    await asyncio.wait_for(writer.submit(insert(1), is_small=True), 20)
    await writer.close()
