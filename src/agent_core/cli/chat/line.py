"""The line that a person types on, at the bottom of the screen, and the status around it.

Whole lines of output go into the scrollback above it. The region between the two is redrawn: the
unfinished line of the output, and the queued messages; below the input is the state of the session.
"""

import asyncio
import os
import re
import select
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import TextIO, cast

from prompt_toolkit.application import Application, in_terminal
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import Completion
from prompt_toolkit.data_structures import Size
from prompt_toolkit.enums import EditingMode
from prompt_toolkit.filters import Condition, has_completions, is_searching
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples, to_formatted_text
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.key_binding import (
    ConditionalKeyBindings,
    KeyBindings,
    KeyPressEvent,
    merge_key_bindings,
)
from prompt_toolkit.key_binding.bindings.search import accept_search
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import BufferControl, FormattedTextControl, HSplit, Layout, Window
from prompt_toolkit.layout.containers import ConditionalContainer, VerticalAlign
from prompt_toolkit.layout.menus import CompletionsMenu
from prompt_toolkit.layout.processors import BeforeInput
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import Style
from prompt_toolkit.widgets import SearchToolbar

from agent_core.cli.chat.base_line import PROMPT, Entered, LineStream, ShownConversation
from agent_core.cli.chat.characters import character_keys
from agent_core.cli.chat.completion import ChatCompleter
from agent_core.cli.chat.history import FileHistory
from agent_core.cli.chat.keys import ESCAPE, KeyParser
from agent_core.cli.chat.other_program import OtherProgram
from agent_core.cli.chat.pane import PickerPane
from agent_core.cli.chat.pastes import Pastes
from agent_core.cli.chat.picker import Picker
from agent_core.cli.chat.redraw import WindowRenderer
from agent_core.cli.chat.vi import ViKeys
from agent_core.cli.layout import ASCII_SIGNS, SIGNS, window_size
from agent_core.cli.lines import AT_ONCE_S, REST_S
from agent_core.config.terminal import LineKeys
from agent_core.text import plural, short_line, visible
from agent_core.types import ImageBlock

