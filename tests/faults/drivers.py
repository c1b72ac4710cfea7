"""Programs that do a usual day's work; the fault suite breaks the system beneath them.

Run as `python tests/faults/drivers.py <program> <home> <project>`. A program prints what it has
been shown as stored, one JSON line each and at once: `{"event": ..., "type": ...}` for events,
`{"run": <status>, "code": <error code>}` for the end of a run. It prints with `writev`, so that a
fault injected into `write` never meets the report itself.
"""

import asyncio
import json
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

from agent_core import AgentCoreError, AgentRuntime, PermissionDecision, PermissionRequest, tool
from agent_core.cli import main as command_line
from agent_core.providers.scripted import (
    Calls,
    Hangs,
    Pauses,
    Says,
    ScriptedProvider,
    calls,
)
from agent_core.types import Decision, EventType, Mode, ModelRequest, Role, TextBlock
from casts import Cast, Line, together
from faults.tracing import wait_for_tracer
from kgent import RunOptions
from kgent.engine.mock import MockAgentEngine, MockCall
from kgent.runtime.runner import run as run_profile
from rights import as_anyone

BIG = 200_000
WISH = "Please remember that I like short answers."
STEPS = [{"step_id": "s1"}, {"step_id": "s2"}]
OUTCOMES = {EventType.MEMORY_EXTRACTION_COMPLETED, EventType.MEMORY_EXTRACTION_FAILED}


def say(**facts: object) -> None:
    os.writev(1, [json.dumps(facts).encode() + b"\n"])


