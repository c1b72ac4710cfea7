"""One conversation at a time: sending, queueing, showing and leaving."""

import asyncio
import os
import shlex
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import aclosing, contextmanager, suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, get_args

from msgspec import Struct
from msgspec.structs import replace

from agent_core.api import AgentRuntime, RunHandle
from agent_core.cli.chat.elsewhere import Elsewhere
from agent_core.cli.chat.message import Attached, UserCommand, attach_files
from agent_core.cli.chat.sent import Running, Sent, Start, Waiting
from agent_core.cli.chat.state import State, fit_state
from agent_core.cli.chat.steering import Put, Steering, describe_left
from agent_core.cli.children import Children
from agent_core.cli.nearby import model_option, short_id_of
from agent_core.cli.placed import unnamed_server
from agent_core.cli.run import MCP_PROMPT, with_content
from agent_core.cli.sheet import title_of
from agent_core.cli.terminal import OutputClosedError, Style, Terminal
from agent_core.cli.view import RunView, answer_hints
from agent_core.cli.wishes import show_wishes
from agent_core.config.load import resolve_model
from agent_core.config.paths import Setup
from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.events.projection import Call
from agent_core.history.words import CARRY_OUT
from agent_core.loop.options import RunOptions
from agent_core.text import Clean, short_line, visible, visible_line, without_code
from agent_core.tools.workspace import PathPolicy
from agent_core.types import (
    WORDS,
    ContentBlock,
    EventType,
    ImageBlock,
    PermissionMode,
    RunRecord,
    RunStatus,
    Usage,
    UserMessage,
    new_id,
    own_words,
)
from agent_core.types.event_details import ContextBuilt, EventDetails, RunQueued

if TYPE_CHECKING:
    from agent_core.cli.chat.base_line import Entered
    from agent_core.cli.chat.own_commands import OwnCommand, OwnCommands
    from agent_core.cli.chat.screen import InputLine
    from agent_core.cli.interruption import Interruption

_CANCELLING = "cancelling"
"""The slot of the line that says that a run is being cancelled."""
_TWICE_S = 2.0
_GRACE_S = 1.0
_TITLE_CHARS = 80


class Commands(Protocol):
    """The commands behind a slash.

    Attributes:
        own: the user's own commands.
    """

    own: "OwnCommands"

    async def find_own(self, text: str) -> "OwnCommand | None":
        """Return the user's own command that a line names.

        Raises:
            AgentCoreError: it cannot be used.
        """
        ...

    def include(self, text: str) -> bool:
        """Return whether a line that begins with a slash is a command, and no message."""
        ...

    async def edit_draft(self, chat: "Chat") -> None:
        """Have the draft edited in the user's editor."""
        ...

    async def carry_out(self, chat: "Chat", text: str) -> None:
        """Carry out such a line, or say why it is refused.

        Raises:
            AgentCoreError: the command fails.
        """
        ...


class Window(Struct):
    """Use of the model's window by the last request."""

    used: int = 0
    size: int = 0


