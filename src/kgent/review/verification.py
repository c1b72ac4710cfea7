"""Check that a run folder is as the run left it, for `kgent verify`.

`run.json` holds the hashes of the two manifests, the manifests hold the hashes of every file, and
the closing event holds the hash of `run.json`. Changes that keep all of these consistent are
detected only by the seal, which the run has printed.
"""

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from agent_core.errors import AgentCoreError
from agent_core.text import readable_name
from agent_core.tools.files import open_file
from kgent.config.loader import fingerprint_config, load_config
from kgent.config.portable import KEPT_SKILLS
from kgent.errors import ErrorCategory, KgentError, Record
from kgent.records.events import EVENTS_FILE
from kgent.review.consistency import LINE_ENDS, SEALED, check_attempts, check_story, read_seal
from kgent.review.modes import ModeChange, compare_modes
from kgent.review.report import (
    MAX_MANIFEST_BYTES,
    FileTooLargeError,
    FolderReport,
    read_bytes,
    read_report,
    read_whole,
)
from kgent.runtime.state import RUN_FILE, SCHEMA_VERSION, RunState
from kgent.sandbox.attempts import is_own_entry
from kgent.sandbox.files import (
    PRIVATE_FILE,
    FileRecord,
    FolderEntry,
    NamedRecord,
    describe_file,
    mode_text,
)
from kgent.sandbox.inputs import INPUTS, InputRecord
from kgent.sandbox.manifest import (
    ArtifactManifest,
    OtherRecord,
    SandboxManifest,
    is_input,
    list_entries,
    read_modes,
)
from kgent.sandbox.workspace import (
    ARTIFACT_MANIFEST,
    CONFIG_FILE,
    FILES,
    FOLDERS,
    RECORDS,
    SANDBOX_MANIFEST,
    SIGNATURE_FILE,
    records_of,
)

M = TypeVar("M", bound=BaseModel)


MAX_SIGNATURE_BYTES = 65_536
MAX_LINE_ENDS_BYTES = 2**26
"""Larger files are not read again to find out whether only their line ends differ."""
_SIGNATURE_HEAD = b"-----BEGIN SSH SIGNATURE-----"
REDACTED = "[redacted:"
"""The beginning of a text that replaces a secret."""
_GIT = ".git"
_FIRST_WITH_MODES = 2
_FIRST_RELEASE = (
    "the first release of kgent wrote this folder: what it did not record yet (modes, counts, a"
    " fingerprint with the content of skills) cannot be checked; the seal that the run printed"
    " proves the rest"
)


class FolderCheck(Record):
    """The result of checking a run folder; without problems the folder is as the run left it.

    Attributes:
        run_id: the id of the run, if `run.json` can be read.
        outcome: the status of the run; `lost` if it did not end.
        checked: the number of files that were compared with their hashes.
        problems: descriptions of the changes since the run.
        remarks: differences that are not changes, because git, archives and artifact stores cause
          them (modes, missing empty folders), and hints on the problems.
        seal: computed from the current state of the folder.
        signer: the signer of that seal, if the signature was checked.
    """

    run_id: str | None = None
    outcome: str | None = None
    checked: int = 0
    problems: list[str]
    remarks: list[str] = []
    seal: str | None = None
    signer: str | None = None

    @property
    def is_sound(self) -> bool:
        """Return whether nothing has changed since the run."""
        return not self.problems


