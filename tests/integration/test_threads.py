"""`run_sync` and its siblings from threads: any number of them, whatever else uses the runtime."""

import asyncio
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
import trio

from agcore import Agent
from agcore.agent import AgentError
from agcore.llm import AdapterProvider, MockProvider
from agcore.memory import ConversationMemory, InMemoryStore, SqliteStore
from agent_core import (
    AgentCoreError,
    AgentRuntime,
    ErrorCode,
    ModelRequest,
    RunError,
    RunStatus,
    Toolset,
    tool,
)
from agent_core.aio import loops
from agent_core.config.models import ModelConfig
from agent_core.providers.base import ProviderAdapter, ProviderRegistry
from agent_core.providers.scripted import Hangs, ScriptedProvider, calls
from agent_core.testing import ScriptedRuntime
from isolation import Home, program_file
from model_server import ModelServer
from sweeps import kept

THREADS = 8
LONG_S = 60.0


def echo(request: ModelRequest) -> Any:
    """Says what the last message says; calls the tool that it names; hangs if it says so."""
    said = "".join(getattr(block, "text", "") for block in request.messages[-1].content)
    name, _, rest = said.partition(" ")
    if name in {each.name for each in request.tools}:
        return calls(name, text=rest)
    return Hangs() if said == "hang" else f"said {said}" if said else "done"


def stored(home: Home, project: Path) -> AgentRuntime:
    return AgentRuntime(project, home_dir=home.path, model=ScriptedProvider(echo))


def in_memory(**options: Any) -> ScriptedRuntime:
    return ScriptedRuntime(echo, **options)


def in_threads(work: Callable[[int], Any], number: int = THREADS) -> list[Any]:
    """Do the work in so many threads at once; exceptions are results, too."""
    begin = threading.Barrier(number)
    results: list[Any] = [None] * number

    def do(index: int) -> None:
        begin.wait()
        try:
            results[index] = work(index)
        except BaseException as error:  # noqa: BLE001 - it is the result
            results[index] = error

    threads = [threading.Thread(target=do, args=(n,), daemon=True) for n in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
    assert not any(thread.is_alive() for thread in threads)
    return results


def texts(results: list[Any]) -> list[str]:
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result.text for result in results]


def refused(error: BaseException) -> AgentCoreError:
    assert isinstance(error, AgentCoreError), repr(error)
    assert error.code is ErrorCode.VALIDATION_ERROR, repr(error)
    return error


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONG_S):
        while not is_so():  # noqa: ASYNC110 - threads of others are waited for
            await asyncio.sleep(0.01)


@contextmanager
def no_more_threads() -> Generator[None]:
    before = set(threading.enumerate())
    yield
    gc.collect()
    until = time.monotonic() + LONG_S
    while (left := set(threading.enumerate()) - before) and time.monotonic() < until:
        time.sleep(0.01)
    assert left == set()


