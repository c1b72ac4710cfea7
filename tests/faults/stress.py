"""Chats, an editor, programs and cron jobs in one home, killed at random: nothing may be lost.

    python tests/faults/stress.py --minutes 60 --seed 7      # what `make stress MINUTES=60` does

Every actor has a project of its own and sends messages that change its files; it undoes, redoes and
exports. Actors are killed with `kill -9` at any moment, and continue. A message counts as
acknowledged when the program has shown its answer, an event when it is in the file of `--events`.
Checked throughout and at the end: what was acknowledged is stored, files are as the conversation
says, every process that has the database open holds its lock and a log that exists, the database
is sound, and no output speaks of damage. The folder is kept if something was wrong.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agent_core.providers.scripted import Pauses, calls
from captures import Session, open_terminal
from editors import Editor
from faults import serving
from faults.injection import environment_of
from isolation import Home
from model_server import ModelServer, Received, Reply
from posix_locks import holders_of
from rows import faults_of

Files = dict[str, str]
Kind = Literal["task", "calm"]

PATIENCE_S = 180.0
"""No step takes longer, however busy the machine is."""

_MOST_PROBLEMS = 20
_LONGEST_SESSION = 25
_CALLS_OF_A_TASK = 2
_SAID = re.compile(r"(task|calm|answer) ([a-z]+\d*-\d+)\.")
_DAMAGE = re.compile(
    r"damaged|malformed|disk image|Traceback|storage_error|disk I/O|not a database"
    r"|internal.error(?!: the process that ran this ended)"  # a killed run is shown as such
    r"|database is locked|cannot be (opened|read|written)",
    re.IGNORECASE,
)
_ENTER, _CTRL_C, _CTRL_D = "\r", "\x03", "\x04"
_AT_REST = r"[\s\S]*(\x1b\[J>|\n> $)"
"""Behind an output: the input line of a chat, with nothing above it that is under way."""

CONFIG = """
[model]
provider = "openai"
name = "scripted"
base_url = "{base_url}"
context_window = 200000

[memory]
enabled = false

[workspace]
snapshots = "turn"

[[permissions.rules]]
decision = "allow"
command = ["{append}", "*"]
"""


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class KilledError(Exception):
    """The process that an actor has worked with was killed."""


class StrayError(Exception):
    """A program has not done what it should."""


class _Count(list[Received]):
    """Requests that are counted and not kept: an hour has a million of messages in them."""

    _number = 0

    def append(self, _: Received, /) -> None:
        self._number += 1

    def __len__(self) -> int:
        return self._number


class Replies:
    """Answers each message by the task that it names: a file, a line of a journal, an answer."""

    def __init__(self, append: Path, seed: int) -> None:
        self._append = str(append)
        self._random = random.Random(seed)  # noqa: S311 - pauses, not secrets

    def __call__(self, asked: Received) -> Reply:
        """The next reply of the run that the last message belongs to."""
        if self._random.random() < 0.2:
            return Pauses(seconds=self._random.random() / 2)
        done, kind, tag = 0, "calm", "none-0"
        for message in reversed(asked.body["messages"]):
            done += message["role"] == "assistant"
            if message["role"] == "user" and (found := _SAID.search(str(message["content"]))):
                kind, tag = found.groups()
                break
        if kind == "calm" or done >= _CALLS_OF_A_TASK:
            return f"answer {tag}."
        if done == 0:
            name, content = file_of(tag)
            return calls("code.write_file", path=name, content=content, overwrite=True)
        return calls("code.run_command", argv=[self._append, tag])


def file_of(tag: str) -> tuple[str, str]:
    """The file that a task writes, and its content."""
    return f"file{int(tag.rpartition('-')[2]) % 5}.txt", f"{tag}\n"


def states_of(before: Files, tag: str) -> list[Files]:
    """The files before a task, after each of its changes, the last one of the task that is done."""
    name, content = file_of(tag)
    written = before | {name: content}
    return [before, written, written | {"journal.txt": before.get("journal.txt", "") + f"{tag}\n"}]


@dataclass(frozen=True, kw_only=True)
class Place:
    """The folders and files of a stress."""

    folder: Path

    @property
    def home(self) -> Home:
        return Home(self.folder / "home")

    @property
    def database(self) -> Path:
        return self.home.path / "sessions.sqlite"

    @contextmanager
    def rows(self) -> Generator[sqlite3.Connection]:
        """Read the database as any other program would."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                address = f"{self.database.as_uri()}?mode=ro"
                connection = sqlite3.connect(address, uri=True, timeout=30)
                connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
                break
            except sqlite3.OperationalError:  # the last process is just closing it
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        with closing(connection):
            yield connection

    def path_of(self, session_id: str) -> list[tuple[str, str]]:
        """Return the messages on the active path of a session, in order: kind and tag."""
        with self.rows() as rows:
            contents = rows.execute(
                """WITH RECURSIVE path(parent_id, content, depth) AS (
                    SELECT parent_id, content_json, 0 FROM nodes WHERE node_id =
                        (SELECT active_node_id FROM sessions WHERE session_id = ?)
                    UNION ALL SELECT n.parent_id, n.content_json, depth + 1
                    FROM nodes n JOIN path ON n.node_id = path.parent_id)
                SELECT content FROM path ORDER BY depth DESC""",
                (session_id,),
            ).fetchall()
        return [(found[1], found[2]) for (text,) in contents if (found := _SAID.search(text))]


