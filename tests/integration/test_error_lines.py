"""What a person reads when a command fails: a short line with the place and the cure, said once."""

import re
import socket
import subprocess
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from isolation import Home
from model_server import ModelServer, Silence, Status
from sweeps import sampled

pytestmark = pytest.mark.timeout(300)

LONGEST = 160
RETRY = "[model.retry]\ninitial_backoff_ms = 1\nmax_backoff_ms = 2\n[memory]\nenabled = false\n"
OPENAI = '[model]\nprovider = "openai"\nname = "m"\n'
KEYED = f'{OPENAI}api_key_env = "OPENAI_API_KEY"\n{RETRY}'
CLOSED = f'{OPENAI}base_url = "http://127.0.0.1:9/v1"\n{RETRY}'
OLLAMA = f'[model]\nprovider = "ollama"\nname = "m"\nbase_url = "http://127.0.0.1:9"\n{RETRY}'
RUN = ("run", "hi")


@dataclass(frozen=True)
class Trouble:
    """A command that fails.

    Attributes:
        arguments: of the command.
        code: its exit code.
        cure: words of the line with the error, or of the hint below it.
        config: text of `config.toml`; none is written if it is None.
        env: more variables.
        files: files of the project.
        program: the module that is started.
        details: words that only a later line has.
    """

    arguments: Sequence[str]
    code: int
    cure: str
    config: str | None = OLLAMA
    env: dict[str, str] = field(default_factory=dict[str, str])
    files: dict[str, str] = field(default_factory=dict[str, str])
    program: str = "agent_core.cli"
    details: str = ""


def kgent(*arguments: str) -> tuple[str, ...]:
    return ("run", "--config", "k.yaml", "--prompt", "x", *arguments)


TROUBLES = {
    "a missing key": Trouble(RUN, 2, "export it", KEYED),
    "an empty key": Trouble(RUN, 2, "export it", KEYED, env={"OPENAI_API_KEY": ""}),
    "a missing key of a named model": Trouble(
        ("run", "--model", "openai:gpt-5", "hi"), 2, "export it", None
    ),
    "no Ollama": Trouble(
        RUN, 1, "ollama cannot be reached (model m); start Ollama", details="Connection refused"
    ),
    "no server": Trouble(
        RUN, 1, "check [model] base_url", CLOSED, details="http://127.0.0.1:9/v1/chat/completions: "
    ),
    "an unknown host": Trouble(
        RUN, 1, "check [model] base_url", CLOSED.replace("127.0.0.1", "no-such-host.invalid")
    ),
    "an unknown provider": Trouble(
        RUN, 2, "choose one", KEYED.replace("openai", "oponai"), details="anthropic, "
    ),
    "an unknown provider of an option": Trouble(
        ("run", "--model", "nobody:x", "hi"), 2, "choose one", details="anthropic, "
    ),
    "no model string": Trouble(("run", "--model", "gpt-5", "hi"), 2, "write provider:name"),
    "no configuration": Trouble(RUN, 2, "--model openai:gpt-5-mini", None),
    "one problem": Trouble(RUN, 2, "did you mean model.name?", f'{OPENAI}nam = "x"\n'),
    "several problems": Trouble(
        RUN,
        2,
        "line 4: model.nam is not a known key",
        f'{OPENAI}nam = "x"\ntemperature = "hot"\n[tools]\ndisabled = "x"\n[loop]\n',
        details="line 7: tools.disabled must be an array",
    ),
    "no TOML": Trouble(("config", "show"), 2, "line 4, column 5", f"{OPENAI}x = \n"),
    "a refused setting": Trouble(
        ("config", "set", "model.temperature", "hot"), 2, "a valid number"
    ),
    "an unknown setting": Trouble(
        ("config", "set", "model.nam", "x"), 2, "did you mean model.name"
    ),
    "problems seen by mcp": Trouble(("mcp",), 2, "did you mean", f'{OPENAI}nam = "x"\n'),
    "problems seen by permissions": Trouble(
        ("permissions",), 2, "did you mean", f'{OPENAI}nam = "x"\n'
    ),
    "problems seen by sessions": Trouble(("sessions",), 2, "did you mean", f'{OPENAI}nam = "x"\n'),
    "an unknown server": Trouble(("mcp", "test", "files"), 1, "it has none"),
    "a server without a command": Trouble(("mcp", "add", "files"), 2, "for example: "),
    "no rule": Trouble(("permissions", "add", "perhaps"), 2, "choose from allow, ask, deny"),
    "an unknown session to show": Trouble(("sessions", "show", "s9"), 2, "`sessions list`"),
    "an unknown session to delete": Trouble(
        ("sessions", "delete", "s9", "--yes"), 2, "`sessions list`"
    ),
    "an unknown session to undo": Trouble(("undo", "s9"), 2, "`sessions list`"),
    "no session to continue": Trouble(("run", "--continue", "hi"), 2, "run it without --continue"),
    "a file without text": Trouble(("run", "--image", "no.png", "hi"), 2, "does not exist"),
    "unreadable answers": Trouble(("run", "--answers", "no", "hi"), 2, "cannot be read"),
    "no folder": Trouble(("run", "--path", "/no/such", "hi"), 2, "name an existing folder"),
    "a wrong command": Trouble(("rum", "hi"), 2, "did you mean run?"),
    "a wrong action": Trouble(("sessions", "shwo"), 2, "did you mean show?"),
    "a wrong option": Trouble(("run", "--pth", "x", "hi"), 2, "did you mean --path?"),
    "no message": Trouble(("run",), 2, "a message that begins with a dash"),
    "no command": Trouble((), 2, "for example: soong-agent run"),
    "no terminal": Trouble(("chat",), 2, "soong-agent run"),
    "no workers": Trouble(("run", "--detach", "hi"), 2, "leave out --detach"),
    "no queue": Trouble(("worker",), 2, "set [store] url_env"),
    "a missing extra": Trouble(
        ("acp",),
        2,
        "to install it:",
        env={"PYTHONPATH": "."},
        files={"acp/__init__.py": 'raise ModuleNotFoundError("no module", name="acp")'},
    ),
    "a wrong command of kgent": Trouble(("rum",), 2, "did you mean run?", program="kgent"),
    "no profile": Trouble(kgent(), 2, "No such file or directory", program="kgent"),
    "an empty profile": Trouble(kgent(), 2, "is empty", program="kgent", files={"k.yaml": ""}),
    "a wrong profile": Trouble(
        kgent(), 2, "is missing", program="kgent", files={"k.yaml": "a: 1\nb: 2\n"}, details="b is"
    ),
    "no run folder": Trouble(("show", "none"), 2, "name the folder of a run", program="kgent"),
}


