"""The inputs of a run: files and folders that are copied into `inputs/` and hashed.

Only ordinary files, folders, and links that stay inside their folder are copied. All of them are
opened relative to descriptors of their folders, so that long paths work, and links that are swapped
in during the copy are not followed.
"""

import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from fcntl import ioctl
from pathlib import Path, PurePosixPath
from typing import Literal

from agent_core.disk.folders import open_folder
from agent_core.errors import ErrorCode
from agent_core.opening import open_descriptor
from agent_core.tools.files import belongs_to_kernel, open_below
from kgent.config.models import InputSpec, KgentConfig
from kgent.errors import ErrorCategory, KgentError, config_error
from kgent.sandbox.files import PRIVATE_FILE, PRIVATE_FOLDER, NamedRecord, name_bytes, readable_name

INPUTS = "inputs"
"""The folder of a run folder that contains the inputs; it only exists if there are any."""
MAX_INPUT_BYTES = 10 * 2**30
MAX_INPUT_ENTRIES = 100_000
MAX_INPUT_DEPTH = 100
_CHUNK = 2**20
_FICLONE = 0x40049409  # of linux/fs.h: a file shares the blocks of another
_SOURCE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_COPY = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class InputRecord(NamedRecord):
    """An entry of `inputs/` after it was copied.

    `mode` is the mode of the copy, in octal digits. Files have a size and a SHA-256, links a
    `target`.
    """

    kind: Literal["file", "folder", "link"]
    bytes: int | None = None
    sha256: str | None = None
    mode: str | None = None
    target: str | None = None


@dataclass(frozen=True, slots=True)
class RunInput:
    """One input: its name below `inputs/`, and its resolved source."""

    name: str
    source: Path


