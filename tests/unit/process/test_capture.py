"""Output is kept in bounded memory and never cut inside a character."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from agent_core.process import capture
from agent_core.process.capture import Capture, Output
from tables import together


def captured(chunks: list[bytes], limit: int) -> Output:
    with Capture(limit) as kept:
        for chunk in chunks:
            kept.add(chunk)
        return kept.take()


def content_of(output: Output) -> bytes:
    assert output.spool is not None
    output.spool.seek(0)
    return output.spool.read()


@given(st.lists(st.binary(max_size=50), max_size=30), st.integers(1, 200))
def test_what_fits_is_exact_and_what_does_not_is_on_disk(chunks: list[bytes], limit: int) -> None:
    whole = b"".join(chunks)
    output = captured(chunks, limit)
    assert output.size_bytes == len(whole)
    if len(whole) <= limit:
        assert output == Output(whole.decode(errors="replace"), len(whole))
        return
    assert output.spool is not None
    assert content_of(output) == whole
    output.discard()
    assert output.spool.closed


@together("limit", range(20, 60))
def test_the_cut_leaves_no_half_characters(limit: int) -> None:
    output = captured(["aé漢😀".encode() * 50], limit)
    assert "\ufffd" not in output.text
    output.discard()


def test_what_is_kept_on_disk_has_no_name_that_a_killed_process_could_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Capture(10) as kept:
        kept.add(b"x" * 100)
        assert list(tmp_path.iterdir()) == []
        output = kept.take()
    assert content_of(output) == b"x" * 100
    output.discard()


def test_a_flood_does_not_fill_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "SPOOL_LIMIT_BYTES", 1000)
    output = captured([b"x" * 300] * 10, 100)
    assert output.size_bytes == 3000
    assert output.spool is not None
    assert content_of(output) == (b"x" * 3000)[:1000]
    output.discard()


def test_without_room_for_a_file_head_and_tail_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    output = captured([b"head" * 10, b"x" * 1000, b"tail" * 10], 40)
    assert output.truncated
    assert output.spool is None
    assert output.text.startswith("headhead")
    assert output.text.endswith("tailtail")
