"""The two manifests of a run folder: its boundaries, and its content."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from pydantic import field_serializer

from agent_core.errors import AgentCoreError
from agent_core.text import readable_name
from kgent.config.models import DeliverableSpec
from kgent.errors import Record
from kgent.records.archive import ARCHIVE
from kgent.records.context import RunRecords
from kgent.records.lines import now
from kgent.runtime.state import ATTEMPTS
from kgent.sandbox.files import (
    FileRecord,
    FolderEntry,
    NamedRecord,
    OtherKind,
    RunFiles,
    describe_file,
    make_readable,
    mode_text,
    name_bytes,
    walk_folder,
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

MAX_HASHED_FILE = 16 * 2**30
MAX_HASHED_TOTAL = 64 * 2**30
"""The most bytes that are read when a run closes: of one file, and of all files."""
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


def is_input(name: str) -> bool:
    """Return whether a path of a run folder is `inputs`, or below it."""
    return name == INPUTS or name.startswith(f"{INPUTS}/")


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
        if not is_input(entry.name) and not is_left_out(entry.name)
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
        others=[
            OtherRecord(
                path=readable_name(entry.name),
                kind=entry.kind,
                target=readable_name(entry.target) if entry.target is not None else None,
                mode=entry.mode,
                path_hex=name_bytes(entry.name),
            )
            for entry in entries
            if entry.kind != "file"
        ],
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
    others = (
        entry
        for entry in walk_folder(root, takes_rights=takes_rights)
        if entry.name not in FILES and (entry.name, entry.kind) != (SIGNATURE_FILE, "file")
    )
    return sorted(others, key=lambda entry: os.fsencode(entry.name))
