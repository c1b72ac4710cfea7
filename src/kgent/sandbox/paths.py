"""Where a path given by a model leads, and whether it may go there."""

from collections.abc import Sequence
from pathlib import Path

from agent_core.errors import ErrorCode, ToolError
from agent_core.redaction.visible import shortened
from agent_core.tools.paths import PathPolicy
from kgent.errors import ErrorCategory, KgentError

WRITABLE = ("workspace", "deliverables")
"""The folders of a run folder that tools may write to."""


def resolve_sandbox_path(
    root: Path, user_path: str, *, for_write: bool, read_roots: Sequence[Path] = ()
) -> Path:
    """Follow a path, links included, and say where it leads if that is allowed.

    Args:
        root: the run folder.
        user_path: relative to it, or absolute.
        for_write: only below `workspace/` and `deliverables/`, never those folders themselves.
        read_roots: resolved folders outside that may be read as well.

    Raises:
        KgentError: category `sandbox`; it leads out of the run folder, has a `..` in it, may not
            be written, or is no path at all.
    """
    if ".." in Path(user_path).parts:
        raise _refused(user_path, "'..' is not allowed in paths; name the place itself")
    root = root.resolve()
    try:
        path = PathPolicy(root).resolve(user_path).path
    except ToolError as error:
        raise KgentError(error.code, error.message, category=ErrorCategory.SANDBOX) from None
    if for_write:
        _check_writable(root, user_path, path)
    elif not any(path.is_relative_to(allowed) for allowed in (root, *read_roots)):
        raise _refused(user_path, "it leads out of the run folder")
    return path


def shown(root: Path, path: Path) -> str:
    """A resolved path as records have it: relative where it is inside the run folder."""
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def _check_writable(root: Path, user_path: str, path: Path) -> None:
    if not path.is_relative_to(root):
        raise _refused(user_path, "it leads out of the run folder")
    parts = path.relative_to(root).parts
    if len(parts) < 2 or parts[0] not in WRITABLE:
        raise _refused(user_path, "only files below workspace/ and deliverables/ may be written")


def _refused(user_path: str, reason: str) -> KgentError:
    return KgentError(
        ErrorCode.WRITE_OUTSIDE_ALLOWED_ROOTS
        if "written" in reason
        else ErrorCode.PERMISSION_DENIED,
        f"{shortened(user_path, 200)!r} is refused: {reason}",
        category=ErrorCategory.SANDBOX,
        details={"path": shortened(user_path, 200)},
    )
