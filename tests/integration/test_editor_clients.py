"""`soong-agent acp` with the clients of others: the official Python package, and npm's `acpx`.

`acpx` is not installed with the package. Its test looks for the folder of an npm installation:

    npm install --prefix /tmp/acp acpx @agentclientprotocol/sdk
    ACP_TEST_NPM=/tmp/acp make test ARGS='-k editor'
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import acp
import pytest
from acp.schema import (
    AllowedOutcome,
    PermissionOption,
    RequestPermissionResponse,
    ToolCallUpdate,
)

from agent_core.providers.scripted import calls
from editors import COMMAND, NPM, check_line
from isolation import Home
from model_server import ModelServer


def configured(home: Home, server: ModelServer) -> Home:
    home.write_config(
        f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
        "[memory]\nenabled = false\n"
    )
    return home


class Client:
    """Allows what it is asked for, and remembers what it is shown."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.said = ""

    async def request_permission(
        self, session_id: str, tool_call: ToolCallUpdate, options: list[PermissionOption], **_: Any
    ) -> RequestPermissionResponse:
        outcome = AllowedOutcome(outcome="selected", option_id=options[0].option_id)
        return RequestPermissionResponse(outcome=outcome)

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.kinds.append(update.session_update)
        if update.session_update == "agent_message_chunk":
            self.said += update.content.text


async def test_the_official_client_of_the_package(home: Home, project: Path) -> None:
    write = calls("code.write_file", path="a.txt", content="x")
    client: Any = Client()  # it is asked for no more than this
    async with ModelServer([write, "written", "forked"]) as server:
        env = configured(home, server).env()
        async with acp.spawn_agent_process(
            client, *COMMAND, env=env, use_unstable_protocol=True
        ) as (agent, process):
            made = await agent.initialize(protocol_version=acp.PROTOCOL_VERSION)
            assert made.protocol_version == 1
            assert made.agent_capabilities is not None
            assert made.agent_capabilities.load_session
            session = await agent.new_session(cwd=str(project), mcp_servers=[])
            done = await agent.prompt(session.session_id, [acp.text_block("write it")])
            assert (done.stop_reason, client.said) == ("end_turn", "written")
            assert (project / "a.txt").read_text(encoding="utf-8") == "x"
            await agent.load_session(str(project), session.session_id, mcp_servers=[])
            assert client.said == "writtenwritten"
            fork = await agent.fork_session(session.session_id, str(project))
            again = await agent.prompt(fork.session_id, [acp.text_block("more")])
            assert (again.stop_reason, client.said) == ("end_turn", "writtenwrittenforked")
        assert await process.wait() == 0
    assert {"tool_call", "tool_call_update", "usage_update", "session_info_update"} <= {
        *client.kinds
    }


@pytest.mark.timeout(120)
def test_acpx_of_npm(home: Home, project: Path, tmp_path: Path) -> None:
    folder, node = os.environ.get(NPM), shutil.which("node")
    if not folder or not node:
        pytest.skip(f"{NPM} names no npm folder, or there is no Node: see this file")
    script = Path(folder, "node_modules", "acpx", "dist", "cli.js")
    (project / "a.txt").write_text("one\n", encoding="utf-8")
    (project / ".git").mkdir()  # where it looks for a project's sessions ends
    lines: list[dict[str, Any]] = []

    def acpx(*arguments: str) -> str:
        command = [node, str(script), "--agent", " ".join(COMMAND), "--cwd", str(project)]
        done = subprocess.run(  # noqa: S603 - what the test is about
            [*command, "--ttl", "1", *arguments],
            env=home.env(HOME=str(tmp_path)),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode in {0, 5}, done.stdout + done.stderr  # 5: something was refused
        if "json" in arguments:
            lines.extend(json.loads(line) for line in done.stdout.splitlines())
        return done.stdout

    edit = calls("code.edit_file", path="a.txt", edits=[{"old": "one", "new": "two"}])
    run = calls("code.run_command", argv=["touch", "made"])
    with ModelServer.in_thread(["hello", edit, "edited", run, "refused"]) as server:
        configured(home, server)
        assert "hello" in acpx("exec", "say hello")
        acpx("sessions", "new")
        acpx("--format", "json", "--approve-all", "prompt", "edit it")
        acpx("--format", "json", "--deny-all", "prompt", "run it")
        assert "edited" in acpx("sessions", "history")
    assert (project / "a.txt").read_text(encoding="utf-8") == "two\n"
    assert not (project / "made").exists()
    methods = [line["method"] for line in lines if "method" in line]
    assert "session/load" in methods
    assert methods.count("session/request_permission") == 2
    asked: dict[object, str] = {}
    for line in lines:
        check_line(line, asked)
