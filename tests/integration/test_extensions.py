"""Instructions, skills, plans, hooks, permissions and servers, as a whole run meets them."""

import json
import logging
import re
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
    ToolRegistry,
    tool,
)
from agent_core.providers.scripted import Calls, ScriptedCall, ScriptedProvider, calls
from agent_core.types import Node, NodeType, Role, RuntimeEvent, ToolResultBlock
from isolation import Home
from runtimes import CONFIG, Asked, ask, runtime
from sweeps import sampled

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


@pytest.mark.parametrize("setting", [None, "listed", "preloaded"])
async def test_f1_the_catalog_lists_files_and_has_bodies_only_if_the_user_wants_that(
    home: Home, project: Path, setting: str | None
) -> None:
    home.write("rules/a.md", "---\ndescription: house rules\n---\nRULE-BODY\n")
    home.write("CLAUDE.md", "HOME-BODY")
    (project / "AGENTS.md").write_text("---\ntitle: conventions\n---\nROOT-BODY", encoding="utf-8")
    (project / "sub").mkdir()
    (project / "sub" / "AGENTS.md").write_text("DEEP-BODY", encoding="utf-8")
    config = CONFIG + (f'[context]\ninstructions = "{setting}"\n' if setting else "")
    provider = ScriptedProvider(["hi"])
    async with runtime(home, project, provider, config=config) as made:
        await ask(made)
    text = system_text(provider)
    blocks = {block.block_id: block.content for block in provider.requests[0].system}
    listed = blocks["system.instruction_catalog"].splitlines()
    deep = ["- sub/AGENTS.md", f"- {home.path}/rules/a.md (description: house rules)"]
    if setting == "preloaded":
        assert [line for line in listed if line.startswith("- ")] == deep[::-1]
        assert ("HOME-BODY" in text, "ROOT-BODY" in text) == (True, True)
    else:
        roots = [f"- {home.path}/CLAUDE.md", "- AGENTS.md (title: conventions)"]
        assert sorted(line for line in listed if line.startswith("- ")) == sorted(roots + deep)
        assert "-BODY" not in provider.requests[0].model_dump_json()
        assert "Before you begin, read those that apply" in blocks["system.instruction_catalog"]
    assert ("RULE-BODY" in text, "DEEP-BODY" in text) == (False, False)


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
    assert "use tabs" not in system_text(provider, 0)
    assert "use tabs" in provider.requests[1].messages[-1].model_dump_json()
    assert system_text(provider, 0) == system_text(provider)
    assert "use spaces" in provider.requests[-1].messages[-1].model_dump_json()


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


RESERVED = [
    *("code.read_file", "code.mine", "agent.mine", "internal.mine", "mcp.mine", "mcp.a.b"),
    *("mcp__a__b", "Mcp.a.b", "CODE.read_file", "code__read_file", "mcp_.a", "agent.__x"),
]


@pytest.mark.parametrize("name", RESERVED)
async def test_a_tool_cannot_take_a_name_of_the_program(
    home: Home, project: Path, name: str
) -> None:
    async def nothing(arguments: dict[str, Any], context: Any) -> None:
        pass

    @tool(name=name)
    async def decorated() -> None:
        """Does nothing."""

    made = runtime(home, project, ["hi"])
    with pytest.raises(ConfigError, match=re.escape(name)) as refusal:
        made.register_tool(ToolDefinition(name=name, description="mine"), nothing)
    assert refusal.value.code is ErrorCode.VALIDATION_ERROR
    for registering in (made.register_tool, ToolRegistry().register):
        with pytest.raises(ConfigError, match=re.escape(name)):
            registering(decorated)