def verify(
    root: Path,
    *,
    seal: str | None = None,
    allowed_signers: Path | None = None,
    signer: str | None = None,
) -> FolderCheck:
    """Check a run folder against its manifests and events, and against the seal if given.

    Only the content decides: differences that copying causes are in `FolderCheck.remarks`.

    Args:
        root: the run folder.
        seal: the seal that the run printed when it ended.
        allowed_signers: a file of ssh-keygen; a signer in it must have signed the seal.
        signer: the required signer among these.

    Raises:
        KgentError: category `sandbox`; the folder has no file of a run folder. Category `config`:
          the signature cannot be checked.
    """
    root = root.resolve()
    problems: list[str] = []
    found_seal = read_seal(root)
    is_proved = seal is not None and seal.strip().lower() == found_seal
    if seal is not None and not is_proved:
        problems.append("the seal does not fit: this is not the folder that the run left")
    signed_by: str | None = None
    if allowed_signers is not None:
        from kgent.review.signing import find_signer  # noqa: PLC0415 - few folders are signed

        try:
            signed_by = find_signer(root, found_seal or "", allowed=allowed_signers, signer=signer)
        except KgentError as error:
            if error.category is not ErrorCategory.GOVERNANCE:
                raise
            problems.append(error.message)
    try:
        report = read_report(root)
    except KgentError as error:
        if not any(os.path.lexists(root / name) for name in (*FILES, *FOLDERS)):
            raise
        problems += _check_layout(root, None)
        return FolderCheck(problems=[error.message, *problems], seal=found_seal)
    version = report.state.schema_version
    found = _Findings([*report.problems, *problems, *_check_layout(root, version)])
    if not report.state.status.is_active:
        _check_manifests(root, report, found)
        found.problems.extend(check_story(root, report.state))
        if version < _FIRST_WITH_MODES and not is_proved:
            found.problems.append(_FIRST_RELEASE)
        if version >= _FIRST_WITH_MODES:
            _check_profile(root, report.state, found)
        if version >= SCHEMA_VERSION or report.state.attempts:
            found.problems.extend(check_attempts(root, report.state))
    else:
        found.problems.extend(map(_name_missing_folder, _missing_folders(root)))
        if not report.is_lost:
            found.problems.append("the run is still active; its manifests are not final")
    return FolderCheck(
        run_id=report.state.run_id,
        outcome=report.outcome,
        checked=found.checked,
        problems=found.problems,
        remarks=[*found.remarks, *_hints(root, found.problems)],
        seal=found_seal,
        signer=signed_by,
    )


@dataclass(slots=True)
class _Findings:
    """The findings of a check so far.

    `has_lost_bits`: a copied skill lacks an execute permission that was recorded, and only because
    the folder was copied.
    """

    problems: list[str]
    remarks: list[str] = field(default_factory=list[str])
    checked: int = 0
    has_lost_bits: bool = False


def has_signature(root: Path) -> bool:
    """Return whether the folder contains a file that looks like a signature."""
    try:
        head = read_bytes(root / SIGNATURE_FILE, MAX_SIGNATURE_BYTES + 1)
    except (OSError, AgentCoreError):
        return False
    return head.startswith(_SIGNATURE_HEAD) and len(head) <= MAX_SIGNATURE_BYTES


def _check_layout(root: Path, version: int | None) -> Iterator[str]:
    """Look for the files and folders of a run folder of this version of `run.json`.

    If the version is not known, only what every version has is expected.
    """
    links = {name for name in (*FILES, *FOLDERS) if (root / name).is_symlink()}
    expected = {RUN_FILE, SANDBOX_MANIFEST, ARTIFACT_MANIFEST, *records_of(version or 1)}
    for name in FILES:
        if name not in expected:
            if version is not None and os.path.lexists(root / name):
                yield f"{name} was added after the run"
        elif name in links or not (root / name).is_file():
            yield f"{name} is missing, or is not an ordinary file"
    for name in FOLDERS:
        if name in links or (os.path.lexists(root / name) and not (root / name).is_dir()):
            yield _name_missing_folder(name)
    if (root / SIGNATURE_FILE).is_file() and not has_signature(root):
        yield f"{SIGNATURE_FILE} is not an SSH signature"


def _missing_folders(root: Path) -> list[str]:
    return [name for name in FOLDERS if not os.path.lexists(root / name)]


def _name_missing_folder(name: str) -> str:
    return f"{name}/ is missing, or is not a folder"


# --- files and hashes -----------------------------------------------------------------------------


