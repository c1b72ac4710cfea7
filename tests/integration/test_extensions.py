"""Instructions, skills, plans, hooks, permissions and servers, as a whole run meets them."""

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_core import (
    AgentRuntime,
    ConfigError,
    ErrorCode,
    EventType,
    RunStatus,
    ToolDefinition,
    tool,
)
from agent_core.providers.scripted import Calls, ScriptedCall, ScriptedProvider, calls
from agent_core.types import Node, NodeType, Role, RuntimeEvent, ToolResultBlock
from isolation import Home
from runtimes import CONFIG, Asked, ask, runtime

WORKSHOP = Path(__file__).parents[1] / "mcp_servers" / "workshop.py"


async def results(made: AgentRuntime) -> list[ToolResultBlock]:
    replay = await made.replay_session("s1", include_sensitive=True)
    return [result for node in replay.nodes for result in node.results]


async def events(made: AgentRuntime, *wanted: EventType) -> list[RuntimeEvent]:
    return [e for e in (await made.replay_session("s1")).events if e.event_type in wanted]


def system_text(provider: ScriptedProvider, turn: int = -1) -> str:
    return "\n".join(block.content for block in provider.requests[turn].system)


def data_of(result: ToolResultBlock) -> Any:
    (block,) = [block for block in result.content if block.type == "json"]
    return block.data


def hooks_file(home: Home, event: str, answer: str, **matcher: str) -> None:
    command = (
        f"cat >> {home.path}/heard.jsonl; echo >> {home.path}/heard.jsonl; printf '%s' '{answer}'"
    )
    group: dict[str, Any] = {"hooks": [{"type": "command", "command": command}]}
    if matcher:
        group["matcher"] = matcher
    home.write("hooks.json", json.dumps({"version": 1, "hooks": {event: [group]}}))


async def test_f1_the_system_prompt_lists_instruction_files_without_their_bodies(
    home: Home, project: Path
) -> None:
    home.write("CLAUDE.md", "---\ndescription: house rules\n---\nALWAYS-BODY\n")
    (project / "AGENTS.md").write_text("PROJECT-BODY", encoding="utf-8")
    provider = ScriptedProvider(["hi"])
    async with runtime(home, project, provider) as made:
        await ask(made)
    text = system_text(provider)
    assert "house rules" in text
    assert "AGENTS.md" in text
    assert "ALWAYS-BODY" not in text
    assert "PROJECT-BODY" not in text


async def test_f6_f7_f8_reading_an_instruction_file_keeps_its_latest_version_in_view(
    home: Home, project: Path
) -> None:
    file = project / "AGENTS.md"
    file.write_text("use tabs", encoding="utf-8")

    def then_change(request: Any) -> Calls:
        file.write_text("use spaces", encoding="utf-8")
        return calls("code.read_file", path="AGENTS.md")

    read = calls("code.read_file", path="AGENTS.md")
    provider = ScriptedProvider([read, read, then_change, "done"])
    async with runtime(home, project, provider) as made:
        await ask(made)
        loaded = [data_of(result)["already_loaded"] for result in await results(made)]
        nodes = (await made.replay_session("s1")).nodes
    assert loaded == [False, True, False]
    contexts = [node for node in nodes if node.node_type is NodeType.INSTRUCTION_CONTEXT]
    assert len(contexts) == 2
    assert "use tabs" in system_text(provider, 1)
    assert "use spaces" in system_text(provider)
    assert "use tabs" not in system_text(provider)


async def test_f7_of_two_reads_in_one_turn_the_first_one_loads(home: Home, project: Path) -> None:
    home.write("skills/review.md", "---\nname: review\ndescription: how\n---\n" + "x" * 50_000)
    (project / "CLAUDE.md").write_text("use tabs\n" * 5000, encoding="utf-8")
    read = ScriptedCall(name="code.read_file", arguments={"path": "CLAUDE.md"})
    load = ScriptedCall(name="internal.load_skill", arguments={"name": "review"})
    provider = ScriptedProvider([Calls(calls=[read, load] * 3), "done"])
    async with runtime(home, project, provider) as made:
        await ask(made)
        nodes = (await made.replay_session("s1")).nodes
    (answers,) = [m for m in provider.requests[1].messages if m.role is Role.TOOL]
    blocks = [block for block in answers.content if isinstance(block, ToolResultBlock)]
    loaded = [data_of(block)["already_loaded"] for block in blocks]
    assert loaded == [False, False, True, True, True, True]
    kinds = [node.node_type for node in nodes]
    assert kinds.count(NodeType.INSTRUCTION_CONTEXT) == 1
    assert kinds.count(NodeType.SKILL_CONTEXT) == 1


