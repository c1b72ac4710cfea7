"""The program that converts one HTML page to Markdown, in a process of its own.

Standard input is a line of JSON (`folder` of the library, `url` of the page, `memory` in bytes,
`seconds`, `max_chars`) and then the HTML; standard output is the Markdown. Imports nothing of this
package.
"""

import json
import sys
from typing import Any

NOT_SHOWN = ("embed", "iframe", "noscript", "object", "svg", "template")


def _limit(name: str, most: int) -> None:
    try:
        import resource  # noqa: PLC0415 - not on every system

        resource.setrlimit(getattr(resource, name), (most, most))
    except (ImportError, AttributeError, OSError, ValueError):
        pass  # the parent process still limits the time


def main() -> None:
    """Convert the page within the limits; a page that exceeds them ends the process."""
    task: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    _limit("RLIMIT_CORE", 0)
    _limit("RLIMIT_AS", task["memory"])
    _limit("RLIMIT_CPU", task["seconds"])
    sys.path.append(task["folder"])
    import html_to_markdown as library  # noqa: PLC0415 - after the limits

    options = library.ConversionOptions(
        extract_metadata=False,
        base_url=task["url"],
        compact_tables=True,
        skip_images=True,
        strip_tags=[*NOT_SHOWN],
    )
    page = sys.stdin.buffer.read().decode("utf-8", "replace")
    found = library.convert(page, options).content or ""
    sys.stdout.buffer.write(found[: task["max_chars"] + 1].encode("utf-8", "replace"))


if __name__ == "__main__":
    main()
