"""What is in a run folder, with size and SHA-256: enough to notice every change of content."""

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from agent_core.errors import AgentCoreError
from kgent.config.models import DeliverableConfig
from kgent.records.context import ARCHIVE
from kgent.records.files import FileRecord, RunFiles, describe_file
from kgent.records.logs import ToolLogger
from kgent.records.names import NamedRecord, name_bytes, readable_name
from kgent.runtime.state import now
from kgent.sandbox.paths import WRITABLE
from kgent.sandbox.workspace import ARTIFACT_MANIFEST, FILES, FOLDERS, RECORDS, SANDBOX_MANIFEST


class SandboxManifest(BaseModel):
    """The run folder's boundaries, and the records it vouches for once the run is over."""

    model_config = ConfigDict(frozen=True)

    root: Path
    writable: list[str]
    readonly: list[str]
    forbidden: list[str]
    created_at: str
    files: list[FileRecord] = []


class ArtifactRecord(NamedRecord):
    """A file that the run produced. What is required and missing has no size and no hash."""

    kind: str
    created_by: str
    required: bool = False
    content_type: str | None = None
    bytes: int | None = None
    sha256: str | None = None
    status: Literal["present", "missing", "unreadable"] = "present"


class OtherRecord(NamedRecord):
    """What is in a run folder and is not a file: a folder, a link and its target, a pipe."""

    kind: Literal["folder", "link", "special"]
    target: str | None = None


class ArtifactManifest(BaseModel):
    """Everything in the run folder that is not one of its records, in the order of paths."""

    model_config = ConfigDict(frozen=True)

    artifacts: list[ArtifactRecord] = []
    others: list[OtherRecord] = []
    updated_at: str


@dataclass(frozen=True, slots=True)
class Entry:
    """Something in a run folder: its path in it, as the file system takes it, and what it is."""

    name: str
    kind: Literal["file", "folder", "link", "special"]
    target: str | None = None

    def other(self) -> OtherRecord:
        """The entry as a record; for everything but files."""
        assert self.kind != "file"  # noqa: S101 - files have records with a hash
        return OtherRecord(
            path=readable_name(self.name),
            kind=self.kind,
            target=readable_name(self.target) if self.target is not None else None,
            path_hex=name_bytes(self.name),
        )


def list_entries(root: Path) -> list[Entry]:
    """Everything in a run folder but the records and folders that every run folder has.

    Links are listed and not followed. A folder that cannot be read is listed without its content.
    """
    expected = {*FILES, *FOLDERS}
    found = [entry for entry in _walk(root) if entry.name not in expected]
    return sorted(found, key=lambda entry: os.fsencode(entry.name))


def new_sandbox_manifest(root: Path, *, read_roots: Iterable[Path] = ()) -> SandboxManifest:
    """The boundaries of a run folder, as they are enforced."""
    return SandboxManifest(
        root=root,
        writable=[f"{name}/" for name in WRITABLE],
        readonly=["./", *(str(folder) for folder in read_roots)],
        forbidden=["everything else"],
        created_at=now(),
    )


def write_sandbox_manifest(
    files: RunFiles, manifest: SandboxManifest, *, final: bool = False
) -> FileRecord:
    """Write `sandbox-manifest.json`; `final` adds the records as they were written.

    Returns:
        Size and SHA-256 of the manifest.

    Raises:
        OSError: it cannot be written.
    """
    if final:
        records = [record for name in RECORDS if (record := files.record(name))]
        manifest = manifest.model_copy(update={"files": records})
    return _write(files, SANDBOX_MANIFEST, manifest)


def write_artifact_manifest(
    files: RunFiles, required: Iterable[DeliverableConfig], tools: ToolLogger
) -> FileRecord:
    """Write `artifact-manifest.json` from what is in the run folder now.

    What the run itself wrote to `archive/` is recorded as it was written.

    Returns:
        Size and SHA-256 of the manifest.

    Raises:
        OSError: something cannot be read or written.
    """
    owed = {deliverable.path: deliverable for deliverable in required}
    entries = list_entries(files.root)
    found = [
        _artifact(files, entry.name, owed.get(entry.name), tools.maker_of(entry.name))
        for entry in entries
        if entry.kind == "file"
    ]
    present = {artifact.path for artifact in found}
    gone = [
        ArtifactRecord(
            path=path,
            kind=deliverable.kind,
            created_by="nobody",
            required=True,
            content_type=deliverable.content_type,
            status="missing",
        )
        for path, deliverable in owed.items()
        if path not in present and not (files.root / path).is_dir()
    ]
    manifest = ArtifactManifest(
        artifacts=sorted([*found, *gone], key=lambda artifact: artifact.path),
        others=[entry.other() for entry in entries if entry.kind != "file"],
        updated_at=now(),
    )
    return _write(files, ARTIFACT_MANIFEST, manifest)


def _walk(root: Path) -> Iterator[Entry]:
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(root / folder) as inside:
                entries = [_entry(folder, one) for one in inside]
        except OSError:
            if not folder:
                raise
            continue
        waiting += [entry.name for entry in entries if entry.kind == "folder"]
        yield from entries


def _entry(folder: str, found: os.DirEntry[str]) -> Entry:
    name = f"{folder}/{found.name}" if folder else found.name
    mode = found.stat(follow_symlinks=False).st_mode
    if stat.S_ISLNK(mode):
        return Entry(name, "link", _target(found.path))
    if stat.S_ISDIR(mode):
        return Entry(name, "folder")
    return Entry(name, "file" if stat.S_ISREG(mode) else "special")


def _target(path: str) -> str:
    return os.readlink(path)  # noqa: PTH115 - a Path would tidy up what the link says


def _artifact(
    files: RunFiles, name: str, owed: DeliverableConfig | None, maker: str | None
) -> ArtifactRecord:
    written = files.record(name)
    try:
        record = written or describe_file(files.root, name)
    except (OSError, AgentCoreError):
        record = None
    return ArtifactRecord(
        path=readable_name(name),
        kind=owed.kind if owed else _kind(name),
        created_by=f"tool:{maker}" if maker else ("runtime" if written else "agent"),
        required=owed is not None,
        content_type=owed.content_type if owed else None,
        bytes=record.bytes if record else None,
        sha256=record.sha256 if record else None,
        status="present" if record else "unreadable",
        path_hex=name_bytes(name),
    )


def _kind(path: str) -> str:
    kinds = {"deliverables": "deliverable", "workspace": "working_file", ARCHIVE: "archive"}
    return kinds.get(path.partition("/")[0], "other")


def _write(files: RunFiles, name: str, manifest: BaseModel) -> FileRecord:
    files.put(name, manifest.model_dump_json(indent=2) + "\n")
    record = files.record(name)
    assert record is not None  # noqa: S101 - it was just written
    return record
