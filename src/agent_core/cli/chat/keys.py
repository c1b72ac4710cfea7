"""Reads the keys of a terminal, whatever protocol it speaks."""

import re

from prompt_toolkit.input.ansi_escape_sequences import ANSI_SEQUENCES
from prompt_toolkit.input.vt100_parser import Vt100Parser
from prompt_toolkit.key_binding import KeyPress
from prompt_toolkit.keys import Keys

ESCAPE = Keys.ShiftEscape
"""Escape alone; `Keys.Escape` begins a key with Alt, or a sequence."""

_NEW_LINE = "\x1b\r"
_PASTE, _PASTE_END = "\x1b[200~", "\x1b[201~"
_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: arrows, function keys, reports
    r"|\x1bO[ -~]"  # SS3
    r"|\x1b[\]P_^X][^\x1b\x07]*(?:\x07|\x1b\\)"  # OSC, DCS and their like
)
_BEGUN = re.compile(r"\x1b{1,2}(?:\[[0-?]*[ -/]*|O|[\]P_^X][^\x1b\x07]*\x1b?)?\Z")
_KEY = re.compile(
    r"\x1b\[(?:27;(?P<xterm>\d+);(?P<xkey>\d+)~"
    r"|(?P<key>\d+)(?::(?P<shifted>\d*)(?::\d*)?)?"
    r"(?:;(?P<mods>\d*)(?::(?P<event>\d*))?(?:;(?P<text>[\d:]*))?)?u)"
)
"""A key by its number: xterm's `modifyOtherKeys`, and kitty's protocol."""
_FUNCTION = re.compile(r"\x1b\[(?P<number>\d+);(?P<mods>\d+)(?::(?P<event>\d*))?(?P<end>[~A-QS-Z])")
"""An arrow or a function key with modifiers."""
_REPORTS = re.compile(r"\x1b\[(?:\d+;\d+R|<?[\d;]+[mM]|M)")
"""Positions of the cursor and of the mouse, which the parser reads itself."""
_KEYPAD = dict(zip(map("\x1bO{}".format, "MXjklmnopqrstuvwxy"), "\r=*+,-./0123456789", strict=True))
_KITTY_KEYPAD = dict(enumerate("0123456789./*-+\r=,", 57399))
_ENTER, _BACKSPACE = 13, 127
_SHIFT, _ALT, _CONTROL, _CAPS_LOCK = 1, 2, 4, 64
_KNOWN = _SHIFT | _ALT | _CONTROL
_OTHERS = 8 | 16 | 32
"""Super, hyper and meta: no key of the line has them."""
_RELEASE = "3"
_NO_KEYS = dict.fromkeys((0, 0x9B))


class KeyParser(Vt100Parser):
    """A parser that knows how terminals report modifiers, and drops what it does not know.

    Escape alone is a key of its own: what follows at once makes it a key with Alt, or a sequence.

    Enter with Shift, Ctrl or Alt is a new line in every protocol (xterm's `modifyOtherKeys`, and
    kitty's). Nothing of an escape sequence is ever typed into the line.
    """

    def reset(self, request: bool = False) -> None:
        """Begin anew."""
        self._begun = ""
        super().reset(request)

    def feed(self, data: str) -> None:
        """Take what the terminal has sent; a sequence may be split anywhere."""
        if self._in_bracketed_paste:
            end = (self._paste_buffer + data).find(_PASTE_END)
            taken = end + len(_PASTE_END) - len(self._paste_buffer) if end >= 0 else len(data)
            super().feed(data[:taken])
            data = data[taken:]
        data, self._begun = self._begun + data, ""
        at = 0
        while at < len(data):
            start = data.find("\x1b", at)
            start = len(data) if start < 0 else start
            # Ctrl-Space is no key of the line, and neither is the eight-bit form of a sequence.
            super().feed(data[at:start].translate(_NO_KEYS))
            at = start
            if found := _SEQUENCE.match(data, at):
                at = found.end()
                if (translated := _translated(found[0])) == "\x1b":
                    self._press_escape()
                else:
                    super().feed(translated)
                if found[0] == _PASTE:
                    self.feed(data[at:])
                    return
            elif _BEGUN.match(data, at):
                self._begun = data[at:]
                return
            elif at < len(data):  # Escape before another key
                super().feed(data[at : at + 2])
                at += 2

    def flush(self) -> None:
        """Take what was begun as it is: nothing follows."""
        begun, self._begun = self._begun, ""
        if begun and not begun.strip("\x1b"):
            for _ in begun:
                self._press_escape()
        elif len(begun) <= len("\x1b["):  # Alt with one of `[ O ] P _ ^ X`
            super().feed(begun)
        super().flush()

    def _press_escape(self) -> None:
        self.feed_key_callback(KeyPress(ESCAPE, "\x1b"))


def _translated(sequence: str) -> str:
    """Return what the line reads for an escape sequence; empty if it is to be ignored."""
    if (found := _KEY.fullmatch(sequence)) and sequence not in {_PASTE, _PASTE_END}:
        if found["event"] == _RELEASE:
            return ""
        modifiers = max(int(found["xterm"] or found["mods"] or 1) - 1, 0)
        text = "".join(filter(str.isprintable, map(_letter, (found["text"] or "").split(":"))))
        if text and not modifiers & (_ALT | _CONTROL | _OTHERS):
            return text
        return _key(int(found["xkey"] or found["key"]), _letter(found["shifted"] or ""), modifiers)
    if found := _FUNCTION.fullmatch(sequence):
        sequence = _function_key(found)
    if sequence in ANSI_SEQUENCES or _REPORTS.fullmatch(sequence):
        return sequence
    return _KEYPAD.get(sequence, "")


def _function_key(found: re.Match[str]) -> str:
    """Return the sequence of an older terminal for an arrow or a function key."""
    modifiers = max(int(found["mods"]) - 1, 0)
    if found["event"] == _RELEASE or modifiers & _OTHERS:
        return ""
    number, end, known = found["number"], found["end"], modifiers & _KNOWN
    if known:
        return f"\x1b[{number};{known + 1}{end}"
    return f"\x1b[{number}~" if end == "~" else f"\x1b[{end}"


def _letter(code: str) -> str:
    """Return the letter of a code point; empty if there is none."""
    number = int(code or 0)
    return "" if not 0 < number <= 0x10FFFF or 0xD800 <= number < 0xF900 else chr(number)


def _key(code: int, shifted: str, modifiers: int) -> str:
    """Return the letter of a key that is reported by its number, as older terminals send it."""
    letter = _KITTY_KEYPAD.get(code) or _letter(str(code))
    if not letter or modifiers & _OTHERS:
        return ""
    if letter == "\r":
        return _NEW_LINE if modifiers & _KNOWN else "\r"
    if code == _BACKSPACE and modifiers & _CONTROL:
        return "\x1b\x7f"  # the word before the cursor
    if modifiers & _CONTROL:
        letter = chr(ord(letter.upper()) & 0x1F) if "?" < letter.upper() < "`" else ""
    elif modifiers & (_SHIFT | _CAPS_LOCK):
        letter = shifted or (upper if len(upper := letter.upper()) == 1 else letter)
    if letter == "\t" and modifiers & _SHIFT:
        letter = "\x1b[Z"
    return f"\x1b{letter}" if letter and modifiers & _ALT else letter
