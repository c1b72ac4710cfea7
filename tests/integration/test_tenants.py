"""A runtime of one tenant finds nothing of another by any id, and changes nothing of it."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from agent_core import (
    AgentCoreError,
    AgentRuntime,
    ConfigError,
    ErrorCode,
    PermissionDecision,
    PermissionRequest,
    RunStatus,
)
from agent_core.permissions import UnattendedError
from agent_core.providers.scripted import ScriptedProvider, calls
from agent_core.types import Decision, Page
from isolation import Home

CONFIG = """
[model]
provider = "custom"
name = "script"
context_window = 32000
[memory]
enabled = false
[workspace]
snapshots = "turn"
[permissions]
unattended = "park"
remember_scope = "session_stored"
"""

SCRIPT = [
    calls("code.run_command", argv=["sh", "-c", "seq 60000; echo new > a.txt"]),
    "done",
    calls("code.write_file", path="b.txt", content="b\n"),
]


async def decide(request: PermissionRequest) -> PermissionDecision:
    if request.tool_name == "code.write_file":
        raise UnattendedError
    return PermissionDecision(decision=Decision.ALLOW_FOR_SESSION)


def opened(home: Home, project: Path, url: str, tenant: str | None, *script: Any) -> AgentRuntime:
    runtime = AgentRuntime(
        project,
        home_dir=home.path,
        database_url=url,
        tenant=tenant,
        permission_callback=decide,
    )
    runtime.register_provider("custom", lambda model: ScriptedProvider(script))
    return runtime


def rows(url: str) -> dict[str, list[str]]:
    """All that sessions consist of; not what processes say of themselves."""
    tables = (
        "sessions",
        "runs",
        "nodes",
        "events",
        "artifacts",
        "approvals",
        "grants",
        "node_snapshots",
        "workspaces",
        "blobs",
        "blob_uses",
    )
    found: dict[str, list[str]] = {}
    with psycopg.connect(url) as connection:
        for table in tables:
            statement = f"SELECT t::text FROM {table} AS t ORDER BY 1"  # noqa: S608
            found[table] = [row[0] for row in connection.execute(statement.encode())]
    return found


NOTHING = {
    ErrorCode.SESSION_NOT_FOUND,
    ErrorCode.RUN_NOT_FOUND,
    ErrorCode.NODE_NOT_FOUND,
    ErrorCode.ARTIFACT_NOT_FOUND,
}


@pytest.mark.long
async def test_no_id_of_another_tenant_is_known_and_nothing_of_it_changes(
    home: Home, project: Path, database_url: str, tmp_path: Path
) -> None:
    home.write_config(CONFIG)
    (project / "a.txt").write_text("old\n")
    async with opened(home, project, database_url, "acme", *SCRIPT) as acme:
        first = await acme.run("go", "s1", here=True)
        assert first.status is RunStatus.COMPLETED
        second = await acme.run("go on", "s1", here=True)
        assert second.status is RunStatus.WAITING
        services = await acme._home.services()
        artifact_id = (await services.store.artifacts())[0].artifact_id
        (grant,) = await acme.permission_grants()
        (question,) = await acme.approvals()
        node_id = (await acme.list_sessions())[0].active_node_id or ""
        artifact_id = (await acme.replay_session("s1")).artifacts[0].artifact_id
        state = await services.store.workspace_state("s1", str(project))
        snapshot_id = state.snapshot_id or ""
        assert (await acme.diff_workspace(snapshot_id, snapshot_id)).changes == []
    before = rows(database_url)
    assert all(before[name] for name in ("artifacts", "grants", "node_snapshots"))
    async with opened(home, project, database_url, "other", "mine", "mine") as other:
        mine = await other.run("go", "mine", here=True)
        own = (await other.list_sessions())[0].active_node_id or ""
        run_id = first.run_id
        refused: dict[str, Callable[[], Awaitable[Any]]] = {
            "attach": lambda: other.attach(run_id),
            "answer": lambda: other.answer(question.request_id, "allow_once"),
            "context_report": lambda: other.context_report("s1"),
            "compact_session": lambda: other.compact_session("s1"),
            "replay_session": lambda: other.replay_session("s1"),
            "session_runs": lambda: other.session_runs("s1"),
            "replay_run": lambda: other.replay_run(run_id),
            "inspect_run": lambda: other.inspect_run(run_id),
            "get_node_path": lambda: other.get_node_path(node_id),
            "switch_node": lambda: other.switch_node("s1", node_id),
            "switch_node, files": lambda: other.switch_node("s1", node_id, restore_files=True),
            "switch_node, its own session": lambda: other.switch_node("mine", node_id),
            "undo": lambda: other.undo("s1"),
            "redo": lambda: other.redo("s1"),
            "undo_state": lambda: other.undo_state("s1"),
            "fork": lambda: other.fork("s1", into=tmp_path / "fork"),
            "fork, its own session": lambda: other.fork("mine", node_id),
            "diff_workspace": lambda: other.diff_workspace(node_id, node_id),
            "diff_workspace, a snapshot": lambda: other.diff_workspace(snapshot_id, snapshot_id),
            "diff_session": lambda: other.diff_session("s1"),
            "file_at": lambda: other.file_at(node_id, "a.txt"),
            "file_at, a snapshot": lambda: other.file_at(snapshot_id, "a.txt"),
            "tasks.list": lambda: other.tasks.list("s1"),
            "tasks.create": lambda: other.tasks.create("s1", task_id="t", title="T", steps=[]),
            "tasks.events": lambda: other.tasks.events("s1", "t"),
            "rename_session": lambda: other.rename_session("s1", "theirs"),
            "resolve_session_id": lambda: other.resolve_session_id("s1"),
            "resolve_run_id": lambda: other.resolve_run_id(run_id),
            "resolve_node_id": lambda: other.resolve_node_id(node_id),
            "delete_session": lambda: other.delete_session("s1"),
            "delete_artifact": lambda: other.delete_artifact(artifact_id),
            "cleanup_artifacts": lambda: other.cleanup_artifacts(
                "s1", dry_run=False, include_all=True
            ),
            "start": lambda: other.start("go", "s1", here=True),
            "start, for a worker": lambda: other.start("go", "s1"),
        }
        wrong: dict[str, object] = {}
        for name, call in refused.items():
            try:
                wrong[name] = await call()
            except AgentCoreError as error:
                is_not_there = error.details.get("reason") == "no_snapshot"
                if error.code not in NOTHING and not is_not_there:
                    wrong[name] = error.code
        assert await other.forget_permissions(grant.grant_id) == 0
        assert await other.forget_permissions("s1") == 0
        assert await other.permission_grants("s1") == []
        assert await other.approvals("s1") == []
        done = await other.cleanup_artifacts(dry_run=False, include_all=True)
        assert (done.candidates, done.deleted) == ([], [])
        assert [each.session_id for each in await other.list_sessions()] == ["mine"]
        assert await other.search_sessions("go on") == []
        assert own
        assert mine.text == "mine"
        await other.delete_session("mine")
    # There is no request of that id; and an id of a session is taken, whoever has it.
    unusable = dict.fromkeys(
        ("start", "start, for a worker", "tasks.create"), ErrorCode.VALIDATION_ERROR
    )
    assert wrong == {"answer": ErrorCode.APPROVAL_NOT_FOUND, **unusable}
    assert rows(database_url) == before
    async with opened(home, project, database_url, "acme") as acme:
        services = await acme._home.services()
        assert await services.artifacts.read(artifact_id)
        undone = await acme.diff_workspace(snapshot_id, snapshot_id)
        assert undone.changes == []
    assert not (tmp_path / "fork").exists()


async def test_a_runtime_of_all_tenants_reads_those_of_one(
    home: Home, project: Path, database_url: str
) -> None:
    home.write_config(CONFIG)
    (project / "a.txt").write_text("old\n")
    async with opened(home, project, database_url, "acme", *SCRIPT) as acme:
        first = await acme.run("go", "s1", here=True)
        await acme.run("go on", "s1", here=True)
        node_id = (await acme.list_sessions())[0].active_node_id or ""
        artifact_id = (await acme.replay_session("s1")).artifacts[0].artifact_id
    async with opened(home, project, database_url, "other", "mine") as other:
        await other.run("a word of mine", "s2", here=True)
    run_id = first.run_id

    def reads(of: AgentRuntime, **one: Any) -> dict[str, Callable[[], Awaitable[Any]]]:
        return {
            "approvals": lambda: of.approvals(**one),
            "run_report": lambda: of.run_report(run_id, **one),
            "artifact": lambda: of.artifact(artifact_id, **one),
            "pages.sessions": lambda: of.pages.sessions(**one),
            "pages.matches": lambda: of.pages.matches("go", **one),
            "pages.session": lambda: of.pages.session("s1", **one),
            "pages.approvals": lambda: of.pages.approvals(is_open=False, **one),
            "pages.costs": lambda: of.pages.costs("session", **one),
            "pages.queue": lambda: of.pages.queue(**one),
            "workers": lambda: of.workers(**one),
            "queue": lambda: of.queue(**one),
            "list_sessions": lambda: of.list_sessions(**one),
            "session_summaries": lambda: of.session_summaries(**one),
            "search_sessions": lambda: of.search_sessions("go", **one),
            "search_sessions, another's": lambda: of.search_sessions("word", **one),
            "costs": lambda: of.costs("session", **one),
            "last_session": lambda: of.last_session(**one),
            "sessions_nearby": lambda: of.sessions_nearby(project / "sub", **one),
            "replay_session": lambda: of.replay_session("s1", **one),
            "replay_session, another's": lambda: of.replay_session("s2", **one),
            "session_runs": lambda: of.session_runs("s1", **one),
            "replay_run": lambda: of.replay_run(run_id, **one),
            "inspect_run": lambda: of.inspect_run(run_id, **one),
            "get_node_path": lambda: of.get_node_path(node_id, **one),
            "undo_state": lambda: of.undo_state("s1", **one),
            "resolve_session_id": lambda: of.resolve_session_id("s", **one),
            "resolve_run_id": lambda: of.resolve_run_id(run_id[:-1], **one),
            "resolve_node_id": lambda: of.resolve_node_id(node_id[:-1], **one),
            "diff_session": lambda: of.diff_session("s1", **one),
            "diff_workspace": lambda: of.diff_workspace(node_id, node_id, **one),
            "file_at": lambda: of.file_at(node_id, "a.txt", **one),
        }

    async def outcomes(of: AgentRuntime, **one: Any) -> dict[str, object]:
        found: dict[str, object] = {}
        for name, read in reads(of, **one).items():
            try:
                found[name] = await read()
            except AgentCoreError as error:
                found[name] = error.code
        return found

    async with opened(home, project, database_url, "acme") as acme:
        expected = await outcomes(acme)
        with pytest.raises(AgentCoreError, match="bound to the tenant 'acme'"):
            await acme.list_sessions(tenant="other")
        assert await outcomes(acme, tenant="acme") == expected
    async with opened(home, project, database_url, None) as everybodys:
        assert await outcomes(everybodys, tenant="acme") == expected
        nothing = await outcomes(everybodys, tenant="nobody")
        assert len(await everybodys.list_sessions()) == 2
        snapshot_id = (await everybodys.diff_workspace(node_id, node_id)).after
        assert await everybodys.file_at(snapshot_id, "a.txt", tenant="acme")
        with pytest.raises(AgentCoreError):
            await everybodys.file_at(snapshot_id, "a.txt", tenant="other")
        with pytest.raises(ConfigError, match="is invalid"):
            await everybodys.list_sessions(tenant="no tenant")
    assert expected["last_session"] == "s1"
    none = [*NOTHING, Page[Any]()]
    assert all(not found or found in none for found in nothing.values()), nothing


async def test_without_a_server_there_are_no_tenants(home: Home, project: Path) -> None:
    home.write_config(CONFIG)
    async with AgentRuntime(project, home_dir=home.path) as made:
        with pytest.raises(ConfigError, match="needs a Postgres database"):
            await made.list_sessions(tenant="acme")
