"""The two manifests of a run folder: its boundaries, and its content."""

import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import field_serializer

from agent_core.disk.folders import open_folder
from agent_core.errors import AgentCoreError
from agent_core.opening import open_descriptor
from kgent.config.models import DeliverableSpec
from kgent.errors import Record
from kgent.records.archive import ARCHIVE
from kgent.records.context import RunRecords
from kgent.records.lines import now
from kgent.runtime.state import ATTEMPTS
from kgent.sandbox.files import (
    FileRecord,
    NamedRecord,
    RunFiles,
    describe_file,
    make_readable,
    mode_text,
    name_bytes,
    readable_name,
    set_rights,
)
from kgent.sandbox.inputs import INPUTS, InputRecord
from kgent.sandbox.workspace import (
    ARTIFACT_MANIFEST,
    FILES,
    RECORDS,
    SANDBOX_MANIFEST,
    SIGNATURE_FILE,
    WRITABLE,
)

OtherKind = Literal["folder", "link", "special", "unreadable"]
"""Kinds of entries other than files; an `unreadable` folder cannot be listed."""
MAX_HASHED_FILE = 16 * 2**30
MAX_HASHED_TOTAL = 64 * 2**30
"""The most bytes that are read when a run closes: of one file, and of all files."""
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_KINDS = {
    "deliverables": "deliverable",
    "workspace": "working_file",
    ARCHIVE: "archive",
    ATTEMPTS: "attempt",
}


class SandboxManifest(Record):
    """The boundaries of the run folder, and the hashes of its records once the run has ended.

    `modes` are the permissions of the run folder itself (`.`) and of `inputs`, which appear in no
    other list.
    """

    root: Path
    writable: list[str]
    readonly: list[str]
    forbidden: list[str]
    created_at: str
    inputs: list[InputRecord] = []
    files: list[FileRecord] = []
    modes: dict[str, str] = {}

    @field_serializer("root")
    def _show_root(self, root: Path) -> str:
        return readable_name(str(root))

    @classmethod
    def of(cls, root: Path) -> "SandboxManifest":
        """Return the boundaries of a run folder, as they are enforced."""
        return cls(
            root=root,
            writable=[f"{name}/" for name in WRITABLE],
            readonly=["./"],
            forbidden=["everything else"],
            created_at=now(),
        )

    def write(self, files: RunFiles, *, final: bool = False) -> FileRecord:
        """Write `sandbox-manifest.json`; `final` adds the records as they were written."""
        manifest = self
        if final:
            records = [record for name in RECORDS if (record := files.record(name))]
            manifest = self.model_copy(update={"files": records, "modes": read_modes(files.root)})
        return files.put(SANDBOX_MANIFEST, manifest.model_dump_json(indent=2) + "\n")


def read_modes(root: Path) -> dict[str, str]:
    """Return the modes of a run folder and of its folder of inputs, if there is one."""
    places = (name for name in (".", INPUTS) if os.path.lexists(root / name))
    return {name: mode_text((root / name).stat(follow_symlinks=False).st_mode) for name in places}


class ArtifactRecord(NamedRecord):
    """A file that the run produced. A required but missing file has no size and no hash.

    `too_large`: it was not read when the run ended; only its size is known.
    """

    kind: str
    created_by: str
    required: bool = False
    content_type: str | None = None
    bytes: int | None = None
    sha256: str | None = None
    mode: str | None = None
    status: Literal["present", "missing", "unreadable", "too_large"] = "present"


class OtherRecord(NamedRecord):
    """An entry of a run folder that is not a file: a folder, a pipe, a link and its target.

    A link has no mode.
    """

    kind: OtherKind
    target: str | None = None
    mode: str | None = None


class ArtifactManifest(Record):
    """All entries of the run folder except its records, sorted by path."""

    artifacts: list[ArtifactRecord] = []
    others: list[OtherRecord] = []
    updated_at: str


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """An entry of a run folder: its path in the folder, for system calls, and its kind."""

    name: str
    kind: Literal["file"] | OtherKind
    target: str | None = None
    mode: str | None = None

    @property
    def is_input(self) -> bool:
        """Return whether it is the folder of inputs or in it; the sandbox manifest covers these."""
        return self.name == INPUTS or self.name.startswith(f"{INPUTS}/")

    def other(self) -> OtherRecord:
        """Return the entry as a record; must not be called for files."""
        assert self.kind != "file"  # noqa: S101 - files have records with a hash
        return OtherRecord(
            path=readable_name(self.name),
            kind=self.kind,
            target=readable_name(self.target) if self.target is not None else None,
            mode=self.mode,
            path_hex=name_bytes(self.name),
        )