class Complaints(logging.Handler):
    """Writes the first line of each record on stderr; a traceback there then escaped from code."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        first = record.getMessage().partition("\n")[0]
        os.writev(2, [f"log: {first} ({error!r})\n".encode()])


def session_script() -> list[str | Calls]:
    """Five turns with tools, with every kind of write a run makes, and an answer."""
    command = ["sh", "-c", "echo ran >> ran.txt"]
    return [
        calls("note", text="one"),
        calls("code.write_file", path="made/a.txt", content="first\n"),
        together(calls("note", text="two"), calls("note", text="three")),
        together(
            calls("big"),
            calls("code.edit_file", path="made/a.txt", edits=[{"old": "first", "new": "second"}]),
        ),
        calls("code.run_command", argv=command),
        "done",
    ]


def task_script() -> dict[str, list[str | Calls]]:
    """An orchestrator that makes a Task, has it worked on twice, and completes it."""

    def work(step: str) -> list[str | Calls]:
        finish = {"status": "completed", "result_summary": "ok"}
        return [
            calls("agent.task_claim_step", task_id="t1", step_id=step),
            calls("agent.task_update_step", task_id="t1", step_id=step, **finish),
            "worked",
        ]

    create = calls("agent.task_create", task_id="t1", wal_name="work", title="T", steps=STEPS)
    first = calls("agent.dispatch_worker", task_id="t1", instruction="first part")
    second = calls("agent.dispatch_worker", task_id="t1", instruction="second part")
    end = calls("agent.task_complete", task_id="t1")
    return {
        "go": [create, first, second, end, "done"],
        "again": ["fine"],
        "first part": work("s1"),
        "second part": work("s2"),
    }


def jumping(parts: Mapping[str, Sequence[Line]]) -> dict[str, list[Line]]:
    """The same parts; where the clock is faked, it jumps before each reply, there and back."""
    file = os.environ.get("FAKETIME_TIMESTAMP_FILE")
    if file is None:
        return {name: list(lines) for name, lines in parts.items()}
    jumps = cycle(os.environ["FAULT_JUMPS"].split(","))

    def after_a_jump(line: Line) -> Line:
        def reply(request: ModelRequest) -> Any:
            Path(file).write_text(next(jumps), encoding="ascii")
            return line(request) if callable(line) else line

        return reply

    return {name: [after_a_jump(line) for line in lines] for name, lines in parts.items()}


def remembering(request: ModelRequest) -> str | Says:
    """Answers runs with a word, and the search for memories with one memory."""
    if request.metadata.get("purpose", "run") != "memory_extraction":
        return "Gladly."
    said = "\n".join(
        block.text
        for message in request.messages
        for block in message.content
        if isinstance(block, TextBlock)
    )
    sources = [word[:-1] for word in said.split() if word.startswith("node_")][:1]
    memory = {
        "decision": "new",
        "category": "user",
        "filename": "short-answers",
        "summary": "Likes short answers",
        "tags": ["style"],
        "content": "The user wants short answers.",
        "source_node_ids": sources,
    }
    return Says(text=json.dumps({"explicit": True, "memories": [memory]}))


def opened(
    home: str,
    project: str,
    provider: ScriptedProvider,
    *,
    snapshots: Literal["off", "turn"] = "off",
) -> AgentRuntime:
    """A runtime whose permission callback allows everything once."""

    async def allow(request: PermissionRequest) -> PermissionDecision:
        return PermissionDecision(decision=Decision.ALLOW_ONCE)

    made = AgentRuntime(
        home_dir=home,
        project_dir=project,
        permission_callback=allow,
        default_snapshots=snapshots,
    )
    effects = Path(project, "effects.txt")

    @tool(permission="readonly")
    async def note(text: str) -> str:
        """Write a line into a file, so that a second execution would be seen."""
        descriptor = os.open(effects, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, f"{text}\n".encode())
        finally:
            os.close(descriptor)
        return f"noted {text}"

    @tool(permission="readonly")
    async def big() -> str:
        """Answer more than a message holds."""
        return "line of text\n" * (BIG // 13)

    made.register_tool(note)
    made.register_tool(big)
    made.register_provider("custom", lambda model: provider)
    return made


async def ask(made: AgentRuntime, text: str, *, mode: Mode = "normal") -> None:
    """One run; say each event that is shown, and how it ended."""
    try:
        handle = await made.start(text, session_id="s1", mode=mode)
    except AgentCoreError as error:
        say(run="refused", code=error.code, message=error.message)
        return
    say(started=handle.run_id)
    async for event in handle.events(debug=True):
        if event.seq is not None:
            say(event=event.event_id, type=event.event_type)
    await handle.wait()
    error = handle.error
    say(
        run=handle.status,
        run_id=handle.run_id,
        code=error and error.code,
        message=error and error.message,
        text=handle.result_text,
    )


async def session(home: str, project: str) -> None:
    played = Cast(jumping({"go": session_script(), "again": ["fine"]}))
    async with opened(home, project, played) as made:
        for text in ("go", "again", "again"):
            await ask(made, text)


def recorded_script() -> list[str | Calls]:
    """Two turns that change files in every way, with an answer."""
    script = (
        "rm old.txt; mkdir -p new/deep; echo x > new/deep/x; ln -s x new/link; chmod 700 run.sh"
    )
    return [
        calls("code.write_file", path="a.txt", content="a\n"),
        calls("code.run_command", argv=["sh", "-c", script]),
        "done",
    ]


async def recorded(home: str, project: str) -> None:
    """A run whose files are recorded."""
    async with opened(home, project, Cast({"go": recorded_script()}), snapshots="turn") as made:
        await ask(made, "go")


async def undoing(home: str, project: str) -> None:
    """Take back the run before."""
    async with opened(home, project, Cast({}), snapshots="turn") as made:
        done = await made.undo("s1")
        say(undone=done.node_id is None)


async def closing(home: str, project: str) -> None:
    """A run that changes files, and takes away the right to read them."""
    script = "echo b >> d/a; rm d/e/b; mkdir n; echo n > n/n; chmod 000 d/a d/e d n; chmod 500 ."
    replies = [calls("code.run_command", argv=["sh", "-c", script]), "done"]
    with as_anyone():
        async with opened(home, project, Cast({"go": replies}), snapshots="turn") as made:
            await ask(made, "go")


async def undoing_as_anyone(home: str, project: str) -> None:
    """Undo the run before, without the superuser's rights."""
    with as_anyone():
        await undoing(home, project)


async def holding(home: str, project: str) -> None:
    """A run whose answer never ends, until it is killed; it says when the answer has begun."""
    async with opened(home, project, Cast({"go": [Hangs(text="so")]})) as made:
        handle = await made.start("go", session_id="s1")
        async for event in handle.events():
            if event.event_type is EventType.MODEL_TEXT_DELTA:
                say(started=handle.run_id)


async def commanding(home: str, project: str) -> None:
    """A run whose command leaves children in every way there is, until it is killed."""
    escapes = "setsid sleep 300 & (setsid sh -c 'exec sleep 300 <&- >&- 2>&-' &) ; sleep 300"
    command = calls("code.run_command", argv=["sh", "-c", f"{escapes} & touch up; wait"])
    async with opened(home, project, Cast({"go": [command, "done"]})) as made:
        handle = await made.start("go", session_id="s1")
        while not Path(project, "up").exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.01)
        say(started=handle.run_id)
        await handle.wait()


async def pausing(home: str, project: str) -> None:
    """A run with pauses in it."""

    def pause(request: ModelRequest) -> Pauses:
        say(pausing=True)
        return Pauses(seconds=0.4)

    script = [pause, calls("note", text="one"), pause, "done"]
    async with opened(home, project, Cast({"go": script, "again": ["fine"]})) as made:
        await ask(made, "go")
        await ask(made, "again")