def fail(home: Home, project: Path, trouble: Trouble) -> list[str]:
    """Carry out the command, and return the lines that it wrote on standard error."""
    if trouble.config is not None:
        home.write_config(trouble.config)
    for name, text in trouble.files.items():
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(text, encoding="utf-8")
    done = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-m", trouble.program, *trouble.arguments],
        input="",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=project,
        env=home.env(**trouble.env),
    )
    assert done.returncode == trouble.code, done.stderr
    return done.stderr.replace(str(home.path), "HOME").replace(str(project), "DIR").splitlines()


def check(lines: Sequence[str], trouble: Trouble) -> None:
    """Fail unless the error is short, names its cure, and no sentence comes twice."""
    heads = ("error: ", "kgent: ", "reason   ")
    at = next(number for number, line in enumerate(lines) if line.startswith(heads))
    first, *rest = lines[at:]
    assert len(first) <= LONGEST, first
    assert not re.match(rf"({'|'.join(heads)})[a-z]+(_[a-z]+)+: ", first), first
    assert trouble.cure in "\n".join([first, *rest[:1]])
    if trouble.details:
        assert trouble.details not in first
        assert trouble.details in "\n".join(lines)
    said = [
        part.strip()
        for line in lines
        for part in re.split(
            r"; |(?<=failed): |^error: ", re.sub(r" \([a-z]+_[a-z_]+\)$", "", line)
        )
        if len(part.split()) > 2 and not part.startswith(("the next one in", "attempt"))
    ]
    assert len(said) == len(set(said)), lines
    assert "Traceback" not in "\n".join(lines)


@pytest.mark.long
@pytest.mark.parametrize("name", sampled(TROUBLES, keep=8))
def test_an_error_is_short_and_names_its_cure_once(home: Home, project: Path, name: str) -> None:
    trouble = TROUBLES[name]
    check(fail(home, project, trouble), trouble)


REFUSALS: dict[str, tuple[int, str, str]] = {
    "a wrong request": (400, "correct what the service names below", "no such field"),
    "a wrong key": (401, "[model] api_key_env", "Incorrect API key provided"),
    "no credit": (402, "add credit", "Payment required"),
    "no permission": (403, "[model] api_key_env", "not for this project"),
    "an unknown model": (
        404,
        "check [model] base_url and [model] name",
        "The model does not exist",
    ),
    "too many requests": (429, "try again later", "slow down, please"),
    "a used up quota": (429, "add credit", "You exceeded your current quota: insufficient_quota"),
    "a broken server": (500, "try again later", "something went wrong here"),
    "a busy server": (503, "try again later", "come back another time"),
}


