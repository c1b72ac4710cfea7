"""Moves and deletes by the characters that a person sees.

An emoji of several code points, a flag, or a letter with its accents is one character.
"""

from prompt_toolkit.buffer import Buffer
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

_FARTHEST = 200
"""Code points beyond which no character is followed."""


def character_before(text: str, at: int) -> int:
    """Return where the character before a position begins; the beginning of the text is 0."""
    start = max(at - _FARTHEST, text.rfind("\n", 0, max(at - 1, 0)) + 1)
    before = text[start:at]
    return max(at - 1, 0) if before.isascii() else at - len(_characters(before)[-1])


def character_after(text: str, at: int) -> int:
    """Return where the character at a position ends; the end of the text is its length."""
    rest = text[at : at + _FARTHEST]
    return min(at + 1, len(text)) if rest[:2].isascii() else at + len(_characters(rest)[0])


def _characters(text: str) -> list[str]:
    import regex  # noqa: PLC0415 - few lines need it

    return regex.findall(r"\X", text)


def character_keys(buffer: Buffer) -> KeyBindings:
    """Return the keys that move over a character, or delete one."""
    keys = KeyBindings()

    @keys.add("backspace")
    def _(event: KeyPressEvent) -> None:
        for _number in range(event.arg):
            at = buffer.cursor_position
            buffer.delete_before_cursor(at - character_before(buffer.text, at))

    @keys.add("delete")
    @keys.add("c-d")
    def _(event: KeyPressEvent) -> None:
        for _number in range(event.arg):
            at = buffer.cursor_position
            buffer.delete(character_after(buffer.text, at) - at)

    @keys.add("left")
    @keys.add("c-b")
    def _(event: KeyPressEvent) -> None:
        for _number in range(event.arg):
            buffer.cursor_position = character_before(buffer.text, buffer.cursor_position)

    @keys.add("right")
    @keys.add("c-f")
    def _(event: KeyPressEvent) -> None:
        for _number in range(event.arg):
            buffer.cursor_position = character_after(buffer.text, buffer.cursor_position)

    return keys