async def tasks(home: str, project: str) -> None:
    async with opened(home, project, Cast(jumping(task_script()))) as made:
        await ask(made, "go", mode="orchestrator")
        await ask(made, "again", mode="orchestrator")


async def memory(home: str, project: str) -> None:
    async with opened(home, project, ScriptedProvider(remembering)) as made:
        await ask(made, WISH)
        async with asyncio.timeout(50):
            while not (found := await _outcomes(made)):  # noqa: ASYNC110 - a job beside the run
                await asyncio.sleep(0.01)
        say(extraction=found[0])
        await ask(made, "again")


async def _outcomes(made: AgentRuntime) -> list[str]:
    page = await made.replay_session("s1")
    return [event.event_type for event in page.events if event.event_type in OUTCOMES]


async def opening(home: str, project: str) -> None:
    """Only make the database."""
    async with opened(home, project, Cast({})) as made:
        say(sessions=len(await made.list_sessions()))


async def upgrade(home: str, project: str) -> None:
    async with opened(home, project, Cast({"again": ["fine"]})) as made:
        say(sessions=len(await made.list_sessions()))
        await ask(made, "again")


def asking_reply(request: ModelRequest) -> str | Calls:
    """The next line of a run that asks three times; the same one in whatever process it goes on."""
    begun = max(
        place
        for place, message in enumerate(request.messages)
        if message.role is Role.USER and not message.metadata.get("synthetic")
    )
    said = "".join(b.text for b in request.messages[begun].content if isinstance(b, TextBlock))
    child = calls("agent.create_sub_agent", task="part", allowed_tools=["code.write_file"])
    script = {
        "part": [calls("code.write_file", path="made/b.txt", content="first\n"), "parted"],
        "go": [
            calls("code.write_file", path="made/a.txt", content="first\n"),
            calls("code.run_command", argv=["sh", "-c", "echo ran >> ran.txt"]),
            child,
            "done",
        ],
    }
    lines = next((script[name] for name in script if name in said), ["fine"])
    return lines[sum(m.role is Role.ASSISTANT for m in request.messages[begun:])]


def parking(home: str, project: str) -> AgentRuntime:
    """A runtime without anybody to ask, whose runs wait for an answer."""
    made = AgentRuntime(home_dir=home, project_dir=project)
    made.register_provider("custom", lambda model: ScriptedProvider(asking_reply))
    return made


async def answer_all(made: AgentRuntime, *, is_told: bool = True) -> None:
    """Answer question after question, until there is none."""
    while found := await made.approvals():
        handle = await made.answer(found[0].request_id, "allow_once")
        if is_told:
            say(answered=found[0].request_id)
        await handle.wait()


async def asking(home: str, project: str) -> None:
    async with parking(home, project) as made:
        await ask(made, "go")
        await answer_all(made)
        await ask(made, "again")


def profile_run(home: str, project: str) -> None:
    """A run of kgent that writes a deliverable, twice, and something beside it."""
    report = {"path": "deliverables/report.md", "content": "# Report\n"}
    script = [
        MockCall(tool="write_file", args=report),
        MockCall(tool="write_file", args={"path": "workspace/notes.txt", "content": "n\n"}),
        MockCall(tool="read_file", args={"path": "deliverables/report.md"}),
        MockCall(tool="write_memory", args={"content": "It rained.", "scope": "project"}),
        "Done.",
    ]
    result = run_profile(
        Path(home, "kgent.yaml"),
        "Write the report.",
        RunOptions(sandbox=Path(project, "run"), run_id="run_1"),
        engine=MockAgentEngine(script),
    )
    error = result.error
    say(run=result.status, code=error and error.code, message=error and error.message)


PROGRAMS: dict[str, Callable[[str, str], Awaitable[None]]] = {
    "session": session,
    "recorded": recorded,
    "undoing": undoing,
    "closing": closing,
    "undoing as anyone": undoing_as_anyone,
    "tasks": tasks,
    "memory": memory,
    "opening": opening,
    "upgrade": upgrade,
    "holding": holding,
    "commanding": commanding,
    "pausing": pausing,
    "asking": asking,
}


def main(arguments: list[str]) -> Any:
    wait_for_tracer()
    program, home, project = arguments
    logging.basicConfig(handlers=[Complaints()], level=logging.WARNING)
    if program == "command line":
        return command_line(["run", "--", "go"])
    if program == "profile":
        profile_run(home, project)
        return 0
    work = PROGRAMS[program](home, project)
    try:
        asyncio.run(_settled(work))
    except AgentCoreError as error:
        say(run="refused", code=error.code, message=error.message)
        return 1
    return 0


async def _settled(work: Awaitable[None]) -> None:
    # strace counts calls for each thread; with one thread for files, the n-th call is one moment.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max_workers=1))
    async with asyncio.timeout(60):
        await work


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
