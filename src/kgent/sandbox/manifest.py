"""What is in a run folder, with size and SHA-256: enough to notice every change of content."""

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from agent_core.disk.folders import open_folder
from agent_core.errors import AgentCoreError
from kgent.config.models import DeliverableConfig
from kgent.records.context import ARCHIVE
from kgent.records.files import FileRecord, RunFiles, add_rights, describe_file, make_readable
from kgent.records.logs import ToolLogger
from kgent.records.names import NamedRecord, name_bytes, readable_name
from kgent.runtime.state import now
from kgent.sandbox.paths import WRITABLE
from kgent.sandbox.workspace import ARTIFACT_MANIFEST, FILES, FOLDERS, RECORDS, SANDBOX_MANIFEST

OtherKind = Literal["folder", "link", "special", "unreadable"]
"""What is no file; `unreadable` is a folder whose content is not known."""

_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class SandboxManifest(BaseModel):
    """The run folder's boundaries, and the records it vouches for once the run is over."""

    model_config = ConfigDict(frozen=True)

    root: str
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
    """What is in a run folder and is not a file: a folder, a pipe, a link and its target."""

    kind: OtherKind
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
    kind: Literal["file"] | OtherKind
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


def list_entries(root: Path, *, takes_rights: bool = False) -> list[Entry]:
    """Everything in a run folder but the records and folders that every run folder has.

    Links are listed and not followed.

    Args:
        root: the run folder, resolved.
        takes_rights: make folders readable that their owner may not read.

    Raises:
        OSError: the run folder itself cannot be read.
    """
    found = [one for one in _walk(root, takes_rights=takes_rights) if not _is_expected(one)]
    return sorted(found, key=lambda entry: os.fsencode(entry.name))


def new_sandbox_manifest(root: Path, *, read_roots: Iterable[Path] = ()) -> SandboxManifest:
    """The boundaries of a run folder, as they are enforced."""
    return SandboxManifest(
        root=readable_name(str(root)),
        writable=[f"{name}/" for name in WRITABLE],
        readonly=["./", *(readable_name(str(folder)) for folder in read_roots)],
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

    What the run itself wrote to `archive/` is recorded as it was written. What a command has made
    unreadable for its owner is made readable: a run vouches for all it leaves behind.

    Returns:
        Size and SHA-256 of the manifest.

    Raises:
        OSError: something cannot be read or written.
    """
    owed = {deliverable.path: deliverable for deliverable in required}
    entries = list_entries(files.root, takes_rights=True)
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


def _walk(root: Path, *, takes_rights: bool) -> Iterator[Entry]:
    waiting = [Entry("", "folder")]
    while waiting:
        folder = waiting.pop()
        try:
            entries = _inside(root, folder.name, takes_rights=takes_rights)
        except OSError:
            if not folder.name:
                raise
            yield Entry(folder.name, "unreadable")
            continue
        if folder.name:
            yield folder
        waiting += [entry for entry in entries if entry.kind == "folder"]
        yield from (entry for entry in entries if entry.kind != "folder")


def _is_expected(entry: Entry) -> bool:
    return entry.name in FILES or (entry.name in FOLDERS and entry.kind == "folder")


def _inside(root: Path, folder: str, *, takes_rights: bool) -> list[Entry]:
    """What is in a folder, however long its path is."""
    with open_folder(root / folder) as place:
        try:
            descriptor = os.open(".", _LIST, dir_fd=place)
        except PermissionError:
            if not takes_rights:
                raise
            add_rights(place, stat.S_IRWXU)
            descriptor = os.open(".", _LIST, dir_fd=place)
        try:
            with os.scandir(descriptor) as inside:
                return [entry for one in inside if (entry := _entry(folder, one, descriptor))]
        finally:
            os.close(descriptor)


def _entry(folder: str, found: os.DirEntry[str], place: int) -> Entry | None:
    name = f"{folder}/{found.name}" if folder else found.name
    try:
        mode = found.stat(follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            return Entry(name, "link", os.readlink(found.name, dir_fd=place))
    except FileNotFoundError:  # it has gone since the folder was listed
        return None
    if stat.S_ISDIR(mode):
        return Entry(name, "folder")
    return Entry(name, "file" if stat.S_ISREG(mode) else "special")


def _describe(root: Path, name: str) -> FileRecord:
    """A file as it is; one that its owner may not read is made readable."""
    try:
        return describe_file(root, name)
    except PermissionError:
        make_readable(root, name)
        return describe_file(root, name)


def _artifact(
    files: RunFiles, name: str, owed: DeliverableConfig | None, maker: str | None
) -> ArtifactRecord:
    written = files.record(name)
    try:
        record = written or _describe(files.root, name)
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
