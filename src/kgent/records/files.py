"""Files of the run folder that are written as a whole: all of the new text, or all of the old."""

from pathlib import Path

from agent_core.errors import ToolError
from agent_core.tools.files import replace_file, take_snapshot

PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700


def put_file(path: Path, content: str | bytes) -> None:
    """Replace a file; it is on disk when this returns. `path` has no links in it.

    Raises:
        OSError: the disk is full, the folder is gone …; what was there is still there.
    """
    raw = content.encode("utf-8", "replace") if isinstance(content, str) else content
    try:
        replace_file(path, raw, before=take_snapshot(path))
    except ToolError as error:  # somebody else put something there in the meantime
        raise OSError(error.message) from error
