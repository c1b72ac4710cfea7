"""What a run may do in plan mode and with accept-edits, and what its model reads about it."""

import asyncio
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agent_core import AgentCoreError, AgentRuntime, RunStatus, ToolDefinition, tool
from agent_core.permissions.policy import PLAN_MODE, PLAN_MODE_IS_OVER
from agent_core.providers.scripted import ScriptedProvider, calls
from agent_core.types import ModelRequest, NodeType, PermissionMode
from isolation import Home
from runtimes import CONFIG, Asked, ask, runtime
from sweeps import sampled

PLAN: PermissionMode = "plan"
EDITS: PermissionMode = "accept-edits"


def text_of(request: ModelRequest) -> str:
    return "\n".join(
        getattr(block, "text", "") for message in request.messages for block in message.content
    )


async def results(made: AgentRuntime, session_id: str = "s1") -> list[str]:
    """The answers to all calls of a session: `ok`, or the reason of the error."""
    replay = await made.replay_session(session_id, include_sensitive=True)
    found = [result for node in replay.nodes for result in node.results]
    return [
        str(each.error.details.get("reason", each.error.code)) if each.error else "ok"
        for each in found
    ]


def write(path: str, content: str = "x") -> Sequence[Any]:
    return [calls("code.write_file", path=path, content=content), "done"]


@tool
def publish() -> str:
    """Publish it."""
    raise AssertionError("a tool that writes was run in plan mode")


@tool(permission="readonly")
def stock() -> int:
    """How many are left."""
    return 3


async def test_plan_mode_refuses_every_kind_of_change_whatever_rules_and_answers_allow(
    home: Home, project: Path
) -> None:
    rules = """
[permissions]
save_rules = true
[[permissions.rules]]
decision = "allow"
tool = "*"
"""
    (home.path / "tools").mkdir(parents=True)
    (home.path / "tools" / "touch.json").write_text(
        '{"name": "touch_it", "description": "d", "command_type": "exec", "command": "touch",'
        ' "args": ["made-by-a-tool"]}',
        encoding="utf-8",
    )
    (project / "a.txt").write_text("a\n", encoding="utf-8")
    script: list[Any] = [
        calls("code.write_file", path="b.txt", content="b"),
        calls("code.run_command", argv=["touch", "c"]),
        calls("code.run_command", argv=["sh", "-c", "echo hi > d"]),
        calls("touch_it"),
        calls("publish"),
        calls("code.read_file", path="a.txt"),
        calls("code.edit_file", path="a.txt", edits=[{"old": "a", "new": "b"}]),
        calls("stock"),
        calls("code.run_command", argv=["cat", "a.txt"]),
        "the plan",
    ]
    user = Asked("allow_for_session")
    config = CONFIG + rules
    async with runtime(home, project, script, config=config, permission_callback=user) as made:
        made.register_tool(publish)
        made.register_tool(stock)
        done = await made.run("go", session_id="s1", permission_mode=PLAN)
        assert done.text == "the plan"
        assert await results(made) == [*["plan_mode"] * 5, "ok", "plan_mode", "ok", "ok"]
    assert not user.requests
    assert sorted(path.name for path in project.iterdir()) == ["a.txt"]
    assert (project / "a.txt").read_text(encoding="utf-8") == "a\n"


def _repository(folder: Path) -> None:
    subprocess.run(["git", "init", "-q", folder], check=True)  # noqa: S603, S607


