"""Sessions whose files every machine can have: two homes stand for two machines."""

import asyncio
import os
import subprocess
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from agent_core import AgentRuntime, ErrorCode, PermissionDecision, PermissionRequest, RunStatus
from agent_core.config.load import read_setup
from agent_core.config.models import ModelConfig
from agent_core.errors import StorageError
from agent_core.providers.base import ProviderAdapter
from agent_core.providers.scripted import ScriptedProvider, calls
from agent_core.runtime.copying import SessionCopies, StoreAddress
from agent_core.runtime.fence import SessionLease
from agent_core.runtime.options import RuntimeOptions
from agent_core.runtime.run import Run
from agent_core.runtime.services import Services, open_services
from agent_core.runtime.workspaces import Workspaces, bring_up_to_date
from agent_core.types import (
    AgentType,
    Decision,
    Dispatch,
    NewRun,
    RunPrompt,
    SessionRecord,
    TextBlock,
    new_id,
)
from agent_core.types.lanes import own_place
from isolation import fresh_folder
from sweeps import kept

CONFIG = """
[model]
provider = "custom"
name = "script"
context_window = 32000

[memory]
enabled = false
"""


async def allow(request: PermissionRequest) -> PermissionDecision:
    return PermissionDecision(decision=Decision.ALLOW_ONCE)


class Machine:
    """A home with the database of all of them."""

    def __init__(self, home: Path, url: str, config: str = CONFIG) -> None:
        self.home, self.url = home, url
        (home / "config.toml").write_text(config)

    @asynccontextmanager
    async def open(
        self, project: Path, *script: Any, tenant: str | None = None
    ) -> AsyncGenerator[Services]:
        options = RuntimeOptions(
            home_dir=self.home,
            project_dir=project,
            database_url=self.url,
            tenant=tenant,
            permission_callback=allow,
        )

        def factory(model: ModelConfig) -> ProviderAdapter:
            return ScriptedProvider(script)

        options.providers.register("custom", factory)
        async with open_services(options) as services:
            yield services

    async def begin(self, project: Path, session_id: str = "s1") -> None:
        """Start a run in the place `snapshot`."""
        async with self.open(project) as services:
            await workspaces_of(services).begin(session_id)
            await queue(services, session_id)

    async def carry_out(self, *script: Any, session_id: str = "s1") -> Run:
        """Take the session's run, as a worker does."""
        async with self.open(self.home) as services:
            session = await session_of(services, session_id)
            async with (
                workspaces_of(services).use(session) as folder,
                self.open(folder, *script) as services_there,
            ):
                runs = await services.store.runs(session_id)
                (queued,) = [run for run in runs if not run.status.is_terminal]
                run = await services_there.runs.pipeline.take(queued)
                assert run is not None
                await run.ended.wait()
                return run

    def folder(self, session_id: str = "s1") -> Path:
        return self.home / "workspaces" / session_id


def workspaces_of(services: Services) -> Workspaces:
    return services.sessions.workspaces


async def session_of(services: Services, session_id: str = "s1") -> SessionRecord:
    session = await services.store.session(session_id)
    assert session is not None
    return session


async def queue(services: Services, session_id: str = "s1", **values: Any) -> str:
    dispatch: dict[str, Any] = {"home": "host:here", "place": "snapshot", **values}
    opening = NewRun(
        session_id=session_id,
        cwd=str(services.project.setup.project),
        owner="",
        agent_type=AgentType.MAIN,
        agent_id=f"agent_{session_id}",
        run_id=new_id("run"),
        prompt=RunPrompt(content=[TextBlock(text="go")]),
        dispatch=Dispatch(queue="default", **dispatch),
    )
    opened = await services.store.queue_run(opening)
    return opened.run.run_id


def writes(path: str, content: str) -> Any:
    return calls("code.write_file", path=path, content=content, overwrite=True)


def runs(script: str) -> Any:
    return calls("code.run_command", argv=["sh", "-c", script])


