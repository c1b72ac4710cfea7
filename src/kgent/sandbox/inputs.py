"""The inputs of a run: files and folders that are copied into `inputs/` and hashed.

Only ordinary files, folders, and links that stay inside their folder are copied. All of them are
opened part by part, so that long paths work, and links that are swapped in during the copy are not
followed.
"""

import os
import shutil
import stat
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from agent_core.disk.folders import open_folder
from agent_core.errors import ErrorCode, ToolError
from agent_core.text import readable_name
from agent_core.text.json_text import JsonObject
from agent_core.tools.files import belongs_to_kernel
from kgent.config.models import InputSpec, KgentConfig
from kgent.errors import KgentError, config_error, sandbox_error
from kgent.sandbox.files import (
    PRIVATE_FOLDER,
    FolderEntry,
    NamedRecord,
    copy_file,
    describe_file,
    mode_text,
    name_bytes,
    walk_folder,
)

INPUTS = "inputs"
"""The folder of a run folder that contains the inputs; it only exists if there are any."""
MAX_INPUT_BYTES = 10 * 2**30
MAX_INPUT_ENTRIES = 100_000
MAX_INPUT_DEPTH = 100


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


def find_inputs(config: KgentConfig, given: int = 0) -> list[RunInput]:
    """List the existing inputs of a profile, without copying any.

    Args:
        config: the profile, with the inputs of the options at the end of its own.
        given: how many of its inputs are from the options.

    Raises:
        KgentError: category `config`; an input is missing, is neither file nor folder, or has the
          name of another input.
    """
    found: list[RunInput] = []
    for number, spec in enumerate(config.inputs):
        at = number - (len(config.inputs) - given)
        place = f"inputs[{number}]" if at < 0 else f"inputs[{at}] of the options"
        key = f"{place}: {spec.path}"
        try:
            source = config.place(spec.path).resolve(strict=True)
            mode = source.stat().st_mode
        except FileNotFoundError as error:
            if spec.optional and not config.place(spec.path).is_symlink():
                continue
            cure = "name an existing file or folder, or make it `optional`"
            raise config_error(f"{key} does not exist; {cure}") from error
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
    (root / INPUTS).mkdir(mode=PRIVATE_FOLDER)
    records: list[InputRecord] = []
    for shown, source, entry in _each_entry(inputs, root):
        path, name, facts = f"{INPUTS}/{shown}", PurePosixPath(shown).name, JsonObject()

        def check(shown: str = shown) -> None:
            if is_cancelled():
                raise _refused(shown, "the run was cancelled", ErrorCode.CANCELLED)

        with _refusing(shown), open_folder((root / path).parent) as folder:
            if entry.kind == "folder":
                os.mkdir(name, PRIVATE_FOLDER, dir_fd=folder)
                facts["mode"] = mode_text(PRIVATE_FOLDER)
            elif entry.target is not None:
                os.symlink(entry.target, name, dir_fd=folder)
                facts["target"] = readable_name(entry.target)
            else:
                copied = copy_file(source, entry.name, root / path, kept=0o500, check=check)
                facts = copied.model_dump(include={"bytes", "sha256", "mode"})
        names = {"path": readable_name(path), "path_hex": name_bytes(path), "kind": entry.kind}
        records.append(InputRecord.model_validate(names | facts))
    return sorted(records, key=lambda record: os.fsencode(record.name))


def check_inputs(inputs: Sequence[RunInput], root: Path) -> None:
    """Refuse inputs that cannot be copied into the run folder `root`, without copying any.

    Raises:
        KgentError: category `sandbox`; see `copy_inputs`.
    """
    for _ in _each_entry(inputs, root):
        pass


def _each_entry(inputs: Sequence[RunInput], root: Path) -> Iterator[tuple[str, Path, FolderEntry]]:
    """Yield what is to be copied: its name below `inputs/`, and its entry in a folder.

    Raises:
        KgentError: category `sandbox`; see `copy_inputs`.
    """
    size = count = 0
    folders: set[str] = set()
    for one in inputs:
        if root.is_relative_to(one.source):
            reason = "it contains the run folder; put that elsewhere (--sandbox)"
            raise _refused(str(one.source), reason)
        for above in map(str, reversed(PurePosixPath(one.name).parents[:-1])):
            if above not in folders:
                folders.add(above)
                yield above, root, FolderEntry("", "folder")
        for shown, source, entry in _entries_of(one):
            with _refusing(shown):
                if entry.kind == "file":
                    size += describe_file(source, entry.name, limit=0).bytes
            count += 1
            if reason := _find_obstacle(shown, entry):
                raise _refused(shown, reason)
            if size > MAX_INPUT_BYTES or count > MAX_INPUT_ENTRIES:
                most = f"{MAX_INPUT_BYTES:,} bytes in {MAX_INPUT_ENTRIES:,} files and folders"
                reason = f"the inputs of a run have at most {most}"
                raise _refused(shown, reason, ErrorCode.VALIDATION_ERROR)
            yield shown, source, entry


def _entries_of(one: RunInput) -> Iterator[tuple[str, Path, FolderEntry]]:
    if one.source.is_file():
        yield one.name, one.source.parent, FolderEntry(one.source.name, "file")
        return
    yield one.name, one.source, FolderEntry("", "folder")
    with _refusing(one.name):
        for entry in walk_folder(one.source):
            yield f"{one.name}/{entry.name}", one.source, entry


def _find_obstacle(shown: str, entry: FolderEntry) -> str | None:
    """Return why an entry cannot be copied; None if it can."""
    if entry.kind == "special":
        return "it is neither a file nor a folder nor a link"
    if entry.kind == "unreadable":
        return "it cannot be read"
    if shown.count("/") > MAX_INPUT_DEPTH:
        return f"it has more than {MAX_INPUT_DEPTH} folders around it"
    if entry.target is not None and not _stays_inside(shown.split("/"), entry.target):
        return "it is a link that leads out of the input"
    return None


@contextmanager
def _refusing(shown: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise _refused(shown, error.strerror or str(error)) from error
    except ToolError as error:
        raise _refused(shown, "it was replaced while it was copied") from error


def _stays_inside(path: Sequence[str], link: str) -> bool:
    """Return whether a link, followed from its place, stays inside its input."""
    if PurePosixPath(link).is_absolute():
        return False
    depth = len(path) - 1  # the depth of the link's folder below the input
    for part in PurePosixPath(link).parts:
        depth += -1 if part == ".." else 1
        if depth < 1:
            return False
    return True


def _refused(path: str, reason: str, code: ErrorCode = ErrorCode.PATH_CONFLICT) -> KgentError:
    shown = readable_name(path)
    return sandbox_error(f"the input {shown} cannot be copied: {reason}", code, path=shown)