@pytest.mark.parametrize(
    ("line", "runs"),
    sampled(
        [
            ("ls", True),
            ("git status", True),
            ("sh -c 'cat a | wc -l'", True),
            ("bash -c 'cd src && ls'", True),
            ("nice ls -l", True),
            ("sh -c 'set -e; [ -f a ] && cat a || :'", True),
            ("test -f a", True),
            ("sh -c 'exit 1'", True),
            ("sh -c 'kill 1'", False),
            ("sh -c 'trap \"touch x\" EXIT; ls'", False),
            ("sh -c 'alias ls=rm; ls'", False),
            ("sh -c 'PATH=. ls'", False),
            ("sh -c 'cd src; ./ls'", False),
            ("sh -c 'nosuchprogram'", False),
            ("git commit -m x", False),
            ("git -c core.pager=x log", False),
            ("git diff --output=x", False),
            ("rg --pre sh x", False),
            ("pytest", False),
            ("./ls", False),
            ("sh -c 'ls > x'", False),
            ("sh -c 'ls; touch x'", False),
            ("sh -c 'ls $(touch x)'", False),
            ("sh -c 'cat *'", False),
            ("env A=b ls", False),
            ("sudo ls", False),
            ("xargs ls", False),
            ("find . -delete", False),
            ("sed -i s/a/b/ a", False),
        ],
        keep=4,
    ),
)
async def test_a_command_runs_in_plan_mode_if_all_of_it_only_reads(
    line: str, runs: bool, home: Home, project: Path
) -> None:
    (project / "src").mkdir()
    (project / "a").write_text("a", encoding="utf-8")
    (project / "ls").write_text("#!/bin/sh\ntouch made", encoding="utf-8")
    (project / "ls").chmod(0o755)
    _repository(project)
    async with runtime(home, project, permission_callback=Asked("deny")) as made:
        try:
            found = await made.explain_permission(
                "code.run_command", {"argv": shlex.split(line)}, permission_mode=PLAN
            )
        except AgentCoreError as error:
            assert "there is no program" in error.message  # noqa: PT017 - not on every machine
            return
    assert found.decision == ("ask" if runs else "deny")
    if not runs:
        assert found.by == "plan mode"
        assert "plan mode" in found.refusal


async def test_a_command_that_reads_is_asked_for_in_plan_mode_as_ever(
    home: Home, project: Path
) -> None:
    script = [calls("code.run_command", argv=["ls"]), "the plan"]
    user = Asked("deny")
    async with runtime(home, project, script, permission_callback=user) as made:
        await made.run("go", session_id="s1", permission_mode=PLAN)
    assert [request.args_summary for request in user.requests] == ["ls"]


async def test_the_model_reads_that_plan_mode_begins_and_that_it_is_over(
    home: Home, project: Path
) -> None:
    provider = ScriptedProvider(["one", "two", "three", "four", "five"])
    async with runtime(home, project, provider) as made:
        for mode in (None, PLAN, PLAN, None, EDITS):
            await made.run("go", session_id="s1", permission_mode=mode)
    plain, first, second, after, later = map(text_of, provider.requests)
    assert PLAN_MODE not in plain
    assert (first.count(PLAN_MODE), second.count(PLAN_MODE)) == (1, 2)
    assert PLAN_MODE_IS_OVER not in second
    assert after.count(PLAN_MODE_IS_OVER) == later.count(PLAN_MODE_IS_OVER) == 1
    assert first.index(PLAN_MODE) < first.rindex("go")


@pytest.mark.sweep
async def test_the_mode_moves_nothing_that_a_prompt_cache_holds(home: Home, project: Path) -> None:
    provider = ScriptedProvider(["one", "two", "three"])
    async with runtime(home, project, provider) as made:
        for mode in (None, PLAN, None):
            await made.run("go", session_id="s1", permission_mode=mode)
    one, two, three = provider.requests
    assert one.system == two.system == three.system
    assert one.tools == two.tools == three.tools
    assert two.messages[: len(one.messages)] == one.messages
    assert three.messages[: len(two.messages)] == two.messages


async def test_an_undone_plan_is_not_said_to_be_over(home: Home, project: Path) -> None:
    provider = ScriptedProvider(["one", "two", "three"])
    async with runtime(home, project, provider) as made:
        await made.run("first", session_id="s1")
        await made.run("second", session_id="s1", permission_mode=PLAN)
        undone = await made.undo("s1")
        assert undone.message == "second"
        await made.run("third", session_id="s1")
    assert "lan mode" not in text_of(provider.requests[-1])


async def test_a_first_message_may_be_in_plan_mode(home: Home, project: Path) -> None:
    provider = ScriptedProvider([calls("code.write_file", path="a", content="x"), "plan"])
    async with runtime(home, project, provider) as made:
        await made.run("go", session_id="s1", permission_mode=PLAN)
        assert await results(made) == ["plan_mode"]
        session = await made.replay_session("s1")
    assert text_of(provider.requests[0]).count(PLAN_MODE) == 1
    assert session.nodes[-1].text == "plan"


async def test_children_have_the_mode_of_their_parent(home: Home, project: Path) -> None:
    script: list[Any] = [
        calls("agent.create_sub_agent", task="write it"),
        calls("code.write_file", path="child.txt", content="x"),
        "it was refused",
        calls("agent.create_sub_agent", task="write it"),
        "no child writes",
        "the plan",
    ]
    provider = ScriptedProvider(script)
    async with runtime(home, project, provider, permission_callback=Asked("allow_once")) as made:
        await made.run("go", session_id="s1", permission_mode=PLAN)
    assert not (project / "child.txt").exists()
    assert PLAN_MODE in text_of(provider.requests[1])


