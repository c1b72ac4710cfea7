"""Which file a program's name means: looked up once, so that what was agreed to is what runs."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from agent_core.errors import ErrorCode, ToolError
from agent_core.redaction.visible import shortened


def find_program(name: str, *, cwd: Path, env: Mapping[str, str]) -> Path:
    """The absolute path of the program, links not followed.

    A name with a slash is relative to `cwd`, any other is looked up in the child's `PATH`.

    Raises:
        ToolError: `file_not_found` or `validation_error`; there is none, or it cannot be run.
    """
    if not name or "\0" in name:
        raise ToolError(ErrorCode.VALIDATION_ERROR, "argv[0] must name a program")
    if "/" in name:
        return _runnable(cwd / name, name)
    for folder in (env.get("PATH") or os.defpath).split(os.pathsep):
        # An empty or relative entry of PATH means the folder the command runs in.
        if found := shutil.which(name, path=str(cwd / folder)):
            return Path(found)
    raise ToolError(
        ErrorCode.FILE_NOT_FOUND,
        f"there is no program {shortened(name, 200)!r} in PATH; give its path, or another program",
    )


def _runnable(path: Path, name: str) -> Path:
    absolute = Path(os.path.normpath(path)) if ".." not in path.parts else path
    if not absolute.is_file():
        raise ToolError(ErrorCode.FILE_NOT_FOUND, f"there is no program {shortened(name, 200)!r}")
    if not os.access(absolute, os.X_OK):
        raise ToolError(ErrorCode.VALIDATION_ERROR, f"{shortened(name, 200)!r} is not executable")
    return absolute
