"""Files that other programs execute or obey without being asked to.

A commit, an opened editor, an entered folder, a started agent, a push: each of these runs or reads
files that the user did not name. The author of such a file decides what happens then. Programs that
people start by name (scripts, makefiles, tests, package scripts) are ordinary work, unless hooks of
Git start them, too.

Hidden files and folders count as obeyed unless they are known lists or notes. Other files count by
their names, by Git's settings, and by links that reach them under another name.
"""

import os
import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import translate
from itertools import chain, islice
from pathlib import Path

from agent_core.git.repository import Repository
from agent_core.git.settings import read_settings, user_settings
from agent_core.tools.code.callers import is_named_by_caller
from agent_core.tools.code.hooked import is_obeyed_by_hooks

_HARMLESS = frozenset(
    {
        *(".gitignore", ".ignore", ".rgignore", ".hgignore", ".dockerignore", ".npmignore"),
        *(".eslintignore", ".prettierignore", ".stylelintignore", ".helmignore", ".gcloudignore"),
        *(".vercelignore", ".vscodeignore", ".slugignore", ".cfignore", ".artifactignore"),
        *(".gitkeep", ".keep", ".nojekyll", ".editorconfig", ".mailmap"),
        *(".env.example", ".env.sample", ".env.template", ".env.dist"),
    }
)
"""Hidden files that hold patterns, names or examples: nothing in them is executed."""

_AUTOMATION = (
    # continuous integration and hosting
    *(
        "jenkinsfile*",
        "*.jenkinsfile",
        "azure-pipelines*",
        "bitbucket-pipelines*",
        "appveyor*.y*ml",
    ),
    *("buildspec*.y*ml", "cloudbuild*", "codemagic.y*ml", "wercker.y*ml", "action.y*ml"),
    *("gitlab-ci*.y*ml", "circle.y*ml", "travis*.y*ml", "buildkite*.y*ml", "drone*.y*ml"),
    # hooks, editors, shells and interpreters
    *("lefthook*", "hk.pkl", "prek.toml", "*.code-workspace", "*.sublime-project"),
    *("devcontainer.json", "mise.toml", "mise.*.toml", "_vimrc", "sitecustomize.py"),
    *("usercustomize.py", "*.pth"),
    # environments of folders
    *("*.nix", "devbox.json", "devenv.yaml"),
    # the file that makes a folder a repository of Git
    "head",
    # agents
    *("mcp.json", "*.mcp.json", "opencode.json*", "crush.json", "*.instructions.md"),
    *("*.prompt.md", "*.agent.md", "*.chatmode.md", "*.mdc"),
)
_is_automation = re.compile("|".join(map(translate, _AUTOMATION))).fullmatch

_EVALUATED = (
    # JavaScript, TypeScript
    *("*.config.js", "*.config.cjs", "*.config.mjs", "*.config.ts", "*.config.cts"),
    *("*.config.mts", "*.config.*.js", "*.config.*.ts", "*.conf.js", "*.conf.cjs", "*.conf.mjs"),
    *("*.conf.ts", "nx.json"),
    # Python
    *("pylintrc", "pylintrc.toml", "mypy.ini", "conf.py"),
    # Rust, Zig, Swift, D, Ada
    *("cargo.toml", "build.rs", "rust-project.json", "rust-analyzer.toml", "rust-toolchain"),
    *(
        "rust-toolchain.toml",
        "build.zig",
        "build.zig.zon",
        "package.swift",
        "package@swift-*.swift",
    ),
    *("dub.json", "dub.sdl", "*.gpr", "alire.toml"),
    # .NET, Visual Studio, Xcode
    *("*.*proj", "*.*proj.user", "*.projitems", "*.shproj", "*.vcxitems", "*.props", "*.targets"),
    *("*.tasks", "*.sln", "*.slnx", "*.slnf", "*.rsp", "directory.build.*", "global.json"),
    *("nuget.config", "omnisharp.json", "packages.config", "psscriptanalyzersettings.psd1"),
    # Java, Kotlin, Scala, Clojure
    *("pom.xml", "*.gradle", "*.gradle.kts", "*.gradle.dcl", "*.versions.toml"),
    *("gradle.properties", "gradle-wrapper.*", "maven-wrapper.*", "*.sbt", "*.mill", "build.sc"),
    *("build.mill*", "project.scala", "build.properties", "project.clj", "deps.edn", "bb.edn"),
    *("shadow-cljs.edn", "build.boot"),
    # C, C++ and other languages built by the same programs
    *("cmakelists.txt", "*.cmake", "cmakepresets.json", "cmakeuserpresets.json", "cmakecache.txt"),
    *("cmake-kits.json", "cmake-variants.*", "compile_commands.json", "meson.build"),
    *("meson.options", "meson_options.txt", "build", "*.bazel", "*.bzl", "*.bzlmod", "workspace"),
    *("buck", "*.buck"),
    # Haskell, OCaml, Lean
    *("*.cabal", "cabal.project*", "stack.yaml", "package.yaml", "hie.yaml", "setup.hs", "dune"),
    *("dune-project", "dune-workspace", "*.opam", "lakefile.*", "lean-toolchain"),
    # Elixir, Erlang, Ruby, PHP, Perl
    *("mix.exs", "rebar.config*", "erlang_ls.config", "gemfile", "gems.rb", "*.gemspec"),
    *("psalm*.xml*", "phpstan*.neon*"),
    # Dart, Julia, Nim, Haxe, and documents
    *("pubspec.yaml", "analysis_options.yaml", "project.toml", "juliaproject.toml", "*.nimble"),
    *("*.nims", "nim.cfg", "*.hxml", "latexmkrc", "ansible.cfg"),
)
"""Files that editors and their language servers execute, or build with, when they open them."""