async def test_a_typed_answer_is_given_in_plan_mode(home: Home, project: Path) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    script = [calls("final_answer", n=3)]
    async with runtime(home, project, script) as made:
        done = await made.run(
            "go",
            session_id="s1",
            output_type=schema,
            output_mode="tool",
            permission_mode=PLAN,
        )
    assert done.output == {"n": 3}


@pytest.mark.parametrize(("mode", "asked"), [(PLAN, 1), (None, 2)])
async def test_no_memory_is_extracted_after_a_run_in_plan_mode(
    mode: PermissionMode | None, asked: int, home: Home, project: Path
) -> None:
    provider = ScriptedProvider(["the plan", "nothing to remember"])
    config = CONFIG + "[memory]\nextract_every_messages = 1\n"
    async with runtime(home, project, provider, config=config) as made:
        await made.run("I am called Ada", session_id="s1", permission_mode=mode)
        for _ in range(50 if mode is None else 5):
            if len(provider.requests) == asked + (mode == PLAN):
                break
            await asyncio.sleep(0.05)
        assert len(provider.requests) == asked


async def test_no_setting_of_a_tool_makes_a_writer_a_reader(home: Home, project: Path) -> None:
    config = (
        CONFIG
        + """
[tools.overrides."code.write_file"]
permission = "readonly"
tags = ["internal", "readonly"]
[tools.overrides."code.run_command"]
permission = "readonly"
tags = ["readonly"]
"""
    )
    script: list[Any] = [
        calls("code.write_file", path="a", content="x"),
        calls("code.run_command", argv=["touch", "b"]),
        "the plan",
    ]
    user = Asked("allow_once")
    async with runtime(home, project, script, config=config, permission_callback=user) as made:
        await made.run("go", session_id="s1", permission_mode=PLAN)
        assert await results(made) == ["plan_mode", "plan_mode"]
    assert list(project.iterdir()) == []


async def test_the_template_of_a_plan_makes_no_folder_in_plan_mode(
    home: Home, project: Path
) -> None:
    script = [calls("agent.plan_template", goal="tidy"), "the plan"]
    async with runtime(home, project, script) as made:
        await made.run("go", session_id="s1", permission_mode=PLAN)
        assert await results(made) == ["ok"]
    assert list(project.iterdir()) == []


async def test_plan_mode_writes_a_plan_after_the_usual_question_and_nothing_else(
    home: Home, project: Path
) -> None:
    (project / "a.md").write_text("a\n", encoding="utf-8")
    plan, edits = ".soong-agent/plans/tidy.md", [{"old": "one", "new": "two"}]
    script: list[Any] = [
        calls("agent.plan_template", goal="tidy", suggested_dir="docs/plans"),
        calls("code.write_file", path=plan, content="one"),
        calls("code.edit_file", path=plan, edits=edits),
        calls("code.write_file", path=".soong-agent/plans/deep/tidy.md", content="x"),
        calls("code.write_file", path=".soong-agent/plans/run.sh", content="x"),
        calls("code.write_file", path=".soong-agent/tidy.md", content="x"),
        calls("code.write_file", path="a.md", content="x", overwrite=True),
        calls("code.run_command", argv=["touch", ".soong-agent/plans/x.md"]),
        "the plan is written",
    ]
    user = Asked("allow_once")
    async with runtime(home, project, script, permission_callback=user) as made:
        await made.run("go", session_id="s1", permission_mode=PLAN)
        wrong = ["validation_error"] * 2
        assert await results(made) == ["ok", "ok", "ok", *wrong, *["plan_mode"] * 3]
        (instruction,) = [
            node
            for node in (await made.replay_session("s1")).nodes
            if node.node_type is NodeType.PLAN_INSTRUCTION
        ]
        assert "Folder: .soong-agent/plans\n" in instruction.text
    assert [Path(str(each.target_scope)).name for each in user.requests] == ["tidy.md"] * 2
    files = [path for path in project.rglob("*") if path.is_file()]
    assert {path.name: path.read_text(encoding="utf-8") for path in files} == {
        "a.md": "a\n",
        "tidy.md": "two",
    }


