"""What was entered before is kept bounded, private and readable, whatever the file holds."""

import os
import stat
import threading
from pathlib import Path

from agent_core.cli.chat.history import MOST_BYTES, MOST_ENTRIES, FileHistory
from agent_core.cli.chat.pastes import Pastes


def history(path: Path, pastes: Pastes | None = None) -> FileHistory:
    return FileHistory(path, lambda text: text.replace("secret", "[REDACTED]"), pastes or Pastes())


def test_entries_come_back_last_first_and_without_secrets(tmp_path: Path) -> None:
    path = tmp_path / "history"
    history(path).store_string("one\ntwo")
    history(path).store_string("a secret")
    assert list(history(path).load_history_strings()) == ["a [REDACTED]", "one\ntwo"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_file_stays_small(tmp_path: Path) -> None:
    path, kept = tmp_path / "history", history(tmp_path / "history")
    for number in range(120):
        kept.store_string(f"{number} " + "x" * 10_000)
    assert path.stat().st_size <= MOST_BYTES
    assert next(iter(kept.load_history_strings())).startswith("119 ")
    for number in range(MOST_ENTRIES + 10):
        kept.store_string(str(number))
    entries = list(kept.load_history_strings())
    assert len(entries) <= MOST_ENTRIES
    assert entries[0] == str(MOST_ENTRIES + 9)


def test_damage_and_foreign_files_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_bytes(b'{"text": "good"}\n{"text": 3}\n[]\n\xff\xfe{\n' + b"[" * 100_000 + b"\n")
    assert list(history(path).load_history_strings()) == ["good"]
    fifo, link = tmp_path / "fifo", tmp_path / "link"
    os.mkfifo(fifo)
    link.symlink_to(tmp_path / "elsewhere")
    for each in (fifo, link, tmp_path / "no" / "folder"):
        history(each).store_string("text")
        assert list(history(each).load_history_strings()) == []
    assert not (tmp_path / "elsewhere").exists()


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "history"

    def write(name: str) -> None:
        for number in range(20):
            history(path).store_string(f"{name}{number}")

    threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(history(path).load_history_strings())) == 60


def test_a_large_paste_is_folded_and_sent_whole() -> None:
    pastes = Pastes()
    large, long = "\n".join(map(str, range(20))), "x" * 5000
    assert pastes.fold("two\nlines") == "two\nlines"
    line = f"see {pastes.fold(large)} and {pastes.fold(long)}"
    assert line == "see [pasted text 1: 20 lines] and [pasted text 2: 5000 characters]"
    assert pastes.unfold(line) == f"see {large} and {long}"
    assert pastes.is_paste("[pasted text 1: 20 lines]")
    assert not pastes.is_paste(line)
    assert pastes.unfold("[pasted text 3: 20 lines]") == "[pasted text 3: 20 lines]"


def test_an_entry_brings_its_pastes_along_to_another_conversation(tmp_path: Path) -> None:
    path = tmp_path / "history"
    first, second = "\n".join(map(str, range(20))), "a secret\n" * 19 + "end"
    for text in (first, second):
        pastes = Pastes()
        history(path, pastes).store_string(f"see {pastes.fold(text)}")
    pastes = Pastes()
    mine = pastes.fold("mine\n" * 19)
    newest, oldest = history(path, pastes).load_history_strings()
    assert newest == "see [earlier paste 1: 20 lines]"
    assert pastes.unfold(newest) == f"see {second}".replace("secret", "[REDACTED]")
    assert oldest == "see [earlier paste 2: 20 lines]"
    assert pastes.unfold(oldest) == f"see {first}"
    assert mine == "[pasted text 1: 20 lines]"
    assert pastes.unfold(mine) == "mine\n" * 19
    assert pastes.fold("mine\n" * 29) == "[pasted text 2: 30 lines]"
    again = history(path, pastes)
    again.store_string(oldest)  # recalled and sent again
    assert next(iter(history(path).load_history_strings())) == "see [earlier paste 1: 20 lines]"


def test_an_entry_whose_paste_is_not_known_does_not_come_back(tmp_path: Path) -> None:
    path, pastes = tmp_path / "history", Pastes()
    path.write_text('{"text": "an earlier version: [pasted text 1: 40 lines]"}\n')
    too_long = pastes.fold("x" * 20_000)
    history(path, pastes).store_string(f"see {too_long}")
    assert list(history(path).load_history_strings()) == []


def test_a_draft_that_was_not_sent_reaches_no_file(tmp_path: Path) -> None:
    path = tmp_path / "history"
    kept = history(path)
    kept.keep_draft("half a thought", names_command=False)
    assert kept.get_strings() == ["half a thought"]
    assert not path.exists()