def files_in(folder: Path) -> dict[str, bytes | str | None]:
    found: dict[str, bytes | str | None] = {}
    for path in folder.rglob("*"):
        key = str(path.relative_to(folder))
        if path.is_symlink():
            found[key] = str(path.readlink())
        else:
            found[key] = None if path.is_dir() else path.read_bytes()
    return found


@pytest.fixture
def machines(
    request: pytest.FixtureRequest, database_url: str, tmp_path: Path
) -> Callable[[str], Machine]:
    """Makes homes with one database; a test may be asked to keep the blobs in a folder."""
    config = CONFIG
    if getattr(request, "param", "") == "in a folder":
        config += f'[store]\nblobs = "{(tmp_path / "blobs").as_uri()}"\n'

    def machine(name: str) -> Machine:
        return Machine(
            fresh_folder("home", f"{request.node.name[:40]}-{name}"), database_url, config
        )

    return machine


@pytest.fixture
def project(project: Path) -> Path:
    (project / "a.txt").write_text("a\n")
    (project / "folder").mkdir()
    (project / "folder" / "large.bin").write_bytes(os.urandom(5 << 20))
    (project / "empty").mkdir()
    (project / "link").symlink_to("a.txt")
    (project / "run.sh").write_text("echo hi\n")
    (project / "run.sh").chmod(0o755)
    return project


@pytest.mark.long
@pytest.mark.parametrize(
    "machines", kept(["in the database", "in a folder"], "in the database"), indirect=True
)
async def test_each_machine_goes_on_with_what_the_last_one_has_done(
    machines: Callable[[str], Machine], project: Path
) -> None:
    caller, one, other = machines("caller"), machines("one"), machines("other")
    begun = files_in(project)
    await caller.begin(project)
    done = await one.carry_out(writes("b.txt", "b\n"), runs("rm a.txt; echo new > folder/c"), "ok")
    assert done.status is RunStatus.COMPLETED
    assert files_in(project) == begun
    expected = begun | {"b.txt": b"b\n", "folder/c": b"new\n"}
    del expected["a.txt"]
    assert files_in(one.folder()) == expected
    assert one.folder().stat().st_mode & 0o777 == 0o700
    assert (one.folder() / "run.sh").stat().st_mode & 0o777 == 0o755

    async with caller.open(project) as services:
        await queue(services)
    done = await other.carry_out(runs("cat b.txt folder/c > d; rm -r empty"), "ok")
    assert done.status is RunStatus.COMPLETED
    expected["d"] = b"b\nnew\n"
    del expected["empty"]
    assert files_in(other.folder()) == expected

    async with caller.open(project) as services:
        await queue(services)
    await one.carry_out(writes("e", "e"), "ok")
    assert files_in(one.folder()) == expected | {"e": b"e"}


async def test_undo_redo_diff_and_forks_work_from_any_machine(
    machines: Callable[[str], Machine], project: Path, tmp_path: Path
) -> None:
    caller, one, other = machines("caller"), machines("one"), machines("other")
    begun = files_in(project)
    await caller.begin(project)
    await one.carry_out(writes("a.txt", "changed\n"), "first")
    changed = begun | {"a.txt": b"changed\n"}

    async with other.open(tmp_path) as services:
        sessions = services.sessions
        copied = await sessions.forks.fork("s1", None, into=tmp_path / "copy")
        assert files_in(tmp_path / "copy") == changed
        assert (copied.session.place or "").startswith("host:")
        assert copied.session.cwd == str(tmp_path / "copy")
        undone = await sessions.moves.undo("s1", force=False)
        assert undone.restored == ["a.txt"]
        assert files_in(other.folder()) == begun
    async with caller.open(project) as services:
        assert files_in(project) == begun
        redone = await services.sessions.moves.redo("s1", force=False)
        assert redone.restored == ["a.txt"]
        assert files_in(caller.folder()) == changed
        path = await services.store.path(redone.node_id or "")
        diff = await services.sessions.forks.diff(path[0].node_id, path[-1].node_id)
        assert [(change.path, change.kind) for change in diff.changes] == [("a.txt", "modified")]
        await queue(services)
    await one.carry_out(runs("cat a.txt > seen"), "second")
    assert files_in(one.folder()) == changed | {"seen": b"changed\n"}