@dataclass(kw_only=True)
class Ledger:
    """Everything that was acknowledged, done and found; shared by all threads."""

    said: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    """The session of what was said, by kind and tag."""
    events: dict[str, str] = field(default_factory=dict[str, str])
    """The session of each event, by its id."""
    counts: Counter[str] = field(default_factory=Counter[str])
    problems: list[str] = field(default_factory=list[str])
    start_ms: list[float] = field(default_factory=list[float])
    """How long each run of a program took to be stored."""
    first_start_ms: list[float] = field(default_factory=list[float])
    """The same of the first run of each program, which also imports what a run needs."""
    stop: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, *names: str) -> None:
        """One more of each."""
        with self.lock:
            self.counts.update(names)

    def report(self, problem: str) -> None:
        """Note something that is not as it must be."""
        with self.lock:
            self.problems.append(f"{time.strftime('%H:%M:%S')} {problem}")
            say(f"PROBLEM {self.problems[-1]}")
            if len(self.problems) >= _MOST_PROBLEMS:
                self.stop.set()

    def acknowledge(self, session_id: str, kind: Kind, tag: str) -> None:
        """A message and its answer were shown."""
        with self.lock:
            self.said[kind, tag] = self.said["answer", tag] = session_id
            self.counts["messages"] += 1

    def scan(self, who: str, output: str) -> None:
        """Look for words of damage."""
        if found := _DAMAGE.search(output):
            start = max(found.start() - 300, 0)
            self.report(f"{who} said: …{output[start : found.end() + 500]}")


@dataclass(kw_only=True)
class Conversation:
    """A session and the project it changes, as both should be."""

    folder: Path
    session_id: str = ""
    files: Files = field(default_factory=dict[str, str])
    befores: dict[str, Files] = field(default_factory=dict[str, Files])
    """The files before each message, by its tag."""
    messages: int = 0


