"""A secret in every place a secret is configured, repeated by everything that can repeat it.

Whatever a run leaves or shows is searched for every one of them.
"""

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agent_core import AgentRuntime, ToolDefinition, UserMessage
from agent_core.providers.scripted import Calls, Fails, Says, ScriptedProvider, calls
from agent_core.types import ToolPermission
from in_process import carry_out
from isolation import Home
from runtimes import CONFIG, Asked, collect, runtime

TELLTALE = Path(__file__).parents[1] / "mcp_servers" / "telltale.py"
VARIABLES = {
    "K_MODEL": "planted-model-0001",
    "K_OVERRIDE": 'planted "override" \\ 0002',
    "K_EXTRACT": "planted-extract-0003",
    "K_RECALL": "planted-recall-0004",
    "K_COMPACT": "planted-compact-0005",
    "K_AGENT": "planted-agent-0006",
}
SERVERS: dict[str, str] = {
    "enabled env": "planted-enabled-0007",
    "disabled env": "planted-disabled-0008",
    "switched off env": "planted-switched-0009",
    "headers": "planted-header-0010",
    "bearer": "planted-bearer-0011",
    "address": "planted-address-0012",
    "password": "planted-password-0013",
}
PLANTED = {**VARIABLES, **SERVERS}
ALL = " | ".join(PLANTED.values())
SETTINGS = (
    CONFIG
    + """api_key_env = "K_MODEL"
[model_overrides.other]
api_key_env = "K_OVERRIDE"
[memory]
extract_model_profile = { api_key_env = "K_EXTRACT" }
recall_model_profile = { api_key_env = "K_RECALL" }
[compact]
model_profile = { api_key_env = "K_COMPACT" }
[tools]
result_limit_bytes = 3000
stdout_limit_bytes = 2000
[tools.mcp]
disabled_servers = ["off"]
"""
)
INPUTS = {"mcp.json", "hooks.json", "CLAUDE.md", "SKILL.md", "all.txt", "say-all.sh"}


def servers(told: Path) -> dict[str, Any]:
    address = f"https://host/mcp?key={PLANTED['address']}"
    return {
        "told": {
            "command": sys.executable,
            "args": [str(TELLTALE), str(told)],
            "env": {"REGION": PLANTED["enabled env"]},
        },
        "gone": {"command": "x", "env": {"LANG": PLANTED["disabled env"]}, "disabled": True},
        "off": {"command": "x", "env": {"MODE": PLANTED["switched off env"]}},
        "web": {
            "url": address,
            "headers": {"X-Team": PLANTED["headers"], "X-Y": f"Bearer {PLANTED['bearer']}"},
            "disabled": True,
        },
        "db": {"command": "x", "args": [f"pg://me:{PLANTED['password']}@h/d"], "disabled": True},
    }


def plant(home: Home, project: Path) -> None:
    told = home.write("all.txt", ALL)
    home.write("mcp.json", json.dumps({"mcpServers": servers(told)}))
    script = home.write("say-all.sh", f"cat <<'END'\n{ALL}\nEND\n")
    command = f"cat > /dev/null; sh {script} >&2; printf '%s' '{{\"decision\":\"allow\"}}'"
    failing = f"sh {script} >&2; exit 7"
    hooks = [{"type": "command", "command": text} for text in (command, failing)]
    events = ("SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "Stop")
    table = {event: [{"hooks": hooks}] for event in events}
    home.write("hooks.json", json.dumps({"version": 1, "hooks": table}))
    home.write("CLAUDE.md", f"---\ndescription: rules of {ALL}\n---\n{ALL}\n")
    front = f"---\nname: leaky\ndescription: all of {ALL}\n---\n"
    home.write("skills/leaky/SKILL.md", front + ALL)
    profile = "model_profile: {api_key_env: K_AGENT}"
    home.write(
        "agents/keyed.md",
        f"---\nid: keyed\nname: keyed\ndescription: has a key\n{profile}\n---\nwork",
    )
    (project / "planted.txt").write_text(ALL, encoding="utf-8")


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)


def forms(value: str) -> set[str]:
    return {value, json.dumps(value)[1:-1], json.dumps(json.dumps(value)[1:-1])[1:-1]}


def found_in(text: str) -> list[str]:
    return [
        f"{name}: …{text[max(0, text.find(form) - 150) : text.find(form) + 60]}…"
        for name, value in PLANTED.items()
        for form in forms(value)
        if form in text
    ]


def require_clean(places: Mapping[str, str]) -> None:
    dirty = {place: found for place, text in places.items() if (found := found_in(text))}
    assert not dirty, json.dumps(dirty, indent=1)


