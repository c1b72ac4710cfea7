"""The content of settings that a confined program replaces."""

import os
from pathlib import Path

import pytest

from agent_core.process import renames


def test_a_file_that_grows_while_it_is_copied_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renames, "_LARGEST", 10)
    monkeypatch.setattr(renames, "_CHUNK", 4)
    (tmp_path / "new").write_bytes(b"x" * 11)
    source = os.open(tmp_path / "new", os.O_RDONLY)
    target = os.open(tmp_path / "copy", os.O_WRONLY | os.O_CREAT)
    try:
        with pytest.raises(OSError, match="too large"):
            renames._copy_content(source, target)
    finally:
        os.close(source)
        os.close(target)
    assert (tmp_path / "copy").stat().st_size <= 10