class Actor:
    """Somebody who works in the home; what is common to all."""

    def __init__(self, name: str, place: Place, ledger: Ledger, seed: int) -> None:
        self.name = name
        self.place = place
        self.ledger = ledger
        self.random = random.Random(f"{seed} {name}")  # noqa: S311 - choices, not secrets
        self.conversations = self._begin_conversations()
        self._numbers = iter(range(1, 1_000_000))
        self._processes: list[subprocess.Popen[Any]] = []

    def _begin_conversations(self) -> list[Conversation]:
        return [Conversation(folder=self._folder(""))]

    def _folder(self, suffix: str) -> Path:
        folder = self.place.folder / "projects" / f"{self.name}{suffix}"
        folder.mkdir(parents=True)
        return folder

    # what the killer and the watch see

    def living(self) -> list[subprocess.Popen[Any]]:
        """Its processes that have not ended."""
        return [process for process in list(self._processes) if process.poll() is None]

    # the work

    def work(self) -> None:
        """Do one thing after another until the end, and leave everything closed."""
        while not self.ledger.stop.is_set():
            try:
                self.step()
            except KilledError:
                self.ledger.report(f"{self.name}: a kill was not expected there")
            except Exception:  # noqa: BLE001 - it belongs into the report
                self.ledger.report(f"{self.name}: {traceback.format_exc()[-3000:]}")
                self.leave()
        try:
            self.leave()
            for conversation in self.conversations:
                if conversation.session_id:
                    self.settle(conversation)
        except Exception:  # noqa: BLE001
            self.ledger.report(f"{self.name}, at its end: {traceback.format_exc()[-3000:]}")

    def step(self) -> None:
        """Do the next thing."""
        conversation = self.random.choice(self.conversations)
        if not conversation.session_id or conversation.messages >= _LONGEST_SESSION:
            self.open_session(conversation)
        chance = self.random.random()
        if chance < 0.6 or not conversation.messages:
            self.try_message(conversation)
        elif chance < 0.8:
            self.try_undo(conversation)
        elif chance < 0.9:
            self.export(conversation)
        else:
            self.look_around(conversation)

    def open_session(self, conversation: Conversation) -> None:
        """Begin another session in the same project."""
        conversation.session_id = f"{self.name}-{next(self._numbers)}"
        conversation.messages = 0
        conversation.befores = {}

    def leave(self) -> None:
        """Close what is open."""

    # how it is done here; a chat and an editor have ways of their own

    def send(self, conversation: Conversation, text: str, tag: str) -> None:
        """Send a message, and return when its answer is there.

        Raises:
            KilledError: the process was killed meanwhile.
        """
        self.run(conversation, text, tag)

    def move(self, conversation: Conversation, which: Literal["undo", "redo"]) -> None:
        """Undo or redo.

        Raises:
            KilledError: the process was killed meanwhile.
        """
        self.command(which, conversation.session_id, cwd=conversation.folder)

    def look_around(self, conversation: Conversation) -> None:
        """Show something, which opens the database once more."""
        words = self.random.choice(
            [
                ("sessions", "list"),
                ("sessions", "search", "answer"),
                ("sessions", "show", conversation.session_id),
                ("sessions", "tree", conversation.session_id),
                ("cost",),
                ("permissions", "list"),
            ]
        )
        with suppress(KilledError):
            self.command(*words, cwd=conversation.folder)
            self.ledger.count("looks")

    # messages, undo, and what they leave

    def try_message(self, conversation: Conversation) -> None:
        """Send a message; after a kill, find out how far it came."""
        kind: Kind = "task" if self.random.random() < 0.8 else "calm"
        tag, before = self._new_tag(), conversation.files
        conversation.befores[tag] = before
        conversation.messages += 1
        states = states_of(before, tag) if kind == "task" else [before]
        try:
            self.send(conversation, f"{kind} {tag}.", tag)
        except KilledError:
            self.settle(conversation)
            path = self.place.path_of(conversation.session_id)
            if ("answer", tag) in path:
                states = states[-1:]
            elif (kind, tag) not in path:
                states = states[:1]
            self.expect_files(conversation, states, f"after a kill in {tag}, with {path[-4:]}")
            return
        self.ledger.acknowledge(conversation.session_id, kind, tag)
        self.expect_files(conversation, states[-1:], f"after {tag}")

    def try_undo(self, conversation: Conversation) -> None:
        """Undo the last message, and sometimes redo; after a kill, see which of both holds."""
        path = [
            tag for kind, tag in self.place.path_of(conversation.session_id) if kind != "answer"
        ]
        if not path or path[-1] not in conversation.befores:
            return
        tag, after, before = path[-1], conversation.files, conversation.befores[path[-1]]
        if self._try_move(conversation, "undo", tag, {False: before, True: after}):
            self.ledger.count("undos")
            if self.random.random() < 0.4 and self._try_move(
                conversation, "redo", tag, {False: before, True: after}
            ):
                self.ledger.count("redos")

    def _try_move(
        self,
        conversation: Conversation,
        which: Literal["undo", "redo"],
        tag: str,
        files: Mapping[bool, Files],
    ) -> bool:
        """Undo or redo a message; `files` are those with and without it. False after a kill."""
        is_whole = True
        try:
            self.move(conversation, which)
        except KilledError:
            is_whole = False
            self.settle(conversation)
        is_there = tag in [each for _, each in self.place.path_of(conversation.session_id)]
        if is_whole and is_there != (which == "redo"):
            self.ledger.report(f"{self.name}: {which} of {tag} did not move the conversation")
        what = f"after {which} of {tag}{'' if is_whole else ', which was killed'}"
        self.expect_files(conversation, [files[is_there]], what)
        return is_whole

    def settle(self, conversation: Conversation) -> None:
        """Start anew in the session, which finishes or closes what a killed process has left."""
        while True:
            tag = self._new_tag()
            conversation.messages += 1
            try:
                self.run(conversation, f"calm {tag}.", tag)
            except KilledError:
                conversation.befores[tag] = {}  # known in a moment
                continue
            break
        self.ledger.acknowledge(conversation.session_id, "calm", tag)
        # No calm message changes a file: the files before it are those that are there now.
        now = self.files_in(conversation.folder)
        path = [tag for kind, tag in self.place.path_of(conversation.session_id) if kind == "calm"]
        for each in reversed(path):
            if each != tag and conversation.befores.get(each) != {}:
                break
            conversation.befores[each] = now

    def expect_files(self, conversation: Conversation, states: list[Files], what: str) -> None:
        """Compare the project with the states it may be in; continue from what is there."""
        found = self.files_in(conversation.folder)
        if found not in states:
            wanted = " or ".join(map(_differences(found), states))
            self.ledger.report(f"{self.name} in {conversation.session_id}, {what}: {wanted}")
        conversation.files = found

    def files_in(self, folder: Path) -> Files:
        """The files of a project."""
        return {
            str(path.relative_to(folder)): path.read_text("utf-8")
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }

    def _new_tag(self) -> str:
        return f"{self.name}-{next(self._numbers):05}"

    # commands

    def run(self, conversation: Conversation, text: str, tag: str) -> None:
        """Send a message as a cron job does."""
        events = self.place.folder / f"{self.name}.events"
        words = ("run", "--mode", "accept-edits", "--session-id", conversation.session_id)
        try:
            output = self.command(*words, "--events", str(events), text, cwd=conversation.folder)
        finally:
            lines = events.read_text("utf-8").splitlines(keepends=True) if events.exists() else []
            events.unlink(missing_ok=True)
            shown = [json.loads(line) for line in lines if line.endswith("\n")]
            with self.ledger.lock:
                self.ledger.events |= {
                    event["event_id"]: conversation.session_id
                    for event in shown
                    if event.get("seq") is not None
                }
        self.ledger.count("runs")
        if f"answer {tag}." not in output:
            raise StrayError(f"run ended without its answer: {output[-2000:]}")

    def export(self, conversation: Conversation) -> None:
        """Write the session to a file, which has everything that was acknowledged."""
        file = self.place.folder / f"{self.name}.jsonl"
        wanted = {
            said
            for said, session_id in self.ledger.said.copy().items()
            if session_id == conversation.session_id
        }
        with suppress(KilledError):
            self.write_export(conversation, file)
            found = {(each[1], each[2]) for each in _SAID.finditer(file.read_text("utf-8"))}
            if lost := wanted - found:
                self.ledger.report(f"{self.name}: the export lacks {sorted(lost)}")
            self.ledger.count("exports")
        file.unlink(missing_ok=True)

    def write_export(self, conversation: Conversation, file: Path) -> None:
        """Export a session."""
        words = ("sessions", "export", conversation.session_id, "--jsonl", str(file), "--force")
        self.command(*words, cwd=conversation.folder)

    def command(self, *words: str, cwd: Path) -> str:
        """Run `soong-agent` to its end; what it has written.

        Raises:
            KilledError: it was killed.
            StrayError: it has failed.
        """
        process = subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", "agent_core.cli", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=environment_of(self.place.home.path),
        )
        self._processes.append(process)
        try:
            output = process.communicate(timeout=PATIENCE_S)[0].decode(errors="replace")
        finally:
            process.kill()
            self._processes.remove(process)
        self.ledger.scan(f"{self.name}: {' '.join(words[:2])}", output)
        self._check_end(process, " ".join(words), output)
        return output

    def _check_end(self, process: subprocess.Popen[Any], what: str, output: str) -> None:
        if process.returncode == -signal.SIGKILL:
            raise KilledError
        if process.returncode:
            raise StrayError(f"{what} ended with {process.returncode}: {output[-2000:]}")