@contextmanager
def impatient(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    with monkeypatch.context() as patched:
        patched.setattr(loops, "PATIENCE_S", 0.5)
        yield


# --- the runtime ----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_stored", kept([True, False], True))
def test_any_number_of_threads_share_a_runtime_that_is_never_entered(
    home: Home, project: Path, is_stored: bool
) -> None:
    with no_more_threads():
        made = stored(home, project) if is_stored else in_memory(project_dir=project)
        for _ in range(3):
            results = in_threads(lambda n: made.run_sync(f"hello {n}"))
            assert texts(results) == [f"said hello {n}" for n in range(THREADS)]
        assert len(asyncio.run(sessions_of(made))) == 3 * THREADS


async def sessions_of(made: AgentRuntime) -> list[Any]:
    async with made:
        return await made.list_sessions(limit=200)


def test_threads_of_one_session_take_turns(home: Home, project: Path) -> None:
    made = stored(home, project)
    results = in_threads(lambda n: made.run_sync(f"hello {n}", "s1"))
    assert texts(results) == [f"said hello {n}" for n in range(THREADS)]

    with made:
        again = in_threads(lambda n: made.session("s1").run_sync(f"again {n}"))
    assert texts(again) == [f"said again {n}" for n in range(THREADS)]


def test_a_thread_that_comes_later_finds_the_runtime_in_use(project: Path) -> None:
    made = in_memory(project_dir=project)
    begun = threading.Event()
    handles: list[Any] = []

    @tool(permission="readonly")
    def wait(text: str) -> str:
        """Wait."""
        begun.set()
        assert go_on.wait(LONG_S)
        return text

    go_on = threading.Event()
    first = ThreadPoolExecutor(1)
    waiting = first.submit(lambda: made.run_sync("wait x", tools=[wait]))
    assert begun.wait(LONG_S)
    try:
        assert made.run_sync("hello").text == "said hello"
        handles += in_threads(lambda n: made.run_sync(f"{n}"))
    finally:
        go_on.set()
    assert texts(handles) == [f"said {n}" for n in range(THREADS)]
    assert waiting.result(LONG_S).text == "done"


@pytest.mark.sweep
def test_with_keeps_it_open_for_threads_and_closes_it(home: Home, project: Path) -> None:
    opened: list[str] = []

    class Counted(Toolset):
        async def open(self) -> Any:
            opened.append("open")
            return []

        async def close(self) -> None:
            opened.append("close")

    with no_more_threads():
        made = AgentRuntime(
            project,
            home_dir=home.path,
            model=ScriptedProvider(echo),
            toolsets=[Counted("counted")],
        )
        with made as entered:
            assert entered is made
            for _ in range(3):
                texts(in_threads(lambda n: made.run_sync(f"hello {n}")))
        assert opened == ["open", "close"]
        assert made.run_sync("after").text == "said after"
        assert opened == ["open", "close"] * 2


@pytest.mark.sweep
def test_it_is_closed_in_the_middle_of_the_runs_of_threads(project: Path) -> None:
    made = in_memory(project_dir=project)
    closing = threading.Event()

    def work(number: int) -> Any:
        if number == 0:
            while not made_busy(made, THREADS - 1):
                time.sleep(0.01)
            closing.set()
            return made.close_sync()
        return made.run_sync("hang", f"s{number}")

    with no_more_threads():
        closed, *results = in_threads(work)
    assert closing.is_set()
    assert closed is None
    assert all(isinstance(each, RunError) for each in results), results
    assert {error.code for error in results} == {ErrorCode.CANCELLED}
    assert made.run_sync("hello").text == "said hello"


def made_busy(made: AgentRuntime, number: int) -> bool:
    services = made._home.opened
    return services is not None and len(services.runs.table._runs) >= number


def test_close_in_an_event_loop_ends_the_runs_of_threads(project: Path) -> None:
    made = in_memory(project_dir=project)
    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(lambda: made.run_sync("hang"))
        while not made_busy(made, 1):
            time.sleep(0.01)
        asyncio.run(made.close())
        assert isinstance(hanging.exception(LONG_S), RunError)


async def test_threads_run_in_the_event_loop_in_which_the_runtime_is_open(
    home: Home, project: Path
) -> None:
    loop_of: list[Any] = []

    @tool(permission="readonly")
    async def note(text: str) -> str:
        """Note."""
        loop_of.append(asyncio.get_running_loop())
        return text

    async with stored(home, project) as made:
        here = asyncio.to_thread(in_threads, lambda n: made.run_sync(f"note {n}", tools=[note]))
        results, own = await asyncio.gather(here, made.run("hello"))
        assert texts(results) == ["done"] * THREADS
        assert own.text == "said hello"
        assert set(loop_of) == {asyncio.get_running_loop()}
        assert len(await made.list_sessions()) == THREADS + 1


async def test_a_blocked_event_loop_is_an_error_and_not_a_deadlock(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with impatient(monkeypatch):
        async with in_memory(project_dir=project) as made:
            (error, *_) = in_threads(lambda _: made.run_sync("hello"), 2)  # blocks this loop
            assert "blocks it" in str(refused(error))
            assert (await made.run("hello")).text == "said hello"


def test_a_tool_that_blocks_the_loop_of_the_threads_is_waited_for(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @tool(permission="readonly")
    async def block(text: str) -> str:
        """Block the event loop."""
        time.sleep(2)  # noqa: ASYNC251 - what an async tool must not do
        return text

    with impatient(monkeypatch):
        assert in_memory(project_dir=project).run_sync("block x", tools=[block]).text == "done"


def test_an_async_tool_that_waits_for_threads_of_its_runtime_gets_an_error(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[Any] = []

    @tool(permission="readonly")
    async def deadlock(text: str) -> str:
        """Wait for threads that wait for this one."""
        errors.extend(in_threads(lambda _: made.run_sync("hello"), 2))
        return text

    made = in_memory(project_dir=project)
    with impatient(monkeypatch):
        assert made.run_sync("deadlock x", tools=[deadlock]).text == "done"
    assert ["blocks it" in str(refused(error)) for error in errors] == [True, True]


async def test_a_loop_that_is_blocked_later_is_an_error_as_well(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with impatient(monkeypatch):
        async with in_memory(project_dir=project) as made:
            pool = ThreadPoolExecutor(1)
            hanging = pool.submit(lambda: made.run_sync("hang"))
            await until(lambda: made_busy(made, 1))
            refused(hanging.exception(LONG_S) or AssertionError())
            pool.shutdown()


def test_an_event_loop_that_ends_takes_its_threads_with_it(project: Path) -> None:
    made = in_memory(project_dir=project)
    results: list[Any] = []

    async def main() -> None:
        async with made:
            thread.start()
            await until(lambda: made_busy(made, 1))

    def work() -> None:
        try:
            made.run_sync("hang")
        except AgentCoreError as error:
            results.append(error)

    thread = threading.Thread(target=work, daemon=True)
    asyncio.run(main())
    thread.join(LONG_S)
    assert [type(error) for error in results] == [RunError]


async def test_a_thread_with_an_event_loop_is_told_what_to_write(home: Home, project: Path) -> None:
    made = stored(home, project)
    agent = Agent("a", model=MockProvider(["x"]))
    blocking: list[Callable[[], Any]] = [
        lambda: made.run_sync("hello"),
        lambda: made.session("s1").run_sync("hello"),
        made.close_sync,
        made.__enter__,
        lambda: agent.run_sync("hello"),
    ]
    for call in blocking:
        with pytest.raises(AgentCoreError, match="would block it: write `"):
            call()
    async with made:
        for call in blocking:
            with pytest.raises(AgentCoreError, match="would block it: write `"):
                call()


def test_the_context_variables_of_the_calling_thread_are_those_of_its_run(project: Path) -> None:
    user: ContextVar[str] = ContextVar("user", default="nobody")

    @tool(permission="readonly")
    async def who(text: str) -> str:
        """Say who asks."""
        seen.append((text, user.get()))
        return text

    seen: list[tuple[str, str]] = []
    made = in_memory(project_dir=project)

    def work(number: int) -> Any:
        user.set(f"user {number}")
        return made.run_sync(f"who {number}", tools=[who])

    texts(in_threads(work))
    assert sorted(seen) == [(str(n), f"user {n}") for n in range(THREADS)]


@pytest.mark.parametrize("way", ["never entered", "with", "async with"])
def test_a_tool_in_a_thread_may_call_run_sync(project: Path, way: str) -> None:
    config = {"runtime": {"max_concurrent_runs": 1}}
    made = in_memory(project_dir=project, config=config)

    @tool(permission="readonly")
    def ask(text: str) -> str:
        """Ask another run."""
        with pytest.raises(AgentCoreError, match="could never begin") as refusal:
            made.run_sync(text, "s1")
        assert refusal.value.code is ErrorCode.SESSION_ACTIVE
        return made.run_sync(text, "s2", tools=[ask]).text

    async def entered() -> Any:
        async with made:
            return await made.run("ask hello", "s1", tools=[ask])

    match way:
        case "never entered":
            result = made.run_sync("ask hello", "s1", tools=[ask])
        case "with":
            with made:
                result = made.run_sync("ask hello", "s1", tools=[ask])
        case _:
            result = asyncio.run(asyncio.wait_for(entered(), LONG_S))
    assert result.status is RunStatus.COMPLETED
    runs = asyncio.run(runs_of(made, "s2"))
    assert [run.status for run in runs] == [RunStatus.COMPLETED]


async def runs_of(made: AgentRuntime, session_id: str) -> list[Any]:
    async with made:
        return await made.session_runs(session_id)


def test_a_failing_configuration_is_an_error_of_every_thread(project: Path) -> None:
    made = AgentRuntime(project, model="openai:x", config={"model": {"provider": 7}}, persist=False)
    results = in_threads(lambda _: made.run_sync("hello"))
    assert {error.code for error in results} == {ErrorCode.CONFIG_ERROR}
    with pytest.raises(AgentCoreError), made:
        pytest.fail("it cannot be entered")


def test_a_runtime_that_nobody_holds_is_closed(home: Home, project: Path) -> None:
    async def leave_open() -> None:
        made = stored(home, project)
        await made.run("hello")
        assert len(locks(home)) == 1
        del made
        gc.collect()
        await until(lambda: not locks(home))

    asyncio.run(asyncio.wait_for(leave_open(), LONG_S))


def locks(home: Home) -> list[Path]:
    return list((home.path / "sessions" / ".owners").glob("*.lock"))


# --- signals, exits, forks ------------------------------------------------------------------------

PROGRAM = """
import asyncio, os, signal, sys, threading, time
from agent_core import AgentRuntime, tool
from agent_core.providers.scripted import Hangs, ScriptedProvider

def echo(request):
    said = request.messages[-1].content[0].text
    return Hangs() if said == "hang" else f"said {said}"

home, project = sys.argv[1:3]
made = AgentRuntime(project, home_dir=home, model=ScriptedProvider(echo))

def is_busy():
    services = made._home.opened
    return services is not None and len(services.runs.table._runs) > 0
"""


def program(home: Home, project: Path, code: str, *, seconds: float = LONG_S) -> Any:
    return subprocess.run(  # noqa: S603 - our own text, in our own interpreter
        [sys.executable, program_file(PROGRAM + code), str(home.path), str(project)],
        env=home.env(PYTHONWARNINGS="error"),
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )


@pytest.mark.parametrize("way", ["never entered", "with"])
def test_ctrl_c_cancels_the_run_and_ends_in_order(home: Home, project: Path, way: str) -> None:
    first = "if True:" if way == "never entered" else "with made:"
    code = f"""
def interrupt():
    while not is_busy():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
try:
    {first}
        made.run_sync("hang", "s1")
except KeyboardInterrupt:
    print("interrupted")
"""
    done = program(home, project, code)
    assert (done.stdout, done.stderr, done.returncode) == ("interrupted\n", "", 0)
    (run,) = asyncio.run(runs_of(stored(home, project), "s1"))
    assert run.status is RunStatus.CANCELLED
    assert locks(home) == []


@pytest.mark.sweep
def test_threads_end_their_work_after_the_main_thread(home: Home, project: Path) -> None:
    code = """
def work(number):
    for _ in range(3):
        time.sleep(0.05 * number)
        sys.stdout.write(made.run_sync(f"hello {number}").text + "\\n")

for number in range(5):
    threading.Thread(target=work, args=(number,)).start()
"""
    done = program(home, project, code)
    assert (done.stderr, done.returncode) == ("", 0)
    expected = sorted(f"said hello {number}" for number in range(5) for _ in range(3))
    assert sorted(done.stdout.splitlines()) == expected
    assert locks(home) == []


def test_a_program_ends_in_the_middle_of_the_run_of_a_daemon(home: Home, project: Path) -> None:
    code = """
threading.Thread(target=lambda: made.run_sync("hang", "s1"), daemon=True).start()
while not is_busy():
    time.sleep(0.01)
"""
    done = program(home, project, code)
    assert (done.stderr, done.returncode) == ("", 0)
    assert stored(home, project).run_sync("hello", "s1").text == "said hello"


def test_a_runtime_left_open_does_not_keep_the_program_alive(home: Home, project: Path) -> None:
    code = """
made.__enter__()
print(made.run_sync("hello").text)
"""
    done = program(home, project, code)
    assert (done.stdout, done.stderr, done.returncode) == ("said hello\n", "", 0)


@pytest.mark.parametrize("exits", kept(["os._exit(0)", "sys.exit(0)"], "sys.exit(0)"))
def test_a_forked_process_uses_the_runtime_anew(home: Home, project: Path, exits: str) -> None:
    code = f"""
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside threads
made.__enter__()
print(made.run_sync("parent", "s1").text, flush=True)
child = os.fork()
if child == 0:
    print(made.run_sync("child", "s2").text, flush=True)
    {exits}
print(os.waitpid(child, 0)[1], made.run_sync("again", "s1").text, flush=True)
made.__exit__()
"""
    done = program(home, project, code)
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.split("\n") == ["said parent", "said child", "0 said again", ""]
    runs = asyncio.run(runs_of(stored(home, project), "s1"))
    assert [run.status for run in runs] == [RunStatus.COMPLETED] * 2


def test_a_forked_process_does_not_keep_the_lock_of_its_parent(home: Home, project: Path) -> None:
    code = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
made.__enter__()
threading.Thread(target=lambda: made.run_sync("hang", "s1"), daemon=True).start()
while not is_busy():
    time.sleep(0.01)
child = os.fork()
if child == 0:
    os.close(1), os.close(2)
    time.sleep(30)
    os._exit(0)
print(child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = program(home, project, code)
    child = int(done.stdout)
    try:
        assert stored(home, project).run_sync("hello", "s1").text == "said hello"
    finally:
        os.kill(child, signal.SIGKILL)


def run_in_child(home: str, project: str) -> str:
    made = AgentRuntime(project, home_dir=home, model=ScriptedProvider(echo))
    return made.run_sync("child").text


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_process_pool_forked_beside_an_open_runtime_works(home: Home, project: Path) -> None:
    with stored(home, project) as made:
        assert made.run_sync("parent").text == "said parent"
        with multiprocessing.get_context("fork").Pool(2) as pool:
            given = (str(home.path), str(project))
            asked = [pool.apply_async(run_in_child, given) for _ in range(4)]
            assert [each.get(LONG_S) for each in asked] == ["said child"] * 4
        assert made.run_sync("parent").text == "said parent"


# --- other libraries ------------------------------------------------------------------------------


def test_under_trio_an_error_says_that_asyncio_is_needed(home: Home, project: Path) -> None:
    made = stored(home, project)
    agent = Agent("a", model=MockProvider(["x"] * 9))

    async def main() -> None:
        awaited: list[Callable[[], Any]] = [
            lambda: made.run("hello"),
            lambda: made.start("hello"),
            made.list_sessions,
            made.close,
            made.__aenter__,
            made.session("s1").__aenter__,
            lambda: agent.run("hello"),
            agent.session().__aenter__,
            lambda: anext(agent.stream("hello")),
            lambda: anext(agent.stream("hello").partial_output()),
            lambda: ConversationMemory(InMemoryStore(), "s1").get_history(),
            lambda: SqliteStore.open(project / "memory.sqlite"),
        ]
        for each in awaited:
            with pytest.raises(AgentCoreError, match=r"needs asyncio.*trio") as caught:
                await each()
            assert caught.value.code is ErrorCode.VALIDATION_ERROR
            assert "trio.to_thread.run_sync" in str(caught.value)
        for call in (lambda: made.run_sync("hello"), lambda: agent.run_sync("hello")):
            with pytest.raises(AgentCoreError, match=r"would block it.*trio"):
                call()
        assert (await trio.to_thread.run_sync(made.run_sync, "hello")).text == "said hello"
        assert (await trio.to_thread.run_sync(agent.run_sync, "hello")).text == "x"

    trio.run(main)


def test_without_any_event_loop_an_error_says_how_to_begin(project: Path) -> None:
    made = in_memory(project_dir=project)
    for work in (made.run("hello"), made.close(), made.session("s1").__aenter__()):
        with pytest.raises(AgentCoreError, match=r"asyncio\.run"):
            work.send(None)


# --- the toolkit ----------------------------------------------------------------------------------


def test_agents_share_models_conversations_and_toolsets_between_threads(tmp_path: Path) -> None:
    class Slow(Toolset):
        async def open(self) -> Any:
            await asyncio.sleep(0.01)
            return []

        async def close(self) -> None:
            await asyncio.sleep(0.01)

    with no_more_threads(), ModelServer.in_thread(lambda _: "hi") as server:
        store = asyncio.run(SqliteStore.open(tmp_path / "memory.sqlite"))
        conversation = ConversationMemory(store, "s1")
        model = adapter_of(server)
        agent = Agent("a", model=AdapterProvider(model, "m"), tools=[Slow("slow")])
        for _ in range(3):
            results = in_threads(lambda n: agent.run_sync(f"{n}", conversation=conversation))
            assert texts(results) == ["hi"] * THREADS
        asyncio.run(model.close())
        messages = asyncio.run(conversation.get_archive())
        asyncio.run(store.close())
    assert len(messages) == 3 * THREADS * 2


def adapter_of(server: ModelServer) -> ProviderAdapter:
    config = ModelConfig(provider="openai", name="m", base_url=server.base_url("openai"))
    return ProviderRegistry().create(config)


async def test_what_one_loop_uses_is_refused_to_another_with_one_error(tmp_path: Path) -> None:
    agent = Agent("a", model=ScriptedProvider(echo))
    conversation = ConversationMemory(InMemoryStore(), "s1")

    class Open(Toolset):
        async def open(self) -> Any:
            return []

    toolset = Open("open")
    async with agent.session("s1", conversation=conversation) as session:
        hanging = asyncio.create_task(session.run("hang", tools=[toolset]))
        await asyncio.sleep(0.1)

        def elsewhere() -> list[BaseException]:
            errors: list[BaseException] = []
            for work in (session.run("hello"), agent.run("hello", tools=[toolset])):
                try:
                    asyncio.run(work)
                except AgentCoreError as error:
                    errors.append(error)
            return errors

        errors = await asyncio.to_thread(elsewhere)
        hanging.cancel()
        with suppress(asyncio.CancelledError):
            await hanging
    assert all(isinstance(refused(error), AgentError) for error in errors)
    assert "another event loop" in str(errors[0])
    assert "the toolset 'open' belongs to another event loop" in str(errors[1])


async def test_a_stream_is_read_in_the_event_loop_in_which_it_has_begun(project: Path) -> None:
    agent = Agent("a", model=MockProvider(["some words"]))
    async with in_memory(project_dir=project) as made:
        handle = await made.start("hello")
        streams: list[Any] = [agent.stream("hello"), handle.partial_output()]
        for stream in streams:
            first = await anext(stream)

            async def read(stream: Any = stream) -> None:
                await anext(stream)

            async def leave(stream: Any = stream) -> None:
                await stream.aclose()

            for use in (read, leave):
                with pytest.raises(AgentCoreError, match="in use in another event loop"):
                    await asyncio.to_thread(asyncio.run, use())
            rest = [item async for item in stream]  # it has not been disturbed
            assert first != (rest or [None])[-1]


async def test_an_adapter_may_be_used_in_several_event_loops(project: Path) -> None:
    async with ModelServer(lambda _: "hi") as server:
        model = adapter_of(server)
        async with AgentRuntime(project, model=model, persist=False) as made:
            other = AgentRuntime(project, model=model, persist=False)
            work = asyncio.to_thread(in_threads, lambda _: other.run_sync("hello"))
            results, own = await asyncio.gather(work, made.run("hello"))
            assert [*texts(results), own.text] == ["hi"] * (THREADS + 1)
            assert (await made.run("hello")).text == "hi"
        await model.close()