@pytest.mark.sweep
async def test_a_fork_without_a_folder_has_files_of_its_own(
    machines: Callable[[str], Machine], project: Path
) -> None:
    caller, one = machines("caller"), machines("one")
    await caller.begin(project)
    await one.carry_out(writes("a.txt", "first\n"), "ok")
    async with caller.open(project) as services:
        forked = await services.sessions.forks.fork("s1", None, into=None)
        fork = forked.session.session_id
        await services.sessions.delete("s1")
        assert (await session_of(services, fork)).place == "snapshot"
        await queue(services, fork)
    await one.carry_out(runs("cat a.txt > seen"), "ok", session_id=fork)
    assert (one.folder(fork) / "seen").read_bytes() == b"first\n"


@pytest.mark.sweep
async def test_a_fork_into_a_folder_is_undone_on_a_machine_that_never_had_the_session(
    machines: Callable[[str], Machine], project: Path, tmp_path: Path
) -> None:
    caller, one, other = machines("caller"), machines("one"), machines("other")
    begun = files_in(project)
    await caller.begin(project)
    await one.carry_out(writes("a.txt", "first\n"), "ok")
    async with caller.open(project) as services:
        await queue(services)
    await one.carry_out(writes("a.txt", "second\n"), "ok")
    async with other.open(tmp_path) as services:
        forked = await services.sessions.forks.fork("s1", None, into=tmp_path / "copy")
        fork = forked.session.session_id
    async with other.open(tmp_path / "copy") as services:
        undone = await services.sessions.moves.undo(fork, force=False)
        assert undone.restored == ["a.txt"]
        assert files_in(tmp_path / "copy") == begun | {"a.txt": b"first\n"}
        await services.sessions.moves.undo(fork, force=False)
        assert files_in(tmp_path / "copy") == begun


async def test_a_folder_that_is_in_use_is_neither_made_again_nor_removed(
    machines: Callable[[str], Machine], project: Path
) -> None:
    caller, one = machines("caller"), machines("one")
    await caller.begin(project)
    await caller.begin(project, "s2")
    async with one.open(one.home) as services, one.open(one.home) as others:
        session, another = await session_of(services), await session_of(services, "s2")

        async def work(of: Services, name: str, go_on: asyncio.Event) -> None:
            async with workspaces_of(of).use(session) as folder:
                (folder / name).write_text("of a run\n")
                await go_on.wait()

        ends = asyncio.Event()
        async with workspaces_of(services).files_of(session).alone():
            both = [
                asyncio.create_task(work(services, "mine", ends)),
                asyncio.create_task(work(others, "its", ends)),
            ]
            await asyncio.sleep(0.2)  # both have seen that there is no folder
            assert not one.folder().exists()
        made = {one.folder() / name for name in ("mine", "its")}
        while not any(path.exists() for path in made):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        first = next(path for path in made if path.exists())
        while not all(path.exists() for path in made):
            assert first.exists(), "it was made again"
            await asyncio.sleep(0.01)
        assert first.exists()

        for is_old in (True, False):
            os.utime(one.folder(), (0, 0))
            async with workspaces_of(others).use(another):
                assert one.folder().exists() == is_old
            if is_old:
                await workspaces_of(others).forget("s1")
                assert one.folder().exists()
                ends.set()
                await asyncio.gather(*both)


async def test_a_run_that_was_lost_before_its_files_were_brought_leaves_them(
    machines: Callable[[str], Machine], project: Path
) -> None:
    caller, one = machines("caller"), machines("one")
    await caller.begin(project)

    async def still_held(_: SessionLease) -> None:
        pass

    hold = SessionLease("run_1", "s1", 1, extended_at=0, confirm=still_held)
    async with one.open(one.home) as services:
        files = workspaces_of(services).files_of(await session_of(services))
        async with files.alone():  # whoever has taken the run over
            late = asyncio.create_task(bring_up_to_date(files, services.store, hold))
            await asyncio.sleep(0.1)
            hold.is_lost = True
        with pytest.raises(StorageError) as caught:
            await late
        assert caught.value.code is ErrorCode.SESSION_ACTIVE
        assert not one.folder().exists()


