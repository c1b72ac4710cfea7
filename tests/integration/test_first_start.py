"""The first start: what is found without a configuration, and that its lines are enough."""

import json
import re
import shlex
import subprocess
import sys
import threading
import tomllib
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import warm
from captures import Key, record
from editors import Editor
from isolation import Home
from sweeps import kept, sampled

QUESTION = re.compile(r"Write (it|one) now\? .*N\] ")


@contextmanager
def ollama(body: Any) -> Generator[str]:
    """A server that lists these models as Ollama does; yields where it is."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = json.dumps(body).encode() if self.path == "/api/tags" else b"{}"
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def unconfigured(home: Home, **env: str) -> dict[str, str]:
    (home.path / "config.toml").unlink(missing_ok=True)
    nothing = {"OLLAMA_HOST": "127.0.0.1:9", "HOME": str(home.path), "COLUMNS": "200"}
    return home.env(**{**nothing, **env})


def screen(home: Home, project: Path, *argv: str, **env: str) -> str:
    scene = record(
        [sys.executable, "-m", "agent_core.cli", *argv],
        env=unconfigured(home, **env),
        cwd=project,
        columns=200,
        keys=[Key(QUESTION, "\r")],
    )
    assert scene.code == 2
    assert not (home.path / "config.toml").exists()
    assert "nothing was written" in scene.text
    return scene.text


def sections(text: str) -> list[dict[str, Any]]:
    """The sections of TOML that are shown, each by itself."""
    parts = text.split("  [model]\n")[1:]
    rows = [[row for row in part.splitlines() if " = " in row] for part in parts]
    return [tomllib.loads("\n".join(each)) for each in rows]


@pytest.mark.parametrize(
    "argv",
    kept([("chat",), (), ("run", "hello")], ("chat",)),
    ids=kept(["chat", "alone", "run"], "chat"),
)
def test_what_is_there_is_named_with_the_lines_to_write(
    home: Home, project: Path, argv: tuple[str, ...]
) -> None:
    (project / "tiny.gguf").write_bytes(b"GGUF\3\0\0\0")
    (project / "other.gguf").write_bytes(b"no model")
    models = {"models": [{"name": "nomic-embed-text"}, {"name": "qwen3:8b"}]}
    with ollama(models) as host:
        shown = screen(home, project, *argv, OLLAMA_HOST=host, ANTHROPIC_API_KEY="sk-secret-value")
    assert f"Ollama at http://{host} has qwen3:8b" in shown
    assert "$ANTHROPIC_API_KEY is set" in shown
    assert "sk-secret-value" not in shown
    assert sections(shown) == [
        {"provider": "ollama", "name": "qwen3:8b", "base_url": f"http://{host}"},
        {"provider": "anthropic", "name": "claude-sonnet-4-5"},
        {"provider": "local", "name": "tiny", "path": str(project / "tiny.gguf")},
    ]
    assert f"--model ollama:qwen3:8b@http://{host}" in shown


def test_nothing_that_is_there_is_said_too(home: Home, project: Path) -> None:
    shown = screen(home, project, "chat")
    assert "no Ollama" in shown
    assert "no GGUF file" in shown
    assert "own server, write openai:my-model@http://" in shown
    assert sections(shown) == [{"provider": "openai", "name": "gpt-5-mini"}]


@pytest.mark.parametrize(
    "body", sampled([[], {"models": "none"}, {"models": [3, {"name": 4}]}, None], keep=2)
)
def test_a_server_that_is_no_ollama_is_passed_over(home: Home, project: Path, body: Any) -> None:
    with ollama(body) as host:
        assert "no Ollama" in screen(home, project, "chat", OLLAMA_HOST=host)


@pytest.mark.parametrize(
    ("typed", "model"),
    [
        ("y", "qwen3:8b"),
        ("2", "claude-sonnet-4-5"),
        *(pytest.param(each, "qwen3:8b", marks=pytest.mark.sweep) for each in ("YES", "1")),
    ],
)
def test_the_settings_are_written_after_a_yes_and_the_chat_begins(
    home: Home, project: Path, typed: str, model: str
) -> None:
    with ollama({"models": [{"name": "qwen3:8b"}]}) as host:
        env = unconfigured(home, OLLAMA_HOST=host, ANTHROPIC_API_KEY="sk-secret-value")
        scene = record(
            [sys.executable, "-m", "agent_core.cli", "chat"],
            env=env,
            cwd=project,
            columns=200,
            keys=[Key(QUESTION, f"{typed}\r"), Key("sandbox ", "\x04")],
        )
    assert scene.code == 0
    config = home.path / "config.toml"
    assert f"wrote {config}" in scene.text
    written = tomllib.loads(config.read_text("utf-8"))
    assert written == {
        "model": next(each for each in sections(scene.text) if each["name"] == model)
    }
    assert config.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "typed", sampled(["n\r", "4\r", "0\r", "y 2\r", "\x04", "2\x7f\r"], keep=2)
)
def test_nothing_is_written_without_a_yes(home: Home, project: Path, typed: str) -> None:
    with ollama({"models": [{"name": "qwen3:8b"}]}) as host:
        scene = record(
            [sys.executable, "-m", "agent_core.cli", "run", "hello"],
            env=unconfigured(home, OLLAMA_HOST=host, ANTHROPIC_API_KEY="sk-secret-value"),
            cwd=project,
            keys=[Key(QUESTION, typed)],
        )
    assert scene.code == 2
    assert [*home.path.iterdir()] == []


def test_ctrl_c_at_the_offer_leaves(home: Home, project: Path) -> None:
    scene = record(
        [sys.executable, "-m", "agent_core.cli"],
        env=unconfigured(home),
        cwd=project,
        keys=[Key(QUESTION, "\x03")],
    )
    assert scene.code == 130
    assert scene.raw.endswith(b"\r\n"), "the shell's prompt begins on a line of its own"
    assert [*home.path.iterdir()] == []


def test_keys_typed_before_the_offer_are_no_answer(home: Home, project: Path) -> None:
    scene = record(
        [sys.executable, "-m", "agent_core.cli", "chat"],
        env=unconfigured(home),
        cwd=project,
        keys=[Key("", "y\ry\r"), Key(QUESTION, "\r")],
    )
    assert "nothing was written" in scene.text
    assert [*home.path.iterdir()] == []


@pytest.mark.parametrize("place", ["echo y | {}", "{} > /dev/null"])
def test_nothing_is_offered_where_a_stream_is_no_terminal(
    home: Home, project: Path, place: str
) -> None:
    words = shlex.join([sys.executable, *warm.arguments("-m", "agent_core.cli", "run", "hello")])
    scene = record(
        ["sh", "-c", place.format(words)], env=unconfigured(home), cwd=project, columns=200
    )
    assert scene.code == 2
    assert "[model]" in scene.text
    assert "Write it now" not in scene.text
    assert [*home.path.iterdir()] == []


def test_a_configuration_that_appears_during_the_offer_is_kept(home: Home, project: Path) -> None:
    mine = '[model]\nprovider = "ollama"\nname = "mine"\n'
    scene = record(
        [sys.executable, "-m", "agent_core.cli", "chat"],
        env=unconfigured(home),
        cwd=project,
        columns=200,
        keys=[Key(QUESTION, lambda: home.write_config(mine)), Key(QUESTION, "y\r")],
    )
    assert scene.code == 2
    assert "exists already" in scene.text
    assert (home.path / "config.toml").read_text("utf-8") == mine


def test_a_password_in_an_address_is_not_shown(home: Home, project: Path) -> None:
    with ollama({"models": [{"name": "qwen3"}]}) as host:
        shown = screen(home, project, "chat", OLLAMA_HOST=f"http://me:hunter22@{host}")
    assert host in shown
    assert "hunter22" not in shown


@pytest.mark.sweep
def test_the_doctor_names_the_same(home: Home, project: Path) -> None:
    with ollama({"models": [{"name": "qwen3"}]}) as host:
        done = subprocess.run(
            [sys.executable, "-m", "agent_core.cli", "doctor"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=unconfigured(home, OLLAMA_HOST=host),
            cwd=project,
        )
    assert done.returncode == 1
    assert f"found: Ollama at http://{host} has qwen3" in done.stdout


def test_a_pipe_gets_the_plain_error(home: Home, project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agent_core.cli", "run", "hello"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=unconfigured(home),
        cwd=project,
    )
    assert done.returncode == 2
    assert "config.toml" in done.stderr
    assert "Found" not in done.stderr


@pytest.mark.sweep
def test_a_model_that_is_named_needs_no_configuration(home: Home, project: Path) -> None:
    scene = record(
        [sys.executable, "-m", "agent_core.cli", "chat", "--model", "ollama:qwen3"],
        env=unconfigured(home),
        cwd=project,
        keys=[Key("sandbox ", "\x04")],
    )
    assert "soong-agent, ollama:qwen3" in scene.text
    assert scene.code == 0
    with Editor(home, "--model", "ollama:qwen3") as editor:
        assert editor.request("session/list") == {"sessions": []}
