"""Places likely to hold secrets: those listed in the settings, and hidden ones in a home."""

import os
import re
from collections.abc import Iterable, Sequence
from fnmatch import translate
from functools import cached_property, lru_cache
from pathlib import Path

from agent_core.text.folding import fold
from agent_core.tools.shells import words_of

_TEMPLATES = (".dist", ".example", ".sample", ".template")
"""Suffixes of template files, which list settings and hold no secrets."""

_NEVER = re.compile(r"(?!)")
_OTHER_HOMES = (
    r"(?:/home/[^/]+|/users/[^/]+|/root|/var/root|/mnt/[a-z]/users/[^/]+|[a-z]:/users/[^/]+)(?=/)"
)
_HIDDEN = r"\.[^/]*|library|appdata"

_HARMLESS = words_of(
    """
    .asdf .bun/bin .bun/install .bundle/cache .cabal/packages .cargo/bin .cargo/git
    .cargo/registry .composer/cache .composer/vendor .conda/envs .conda/pkgs .coursier
    .dotnet/sdk .dotnet/shared .elan .fnm .gem/ruby .ghcup .gradle/caches .gradle/wrapper
    .hex/packages .ivy2/cache .jenv .julia/artifacts .julia/compiled .julia/packages .juliaup
    .linuxbrew .local/bin .local/lib .local/pipx .local/share/doc .local/share/fnm
    .local/share/man .local/share/mise/installs .local/share/pipx .local/share/pnpm
    .local/share/uv/python .local/share/uv/tools .local/share/virtualenvs .m2/repository
    .m2/wrapper .nix-profile
    .node_modules .nodenv .npm/_cacache .npm/_npx .nuget/packages .nvm .opam .pnpm-store
    .pub-cache/bin .pub-cache/git .pub-cache/hosted .pyenv .rbenv .rustup .sbt/boot
    .sdkman/candidates .soong-agent/test-runs .stack/programs .stack/snapshots
    .terraform.d/plugin-cache
    .virtualenvs .volta .yarn/berry .yarn/cache
    .cache/bazel .cache/bazelisk .cache/ccache .cache/composer .cache/coursier .cache/cypress
    .cache/deno .cache/electron .cache/go-build .cache/golangci-lint .cache/huggingface/datasets
    .cache/huggingface/hub .cache/matplotlib .cache/ms-playwright .cache/mypy .cache/node
    .cache/node-gyp .cache/pdm .cache/pip .cache/pnpm .cache/pre-commit .cache/puppeteer
    .cache/pylint .cache/pypoetry .cache/ruff .cache/sccache .cache/torch .cache/typescript
    .cache/uv .cache/yarn .cache/zig
    library/caches/cocoapods library/caches/cypress library/caches/electron
    library/caches/go-build library/caches/golangci-lint library/caches/homebrew
    library/caches/ms-playwright library/caches/pip library/caches/pypoetry
    library/caches/typescript library/caches/uv library/caches/yarn library/documentation
    library/pnpm library/python
    appdata/local/go-build appdata/local/npm-cache appdata/local/pip/cache appdata/local/pnpm
    appdata/local/programs/python appdata/local/uv/cache appdata/local/yarn/cache
    appdata/roaming/npm appdata/roaming/nvm appdata/roaming/python
    """
)
"""Caches and libraries of interpreters and package managers below a home, and documentation."""

_CREDENTIALS = frozenset(
    (
        *(".git-credentials", ".netrc", ".npmrc", ".pypirc", ".yarnrc", ".yarnrc.yml", "npmrc"),
        *("auth.json", "credentials", "credentials.json", "credentials.toml", "pip.conf"),
    )
)
"""Names of files and folders that hold passwords, in caches and libraries, too."""