_is_evaluated = re.compile("|".join(map(translate, _EVALUATED))).fullmatch

_EVALUATED_BELOW = frozenset({"buildsrc", "build-logic"})
"""Folders of code that is built and run to read the settings of a build."""

_is_evaluated_in = re.compile(
    r"project/[^/]+\.scala|config/[^/]+\.exs|.*\.(?:xcodeproj|xcworkspace)/.*|ruby_lsp/.*addon\.rb"
).fullmatch

_INSTRUCTIONS = frozenset({"agent", "agents", "claude", "gemini", "skill"})
"""The beginnings of names under which agents look for instructions, in any case."""

_SHOUTED = re.compile(r"[A-Z][A-Z_]*[A-Z]")
_IN_CAPITALS = """
    ABOUT ACKNOWLEDGEMENTS ACKNOWLEDGMENTS ADR ANNOUNCEMENT API ARCHITECTURE AUTHORS BACKLOG
    BENCHMARK BENCHMARKS BUGS BUILD BUILDING CHANGELOG CHANGES CITATION CODE_OF_CONDUCT
    COMPATIBILITY CONFIGURATION CONTRIBUTING CONTRIBUTORS COPYING COPYRIGHT CREDITS DEPLOYMENT
    DEPRECATIONS DESIGN DEVELOPING DEVELOPMENT DISCLAIMER ERRATA EXAMPLE EXAMPLES FAQ FEATURES
    FUNDING GLOSSARY GOVERNANCE GUIDE HACKING HISTORY HOWTO IDEAS INDEX INSTALL INSTALLATION
    INTERNALS INTRODUCTION ISSUES LICENCE LICENSE LIMITATIONS MAINTAINERS MANUAL MIGRATING
    MIGRATION MIGRATIONS NEWS NOTES NOTICE OVERVIEW OWNERS PATENTS PERFORMANCE PHILOSOPHY PLAN
    PLANS PORTING PRIVACY PROPOSAL PUBLISHING PULL_REQUEST_TEMPLATE QUICKSTART README
    REFERENCE RELEASE RELEASES RELEASE_NOTES RELEASING REPORT REQUIREMENTS RESULTS RFC ROADMAP
    SECURITY SETUP SPEC SPECIFICATION STATUS STYLE STYLEGUIDE SUMMARY SUPPORT TESTING TESTS
    THANKS THIRD_PARTY TODO TROUBLESHOOTING TUTORIAL UPDATE UPDATES UPGRADE UPGRADING USAGE
    VERSION VERSIONING VISION WHY
"""
_DOCUMENTS = frozenset(_IN_CAPITALS.split())
"""Documents for people that are usually written in capitals; an agent obeys others, or may."""

_PARTS = frozenset(
    {
        *("branches", "commondir", "config", "config.worktree", "hooks", "info", "modules"),
        *("objects", "packed-refs", "refs", "reftable", "worktrees"),
    }
)
"""The entries of a repository that lie beside its HEAD."""

_DEPENDENCIES = frozenset({"node_modules", "bower_components", "site-packages", "__pycache__"})
_ENVIRONMENT = "pyvenv.cfg"

_BETWEEN_WORDS = re.compile(r"[\s\"'`;|&()<>!=]+")
_MOST_ENTRIES = 5_000
"""The entries of a project that are searched for links; upper levels first."""


def is_obeyed(path: Path, *, root: Path) -> bool:
    """Return whether another program executes or obeys a file, or would if it were there.

    Blocks on files.

    Args:
        path: resolved, below `root`.
        root: the project, or another folder that is written to.
    """
    parts = path.relative_to(root).parts
    if _has_obeyed_name(parts):
        return True
    if any((folder / _ENVIRONMENT).exists() for folder in path.parents if root in folder.parents):
        return True
    if _is_in_repository(path, root):
        return True
    return (
        is_obeyed_by_hooks(path, root)
        or _is_named_by_git(path)
        or is_named_by_caller(path, root)
        or _is_linked(path, root)
    )


