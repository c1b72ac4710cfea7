import pytest
from hypothesis import given, strategies as st

from agent_core.errors import ProviderError
from agent_core.providers.decoding import (
    MAX_PAYLOAD_BYTES,
    Decoder,
    EventDecoder,
    JsonLineDecoder,
)
from tables import together

EVENTS = (
    "\ufeff: a comment\r\n"
    'event: greeting\r\nid: 1\r\ndata: {"t": "héllo 🌍"}\r\n\r\n'
    "data:no space\n\n"
    "data: two\rdata: lines\r\r"
    "data:\n\n"
    "retry: 10\n\n"
    "data: last"
).encode()
PAYLOADS = ['{"t": "héllo 🌍"}'.encode(), b"no space", b"two\nlines", b"last"]
LINES = b'\xef\xbb\xbf{"a": 1}\n\r\n  \n{"b": 2}\r\n{"c": 3}'


def decoded(decoder: Decoder, blocks: list[bytes]) -> list[bytes]:
    return [payload for block in blocks for payload in decoder.feed(block)] + decoder.end()


@together("at", range(len(EVENTS)))
def test_events_are_the_same_wherever_they_are_split(at: int) -> None:
    assert decoded(EventDecoder(), [EVENTS[:at], b"", EVENTS[at:]]) == PAYLOADS


def test_events_are_the_same_byte_by_byte() -> None:
    assert decoded(EventDecoder(), [bytes([byte]) for byte in EVENTS]) == PAYLOADS


@given(
    st.lists(st.sampled_from(["data: x", "data: y ", "data:z", "data: ", "data:", "id: 1", "", ""]))
)
def test_lines_in_one_read_and_one_by_one_give_the_same_events(lines: list[str]) -> None:
    read = [f"{line}\n".encode() for line in lines]

    assert decoded(EventDecoder(), [b"".join(read)]) == decoded(EventDecoder(), read)


@together("at", range(len(LINES)))
def test_lines_are_the_same_wherever_they_are_split(at: int) -> None:
    expected = [b'{"a": 1}', b'{"b": 2}', b'{"c": 3}']

    assert decoded(JsonLineDecoder(), [LINES[:at], LINES[at:]]) == expected


@pytest.mark.long
@pytest.mark.parametrize("decoder", [EventDecoder(), JsonLineDecoder()])
def test_twenty_megabytes_are_one_payload_however_they_come(decoder: Decoder) -> None:
    payload = b"x" * (20 * 1024 * 1024)
    whole = b"data: " + payload + b"\n\n"
    blocks = [whole[start : start + 4096] for start in range(0, len(whole), 4096)]

    [found] = decoded(decoder, blocks)

    assert found.endswith(payload)


def feed_megabytes(decoder: Decoder, block: bytes) -> None:
    for _ in range(MAX_PAYLOAD_BYTES // 1024 // 1024 + 2):
        decoder.feed(block)


@pytest.mark.parametrize("line", [b"data: ", b"data: x\ndata: "])
def test_a_payload_without_an_end_is_refused_before_memory_runs_out(line: bytes) -> None:
    decoder = EventDecoder()
    decoder.feed(line)

    with pytest.raises(ProviderError, match="larger than"):
        feed_megabytes(decoder, b"x" * 1024 * 1024)


def test_many_data_lines_without_a_blank_line_are_refused_as_well() -> None:
    with pytest.raises(ProviderError, match="larger than"):
        feed_megabytes(EventDecoder(), b"data: " + b"x" * 1024 * 1024 + b"\n")
