"""The runs that clients have asked for, each until its result is delivered."""

import asyncio
import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any

from msgspec import Struct

from agent_core.api import AgentRuntime, RunHandle
from agent_core.cli.render import label_of, outcome, summary_of
from agent_core.errors import AgentCoreError, ErrorCode, StorageError
from agent_core.events.projection import PlacedEvent, Projection
from agent_core.history.words import (
    denial,
    is_trouble,
    left_out_line,
    meaning_of,
    remark_line,
)
from agent_core.permissions.answers import UnattendedError
from agent_core.text import shortened, visible
from agent_core.types import (
    PermissionDecision,
    PermissionRequest,
    RunStatus,
    RuntimeEvent,
)
from agent_core.types.event_details import (
    ModelAsked,
    RunEnded,
    ToolDenied,
    ToolEnded,
    ToolProgress,
    ToolStarted,
)

Begin = Callable[[], Awaitable[RunHandle[Any]]]
_LONGEST_LINE = 300
_MOST_LINES = 50
"""Lines of progress that are kept while a client is slow to read them."""
_MOST_DENIALS = 20
_MOST_RUNS = 64
_COME_BACK_S = 600.0
"""Seconds for which a run waits for a client that was sent away with questions."""
_CLOSE_S = 10.0


class ClientQuestion(Struct, eq=False):
    """An open question of a run.

    Attributes:
        request: the question.
        answer: its answer; `UnattendedError` if the client cannot ask.
        is_put: it has been sent to the client.
    """

    request: PermissionRequest
    answer: "asyncio.Future[PermissionDecision]"
    is_put: bool = False

    def decide(self, decision: PermissionDecision) -> None:
        """Answer it; the first answer counts."""
        if not self.answer.done():
            self.answer.set_result(decision)

    def give_up(self) -> None:
        """Leave it to the settings: the client cannot ask."""
        if not self.answer.done():
            self.answer.set_exception(UnattendedError())


