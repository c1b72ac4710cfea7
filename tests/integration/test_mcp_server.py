"""`soong-agent mcp serve` on standard streams, used by the official client and by bare wires."""

import asyncio
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from agent_core.providers.scripted import Hangs, calls
from isolation import Home
from mcp_clients import (
    CANCELS,
    COMMAND,
    DECLINES,
    Person,
    accepts,
    call,
    code_of,
    configure,
    connected,
    facts,
    request,
    texts,
    until,
    wired,
)
from model_server import ModelServer
from sweeps import kept, paired, sampled

GENERATIONS = pytest.mark.parametrize("mode", kept(["legacy", "auto"], "auto"))
WRITE = calls("code.write_file", path="a.txt", content="hi\n")


async def soong_agent(home: Home, *arguments: str) -> str:
    """Carry out another command in the same home, and return its output."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND[:3], *arguments, env=home.env(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode()


@GENERATIONS
async def test_a_task_is_answered_and_its_session_can_be_continued(
    home: Home, project: Path, mode: str
) -> None:
    async with ModelServer(["forty-two", "and a half"]) as server:
        configure(home, server.base_url("openai"))
        async with connected(home, project, mode=mode) as client:
            first = await client.run("what is it?")
            session_id = facts(first)["session_id"]
            second = await client.run("more exactly", session_id=session_id)
            listed = await client.call("sessions_list")
            shown = await client.call("session_show", session_id=session_id)
    assert not first.is_error
    assert first.content[0].model_dump()["text"] == "forty-two"
    assert f"session_id: {session_id}" in texts(first)
    assert (facts(first)["status"], facts(first)["text"]) == ("completed", "forty-two")
    assert (facts(second)["session_id"], facts(second)["text"]) == (session_id, "and a half")
    assert "what is it?" in json.dumps(server.requests[1].body)
    (entry,) = facts(listed)["sessions"]
    assert (entry["session_id"], entry["title"]) == (session_id, "what is it?")
    said = [each["text"] for run in facts(shown)["runs"] for each in run["entries"]]
    assert said == ["what is it?", "forty-two", "more exactly", "and a half"]


@GENERATIONS
async def test_the_client_is_asked_and_progress_says_what_is_done(
    home: Home, project: Path, mode: str
) -> None:
    person = accepts("allow_once")
    async with ModelServer([WRITE, "written"]) as server:
        configure(home, server.base_url("openai"))
        async with connected(home, project, person=person, mode=mode) as client:
            result = await client.run("write it")
            progress = client.progress
    assert (project / "a.txt").read_text(encoding="utf-8") == "hi\n"
    assert facts(result)["status"] == "completed"
    (asked,) = person.asked
    assert "code.write_file" in asked.message
    assert "+hi" in asked.message
    assert any("code.write_file" in each for each in progress)


@pytest.mark.parametrize(
    ("mode", "said"),
    sampled(
        paired(
            ["legacy", "auto"],
            [
                (Person([DECLINES]), "declined"),
                (Person([CANCELS]), "dismissed"),
                (accepts("deny", "use b.txt instead"), "use b.txt instead"),
                (accepts("allow_everything"), "without a valid decision"),
            ],
        ),
        keep=1,
    ),
    ids=lambda each: each if isinstance(each, str) else each[1],
)
async def test_a_no_is_heard_by_the_agent_and_named_in_the_result(
    home: Home, project: Path, mode: str, said: tuple[Person, str]
) -> None:
    person, reason = said
    async with ModelServer([WRITE, "not written"]) as server:
        configure(home, server.base_url("openai"))
        async with connected(home, project, person=person, mode=mode) as client:
            result = await client.run("write it")
    assert not (project / "a.txt").exists()
    assert facts(result)["status"] == "completed"
    assert reason in json.dumps(server.requests[1].body)
    (denied,) = facts(result)["denied"]
    assert reason in denied
    assert reason in texts(result)


@pytest.mark.sweep
async def test_an_answer_for_the_session_covers_the_next_call(home: Home, project: Path) -> None:
    person = accepts("allow_for_session")
    second = calls("code.write_file", path="b.txt", content="hi\n")
    async with ModelServer([WRITE, second, "written"]) as server:
        configure(home, server.base_url("openai"))
        async with connected(home, project, person=person) as client:
            await client.run("write them")
    assert (project / "b.txt").exists()
    assert len(person.asked) == 1


@GENERATIONS
async def test_a_client_that_cannot_ask_denies_by_default(
    home: Home, project: Path, mode: str
) -> None:
    async with ModelServer([WRITE, "not written"]) as server:
        configure(home, server.base_url("openai"))
        async with connected(home, project, mode=mode) as client:
            result = await client.run("write it")
            listed = await client.client.list_tools()
    assert not (project / "a.txt").exists()
    assert facts(result)["denied"]
    names = {each.name for each in listed.tools}
    assert names == {"run", "sessions_list", "session_show", "cancel"}


async def test_nobody_is_asked_if_the_server_says_so(home: Home, project: Path) -> None:
    person = accepts("allow_once")
    more = '[permissions]\nunattended = "park"\n'
    async with ModelServer([WRITE, "not written"]) as server:
        configure(home, server.base_url("openai"), more)
        async with connected(home, project, "--approvals", "deny", person=person) as client:
            result = await client.run("write it")
    assert facts(result)["status"] == "completed"
    assert facts(result)["denied"]
    assert person.asked == []


@pytest.mark.sweep
async def test_a_parked_run_is_returned_and_refuses_further_messages(
    home: Home, project: Path
) -> None:
    more = '[permissions]\nunattended = "park"\n'
    async with ModelServer([WRITE, "written"]) as server:
        configure(home, server.base_url("openai"), more)
        async with connected(home, project) as client:
            result = await client.run("write it")
            session_id = facts(result)["session_id"]
            again = await client.run("well?", session_id=session_id)
            cancelled = await client.call("cancel", session_id=session_id)
    assert not result.is_error
    assert facts(result)["status"] == "waiting_permission"
    (question,) = facts(result)["approvals"]
    assert f"soong-agent approvals answer {question['approval_id']}" in texts(result)
    assert code_of(again) == "session_active"
    assert facts(cancelled)["status"] == "cancelled"


@GENERATIONS
async def test_the_calling_model_answers_only_if_the_server_was_started_so(
    home: Home, project: Path, mode: str
) -> None:
    async with ModelServer([WRITE, "written"]) as server:
        configure(home, server.base_url("openai"))
        async with connected(home, project, "--approvals", "tool", mode=mode) as client:
            waiting = await client.run("write it")
            (question,) = facts(await client.call("approvals_list"))["approvals"]
            wrong = await client.call("approval_answer", approval_id="req_1", decision="deny")
            assert not (project / "a.txt").exists()
            done = await client.call(
                "approval_answer", approval_id=question["approval_id"], decision="allow_once"
            )
    assert facts(waiting)["status"] == "waiting_permission"
    assert "approval_answer" in texts(waiting)
    assert code_of(wrong) == "approval_not_found"
    assert (facts(done)["status"], facts(done)["text"]) == ("completed", "written")
    assert (project / "a.txt").exists()


@pytest.mark.long
async def test_questions_of_other_runs_are_not_for_clients(home: Home, project: Path) -> None:
    more = '[permissions]\nunattended = "park"\n'
    async with ModelServer([WRITE]) as server:
        configure(home, server.base_url("openai"), more)
        await soong_agent(home, "run", "--path", str(project), "write it")
        found = await soong_agent(home, "approvals", "list", "--json")
        request_id = json.loads(found)["request_id"]
        async with connected(home, project, "--approvals", "tool") as client:
            listed = await client.call("approvals_list")
            answered = await client.call(
                "approval_answer", approval_id=request_id, decision="allow_once"
            )
    assert facts(listed)["approvals"] == []
    assert code_of(answered) == "approval_not_found"
    assert not (project / "a.txt").exists()


async def test_a_client_cannot_widen_what_it_may_do(home: Home, project: Path) -> None:
    async with ModelServer([WRITE, "planned"]) as server:
        configure(home, server.base_url("openai"))
        async with connected(home, project, "--mode", "plan", person=accepts("allow_once")) as it:
            wider = [await it.run("x", mode=mode) for mode in ("ask", "accept-edits")]
            model = await it.run("x", model="openai:other")
            folder = await it.run("x", project=str(project.parent))
            keys = await it.run("x", api_key="sk-1")
            sums = [await it.run("x", max_usd=usd) for usd in (0, -1, 1e300)]
            turns = [await it.run("x", max_turns=number) for number in (0, 10**30)]
            planned = await it.run("write it")
            listed = await it.client.list_tools()
    refused = (*wider, model, folder, keys, *sums, *turns)
    assert {code_of(each) for each in refused} == {"validation_error"}
    assert facts(planned)["status"] == "completed"
    assert not (project / "a.txt").exists()
    (run,) = (each for each in listed.tools if each.name == "run")
    assert run.input_schema["properties"]["mode"]["enum"] == ["plan"]
    assert run.input_schema["properties"]["model"]["enum"] == ["openai:m"]
    assert len(server.requests) == 2


async def test_sessions_of_other_folders_do_not_exist(
    home: Home, project: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    async with ModelServer(["one", "two"]) as server:
        configure(home, server.base_url("openai"))
        async with connected(home, other) as client:
            foreign = facts(await client.run("secret plan"))["session_id"]
        async with connected(home, project) as client:
            tried = [
                await client.run("go on", session_id=foreign),
                await client.call("session_show", session_id=foreign),
                await client.call("cancel", session_id=foreign),
            ]
            listed = await client.call("sessions_list")
        async with connected(home, project, "--path", str(other)) as client:
            shown = await client.call("session_show", session_id=foreign)
            apart = await client.run("go on", session_id=foreign, project=str(project))
    assert {code_of(each) for each in tried} == {"session_not_found"}
    assert facts(listed)["sessions"] == []
    assert "secret plan" in texts(shown)
    assert code_of(apart) == "session_elsewhere"
    assert len(server.requests) == 1


@pytest.mark.sweep
async def test_a_folder_is_named_from_the_first_one_wherever_the_server_was_started(
    home: Home, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (project / "~").mkdir()
    async with ModelServer(["one", "two"]) as server:
        configure(home, server.base_url("openai"))
        async with connected(home, other) as client:
            await client.run("secret plan")
        monkeypatch.chdir(other)
        async with connected(home, project, "--path", str(project / "~")) as client:
            own = facts(await client.run("own plan", project="."))["session_id"]
            listed = await client.call("sessions_list", project=".")
            inner = await client.call("sessions_list", project="~")
            wrong = await client.call("sessions_list", project="..")
    assert [each["session_id"] for each in facts(listed)["sessions"]] == [own]
    assert facts(inner)["sessions"] == []
    assert code_of(wrong) == "validation_error"


@pytest.mark.sweep
async def test_every_result_fits_the_output_schema_of_its_tool_and_so_does_every_error(
    home: Home, project: Path
) -> None:
    async with ModelServer(["done"]) as server:
        configure(home, server.base_url("openai"))
        async with connected(home, project, "--approvals", "tool") as client:
            listed = await client.client.list_tools()
            done = await client.run("do it")
            known = {"session_id": facts(done)["session_id"]}
            results = {
                "run": [done, await client.run("x", session_id="none")],
                "sessions_list": [
                    await client.call("sessions_list"),
                    await client.call("sessions_list", limit=0),
                ],
                "session_show": [
                    await client.call("session_show", **known),
                    await client.call("session_show", session_id="none"),
                ],
                "cancel": [await client.call("cancel", **known)],
                "approvals_list": [
                    await client.call("approvals_list"),
                    await client.call("approvals_list", session_id="none"),
                ],
                "approval_answer": [
                    await client.call("approval_answer", approval_id="none", decision="deny")
                ],
            }
    assert {each.name for each in listed.tools} == set(results)
    for tool in listed.tools:
        assert results[tool.name][-1].is_error
        assert tool.output_schema is not None
        for result in results[tool.name]:
            jsonschema.validate(facts(result), tool.output_schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({}, tool.output_schema)


async def test_runs_work_side_by_side_but_not_twice_in_a_session(home: Home, project: Path) -> None:
    async with ModelServer(["first", Hangs(text="thinking"), "side"]) as server:
        configure(home, server.base_url("openai"))
        async with connected(home, project) as client:
            session_id = facts(await client.run("begin"))["session_id"]
            busy = asyncio.create_task(client.run("work", session_id=session_id))
            await until(lambda: len(server.requests) == 2)
            twice = await client.run("me too", session_id=session_id)
            side = await client.run("another")
            cancelled = await client.call("cancel", session_id=session_id)
            ended = await busy
    assert code_of(twice) == "session_active"
    assert session_id in texts(twice)
    assert facts(side)["text"] == "side"
    assert facts(cancelled)["status"] == "cancelled"
    assert ended.is_error
    assert facts(ended)["status"] == "cancelled"


async def test_a_cancelled_call_cancels_its_run_and_the_session_goes_on(
    home: Home, project: Path
) -> None:
    async with ModelServer([Hangs(text="thinking"), "on again"]) as server:
        configure(home, server.base_url("openai"))
        async with wired(home, project) as wire:
            await wire.shake_hands()
            await wire.send(call(1, "run", message="work"))
            await until(lambda: len(server.requests) == 1)
            note = {"method": "notifications/cancelled", "params": {"requestId": 1}}
            await wire.send({"jsonrpc": "2.0", **note})

            async def status() -> tuple[str, str]:
                await wire.send(call("list", "sessions_list"))
                answer = await wire.until("list")
                (entry,) = answer["result"]["structuredContent"]["sessions"]
                return entry["status"], entry["session_id"]

            while (found := await status())[0] != "cancelled":
                pass
            await wire.send(call(2, "run", message="go on", session_id=found[1]))
            answer = await wire.until(2)
            assert await wire.leave() == 0
    assert answer["result"]["structuredContent"]["text"] == "on again"
    assert all(each.get("id") != 1 for each in wire.received)


@pytest.mark.long
@pytest.mark.parametrize("end", kept(["leave", "term", "kill"], "kill"))
async def test_whatever_ends_the_server_leaves_a_session_that_goes_on(
    home: Home, project: Path, end: str
) -> None:
    async with ModelServer([Hangs(text="thinking"), "on again"]) as server:
        configure(home, server.base_url("openai"))
        async with wired(home, project) as wire:
            await wire.shake_hands()
            await wire.send(call(1, "run", message="work"))
            await until(lambda: len(server.requests) == 1)
            if end == "leave":
                assert await wire.leave() == 0
            else:
                number = signal.SIGTERM if end == "term" else signal.SIGKILL
                os.kill(wire.process.pid, number)
                assert await wire.process.wait() == (143 if end == "term" else -number)
        async with connected(home, project) as client:
            (entry,) = facts(await client.call("sessions_list"))["sessions"]
            again = await client.run("go on", session_id=entry["session_id"])
    assert facts(again)["text"] == "on again"
    assert end == "kill" or entry["status"] == "cancelled"


async def test_the_question_of_a_client_that_leaves_is_withdrawn(home: Home, project: Path) -> None:
    async with ModelServer([WRITE]) as server:
        configure(home, server.base_url("openai"))
        async with wired(home, project) as wire:
            await wire.shake_hands(elicitation={})
            await wire.send(call(1, "run", message="write it"))
            while (await wire.next()).get("method") != "elicitation/create":
                pass
            assert await wire.leave() == 0
        async with connected(home, project, "--approvals", "tool") as client:
            listed = await client.call("approvals_list")
            (entry,) = facts(await client.call("sessions_list"))["sessions"]
    assert facts(listed)["approvals"] == []
    assert entry["status"] == "cancelled"
    assert not (project / "a.txt").exists()


@pytest.mark.long
async def test_a_server_that_is_killed_at_a_question_does_not_block_its_session(
    home: Home, project: Path
) -> None:
    async with ModelServer([WRITE, "on again"]) as server:
        configure(home, server.base_url("openai"))
        async with wired(home, project) as wire:
            await wire.shake_hands(elicitation={})
            await wire.send(call(1, "run", message="write it"))
            while (await wire.next()).get("method") != "elicitation/create":
                pass
            wire.process.kill()
            await wire.process.wait()
        async with connected(home, project) as client:
            (entry,) = facts(await client.call("sessions_list"))["sessions"]
            again = await client.run("go on", session_id=entry["session_id"])
    assert facts(again)["text"] == "on again"
    assert not (project / "a.txt").exists()


async def test_a_question_is_settled_by_whoever_answers_first(home: Home, project: Path) -> None:
    async with ModelServer([WRITE, "written"]) as server:
        configure(home, server.base_url("openai"))
        async with wired(home, project) as wire:
            await wire.shake_hands(elicitation={})
            await wire.send(call(1, "run", message="write it"))
            while (asked := await wire.next()).get("method") != "elicitation/create":
                pass
            listed = await soong_agent(home, "approvals", "list", "--json")
            request_id = json.loads(listed)["request_id"]
            await soong_agent(home, "approvals", "answer", request_id, "allow")
            answer = await wire.until(1)
            assert await wire.leave() == 0
    assert answer["result"]["structuredContent"]["text"] == "written"
    withdrawn = {"requestId": asked["id"]}
    notes = [each.get("params", {}) for each in wire.received if "cancelled" in str(each)]
    assert any(withdrawn.items() <= each.items() for each in notes)


@pytest.mark.sweep
async def test_a_client_of_2026_is_asked_as_often_as_it_takes_and_then_nobody_is(
    home: Home, project: Path
) -> None:
    writes = [calls("code.write_file", path=f"{n}.txt", content="x") for n in range(12)]
    person = accepts("allow_once")
    async with ModelServer([*writes, "done"]) as server:
        configure(home, server.base_url("openai"))
        async with connected(home, project, person=person) as client:
            result = await client.run("write them")
    assert facts(result)["status"] == "completed"
    assert len(person.asked) == 9
    assert len(facts(result)["denied"]) == 3
    assert len([*project.glob("*.txt")]) == 9


async def test_a_client_that_breaks_at_the_question_denies(home: Home, project: Path) -> None:
    async with ModelServer([WRITE, "not written"]) as server:
        configure(home, server.base_url("openai"))
        async with wired(home, project) as wire:
            await wire.shake_hands(elicitation={"form": {}})
            await wire.send(call(1, "run", message="write it"))
            while (asked := await wire.next()).get("method") != "elicitation/create":
                pass
            error = {"code": -32603, "message": "no screen"}
            await wire.send({"jsonrpc": "2.0", "id": asked["id"], "error": error})
            answer = await wire.until(1)
            assert await wire.leave() == 0
    assert answer["result"]["structuredContent"]["denied"]
    assert not (project / "a.txt").exists()


@pytest.mark.parametrize(
    ("offered", "agreed"),
    kept(
        [
            ("2024-11-05", "2024-11-05"),
            ("2025-03-26", "2025-03-26"),
            ("2025-11-25", "2025-11-25"),
            ("2099-01-01", "2025-11-25"),
        ],
        ("2024-11-05", "2024-11-05"),
        ("2099-01-01", "2025-11-25"),
    ),
)
async def test_the_version_is_negotiated(
    home: Home, project: Path, offered: str, agreed: str
) -> None:
    configure(home, "http://127.0.0.1:9")
    async with wired(home, project) as wire:
        answer = await wire.shake_hands(offered)
        await wire.send(request(1, "tools/list"))
        listed = await wire.until(1)
        assert await wire.leave() == 0
    assert answer["result"]["protocolVersion"] == agreed
    assert answer["result"]["serverInfo"]["name"] == "soong-agent"
    assert {each["name"] for each in listed["result"]["tools"]} >= {"run"}


async def test_hostile_messages_are_answered_and_the_next_one_is_served(
    home: Home, project: Path
) -> None:
    configure(home, "http://127.0.0.1:9")
    wrong: list[Any] = [
        {"message": 1},
        {"message": ""},
        {},
        {"message": ["x"]},
        {"message": "x", "session_id": "../../etc"},
        {"message": "x", "session_id": 7},
        {"message": "x", "max_turns": -1},
        {"message": "x", "max_usd": "NaN"},
        {"message": "x", "project": "\0"},
        {"message": "x", "project": "/etc"},
        {"message": "x", "unknown": {"a": [1] * 10}},
    ]
    async with wired(home, project) as wire:
        await wire.shake_hands()
        await wire.send(b"not json", b"[]", b'"text"', b"\xff\xfe", b"{" * 10_000, b"null")
        await wire.send(b'{"jsonrpc": "2.0", "id": 1, "method": "' + b"x" * (5 * 2**20) + b'"}')
        await wire.send({"jsonrpc": "1.0", "id": 2, "method": "ping"}, request(3, "no/such"))
        await wire.send(request(4, "tools/call", name="run", arguments="text"))
        await wire.send(request(5, "tools/call", name="rm", arguments={}))
        await wire.send(request(6, "tools/call"), request({"a": 1}, "ping"))
        for number, arguments in enumerate(wrong, 100):
            await wire.send(request(number, "tools/call", name="run", arguments=arguments))
            answer = await wire.until(number)
            assert answer["result"]["isError"], arguments
        await wire.send(request(200, "ping"))
        assert (await wire.until(200))["result"] == {}
        assert await wire.leave() == 0
    errors = {each["id"]: each["error"]["code"] for each in wire.received if "error" in each}
    assert {2, 3, 4, 5, 6, None} <= errors.keys()


@pytest.mark.sweep
async def test_standard_output_is_the_protocol_only(home: Home, project: Path) -> None:
    noisy = calls("code.run_command", argv=["sh", "-c", "echo out; echo err >&2; cat"])
    async with ModelServer([noisy, "done"]) as server:
        configure(
            home,
            server.base_url("openai"),
            '[[permissions.rules]]\ndecision = "allow"\ncommand = ["*"]\n',
        )
        async with wired(home, project) as wire:
            await wire.shake_hands()
            await wire.send(call(1, "run", message="be loud"))
            answer = await wire.until(1)
            assert await wire.leave() == 0
    assert answer["result"]["structuredContent"]["status"] == "completed"


async def test_secrets_do_not_reach_the_client(home: Home, project: Path) -> None:
    secret = "sk-proj-4711-very-secret-0815"  # noqa: S105 - made up
    async with ModelServer([f"the key is {secret}"]) as server:
        configure(home, server.base_url("openai"))
        home.path.joinpath("mcp.json").write_text(
            json.dumps(
                {"mcpServers": {"x": {"command": "x", "env": {"KEY": secret}, "disabled": True}}}
            ),
            encoding="utf-8",
        )
        async with connected(home, project) as client:
            result = await client.run("tell me")
    assert secret not in str(result)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--port", "8080"], "--port takes --transport http"),
        (["--token-env", "X"], "--token-env takes --transport http"),
        (["--transport", "carrier-pigeon"], "invalid choice"),
        (["--approvals", "maybe"], "invalid choice"),
        (["--transport", "http", "--port", "99999"], "a port is needed"),
    ],
)
def test_wrong_usage_is_two_lines(home: Home, options: list[str], said: str) -> None:
    done = subprocess.run(  # noqa: S603 - our own command
        [*COMMAND, *options], capture_output=True, text=True, check=False, env=home.env()
    )
    assert (done.returncode, done.stdout) == (2, "")
    first, _ = done.stderr.splitlines()
    assert said in first


def test_a_missing_configuration_or_folder_is_said_at_the_start(home: Home, project: Path) -> None:
    def serve(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603 - our own command
            [*COMMAND, *options],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            env=home.env(),
        )

    missing = serve("--path", str(project))
    configure(home, "http://127.0.0.1:9")
    folder = serve("--path", str(project), "--path", str(project / "none"))
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "config.toml" in missing.stderr
    assert (folder.returncode, folder.stdout) == (2, "")
    assert "none" in folder.stderr
