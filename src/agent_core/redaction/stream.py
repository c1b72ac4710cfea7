"""Redacts text that arrives in pieces: what is shown never depends on where the pieces end."""

import re

from agent_core.redaction.leads import LeadFinder, open_tail
from agent_core.redaction.shapes import Hit, More, judge
from agent_core.redaction.values import SecretValues, marker

_SHORT_WAIT = 256


class ShapeFilter:
    """Replaces token shapes in a text that comes in pieces.

    One character that was shown already is kept, because rules look back that far. A long text
    that waits for a decision is looked at again when it has grown by a part of its length: what a
    piece costs does not grow with what waits.
    """

    def __init__(self) -> None:
        self._text = ""
        self._fresh = 0  # where the text begins that was not shown yet
        self._rest_of_secret: re.Pattern[str] | None = None
        self._due = 0  # the length at which the text is looked at again

    def feed(self, text: str, *, final: bool = False) -> str:
        """Take the next piece and return what can be shown now."""
        self._text += text
        if len(self._text) < self._due and not final:
            return ""
        self._due = 0
        out: list[str] = []
        at = self._skip_rest_of_secret(self._fresh)
        leads = LeadFinder(self._text, final=final)
        while found := leads.next(at):
            start, lead = found
            verdict = judge(self._text, start, lead, final=final)
            match verdict:
                case Hit():
                    out += self._text[at : verdict.start], marker(verdict.kind)
                    self._rest_of_secret = verdict.more
                    at = self._skip_rest_of_secret(verdict.end)
                case More():
                    out.append(self._text[at:start])
                    self._keep_from(start)
                    self._due = len(self._text) + max(0, len(self._text) - _SHORT_WAIT) // 4
                    return "".join(out)
                case None:
                    out.append(self._text[at : start + 1])
                    at = start + 1
        end = len(self._text) if final else open_tail(self._text, at)
        out.append(self._text[at:end])
        self._keep_from(end)
        return "".join(out)

    def _skip_rest_of_secret(self, start: int) -> int:
        if self._rest_of_secret is None:
            return start
        rest = self._rest_of_secret.match(self._text, start)
        end = rest.end() if rest else start
        if end < len(self._text):
            self._rest_of_secret = None
        return end

    def _keep_from(self, start: int) -> None:
        self._fresh = min(start, 1)
        self._text = self._text[start - self._fresh :]


class LiveText:
    """One live text, redacted while it is being written.

    The outputs of `feed` and `finish`, joined, are the redaction of the whole text, however it
    was cut. Ordinary words pass at once; only what may become a secret waits.
    """

    def __init__(self, values: SecretValues) -> None:
        self._values = values
        self._held = ""
        self._shapes = ShapeFilter()

    def feed(self, text: str) -> str:
        """Take the next piece and return what can be shown now; may be empty."""
        settled, self._held = self._values.settled(self._held + text)
        return self._shapes.feed(settled)

    def finish(self) -> str:
        """Return what was held back. The object starts again with an empty text."""
        rest = self._values.replaced(self._held)
        shown = self._shapes.feed(rest, final=True)
        self._held = ""
        self._shapes = ShapeFilter()
        return shown


class LiveSecrets:
    """One live text without configured secrets; token shapes stay in it."""

    def __init__(self, values: SecretValues) -> None:
        self._values = values
        self._held = ""

    def feed(self, text: str) -> str:
        """Take the next piece and return what can be shown now; may be empty."""
        settled, self._held = self._values.settled(self._held + text)
        return settled

    def finish(self) -> str:
        """Return what was held back. The object starts again with an empty text."""
        rest, self._held = self._values.replaced(self._held), ""
        return rest


class LiveBytes:
    """Like `LiveText` for bytes of any kind; what is no secret is passed on bit for bit.

    The bytes are read as Latin-1, where each is one character. `values` must have been made for
    that (`SecretValues(…, encoding="utf-8")`).
    """

    def __init__(self, values: SecretValues) -> None:
        self._text = LiveText(values)

    def feed(self, data: bytes) -> bytes:
        """Take the next piece and return what can be stored now; may be empty."""
        return self._text.feed(data.decode("latin-1")).encode("latin-1")

    def finish(self) -> bytes:
        """Return what was held back."""
        return self._text.finish().encode("latin-1")
