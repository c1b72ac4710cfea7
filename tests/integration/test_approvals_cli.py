"""Approvals from the command line: processes that end, and others that answer."""

import asyncio
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agent_core import AgentRuntime, Config
from agent_core.providers.scripted import calls
from agent_core.testing import ScriptedProvider
from agent_core.types import ApprovalRecord
from isolation import Home
from model_server import ModelServer

pytestmark = pytest.mark.timeout(600)

ANSWERS = "ANSWER (allow, session, edits or deny; --always, --reason TEXT)"
ANSWER = f"soong-agent approvals answer {{}} {ANSWERS}"


def soong_agent(home: Home, *arguments: str, answers: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-m", "agent_core.cli", *arguments],
        input=answers,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        env=home.env(),
    )


def configured(home: Home, server: ModelServer, unattended: str = "park") -> None:
    home.write_config(
        f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
        f'[permissions]\nunattended = "{unattended}"\n[memory]\nenabled = false\n'
    )


def write(path: str = "a.txt") -> Any:
    return calls("code.write_file", path=path, content="new\n")


def listed(home: Home, project: Path, *more: str) -> list[dict[str, Any]]:
    done = soong_agent(home, "approvals", "list", "--json", *more, "--path", str(project))
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_run_without_anybody_to_ask_waits_and_goes_on_where_it_is_answered(
    home: Home, project: Path, tmp_path: Path
) -> None:
    with ModelServer.in_thread([write(), "all done"]) as server:
        configured(home, server)
        run = soong_agent(home, "run", "--path", str(project), "--session-id", "s1", "go")
        assert (run.returncode, run.stdout) == (0, ""), run.stderr
        (question,) = listed(home, tmp_path)
        request_id = question["request_id"]
        last = run.stderr.splitlines()[-1]
        assert last == f"waiting for an answer to {request_id}: {ANSWER.format(request_id)}"
        assert not (project / "a.txt").exists()

        shown = soong_agent(home, "approvals", "list", "--path", str(tmp_path)).stdout
        assert request_id in shown
        assert "+new" in shown
        assert str(project / "a.txt") in shown
        assert f"would cover: {question['request']['target_scope']}" in shown
        seen = soong_agent(home, "sessions", "show", "s1", "--path", str(tmp_path)).stdout
        assert f"asks for code.write_file: {ANSWER.format(request_id)}" in seen
        unfit = soong_agent(
            home, "approvals", "answer", request_id, "reads", "--path", str(project)
        )
        assert unfit.returncode == 2
        assert (
            f"reads is not an answer to {request_id}, which takes allow, session, edits or deny"
            in (unfit.stderr)
        )
        # From another folder: the run goes on in its own.
        done = soong_agent(
            home, "approvals", "answer", request_id[:20], "allow", "--path", str(tmp_path)
        )
        assert (done.returncode, done.stdout.strip()) == (0, "all done"), done.stderr
        assert (project / "a.txt").read_text() == "new\n"
        assert listed(home, tmp_path) == []
        (closed,) = listed(home, tmp_path, "--all")
        assert (closed["state"], closed["decided_by"]) == ("answered", "cli")
        late = soong_agent(home, "approvals", "answer", request_id, "deny", "--path", str(project))
        assert late.returncode == 2
        assert re.search(r"already answered: allowed once by .* \(the command line\)", late.stderr)
        pasted = subprocess.run(  # noqa: S603 - as somebody may paste it
            ["/bin/sh", "-c", ANSWER.format(request_id)], capture_output=True, check=False
        )
        assert b"syntax error" in pasted.stderr.lower()


@pytest.mark.sweep
def test_a_denial_with_a_reason_is_what_the_model_reads(home: Home, project: Path) -> None:
    with ModelServer.in_thread([write(), "then not"]) as server:
        configured(home, server)
        soong_agent(home, "run", "--path", str(project), "go")
        (question,) = listed(home, project)
        answer = ("approvals", "answer", question["request_id"], "deny", "--reason", "not today")
        done = soong_agent(home, *answer, "--path", str(project))
        assert (done.returncode, done.stdout.strip()) == (0, "then not"), done.stderr
        assert "not today" in str(server.requests[1].body["messages"][-1])
    assert not (project / "a.txt").exists()