def _differences(found: Files) -> Callable[[Files], str]:
    def tell(wanted: Files) -> str:
        names = sorted(name for name in found | wanted if found.get(name) != wanted.get(name))
        parts = [
            f"{name} is {found.get(name, 'missing')[-60:]!r}"
            f" and not {wanted.get(name, 'missing')[-60:]!r}"
            for name in names
        ]
        return ", ".join(parts)

    return tell


class Chat(Actor):
    """Somebody at a terminal, who stays in one chat for a while."""

    _terminal: Session | None = None
    _file: int = -1
    _is_plain: bool = False
    _process: subprocess.Popen[bytes] | None = None

    def send(self, conversation: Conversation, text: str, tag: str) -> None:
        """Type the message."""
        self._type(conversation, text, rf"answer {tag}\.")

    def move(self, conversation: Conversation, which: Literal["undo", "redo"]) -> None:
        """Use the chat's own command, and clear the line of the message that it gives back."""
        self._type(conversation, f"/{which}", "(?:taken back|changes are back)")
        if which == "undo" and not self._is_plain and self._terminal is not None:
            self._terminal.type(_CTRL_C)

    def write_export(self, conversation: Conversation, file: Path) -> None:
        """Use the chat's own command."""
        file.unlink(missing_ok=True)
        self._type(conversation, f"/export --jsonl {file}", "wrote ")

    def look_around(self, conversation: Conversation) -> None:
        """Use a command that opens the database a second time, or leave and come back."""
        if self.random.random() < 0.2:
            self.leave()
            return
        names = ("/cost", "/sessions list", "/permissions", "/tree", "/context", "/tasks", "/last")
        with suppress(KilledError):
            self._show(conversation, self.random.choice(names))
            self.ledger.count("looks")

    def open_session(self, conversation: Conversation) -> None:
        """Leave, and come back with another session."""
        self.leave()
        super().open_session(conversation)

    def settle(self, conversation: Conversation) -> None:
        """See `Actor.settle`; a chat that lives is left before."""
        self.leave()
        super().settle(conversation)

    def leave(self) -> None:
        """Close the chat as users do."""
        if self._terminal is not None:
            with suppress(KilledError), self._at_work("leaving"):
                self._terminal.type(_CTRL_D)
                self._terminal.wait_for_end()
                self._close()

    def _close(self) -> None:
        terminal, process = self._terminal, self._process
        assert terminal is not None
        assert process is not None
        self._terminal = None
        process.kill()
        process.wait()
        self._processes.remove(process)
        os.close(self._file)
        output = "\n".join(terminal.recording().lines)
        self.ledger.scan(self.name, output)
        self._check_end(process, "chat", output)

    def _show(self, conversation: Conversation, command: str) -> None:
        """Use a command that shows or writes something."""
        self._type(conversation, command, rf"{re.escape(command)}\r\n")

    def _type(self, conversation: Conversation, keys: str, after: str) -> None:
        """Type a line, and wait until its output is complete."""
        if self._terminal is None:
            self._start(conversation)
        assert self._terminal is not None
        with self._at_work(keys):
            self._terminal.ends_at = time.monotonic() + PATIENCE_S
            self._terminal.type(f"{keys}{_ENTER}")
            self._terminal.wait_for(re.compile(after + _AT_REST))

    def _start(self, conversation: Conversation) -> None:
        self._is_plain = self.random.random() < 0.3
        plain = ["--plain"] if self._is_plain else []
        words = ["chat", "--mode", "accept-edits", "--session-id", conversation.session_id, *plain]
        self._file, self._process = open_terminal(
            [sys.executable, "-m", "agent_core.cli", *words],
            env=environment_of(self.place.home.path),
            cwd=conversation.folder,
            columns=200,
        )
        self._processes.append(self._process)
        ends_at = time.monotonic() + PATIENCE_S
        self._terminal = Session(self._file, self._process, columns=200, rows=40, ends_at=ends_at)
        with self._at_work("starting"):
            self._terminal.wait_for(re.compile(_AT_REST))
        self.ledger.count("chats")

    @contextmanager
    def _at_work(self, what: str) -> Generator[None]:
        try:
            yield
        except (AssertionError, OSError) as error:
            assert self._process is not None
            with suppress(subprocess.TimeoutExpired):  # a killed one ends in a moment
                self._process.wait(2)
            code = self._process.poll()
            self._close()
            raise StrayError(f"chat, {what}: code {code}, {error}") from error