def _check_manifests(root: Path, report: FolderReport, found: _Findings) -> None:
    """Check every entry that the manifests cover."""
    problems, version = found.problems, report.state.schema_version
    sandbox = _read_manifest(root, report, SANDBOX_MANIFEST, SandboxManifest, problems)
    produced = _read_manifest(root, report, ARTIFACT_MANIFEST, ArtifactManifest, problems)
    records = list(_file_records(sandbox, produced))
    for record in records:
        problems.extend(_check_file(root, record))
    found.checked = len(records)
    if sandbox is not None:
        missing = {*records_of(version)} - {record.path for record in sandbox.files}
        problems.extend(f"{SANDBOX_MANIFEST} does not vouch for {name}" for name in sorted(missing))
    for one in produced.artifacts if produced is not None else ():
        if one.status in _UNPROVEN:
            problems.append(f"{one.path} {_UNPROVEN[one.status]}")
    listed = [one for one in list_entries(root) if not is_own_entry(one.name, report.state)]
    entries = _without_git(root, produced, listed, found)
    _check_entries(root, sandbox, produced, entries, found)
    if version >= _FIRST_WITH_MODES and sandbox is not None:
        _check_modes(root, sandbox, produced, entries, found)


_UNPROVEN = {
    "unreadable": "could not be read when the run ended: nothing vouches for it",
    "too_large": "was too large to be read when the run ended: only its size is vouched for",
}


def _file_records(
    sandbox: SandboxManifest | None, produced: ArtifactManifest | None
) -> Iterator[FileRecord]:
    """Yield a record of each file that the manifests vouch for."""
    yield from sandbox.files if sandbox is not None else ()
    inputs = [one for one in sandbox.inputs if one.kind == "file"] if sandbox is not None else []
    made = produced.artifacts if produced is not None else []
    for one in (*inputs, *(file for file in made if file.status in {"present", "too_large"})):
        yield FileRecord(
            path=one.path,
            path_hex=one.path_hex,
            bytes=one.bytes or 0,
            sha256=one.sha256 or "",
            mode=one.mode,
        )


def _read_manifest(
    root: Path, report: FolderReport, name: str, model: type[M], problems: list[str]
) -> M | None:
    try:
        raw = read_whole(root / name, MAX_MANIFEST_BYTES)
    except FileTooLargeError:
        problems.append(f"{name} was changed after the run")
        return None
    except (OSError, AgentCoreError):
        return None  # reported as missing
    expected = report.state.manifests.get(name)
    if expected is None:
        problems.append(f"run.json does not vouch for {name}")
    elif hashlib.sha256(raw).hexdigest() != expected:
        reason = f" ({LINE_ENDS})" if _has_other_line_ends(raw, expected) else ""
        problems.append(f"{name} was changed after the run{reason}")
    try:
        return model.model_validate_json(raw)
    except ValidationError:
        problems.append(f"{name} is damaged")
        return None


def _folders_of(names: Iterable[str]) -> set[str]:
    """Return all folders around these entries."""
    folders: set[str] = set()
    for name in names:
        above = name.rpartition("/")[0]
        while above and above not in folders:
            folders.add(above)
            above = above.rpartition("/")[0]
    return folders


def _without_git(
    root: Path,
    produced: ArtifactManifest | None,
    entries: list[FolderEntry],
    found: _Findings,
) -> list[FolderEntry]:
    """Leave out git's files at the top of a clone, unless the run has recorded them."""
    top = next((entry for entry in entries if entry.name == _GIT), None)
    if top is None or produced is None or not _belongs_to_git(root, top):
        return entries
    recorded: tuple[Iterable[NamedRecord], ...] = (produced.artifacts, produced.others)
    if any(record.name == _GIT for records in recorded for record in records):
        return entries
    found.remarks.append(f"{_GIT} ({top.kind}) belongs to git: its contents are not checked")
    return [entry for entry in entries if entry.name.partition("/")[0] != _GIT]


def _belongs_to_git(root: Path, entry: FolderEntry) -> bool:
    """Return whether it is a repository, or the file that names the repository of a worktree."""
    if entry.kind == "folder":
        return (root / _GIT / "HEAD").is_file()
    try:
        return entry.kind == "file" and read_bytes(root / _GIT, 8) == b"gitdir: "
    except (OSError, AgentCoreError):
        return False