def test_an_id_that_fits_several_questions_answers_none(home: Home, project: Path) -> None:
    with ModelServer.in_thread([write(), write("b.txt"), "done", "done"]) as server:
        configured(home, server)
        soong_agent(home, "run", "--path", str(project), "--session-id", "s1", "go")
        empty = soong_agent(home, "approvals", "answer", "", "allow", "--path", str(project))
        assert (empty.returncode, "the value is empty" in empty.stderr) == (2, True)
        soong_agent(home, "run", "--path", str(project), "--session-id", "s2", "go")
        several = soong_agent(home, "approvals", "answer", "req_1", "allow", "--path", str(project))
        unknown = soong_agent(home, "approvals", "answer", "req_x", "allow", "--path", str(project))
        assert (several.returncode, unknown.returncode) == (2, 2)
        assert "several questions" in several.stderr
        assert "there is no request req_x" in unknown.stderr
        one, two = listed(home, project)
        assert [one["state"], two["state"]] == ["open", "open"]
        (mine,) = listed(home, project, "--session-id", "s2")
        assert mine == two
    assert soong_agent(home, "approvals", "answer", "req_", "maybe").returncode == 2


def test_the_end_of_the_input_denies_where_questions_do_not_wait(home: Home, project: Path) -> None:
    with ModelServer.in_thread([write(), "then not"]) as server:
        configured(home, server, "deny")
        done = soong_agent(home, "run", "--path", str(project), "go")
    assert (done.returncode, done.stdout.strip()) == (0, "then not")
    assert "no answer" in done.stderr
    (question,) = listed(home, project, "--all")
    assert (question["decision"], question["reason"]) == ("deny", "nobody could be asked")


@pytest.mark.sweep
def test_a_question_is_answered_while_its_process_waits(home: Home, project: Path) -> None:
    with ModelServer.in_thread([write(), "all done"]) as server:
        configured(home, server, "wait")
        command = [sys.executable, "-m", "agent_core.cli", "run", "--path", str(project), "go"]
        with subprocess.Popen(  # noqa: S603 - our own command
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=home.env(),
        ) as running:
            until = time.monotonic() + 120
            while not (found := listed(home, project)) and time.monotonic() < until:
                time.sleep(0.1)
            done = soong_agent(
                home, "approvals", "answer", found[0]["request_id"], "allow", "--path", str(project)
            )
            assert done.returncode == 0, done.stderr
            assert "continues in its own process" in done.stderr
            said, _ = running.communicate(timeout=150)
    assert (running.returncode, said.strip()) == (0, "all done")
    assert (project / "a.txt").read_text() == "new\n"


@pytest.mark.sweep
def test_of_three_that_answer_at_once_two_are_told_so(home: Home, project: Path) -> None:
    with ModelServer.in_thread([write(), "all done"]) as server:
        configured(home, server)
        soong_agent(home, "run", "--path", str(project), "go")
        (question,) = listed(home, project)
        answer = [sys.executable, "-m", "agent_core.cli", "approvals", "answer"]
        command = [*answer, question["request_id"], "allow", "--path", str(project)]
        both = [
            subprocess.Popen(  # noqa: S603 - our own command
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=home.env(),
            )
            for _ in range(3)
        ]
        ended = [each.communicate(timeout=150) for each in both]
    codes = sorted(each.returncode for each in both)
    assert codes == [0, 2, 2], ended
    assert sum("already answered" in errors for _, errors in ended) == 2
    assert len(server.requests) == 2
    assert (project / "a.txt").read_text() == "new\n"


async def _question_of(runtime: AgentRuntime) -> ApprovalRecord:
    while not (found := await runtime.approvals()):  # noqa: ASYNC110 - the run asks by itself
        await asyncio.sleep(0.02)
    return found[0]


@pytest.mark.sweep
async def test_a_question_of_a_program_is_answered_without_a_configuration_file(
    home: Home, project: Path
) -> None:
    model = ScriptedProvider([write(), "all done"])
    config = Config.model_validate(
        {
            "model": {"provider": "ollama", "name": "none"},
            "permissions": {"unattended": "wait"},
            "memory": {"enabled": False},
        }
    )
    async with AgentRuntime(project, config=config, home_dir=home.path, model=model) as runtime:
        handle = await runtime.start("go")
        question = await _question_of(runtime)
        answer = ("approvals", "answer", question.request_id, "allow", "--path", str(project))
        wrong = await asyncio.to_thread(
            soong_agent, home, "approvals", "answer", "req_none", "allow"
        )
        assert (wrong.returncode, wrong.stderr.split(";")[0]) == (
            2,
            "error: there is no request req_none",
        )
        done = await asyncio.to_thread(soong_agent, home, *answer)
        assert done.returncode == 0, done.stderr
        assert "the run continues in its own process" in done.stderr + done.stdout
        assert (await handle.result()).text == "all done"
        late = await asyncio.to_thread(soong_agent, home, *answer)
        assert (late.returncode, "already answered" in late.stderr) == (2, True), late.stderr