def _is_in_repository(path: Path, root: Path) -> bool:
    """Return whether a file is where a part of a repository would be: beside a file called HEAD."""
    for folder in path.parents:
        if not folder.is_relative_to(root):
            return False
        part = path.relative_to(folder).parts[0].casefold()
        if part in _PARTS and (folder / "HEAD").is_file():
            return True
    return False


def _has_obeyed_name(parts: tuple[str, ...]) -> bool:
    """Return whether the name of a file, or of a folder above it, says that it is obeyed."""
    *folders, name = parts
    folded = name.casefold()
    if any(folder.startswith(".") or folder.casefold() in _DEPENDENCIES for folder in folders):
        return True
    if name.startswith("."):
        return folded not in _HARMLESS
    if _is_automation(folded) or _is_evaluated(folded):
        return True
    above = [folder.casefold() for folder in folders]
    starts = range(len(folders))
    if not _EVALUATED_BELOW.isdisjoint(above) or any(
        _is_evaluated_in("/".join([*above[start:], folded])) for start in starts
    ):
        return True
    stem, _, rest = name.partition(".")
    if rest and not folded.endswith((".md", ".markdown")):
        return False
    if stem.casefold() in _INSTRUCTIONS:
        return bool(rest)
    return bool(rest and _SHOUTED.fullmatch(stem) and stem not in _DOCUMENTS)


def _is_named_by_git(path: Path) -> bool:
    """Return whether settings of Git name a file, or the folder of hooks that it is in."""
    for tree in path.parents:
        if not os.path.lexists(tree / ".git"):
            continue
        files = list(user_settings())
        if (repository := Repository.at(tree)) is not None:
            common = repository.common
            if path in _links_in(common / "hooks"):
                return True
            files += [common / "config", repository.folder / "config.worktree"]
        if any(_is_named_in(file, path, tree) for file in files):
            return True
    return False


def _is_named_in(file: Path, path: Path, tree: Path) -> bool:
    """Return whether a file of settings names a path, or may name it: it cannot be read."""
    try:
        for setting in read_settings(file):
            if setting.name == "core.hookspath" and _is_hook(path, setting.value, tree):
                return True
            for word in filter(None, _BETWEEN_WORDS.split(setting.value)):
                if path in (_resolve(word, tree), _resolve(word, setting.file.parent)):
                    return True
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True
    return False


def _is_hook(path: Path, value: str, tree: Path) -> bool:
    """Return whether a file is in the folder of hooks of a setting, or reached by a link in it."""
    hooks = _resolve(value, tree)
    if hooks is None:
        return False
    is_inside = path.parent == hooks or (
        hooks in path.parents and hooks not in (tree, *tree.parents)
    )
    return is_inside or path in _links_in(hooks)


def _is_linked(path: Path, root: Path) -> bool:
    """Return whether a file is reached under an obeyed name, or from the user's home folder."""
    targets = chain(_links_from_home(), _obeyed_links_below(root))
    # A link to all of the project, or more, says nothing about one file.
    inside = (target for target in targets if root in target.parents)
    return any(target == path or target in path.parents for target in inside)


def _links_from_home() -> Iterator[Path]:
    with suppress(RuntimeError):  # a user without a home
        for folder in (Path("~").expanduser(), Path("~/.config").expanduser()):
            yield from _links_in(folder)


def _obeyed_links_below(root: Path) -> Iterator[Path]:
    for link in _links_below(root):
        parts = link.relative_to(root).parts
        if _has_obeyed_name((*parts, "file") if link.is_dir() else parts):
            yield Path(os.path.realpath(link))


def _links_in(folder: Path) -> Iterator[Path]:
    """Yield where the links directly in a folder lead."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in islice(entries, _MOST_ENTRIES):
            if entry.is_symlink():
                yield Path(os.path.realpath(entry.path))


def _links_below(root: Path) -> Iterator[Path]:
    """Yield the links below a folder, upper levels first, as far as it is searched."""
    pending, left = deque([str(root)]), _MOST_ENTRIES
    while pending and left > 0:
        with suppress(OSError), os.scandir(pending.popleft()) as entries:
            found = list(islice(entries, left))
            left -= len(found)
            if any(entry.name == _ENVIRONMENT for entry in found):
                continue
            for entry in found:
                if entry.is_symlink():
                    yield Path(entry.path)
                elif entry.is_dir() and entry.name not in {".git", *_DEPENDENCIES}:
                    pending.append(entry.path)


def _resolve(name: str, folder: Path) -> Path | None:
    """Return the path that a name in settings leads to; None if it cannot be a path."""
    with suppress(OSError, ValueError, RuntimeError):
        return Path(os.path.realpath(folder / Path(name).expanduser()))
    return None
