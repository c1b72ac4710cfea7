"""Configuration that hooks of Git obey: files in the root of a repository, or of a package.

A hook rarely does the work itself. It starts a program that reads its configuration from the root:
`lint-staged` in `package.json`, a target of the `Makefile`, tools in `pyproject.toml`. Which files
those are cannot be listed, so all files there count that are neither source, documents nor data.
They count only where hooks are active; elsewhere such files take effect when a person starts a
program by its name.
"""

import os
import re
from contextlib import suppress
from fnmatch import translate
from itertools import islice
from pathlib import Path

from agent_core.git.repository import Repository
from agent_core.git.settings import read_settings, user_settings
from agent_core.tools.shells import words_of

_INSTALLERS = (
    *(".husky", ".pre-commit-config.yaml", ".pre-commit-config.yml", "prek.toml", "hk.pkl"),
    *(".overcommit.yml", "lefthook.yml", "lefthook.yaml", "lefthook.toml", "lefthook.json"),
    *(".lefthook.yml", ".lefthook.yaml", ".lefthook.toml", ".lefthook.json"),
)
"""Folders and files of the programs that install hooks."""

_MANIFESTS = (
    *("package.json", "pyproject.toml", "setup.py", "setup.cfg", "cargo.toml", "go.mod"),
    *("pom.xml", "build.gradle", "build.gradle.kts", "build.sbt", "composer.json", "gemfile"),
    *("*.gemspec", "mix.exs", "rebar.config", "pubspec.yaml", "package.swift", "deno.json"),
    *("deno.jsonc", "*.*proj", "*.sln", "cmakelists.txt", "meson.build", "dune-project"),
    *("*.cabal", "stack.yaml", "project.clj", "deps.edn", "build.zig", "project.toml"),
    *("makefile", "gnumakefile", "justfile", "taskfile.yml", "taskfile.yaml"),
)
_is_manifest = re.compile("|".join(map(translate, _MANIFESTS))).fullmatch

_SOURCE = words_of(
    """
    ada adb ads asm astro bas c cc cjs clj cljc cljs coffee cpp cr cs css cts cu cxx d dart elm erl
    ex f f90 fs fsi fsx gleam go graphql groovy h hbs hh hpp hrl hs htm html hxx idr ipynb java jl
    js jsx kt kts less lhs lisp lua m mjs ml mli mm mts nim nix pas php pl pm proto ps1 purs py pyi
    pyx r rb rkt rs s sass scala scm scss sh bash sol sql svelte swift tcl ts tsx v vb vhd vue wgsl
    wat zig
    """
)
_DOCUMENTS = words_of(
    """
    adoc asciidoc bib doc docx epub markdown md mdx odt org pdf pod pptx rst rtf tex textile txt
    """
)
_DATA = words_of(
    """
    arrow avif avro avsc bin bmp bz2 csv db eot feather flac geojson gif gz ico jpeg jpg jsonl log
    mov mp3 mp4 ndjson npy npz ogg otf parquet pickle pkl png snap sqlite sqlite3 svg tar tgz tiff
    tsv ttf wav wasm webm webp woff woff2 xls xlsx xz zip zst
    """
)
_WRITTEN = words_of("authors changelog changes contributing copying license licence news notice")
_PINS = re.compile(r"(?:.*[-_.])?(?:requirements|constraints)(?:[-_.].*)?\.txt")
"""Lists of packages to be installed are no documents."""

_MOST_ENTRIES = 2_000


def is_obeyed_by_hooks(path: Path, root: Path) -> bool:
    """Return whether active hooks of Git obey a file, as far as its place and name tell.

    Blocks on files.

    Args:
        path: resolved, below `root`.
        root: the project, or another folder that is written to.
    """
    if not _may_configure(path.name.casefold()):
        return False
    trees = [folder for folder in path.parents if os.path.lexists(folder / ".git")]
    top = trees[-1] if trees else root
    folders = [folder for folder in path.parents if folder.is_relative_to(top)]
    managed = [folder for folder in folders if _installs_hooks(folder)]
    if not (path.parent in {*trees, *managed} or _is_package(path)):
        return False
    return bool(managed) or any(map(_has_hooks, trees))


def _may_configure(name: str) -> bool:
    """Return whether a name is neither one of source, nor of a document, nor of data."""
    stem, _, end = name.rpartition(".")
    if name.startswith("."):  # a harmless list, or obeyed anyway
        return False
    if not stem:
        return name not in _WRITTEN
    if _PINS.fullmatch(name):
        return True
    return end not in _SOURCE | _DOCUMENTS | _DATA


def _is_package(path: Path) -> bool:
    """Return whether a file is in a folder with a manifest, or is one itself."""
    if _is_manifest(path.name.casefold()):
        return True
    with suppress(OSError), os.scandir(path.parent) as entries:
        return any(_is_manifest(entry.name.casefold()) for entry in islice(entries, _MOST_ENTRIES))
    return False


def _installs_hooks(folder: Path) -> bool:
    return any(os.path.lexists(folder / name) for name in _INSTALLERS)


def _has_hooks(tree: Path) -> bool:
    """Return whether Git runs hooks in a working tree, as its settings and folders say."""
    repository = Repository.at(tree)
    if repository is None:
        return _has_hook(tree / ".git" / "hooks")
    own = (repository.common / "config", repository.folder / "config.worktree")
    named = None
    for file in (*user_settings(), *own):
        try:
            settings = [*read_settings(file)]
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            return True
        for setting in settings:
            if re.fullmatch(r"hook\..*\.command", setting.name, re.DOTALL):
                return True
            if setting.name == "core.hookspath":
                named = tree / os.path.expanduser(setting.value)  # noqa: PTH111 - as git does
    if named is None:
        return _has_hook(repository.common / "hooks")
    return not os.path.lexists(named) or _has_hook(named)  # it may be made by an installation


def _has_hook(folder: Path) -> bool:
    try:
        return any(entry.suffix != ".sample" for entry in folder.iterdir())
    except OSError:  # there is none, or it is no folder, such as `/dev/null`
        return False
