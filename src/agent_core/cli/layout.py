"""Makes text fit a screen: measures its width, cuts it, and breaks lines."""

from msgspec import Struct

from agent_core.text import visible


class Signs(Struct, frozen=True):
    """Signs of the screen, in the letters that a stream can write."""

    call: str = "●"
    more: str = "…"
    bar: str = "│"
    spinner: str = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


SIGNS = Signs()
ASCII_SIGNS = Signs(call="*", more="...", bar="|", spinner="|/-\\")


def cells(text: str) -> int:
    """Return the columns that a text takes: letters of some scripts take two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # noqa: PLC0415 - few lines need it

    return cell_len(text)


def fitted(text: str, room: int, signs: Signs = SIGNS) -> str:
    """The beginning of a line that fits, marked where it is cut; fit for a terminal."""
    if room < len(signs.more):
        return ""
    text = visible(text[: room * 4], zero_width=False)
    if cells(text) <= room:
        return text
    room -= len(signs.more)
    kept, used = 0, 0
    for kept, character in enumerate(text):  # noqa: B007 - the text is cut where the loop stops
        used += cells(character)
        if used > room:
            break
    return f"{text[:kept].rstrip()}{signs.more}"


def wrapped(text: str, room: int, *, breaks: bool = True) -> list[str]:
    """The words of a text, as many on each line as fit; `breaks`: a longer word is broken."""
    body = text.lstrip(" ")
    if indent := text[: len(text) - len(body)]:
        return [indent + line for line in wrapped(body, room - len(indent), breaks=breaks)]
    lines, line = list[str](), ""
    for word in text.split(" "):
        joined = f"{line} {word}" if line else word
        if cells(joined) <= room:
            line = joined
            continue
        lines += [line] if line else []
        while breaks and cells(word) > room:
            piece = _beginning(word, room)
            lines.append(piece)
            word = word[len(piece) :]
        line = word
    return [*lines, line] if line or not lines else lines


def split_row(text: str, room: int) -> tuple[str, str]:
    """Return what of a text fits a row, and the rest: cut behind a blank, if there is one."""
    piece = _beginning(text, room)
    blank = piece.rstrip(" ").rfind(" ") + 1
    if len(piece) < len(text) and text[len(piece)] != " " and piece[:blank].strip():
        piece = piece if piece.endswith(" ") else piece[:blank]
    return piece, text[len(piece) :]


def _beginning(text: str, room: int) -> str:
    used = 0
    for index, character in enumerate(text):
        used += cells(character)
        if used > room and index:
            return text[:index]
    return text
