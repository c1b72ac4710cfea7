"""The last output of a running program: bounded, as a screen shows it, and a few times a second."""

import asyncio
import os
import sys
from pathlib import Path

from agent_core.process import live
from agent_core.process.child import Command, run
from agent_core.process.launcher import Launcher
from agent_core.process.live import LiveOutput
from tables import together

LAUNCHER = Launcher()


class Watched:
    def __init__(self) -> None:
        self.shown: list[tuple[str, int]] = []
        self.is_shown = asyncio.Event()

    def show(self, text: str, lines: int) -> None:
        self.shown.append((text, lines))
        self.is_shown.set()

    async def next(self) -> tuple[str, int]:
        self.is_shown.clear()
        await self.is_shown.wait()
        return self.shown[-1]


@together(
    ("pieces", "text", "lines"),
    [
        ([b"one\ntwo\nthr"], "one\ntwo\nthr", 2),
        ([b"on", b"e\nt", b"wo\n"], "one\ntwo\n", 2),
        ([b"10 %\r", b"20 %\r", b"30 %\r"], "30 %", 0),
        ([b"10 %\r100 %\r\ndone\r\n"], "100 %\ndone\n", 2),
        ([b"\x1b[31mred\x1b[0m\n\x1b]0;title\x07x\x1b[3"], "red\nx", 1),
        (["加".encode()[:2]], "", 0),
        (["加".encode()[:2], "加".encode()[2:]], "加", 0),
        ([b"\xff\n"], "\N{REPLACEMENT CHARACTER}\n", 1),
    ],
)
async def test_output_is_shown_as_a_screen_shows_it(
    pieces: list[bytes], text: str, lines: int
) -> None:
    watched, kept = Watched(), list[bytes]()
    with LiveOutput(watched.show) as output:
        take = output.beside(kept.append)
        for piece in pieces:
            take(piece)
        assert await watched.next() == (text, lines)
    assert kept == pieces


async def test_lines_of_two_streams_are_joined_as_they_are_finished() -> None:
    watched = Watched()
    with LiveOutput(watched.show) as output:
        out, err = output.beside(lambda _: None), output.beside(lambda _: None)
        out(b"half ")
        err(b"warning\nanother")
        out(b"a line\n")
        assert await watched.next() == ("warning\nhalf a line\n", 2)
        err(b" one")
        assert await watched.next() == ("warning\nhalf a line\nanother one", 2)


@together("piece", [b"x" * 65_536, b"\n" * 65_536, b"a line\n" * 9_362])
async def test_a_flood_takes_little_memory_and_shows_its_end(piece: bytes) -> None:
    watched = Watched()
    with LiveOutput(watched.show) as output:
        take = output.beside(lambda _: None)
        for _ in range(500):
            take(piece)
        assert not watched.shown
        text, lines = await watched.next()
    assert len(text) <= live._WINDOW
    assert lines == 500 * piece.count(b"\n")
    assert len(output._lines) + len(output._unfinished) <= 9 * live._WINDOW


async def test_a_program_is_shown_while_it_runs_and_not_after(tmp_path: Path) -> None:
    watched, gate = Watched(), tmp_path / "gate"
    script = "import sys;print('begun',flush=True);open(sys.argv[1]).read();print('ended')"
    os.mkfifo(gate)
    command = Command(argv=[sys.executable, "-c", script, str(gate)], cwd=tmp_path, env={})
    with LiveOutput(watched.show) as output:
        running = asyncio.create_task(run(command, launcher=LAUNCHER, timeout_s=60, live=output))
        assert await watched.next() == ("begun\n", 1)
        await asyncio.to_thread(gate.write_text, "go")
        finished = await running
    assert finished.stdout.text == "begun\nended\n"
    assert output._due is None or output._due.cancelled()
