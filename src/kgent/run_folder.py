"""The run folder: its layout, its two manifests, and the check of required deliverables."""

import errno
import os
import shutil
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

from agent_core.disk.folders import make_private, open_folder
from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.opening import open_descriptor, write_text
from kgent.config import DeliverableSpec, KgentConfig
from kgent.errors import BLOCKING, ErrorCategory, ErrorInfo, KgentError, Record
from kgent.inputs import INPUTS, InputRecord
from kgent.records import (
    ARCHIVE,
    ERRORS_FILE,
    EVENTS_FILE,
    TOOLS_FILE,
    TRANSCRIPT_FILE,
    RunEnvironment,
    RunRecords,
)
from kgent.run_files import (
    PRIVATE_FILE,
    PRIVATE_FOLDER,
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
from kgent.schemas import find_fault
from kgent.state import (
    RUN_FILE,
    CheckResult,
    RunFolderState,
    RunFolderStatus,
    RunIds,
    now,
    state_text,
)

CONFIG_FILE = "config.yaml"
PROMPT_FILE = "prompt.md"
SYSTEM_PROMPT_FILE = "effective-system-prompt.md"
SANDBOX_MANIFEST = "sandbox-manifest.json"
ARTIFACT_MANIFEST = "artifact-manifest.json"
SIGNATURE_FILE = "seal.sig"
"""The signature of the seal, in the folder of a signed run; no manifest can contain it."""

WRITABLE = ("workspace", "deliverables")
"""The folders of a run folder that tools may write to."""
FOLDERS = (*WRITABLE, ARCHIVE, "logs")
RECORDS = (
    *(CONFIG_FILE, PROMPT_FILE, SYSTEM_PROMPT_FILE),
    *(EVENTS_FILE, TRANSCRIPT_FILE, TOOLS_FILE, ERRORS_FILE),
)
"""The run's records about itself; the sandbox manifest contains their hashes."""
FILES = (RUN_FILE, SANDBOX_MANIFEST, ARTIFACT_MANIFEST, *RECORDS)

OtherKind = Literal["folder", "link", "special", "unreadable"]
"""Kinds of entries other than files; an `unreadable` folder cannot be listed."""

MAX_HASHED_FILE = 16 * 2**30
MAX_HASHED_TOTAL = 64 * 2**30
"""The most bytes that are read when a run closes: of one file, and of all files."""

_IN_USE = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_KINDS = {"deliverables": "deliverable", "workspace": "working_file", ARCHIVE: "archive"}


def resolve_run_folder(config: KgentConfig, ids: RunIds) -> Path:
    """Return the resolved run folder for a profile and ids, without creating it.

    Raises:
        KgentError: category `sandbox`; it cannot be resolved, or the place must not be used.
    """
    name = config.workspace.sandbox
    for key in ("session_id", "task_id", "run_id"):
        name = name.replace(f"{{{key}}}", str(getattr(ids, key)))
    try:
        root = config.place(name).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise _unusable(Path(name), f"it cannot be resolved: {error}") from error
    if root in {Path(root.anchor), Path.home().resolve()}:
        raise _unusable(root, "a run gets a folder of its own, below this one")
    return root


def create_run_folder(env: RunEnvironment) -> None:
    """Create the run folder with all initial files and folders, in one step.

    It is created under another name and then renamed. So a partial folder is never seen under the
    final name, and a folder that is not empty is never replaced. Unfinished folders of runs that
    were killed are removed.

    Raises:
        KgentError: category `sandbox`; the folder is not empty, or it cannot be created.
    """
    root, unfinished = env.sandbox_root, env.records.files.unfinished
    when = env.records.now()
    state = RunFolderState.of(env.core_fields(), env.config, config_path="unknown", when=when)
    text = state_text(state.content(env.records.redactor))
    try:
        make_private(root.parent)
        unfinished.clear()
        with unfinished.noted(root.parent, is_folder=True) as name:
            draft = root.with_name(name)
            try:
                for folder in ("", *FOLDERS):
                    (draft / folder).mkdir(mode=PRIVATE_FOLDER)
                for file in FILES:
                    os.close(open_descriptor(draft / file, _NEW_FILE, PRIVATE_FILE))
                # Fails if the disk has no room for a run; later versions are written over it.
                write_text(draft / RUN_FILE, text, errors="replace")
                draft.rename(root)
            except OSError:
                shutil.rmtree(draft, ignore_errors=True)
                raise
    except OSError as error:
        if error.errno in _IN_USE:
            reason = "it is not empty, and a run never mixes with what is there; name a new folder"
            raise _unusable(root, reason, code=ErrorCode.PATH_CONFLICT) from error
        raise _unusable(root, f"it cannot be made: {error.strerror or error}") from error


def _unusable(root: Path, reason: str, *, code: ErrorCode = ErrorCode.CONFIG_ERROR) -> KgentError:
    return KgentError(
        code,
        f"the run folder {root} cannot be used: {reason}",
        category=ErrorCategory.SANDBOX,
        details={"path": str(root)},
    )


# --- manifests ------------------------------------------------------------------------------------


class SandboxManifest(Record):
    """The boundaries of the run folder, and the hashes of its records once the run has ended.

    `modes` are the permissions of the run folder itself (`.`) and of `inputs`, which appear in no
    other list.
    """

    root: str
    writable: list[str]
    readonly: list[str]
    forbidden: list[str]
    created_at: str
    inputs: list[InputRecord] = []
    files: list[FileRecord] = []
    modes: dict[str, str] = {}

    @classmethod
    def of(cls, root: Path) -> "SandboxManifest":
        """Return the boundaries of a run folder, as they are enforced."""
        return cls(
            root=readable_name(str(root)),
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


class ProducedFile(NamedRecord):
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

    artifacts: list[ProducedFile] = []
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


def write_artifact_manifest(records: RunRecords, required: Iterable[DeliverableSpec]) -> FileRecord:
    """Write `artifact-manifest.json` from the current content of the run folder.

    Files that the run itself wrote to `archive/` are recorded as they were written. If a command
    has made something unreadable for its owner, it is made readable, because the manifest covers
    everything in the folder.
    """
    files = records.files
    specs = {deliverable.path: deliverable for deliverable in required}
    entries = [entry for entry in list_entries(files.root, takes_rights=True) if not entry.is_input]
    produced: list[ProducedFile] = []
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
            missing = ProducedFile(
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
) -> ProducedFile:
    root, maker = records.files.root, records.maker_of(name)
    written = record = records.files.record(name)
    try:
        if record is None:
            try:
                record = describe_file(root, name, limit=limit)
            except PermissionError:
                make_readable(root, name)
                record = describe_file(root, name, limit=limit)
    except (OSError, AgentCoreError):
        record = None
    return ProducedFile(
        path=readable_name(name),
        kind=spec.kind if spec else _KINDS.get(name.partition("/")[0], "other"),
        created_by=f"tool:{maker}" if maker else ("runtime" if written else "agent"),
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


# --- deliverables and the final status ------------------------------------------------------------


class GovernanceStatus(StrEnum):
    """The results of a check."""

    PASSED = "passed"
    FAILED = "failed"
    INCOMPLETE = "incomplete"
    BLOCKED = "blocked"


class DeliverableCheck(Record):
    """The result of a check of deliverables.

    Attributes:
        found: paths of the required deliverables that exist.
        missing: reasons by the paths of those that do not exist.
        invalid: reasons by the paths of those whose content does not fit the schema.
        checks: results of the profile's own checks.
    """

    status: GovernanceStatus
    summary: str
    error: ErrorInfo | None = None
    found: list[str] = []
    missing: dict[str, str] = {}
    invalid: dict[str, str] = {}
    checks: list[CheckResult] = []


def check_deliverables(root: Path, required: Iterable[DeliverableSpec]) -> DeliverableCheck:
    """Look for every required deliverable, and compare its content with its schema.

    A folder counts if it contains a file. A link does not count, because it leads out of the run
    folder or to something else in it.
    """
    found: list[str] = []
    missing: dict[str, str] = {}
    invalid: dict[str, str] = {}
    for deliverable in required:
        path = root / deliverable.path
        try:
            problem = _find_absence(root, deliverable)
        except OSError as error:
            problem = f"it cannot be read: {error.strerror or error}"
        if problem is not None:
            missing[deliverable.path] = problem
            continue
        found.append(deliverable.path)
        schema = deliverable.content_schema
        if isinstance(schema, dict):
            fault = "it is a folder" if path.is_dir() else find_fault(path, deliverable, schema)
            if fault is not None:
                invalid[deliverable.path] = fault
    if not missing and not invalid:
        summary = f"every required deliverable is there ({len(found)})"
        return DeliverableCheck(status=GovernanceStatus.PASSED, summary=summary, found=found)
    what, code = (
        ("are missing", "deliverable_missing")
        if missing
        else ("are invalid", "deliverable_invalid")
    )
    wrong = missing or invalid
    listed = ", ".join(f"{path} ({problem})" for path, problem in wrong.items())
    return DeliverableCheck(
        status=GovernanceStatus.INCOMPLETE,
        summary=f"{len(wrong)} of {len(found) + len(missing)} required deliverables {what}",
        error=ErrorInfo(
            code=code,
            message=f"required deliverables {what}: {listed}",
            category=ErrorCategory.GOVERNANCE,
            details={"missing": missing, "invalid": invalid} if invalid else {"missing": missing},
        ),
        found=found,
        missing=missing,
        invalid=invalid,
    )


def _find_absence(root: Path, deliverable: DeliverableSpec) -> str | None:
    """Return why a deliverable counts as missing; None if it does not."""
    path, parts = root / deliverable.path, Path(deliverable.path).parts
    if any(root.joinpath(*parts[: n + 1]).is_symlink() for n in range(len(parts))):
        return "it is a link, or behind one"
    if path.is_dir():
        has_files = deliverable.allow_empty or any(names for _, _, names in os.walk(path))
        return None if has_files else "the folder has no file in it"
    if not path.is_file():
        return "it is no ordinary file" if path.exists() else "it does not exist"
    if path.stat().st_size == 0 and not deliverable.allow_empty:
        return "it is empty"
    return None


def governance_status(error: ErrorInfo) -> GovernanceStatus:
    """Return `blocked` for an error of profile, path or skill, and `failed` for any other."""
    is_blocking = error.category in BLOCKING
    return GovernanceStatus.BLOCKED if is_blocking else GovernanceStatus.FAILED


def final_status(
    *, failure: ErrorInfo | None, interruption: ErrorInfo | None, check: DeliverableCheck | None
) -> tuple[RunFolderStatus, ErrorInfo | None]:
    """Return the final status of a run, and the error that explains it.

    A failure takes precedence over an interruption, and both over missing deliverables. `check` is
    None only if there is a failure.
    """
    if failure is not None:
        return RunFolderStatus.FAILED, failure
    if interruption is not None:
        return RunFolderStatus.INCOMPLETE, interruption
    if check is not None and check.status is GovernanceStatus.PASSED:
        return RunFolderStatus.COMPLETED, None
    return RunFolderStatus.INCOMPLETE, check.error if check else None