@pytest.mark.sweep
async def test_what_a_run_has_left_in_its_folder_is_gone_if_no_snapshot_has_it(
    machines: Callable[[str], Machine], project: Path
) -> None:
    caller, one = machines("caller"), machines("one")
    begun = files_in(project)
    await caller.begin(project)
    async with one.open(one.home) as services:
        session = await session_of(services)
        async with workspaces_of(services).use(session):
            pass
    (one.folder() / "a.txt").write_text("of a run that died\n")
    (one.folder() / "stray").write_text("too\n")
    await one.carry_out(runs("ls > listed"), "ok")
    assert files_in(one.folder()) == begun | {"listed": (one.folder() / "listed").read_bytes()}


async def test_a_result_that_cannot_be_recorded_fails_the_run(
    machines: Callable[[str], Machine], project: Path
) -> None:
    caller, one = machines("caller"), machines("one")
    await caller.begin(project)
    config = (one.home / "config.toml").read_text()
    (one.home / "config.toml").write_text(f"{config}\n[workspace]\nmax_files = 10\n")
    done = await one.carry_out(runs("for i in 1 2 3 4 5 6 7 8 9; do touch f$i; done"), "ok")
    assert done.status is RunStatus.FAILED
    assert done.outcome is not None
    assert done.outcome.error is not None
    assert "max_files" in done.outcome.error.message


@pytest.mark.sweep
async def test_what_git_tracks_or_was_not_too_large_for_the_caller_comes_back(
    machines: Callable[[str], Machine], project: Path, tmp_path: Path
) -> None:
    (project / "dist").mkdir()
    (project / "dist" / "tracked.js").write_text("tracked\n")
    (project / "dist" / "made.js").write_text("made\n")
    script = "git init -q && git add -f dist/tracked.js"
    subprocess.run(["sh", "-c", script], cwd=project, check=True)  # noqa: ASYNC221, S603, S607
    caller, one = machines("caller"), machines("one")
    config = (one.home / "config.toml").read_text()
    (one.home / "config.toml").write_text(f"{config}\n[workspace]\nmax_file_bytes = 1000\n")
    await caller.begin(project)
    await one.carry_out(writes("b.txt", "b\n"), "ok")
    async with caller.open(project) as services:
        await services.sessions.forks.fork("s1", None, into=tmp_path / "copy")
    found = files_in(tmp_path / "copy")
    assert found["dist/tracked.js"] == b"tracked\n"
    assert "dist/made.js" not in found
    assert found["folder/large.bin"] == (project / "folder" / "large.bin").read_bytes()


async def test_the_folder_of_a_session_is_for_its_runs_alone(
    machines: Callable[[str], Machine], project: Path
) -> None:
    caller, one = machines("caller"), machines("one")
    await caller.begin(project)
    async with one.open(one.home) as services:
        session = await session_of(services)
        async with workspaces_of(services).use(session) as folder:
            pass
    async with one.open(folder, writes("b.txt", "b"), "ok") as services:
        await queue(services, "another", place=None)
        (queued,) = await services.store.runs("another")
        run = await services.runs.pipeline.take(queued)
        assert run is not None
        await run.ended.wait()
        assert run.outcome is not None
        assert run.outcome.error is not None
        assert run.outcome.error.code == ErrorCode.SESSION_ELSEWHERE
    assert not (folder / "b.txt").exists()