@pytest.mark.parametrize("name", ["mcp.mine", "code.mine", "mcp__mine"])
async def test_a_tool_file_with_a_name_of_the_program_is_left_out(
    home: Home, project: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    file = {"name": name, "description": "", "command_type": "exec", "command": "true"}
    home.write("tools/mine.json", json.dumps(file))
    provider = ScriptedProvider(["hi"])
    async with runtime(home, project, provider) as made:
        await ask(made)
    assert name not in {each.name for each in provider.requests[0].tools}
    assert "mine.json" in caplog.text


async def test_a_command_allowed_for_the_session_opens_no_other_command(
    home: Home, project: Path
) -> None:
    """Copying once was a way to install hooks, which are commands that run unasked."""
    (project / "a").write_text("{}", encoding="utf-8")
    elsewhere = project.with_name(f"{project.name}-elsewhere")
    lines = [
        ["cp", "a", "b"],
        ["cp", "a", "b"],
        ["cp", "a", str(home.path / "hooks.json")],
        ["cp", "a", "c"],
        ["cp", "a", str(elsewhere)],
        ["cp", "a", str(elsewhere)],
    ]
    script = [*(calls("code.run_command", argv=line) for line in lines), "done"]
    asked = Asked("allow_for_session")
    async with runtime(home, project, script, permission_callback=asked) as made:
        await ask(made)
        answered = await results(made)
    refused = answered[2].error
    assert refused is not None
    assert refused.code is ErrorCode.PERMISSION_DENIED
    assert not (home.path / "hooks.json").exists()
    assert [result.is_error for result in answered] == [False, False, True, False, False, False]
    assert [request.metadata["target"] for request in asked.requests] == [
        "cp a b",
        "cp a c",
        f"cp a {elsewhere}",
        f"cp a {elsewhere}",
    ]
    assert asked.requests[-1].metadata["reason"] == "outside_roots"
    assert asked.requests[-1].metadata["places"] == [str(elsewhere)]
    assert asked.requests[-1].target_scope == "this call only"


async def test_a_folder_allowed_for_the_session_opens_no_secret_in_it(
    home: Home, project: Path
) -> None:
    names = ["a.txt", "b.txt", ".env", ".env.local", "server.pem"]
    script = [*(calls("code.write_file", path=name, content="x") for name in names), "done"]
    asked = Asked("allow_for_session")
    async with runtime(home, project, script, permission_callback=asked) as made:
        await ask(made)
    reasons = [request.metadata.get("reason") for request in asked.requests]
    assert reasons == [None, "sensitive", "sensitive", "sensitive"]


OWN_FILES = (
    *("config.toml", "hooks.json", "mcp.json"),
    *("tools/x.json", "memory/user.md", "sessions.sqlite"),
)


@pytest.mark.parametrize("name", sampled(OWN_FILES, keep=1))
async def test_reading_the_programs_own_files_asks(home: Home, project: Path, name: str) -> None:
    if name not in {"config.toml", "sessions.sqlite"}:
        home.write(name, '{"version": 1, "hooks": {}}' if name == "hooks.json" else "{}")
    (project / "link").symlink_to(home.path)
    here, linked = str(home.path / name), f"link/{name}"
    script = [
        *(
            calls(name_of_tool, **arguments)
            for path in (here, linked)
            for name_of_tool, arguments in (
                ("code.read_file", {"path": path}),
                ("code.search", {"query": "x", "path": path}),
                ("code.list_dir", {"path": str(Path(path).parent)}),
            )
        ),
        "done",
    ]
    asked = Asked("deny")
    config = CONFIG + "[tools]\ndeclarative_enabled = false\n"
    async with runtime(home, project, script, config=config, permission_callback=asked) as made:
        await ask(made)
        answered = await results(made)
    assert [request.metadata["reason"] for request in asked.requests] == ["program_home"] * 6
    assert all(result.error and result.error.code == "permission_denied" for result in answered)


@pytest.mark.parametrize("name", ["AGENTS.md", "rules/style.md", "skills/pdf/forms.md"])
async def test_what_the_home_has_for_models_is_read_unasked(
    home: Home, project: Path, name: str
) -> None:
    home.write(name, "for models")
    script = [calls("code.read_file", path=str(home.path / name)), "done"]
    asked = Asked("deny")
    async with runtime(home, project, script, permission_callback=asked) as made:
        await ask(made)
        (result,) = await results(made)
    assert asked.requests == []
    assert "for models" in result.model_dump_json()


async def test_a_network_tool_is_judged_by_every_host_it_names(home: Home, project: Path) -> None:
    @tool(name="web.fetch", permission="readonly", tags=["network"])
    async def fetch(where: dict[str, Any], note: str = "") -> str:
        """Fetch a page."""
        return "fetched"

    config = CONFIG + '[permissions.network_policy]\nallowed_hosts = ["good.example"]\n'
    script = [
        calls("web.fetch", where={"links": ["https://good.example/a.html"]}),
        calls("web.fetch", where={"links": [{"to": "https://evil.example"}]}),
        calls("web.fetch", where={"at": "good.example"}, note="via https%3A%2F%2Fevil.example"),
        calls("web.fetch", where={}),
        "done",
    ]
    asked = Asked("deny")
    made = runtime(home, project, script, config=config, permission_callback=asked)
    made.register_tool(fetch)
    async with made:
        await ask(made)
        answered = await results(made)
    assert [result.is_error for result in answered] == [False, True, True, True]
    hosts = [request.network_host for request in asked.requests]
    assert hosts == ["evil.example", "evil.example,good.example", None]


async def test_a_tag_the_user_adds_counts_like_one_of_the_tools_own(
    home: Home, project: Path
) -> None:
    @tool(name="web.fetch", permission="readonly")
    async def fetch(url: str) -> str:
        """Fetch a page."""
        return "fetched"

    script = [calls("web.fetch", url="https://evil.example"), "done"]
    for tag, host in (("network", "evil.example"), ("dangerous", None)):
        config = CONFIG + f'[tools.overrides."web.fetch"]\ntags = ["{tag}"]\n'
        asked = Asked("deny")
        made = runtime(home, project, script, config=config, permission_callback=asked)
        made.register_tool(fetch)
        async with made:
            await ask(made)
        assert [request.network_host for request in asked.requests] == [host]


async def test_a_tool_with_effects_is_remembered_with_its_arguments(
    home: Home, project: Path
) -> None:
    file = {
        "name": "notes.copy",
        "description": "",
        "input_schema": {"properties": {"a": {"type": "string"}, "b": {"type": "string"}}},
        "command_type": "exec",
        "command": "true",
        "args": ["{{args.a}}"],
    }
    home.write("tools/notes.json", json.dumps(file))

    @tool(name="own.copy")
    async def copy(a: str, b: str) -> str:
        """Copy."""
        return "copied"

    script: list[Any] = [
        *(
            calls(name, a="a", b=b)
            for name in ("notes.copy", "own.copy")
            for b in ("b", "b", "hooks.json")
        ),
        "done",
    ]
    asked = Asked("allow_for_session")
    made = runtime(home, project, script, permission_callback=asked)
    made.register_tool(copy)
    async with made:
        await ask(made)
        assert not any(result.is_error for result in await results(made))
    assert [(each.tool_name, each.target_scope) for each in asked.requests] == [
        (name, f'{name} with exactly {{"a": "a", "b": "{b}"}}')
        for name in ("notes.copy", "own.copy")
        for b in ("b", "hooks.json")
    ]
    assert all('"b"' in request.args_summary for request in asked.requests)


async def test_listing_and_searching_above_secrets_leave_them_out(
    home: Home, project: Path
) -> None:
    for name in (".ssh/id_rsa", "Secrets/key.txt", "sub/secrets.txt"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text("needle", encoding="utf-8")
    config = CONFIG + '[tools]\nsensitive_paths = [".ssh", "secrets/", ".env"]\n'
    home = Home(home.path / "above" / "home")
    home.path.mkdir(mode=0o700, parents=True)
    script = [
        calls("code.list_dir", path=".", recursive=True),
        calls("code.search", query="needle"),
        calls("code.list_dir", path=str(home.path.parent), recursive=True),
        calls("code.list_dir", path=".ssh"),
        "done",
    ]
    asked = Asked("allow_once")
    async with runtime(home, project, script, config=config, permission_callback=asked) as made:
        await ask(made)
        listed, found, above, agreed = map(data_of, await results(made))
    names = {entry["path"] for entry in listed["entries"]}
    assert {".ssh", "Secrets", "sub", "sub/secrets.txt"} <= names
    assert not names & {".ssh/id_rsa", "Secrets/key.txt"}
    assert [match["path"] for match in found["matches"]] == ["sub/secrets.txt"]
    paths = [entry["path"] for entry in above["entries"]]
    assert str(home.path) in paths
    assert not any(path.startswith(f"{home.path}/") for path in paths)
    assert [request.metadata["reason"] for request in asked.requests] == ["sensitive"]
    assert [entry["name"] for entry in agreed["entries"]] == ["id_rsa"]


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


@pytest.mark.sweep
@pytest.mark.parametrize("answer", sampled([{}, {"reason": ""}, {"reason": " \n"}], keep=1))
async def test_a_stop_hook_without_a_reason_still_says_something_to_the_model(
    home: Home, project: Path, answer: dict[str, str]
) -> None:
    (home.path / "answer.json").write_text(json.dumps({"decision": "deny"} | answer))
    command = f"test -e {home.path}/ok && exit 0; touch {home.path}/ok; cat {home.path}/answer.json"
    group = {"hooks": [{"type": "command", "command": command}]}
    home.write("hooks.json", json.dumps({"version": 1, "hooks": {"Stop": [group]}}))
    provider = ScriptedProvider(["finished", "now really"])
    async with runtime(home, project, provider) as made:
        handle = await ask(made)
    assert handle.result_text == "now really"
    assert "no reason was given" in provider.requests[1].messages[-1].model_dump_json()


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


@pytest.mark.long
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


@pytest.mark.sweep
async def test_a_failing_server_is_reported_once_in_a_run_whose_tools_change(
    home: Home, project: Path
) -> None:
    mcp_config(
        home,
        plain={"command": sys.executable, "args": ["-S", str(WORKSHOP.parent / "plain.py")]},
        dead=DEAD,
    )
    script = [calls("mcp.plain.change"), calls("mcp.plain.change"), "done", "done"]
    asked = Asked("allow_for_session")
    async with runtime(home, project, script, permission_callback=asked) as made:
        await ask(made)
        assert len(await results(made)) == 2
        (failed,) = await events(made, EventType.MCP_SERVER_FAILED)
        assert failed.payload["server_id"] == "dead"
        await ask(made)
        assert len(await events(made, EventType.MCP_SERVER_FAILED)) == 2


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


@pytest.mark.long
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


@pytest.mark.parametrize("name", ["AGENTS.md", "agents.md"])
async def test_the_users_own_files_are_read_without_a_question_wherever_links_lead(
    home: Home, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    hidden = tmp_path / ".dotfiles"
    (hidden / "rules").mkdir(parents=True)
    for file in (hidden / "mine.md", hidden / "rules" / "a.md", hidden / "other.md"):
        file.write_text("BODY", encoding="utf-8")
    home.path.mkdir(parents=True, exist_ok=True)
    (home.path / name).symlink_to(hidden / "mine.md")
    (home.path / "rules").symlink_to(hidden / "rules")
    paths = [f"{home.path}/{name}", f"{home.path}/rules/a.md", str(hidden / "other.md")]
    provider = ScriptedProvider([*(calls("code.read_file", path=path) for path in paths), "done"])
    user = Asked("deny")
    async with runtime(home, project, provider, permission_callback=user) as made:
        await ask(made)
        nodes = (await made.replay_session("s1")).nodes
    (asked,) = user.requests
    assert "other.md" in asked.args_summary
    loaded = [
        node.metadata["path"] for node in nodes if node.node_type is NodeType.INSTRUCTION_CONTEXT
    ]
    assert loaded == paths[:2]