def _check_file(root: Path, record: FileRecord) -> Iterator[str]:
    """Compare the content of a file with its record."""
    try:
        name = record.name
        path = Path(name)
        if path.is_absolute() or ".." in path.parts:
            yield f"{record.path}: a manifest names a place outside the run folder"
            return
        now = describe_file(root, name, limit=record.bytes if record.sha256 else 0)
    except (OSError, ValueError, AgentCoreError):
        kind = " (file)" if record.path.startswith(f"{INPUTS}/") else ""
        yield f"{record.path}{kind} is missing, or no longer an ordinary file"
        return
    if (now.bytes, now.sha256) == (record.bytes, record.sha256):
        return
    what = "its SHA-256 differs"
    if now.bytes != record.bytes:
        what = f"{record.bytes} bytes then, {now.bytes} now"
    if now.bytes <= min(2 * record.bytes, MAX_LINE_ENDS_BYTES):
        with suppress(OSError, AgentCoreError):
            raw = read_bytes(root / name, now.bytes)
            what += f" ({LINE_ENDS})" if _has_other_line_ends(raw, record.sha256) else ""
    yield f"{record.path} was changed: {what}"


def _has_other_line_ends(raw: bytes, sha256: str) -> bool:
    """Return whether the content has this hash after its line ends are converted."""
    unix = raw.replace(b"\r\n", b"\n")
    both = (unix, unix.replace(b"\n", b"\r\n"))
    return sha256 in {hashlib.sha256(text).hexdigest() for text in both}


def _check_entries(
    root: Path,
    sandbox: SandboxManifest | None,
    produced: ArtifactManifest | None,
    entries: Iterable[FolderEntry],
    found: _Findings,
) -> None:
    """Find new entries, and folders and links that are missing or lead elsewhere.

    A missing folder that had nothing in it is only a remark.
    """
    files, known, problems = set[str](), dict[str, InputRecord | OtherRecord](), found.problems
    has_inputs = sandbox is not None and bool(sandbox.inputs)
    if sandbox is not None:
        files |= {record.name for record in sandbox.files}
        files |= {one.name for one in sandbox.inputs if one.kind == "file"}
        known |= {one.name: one for one in sandbox.inputs if one.kind != "file"}
    if produced is not None:
        files |= {one.name for one in produced.artifacts if one.status != "missing"}
        known |= {one.name: one for one in produced.others}
    links = (name for name, one in known.items() if one.kind != "folder")
    occupied = _folders_of([*files, *links])
    for name in _missing_folders(root):
        if sandbox is None or produced is None or name in occupied:
            problems.append(_name_missing_folder(name))
        elif name not in known:
            found.remarks.append(_name_empty_folder(name))  # not in the first release
    for entry in entries:
        is_vouched_for = (sandbox if is_input(entry.name) else produced) is not None
        is_expected = entry.name in files or (entry.name == INPUTS and has_inputs)
        if is_vouched_for and not is_expected:
            problems.extend(_check_entry(entry, known.pop(entry.name, None)))
    for name, record in known.items():
        if record.kind == "folder" and name not in occupied:
            found.remarks.append(_name_empty_folder(record.path))
        else:
            problems.append(f"{record.path} ({record.kind}) is missing")


def _check_entry(entry: FolderEntry, record: InputRecord | OtherRecord | None) -> Iterator[str]:
    """Compare an entry that is no known file with its record."""
    shown, target = readable_name(entry.name), entry.target and readable_name(entry.target)
    if entry.kind == "unreadable":
        yield f"{shown} (folder) cannot be read: its contents are not checked"
    elif record is not None:
        if (record.kind, record.target) != (entry.kind, target):
            then, now = _describe(record.kind, record.target), _describe(entry.kind, target)
            yield f"{shown} was changed: {then} then, {now} now"
    elif entry.kind == "file" or entry.name not in FOLDERS:  # the first release left these out
        kind = f" ({entry.kind})" if is_input(entry.name) or entry.kind != "file" else ""
        when = "it was given to the run" if is_input(entry.name) else "the run"
        yield f"{shown}{kind} was added after {when}"


def _name_empty_folder(path: str) -> str:
    return f"{path} (folder) is missing; nothing was in it"


def _describe(kind: str, target: str | None = None) -> str:
    return kind if target is None else f"{kind} to {target}"