SHELL_PROMPT = "shell> "
_LEADS = ("!", "/")
_LINE_ENDS = {Keys.ControlM, Keys.ControlJ}
_PASTE_S = 0.01
"""Seconds within which text after a line end belongs to the same paste."""
_SHOWN_WAITING = 3
_MENU_ROWS = 8
_MOST_PARTIAL = 16_384
"""An output line that grows longer is broken: the region is redrawn with each piece of it."""
_ESCAPE_S = 0.1
_TWICE_S = 1.0
"""Seconds within which Escape counts as pressed twice."""
_LONE_S = 0.3
"""Seconds for which a key stays alone that answers a question over an empty line."""
_WAITING = "waiting"
"""The slot of the line that says that a question waits."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_STYLE = Style.from_dict(
    {
        "state": "dim",
        "queued": "dim",
        "shell": "bold",
        "completion-menu": "noreverse bg:default fg:default",
        "completion-menu.completion": "noreverse bg:default fg:default",
        "completion-menu.completion.current": "reverse bg:default fg:default",
        "completion-menu.meta.completion": "dim bg:default fg:default",
        "completion-menu.meta.completion.current": "reverse bg:default fg:default",
        "scrollbar.background": "bg:default",
        "scrollbar.button": "reverse bg:default",
    }
)


class _RecallingBuffer(Buffer):
    """A buffer that calls back around the moment in which a line of the history takes its place."""

    leaving: Callable[[], object] = staticmethod(lambda: None)
    recalled: Callable[[], object] = staticmethod(lambda: None)

    @property
    def working_index(self) -> int:
        """The number of the line."""
        return super().working_index

    @working_index.setter
    def working_index(self, value: int) -> None:
        self.leaving()
        Buffer.working_index.__set__(self, value)
        self.recalled()


class EditedLine:
    """The line on a terminal that can draw.

    Args:
        out: the terminal.
        conversation: provides the status around the line, and the actions of keys.
        completer, history: of the line.
        pastes: the large pasted texts of the line and of its history.
        keys: the keys of emacs or vi.

    Attributes:
        take_drop: returns what to show for a pasted text that names dropped files.
    """

    def __init__(
        self,
        out: TextIO,
        conversation: ShownConversation,
        *,
        completer: ChatCompleter,
        history: FileHistory,
        pastes: Pastes,
        keys: LineKeys = "emacs",
    ) -> None:
        self._out = out
        self._conversation = conversation
        self._history = history
        self._entered: asyncio.Queue[Entered | None] = asyncio.Queue()
        self._acts = False
        self._completed = ""  # the line, as the last entry of a list has left it
        self._escaped_at = float("-inf")
        self._returned = ""
        self._aside: Entered | None = None
        self._drafts: set[str] = set()
        self._typed_before = 0
        self._pause_s = float("inf")
        self._is_pasting = False
        self._sending: asyncio.TimerHandle | None = None
        completer.names_command = lambda: self._acts
        self._suspended = 0
        self._other = OtherProgram()
        self.take_drop: Callable[[str], str | None] = lambda _: None
        self._partial = ""
        self._slots: dict[str, Sequence[str]] = {}
        self._pastes = pastes
        self._pasted: set[str] = set()
        self.stream = cast("TextIO", LineStream(out, self.write))
        self._buffer = _RecallingBuffer(
            multiline=True,
            completer=completer,
            complete_while_typing=True,
            history=history,
            accept_handler=self._accept,
            on_text_changed=self._note_text,
            on_completions_changed=self._note_list,
        )
        self._buffer.leaving, self._buffer.recalled = self._note_draft, self._note_recall
        is_utf = (out.encoding or "").lower().startswith("utf")
        self._pane = PickerPane(SIGNS if is_utf else ASCII_SIGNS, partial(window_size, out))
        self._app: Application[None] = Application(
            layout=self._layout(),
            editing_mode=EditingMode.VI if keys == "vi" else EditingMode.EMACS,
            reverse_vi_search_direction=True,
            style=_STYLE,
            input=_open_input(),
            output=Vt100_Output(
                out, partial(_screen_size, out), term=os.environ.get("TERM"), enable_cpr=False
            ),
            erase_when_done=True,
            min_redraw_interval=0.02,
        )
        self._vi = ViKeys(self._app, self._buffer)
        characters = ConditionalKeyBindings(character_keys(self._buffer), self._vi.is_typing)
        self._app.key_bindings = merge_key_bindings(
            [
                ConditionalKeyBindings(
                    merge_key_bindings([characters, self._keys()]),
                    ~is_searching & ~self._pane.is_open,
                ),
                _search_keys(),
            ]
        )
        self._app.renderer = WindowRenderer(self._app.renderer.style, self._app.output)
        self._last_key = float("-inf")
        self._opening: asyncio.Event | None = None
        self._app.key_processor.before_key_press += self._note_key
        self._app.ttimeoutlen = _ESCAPE_S
        self._app.timeoutlen = 2 * _ESCAPE_S

    async def run(self) -> None:
        """Show the line until `close`."""
        await self._app.run_async(handle_sigint=False, set_exception_handler=False)

    def close(self) -> None:
        """Take the line off the screen, and keep texts that were not sent in the history."""
        if self._aside is not None:
            self._history.store_string(self._aside.text)
        if (text := self._buffer.text).strip():
            self._history.add(text, names_command=self._acts)
        if self._app.is_running and not self._app.is_done:
            self._app.exit()

    async def next(self) -> Entered | None:
        """Return the next entry; None if the user leaves."""
        return await self._entered.get()

    def enter(self, text: str) -> None:
        """Enter a message as if it had been typed; it never names a command."""
        self._entered.put_nowait(Entered(text))

    def act(self, command: str) -> None:
        """Enter a command as if it had been typed."""
        self._entered.put_nowait(Entered(command, acts=True))

    async def pick(self, picker: Picker) -> str | None:
        """Let the user choose from a list in place of the line; None: they left it."""
        self._vi.begin()
        return await self._pane.pick(picker, self._app)

    def stop_picking(self) -> bool:
        """Leave an open list; return whether there was one."""
        return self._pane.close()

    def unfold(self, text: str) -> str:
        """Return the entered text, with all pasted text."""
        return self._pastes.unfold(text)

    def folded_in(self, text: str) -> Sequence[str]:
        """Return the names that an entered text has for pastes and images."""
        return self._pastes.names_in(text)

    def images_in(self, text: str) -> Sequence[ImageBlock]:
        """Return the images that an entered text shows."""
        return self._pastes.images_in(text)

    def attach(self, name: str, size: str, image: ImageBlock) -> None:
        """Put an image on the line, by the name that is shown for it."""
        self._buffer.insert_text(f"{self._pastes.attach(name, size, image)} ")
        self.refresh()

    def is_paste(self, text: str) -> bool:
        """Return whether an entered text is nothing but a large paste."""
        return self._pastes.is_paste(text)

    @property
    def text(self) -> str:
        """Return the text on the line."""
        return self._buffer.text

    def put(self, text: str, *, acts: bool = False) -> None:
        """Return a text to the beginning of the line; see `Entered.acts`.

        While a command is being typed, the text waits until it is done.
        """
        typed = self._buffer.text
        is_typing = bool(typed) and not self._is_returned
        if is_typing and self._acts:
            self._set_aside(text, acts=acts)
            return
        joined = "\n".join(filter(None, (text, typed)))
        self._buffer.set_document(type(self._buffer.document)(joined), bypass_readonly=True)
        self._acts = acts and not typed
        self._returned = "" if is_typing else joined
        self.refresh()

    def keep(self, text: str, *, acts: bool = False) -> None:
        """Keep a text where Up finds it."""
        self._history.keep_draft(text, names_command=acts)
        if not self._buffer.text:
            self._buffer.reset()

    def _set_aside(self, text: str, *, acts: bool) -> None:
        """Keep a text until the command on the line is done or erased; Up finds it, too."""
        self._history.keep_draft(text, names_command=acts)
        earlier = self._aside.text if self._aside else ""
        joined = "\n".join(filter(None, (text, earlier)))
        self._aside = Entered(joined, acts=acts and not earlier)

    @property
    def has_aside(self) -> bool:
        """Return whether a text has made room for a command, and waits until it is done."""
        return self._aside is not None

    def bring_back(self) -> None:
        """Return the text to the line that has made room for a command, if the line is free."""
        is_typing = bool(self._buffer.text) and self._acts
        if self._aside is None or is_typing or not self._entered.empty():
            return
        aside, self._aside = self._aside, None
        if not self._buffer.text:
            self.put(aside.text, acts=aside.acts)

    def forget_aside(self) -> None:
        """Leave the text that has made room for a command to the input history."""
        self._aside = None

    @property
    def _is_returned(self) -> bool:
        """True if the line holds what the program has put there, and nothing was typed since."""
        document = self._buffer.document
        return (
            bool(document.text)
            and document.is_cursor_at_the_end
            and (document.text == self._returned)
        )

    def add(self, text: str) -> None:
        """Put a text on the line, before what was typed meanwhile."""
        self.put(text)

    def replace(self, text: str) -> None:
        """Replace the draft by its edited text, with names for the pastes that are still in it."""
        shown = self._buffer.text
        acts = self._acts and text[:1] == shown[:1]
        folded, changed = self._pastes.refold(text, shown)
        self._pasted |= changed
        self._buffer.set_document(type(self._buffer.document)(folded), bypass_readonly=True)
        self._acts = acts
        self._note_text(None)
        self._returned = folded
        if acts and not self._acts:
            self.write("the shell takes one line: this is a message now\n")
        self.refresh()

    def clear(self) -> None:
        """Take the text off the line; Up brings it back."""
        if self._buffer.text.strip():
            self._history.keep_draft(self._buffer.text, names_command=self._acts)
        self._buffer.reset()
        self._vi.begin()
        self.bring_back()
        self.refresh()

    def refresh(self) -> None:
        """Redraw the status around the line."""
        self._app.invalidate()

    def draw(self, slot: str, lines: Sequence[str]) -> None:
        """Keep lines above the line, in place of the slot's last ones."""
        self._slots[slot] = list(lines)
        self.refresh()

    def type(self, text: str) -> None:
        """Append a text to the line."""
        self._buffer.cursor_position = len(self._buffer.text)
        self._buffer.insert_text("".join(c for c in text if c == "\n" or c.isprintable()))
        self._last_key = asyncio.get_running_loop().time()
        self.refresh()

    async def rest(self, waiting: str) -> float:
        """Wait until the user stops typing; return how long a key must stay alone to be an answer.

        Typing has stopped when no key was pressed for a second, or at Enter. While there is text on
        the line, a second passes in any case.

        Args:
            waiting: is shown meanwhile.
        """
        await self._other.end()
        if not self._app.is_running or self._app.is_done:
            return _LONE_S
        loop = asyncio.get_running_loop()
        since = loop.time() if self._buffer.text else self._last_key
        self._opening = opening = asyncio.Event()
        try:
            while not opening.is_set():
                if (ends_at := max(since, self._last_key) + REST_S) <= loop.time():
                    break
                self.draw(_WAITING, [waiting])
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(ends_at):
                        await opening.wait()
        finally:
            self._opening = None
            self.draw(_WAITING, [])
        return REST_S if self._buffer.text and not opening.is_set() else _LONE_S

    def _note_key(self, _: object) -> None:
        """Notice whether the key was typed, or is one of many that came together."""
        now = asyncio.get_running_loop().time()
        self._pause_s, self._last_key = now - self._last_key, now
        self._conversation.note_key()
        if self._pause_s > AT_ONCE_S:
            self._is_pasting = False
            self._typed_before = len(self._buffer.text)
        if self._sending is not None:  # more follows the line end: this is a paste
            self._sending.cancel()
            self._sending = None
            self._acts, self._is_pasting = False, True
            self._buffer.insert_text("\n")

    def _note_text(self, _: object) -> None:
        """Notice that a line names no command any more."""
        text = self._buffer.text
        if text[:1] not in _LEADS or (text[0] == "!" and "\n" in text):
            self._acts = False
        if not text:
            self.bring_back()

    def _note_draft(self) -> None:
        if self._acts:
            self._drafts.add(self._buffer.text)

    def _note_recall(self) -> None:
        text = self._buffer.text
        self._acts = text in self._drafts or self._history.names_command(text)
        self._note_text(None)

    @asynccontextmanager
    async def suspended(self) -> AsyncGenerator[None]:
        """Take the line off the screen, keep the typed text, and leave the keys to others."""
        async with in_terminal():
            self._suspended += 1
            if self._partial:
                self._direct(self._partial)
                self._partial = ""
            try:
                yield
            finally:
                self._suspended -= 1

    def left_to_program(self) -> AbstractAsyncContextManager[None]:
        """Leave screen and keys to another program; what is written meanwhile is shown later."""
        return self._other.at_work(self.suspended(), self.write)

    def write(self, text: str) -> None:
        """Write above the line; an unfinished line is part of the region that is redrawn."""
        if self._other.keep(text):
            return
        if self._suspended or not self._app.is_running or self._app.is_done:
            self._direct(self._partial + text)
            self._partial = ""
            return
        whole, end, rest = (self._partial + text).rpartition("\n")
        if len(rest) > _MOST_PARTIAL:
            whole, end, rest = f"{whole}{end}{rest}", "\n", ""
        self._partial = rest
        if end:
            self._app.renderer.erase()
            self._direct(whole + end)
        self.refresh()

    def _direct(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()

    def _enter(self) -> None:
        """Open the question that waits, else send the line, or begin another behind a backslash."""
        buffer = self._buffer
        if self._opening is not None:
            self._opening.set()
        elif self._is_pasting:
            buffer.insert_text("\n")
        elif buffer.document.text_before_cursor.endswith("\\") and not self._is_shell:
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        elif self._is_followed():
            self._acts, self._is_pasting = False, True
            buffer.insert_text("\n")
        elif self._acts and self._is_burst:  # typed at once with its line end: does more follow?
            loop = asyncio.get_running_loop()
            self._sending = loop.call_later(AT_ONCE_S, self._send)
        else:
            buffer.validate_and_handle()

    @property
    def _chosen(self) -> Completion | None:
        """The selected entry of the open list; None if the line already holds it whole."""
        state = self._buffer.complete_state
        chosen = None if state is None else state.current_completion
        if state is None or chosen is None:
            return None
        before = state.original_document.text_before_cursor
        typed = before[len(before) + chosen.start_position :] if chosen.start_position else ""
        if state.original_document.text_after_cursor:
            return chosen
        return None if typed == chosen.text.rstrip(" ") else chosen

    @property
    def _can_do_without(self) -> bool:
        """True if the open list holds words that a command may have, and none was begun."""
        state = self._buffer.complete_state
        if state is None or not state.completions:
            return False
        is_begun = state.completions[0].start_position != 0
        return not is_begun and state.original_document.text_before_cursor.endswith(" ")

    def _note_list(self, _: object) -> None:
        """Select the first entry, as soon as the list is complete."""
        asyncio.get_running_loop().call_soon(self._select_first)

    def _select_first(self) -> None:
        state = self._buffer.complete_state
        if state is None:
            return
        if not state.completions and state.complete_index is not None:  # it turned out to be empty
            self._buffer.complete_state = None
        elif state.completions and state.complete_index is None and not self._can_do_without:
            state.complete_index = 0  # the line keeps what was typed
        self.refresh()

    def _send(self) -> None:
        self._sending = None
        self._buffer.validate_and_handle()
        self.refresh()

    def _accept(self, buffer: Buffer) -> bool:
        text, acts = buffer.text, self._acts
        self._drafts.clear()
        if text.strip():
            self._history.add(text, names_command=acts)
            pasted = sorted((part for part in self._pasted if part in text), key=len, reverse=True)
            self._entered.put_nowait(Entered(text, acts, pasted))
        buffer.reset()  # the buffer would add the text to the history again
        self._vi.begin()
        return False

    @property
    def _is_burst(self) -> bool:
        """True if some of the text came at once, as a terminal without bracketed paste sends it."""
        return len(self._buffer.text) > self._typed_before + 1

    def _is_followed(self) -> bool:
        """Return whether text came together with the key at work, and behind it."""
        waiting = self._app.key_processor.input_queue
        if waiting:
            key = waiting[0].key
            return len(key) == 1 or key in _LINE_ENDS
        return bool(select.select([self._app.input.fileno()], [], [], 0)[0])

    @property
    def _is_shell(self) -> bool:
        """True if the line is for the shell."""
        return self._acts and self._buffer.text.startswith("!")

    def _prompt(self) -> StyleAndTextTuples:
        style, prompt = ("class:shell", SHELL_PROMPT) if self._is_shell else ("", PROMPT)
        return [(style, prompt if self._vi.is_typing() else prompt.replace(">", ":"))]

    def _paste(self, text: str) -> None:
        """Add a pasted text; the shell's line takes one line of it."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        if not self._is_shell:
            if (dropped := self.take_drop(text)) is not None:
                self._buffer.insert_text(dropped)
                return
            shown = self._pastes.fold(text)
            if "@" in shown:
                self._pasted.add(shown)
            self._buffer.insert_text(shown)
            return
        first, *rest = text.rstrip("\n").split("\n")
        self._buffer.insert_text(first)
        if rest:
            left = plural(len(rest), "more line")
            self.write(f"the shell takes one line: {left} of the paste left out\n")

    def _layout(self) -> Layout:
        search = SearchToolbar(
            backward_search_prompt="search back: ",
            forward_search_prompt="search: ",
            ignore_case=True,
        )
        line = Window(
            BufferControl(
                self._buffer,
                input_processors=[BeforeInput(self._prompt)],
                search_buffer_control=search.control,
                preview_search=True,
            ),
            wrap_lines=True,
            dont_extend_height=True,
        )
        above = Window(FormattedTextControl(self._above), wrap_lines=True, dont_extend_height=True)
        below = Window(FormattedTextControl(self._below), height=1, dont_extend_height=True)
        menu = CompletionsMenu(max_height=_MENU_ROWS)
        has_above = Condition(lambda: bool(self._above()))
        return Layout(
            HSplit(
                [
                    ConditionalContainer(above, has_above),
                    self._pane.container,
                    ConditionalContainer(line, ~self._pane.is_open),
                    menu,
                    search,
                    ConditionalContainer(below, ~has_completions),
                ],
                align=VerticalAlign.TOP,
            ),
            focused_element=line,
        )

    def _above(self) -> StyleAndTextTuples:
        size = window_size(self._out)
        parts: list[StyleAndTextTuples] = []
        if self._partial:
            room = size.columns * max(size.lines // 2, 1)
            text = self._partial
            if len(text) > room:
                text = _COLOURS.sub("", text)[-room:]
            parts.append(to_formatted_text(ANSI(text)))
        drawn = [line for slot in sorted(self._slots) for line in self._slots[slot]]
        parts += [to_formatted_text(ANSI(line)) for line in drawn[-max(size.lines // 2, 1) :]]
        waiting = self._conversation.waiting()
        for each in waiting[:_SHOWN_WAITING]:
            line = short_line(
                visible(each.text, zero_width=False), max(size.columns - len(each.word) - 3, 10)
            )
            parts.append([("class:queued", f"{each.word}: {line}")])
        if len(waiting) > _SHOWN_WAITING:
            parts.append(
                [("class:queued", f"and {len(waiting) - _SHOWN_WAITING} more; /queue lists them")]
            )
        shown: StyleAndTextTuples = []
        for part in parts:
            shown += [("", "\n"), *part] if shown else part
        return shown

    def _below(self) -> StyleAndTextTuples:
        width = window_size(self._out).columns - 1
        return [("class:state", self._pane.hint(width) or self._conversation.state(width))]

    def _text_keys(self) -> KeyBindings:
        """The keys that add text in a way of their own."""
        keys, buffer = KeyBindings(), self._buffer
        is_empty = Condition(lambda: not buffer.text)
        is_free = is_empty | Condition(lambda: self._is_returned)

        @keys.add(Keys.BracketedPaste)
        def _(event: KeyPressEvent) -> None:
            self._paste(event.data)

        @keys.add("!", filter=is_free & self._vi.is_typing)
        @keys.add("/", filter=is_free & self._vi.is_typing)
        def _(event: KeyPressEvent) -> None:
            before = event.previous_key_sequence
            is_pasted = self._pause_s <= _PASTE_S and before and before[-1].key in _LINE_ENDS
            if buffer.text and not is_pasted:  # what has returned makes room
                self._set_aside(buffer.text, acts=self._acts)
                buffer.reset()
            acts = not (is_pasted or buffer.text)
            buffer.insert_text(event.data)
            self._acts = acts

        has_image = Condition(
            lambda: bool(self._pastes.image_before(buffer.document.text_before_cursor))
        )

        @keys.add("backspace", filter=has_image & self._vi.is_typing)
        def _(_event: KeyPressEvent) -> None:
            name = self._pastes.image_before(buffer.document.text_before_cursor)
            buffer.delete_before_cursor(len(name))

        @keys.add("tab", filter=is_empty & Condition(lambda: bool(self._conversation.prepared)))
        def _(_event: KeyPressEvent) -> None:
            self.put(self._conversation.prepared, acts=True)
            buffer.cursor_position = len(buffer.text)

        @keys.add("c-o")
        def _(_event: KeyPressEvent) -> None:
            self.act("/last")

        @keys.add("c-x", "c-e")
        def _(_event: KeyPressEvent) -> None:
            self._conversation.edit()

        return keys

    def _begin_line(self) -> None:
        """Add a line to the draft; the shell's has one."""
        if not self._is_shell:
            self._buffer.insert_text("\n")

    def _escape(self, _event: KeyPressEvent) -> None:
        """Close the open list, else cancel the run; the second time on an idle line, rewind.

        With vi keys, a text on the line is left to vi first.
        """
        loop, conversation = asyncio.get_running_loop(), self._conversation
        is_second = loop.time() - self._escaped_at < _TWICE_S
        self._escaped_at = float("-inf")
        if self._buffer.complete_state is not None:
            self._buffer.cancel_completion()
        elif (
            self._vi.escape()
            or conversation.cancel()
            or conversation.is_working
            or self._buffer.text
        ):
            return
        elif not is_second:
            self._escaped_at = loop.time()
        elif conversation.has_sent:
            self.act("/rewind")

    def _take_entry(self, _event: KeyPressEvent) -> None:
        """Take the selected entry of the open list, else its first one."""
        state = self._buffer.complete_state
        if state is not None and state.completions:
            self._buffer.apply_completion(self._chosen or state.completions[0])
            self._completed = self._buffer.text

    def _keys(self) -> KeyBindings:
        keys, buffer, conversation = self._text_keys(), self._buffer, self._conversation
        is_choosing = Condition(lambda: self._chosen is not None)
        has_waiting = Condition(lambda: bool(conversation.waiting()))
        is_empty = Condition(lambda: not buffer.text)

        keys.add("enter", filter=is_choosing)(self._take_entry)

        has_room = Condition(lambda: buffer.text == self._completed and buffer.text.endswith(" "))

        @keys.add(" ", filter=has_room)
        def _(_event: KeyPressEvent) -> None:
            self._completed = ""  # the blank is there already

        is_optional = Condition(lambda: self._can_do_without)
        keys.add("tab", filter=is_choosing | is_optional)(self._take_entry)

        @keys.add("enter", filter=~is_choosing)
        def _(_event: KeyPressEvent) -> None:
            self._enter()

        @keys.add("c-j")
        def _(_event: KeyPressEvent) -> None:
            if self._pause_s <= AT_ONCE_S:  # a program has typed it, with the text before it
                self._enter()
            else:
                self._begin_line()

        @keys.add("escape", "enter")
        def _(_event: KeyPressEvent) -> None:
            self._begin_line()

        @keys.add("c-c")
        def _(_event: KeyPressEvent) -> None:
            conversation.interrupt()

        @keys.add("c-d", filter=is_empty)
        def _(_event: KeyPressEvent) -> None:
            self._entered.put_nowait(None)

        @keys.add("c-z")
        def _(event: KeyPressEvent) -> None:
            event.app.suspend_to_background()

        @keys.add("up", filter=has_waiting & is_empty)
        def _(_event: KeyPressEvent) -> None:
            conversation.take_back()

        keys.add(ESCAPE)(self._escape)

        @keys.add("s-tab", filter=~has_completions)
        def _(_event: KeyPressEvent) -> None:
            conversation.next_mode()

        return keys


def _search_keys() -> KeyBindings:
    """Return the keys of a search in the history that the toolkit does not know."""
    keys = KeyBindings()
    keys.add(ESCAPE, filter=is_searching)(accept_search)
    return keys


def _open_input() -> Input:
    """Open the keys of the terminal."""
    keys = create_input()
    if isinstance(keys, Vt100Input):
        keys.vt100_parser = KeyParser(keys.vt100_parser.feed_key_callback)
    return keys


def _screen_size(out: TextIO) -> Size:
    size = window_size(out)
    return Size(rows=size.lines, columns=size.columns)