class Desk(Actor):
    """Somebody with an editor that has two folders open, and a terminal beside it."""

    _editor: Editor | None = None

    def _begin_conversations(self) -> list[Conversation]:
        return [Conversation(folder=self._folder(each)) for each in ("-left", "-right")]

    def open_session(self, conversation: Conversation) -> None:
        """Ask the editor for a new session."""
        while True:
            with suppress(KilledError), self._at_work() as editor:
                conversation.session_id = editor.open(conversation.folder)
                conversation.messages = 0
                conversation.befores = {}
                return

    def send(self, conversation: Conversation, text: str, tag: str) -> None:
        """Send it with the editor."""
        with self._at_work() as editor:
            reply = editor.prompt(conversation.session_id, text)
            editor.updates.clear()
            editor.asked.clear()
            if reply.stop_reason != "end_turn" or f"answer {tag}." not in reply.text:
                raise StrayError(f"the editor got {reply.stop_reason}: {reply.text[-500:]}")

    def leave(self) -> None:
        """Close the editor."""
        if (editor := self._editor) is not None:
            self._close(editor, editor.close())

    def _close(self, editor: Editor, code: int) -> None:
        self._editor = None
        self._processes.remove(editor.process)
        self.ledger.scan(self.name, editor.errors)
        if code not in {0, -signal.SIGKILL}:
            self.ledger.report(f"{self.name}: the editor's agent ended with {code}")

    @contextmanager
    def _at_work(self) -> Generator[Editor]:
        try:
            if self._editor is None:
                self._editor = Editor(self.place.home)
                self._processes.append(self._editor.process)
                self._editor.__enter__()
                self.ledger.count("editors")
                for each in self.conversations:
                    if each.session_id and each.messages:
                        self._editor.load(each.session_id, each.folder)
            yield self._editor
        except (AssertionError, OSError, ValueError) as error:
            editor = self._editor
            assert editor is not None
            with suppress(subprocess.TimeoutExpired):
                editor.process.wait(2)
            code = editor.process.poll()
            editor.kill()
            self._close(editor, -signal.SIGKILL)
            if code == -signal.SIGKILL:
                raise KilledError from error
            raise StrayError(f"the editor's agent ({code}): {error!r} {editor.errors}") from error


