"""The command line. Modules are imported only once the command is known."""

import gc
import os
import sys
from collections.abc import Sequence

from agent_core.loading import require_platform


def main(argv: Sequence[str] | None = None) -> int:
    """Run `soong-agent` with these arguments (default: the process's) and return its exit code.

    0: the run completed; 1: it failed; 2: wrong usage or configuration; 130: interrupted.
    """
    try:
        require_platform("soong-agent")
    except ImportError as error:
        print(error, file=sys.stderr)
        return 2
    if argv is None:  # looking for plugins reads a file of every installed distribution
        os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from agent_core.cli.command import execute  # noqa: PLC0415 - importing a name must be free

    code = execute(argv)
    if argv is None:
        gc.freeze()  # the process ends: looking for garbage once more would delay that
    return code
