"""The paths that the tools of a run may use."""

from collections.abc import Iterable
from pathlib import Path

from agent_core.errors import ErrorCode, ToolError
from agent_core.text import shortened
from agent_core.tools.workspace import PathPolicy, ResolvedPath
from kgent.errors import ErrorCategory, KgentError
from kgent.sandbox.workspace import WRITABLE


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
            raise KgentError(error.code, error.message, category=ErrorCategory.SANDBOX) from None
        if not any(place.path.is_relative_to(root) for root in self._read_roots):
            raise _path_refused(given, "it leads out of the run folder")
        return place

    def refuse_protected(self, place: ResolvedPath) -> None:
        """Refuse to write anything outside `workspace/` and `deliverables/`.

        Raises:
            KgentError: category `sandbox`, code `write_outside_allowed_roots`.
        """
        inside = place.path.is_relative_to(self.project)
        parts = place.path.relative_to(self.project).parts if inside else ()
        if len(parts) < 2 or parts[0] not in WRITABLE:
            reason = "only files below workspace/ and deliverables/ may be written"
            raise _path_refused(place.shown, reason, ErrorCode.WRITE_OUTSIDE_ALLOWED_ROOTS)


def _path_refused(
    path: str, reason: str, code: ErrorCode = ErrorCode.PERMISSION_DENIED
) -> KgentError:
    shown = shortened(path, 200)
    return KgentError(
        code,
        f"{shown!r} is refused: {reason}",
        category=ErrorCategory.SANDBOX,
        details={"path": shown},
    )