class Program(Actor):
    """A program with two runtimes on the home, and now and then a third."""

    _process: subprocess.Popen[str] | None = None

    def _begin_conversations(self) -> list[Conversation]:
        return [Conversation(folder=self._folder(each)) for each in ("/left", "/right")]

    def send(self, conversation: Conversation, text: str, tag: str) -> None:
        """Have it start a run."""
        said = self._ask(conversation, do="run", text=text)
        times = self.ledger.first_start_ms if said["is_first"] else self.ledger.start_ms
        times.append(said["start_ms"])
        self.ledger.count("runs")
        if f"answer {tag}." not in said["text"]:
            raise StrayError(f"the program got {said}")

    def move(self, conversation: Conversation, which: Literal["undo", "redo"]) -> None:
        """Have it undo or redo."""
        self._ask(conversation, do=which)

    def look_around(self, conversation: Conversation) -> None:
        """Have it open and close a third runtime, or follow a run of another process."""
        with suppress(KilledError):
            self._ask(conversation, do=self.random.choice(("third", "replay", "costs")))
            self.ledger.count("looks")

    def leave(self) -> None:
        """Have it close its runtimes."""
        if (process := self._process) is not None:
            assert process.stdin is not None
            self._process = None
            with suppress(BrokenPipeError):
                process.stdin.close()
            try:
                code = process.wait(PATIENCE_S)
            finally:
                process.kill()
                self._processes.remove(process)
                assert process.stdout is not None
                process.stdout.close()
            if code not in {0, -signal.SIGKILL}:
                self.ledger.report(f"{self.name}: the program ended with {code}")

    def settle(self, conversation: Conversation) -> None:
        """See `Actor.settle`; what a dead program has left is its own until then."""
        if self._process is not None and self._process.poll() is not None:
            self.leave()
        super().settle(conversation)

    def _ask(self, conversation: Conversation, **facts: str) -> dict[str, Any]:
        if self._process is None:
            self._start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        asked = {"side": conversation.folder.name, "session": conversation.session_id, **facts}
        line = ""
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(asked) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        if not line.endswith("\n"):
            process.wait(PATIENCE_S)
            self.leave()
            raise KilledError if process.returncode == -signal.SIGKILL else StrayError("it ended")
        self.ledger.scan(self.name, line)
        said: dict[str, Any] = json.loads(line)
        if "error" in said:
            raise StrayError(f"the program: {said['error']}")
        return said

    def _start(self) -> None:
        folder = self.conversations[0].folder.parent
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, serving.__file__, str(self.place.home.path), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment_of(self.place.home.path),
        )
        self._processes.append(self._process)
        self.ledger.count("programs")