async def test_sessions_are_refused_at_another_place_than_their_files_are(
    machines: Callable[[str], Machine], project: Path
) -> None:
    caller = machines("caller")
    await caller.begin(project)
    async with caller.open(project) as services:
        await queue(services, "there", place=None, home="host:there")
        for session, asked in (
            ("s1", {"place": "host:here"}),
            ("s1", {"place": None, "process": 1}),
            ("there", {"place": None}),
            ("there", {"place": "snapshot"}),
            ("there", {"place": "host:elsewhere"}),
            ("there", {"place": None, "process": 1}),
        ):
            with pytest.raises(StorageError) as raised:
                await queue(services, session, **asked)
            assert raised.value.code is ErrorCode.SESSION_ELSEWHERE
            place = "snapshot" if session == "s1" else "host:there"
            assert raised.value.details["place"] == place
            assert f'place="{place}"' in raised.value.message
        await queue(services, "s1", place=None)
        await queue(services, "there", place="host:there")
        with pytest.raises(StorageError, match="on host there"):
            workspaces_of(services).files_of(await session_of(services, "there"))


@pytest.mark.parametrize(
    "machines", kept(["in the database", "in a folder"], "in the database"), indirect=True
)
async def test_deleting_a_session_leaves_nothing_of_it(
    machines: Callable[[str], Machine], project: Path, database_url: str
) -> None:
    caller, one = machines("caller"), machines("one")
    await caller.begin(project)
    await one.carry_out(writes("a.txt", "changed\n"), "ok")
    async with one.open(one.home) as services:
        await services.sessions.delete("s1")
    assert not one.folder().exists()
    with psycopg.connect(database_url) as connection:
        for table in ("blobs", "blob_uses", "blob_pieces", "shared_snapshots"):
            found = connection.execute(f"SELECT count(*) FROM {table}")  # noqa: S608 - our own words
            assert found.fetchone() == (0,), table


@pytest.mark.sweep
async def test_a_copied_session_has_its_files_on_every_machine_of_the_other_database(
    project: Path, database_url: str, empty_database_url: str, tmp_path: Path
) -> None:
    here = Machine(fresh_folder("home", "here"), database_url)
    there = Machine(fresh_folder("home", "there"), empty_database_url)
    (project / "a.txt").write_text("a\n")
    await here.begin(project)
    for name in ("b", "c"):
        run = await here.carry_out(writes(f"{name}.txt", f"{name}\n"), "done")
        assert run.status is RunStatus.COMPLETED
        if name == "b":
            async with here.open(project) as services:
                await queue(services)

    def copy(*addresses: str) -> None:
        with SessionCopies.open(
            *(StoreAddress.parse(each, {}) for each in addresses),
            setup=read_setup(project, home_dir=here.home),
        ) as copies:
            (copied,) = copies.copy()
        assert copied.error is None
        assert not copied.missing

    await asyncio.to_thread(copy, database_url, empty_database_url)
    async with there.open(project) as services:
        await queue(services)
    run = await there.carry_out(writes("d.txt", "d\n"), "done")
    assert run.status is RunStatus.COMPLETED
    assert {f"{name}.txt" for name in "abcd"} < {path.name for path in there.folder().iterdir()}

    file = tmp_path / "back.sqlite"
    await asyncio.to_thread(copy, empty_database_url, f"sqlite:{file}")
    made = AgentRuntime(project, home_dir=here.home, session_db_path=file)
    made.register_provider("custom", lambda _: ScriptedProvider(["gone on"]))
    async with made:
        (session,) = await made.list_sessions()
        assert session.place is None
        assert (await made.run("go on", "s1")).text == "gone on"
        history = await made.replay_session("s1")
        assert [each.status for each in history.runs] == [RunStatus.COMPLETED] * 4


async def test_a_process_of_one_tenant_keeps_the_snapshots_of_others(
    machines: Callable[[str], Machine], project: Path
) -> None:
    machine = machines("one")
    config = (machine.home / "config.toml").read_text()
    (machine.home / "config.toml").write_text(f'{config}\n[workspace]\nsnapshots = "turn"\n')
    async with machine.open(project, writes("a.txt", "changed\n"), "ok") as services:
        await queue(services, place=None, home=own_place())
        (queued,) = await services.store.runs("s1")
        run = await services.runs.pipeline.take(queued)
        assert run is not None
        await run.ended.wait()
        needed = await services.store.snapshots_in_use()
        assert len(needed) == 2
    async with machine.open(project, tenant="acme") as services:
        assert await services.store.session("s1") is None
        assert await workspaces_of(services).snapshots_in_use() == needed
