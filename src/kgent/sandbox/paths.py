"""The paths that the tools of a run may use."""

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from agent_core.errors import ErrorCode, ToolError
from agent_core.text import shortened
from agent_core.tools.workspace import PathPolicy, ResolvedPath
from kgent.errors import KgentError, sandbox_error
from kgent.sandbox.workspace import WRITABLE


def resolve_sandbox_path(root: Path, user_path: str, *, for_write: bool) -> Path:
    """Return the place in a run folder that a path leads to, its links followed.

    Raises:
        KgentError: category `sandbox`; the path contains `..`, leads out of the run folder, or,
          `for_write`, out of `workspace/` and `deliverables/`.
    """
    paths = SandboxPaths(root)
    place = paths.resolve(user_path)
    if for_write:
        paths.refuse_protected(place)
    return place.path


def find_path_fault(path: str, *, for_write: bool) -> str | None:
    """Return why a path relative to the run folder must not be used; None if it may be.

    Only its text is looked at; a link may still lead elsewhere.
    """
    parts = PurePosixPath(path).parts
    if ".." in parts:
        return "'..' is not allowed in paths; name the place itself"
    if PurePosixPath(path).is_absolute():
        return "it leads out of the run folder"
    if for_write and (len(parts) < 2 or parts[0] not in WRITABLE):
        return "only files below workspace/ and deliverables/ may be written"
    return None


class SandboxPaths(PathPolicy):
    """The path rules of a run, for every tool that takes a path.

    The run folder and the folders of skills may be read; only files below `workspace/` and
    `deliverables/` may be written. Links are followed before the rules are applied.

    Args:
        root: the run folder.
        read_roots: resolved outside folders that may be read as well.
    """

    def __init__(self, root: Path, *, read_roots: Iterable[Path] = ()) -> None:
        super().__init__(root.resolve())
        self._read_roots = (self.project, *read_roots)

    def resolve(self, given: str, *, base: Path | None = None) -> ResolvedPath:
        """Resolve a path and its links.

        Raises:
            KgentError: category `sandbox`; it leads to a place that must not be read, contains
              `..`, or is not a path.
        """
        if ".." in Path(given).parts:
            raise _path_refused(given, "'..' is not allowed in paths; name the place itself")
        try:
            place = super().resolve(given, base=base)
        except ToolError as error:
            raise sandbox_error(error.message, error.code) from None
        if not any(place.path.is_relative_to(root) for root in self._read_roots):
            raise _path_refused(given, "it leads out of the run folder")
        return place

    def refuse_protected(self, place: ResolvedPath) -> None:
        """Refuse to write anything outside `workspace/` and `deliverables/`.

        Raises:
            KgentError: category `sandbox`, code `write_outside_allowed_roots`.
        """
        inside = place.path.is_relative_to(self.project)
        name = str(place.path.relative_to(self.project)) if inside else ""
        if reason := find_path_fault(name, for_write=True):
            raise _path_refused(place.shown, reason, ErrorCode.WRITE_OUTSIDE_ALLOWED_ROOTS)


def _path_refused(
    path: str, reason: str, code: ErrorCode = ErrorCode.PERMISSION_DENIED
) -> KgentError:
    shown = shortened(path, 200)
    return sandbox_error(f"{shown!r} is refused: {reason}", code, path=shown)