async def test_plan_mode_writes_no_plan_that_is_denied_or_whose_folder_leads_elsewhere(
    home: Home, project: Path, tmp_path: Path
) -> None:
    script = write(".soong-agent/plans/tidy.md")
    async with runtime(home, project, script, permission_callback=Asked("deny")) as made:
        await made.run("go", session_id="s1", permission_mode=PLAN)
    assert list(project.iterdir()) == []
    (project / ".soong-agent").mkdir()
    (project / ".soong-agent" / "plans").symlink_to(tmp_path)
    user = Asked("allow_once")
    async with runtime(home, project, script, permission_callback=user) as made:
        await made.run("go", session_id="s1", permission_mode=PLAN)
    assert not (tmp_path / "tidy.md").exists()


async def test_accept_edits_asks_for_a_tool_that_is_called_dangerous(
    home: Home, project: Path
) -> None:
    config = CONFIG + '[tools.overrides."code.write_file"]\ntags = ["dangerous"]\n'
    async with runtime(home, project, config=config, permission_callback=Asked("deny")) as made:
        found = await made.explain_permission(
            "code.write_file", {"path": "a", "content": "x"}, permission_mode=EDITS
        )
    assert found.decision == "ask"


async def test_accept_edits_writes_in_the_project_without_a_question(
    home: Home, project: Path
) -> None:
    (project / "a.txt").write_text("a\n", encoding="utf-8")
    script: list[Any] = [
        calls("code.write_file", path="new/b.txt", content="b"),
        calls("code.read_file", path="a.txt"),
        calls("code.edit_file", path="a.txt", edits=[{"old": "a", "new": "c"}]),
        "done",
    ]
    async with runtime(home, project, script) as made:
        await made.run("go", session_id="s1", permission_mode=EDITS)
        assert await results(made) == ["ok", "ok", "ok"]
    assert (project / "a.txt").read_text(encoding="utf-8") == "c\n"
    assert (project / "new" / "b.txt").exists()


def _link_out(project: Path) -> str:
    (project / "link").symlink_to(project.parent)
    return "link/a"


def _named_hooks(project: Path) -> str:
    _repository(project)
    with (project / ".git" / "config").open("a", encoding="utf-8") as config:
        config.write("[core]\n\thooksPath = tools/hooks\n")
    return "tools/hooks/pre-commit"


def _bare(project: Path) -> str:
    subprocess.run(["git", "init", "-q", "--bare", project / "b"], check=True)  # noqa: S603, S607
    return "b/hooks/post-receive"


@pytest.mark.parametrize(
    "place",
    sampled(
        [
            ".env",
            "conf/.env.local",
            "server.pem",
            ".git/hooks/pre-commit",
            ".git/info/attributes",
            "vendor/.GIT/config",
            "../out",
            "ALLOWED/a",
            "locked/a",
            "deep/down/secret.lock",
            _link_out,
            _named_hooks,
            _bare,
        ],
        keep=3,
    ),
    ids=lambda place: place if isinstance(place, str) else place.__name__.strip("_"),
)
async def test_accept_edits_asks_for_what_is_not_only_the_project(
    place: Any, home: Home, project: Path, tmp_path: Path
) -> None:
    path = place if isinstance(place, str) else str(place(project))
    path = path.replace("ALLOWED", str(tmp_path))
    config = CONFIG + (
        f'[tools]\nallowed_write_roots = ["{tmp_path}"]\n'
        '[sandbox]\nprotect = ["<project>/locked", "*.lock"]\n'
    )
    async with runtime(home, project, config=config, permission_callback=Asked("deny")) as made:
        found = await made.explain_permission(
            "code.write_file", {"path": path, "content": "x"}, permission_mode=EDITS
        )
        assert found.decision == "ask"


async def test_accept_edits_asks_for_a_file_that_has_another_name(
    home: Home, project: Path
) -> None:
    (project / "a").write_text("x", encoding="utf-8")
    (project / "b").hardlink_to(project / "a")
    script: list[Any] = [
        calls("code.read_file", path="b"),
        calls("code.write_file", path="b", content="y", overwrite=True),
        "done",
    ]
    user = Asked("deny")
    async with runtime(home, project, script, permission_callback=user) as made:
        await made.run("go", session_id="s1", permission_mode=EDITS)
    assert len(user.requests) == 1


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"session_id": ""}, "session_id must "),
        ({"agent": "no agent"}, "agent must "),
    ],
)
async def test_an_explanation_names_the_argument_that_is_not_valid(
    home: Home, project: Path, given: dict[str, Any], named: str
) -> None:
    async with runtime(home, project) as made:
        with pytest.raises(AgentCoreError, match=named) as caught:
            await made.explain_permission("code.list_dir", {"path": "."}, **given)
    assert caught.value.code == "validation_error"
    assert "RunIdentity" not in caught.value.message