def find_inputs(config: KgentConfig) -> list[RunInput]:
    """List the existing inputs of a profile, without copying any.

    Raises:
        KgentError: category `config`; an input is missing, is neither file nor folder, or has the
          name of another input.
    """
    found: list[RunInput] = []
    for number, spec in enumerate(config.inputs):
        key = f"inputs[{number}]: {spec.path}"
        try:
            source = config.place(spec.path).resolve(strict=True)
            mode = source.stat().st_mode
        except FileNotFoundError as error:
            if spec.optional and not config.place(spec.path).is_symlink():
                continue
            raise config_error(f"{key} does not exist") from error
        except (OSError, RuntimeError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise config_error(f"{key} cannot be used: {reason}") from error
        is_usable = stat.S_ISREG(mode) or stat.S_ISDIR(mode)
        if not is_usable or belongs_to_kernel(source):
            raise config_error(f"{key} is neither an ordinary file nor a folder")
        name = input_name(config, spec)
        if not name:
            raise config_error(f"{key} has no name of its own; give it one with `as`")
        for other in found:
            parts, others = PurePosixPath(name).parts, PurePosixPath(other.name).parts
            shared = min(len(parts), len(others))
            if parts[:shared] == others[:shared]:
                reason = f"its place {INPUTS}/{name} is taken by {other.source}"
                raise config_error(f"{key} cannot be used: {reason}; give it a name with `as`")
        found.append(RunInput(name, source))
    return found


def input_name(config: KgentConfig, spec: InputSpec) -> str:
    """Return the name of an input below `inputs/`."""
    return spec.name or Path(os.path.normpath(config.place(spec.path))).name


def remove_inputs(root: Path) -> None:
    """Remove the copies that a killed process has left unfinished."""
    for folder, _, _ in os.walk(root / INPUTS):
        Path(folder).chmod(PRIVATE_FOLDER)
    shutil.rmtree(root / INPUTS, ignore_errors=True)


def copy_inputs(
    inputs: Sequence[RunInput], root: Path, *, is_cancelled: Callable[[], bool]
) -> list[InputRecord]:
    """Copy the inputs into a run folder, and return records of the copies, sorted by path.

    The copies share blocks with the originals if the file system supports it.

    Raises:
        KgentError: category `sandbox`; an entry is not a file, a folder or a link to a place inside
          its input, or cannot be read or written; the inputs are too large; or the run was
          cancelled.
    """
    copier = _Copier(is_cancelled)
    (root / INPUTS).mkdir(mode=PRIVATE_FOLDER)
    for one in inputs:
        _refuse_around(one, root)
        copier.copy(one, root / INPUTS)
    return sorted(copier.records, key=lambda record: os.fsencode(record.name))


def check_inputs(inputs: Sequence[RunInput], root: Path) -> None:
    """Refuse inputs that cannot be copied into the run folder `root`, without copying any.

    Raises:
        KgentError: category `sandbox`; see `copy_inputs`.
    """
    copier = _Copier(is_cancelled=lambda: False)
    for one in inputs:
        _refuse_around(one, root)
        with open_folder(one.source.parent) as source:
            copier.copy_entry(one.source.name, one.name, source, None, path=[one.name])


def _refuse_around(one: RunInput, root: Path) -> None:
    """Refuse an input that contains the run folder."""
    if root.is_relative_to(one.source):
        reason = "the run folder lies in it; put that elsewhere (--sandbox)"
        raise _refused(str(one.source), reason)


@dataclass(slots=True)
class _Copier:
    """Copies inputs and counts them; without a target folder it only checks and counts them."""

    is_cancelled: Callable[[], bool]
    records: list[InputRecord] = field(default_factory=list[InputRecord])
    size: int = 0

    def copy(self, one: RunInput, folder: Path) -> None:
        name = PurePosixPath(one.name)
        for above in reversed(name.parents[:-1]):
            if not (folder / above).exists():
                (folder / above).mkdir(mode=PRIVATE_FOLDER)
                self._note(str(above), "folder", mode=PRIVATE_FOLDER)
        with open_folder(one.source.parent) as source, open_folder(folder / name.parent) as target:
            self.copy_entry(one.source.name, name.name, source, target, path=[one.name])

    def copy_entry(
        self, name: str, new_name: str, source: int, target: int | None, *, path: list[str]
    ) -> None:
        """Copy one entry of a folder; `path` ends with its name, after those of its parents."""
        shown = "/".join(path)
        try:
            mode = os.stat(name, dir_fd=source, follow_symlinks=False).st_mode
            if stat.S_ISREG(mode):
                self._copy_file(name, new_name, source, target, shown=shown)
            elif stat.S_ISDIR(mode):
                self._copy_folder(name, new_name, source, target, path=path)
            elif stat.S_ISLNK(mode):
                link = os.readlink(name, dir_fd=source)
                if Path(link).is_absolute() or not _stays_inside(path, link):
                    raise _refused(shown, "it is a link that leads out of the input")
                if target is not None:
                    os.symlink(link, new_name, dir_fd=target)
                self._note(shown, "link", target=readable_name(link))
            else:
                raise _refused(shown, "it is neither a file nor a folder nor a link")
        except OSError as error:
            raise _refused(shown, error.strerror or str(error)) from error

    def _copy_folder(
        self, name: str, new_name: str, source: int, target: int | None, *, path: list[str]
    ) -> None:
        if len(path) > MAX_INPUT_DEPTH:
            raise _refused("/".join(path), f"it has more than {MAX_INPUT_DEPTH} folders around it")
        if target is not None:
            os.mkdir(new_name, PRIVATE_FOLDER, dir_fd=target)
        self._note("/".join(path), "folder", mode=PRIVATE_FOLDER)
        with ExitStack() as stack:
            inner = stack.enter_context(open_below(name, source))
            copy = stack.enter_context(open_below(new_name, target)) if target is not None else None
            for entry in sorted(os.listdir(inner)):  # noqa: PTH208 - of a descriptor
                self.copy_entry(entry, entry, inner, copy, path=[*path, entry])

    def _copy_file(
        self, name: str, new_name: str, source: int, target: int | None, *, shown: str
    ) -> None:
        original = open_descriptor(name, _SOURCE, dir_fd=source)
        try:
            status = os.fstat(original)
            if not stat.S_ISREG(status.st_mode):
                raise _refused(shown, "it was replaced while it was copied")
            self._count(status.st_size, shown)
            if target is None:
                self.size += status.st_size
                self._note(shown, "file", size=status.st_size)
                return
            copy = open_descriptor(new_name, _COPY, PRIVATE_FILE, dir_fd=target)
            try:
                digest, size = self._copy_content(original, copy, shown)
                mode = stat.S_IRUSR | (status.st_mode & stat.S_IXUSR)
                os.fchmod(copy, mode)
            finally:
                os.close(copy)
        finally:
            os.close(original)
        self.size += size
        self._note(shown, "file", size=size, sha256=digest, mode=mode)

    def _copy_content(self, original: int, copy: int, shown: str) -> tuple[str, int]:
        digest, size, is_cloned = hashlib.sha256(), 0, False
        with suppress(OSError):
            ioctl(copy, _FICLONE, original)
            is_cloned = True
        while chunk := os.read(copy if is_cloned else original, _CHUNK):
            if self.is_cancelled():
                raise _refused(shown, "the run was cancelled", ErrorCode.CANCELLED)
            size += len(chunk)
            self._count(size, shown)
            digest.update(chunk)
            view = memoryview(b"" if is_cloned else chunk)
            while view:
                view = view[os.write(copy, view) :]
        return digest.hexdigest(), size

    def _count(self, size: int, shown: str) -> None:
        if self.size + size > MAX_INPUT_BYTES:
            reason = f"the inputs of a run have at most {MAX_INPUT_BYTES:,} bytes"
            raise _refused(shown, reason, ErrorCode.VALIDATION_ERROR)

    def _note(
        self,
        path: str,
        kind: Literal["file", "folder", "link"],
        *,
        size: int | None = None,
        sha256: str | None = None,
        mode: int | None = None,
        target: str | None = None,
    ) -> None:
        if len(self.records) == MAX_INPUT_ENTRIES:
            reason = f"the inputs of a run have at most {MAX_INPUT_ENTRIES:,} files and folders"
            raise _refused(path, reason, ErrorCode.VALIDATION_ERROR)
        name = f"{INPUTS}/{path}"
        record = InputRecord(
            path=readable_name(name),
            path_hex=name_bytes(name),
            kind=kind,
            bytes=size,
            sha256=sha256,
            mode=None if mode is None else f"{mode:04o}",
            target=target,
        )
        self.records.append(record)


def _stays_inside(path: Sequence[str], link: str) -> bool:
    """Return whether a relative link, followed from its place, stays inside its input."""
    depth = len(path) - 1  # the depth of the link's folder below the input
    for part in PurePosixPath(link).parts:
        depth += -1 if part == ".." else 1
        if depth < 1:
            return False
    return True


def _refused(path: str, reason: str, code: ErrorCode = ErrorCode.PATH_CONFLICT) -> KgentError:
    shown = readable_name(path)
    return KgentError(
        code,
        f"the input {shown} cannot be copied: {reason}",
        category=ErrorCategory.SANDBOX,
        details={"path": shown},
    )