@dataclass(kw_only=True)
class Watch:
    """Looks at the processes and the database while everybody works."""

    place: Place
    ledger: Ledger
    actors: list[Actor]
    checked: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])

    def look(self) -> None:
        """Look once."""
        self._look_at_locks()
        fresh = {
            said: at for said, at in self.ledger.said.copy().items() if said not in self.checked
        }
        with self.place.rows() as rows:
            for (kind, tag), session_id in fresh.items():
                found = rows.execute(
                    "SELECT 1 FROM nodes WHERE session_id = ? AND content_json LIKE ?",
                    (session_id, f"%{kind} {tag}.%"),
                ).fetchone()
                if found is None:
                    self.ledger.report(f"lost: {kind} {tag} of {session_id}")
        self.checked |= fresh.keys()
        self.ledger.count("checks")

    def _look_at_locks(self) -> None:
        """Report a process that has a deleted log open, or the database without its lock."""
        suspects = self._suspects()
        for _ in range(4):  # a process that opens or closes it just now is not listed the next time
            if not suspects:
                return
            time.sleep(0.2)
            again = self._suspects()
            suspects = {pid: why for pid, why in suspects.items() if again.get(pid) == why}
        for pid, why in suspects.items():
            self.ledger.report(f"{why} (process {pid})")

    def _suspects(self) -> dict[int, str]:
        log = f"{self.place.database}-wal"
        found: dict[int, str] = {}
        holders = holders_of(self.place.database)
        for actor in self.actors:
            for pid in (process.pid for process in actor.living()):
                files = open_files(pid)
                if f"{log} (deleted)" in files:
                    found[pid] = f"{actor.name} has a deleted log open"
                elif log in files and holders is not None and pid not in holders:
                    found[pid] = f"{actor.name} has the database open without its lock"
        return found


def open_files(pid: int) -> set[str]:
    """The names of the files that a process has open."""
    found: set[str] = set()
    with suppress(OSError):
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found.add(str(each.readlink()))
    return found


def kill_at_random(actors: list[Actor], ledger: Ledger, seed: int, every_s: float) -> None:
    """Kill one process after the other."""
    chooser = random.Random(seed)  # noqa: S311 - faults, not secrets
    while not ledger.stop.wait(chooser.uniform(0.2, 2 * every_s)):
        actor = chooser.choice(actors)
        if processes := actor.living():
            chooser.choice(processes).kill()
            ledger.count("kills", f"kills of {actor.name}")


def final_check(place: Place, ledger: Ledger) -> Iterable[str]:
    """Yield the problems found when everybody has left."""
    with place.rows() as rows:
        if wrong := faults_of(rows):
            yield f"the database is not sound: {wrong[:5]}"
        stored = {
            (session_id, found[1], found[2])
            for session_id, text in rows.execute("SELECT session_id, content_json FROM nodes")
            for found in _SAID.finditer(text)
        }
        lost = {(at, *said) for said, at in ledger.said.items()} - stored
        yield from (f"lost: {kind} {tag} of {at}" for at, kind, tag in sorted(lost))
        events = {event_id for (event_id,) in rows.execute("SELECT event_id FROM events")}
        if gone := ledger.events.keys() - events:
            yield f"lost: {len(gone)} events, as {sorted(gone)[:5]}"
        unended = "SELECT run_id, status FROM runs WHERE status IN ('queued', 'pending', 'running')"
        for run_id, status in rows.execute(unended):
            yield f"the run {run_id} is still {status}"
        for run_id, error in rows.execute(
            "SELECT run_id, error_json FROM runs WHERE status = 'failed'"
        ):
            if "died" not in (error or "") and "owner_lost" not in (error or ""):
                yield f"the run {run_id} has failed: {error}"
    for left in (*place.folder.rglob(".soong-agent-*.tmp"), *place.home.path.glob("unfinished/*")):
        yield f"left behind: {left}"