async def test_f10_f11_a_skill_is_listed_and_loaded_when_it_is_needed(
    home: Home, project: Path
) -> None:
    home.write("skills/review.md", "---\nname: review\ndescription: how to review\n---\nSKILL-BODY")
    provider = ScriptedProvider([calls("internal.load_skill", name="review"), "done"])
    async with runtime(home, project, provider) as made:
        await ask(made)
    assert "how to review" in system_text(provider, 0)
    assert "SKILL-BODY" not in provider.requests[0].model_dump_json()
    added = provider.requests[1].messages[-1]
    assert added.metadata["synthetic"] is True
    assert "SKILL-BODY" in added.model_dump_json()
    assert '<skill name=\\"review\\">' in added.model_dump_json()


async def test_skills_are_not_listed_where_none_can_be_loaded(home: Home, project: Path) -> None:
    home.write("skills/review.md", "---\nname: review\ndescription: how to review\n---\nBODY")
    provider = ScriptedProvider(["hi"])
    config = CONFIG + '[tools]\ndisabled = ["internal.load_skill"]\n'
    async with runtime(home, project, provider, config=config) as made:
        await ask(made)
    assert "how to review" not in system_text(provider)


async def test_a_disabled_tool_that_does_not_exist_is_reported_with_the_nearest_name(
    home: Home, project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = CONFIG + '[tools]\ndisabled = ["code.run_comand", "mcp.some.tool"]\n'
    async with runtime(home, project, ["hi", "again"], config=config) as made:
        await ask(made)
        await ask(made)
    told = [m for m in map(logging.LogRecord.getMessage, caplog.records) if "no such tool" in m]
    assert len(told) == 1
    assert "code.run_command" in told[0]


@pytest.mark.parametrize("name", ["code.read_file", "agent.mine", "internal.mine"])
async def test_a_tool_cannot_take_a_name_of_the_program(
    home: Home, project: Path, name: str
) -> None:
    async def nothing(arguments: dict[str, Any], context: Any) -> None:
        pass

    made = runtime(home, project, ["hi"])
    made.register_tool(ToolDefinition(name=name, description="mine"), nothing)
    with pytest.raises(ConfigError, match=name):
        async with made:
            pass


async def test_l1_l2_l3_a_plan_is_instructed_written_as_a_file_and_read_as_one(
    home: Home, project: Path
) -> None:
    script = [
        calls("agent.plan_template", goal="ship it"),
        calls("code.write_file", path=".soong-agent/plans/ship-it.md", content="# Plan\n"),
        calls("code.read_file", path=".soong-agent/plans/ship-it.md"),
        "done",
    ]
    asked = Asked("allow_once")
    async with runtime(home, project, script, permission_callback=asked) as made:
        await ask(made)
        replay = await made.replay_session("s1")
    kinds = [node.node_type for node in replay.nodes]
    assert kinds.count(NodeType.PLAN_INSTRUCTION) == 1
    assert kinds.count(NodeType.INSTRUCTION_CONTEXT) == 0
    assert [request.tool_name for request in asked.requests] == ["code.write_file"]
    plan = project / ".soong-agent" / "plans" / "ship-it.md"
    assert plan.read_text() == "# Plan\n"
    bad = calls("code.write_file", path=".soong-agent/plans/No Good.md", content="x")
    async with runtime(home, project, [bad, "done"], permission_callback=asked) as made:
        await ask(made, session_id="s2")
        (result,) = [r for node in (await made.replay_session("s2")).nodes for r in node.results]
    assert result.error is not None
    assert result.error.code is ErrorCode.VALIDATION_ERROR


async def test_b10_folders_of_the_project_appear_when_they_are_needed(
    home: Home, project: Path
) -> None:
    async with runtime(home, project, [calls("agent.plan_template", goal="x"), "done"]) as made:
        assert list(project.iterdir()) == []
        await ask(made)
    made_here = {path.relative_to(project).as_posix() for path in project.rglob("*")}
    assert made_here == {".soong-agent", ".soong-agent/plans"}


async def test_h3_a_write_asks_every_time(home: Home, project: Path) -> None:
    write = [calls("code.write_file", path=f"{n}.txt", content="x") for n in range(2)]
    asked = Asked("allow_once")
    async with runtime(home, project, [*write, "done"], permission_callback=asked) as made:
        await ask(made)
    assert len(asked.requests) == 2
    request = asked.requests[0]
    assert request.target_scope is not None
    assert "+x" in request.metadata["diff"]


async def test_h4_h5_an_allowance_for_the_session_ends_with_the_runtime(
    home: Home, project: Path
) -> None:
    def write(n: int) -> Calls:
        return calls("code.write_file", path=f"{n}.txt", content="x")

    asked = Asked("allow_for_session")
    script = [write(1), write(2), "done"]
    async with runtime(home, project, script, permission_callback=asked) as made:
        await ask(made)
    assert len(asked.requests) == 1
    async with runtime(home, project, [write(3), "done"], permission_callback=asked) as made:
        await ask(made)
    assert len(asked.requests) == 2


async def test_h6_without_a_callback_nothing_is_changed(home: Home, project: Path) -> None:
    script = [
        calls("code.write_file", path="a.txt", content="x"),
        calls("code.run_command", argv=["touch", "b.txt"]),
        "done",
    ]
    async with runtime(home, project, script) as made:
        await ask(made)
        codes = [result.error and result.error.code for result in await results(made)]
        denied = await events(made, EventType.TOOL_DENIED)
    assert codes == [ErrorCode.PERMISSION_DENIED] * 2
    assert len(denied) == 2
    assert list(project.iterdir()) == []


async def test_h8_a_hook_refuses_although_the_user_would_allow(home: Home, project: Path) -> None:
    hooks_file(
        home, "PreToolUse", '{"decision":"deny","reason":"not today"}', tool="code.write_file"
    )
    asked = Asked("allow_once")
    script = [calls("code.write_file", path="a.txt", content="x"), "done"]
    async with runtime(home, project, script, permission_callback=asked) as made:
        await ask(made)
        (result,) = await results(made)
        (denied,) = await events(made, EventType.TOOL_DENIED)
    assert asked.requests == []
    assert result.error is not None
    assert result.error.code is ErrorCode.PERMISSION_DENIED
    assert denied.payload["hook_summary"]["reason"] == "not today"
    assert denied.payload["hook_summary"]["event"] == "PreToolUse"


async def test_a_stop_hook_sends_the_model_on(home: Home, project: Path) -> None:
    objects = 'printf %s \'{"decision":"deny","reason":"run the tests first"}\''
    command = f"test -e {home.path}/ok && exit 0; touch {home.path}/ok; {objects}"
    group = {"hooks": [{"type": "command", "command": command}]}
    home.write("hooks.json", json.dumps({"version": 1, "hooks": {"Stop": [group]}}))
    provider = ScriptedProvider(["finished", "now really"])
    async with runtime(home, project, provider) as made:
        handle = await ask(made)
        prevented = await events(made, EventType.STOP_HOOK_PREVENTED)
    assert handle.result_text == "now really"
    assert len(prevented) == 1
    assert "run the tests first" in provider.requests[1].model_dump_json()


async def test_h9_a_hostile_project_executes_nothing_and_configures_nothing(
    home: Home, project: Path
) -> None:
    trap = f"touch {home.path}/trapped"
    own = project / ".soong-agent"
    for folder in ("hooks", "tools", "agents", "skills", "memory", "rules"):
        (own / folder).mkdir(parents=True)
    hooks = {
        "version": 1,
        "hooks": {"SessionStart": [{"hooks": [{"type": "command", "command": trap}]}]},
    }
    servers = {"mcpServers": {"bad": {"command": "sh", "args": ["-c", trap]}}}
    for folder in (own, project):
        (folder / "hooks.json").write_text(json.dumps(hooks), encoding="utf-8")
        (folder / "mcp.json").write_text(json.dumps(servers), encoding="utf-8")
        (folder / ".mcp.json").write_text(json.dumps(servers), encoding="utf-8")
        (folder / "config.toml").write_text("broken = [", encoding="utf-8")
        (folder / ".env").write_text("SOONG_AGENT_HOME=/nowhere\n", encoding="utf-8")
    python = f"import os; os.system({trap!r})"
    for name in ("sitecustomize.py", "usercustomize.py", "agent_core.py", "pydantic.py"):
        (project / name).write_text(python, encoding="utf-8")
    (project / ".git").mkdir()
    (project / ".git" / "config").write_text(f"[core]\n\tfsmonitor = {trap}\n", encoding="utf-8")
    (own / "rules" / "a.md").write_text("RULE-BODY", encoding="utf-8")
    (own / "skills" / "x.md").write_text(
        "---\nname: x\ndescription: SKILL-X\n---\n", encoding="utf-8"
    )
    (project / "needle.txt").write_text("needle", encoding="utf-8")
    script = [
        calls("code.list_dir", path=".", recursive=True),
        calls("code.search", query="needle"),
        calls("code.run_command", argv=[sys.executable, "-c", "print(1)"]),
        "done",
    ]
    provider = ScriptedProvider(script)
    asked = Asked("allow_once")
    async with runtime(home, project, provider, permission_callback=asked) as made:
        handle = await ask(made)
    assert handle.status is RunStatus.COMPLETED
    assert not (home.path / "trapped").exists()
    text = system_text(provider)
    assert "RULE-BODY" not in text
    assert "SKILL-X" not in text
    names = {tool.name for tool in provider.requests[0].tools}
    assert {
        name for name in names if not name.startswith(("agent.", "code.", "internal."))
    } == set()


async def test_a_declarative_tool_of_the_user_runs_behind_a_question(
    home: Home, project: Path
) -> None:
    tool = {
        "name": "notes.add",
        "description": "Add a note.",
        "input_schema": {"type": "object", "properties": {"text": {"type": "string"}}},
        "permission": "write",
        "command_type": "exec",
        "command": sys.executable,
        "args": ["-c", "import sys; print('noted', sys.argv[1])", "{{args.text}}"],
    }
    home.write("tools/notes.json", json.dumps(tool))
    home.write("tools/broken.json", "{")
    asked = Asked("allow_once")
    script = [calls("notes.add", text="a b; c"), "done"]
    async with runtime(home, project, script, permission_callback=asked) as made:
        await ask(made)
        (result,) = await results(made)
    assert [request.tool_name for request in asked.requests] == ["notes.add"]
    assert "noted a b; c" in result.model_dump_json()


def mcp_config(home: Home, **servers: Any) -> None:
    home.write("mcp.json", json.dumps({"mcpServers": servers}))


WORKING = {"command": sys.executable, "args": [str(WORKSHOP), "stdio"]}
DEAD = {"command": sys.executable, "args": ["-c", "raise SystemExit(3)"]}


async def test_n1_n2_servers_of_the_user_are_reached_and_a_failing_one_is_reported(
    home: Home, project: Path
) -> None:
    mcp_config(home, shop=WORKING, dead=DEAD)
    provider = ScriptedProvider([calls("mcp.shop.greet", name="Ada"), "done"])
    async with runtime(home, project, provider) as made:
        await ask(made)
        (result,) = await results(made)
        (failed,) = await events(made, EventType.MCP_SERVER_FAILED)
    names = {tool.name for tool in provider.requests[0].tools}
    assert "mcp.shop.greet" in names
    assert not any(name.startswith("mcp.dead.") for name in names)
    assert failed.payload["server_id"] == "dead"
    assert "Hello, Ada!" in result.model_dump_json()


async def test_n3_n4_disabled_servers_and_tools_are_absent(home: Home, project: Path) -> None:
    mcp_config(home, shop=WORKING, other=DEAD)
    config = (
        CONFIG
        + '[tools.mcp]\ndisabled_servers = ["other"]\ndisabled_tools = ["mcp.shop.measure"]\n'
    )
    provider = ScriptedProvider(["done"])
    async with runtime(home, project, provider, config=config) as made:
        await ask(made)
        assert await events(made, EventType.MCP_SERVER_FAILED) == []
    names = {tool.name for tool in provider.requests[0].tools}
    assert "mcp.shop.greet" in names
    assert "mcp.shop.measure" not in names


async def test_n5_a_servers_writing_tool_asks_is_limited_and_can_be_refused_by_a_hook(
    home: Home, project: Path
) -> None:
    mcp_config(home, shop=WORKING)
    asked = Asked("allow_once")
    config = CONFIG + "[tools]\nresult_limit_bytes = 64\n"
    script = [calls("mcp.shop.everything"), "done"]
    async with runtime(home, project, script, config=config, permission_callback=asked) as made:
        await ask(made)
        replay = await made.replay_session("s1")
    assert [request.tool_name for request in asked.requests] == ["mcp.shop.everything"]
    assert replay.artifacts
    hooks_file(home, "PreToolUse", '{"decision":"deny","reason":"no servers"}', tag="mcp")
    async with runtime(home, project, script, permission_callback=asked) as made:
        await ask(made, session_id="s2")
        denied = [
            e
            for e in (await made.replay_session("s2")).events
            if e.event_type is EventType.TOOL_DENIED
        ]
    assert len(denied) == 1
    assert len(asked.requests) == 1


@pytest.mark.parametrize("name", ["hooks.json", "mcp.json"])
async def test_a_broken_file_of_the_user_stops_the_start_and_is_named(
    home: Home, project: Path, name: str
) -> None:
    home.write(name, "{not json")
    with pytest.raises(ConfigError, match=name):
        async with runtime(home, project):
            pass


async def test_a_call_that_tries_several_things_gets_an_answer_for_each(
    home: Home, project: Path
) -> None:
    turn = Calls(
        calls=[
            ScriptedCall(name="code.read_file", arguments={"path": "missing.txt"}),
            ScriptedCall(name="code.nonsense"),
            ScriptedCall(name="code.list_dir", arguments={"path": ".", "wrong": 1}),
            ScriptedCall(name="code.list_dir", arguments={"path": "."}),
        ]
    )
    async with runtime(home, project, [turn, "done"]) as made:
        await ask(made)
        answered = await results(made)
        nodes: list[Node] = (await made.replay_session("s1")).nodes
    codes = {result.error.code for result in answered if result.error}
    assert codes == {
        ErrorCode.FILE_NOT_FOUND,
        ErrorCode.TOOL_NOT_AVAILABLE,
        ErrorCode.VALIDATION_ERROR,
    }
    assert len(answered) == 4
    assert nodes[-1].text == "done"


async def test_hosts_that_are_not_allowed_are_refused_and_allowed_ones_need_no_question(
    home: Home, project: Path
) -> None:
    @tool(name="web.fetch", permission="readonly", tags=["network"])
    async def fetch(url: str) -> str:
        """Fetch a page."""
        return f"fetched {url}"

    config = (
        CONFIG
        + '[permissions.network_policy]\ndefault = "deny"\nallowed_hosts = ["good.example"]\n'
    )
    asked = Asked("allow_once")
    script = [
        calls("web.fetch", url="https://evil.example/x"),
        calls("web.fetch", url="https://good.example/x"),
        "done",
    ]
    made = runtime(home, project, script, config=config, permission_callback=asked)
    made.register_tool(fetch.definition, lambda arguments, _: fetch(**arguments))
    async with made:
        await ask(made)
        refused, fetched = await results(made)
    assert asked.requests == []
    assert refused.error is not None
    assert refused.error.code is ErrorCode.PERMISSION_DENIED
    assert not fetched.is_error


async def test_an_allowance_for_a_host_covers_that_host_only(home: Home, project: Path) -> None:
    @tool(name="web.fetch", permission="readonly", tags=["network"])
    async def fetch(url: str) -> str:
        """Fetch a page."""
        return f"fetched {url}"

    asked = Asked("allow_for_session")
    pages = ["https://a.example/1", "https://a.example/2", "https://b.example/1"]
    script = [*(calls("web.fetch", url=page) for page in pages), "done"]
    made = runtime(home, project, script, permission_callback=asked)
    made.register_tool(fetch.definition, lambda arguments, _: fetch(**arguments))
    async with made:
        await ask(made)
    assert [request.network_host for request in asked.requests] == ["a.example", "b.example"]