@pytest.mark.parametrize("name", sampled(REFUSALS, keep=2))
def test_a_refusal_of_the_service_is_short_and_its_words_come_below(
    home: Home, project: Path, name: str
) -> None:
    status, cure, words = REFUSALS[name]
    reply = Status(status, f'{{"error": {{"message": "{words}"}}}}'.encode())
    with ModelServer.in_thread(lambda _: reply) as server:
        config = f'{OPENAI}base_url = "{server.base_url("openai")}"\n{RETRY}'
        lines = fail(home, project, trouble := Trouble(RUN, 1, cure, config, details=words))
    check(lines, trouble)
    assert sum(words in line for line in lines) == 1


@pytest.mark.long
@pytest.mark.parametrize(("seconds", "when"), [("61", "in 2 minutes"), ("9000", "in 3 hours")])
def test_a_long_wait_that_the_service_asks_for_is_named(
    home: Home, project: Path, seconds: str, when: str
) -> None:
    reply = Status(429, headers={"Retry-After": seconds})
    with ModelServer.in_thread(lambda _: reply) as server:
        config = f'{OPENAI}base_url = "{server.base_url("openai")}"\n'
        trouble = Trouble(RUN, 1, f"try again {when}, as it asks", config, details="(error)")
        lines = fail(home, project, trouble)
        assert len(server.requests) == 1
    check(lines, trouble)


def test_a_key_that_was_sent_is_the_one_to_check(home: Home, project: Path) -> None:
    with ModelServer.in_thread(lambda _: Status(401)) as server:
        config = KEYED.replace("[model.", f'base_url = "{server.base_url("openai")}"\n[model.', 1)
        env = {"OPENAI_API_KEY": "value-of-the-key"}
        trouble = Trouble(RUN, 1, "check the key that [model] api_key_env names", config, env)
        lines = fail(home, project, trouble)
    check(lines, trouble)
    assert "value-of-the-key" not in "\n".join(lines)


@contextmanager
def answering(words: bytes) -> Generator[str]:
    """Listen on an address where everything is answered with these bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            while True:
                try:
                    client, _ = listening.accept()
                except OSError:
                    return
                with client:
                    client.recv(4096)
                    client.sendall(words)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()


STRANGERS = {
    "a server without TLS": ("https", b"HTTP/1.1 400 Bad Request\r\n\r\n", "http://"),
    "something that is not HTTP": ("http", b"SSH-2.0-nothing\r\n\r\n", "check [model] base_url"),
    "a redirect": (
        "http",
        b"HTTP/1.1 301 Moved\r\nLocation: /v2\r\nContent-Length: 0\r\n\r\n",
        "to the final one",
    ),
    "the end of a stream": (
        "http",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {",
        "try again later",
    ),
    "an empty answer": ("http", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "try again later"),
    "damaged chunks": (
        "http",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "see the log of the server",
    ),
    "the end of TLS": ("https", b"", "check host, port and https"),
    "a web page": (
        "http",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>",
        "check [model] base_url",
    ),
}


@pytest.mark.parametrize("name", sampled(STRANGERS, keep=1))
def test_a_server_of_another_kind_is_named_with_the_setting(
    home: Home, project: Path, name: str
) -> None:
    scheme, words, cure = STRANGERS[name]
    with answering(words) as address:
        config = f'{OPENAI}base_url = "{scheme}://{address}/v1"\n{RETRY}'
        trouble = Trouble(RUN, 1, cure, config, details=f"{scheme}://{address}/v1/")
        check(fail(home, project, trouble), trouble)


def test_a_session_of_another_folder_and_one_at_work_name_the_way_out(
    home: Home, project: Path, tmp_path: Path
) -> None:
    named = ("run", "--session-id", "mine", "hi")
    with ModelServer.in_thread(["one", Silence()]) as server:
        config = f'{OPENAI}base_url = "{server.base_url("openai")}"\n{RETRY}'
        fail(home, project, Trouble(named, 0, "", config))
        elsewhere = Trouble(named, 1, "--move-session", config)
        check(fail(home, tmp_path, elsewhere), elsewhere)
        command = [sys.executable, "-m", "agent_core.cli", *named]
        with subprocess.Popen(  # noqa: S603 - our own command
            command, cwd=project, env=home.env(), stderr=subprocess.PIPE, text=True
        ) as busy:
            assert busy.stderr is not None
            assert "session mine" in busy.stderr.readline()
            active = Trouble(("sessions", "delete", "mine", "--yes"), 1, "wait", config)
            lines = fail(home, project, active)
            busy.kill()
    check(lines, active)