def play(
    folder: Path,
    *,
    minutes: float,
    seed: int,
    kill_every_s: float = 3.0,
    names: Iterable[str] = ("chat1", "chat2", "editor1", "program1", "cron1", "cron2"),
) -> Ledger:
    """Let them all work for so long; what was found."""
    place, ledger = Place(folder=folder), Ledger()
    append = folder / "append"
    append.write_text('#!/bin/sh\necho "$1" >> journal.txt\n', encoding="utf-8")
    append.chmod(0o755)
    with ModelServer.in_thread(Replies(append, seed)) as server:
        server.requests = _Count()
        place.home.path.mkdir()
        config = CONFIG.format(base_url=server.base_url("openai"), append=append)
        place.home.write_config(config)
        kinds = {"chat": Chat, "editor": Desk, "program": Program, "cron": Actor}
        actors = [kinds[name.rstrip("0123456789")](name, place, ledger, seed) for name in names]
        # Two processes that make the database at once are not what is tried here.
        actors[-1].command("sessions", "list", cwd=folder)
        threads = [threading.Thread(target=actor.work, name=actor.name) for actor in actors]
        killer = threading.Thread(
            target=kill_at_random, args=(actors, ledger, seed, kill_every_s), name="killer"
        )
        watch = Watch(place=place, ledger=ledger, actors=actors)
        for thread in (*threads, killer):
            thread.start()
        _watch(watch, time.monotonic() + 60 * minutes)
        ledger.stop.set()
        for thread in (*threads, killer):
            thread.join()
        # The next start removes what killed processes have left.
        actors[-1].command("sessions", "list", cwd=folder)
    for problem in final_check(place, ledger):
        ledger.report(problem)
    return ledger


def _watch(watch: Watch, ends_at: float) -> None:
    ledger = watch.ledger
    begun = told = time.monotonic()
    while time.monotonic() < ends_at and not ledger.stop.wait(2):
        try:
            watch.look()
        except Exception:  # noqa: BLE001 - it belongs into the report
            ledger.report(f"the watch: {traceback.format_exc()[-3000:]}")
        if time.monotonic() - told > 60:
            told = time.monotonic()
            say(f"{(told - begun) / 60:5.1f} min  {figures(ledger)[0]}")


def figures(ledger: Ledger) -> list[str]:
    """Return the figures of a stress, a line for each."""
    with ledger.lock:
        counts = Counter(ledger.counts)
        starts = {"a run": sorted(ledger.start_ms), "a first run": sorted(ledger.first_start_ms)}
    names = ("messages", "kills", "undos", "redos", "exports", "looks", "checks")
    lines = [", ".join(f"{counts[name]} {name}" for name in names)]
    kills = {name: count for name, count in counts.items() if name.startswith("kills of ")}
    lines.append(", ".join(f"{count} {name}" for name, count in sorted(kills.items())))
    opened = ("runs", "chats", "editors", "programs")
    lines.append(", ".join(f"{counts[name]} {name}" for name in opened))
    lines.append(f"{len(ledger.events)} events were shown as stored")
    parts = {"median": 0.5, "99 %": 0.99, "longest": 1.0}
    for name, times in starts.items():
        if times:
            told = [
                f"{part} {times[int(share * (len(times) - 1))]:.1f} ms"
                for part, share in parts.items()
            ]
            lines.append(f"storing the start of {name}: {', '.join(told)}")
    lines.append(f"{len(ledger.problems)} problems")
    return lines


def main() -> int:
    """Read the command line, and play."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))  # noqa: S311
    parser.add_argument("--kill-every", type=float, default=3.0, help="seconds, on average")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="stress-")).resolve()
    say(f"{given.minutes} minutes, seed {given.seed}, in {folder}")
    ledger = play(folder, minutes=given.minutes, seed=given.seed, kill_every_s=given.kill_every)
    say("\n".join(figures(ledger)))
    if not ledger.problems:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if ledger.problems else 0


if __name__ == "__main__":
    sys.exit(main())
