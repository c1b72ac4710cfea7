"""Artifacts: complete, redacted, private files that stay where they belong."""

import os
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent_core.artifacts.files import safe_filename
from agent_core.artifacts.store import ArtifactStore
from agent_core.disk.unfinished import Notes
from agent_core.errors import AgentCoreError, ErrorCode, StorageError
from agent_core.redaction import Redactor
from agent_core.storage.sqlite import SqliteSessionStore
from agent_core.types import ArtifactRecord, ArtifactSource, utc_now
from rows import an_artifact, an_opening
from tables import together

SECRET = "correct-horse-battery-staple"  # noqa: S105


@pytest.fixture
async def rows() -> SqliteSessionStore:
    store = SqliteSessionStore.in_memory()
    await store.open_run(an_opening())
    return store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "home" / "sessions"


@pytest.fixture
def artifacts(root: Path, rows: SqliteSessionStore) -> ArtifactStore:
    redactor = Redactor({"MODEL_KEY": SECRET})
    return ArtifactStore(root, rows, redactor, notes=Notes(root.parent / "unfinished"))


def exists(path: Path | str) -> bool:
    return Path(path).exists()


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def make_link(place: Path, target: Path) -> None:
    place.parent.mkdir(parents=True)
    place.symlink_to(target)


def swap_for_link(folder: Path, moved: Path) -> None:
    folder.rename(moved)
    folder.symlink_to(moved)


def unlink(path: str) -> None:
    Path(path).unlink()


async def put(
    artifacts: ArtifactStore,
    data: ArtifactSource = b"abc",
    *,
    kind: str = "debug",
    filename: str = "out.txt",
    age: timedelta | None = None,
) -> ArtifactRecord:
    record = await artifacts.put(data, session_id="s1", kind=kind, filename=filename)
    if age is not None:
        then = (utc_now() - age).timestamp()
        os.utime(record.path, (then, then))
    return record


async def test_an_artifact_lies_below_its_session_and_is_registered(
    artifacts: ArtifactStore, root: Path, rows: SqliteSessionStore
) -> None:
    record = await artifacts.put(
        b"hello",
        session_id="s1",
        agent_id="agent_s1",
        run_id="run_1",
        tool_call_id="c1",
        kind="tool_output",
        filename="stdout.txt",
        mime_type="text/plain",
        summary="five bytes",
    )
    place = root / "s1" / "artifacts" / record.artifact_id / "stdout.txt"
    assert place.read_bytes() == b"hello"
    assert record.path == str(place)
    assert record.size_bytes == 5
    assert await rows.artifact(record.artifact_id) == record
    assert await artifacts.read(record.artifact_id) == b"hello"
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    for folder in (place.parent, root / "s1" / "artifacts", root / "s1", root):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert names_in(place.parent) == ["stdout.txt"]


async def test_e6_what_is_stored_has_no_secret_in_it(
    artifacts: ArtifactStore, tmp_path: Path
) -> None:
    raw = b"\xff\x00" + f"key={SECRET} and sk-{'a1B2' * 10}\n".encode() + bytes(range(256))
    spool = tmp_path / "spool"
    spool.write_bytes(raw)
    for data in (raw, spool):
        record = await artifacts.put(
            data,
            session_id="s1",
            kind="tool_output",
            filename=f"{SECRET}.txt",
            summary=f"it says {SECRET}",
        )
        stored = await artifacts.read(record.artifact_id)
        assert SECRET.encode() not in stored
        assert b"a1B2a1B2" not in stored
        assert stored.startswith(b"\xff\x00")
        assert stored.endswith(bytes(range(256)))
        assert record.size_bytes == len(stored)
        assert SECRET not in record.model_dump_json()
    assert not exists(spool)


async def test_a_large_file_is_moved_and_a_secret_across_pieces_is_found(
    artifacts: ArtifactStore, tmp_path: Path
) -> None:
    spool = tmp_path / "spool"
    filler = b"x" * ((1 << 20) - 10) + b" "
    spool.write_bytes(filler + SECRET.encode() + b" " + filler)
    record = await put(artifacts, spool)
    stored = await artifacts.read(record.artifact_id)
    assert stored == filler + b"[redacted:MODEL_KEY] " + filler
    assert not exists(spool)


@together(
    ("wanted", "made"),
    [
        ("out.txt", "out.txt"),
        ("../../etc/passwd", "passwd"),
        ("..\\..\\boot.ini", "boot.ini"),
        ("/absolute/a.log", "a.log"),
        (".bashrc", "bashrc"),
        ("..", "artifact"),
        ("", "artifact"),
        ("a\0b\nc.txt", "a_b_c.txt"),
        ("ein Bericht (neu).md", "ein_Bericht_neu_.md"),
        ("報告.json", "報告.json"),
        ("evil\u202etxt.exe", "evil_txt.exe"),
        ("lone\ud800.txt", "lone_.txt"),
    ],
)
def test_a_file_name_from_a_model_becomes_a_plain_one(wanted: str, made: str) -> None:
    assert safe_filename(wanted) == made