def files_of(*folders: Path, inputs: frozenset[str] = frozenset()) -> dict[str, str]:
    return {
        str(path): path.read_bytes().decode("utf-8", "replace")
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and path.name not in INPUTS | inputs
    }


def breaking(made: AgentRuntime) -> None:
    async def leak(arguments: Any, context: Any) -> Any:
        context.progress(ALL)
        await context.artifact(ALL.encode(), kind="note", filename=f"{PLANTED['K_MODEL']}.txt")
        match arguments.get("how"):
            case "raise":
                raise RuntimeError(ALL)
            case "large":
                return {"all": ALL * 100, ALL: ALL}
            case _:
                return {"all": ALL, ALL: [ALL]}

    schema = {"type": "object", "properties": {"how": {"type": "string"}}}
    definition = ToolDefinition(
        name="leak",
        description=f"leaks {ALL}",
        input_schema=schema,
        permission=ToolPermission.READONLY,
    )
    made.register_tool(definition, leak)


SCRIPT = [
    Says(text=ALL, reasoning=ALL, chunks=len(ALL)),
    calls("leak"),
    calls("leak", how="raise"),
    calls("leak", how="large"),
    calls("leak", how=7, surprise=ALL),
    Calls.model_validate({"calls": [{"name": "leak", "arguments": "{broken " + ALL}]}),
    calls(f"no-such-{PLANTED['K_MODEL']}"),
    calls("mcp.told.answers", a=ALL),
    calls("mcp.told.fails"),
    calls("mcp.told.breaks"),
    calls("code.read_file", path="planted.txt"),
    calls("code.read_file", path=f"{PLANTED['K_MODEL']}.txt"),
    calls("code.search", query="planted"),
    calls("code.write_file", path="written.txt", content=ALL),
    calls("code.edit_file", path="planted.txt", edits=[{"old": "absent " + ALL, "new": "x"}]),
    calls("code.run_command", argv=["sh", "-c", "for i in $(seq 40); do cat planted.txt; done"]),
    calls("code.run_command", argv=["sh", "-c", "cat planted.txt >&2; exit 3"]),
    calls("internal.load_skill", name="leaky"),
    calls("internal.write_plan", title="t", goal=ALL),
    calls("agent.create_sub_agent", task=f"child {ALL}"),
    f"done with {ALL}",
]


