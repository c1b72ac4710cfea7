"""`/diff`: shows the changes of the session, or of the working tree according to git."""

import asyncio
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from agent_core.cli.chat.conversation import Chat
from agent_core.cli.layout import ASCII_SIGNS, SIGNS
from agent_core.cli.render import LINES_OF_DIFF, CallLayout, count_numbered
from agent_core.cli.terminal import Style
from agent_core.git import find_top
from agent_core.text import lines_of_diff, plural, visible
from agent_core.types import FileChange

_MOST_FILES = 30
_NAMED = 3
_MOST_BYTES = 4_000_000
_GIT_S = 20.0
_INERT = (
    *("core.fsmonitor=false", "core.hooksPath=/dev/null", "protocol.allow=never"),
    "core.quotePath=false",
)
"""Settings of git under which a repository cannot make it start a program."""
_PLAIN = (
    *("--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=all", "--no-prefix"),
    "--no-renames",
)


async def show_changes(chat: Chat, words: Sequence[str]) -> None:
    """Show the session's changes, or all changes of one file.

    If no snapshot holds a change of the session, shows the changes of the working tree by git.
    """
    found = await chat.runtime.diff_session(chat.session_id) if chat.has_sent else None
    if found is not None:
        changes, whose = found.changes, "this session"
    else:
        top = find_top(chat.setup.project)
        if top is None:
            chat.say("no snapshot holds a change of this session, and this is not a git repository")
            return
        changes = await _read_git(chat, chat.setup.project)
        whose = "git's working tree: no snapshot holds a change of this session"
        if changes is None:
            return
    ignored: Sequence[str] = ()
    if not words:
        ignored = await _ignored(chat.setup.project, [each.path for each in changes])
        changes = [each for each in changes if each.path not in ignored]
    else:
        name = words[0].removeprefix("./")
        changes = [each for each in changes if each.path == name]
        if not changes:
            chat.fail(f"{words[0]} has not changed; /diff lists the files that have")
            return
    _show(chat, changes, whose, most=None if words else LINES_OF_DIFF)
    if ignored:
        names = visible(chat.clean(", ".join(ignored[:_NAMED])), one_line=True)
        more = f" and {len(ignored) - _NAMED} more" if len(ignored) > _NAMED else ""
        count = plural(len(ignored), "changed file")
        whom = "it" if len(ignored) == 1 else "them"
        chat.say(f"left out, since git ignores {whom}: {count} ({names}{more})", Style.DIM)


def _show(chat: Chat, changes: Sequence[FileChange], whose: str, *, most: int | None) -> None:
    terminal = chat.terminal
    layout = CallLayout(terminal.width, SIGNS if terminal.has_signs else ASCII_SIGNS)
    if not changes:
        chat.say(f"no file has changed ({whose})", Style.DIM)
        return
    is_cut = False
    for change in changes[:_MOST_FILES]:
        path = visible(chat.clean(change.path), one_line=True)
        note = f" ({change.note})" if change.note else ""
        terminal.line(f"{change.kind} {path}{visible(note, one_line=True)}", Style.BOLD)
        diff = chat.clean(change.diff or "")
        is_cut = is_cut or (most is not None and count_numbered(diff) > most)
        for line in layout.changes(diff, most=most):
            terminal.parts(*line)
    if (more := len(changes) - _MOST_FILES) > 0:
        is_cut = True
        terminal.line(f"and {plural(more, 'more file')}", Style.WARN)
    signs = [line[:1] for change in changes for line in _changed_lines(change.diff or "")]
    added, removed = signs.count("+"), signs.count("-")
    chat.say(f"{plural(len(changes), 'file')} changed, +{added} -{removed} ({whose})", Style.DIM)
    if is_cut:
        chat.say("/diff FILE shows all lines of one file", Style.DIM)


def _changed_lines(diff: str) -> Iterator[str]:
    """Yield the added and removed lines of a diff of one file, without its head."""
    in_hunks = False
    for line in lines_of_diff(diff):
        in_hunks = in_hunks or line.startswith("@@")
        if in_hunks and line[:1] in {"+", "-"}:
            yield line