@pytest.mark.parametrize("wanted", ["a" * 5000 + ".txt", "報" * 5000 + ".txt", "x." + "y" * 5000])
async def test_a_very_long_name_is_cut(artifacts: ArtifactStore, wanted: str) -> None:
    record = await put(artifacts, filename=wanted)
    assert len(record.filename.encode()) <= 120
    assert record.filename.endswith(".txt") == wanted.endswith(".txt")
    assert await artifacts.read(record.artifact_id) == b"abc"


async def test_an_artifact_that_cannot_be_registered_leaves_no_file(
    artifacts: ArtifactStore, root: Path, tmp_path: Path
) -> None:
    spool = tmp_path / "spool"
    spool.write_bytes(b"still needed")
    with pytest.raises(StorageError) as unknown:
        await artifacts.put(spool, session_id="s9", kind="debug", filename="a")
    assert unknown.value.code is ErrorCode.SESSION_NOT_FOUND
    assert files_below(root) == []
    assert spool.read_bytes() == b"still needed"


async def test_only_regular_files_are_taken(artifacts: ArtifactStore, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "real").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for name in ("pipe", "link", "missing", "."):
        with pytest.raises(StorageError):
            await put(artifacts, tmp_path / name)
    assert (tmp_path / "real").exists()


@pytest.mark.parametrize(
    "row",
    [
        an_artifact("a1", session_id="s1", filename="../../../../victim"),
        an_artifact("a1", session_id="s1", filename=".."),
        an_artifact("..", session_id="s1", filename="victim"),
        an_artifact("a1", session_id="..", filename="victim"),
        an_artifact("linked", session_id="s1", filename="victim"),
    ],
)
async def test_a_row_never_leads_out_of_the_root(
    root: Path, tmp_path: Path, row: ArtifactRecord
) -> None:
    victim = tmp_path / "home" / "victim"
    (root / "s1" / "artifacts" / "a1").mkdir(parents=True)
    victim.write_bytes(b"precious")
    (root / "s1" / "artifacts" / "linked").symlink_to(tmp_path / "home")

    class Tampered(SqliteSessionStore):
        async def artifact(self, artifact_id: str) -> ArtifactRecord | None:
            return row

        async def artifacts(self, **_: object) -> list[ArtifactRecord]:
            return [row]

    artifacts = ArtifactStore(
        root, Tampered.in_memory(), Redactor({}), notes=Notes(root.parent / "notes")
    )
    with pytest.raises(StorageError):
        await artifacts.read("a1")
    with pytest.raises(StorageError):
        await artifacts.delete("a1")
    result = await artifacts.cleanup(dry_run=False, include_all=True)
    assert result.deleted == []
    assert [failure.id for failure in result.failed] == [row.artifact_id]
    assert victim.read_bytes() == b"precious"


async def test_a_deleted_artifact_is_gone_for_good(
    artifacts: ArtifactStore, root: Path, rows: SqliteSessionStore
) -> None:
    record = await put(artifacts)
    await artifacts.delete(record.artifact_id)
    assert await rows.artifact(record.artifact_id) is None
    assert names_in(root / "s1" / "artifacts") == []
    for attempt in (artifacts.delete(record.artifact_id), artifacts.read(record.artifact_id)):
        with pytest.raises(StorageError) as unknown:
            await attempt
        assert unknown.value.code is ErrorCode.ARTIFACT_NOT_FOUND


async def test_an_artifact_whose_file_is_gone_can_still_be_deleted(
    artifacts: ArtifactStore, rows: SqliteSessionStore
) -> None:
    record = await put(artifacts)
    unlink(record.path)
    with pytest.raises(StorageError) as gone:
        await artifacts.read(record.artifact_id)
    assert gone.value.code is ErrorCode.FILE_NOT_FOUND
    await artifacts.delete(record.artifact_id)
    assert await rows.artifact(record.artifact_id) is None


# cleaning up


async def test_e5_a_dry_run_lists_what_would_go_and_touches_nothing(
    artifacts: ArtifactStore, rows: SqliteSessionStore
) -> None:
    kept_for_debugging = [await put(artifacts, kind=k) for k in ("debug", "raw_provider")]
    await put(artifacts, kind="tool_output")
    result = await artifacts.cleanup()
    assert result.dry_run
    assert result.candidates == [record.artifact_id for record in kept_for_debugging]
    assert result.deleted == []
    assert all(exists(record.path) for record in kept_for_debugging)
    assert len(await rows.artifacts()) == 3
    assert result.freed_bytes == sum(record.size_bytes for record in kept_for_debugging) > 0
    assert result.freed_bytes == (await artifacts.cleanup(dry_run=False)).freed_bytes