async def test_no_planted_secret_is_in_what_a_run_leaves_shows_or_sends(
    home: Home, project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plant(home, project)
    replies = iter(SCRIPT[1:])

    def reply(request: Any) -> Any:
        if request.metadata.get("purpose"):
            return ALL  # a summary, a memory
        if any("child planted" in str(m.content) or "child [red" in str(m.content)
               for m in request.messages[:1]):  # fmt: skip
            return f"the child says {ALL}"
        return next(replies, f"done with {ALL}")

    provider = ScriptedProvider(reply)
    asked = Asked("allow_once")
    caplog.set_level(logging.DEBUG)
    made = runtime(home, project, provider, config=SETTINGS, permission_callback=asked)
    breaking(made)
    async with made:
        message = UserMessage(content=f"look at {ALL}", metadata={"from": ALL})
        handle = await made.start(message, session_id="s1")
        events = await collect(handle, debug=True)
        assert handle.error is None
        compacted = await made.compact_session("s1")
        await compacted.wait()
        replays = [
            (await made.replay_session("s1", include_sensitive=sensitive)).model_dump_json()
            for sensitive in (False, True)
        ]
        child_id = next(e.payload["child_run_id"] for e in events if "child_run_id" in e.payload)
        replays.append(repr(await handle.inspect_child(child_id, include_sensitive=True)))
    assert next(replies, None) is None
    require_clean(
        {
            "events": "\n".join(event.model_dump_json() for event in events),
            "result": str(handle.result_text),
            "replay": "\n".join(replays),
            "requests": "\n".join(r.model_dump_json() for r in provider.requests),
            "questions": "\n".join(r.model_dump_json() for r in asked.requests),
            "log": caplog.text,
            **files_of(home.path),
            **files_of(project, inputs=frozenset({"planted.txt", "written.txt"})),
        }
    )
    assert (project / "written.txt").read_text(encoding="utf-8") == ALL


async def test_no_planted_secret_is_in_what_a_failed_run_leaves(
    home: Home, project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plant(home, project)
    failure = Fails(text=ALL, message=ALL, details={"body": ALL, ALL: 1})
    provider = ScriptedProvider(lambda _: failure)
    caplog.set_level(logging.DEBUG)
    async with runtime(home, project, provider, config=SETTINGS) as made:
        handle = await made.start("go", session_id="s1")
        events = await collect(handle, debug=True)
        replay = await made.replay_session("s1", include_sensitive=True)
    assert handle.error is not None
    require_clean(
        {
            "events": "\n".join(event.model_dump_json() for event in events),
            "error": handle.error.model_dump_json(),
            "replay": replay.model_dump_json(),
            "requests": "\n".join(r.model_dump_json() for r in provider.requests),
            "log": caplog.text,
            **files_of(home.path, project, inputs=frozenset({"planted.txt"})),
        }
    )


async def test_no_planted_secret_reaches_the_terminal(home: Home, project: Path) -> None:
    plant(home, project)
    script = project / "script.json"
    replies: list[Any] = [
        {"type": "calls", "text": ALL, "calls": [{"name": "mcp.told.answers"}]},
        {"type": "calls", "calls": [{"name": "mcp.told.breaks"}]},
        {"type": "calls", "calls": [{"name": "code.run_command", "arguments": {"argv": [ALL]}}]},
        {"type": "fails", "message": ALL},
    ]
    script.write_text(json.dumps(replies), encoding="utf-8")
    settings = SETTINGS.replace('"custom"', '"scripted"')
    settings = settings.replace("[model_overrides", f'path = "{script}"\n[model_overrides', 1)
    home.write_config(settings)
    argv = [sys.executable, "-m", "agent_core.cli", "run", "--path", str(project), f"say {ALL}"]
    shown = await asyncio.to_thread(
        subprocess.run, argv, input=b"1\n1\n1\n", env=home.env(), capture_output=True, check=False
    )
    assert shown.returncode == 1, shown
    out, err = shown.stdout.decode(), shown.stderr.decode()
    assert "[redacted:" in out + err
    require_clean({"stdout": out, "stderr": err, **files_of(home.path)})


STEP = {"step_id": "s1", "title": ALL, "summary": ALL}
POOL = """
[[agents.worker_pools]]
pool_id = "builders"
[[agents.worker_pools.workers]]
worker_id = "anna"
agent_definition_id = "default_worker_agent"
"""


def soong(home: Home, project: Path, *arguments: str) -> tuple[int, str]:
    done = carry_out(arguments, home.env(), project)
    return done.returncode, done.stdout + done.stderr


def test_what_was_stored_before_a_secret_was_configured_is_not_shown_with_it(
    home: Home, project: Path
) -> None:
    task = {"task_id": "t1", "wal_name": "w", "title": ALL, "steps": [STEP]}
    create = {"type": "calls", "calls": [{"name": "agent.task_create", "arguments": task}]}
    script = home.write("replies.json", json.dumps([create, ALL]))
    plain = SETTINGS.split("api_key_env")[0].replace('"custom"', '"scripted"')
    home.write_config(f'{plain}path = "{script}"\n[memory]\nenabled = false\n{POOL}')
    code, said = soong(home, project, "run", "--orchestrator", "--session-id", "s1", ALL)
    assert code == 0, said
    head = f"id: mem_1\nsummary: {json.dumps(ALL)}\ntags: [{json.dumps(ALL)}]"
    home.write("memory/user/m.md", f'---\n{head}\ncreated_at: "2026-01-01"\n---\n{ALL}\n')
    home.write("memory/user/broken.md", f"---\n{ALL}: [\n---\n")
    plant(home, project)
    settings = SETTINGS.replace('"custom"', '"scripted"')
    home.write_config(
        settings.replace("[model_overrides", f'path = "{script}"\n[model_overrides', 1)
    )
    picture = project / "task.svg"
    shown = {
        "task": soong(home, project, "tasks", "show", "t1"),
        "picture": soong(home, project, "tasks", "show", "t1", "--svg", str(picture)),
        "memories": soong(home, project, "memory", "list"),
        "memory": soong(home, project, "memory", "show", "mem_1"),
        "forget": soong(home, project, "memory", "forget", "mem_1"),
        "sessions": soong(home, project, "sessions", "list"),
        "session": soong(home, project, "sessions", "show", "s1"),
    }
    assert {name: code for name, (code, _) in shown.items() if code} == {}
    for name in ("task", "memories", "memory", "session"):
        assert "[redacted:" in shown[name][1], shown[name]
    require_clean(
        {name: text for name, (_, text) in shown.items()}
        | {"svg": picture.read_text(encoding="utf-8")}
    )