class SensitivePaths:
    """The places that ask before they are read.

    Entries read like ignore patterns: a name or a glob for one is meant anywhere, `dir/` is a
    folder of this name anywhere, a slash elsewhere makes it a path from the project, and `**` is
    any number of folders. A path from `~`, and an absolute one, is meant as well. A template of
    settings (`.env.example`) is not sensitive unless an entry names its end.

    Args:
        entries: as they are written, placeholders filled.
        project: a resolved folder.
        homes: of users, where hidden entries are sensitive; none: they are not.
        roots: folders that are never hidden, because work is done there: the project and others.
    """

    def __init__(
        self,
        entries: Sequence[str],
        *,
        project: Path,
        homes: Iterable[Path] = (),
        roots: Iterable[Path] = (),
    ) -> None:
        everything = [".*"] if "/" in entries else []
        entries = [entry for entry in entries if entry.strip("/")]
        self.names = [fold(entry) for entry in entries if "/" not in entry]
        self.folders = [fold(entry[:-1]) for entry in entries if entry.find("/") == len(entry) - 1]
        paths = [entry for entry in entries if "/" in entry.rstrip("/")]
        found = [expression for path in paths for expression in _expressions(path, project)]
        self._paths = [*everything, *found]
        self._project = f"{project}".rstrip("/") + "/"
        spellings = {spelt for home in homes for spelt in (str(home), os.path.realpath(home))}
        self._homes = tuple(f"{fold(home).rstrip('/')}/" for home in spellings if home != os.sep)
        above = tuple(f"{home}x" for home in self._homes)
        self._roots = tuple(
            root
            for root in (f"{fold(str(each)).rstrip('/')}/" for each in roots)
            if not any(path.startswith(root) for path in above)
        )
        # The same few names are in all the paths of a walk.
        self.is_sensitive_name = lru_cache(maxsize=4096)(self._fits_name)
        self._is_folder_name = lru_cache(maxsize=4096)(self._fits_folder)

    def hold(self, path: Path) -> bool:
        """Return whether a path is sensitive, or is in a folder that is. It is absolute."""
        return self.hold_text(str(path))

    def hold_text(self, text: str) -> bool:
        """Return whether the same is true of a path as text."""
        parts = text.removeprefix(self._project).split("/")
        if any(map(self.is_sensitive_name, parts)):
            return True
        if any(map(self._is_folder_name, parts[:-1])):
            return True
        if self._is_folder_name(parts[-1]) and os.path.isdir(text):  # noqa: PTH112 - text
            return True
        return self.hold_place(text)

    def hold_place(self, text: str) -> bool:
        """Return whether a path is sensitive by where it is, whatever the names in it."""
        folded = fold(text)
        return self._is_path.match(folded) is not None or self._is_hidden(folded)

    # Compiled when the first path is looked at: many runs look at none.
    @cached_property
    def _is_name(self) -> re.Pattern[str]:
        return _any_of(map(translate, self.names))

    @cached_property
    def _is_template(self) -> re.Pattern[str]:
        ends = tuple(_TEMPLATES)
        return _any_of(translate(each) for each in self.names if each.endswith(ends))

    @cached_property
    def _is_folder(self) -> re.Pattern[str]:
        return _any_of(map(translate, self.folders))

    @cached_property
    def _is_path(self) -> re.Pattern[str]:
        return _any_of(self._paths)

    def _fits_name(self, name: str) -> bool:
        folded = fold(name)
        if folded.endswith(_TEMPLATES):
            return self._is_template.match(folded) is not None
        return self._is_name.match(folded) is not None

    def _fits_folder(self, name: str) -> bool:
        return self._is_folder.match(fold(name)) is not None

    def _is_hidden(self, path: str) -> bool:
        """Return whether a path is below a hidden entry of a home that is not known as harmless."""
        if not self._homes or f"{path}/".startswith(self._roots):
            return False
        home = next((home for home in self._homes if path.startswith(home)), None)
        if home is None:
            found = re.match(_OTHER_HOMES, path)
            home = f"{found[0]}/" if found else None
        if home is None or not re.fullmatch(_HIDDEN, path[len(home) :].partition("/")[0]):
            return False
        parts = path[len(home) :].split("/")
        if parts[-1] in _CREDENTIALS:
            return True
        return not any("/".join(parts[:end]) in _HARMLESS for end in range(1, len(parts) + 1))


def user_homes(home: str | None) -> list[Path]:
    """Return the home folders of the user: of the environment, and of the account."""
    found = [Path(home)] if home else []
    try:
        import pwd  # noqa: PLC0415 - not on all systems

        found.append(Path(pwd.getpwuid(os.getuid()).pw_dir))
    except (ImportError, KeyError):
        found.append(Path.home())
    return [each for each in found if each.is_absolute()]


def _expressions(entry: str, project: Path) -> Iterable[str]:
    """Yield expressions for a path and all below it, with links in its fixed part followed."""
    expanded = os.path.expanduser(entry)  # noqa: PTH111 - a `~` without a user stays as it is
    if expanded.startswith("*/"):
        expanded = f"**/{expanded[2:]}"
    below = str(project).rstrip("/")
    starts = [f"{below}/{expanded.lstrip('/')}"]
    if expanded.startswith("/"):  # also as an absolute path
        starts.append(expanded)
    if expanded.startswith("**/"):  # also outside
        starts.append(f"/{expanded}")
    for start in starts:
        named = re.sub(r"/+", "/", start).rstrip("/")
        # Only the part before the first wildcard can be looked up.
        parts = named.split("/")
        wild = next((n for n, part in enumerate(parts) if re.search(r"[*?\[]", part)), len(parts))
        fixed, rest = "/".join(parts[:wild]) or "/", parts[wild:]
        if start.startswith(f"{below}/"):
            wild_project = below.count("/") + 1
            fixed, rest = (below, parts[wild_project:]) if wild < wild_project else (fixed, rest)
        for base in dict.fromkeys((os.path.normpath(fixed), os.path.realpath(fixed))):
            yield re.escape(fold(base).rstrip("/")) + "".join(map(_part, rest)) + r"(?:/.*)?\Z"


def _part(part: str) -> str:
    if part == "**":
        return "(?:/[^/]*)*"
    text = translate(fold(part)).replace(".*", "[^/]*")
    return "/" + text.removesuffix(r"\Z").removesuffix(r"\z")


def _any_of(expressions: Iterable[str]) -> re.Pattern[str]:
    texts = list(expressions)
    return re.compile("|".join(texts), re.DOTALL) if texts else _NEVER