async def test_a_clean_up_takes_debug_files_only_unless_told_otherwise(
    artifacts: ArtifactStore, rows: SqliteSessionStore
) -> None:
    debug = await put(artifacts, b"12345")
    product = await put(artifacts, kind="tool_output")
    result = await artifacts.cleanup(dry_run=False)
    assert (result.deleted, result.freed_bytes, result.failed) == ([debug.artifact_id], 5, [])
    assert not exists(debug.path)
    assert await rows.artifacts() == [product]
    result = await artifacts.cleanup(dry_run=False, include_all=True)
    assert result.deleted == [product.artifact_id]
    assert not exists(product.path)


async def test_a_clean_up_can_be_limited_to_a_session(
    artifacts: ArtifactStore, rows: SqliteSessionStore
) -> None:
    await rows.open_run(an_opening("s2", "run_2"))
    await put(artifacts)
    assert (await artifacts.cleanup(session_id="s2", dry_run=False)).candidates == []
    with pytest.raises(StorageError) as unknown:
        await artifacts.cleanup(session_id="s9")
    assert unknown.value.code is ErrorCode.SESSION_NOT_FOUND


async def test_a_clean_up_takes_what_is_old(artifacts: ArtifactStore) -> None:
    await put(artifacts)
    old = await put(artifacts, age=timedelta(days=8))
    week_ago = utc_now() - timedelta(days=7)
    assert (await artifacts.cleanup(older_than=week_ago)).candidates == [old.artifact_id]
    elsewhere = week_ago.astimezone(datetime.now().astimezone().tzinfo)
    assert (await artifacts.cleanup(older_than=elsewhere)).candidates == [old.artifact_id]


async def test_the_oldest_go_until_the_rest_fits(artifacts: ArtifactStore) -> None:
    new = await put(artifacts, b"1234", age=timedelta(days=1))
    oldest = await put(artifacts, b"1234", age=timedelta(days=3))
    middle = await put(artifacts, b"1234", age=timedelta(days=2))
    ages = [oldest.artifact_id, middle.artifact_id, new.artifact_id]
    for max_bytes, count in ((100, 0), (12, 0), (11, 1), (8, 1), (4, 2), (3, 3), (0, 3)):
        result = await artifacts.cleanup(max_bytes=max_bytes)
        assert result.candidates == ages[:count]
    both = await artifacts.cleanup(max_bytes=0, older_than=utc_now() - timedelta(hours=36))
    assert both.candidates == ages[:2]


async def test_a_clean_up_refuses_what_it_cannot_compare(artifacts: ArtifactStore) -> None:
    naive = datetime.now(UTC).replace(tzinfo=None)
    for refused in (artifacts.cleanup(older_than=naive), artifacts.cleanup(max_bytes=-1)):
        with pytest.raises(AgentCoreError) as error:
            await refused
        assert error.value.code is ErrorCode.VALIDATION_ERROR


async def test_one_failed_deletion_is_reported_and_does_not_stop_the_others(
    artifacts: ArtifactStore, root: Path, rows: SqliteSessionStore
) -> None:
    bad, good = await put(artifacts), await put(artifacts)
    folder = Path(bad.path).parent
    moved = root / "moved"
    swap_for_link(folder, moved)
    result = await artifacts.cleanup(dry_run=False)
    assert result.deleted == [good.artifact_id]
    assert [failure.id for failure in result.failed] == [bad.artifact_id]
    assert result.failed[0].error.code is ErrorCode.STORAGE_ERROR
    assert await rows.artifacts() == [bad]
    assert (moved / bad.filename).exists()


async def test_the_files_of_a_session_go_all_at_once(
    artifacts: ArtifactStore, root: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_bytes(b"x")
    record = await put(artifacts)
    (Path(record.path).parent / "link").symlink_to(outside)
    (root / "s2").mkdir()
    assert await artifacts.delete_session_files("s1") == []
    assert not (root / "s1").exists()
    assert (root / "s2").exists()
    assert (outside / "kept").exists()
    assert await artifacts.delete_session_files("s1") == []


async def test_a_session_folder_that_leads_elsewhere_is_not_followed(
    artifacts: ArtifactStore, root: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    (outside / "artifacts").mkdir(parents=True)
    make_link(root / "s1", outside)
    for session_id in ("s1", "..", "."):
        (failure,) = await artifacts.delete_session_files(session_id)
        assert failure.error.code is ErrorCode.STORAGE_ERROR
    with pytest.raises(StorageError):
        await put(artifacts)
    assert names_in(outside / "artifacts") == []
