"""From bytes as the network cuts them to whole payloads: server-sent events and JSON lines.

Both decoders give the same payloads however the bytes are split: inside a character, between CR
and LF, in the middle of the byte order mark. They work in linear time and hold one payload at most.
"""

from abc import ABC, abstractmethod

from agent_core.errors import ErrorCode
from agent_core.providers.failures import CallError

MAX_PAYLOAD_BYTES = 32 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"


class Decoder(ABC):
    """Bytes in, payloads out. Lines end at LF, CRLF and CR; a byte order mark is dropped."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._rest_size = 0
        self._after_cr = False
        self._at_start = True

    @abstractmethod
    def feed(self, block: bytes) -> list[bytes]:
        """The payloads that `block` completes.

        Raises:
            CallError: a payload is larger than `MAX_PAYLOAD_BYTES`.
        """

    def end(self) -> list[bytes]:
        """What is left when the stream ends without its last line end."""
        return self.feed(b"\n")

    def _split(self, block: bytes) -> list[bytes]:
        """The lines that `block` completes, without their ends."""
        if self._after_cr and block:
            block = block.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" in block:
            self._after_cr = block.endswith(b"\r")
            block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = block.split(b"\n")
        rest = lines.pop()
        if lines:
            if self._rest:
                lines[0] = b"".join([*self._rest, lines[0]])
                self._rest.clear()
                self._rest_size = 0
            if self._at_start:
                lines[0] = lines[0].removeprefix(_BOM)
                self._at_start = False
        if rest:
            self._rest.append(rest)
            self._rest_size += len(rest)
            _check_size(self._rest_size)
        return lines


class EventDecoder(Decoder):
    """Server-sent events. A payload is the data of one event; names, ids and comments are dropped.

    Every service here repeats the event's name inside its data, so the name is not needed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, block: bytes) -> list[bytes]:
        """The data of every event that `block` completes."""
        parts = self._parts
        lines = self._split(block)
        if not parts and not any(lines[1::2]):  # one line of data an event, as services send it
            payloads = [line[6:] for line in lines[::2] if line[:6] == b"data: "]
            if len(payloads) * 2 == len(lines) and all(payloads):
                return payloads
        payloads = list[bytes]()
        for line in lines:
            if line[:5] == b"data:":
                parts.append(line[6:] if line[5:6] == b" " else line[5:])
                self._size += len(line)
            elif not line and parts:
                if payload := parts[0] if len(parts) == 1 else b"\n".join(parts):
                    payloads.append(payload)
                parts.clear()
                self._size = 0
        _check_size(self._size)
        return payloads

    def end(self) -> list[bytes]:
        """The last event, if the blank line after it is missing."""
        return self.feed(b"\n\n")


class JsonLineDecoder(Decoder):
    """One JSON value per line; blank lines are skipped."""

    def feed(self, block: bytes) -> list[bytes]:
        """The lines that `block` completes."""
        return [line for line in self._split(block) if line and not line.isspace()]


def _check_size(size: int) -> None:
    if size > MAX_PAYLOAD_BYTES:
        raise CallError(
            ErrorCode.PROVIDER_ERROR,
            f"one event of the stream is larger than {MAX_PAYLOAD_BYTES} bytes",
        )
