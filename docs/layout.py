"""Lays out what `make docs` builds the site from: the pages, and whatever they link to.

The pages link to each other and into the source as they do in the repository. So the site is built
from a tree of the same shape, `build/docs`, and no link has to be rewritten.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TREE = ROOT / "build" / "docs"
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")


def pages() -> Iterator[Path]:
    """The pages of the site."""
    yield from ROOT.glob("*.md")
    yield from ROOT.glob("docs/**/*.md")
    yield ROOT / "bench" / "README.md"


def linked(page: Path) -> Iterator[Path]:
    """Files and folders of the repository that a page links to."""
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve()
        if path.is_relative_to(ROOT) and path.exists():
            yield path


def files(path: Path) -> Iterator[Path]:
    """A file, or those of a folder."""
    if path.is_file():
        yield path
    elif path.is_dir():
        inside = (p for p in path.rglob("*") if p.is_file())
        yield from (p for p in inside if not p.name.startswith(".") and p.suffix != ".pyc")


def listing(folder: Path) -> str:
    """A page for a folder, which a web server may not list."""
    names = sorted(path.relative_to(folder).as_posix() for path in files(folder))
    title = folder.relative_to(ROOT).as_posix()
    return "\n".join([f"# `{title}`", "", *(f"- [{name}]({name})" for name in names), ""])


def main() -> None:
    """Write the tree anew.

    Raises:
        OSError: a file cannot be read or written.
    """
    shutil.rmtree(TREE, ignore_errors=True)
    targets = {target for page in pages() for target in linked(page)}
    for path in {file for target in [*pages(), *targets] for file in files(target)}:
        copy = TREE / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    for folder in (target for target in targets if target.is_dir()):
        if not (folder / "README.md").exists():
            (TREE / folder.relative_to(ROOT) / "index.md").write_text(listing(folder), "utf-8")


if __name__ == "__main__":
    main()