def write_artifact_manifest(
    records: RunRecords,
    required: Iterable[DeliverableSpec],
    *,
    is_left_out: Callable[[str], bool] = lambda _: False,
) -> FileRecord:
    """Write `artifact-manifest.json` from the current content of the run folder.

    Files that the run itself wrote to `archive/` are recorded as they were written. If a command
    has made something unreadable for its owner, it is made readable, because the manifest covers
    everything in the folder but the entries that are left out.
    """
    files = records.files
    specs = {deliverable.path: deliverable for deliverable in required}
    entries = [
        entry
        for entry in list_entries(files.root, takes_rights=True)
        if not entry.is_input and not is_left_out(entry.name)
    ]
    produced: list[ArtifactRecord] = []
    room = MAX_HASHED_TOTAL
    for entry in entries:
        if entry.kind == "file":
            limit = min(MAX_HASHED_FILE, room)
            file = _describe_produced(records, entry.name, specs.get(entry.name), limit=limit)
            room -= (file.bytes or 0) if file.sha256 else 0
            produced.append(file)
    present = {file.path for file in produced}
    for path, deliverable in specs.items():
        if path not in present and not os.path.isdir(files.root / path):  # noqa: PTH112 - any path
            missing = ArtifactRecord(
                path=path,
                kind=deliverable.kind,
                created_by="nobody",
                required=True,
                content_type=deliverable.content_type,
                status="missing",
            )
            produced.append(missing)
    manifest = ArtifactManifest(
        artifacts=sorted(produced, key=lambda file: file.path),
        others=[entry.other() for entry in entries if entry.kind != "file"],
        updated_at=now(),
    )
    return files.put(ARTIFACT_MANIFEST, manifest.model_dump_json(indent=2) + "\n")


def _describe_produced(
    records: RunRecords, name: str, spec: DeliverableSpec | None, *, limit: int
) -> ArtifactRecord:
    root, maker = records.files.root, records.tools.maker_of(name)
    written = record = records.files.record(name)
    is_own = written is not None or name.startswith(f"{ATTEMPTS}/")
    try:
        if record is None:
            try:
                record = describe_file(root, name, limit=limit)
            except PermissionError:
                make_readable(root, name)
                record = describe_file(root, name, limit=limit)
    except (OSError, AgentCoreError):
        record = None
    return ArtifactRecord(
        path=readable_name(name),
        kind=spec.kind if spec else _KINDS.get(name.partition("/")[0], "other"),
        created_by=f"tool:{maker}" if maker else ("runtime" if is_own else "agent"),
        required=spec is not None,
        content_type=spec.content_type if spec else None,
        bytes=record.bytes if record else None,
        sha256=(record.sha256 or None) if record else None,
        mode=record.mode if record else None,
        status=("present" if record.sha256 else "too_large") if record else "unreadable",
        path_hex=name_bytes(name),
    )


def list_entries(root: Path, *, takes_rights: bool = False) -> list[FolderEntry]:
    """List the entries of a run folder, except the records that every run folder has.

    Links are listed and not followed. With `takes_rights`, folders that their owner may not read
    are made readable.
    """
    found: list[FolderEntry] = []
    waiting = [""]
    while waiting:
        name = waiting.pop()
        try:
            mode, entries = _list_folder(root, name, takes_rights=takes_rights)
        except OSError:
            if not name:
                raise
            found.append(FolderEntry(name, "unreadable"))
            continue
        if name:
            found.append(FolderEntry(name, "folder", mode=mode))
        waiting += [entry.name for entry in entries if entry.kind == "folder"]
        found += [entry for entry in entries if entry.kind != "folder"]
    others = (
        entry
        for entry in found
        if entry.name not in FILES and (entry.name, entry.kind) != (SIGNATURE_FILE, "file")
    )
    return sorted(others, key=lambda entry: os.fsencode(entry.name))


def _list_folder(root: Path, folder: str, *, takes_rights: bool) -> tuple[str, list[FolderEntry]]:
    """Return the mode and the entries of a folder, which may have a path of any length."""
    found: list[FolderEntry] = []
    with open_folder(root / folder) as place:
        try:
            descriptor = open_descriptor(".", _LIST, dir_fd=place)
        except PermissionError:
            if not takes_rights:
                raise
            set_rights(place, added=stat.S_IRWXU)
            descriptor = open_descriptor(".", _LIST, dir_fd=place)
        try:
            with os.scandir(descriptor) as inside:
                for one in inside:
                    name = f"{folder}/{one.name}" if folder else one.name
                    try:
                        mode = one.stat(follow_symlinks=False).st_mode
                        link = stat.S_ISLNK(mode)
                        target = os.readlink(one.name, dir_fd=descriptor) if link else None
                    except FileNotFoundError:  # removed since the folder was listed
                        continue
                    if link:
                        found.append(FolderEntry(name, "link", target))
                    elif stat.S_ISDIR(mode):
                        found.append(FolderEntry(name, "folder"))
                    else:
                        kind = "file" if stat.S_ISREG(mode) else "special"
                        found.append(FolderEntry(name, kind, mode=mode_text(mode)))
            return mode_text(os.fstat(descriptor).st_mode), found
        finally:
            os.close(descriptor)