class ServedRun:
    """A run for a client.

    Args:
        session_id: of its session.
        runtime: executes it.
        can_ask: the client can ask its user.

    Attributes:
        handle: the run, once it is started.
        error: the reason why it could not be started or watched.
        end_reason: why it ended.
        denials: calls that were denied, each with the reason.
        rounds: how often its client was sent away with questions, to come back with answers.
        steps: how often its progress was reported.
    """

    def __init__(self, session_id: str, runtime: AgentRuntime, *, can_ask: bool) -> None:
        self.session_id = session_id
        self.runtime = runtime
        self.can_ask = can_ask
        self.handle: RunHandle[Any] | None = None
        self.error: AgentCoreError | None = None
        self.end_reason: str | None = None
        self.denials: list[str] = []
        self.rounds = 0
        self.steps = 0
        self._projection = Projection()
        self._questions: dict[str, ClientQuestion] = {}
        self._lines: deque[str] = deque(maxlen=_MOST_LINES)
        self._last_line = ""
        self._changed = asyncio.Event()
        self._work: asyncio.Task[None] | None = None
        self._cancelling: asyncio.Task[None] | None = None

    @property
    def is_done(self) -> bool:
        """Return whether it has ended, or waits for an answer that cannot be had here."""
        return self._work is not None and self._work.done()

    def begin(self, begin: Begin, on_end: Callable[[], object]) -> None:
        """Start it; `on_end` is called when it is done."""
        self._work = asyncio.create_task(self._carry_out(begin), name="run of an MCP client")
        self._work.add_done_callback(lambda _: on_end())

    async def _carry_out(self, begin: Begin) -> None:
        try:
            handle = self.handle = await begin()
            async with aclosing(handle.events()) as events:
                async for event in events:
                    self._note(event)
            await handle.wait()
        except AgentCoreError as error:
            self.error = error
        except asyncio.CancelledError:
            message = "the run was cancelled before it began"
            self.error = AgentCoreError(ErrorCode.CANCELLED, message)
        finally:
            self._changed.set()

    async def wait(self) -> None:
        """Return when it is done."""
        if self._work is not None:
            await asyncio.wait([self._work])

    async def changed(self, seconds: float) -> bool:
        """Wait for lines, questions or the end; return False if there was nothing for a while."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        if not self.is_done:
            self._changed.clear()
        return True

    def take_lines(self) -> list[str]:
        """Return what it has done since the last look."""
        lines = list(self._lines)
        self._lines.clear()
        return lines

    @property
    def unasked(self) -> list[ClientQuestion]:
        """The open questions that the client does not know yet."""
        return [each for each in self._questions.values() if not each.is_put]

    def question(self, request_id: str) -> ClientQuestion | None:
        """Return an open question."""
        return self._questions.get(request_id)

    async def ask(self, request: PermissionRequest) -> PermissionDecision:
        """Put a question to the client, and return the answer.

        Raises:
            UnattendedError: the client cannot ask its user.
        """
        if not self.can_ask:
            raise UnattendedError
        answer: asyncio.Future[PermissionDecision] = asyncio.get_running_loop().create_future()
        self._questions[request.request_id] = ClientQuestion(request, answer)
        self._changed.set()
        try:
            return await answer
        finally:
            del self._questions[request.request_id]
            self._changed.set()

    def cancel(self) -> "asyncio.Task[None]":
        """Begin to cancel it, once; a run that has stopped at a question stays so."""
        if self._cancelling is None:
            self._cancelling = asyncio.create_task(self._cancel(), name="cancel a run")
        return self._cancelling

    async def _cancel(self) -> None:
        if self.handle is not None:
            if self.handle.status is not RunStatus.WAITING:
                with suppress(AgentCoreError):  # it ends with its runtime
                    await self.handle.cancel()
        elif self._work is not None:
            self._work.cancel()
        await self.wait()

    def _note(self, event: RuntimeEvent) -> None:
        placed = self._projection.take(event)
        match placed.details:
            case RunEnded(end_reason=reason):
                self.end_reason = reason
            case ToolDenied() if placed.call is not None:
                if len(self.denials) < _MOST_DENIALS:
                    said = ": ".join(filter(None, denial(placed.call)))
                    self.denials.append(_line(f"{_title(placed)}: {said}"))
            case _:
                pass
        line = _line(_line_of(placed))
        if line and line != self._last_line:
            self._last_line = line
            self._lines.append(line)
            self._changed.set()


class ActiveRuns:
    """The runs at work, by session, and those whose clients are to come back with answers."""

    def __init__(self) -> None:
        self._active: dict[str, ServedRun] = {}
        self._away: dict[str, tuple[ServedRun, asyncio.TimerHandle]] = {}

    def get(self, session_id: str) -> ServedRun | None:
        """Return the run of a session, if one is at work."""
        return self._active.get(session_id)

    def begin(self, run: ServedRun, begin: Begin) -> None:
        """Start a run.

        Raises:
            StorageError: `session_active`: its session is at work, or too many runs are.
        """
        if (other := self._active.get(run.session_id)) is not None:
            known = f" (run {other.handle.run_id})" if other.handle else ""
            message = (
                f"session {run.session_id} is busy with another call{known}: wait for its result,"
                " or cancel it; nothing was started"
            )
            raise StorageError(ErrorCode.SESSION_ACTIVE, message)
        if len(self._active) >= _MOST_RUNS:
            message = f"{_MOST_RUNS} runs are active here, which is the limit; nothing was started"
            raise StorageError(ErrorCode.SESSION_ACTIVE, message)
        self._active[run.session_id] = run
        run.begin(begin, lambda: self._active.pop(run.session_id, None))

    def send_away(self, run: ServedRun) -> str:
        """Let a run wait for its client; return the state with which the client comes back."""
        run.rounds += 1
        state = secrets.token_urlsafe(24)
        timer = asyncio.get_running_loop().call_later(_COME_BACK_S, self._give_up, state)
        self._away[state] = run, timer
        return state

    def _give_up(self, state: str) -> None:
        if (away := self._away.pop(state, None)) is not None:
            away[0].cancel()

    def take_back(self, state: str) -> ServedRun | None:
        """Return the run of a client that comes back; None if the state is unknown or used."""
        away = self._away.pop(state, None)
        if away is None:
            return None
        run, timer = away
        timer.cancel()
        return run

    async def close(self) -> None:
        """Cancel what runs."""
        for _, timer in self._away.values():
            timer.cancel()
        cancelling = [run.cancel() for run in self._active.values()]
        if cancelling:
            await asyncio.wait(cancelling, timeout=_CLOSE_S)


def _line_of(placed: PlacedEvent) -> str:
    """Return the line of progress of an event; empty if it has none."""
    match placed.details:
        case ToolStarted() if placed.call is not None:
            return _title(placed)
        case ToolProgress(text=text) if placed.call is not None:
            return f"{_title(placed)}: {text}"
        case ToolEnded() if placed.call is not None:
            said, _ = outcome(placed.call)
            return f"{_title(placed)}: {said or 'ok'}"
        case ModelAsked() as asked if asked.left_out:
            return left_out_line(asked)
        case _ if meaning_of(placed.kind).is_remark or is_trouble(placed):
            return remark_line(placed)
        case details:
            said = meaning_of(placed.kind).now or meaning_of(placed.kind).silence
            return " ".join(filter(None, (said, details.subject))) if said else ""


def _title(placed: PlacedEvent) -> str:
    call = placed.call
    return "" if call is None else f"{label_of(call)} {summary_of(call)}".strip()


def _line(text: str) -> str:
    return shortened(visible(text, one_line=True), _LONGEST_LINE)
