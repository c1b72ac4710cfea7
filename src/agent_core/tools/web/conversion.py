"""HTML as Markdown. A hostile page can take all memory or crash the library, so each page is
converted in a process that may take little of either.
"""

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from agent_core.errors import ErrorCode, ToolError

LIBRARY = "html_to_markdown"
_MEMORY_BYTES = 2**30
_PROGRAM = Path(__file__).with_name("converter.py")


async def to_markdown(page: str, url: str, *, max_chars: int, seconds: float) -> str:
    """Return the Markdown of an HTML page, at most one character more than `max_chars`.

    Raises:
        ToolError: `tool_error`: it cannot be converted; `timeout`.
    """
    spec = find_spec(LIBRARY)
    if spec is None or spec.origin is None or not sys.executable:
        message = f"{url} cannot be converted: there is no library, or no interpreter to run it"
        raise ToolError(ErrorCode.TOOL_ERROR, message)
    task = {
        "folder": str(Path(spec.origin).parent.parent),
        "url": url,
        "memory": _MEMORY_BYTES,
        "seconds": max(int(seconds), 1),
        "max_chars": max_chars,
    }
    given = json.dumps(task).encode() + b"\n" + page.encode("utf-8", "replace")
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-S",
        str(_PROGRAM),
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,
        env={},
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(seconds):
            found, _ = await child.communicate(given)
    except TimeoutError as error:
        message = f"{url} is a page that takes longer than {seconds:g} s to convert to text"
        raise ToolError(ErrorCode.TIMEOUT, message) from error
    finally:
        if child.returncode is None:
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()
    if child.returncode:
        limit = f"{_MEMORY_BYTES >> 20} MiB of memory"
        message = f"{url} is a page that cannot be converted to text within {limit}"
        raise ToolError(ErrorCode.TOOL_ERROR, message, details={"exit_code": child.returncode})
    return found.decode("utf-8", "replace")