async def test_accept_edits_refuses_the_programs_own_files(home: Home, project: Path) -> None:
    async with runtime(home, project, permission_callback=Asked("allow_once")) as made:
        found = await made.explain_permission(
            "code.write_file",
            {"path": str(home.path / "config.toml"), "content": "x", "overwrite": True},
            permission_mode=EDITS,
        )
        assert (found.decision, found.by) == ("deny", "the tool itself")


async def test_accept_edits_covers_no_project_that_holds_the_users_own_folder(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(project / "me"))
    async with runtime(home, project, permission_callback=Asked("deny")) as made:
        found = await made.explain_permission(
            "code.write_file", {"path": "me/.profile", "content": "x"}, permission_mode=EDITS
        )
    assert found.decision == "ask"


@pytest.mark.parametrize(("decision", "expected"), [("ask", "ask"), ("deny", "deny")])
async def test_a_rule_stands_above_accept_edits(
    decision: str, expected: str, home: Home, project: Path
) -> None:
    config = CONFIG + f'[[permissions.rules]]\ndecision = "{decision}"\npath = "src/**"\n'
    async with runtime(home, project, config=config, permission_callback=Asked("deny")) as made:
        for path, found in (("src/a", expected), ("b", "allow")):
            explained = await made.explain_permission(
                "code.write_file", {"path": path, "content": "x"}, permission_mode=EDITS
            )
            assert explained.decision == found


async def test_accept_edits_asks_for_commands_and_for_tools_of_others(
    home: Home, project: Path
) -> None:
    user = Asked("deny")
    script = [calls("code.run_command", argv=["true"]), calls("publish"), "done"]
    async with runtime(home, project, script, permission_callback=user) as made:
        made.register_tool(
            ToolDefinition(name="publish", description="d"), lambda arguments, context: "never"
        )
        await made.run("go", session_id="s1", permission_mode=EDITS)
    assert [request.tool_name for request in user.requests] == ["code.run_command", "publish"]


async def test_an_answer_of_one_mode_holds_in_another_and_never_in_plan(
    home: Home, project: Path
) -> None:
    user = Asked("allow_for_session")
    script: list[Any] = [part for path in ("a", "b", "c") for part in write(path)]
    async with runtime(home, project, script, permission_callback=user) as made:
        for mode in ("ask", PLAN, None):
            await made.run("go", session_id="s1", permission_mode=mode)
        assert await results(made) == ["ok", "plan_mode", "ok"]
    assert len(user.requests) == 1


async def test_a_run_that_waited_goes_on_in_its_mode(home: Home, project: Path) -> None:
    config = CONFIG + '[permissions]\nunattended = "park"\n'
    script: list[Any] = [
        calls("code.run_command", argv=["true"]),
        calls("code.write_file", path="a", content="x"),
        "done",
    ]
    provider = ScriptedProvider(script)
    async with runtime(home, project, provider, config=config) as made:
        handle = await made.start("go", session_id="s1", permission_mode=EDITS)
        await handle.wait()
        assert handle.status is RunStatus.WAITING
    async with runtime(home, project, provider, config=config) as made:
        (question,) = await made.approvals()
        await made.answer(question.request_id, "allow_once")
        done = await made.attach(handle.run_id)
        await done.wait()
        assert await results(made) == ["ok", "ok"]
    assert (project / "a").exists()


async def test_the_mode_is_stored_with_the_run(home: Home, project: Path) -> None:
    async with runtime(home, project, ["one", "two"]) as made:
        planned = await made.start("go", session_id="s1", permission_mode=PLAN)
        await planned.wait()
        plain = await ask(made)
        modes = [(await made.inspect_run(each.run_id)).run.options for each in (planned, plain)]
    assert [options and options.permission_mode for options in modes] == [PLAN, None]


async def test_a_mode_that_is_none_is_refused_by_name(home: Home, project: Path) -> None:
    async with runtime(home, project, ["never"]) as made:
        with pytest.raises(AgentCoreError, match=r"permission_mode must be 'plan', 'ask' or"):
            await made.start("go", permission_mode="yolo")  # pyright: ignore[reportCallIssue, reportArgumentType]
