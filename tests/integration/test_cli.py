"""The real command against a model service on a socket."""

import base64
import random
import re
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from agent_core.providers.scripted import calls
from isolation import Home
from model_server import ModelServer
from sweeps import kept


def soong_agent(home: Home, *arguments: str, answers: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agent_core.cli", *arguments]
    return subprocess.run(  # noqa: S603 - our own command
        command,
        input=answers,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=home.env(),
    )


def configured(home: Home, server: ModelServer, more: str = "") -> Home:
    home.write_config(
        f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
        f"{more}\n[memory]\nenabled = false\n"
    )
    return home


@pytest.mark.long
def test_o2_a_folder_is_the_project_and_the_answer_is_the_output(home: Home, project: Path) -> None:
    with ModelServer.in_thread(["hello from the model"]) as server:
        done = soong_agent(configured(home, server), "run", "--path", str(project), "hi")
    assert (done.returncode, done.stdout.strip()) == (0, "hello from the model")
    assert str(project) in server.requests[0].text


@pytest.mark.long
def test_the_beginning_of_an_id_continues_its_session_and_makes_no_other(
    home: Home, project: Path, tmp_path: Path
) -> None:
    at = ("run", "--path", str(project))
    with ModelServer.in_thread(["one", "two", "three"]) as server:
        first = soong_agent(configured(home, server), *at, "hi")
        (session_id,) = set(re.findall(r"sess_\w+", first.stderr))
        again = soong_agent(home, *at, "--session-id", session_id[:13], "and then?")
        assert (again.returncode, again.stdout.strip()) == (0, "two")
        assert f"session {session_id}" in again.stderr.splitlines()
        said = [message["content"] for message in server.requests[1].body["messages"]]
        assert said[-3:] == ["hi", "one", "and then?"]
        elsewhere = soong_agent(
            home, "run", "--path", str(tmp_path), "--session-id", session_id[:13], "here?"
        )
        assert elsewhere.returncode != 0
        assert len(server.requests) == 2
        new = soong_agent(home, *at, "--session-id", "sess_mine", "a new one")
    assert (new.returncode, new.stdout.strip()) == (0, "three")
    assert "new session sess_mine" in new.stderr.splitlines()


def test_an_id_that_is_nearly_that_of_a_session_names_it(home: Home, project: Path) -> None:
    at = ("--path", str(project))
    with ModelServer.in_thread(["one", "two"]) as server:
        first = soong_agent(configured(home, server), "run", *at, "hi\nthere")
        (session_id,) = set(re.findall(r"sess_\w+", first.stderr))
        last = "0" if session_id[-1] != "0" else "1"
        mistyped = session_id[:-1] + last
        for words in (("undo", "--session-id"), ("redo",), ("sessions", "show")):
            undone = soong_agent(home, *words, mistyped, *at[: 2 * (words[0] != "sessions")])
            assert undone.returncode != 0
            assert re.search(rf"did you mean {session_id[:8]}", undone.stderr), undone.stderr
        undone = soong_agent(home, "undo", *at, "--session-id", session_id)
        assert "taken back: hi there" in undone.stderr
        again = soong_agent(home, "run", *at, "--session-id", mistyped, "and then?")
        assert re.search(rf"new session {mistyped} \(did you mean {session_id[:8]}", again.stderr)


def test_no_error_names_arguments_of_functions(home: Home, project: Path, tmp_path: Path) -> None:
    at, elsewhere = ("--path", str(project)), ("--path", str(tmp_path))
    named = ("--session-id", "mine")
    nothing = soong_agent(home, "run", *at, "hi")
    with ModelServer.in_thread(["one"]) as server:
        assert soong_agent(configured(home, server), "run", *at, *named, "hi").returncode == 0
        refused = [
            nothing,
            soong_agent(home, "run", *elsewhere, *named, "hi"),
            soong_agent(home, "run", *at, "--model", "opnai:x", "hi"),
            soong_agent(home, "run", *at, "--tenant", "acme", "hi"),
            soong_agent(home, "doctor", *at, "--model", "opnai:x"),
        ]
    for done in refused:
        assert done.returncode != 0
        said = done.stdout + done.stderr
        assert not re.search(r"in code|=True|\w=\.\.\.|register_|database_url", said), said
    assert "did you mean openai?" in refused[2].stderr


def test_an_option_for_an_id_that_is_an_argument_gets_the_form_shown(home: Home) -> None:
    wrong = soong_agent(home, "sessions", "show", "--session-id", "abc")
    assert wrong.returncode == 2
    assert wrong.stderr.splitlines()[1:] == [
        "write the id without an option: soong-agent sessions show <id>"
    ]


@pytest.mark.sweep
def test_the_command_line_names_a_model_before_the_environment_and_the_file(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = ("run", "--path", str(project))
    with ModelServer.in_thread(["no file", "a file", "the variable", "the file"]) as server:
        named = f"openai:mine@{server.base_url('openai')}"
        alone = soong_agent(home, *at, "--model", named, "one")
        configured(home, server, 'temperature = 0.5\n[tools]\ndisabled = ["code.run_command"]')
        monkeypatch.setenv("SOONG_AGENT_MODEL", "openai:theirs")
        by_option = soong_agent(home, *at, "--model", "openai:mine", "two")
        by_variable = soong_agent(home, *at, "three")
        monkeypatch.delenv("SOONG_AGENT_MODEL")
        by_file = soong_agent(home, *at, "four")
        wrong = soong_agent(home, *at, "--model", "gpt-5", "five")
    assert [each.stdout.strip() for each in (alone, by_option, by_variable, by_file)] == [
        "no file",
        "a file",
        "the variable",
        "the file",
    ], alone.stderr
    bodies = [request.body for request in server.requests]
    assert [body["model"] for body in bodies] == ["mine", "mine", "theirs", "m"]
    assert [body.get("temperature") for body in bodies] == [None, 0.5, 0.5, 0.5]
    tools = [str(body["tools"]) for body in bodies]
    assert ["run_command" in each for each in tools] == [True, False, False, False]
    assert wrong.returncode == 2
    assert "provider:name, such as openai:gpt-5" in wrong.stderr


def test_a_run_says_at_which_server_a_named_model_is_if_the_name_does_not(
    home: Home, project: Path
) -> None:
    at = ("run", "--path", str(project))
    with ModelServer.in_thread(["one", "two", "three"]) as server:
        url = server.base_url("openai")
        by_file = soong_agent(configured(home, server), *at, "hi")
        placed = soong_agent(home, *at, "--model", f"openai:gpt-5@{url}", "hi")
        named = soong_agent(home, *at, "--model", "openai:gpt-5", "hi")
    assert url not in by_file.stderr + placed.stderr
    assert f"model openai:gpt-5 at {url}, as [model] base_url says" in named.stderr.splitlines()


@pytest.mark.sweep
def test_o3_a_file_means_its_folder_and_is_not_read(home: Home, project: Path) -> None:
    source = project / "src"
    source.mkdir()
    (source / "a.py").write_text("UNREAD = 1", encoding="utf-8")
    script = [calls("code.list_dir", path="."), "it has a.py"]
    with ModelServer.in_thread(script) as server:
        arguments = ("run", "--path", str(source / "a.py"), "hi")
        done = soong_agent(configured(home, server), *arguments)
    assert (done.returncode, done.stdout.strip()) == (0, "it has a.py")
    assert "UNREAD" not in server.requests[0].text
    listed = server.requests[1].body["messages"][-1]["content"]
    assert "a.py" in listed
    assert "src" not in listed


@pytest.mark.sweep
def test_a_session_moves_to_another_folder_only_if_told_to(
    home: Home, project: Path, tmp_path: Path
) -> None:
    there = ("--path", str(project), "--session-id", "mine")
    here = ("--path", str(tmp_path), "--session-id", "mine")
    with ModelServer.in_thread(["one", "two"]) as server:
        configured(home, server)
        assert soong_agent(home, "run", *there, "first words").returncode == 0
        for refused in (
            soong_agent(home, "run", *here, "second words"),
            soong_agent(home, "sessions", "compact", "mine", "--path", str(tmp_path)),
        ):
            assert refused.returncode == 1
            assert str(project) in refused.stderr
            assert "--move-session" in refused.stderr
            assert "in code" not in refused.stderr
        moved = soong_agent(home, "run", *here, "--move-session", "second words")
    assert (moved.returncode, moved.stdout.strip()) == (0, "two")
    assert len(server.requests) == 2
    assert str(tmp_path) in soong_agent(home, "sessions", "list").stdout
    assert "--move-session" in soong_agent(home, "--help").stdout


def png(side: int) -> bytes:
    raw = BytesIO()
    noise = random.Random(7).randbytes(side * side)  # noqa: S311 - a drawing
    Image.frombytes("L", (side, side), noise).save(raw, "PNG")
    return raw.getvalue()


def test_pictures_named_on_the_command_line_are_shown(home: Home, project: Path) -> None:
    small, document = project / "small.png", project / "paper.pdf"
    small.write_bytes(png(8))
    document.write_bytes(b"%PDF-1.7\n%%EOF\n")
    (project / "large.dat").write_bytes(png(300))
    named = ("--image", str(small), "--image", str(document), "--image", f"{project}/large.dat")
    with ModelServer.in_thread(["a cat"]) as server:
        configured(home, server, "max_image_bytes = 9000")
        done = soong_agent(home, "run", "--path", str(project), *named, "what is it?")
    assert (done.returncode, done.stdout.strip()) == (0, "a cat"), done.stderr
    text, first, second, third = server.requests[0].body["messages"][-1]["content"]
    assert text["text"] == "what is it?"
    assert base64.b64encode(png(8)).decode()[:20] in first["image_url"]["url"]
    assert second["file"]["file_data"].startswith("data:application/pdf;base64,")
    assert third["image_url"]["url"].startswith("data:image/jpeg;base64,")
    assert len(third["image_url"]["url"]) < 12_100


BOMB = png(8)[:16] + b"\0\xff\xff\xff\0\xff\xff\xff" + png(8)[24:]


@pytest.mark.parametrize(
    "content",
    kept([b"<svg/>", png(20)[:60], b"just words", BOMB, None], png(20)[:60], None),
    ids=kept(["svg", "half", "words", "bomb", "missing"], "half", "missing"),
)
def test_a_picture_that_cannot_be_sent_ends_before_anything_is_asked(
    home: Home, project: Path, content: bytes | None
) -> None:
    place = project / "drawing.png"
    if content is not None:
        place.write_bytes(content)
    with ModelServer.in_thread([]) as server:
        configured(home, server)
        done = soong_agent(home, "run", "--image", str(place), "what is it?")
    assert done.returncode == 2
    reason = "No such file or directory" if content is None else ""
    assert f"cannot be sent: {reason}" in done.stderr
    assert "Traceback" not in done.stderr
    assert server.requests == []


def test_a_piped_answer_allows_one_write(home: Home, project: Path) -> None:
    script = [calls("code.write_file", path="a.txt", content="x"), "written"]
    with ModelServer.in_thread(script) as server:
        arguments = ("run", "--path", str(project), "write it")
        done = soong_agent(configured(home, server), *arguments, answers="1\n")
    assert done.returncode == 0
    assert (project / "a.txt").read_text(encoding="utf-8") == "x"
    assert str(project / "a.txt") in done.stderr
    assert "+x" in done.stderr