class Chat:
    """A conversation on a terminal.

    Args:
        runtime: opened.
        setup: its settings.
        clean: takes secrets out of a text that comes from the disk.
        execute: carries out a command line, in a project.
        abandon: ends the process at once, with an exit code.
        model: for the runs; None leaves it to the configuration.
        mode: of the runs.

    Attributes:
        moving: the session that its next message moves to this folder.
        prepared: the command that Tab puts on the empty line; empty if nothing is offered.
        view: shows the run at work, or has shown the last one.
    """

    line: "InputLine"
    terminal: Terminal

    def __init__(
        self,
        runtime: AgentRuntime,
        setup: Setup,
        *,
        clean: Clean,
        execute: Callable[..., int],
        abandon: Callable[[int], NoReturn],
        model: str | None = None,
        mode: PermissionMode = "ask",
    ) -> None:
        self.runtime = runtime
        self.setup = setup
        self.clean = clean
        self.execute = execute
        self._abandon = abandon
        self.session_id = new_id("sess")
        self.model = model
        self.mode: PermissionMode = mode
        self.moving: str | None = None
        self.window = Window()
        self.usage = Usage()
        self.exit_code = 0
        self.has_sent = False
        self.last_call: Call | None = None
        self.prepared = ""
        self.view: RunView | None = None
        self._since: float | None = None
        self._policy = PathPolicy.of(setup)
        self.elsewhere = Elsewhere(runtime, clean)
        self._sent: deque[Sent] = deque()
        self._steering = Steering(
            runtime,
            show=self._show_delivered,
            put=self._put,
            fail=self.fail,
        )
        self._arrived = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._extra: list[ContentBlock] = []
        self._command: UserCommand | Interruption | None = None
        self._has_told = False
        self._entered: Entered | None = None
        self._shown: RunHandle[Any] | None = None
        self._leaving = asyncio.Event()
        self._editing: asyncio.Task[None] | None = None
        self._interrupted_at = float("-inf")
        self._left_at = float("-inf")
        self._is_cancelling = self._is_over = False
        self._cancelling: set[asyncio.Task[object]] = set()

    def attach(self, line: "InputLine", terminal: Terminal, commands: Commands) -> None:
        """Have the conversation take place on this line."""
        self.line = line
        self.terminal = terminal
        self.commands = commands

    def greet(self) -> None:
        """Show the project of the conversation, and how to learn more."""
        self.terminal.line(f"soong-agent, {self.model_name}", Style.BOLD)
        if server := unnamed_server(self.setup.config, self.model):
            self.say(visible(server, one_line=True), Style.DIM)
        self.terminal.line(str(self.setup.project), Style.DIM)
        self.terminal.line("/help lists the commands; Ctrl-D leaves", Style.DIM)

    @property
    def is_working(self) -> bool:
        """Return whether a run is at work, or waits."""
        return bool(self._sent)

    async def comes_to_rest(self) -> bool:
        """Return whether no run is at work; a run about to end gets a moment to do so."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), _GRACE_S)
        return not self._sent

    async def run(self) -> int:
        """Carry the conversation on until the user leaves, and return the exit code."""
        tasks = [
            asyncio.create_task(self.line.run()),
            asyncio.create_task(self._read()),
            asyncio.create_task(self._show_runs()),
            asyncio.create_task(self._leaving.wait()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._is_over = True
            self.line.close()
            unsent = [sent.text for at, sent in enumerate(self._sent) if at or sent.run is None]
            await self._end_runs(tasks)
        for text in unsent:
            self.terminal.line(f"not sent: {visible_line(text)}", Style.WARN)
        for task in done:
            if task is not tasks[3]:
                try:
                    task.result()
                except (EOFError, OSError, OutputClosedError):  # a hang-up closes the terminal too
                    if not self._leaving.is_set():
                        raise
        if self.has_sent:
            short = await short_id_of(self.runtime, self.session_id)
            command = f"soong-agent chat --session-id {short}{await model_option(self.model)}"
            self.terminal.command("continue:", command)
        return self.exit_code

    async def _end_runs(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        """Cancel the running runs, and show their end."""
        showing = tasks[2]
        if self._command is not None:
            self._command.interrupt()
        for sent in reversed([*self._sent][1:]):
            if sent.run is None:
                self._sent.remove(sent)
            else:
                await sent.cancel()
        if self._sent and not self.exit_code:  # a run about to end gets a moment to do so
            await self.comes_to_rest()
        if self._sent:
            await self._sent[0].cancel()
        idle = asyncio.create_task(self._idle.wait())
        await asyncio.wait([showing, idle], return_when=asyncio.FIRST_COMPLETED)
        tasks = [*tasks, idle]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    def leave(self, exit_code: int = 0) -> None:
        """End the conversation."""
        self.exit_code = self.exit_code or exit_code
        self._left_at = asyncio.get_running_loop().time()
        self._leaving.set()

    async def left(self) -> None:
        """Wait until the user leaves."""
        await self._leaving.wait()

    def edit(self) -> None:
        """Have the draft edited in the user's editor."""
        if self._editing is None or self._editing.done():
            self._editing = asyncio.create_task(self.commands.edit_draft(self))

    async def _read(self) -> None:
        while (entered := await self.line.next()) is not None:
            self.note_key()
            shown, text = entered.text, self.line.unfold(entered.text).strip()
            acts = entered.acts and text.startswith("/")
            is_command = is_prompt = False
            try:
                own = await self.commands.find_own(text) if acts else None
                if acts and own is None:
                    is_prompt = MCP_PROMPT.match(text) is not None
                    is_command = not is_prompt and self.commands.include(text)
                if entered.acts and shown.startswith("!"):
                    await self._run_command(shown[1:].strip())
                elif is_command:
                    self._echo_typed(shown)
                    self._entered = entered
                    await self.commands.carry_out(self, text)
                else:
                    await self._send(text, entered, is_prompt=is_prompt, own=own)
            except AgentCoreError as error:
                self.fail(error.message)
                if not is_command:
                    self.line.put(shown, acts=acts)
            if entered.acts:
                self.line.bring_back()

    async def _send(
        self,
        text: str,
        entered: "Entered",
        *,
        is_prompt: bool,
        own: "OwnCommand | None",
        waits_for_end: bool = False,
    ) -> None:
        """Send a message to the run at work; without one, or with `waits_for_end`, start a run."""
        message, attached = await self._message(text, entered, is_prompt=is_prompt, own=own)
        self.prepared = ""
        is_command = is_prompt or own is not None
        working = None if waits_for_end else self._working
        if working is not None and await self._steering.send(
            working, message, entered.text, attached, is_command=is_command
        ):
            await self._note_sent()
            if not self.terminal.can_draw:
                self.say("waiting: the run reads this after its next step", Style.DIM)
            self.line.refresh()
            return
        await self.watch(
            entered.text,
            self.starting(message),
            attached,
            is_on_screen=not self.terminal.can_draw,
            is_command=is_command,
        )
        await self._note_sent()

    async def _note_sent(self) -> None:
        """Remove what was sent from the places where it waited to be sent."""
        self._extra.clear()
        if not self.line.has_aside:  # else they return to the line, and are not sent yet
            await self._steering.drop_returned(self.session_id)

    def starting(self, message: str | UserMessage) -> Start:
        """Return the call that starts a run of the session with a message."""
        return partial(
            self.runtime.start,
            message,
            self.session_id,
            options=RunOptions(model=self.model, permission_mode=self.mode),
            here=True,
            move_session=self.session_id == self.moving,
        )

    async def send_later(self, text: str, *, words_before: int = 1) -> None:
        """Send the message that was entered behind a command when the run has ended.

        Args:
            text: the message, with all pasted text.
            words_before: how many words come before it, the command included.

        Raises:
            AgentCoreError: it cannot be sent.
        """
        if (entered := self._entered) is None:
            return
        behind = entered.text.split(None, words_before)[-1].strip()
        own = await self.commands.find_own(text) if text.startswith("/") else None
        is_prompt = own is None and MCP_PROMPT.match(text) is not None
        entered = replace(entered, text=behind, acts=False)
        await self._send(text, entered, is_prompt=is_prompt, own=own, waits_for_end=True)

    @property
    def _working(self) -> RunHandle[Any] | None:
        """Return the run at work; None if it is being cancelled, or has another model or mode."""
        run = self._sent[0].run if self._sent and not self._sent[0].waits else None
        is_as_chosen = run is not None and self._sent[0].settings == (self.model, self.mode)
        if run is None or self._is_cancelling or not is_as_chosen:
            return None
        return self._shown or run.handle

    async def watch(
        self,
        text: str,
        start: Start,
        attached: Sequence[Attached] = (),
        *,
        is_on_screen: bool,
        is_command: bool = True,
    ) -> None:
        """Start a run, and show it when its turn has come; its message if that is not on screen.

        In a database of several machines `start` returns when it is the run's turn: it is called
        when those before it have ended, and the line stays free meanwhile.
        """
        if self.has_sent and not self._sent:
            await self.elsewhere.show(self.session_id, self.terminal)
        setup = self.setup
        is_shared = setup.database_url is not None or setup.config.store.url_env is not None
        settings = (self.model, self.mode)
        sent = Sent(text, start, attached, is_command=is_command, settings=settings)
        if not is_shared and (run := await sent.begin()) is not None:
            self.elsewhere.know(run.handle.run_id)
        sent.is_on_screen = is_on_screen and not self._sent
        self._sent.append(sent)
        if len(self._sent) > 1 and not self.terminal.can_draw:
            self.say("queued: this is sent when the run has ended", Style.DIM)
        self._arrived.set()
        self._idle.clear()
        self.line.refresh()

    async def _message(
        self, text: str, entered: "Entered", *, is_prompt: bool, own: "OwnCommand | None"
    ) -> tuple[str | UserMessage, Sequence[Attached]]:
        """Return a message: the text, the files it names and the output of earlier commands.

        Large pastes are not the user's own words, unless the message is nothing but one.
        """
        words = entered.text.strip()
        words = text if self.line.is_paste(words) else words
        typed = entered.typed
        if own is not None:
            words = own.fill(words, self.line.folded_in(words))
            text, typed = self.line.unfold(words), own.fill(typed)
        message: str | UserMessage = text
        if is_prompt and (named := MCP_PROMPT.match(text)):
            message = await self.runtime.mcp_prompt(*named.groups(default=""))
        elif words != text:
            message = UserMessage(content=text, metadata={WORDS: words})
        attached = await asyncio.to_thread(attach_files, typed, self._policy)
        files = [file.block for file in attached if file.block is not None]
        files += self.line.images_in(entered.text)
        self._require_vision(files)
        if files or self._extra:
            message = with_content(message, *files, before=self._extra)
        return message, attached

    def _show_delivered(self, text: str, attached: Sequence[Attached]) -> None:
        """Show a message where the run at work reads it."""
        if self.terminal.can_draw:
            self._echo(text)
        else:
            shown = short_line(visible_line(text), self.terminal.width - 12)
            self.terminal.line(f"delivered: {shown}", Style.DIM)
        self._show_attached(attached)
        self.line.refresh()

    def _require_vision(self, files: Sequence[ContentBlock]) -> None:
        """Refuse images, before anything is sent, for a model that is known not to take them.

        Raises:
            AgentCoreError: `unsupported_capability`.
        """
        if not any(isinstance(block, ImageBlock) for block in files):
            return
        config = self.setup.config
        model = resolve_model(config, self.model) if self.model else config.model
        if model.supports_images is False or model.provider == "local":
            message = (
                f"{self.model_name} takes no images: choose another model with /model, or delete"
                " the image from the line"
            )
            raise AgentCoreError(ErrorCode.UNSUPPORTED_CAPABILITY, message)

    def _show_sent(self, sent: Sent) -> None:
        if not sent.is_on_screen:
            self._echo(sent.text)
        self._show_attached(sent.attached)

    def _show_attached(self, attached: Sequence[Attached]) -> None:
        for file in attached:
            what, style = ("attached", Style.DIM) if file.block else ("not attached", Style.WARN)
            remark = f", {file.remark}" if file.remark else ""
            line = f"  {what}: {file.shown}{remark}"
            self.terminal.line(visible(line, one_line=True), style)

    @contextmanager
    def interrupts(self, command: "UserCommand | Interruption") -> Generator[None]:
        """Let Ctrl-C end a command, and no run."""
        self._command = command
        try:
            yield
        finally:
            self._command = None

    async def _run_command(self, command: str) -> None:
        if not command:
            return
        self._echo_typed(f"! {command}")
        work = UserCommand(command, self.setup.project, self.terminal.text)
        try:
            with self.interrupts(work):
                self._extra.append(await work.run())
        except OSError as error:
            self.fail(f"the shell cannot be started: {error}")
        finally:
            self.terminal.end_text()
        if not self._has_told:
            self._has_told = True
            said = "the model reads what your commands print with your next message"
            self.terminal.line(f"  {said}", Style.DIM)

    async def _show_runs(self) -> None:
        while True:
            await self._arrived.wait()
            while self._sent:
                await self._begin_and_show(self._sent[0])
                self._sent.popleft()
                self._shown, self._is_cancelling = None, False
                self.line.draw(_CANCELLING, [])
                self.line.refresh()
            self._arrived.clear()
            self._idle.set()
            if self.terminal.notifier is not None and not self._leaving.is_set():
                self.terminal.notifier.done()

    async def _begin_and_show(self, sent: Sent) -> None:
        try:
            run = await sent.begin()
        except AgentCoreError as error:
            self.fail(error.message)
            run = None
        else:
            if run is None:
                self.terminal.line("cancelled", Style.WARN)
        if run is not None:
            self.has_sent = True
            await self._show(sent, run)
        elif not (sent.is_command or self._leaving.is_set()):
            self.line.put(sent.text)

    async def _show(self, sent: Sent, run: Running) -> None:
        handle = self._shown = run.handle
        self.elsewhere.know(handle.run_id)
        for warning in handle.warnings:
            self.say(visible(warning), Style.WARN)
        view, self._since = RunView(self.terminal), monotonic()
        self.view = view
        is_shown = is_compacted = False
        async with Children(handle, view.child_event) as children, aclosing(run.events) as events:
            async for event in events:
                details = event.details
                if isinstance(details, RunQueued):
                    for run_id in details.taken_over:
                        await self._show(*await self._taken_over(run_id))
                    self._shown = handle
                    continue
                if not is_shown:
                    is_shown = True
                    self._show_sent(sent)
                self._note(details)
                self._steering.note(event)
                is_compacted |= event.event_type is EventType.COMPACT_COMPLETED
                await children.note(event)
                view.event(event)
                self.last_call = view.last_call or self.last_call
            await children.wait()
        await handle.wait()
        if self._is_over:  # they are on the line again when the session is continued
            for each in self._steering.waiting():
                self.terminal.line(f"not delivered: {visible_line(each.text)}", Style.WARN)
        else:
            await self._steering.end(handle)
        if is_compacted:
            await self.measure()
        # A run that did not complete has no answer: what it has said is on the screen.
        answer = handle.result_text if handle.status is RunStatus.COMPLETED else None
        view.end(answer, handle.error, handle.usage)
        view.waiting(await answer_hints(self.runtime, handle))
        if handle.status in {RunStatus.CANCELLED, RunStatus.ABORTED}:
            self.terminal.line("cancelled", Style.WARN)
        elif answer and handle.permission_mode == "plan":
            self._offer_plan()
        self.usage, self._since = self.usage.plus(handle.usage), None
        self._begin(self._show_wishes())

    async def _show_wishes(self) -> None:
        """Show what memory has from the runs so far, as soon as it has it."""
        show_wishes(await self.runtime.finish_wishes(), self.session_id, self.say)

    async def _taken_over(self, run_id: str) -> tuple[Sent, Running]:
        """A message that a process had queued when it died."""
        start = partial(self.runtime.attach, run_id)
        (run,) = (await self.runtime.replay_run(run_id)).runs
        return Sent(_words_of(run), start), Running(await start())

    def _offer_plan(self) -> None:
        """Say how the plan is carried out, unless something else follows."""
        if self.mode != "plan" or len(self._sent) > 1 or self._leaving.is_set():
            return
        self.prepared = f"/mode ask {CARRY_OUT}"
        keys = " (Tab writes it)" if self.terminal.can_draw else ""
        self.say(f"to carry out this plan: {self.prepared}{keys}", Style.DIM)

    def _note(self, details: EventDetails) -> None:
        """Keep the state of the session that the line shows."""
        if isinstance(details, ContextBuilt):
            self.window = Window(details.use.total, details.budget.window)
            self.line.refresh()

    async def measure(self) -> None:
        """Read anew how full the window is, after something other than a message changed it."""
        with suppress(AgentCoreError):  # the next message shows it
            report = await self.runtime.context_report(self.session_id)
            self.window = Window(report.used, report.window) if report.segments else Window()
            self.line.refresh()

    def _echo_typed(self, text: str) -> None:
        if self.terminal.can_draw:  # else the terminal has shown the typed text
            self._echo(text)

    def _echo(self, text: str) -> None:
        self.terminal.line("")
        self.terminal.message(text)

    def fail(self, message: str) -> None:
        """Show an error."""
        self.say(f"error: {self.clean(without_code(message))}", Style.BAD)

    def say(self, text: str, style: Style = Style.PLAIN) -> None:
        """Show a text in lines that break between words."""
        for part in self.terminal.wrap(text):
            self.terminal.line(part, style)

    def state(self, width: int) -> str:
        """One line about the session and the run at work: as much as fits."""
        usage, elapsed = self.usage, None
        if self._since is not None and self.view is not None:
            usage, elapsed = usage.plus(self.view.usage), monotonic() - self._since
        state = State(
            model=visible(self.model_name, one_line=True),
            mode=self.mode,
            sandbox=self.setup.config.sandbox.mode,
            used=self.window.used,
            window=self.window.size,
            usage=usage,
            elapsed_s=elapsed,
        )
        return fit_state(state, width, " · " if self.terminal.has_signs else " | ")

    @property
    def model_name(self) -> str:
        """The model of the next messages."""
        return self.model or self.setup.config.model.full_name

    def waiting(self) -> Sequence[Waiting]:
        """Return the messages that wait: for the next step of the run, or for its end."""
        queued = [Waiting(sent.key, "queued", sent.text) for sent in self._sent][1:]
        return [*self._steering.waiting(), *queued]

    def take_back(self) -> bool:
        """Take the last waiting message back for editing; whether there was one."""
        if self._take_back_queued():
            return True
        if (work := self._steering.take_back()) is None:
            return False
        self._begin(work)
        self.line.refresh()
        return True

    async def withdraw(self, key: str, *, to_line: bool) -> bool:
        """Take a waiting message back, to the line or to the input history; whether it waited."""
        put = self._put if to_line else self._keep
        if self._take_back_queued(key, put):
            return True
        work = self._steering.take_back(key, put)
        return work is not None and await work

    def _take_back_queued(self, key: str | None = None, put: Put | None = None) -> bool:
        for sent in reversed([*self._sent][1:]):
            if sent.waits and key in {None, sent.key}:
                self._sent.remove(sent)
                self._begin(sent.cancel())
                (put or self._put)(sent.text, sent.is_command)
                self.line.refresh()
                return True
        return False

    def _put(self, text: str, acts: bool) -> None:
        self.line.put(text, acts=acts)

    def _keep(self, text: str, acts: bool) -> None:
        self.line.keep(text, acts=acts)

    def next_mode(self) -> None:
        """Switch to the next permission mode."""
        modes: Sequence[PermissionMode] = get_args(PermissionMode)
        self.mode = modes[(modes.index(self.mode) + 1) % len(modes)]
        self.line.refresh()

    def open_session(self, session_id: str | None) -> None:
        """Continue this session, or begin a new one."""
        self.has_sent = session_id is not None
        self.session_id = session_id or new_id("sess")
        self.window, self.usage, self.last_call = Window(), Usage(), None
        self.prepared = ""
        self.elsewhere.begin()
        self.line.refresh()

    async def require_session(self) -> bool:
        """Return whether there is a session yet; report it if there is none."""
        if not self.has_sent:
            self.fail("this session has no message yet")
        return self.has_sent

    async def resume(self, session_id: str) -> None:
        """Continue a session, and show its last messages.

        Raises:
            StorageError: `session_not_found`.
        """
        from agent_core.cli.chat.recap import RecapWriter, read_recap  # noqa: PLC0415 - few chats

        recap = await read_recap(self.runtime, session_id)
        session, report = recap.session, recap.report
        runs = await self.runtime.session_runs(session_id)
        self.open_session(session_id)
        self.elsewhere.begin(run.run_id for run in runs)
        if report is not None and report.segments:
            self.window = Window(report.used, report.window)
        title = short_line(visible(self.clean(title_of(session))), _TITLE_CHARS)
        short = await short_id_of(self.runtime, session_id)
        self.terminal.line(f"session {short}: {title}", Style.BOLD)
        if session.cwd != str(self.setup.project):
            where = f"it works in {self.clean(session.cwd)}"
            if session_id == self.moving:
                self.say(f"{where}, and moves here with the next message", Style.DIM)
            else:
                there = shlex.quote(visible(self.clean(session.cwd), one_line=True))
                command = f"soong-agent chat --session-id {short}{await model_option(self.model)}"
                self.say(f"{where}, not here", Style.WARN)
                if await asyncio.to_thread(os.path.isdir, session.cwd):
                    self.terminal.command("to continue it there:", f"{command} --path {there}")
                self.terminal.command("to move it here:", f"{command} --move-session")
        RecapWriter(self.terminal, self.clean).write(recap, short)
        for run in runs:
            if run.status is not RunStatus.QUEUED or run.cancel_requested_at is not None:
                continue
            text = visible_line(self.clean(_words_of(run)))
            self.say(f"queued, and sent before your next message: {text}", Style.WARN)
            self.terminal.command("  to drop it:", f"soong-agent cancel {run.run_id}", Style.DIM)
        count = await self._steering.restore(session_id)
        if count and self.terminal.can_draw:  # else they were shown, to be typed again
            self.say(describe_left(count), Style.WARN)

    def cancel(self, hint: str = "") -> bool:
        """Cancel the command or the run at work, and take back what waits for its end.

        What the run has not read by then returns to the line when it has ended.

        Args:
            hint: follows the word for it.

        Returns:
            Whether there was one that was not being cancelled.
        """
        if self._command is not None:
            self._command.interrupt()
            return True
        if self._leaving.is_set() or self._is_cancelling or not self._sent:
            return False
        self._is_cancelling = True
        while self._take_back_queued():
            pass
        said = f"cancelling{'' if self.line.text else hint}"
        if self.terminal.can_draw:
            self.line.draw(_CANCELLING, [said])
        else:
            self.terminal.line(said, Style.WARN)
        self._begin((self._shown or self._sent[0]).cancel())
        return True

    def interrupt(self) -> None:
        """Cancel the running run, else clear the line; on an empty line, the second time, leave."""
        now = asyncio.get_running_loop().time()
        is_second = now - self._interrupted_at < _TWICE_S
        self._interrupted_at = float("-inf")
        if self._leaving.is_set():
            if now - self._left_at > _GRACE_S:
                self._abandon(130)
        elif self.line.stop_picking():
            return
        elif self.cancel("; Ctrl-C once more leaves"):
            if self._command is None and not self.line.text:
                self._interrupted_at = now
        elif self.line.text:
            self.line.clear()
        elif is_second:
            self.leave(130 if self._sent else 0)
        else:
            self._interrupted_at = now
            self.terminal.line("Ctrl-C once more leaves; so does Ctrl-D", Style.DIM)

    def note_key(self) -> None:
        """Stop following a command, for the user types something."""
        if self.view is not None:
            self.view.stop_following()
        if self.terminal.notifier is not None:
            self.terminal.notifier.touched()

    def terminate(self, number: int) -> None:
        """End the conversation as a signal wants it; the second time, at once."""
        if self._leaving.is_set():
            self._abandon(128 + number)
        self.leave(128 + number)

    def _begin(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._cancelling.add(task)
        task.add_done_callback(self._cancelling.discard)


def _words_of(run: RunRecord) -> str:
    """Return the message of a run that is queued."""
    return own_words(run.prompt.content, run.prompt.metadata).strip() if run.prompt else ""