# --- modes ----------------------------------------------------------------------------------------


def _check_modes(
    root: Path,
    sandbox: SandboxManifest,
    produced: ArtifactManifest | None,
    entries: Iterable[FolderEntry],
    found: _Findings,
) -> None:
    """Compare the modes of all files and folders with the recorded ones."""
    modes_now = {
        kind: {entry.name: entry.mode for entry in entries if entry.kind == kind and entry.mode}
        for kind in ("file", "folder", "special")
    }
    for name in (*FILES, SIGNATURE_FILE):
        with suppress(OSError):  # reported as missing
            facts = (root / name).stat(follow_symlinks=False)
            if stat.S_ISREG(facts.st_mode):
                modes_now["file"][name] = mode_text(facts.st_mode)
    modes_now["folder"] |= read_modes(root)
    recorded: dict[str, dict[str, str]] = {kind: {} for kind in modes_now}
    recorded["folder"] |= sandbox.modes
    for record in (*sandbox.files, *(produced.artifacts if produced else ())):
        if record.mode is not None:
            recorded["file"][record.name] = record.mode
    for one in (*sandbox.inputs, *(produced.others if produced else ())):
        if one.mode is not None and one.kind in recorded:
            recorded[one.kind][one.name] = one.mode
    # No manifest has the modes of these; they are written like the events.
    expected = recorded["file"].get(EVENTS_FILE, mode_text(PRIVATE_FILE))
    recorded["file"] |= dict.fromkeys((*SEALED, SIGNATURE_FILE), expected)
    pairs = {
        kind: {name: (then, modes_now[kind][name]) for name, then in modes.items()
               if name in modes_now[kind]}
        for kind, modes in recorded.items()
    }  # fmt: skip
    files = pairs["file"] | pairs["special"]
    kept = any(files[name][0] == files[name][1] for name in RECORDS if name in files)
    for change in compare_modes(files, pairs["folder"], are_records_kept=kept):
        _report_mode(change, found, is_folder=change.name in pairs["folder"])


def _report_mode(change: ModeChange, found: _Findings, *, is_folder: bool) -> None:
    shown = f"{readable_name(change.name)}{'/' if is_folder else ''}"
    shown = "the run folder" if change.name == "." else shown
    difference = f"its mode was {change.then}, and is {change.now} now"
    if not change.is_remark:
        found.problems.append(f"{shown} was changed: {difference}: {change.effect}")
        return
    found.remarks.append(f"{shown}: {difference}")
    if change.effect is not None and change.name.startswith(f"{KEPT_SKILLS}/"):
        found.has_lost_bits = True


# --- the profile ----------------------------------------------------------------------------------


def _check_profile(root: Path, state: RunState, found: _Findings) -> None:
    """Compute the fingerprint of the profile in the folder again."""
    try:
        with open_file(root / CONFIG_FILE) as file:
            is_redacted = REDACTED.encode() in file.read(MAX_MANIFEST_BYTES)
        if is_redacted:  # the fingerprint includes the removed text
            return
        if found.has_lost_bits:  # the fingerprint includes these modes
            found.remarks.append("the fingerprint is not compared: the skills have other modes")
            return
        config = load_config(root / CONFIG_FILE)
        if fingerprint_config(config) != state.config_fingerprint:
            said = f"{CONFIG_FILE} does not have the fingerprint that run.json names"
            found.problems.append(said)
    except (OSError, AgentCoreError):
        found.problems.append(f"{CONFIG_FILE} cannot be read as a profile")


# --- hints ----------------------------------------------------------------------------------------


def _hints(root: Path, problems: Iterable[str]) -> Iterator[str]:
    """Yield the likely causes of problems that version control causes, and the remedies."""
    said = "\n".join(problems)
    if LINE_ENDS in said:
        yield (
            "git converts line ends where core.autocrlf or a .gitattributes file says so; exclude"
            " run folders with `* -text` in a .gitattributes file above them"
        )
    if " is missing" in said and any((place / _GIT).exists() for place in (root, *root.parents)):
        yield (
            "git does not commit what a .gitignore file names, nor repositories inside another;"
            " commit a run folder with `git add --force`"
        )
