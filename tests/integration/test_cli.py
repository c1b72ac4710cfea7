"""The real command against a model service on a socket."""

import subprocess
import sys
from pathlib import Path

from agent_core.providers.scripted import calls
from isolation import Home
from model_server import ModelServer


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


def configured(home: Home, server: ModelServer) -> Home:
    home.write_config(
        f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
        "[memory]\nenabled = false\n"
    )
    return home


def test_o2_a_folder_is_the_project_and_the_answer_is_the_output(home: Home, project: Path) -> None:
    with ModelServer.in_thread(["hello from the model"]) as server:
        done = soong_agent(configured(home, server), "run", "--path", str(project), "hi")
    assert (done.returncode, done.stdout.strip()) == (0, "hello from the model")
    assert str(project) in server.requests[0].text


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


def test_a_session_is_resumed_by_its_id_in_another_process(home: Home, project: Path) -> None:
    with ModelServer.in_thread(["one", "two"]) as server:
        configured(home, server)
        for text in ("first words", "second words"):
            arguments = ("run", "--path", str(project), "--session-id", "mine", text)
            assert soong_agent(home, *arguments).returncode == 0
    said = [message["content"] for message in server.requests[1].body["messages"]]
    assert said[-3:] == ["first words", "one", "second words"]


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
        moved = soong_agent(home, "run", *here, "--move-session", "second words")
    assert (moved.returncode, moved.stdout.strip()) == (0, "two")
    assert len(server.requests) == 2
    assert str(tmp_path) in soong_agent(home, "sessions", "list").stdout
    assert "--move-session" in soong_agent(home, "--help").stdout


def test_a_piped_answer_allows_one_write(home: Home, project: Path) -> None:
    script = [calls("code.write_file", path="a.txt", content="x"), "written"]
    with ModelServer.in_thread(script) as server:
        arguments = ("run", "--path", str(project), "write it")
        done = soong_agent(configured(home, server), *arguments, answers="1\n")
    assert done.returncode == 0
    assert (project / "a.txt").read_text(encoding="utf-8") == "x"
    assert str(project / "a.txt") in done.stderr
    assert "+x" in done.stderr