async def _read_git(chat: Chat, project: Path) -> Sequence[FileChange] | None:
    """Return the differences from HEAD, and the files that git does not know; None if it fails."""
    program = await asyncio.to_thread(shutil.which, "git")
    if program is None:
        chat.fail("no snapshot holds a change of this session, and git is not installed")
        return None
    filters = await _run(program, project, "config", "--name-only", "--get-regexp", r"^filter\.")
    names = (filters or b"").decode(errors="replace").split()
    inert = [f"{name}={'false' if name.endswith('.required') else ''}" for name in names]
    has_head = await _run(program, project, "rev-parse", "--verify", "--quiet", "HEAD")
    base = ["HEAD"] if has_head else ["--cached"]
    known = await _run(program, project, "diff", *_PLAIN, "--relative", *base, settings=inert)
    new = await _run(program, project, "ls-files", "-z", "--others", "--exclude-standard")
    if known is None or new is None:
        chat.fail("git cannot read this repository; !git diff shows what it says")
        return None
    changes = [*_parse(known.decode(errors="replace"))]
    untracked = [os.fsdecode(name) for name in new.split(b"\0") if name]
    changes += [FileChange(path=path, kind="untracked") for path in untracked]
    return changes


async def _ignored(project: Path, paths: Sequence[str]) -> Sequence[str]:
    """Return the paths that git ignores; none without git, or outside a repository."""
    program = await asyncio.to_thread(shutil.which, "git")
    if program is None or not paths or find_top(project) is None:
        return ()
    with TemporaryFile() as asked:  # `./`: a name that begins with a colon is a name
        asked.write(b"".join(os.fsencode(f"./{path}\0") for path in paths))
        asked.seek(0)
        found = await _run(program, project, "check-ignore", "-z", "--stdin", given=asked)
    return [os.fsdecode(path).removeprefix("./") for path in (found or b"").split(b"\0") if path]


async def _run(
    program: str,
    project: Path,
    *words: str,
    settings: Sequence[str] = (),
    given: IO[bytes] | None = None,
) -> bytes | None:
    """Return the output of git, the beginning of a very long one; None if it fails."""
    options = [part for each in (*_INERT, *settings) for part in ("-c", each)]
    child = await asyncio.create_subprocess_exec(
        program,
        "--no-pager",
        *options,
        *words,
        cwd=project,
        stdin=given or asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1"},
    )
    output = b""
    is_cut = False
    try:
        async with asyncio.timeout(_GIT_S):
            while child.stdout and (piece := await child.stdout.read(2**16)):
                output += piece
                if len(output) > _MOST_BYTES:
                    is_cut = True
                    break
            if not is_cut:
                await child.wait()
    except TimeoutError:
        return None
    finally:
        if child.returncode is None:
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()
    return output if is_cut or child.returncode == 0 else None


def _parse(diff: str) -> Iterator[FileChange]:
    """Yield the files of a diff without prefixes."""
    for part in f"\n{diff}".split("\ndiff --git ")[1:]:
        head, hunks, body = part.partition("\n@@")
        lines = head.split("\n")
        kind = "modified"
        if any(line.startswith("new file") for line in lines):
            kind = "added"
        elif any(line.startswith("deleted file") for line in lines):
            kind = "deleted"
        elif not hunks and any(line.startswith("old mode") for line in lines):
            kind = "mode"
        names = [line[4:].rstrip("\t") for line in lines if line[:4] in {"+++ ", "--- "}]
        first = lines[0]
        path = next((name for name in reversed(names) if name != "/dev/null"), None)
        path = path or first[: (len(first) - 1) // 2]  # the same name twice
        note = "binary" if any(line.startswith("Binary files") for line in lines) else ""
        text = f"@@{body}\n" if hunks else None
        yield FileChange(path=path.strip('"'), kind=kind, diff=text, note=note)
