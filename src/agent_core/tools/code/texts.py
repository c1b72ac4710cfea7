"""Words that programs do not open, where no table says all that they do.

A message, a test expression, a header or a command inside a container is no path of this machine,
whatever it looks like. All other words may be paths.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from agent_core.tools.options import OptionTable
from agent_core.tools.shells import RUN_INPUT, bare_name, words_of

_MESSAGES = words_of("-m --message --trailer")
_GIT: Mapping[str, frozenset[str]] = {
    "branch": words_of("--format --sort"),
    "commit": _MESSAGES | words_of("-am --author --date --fixup --squash"),
    "for-each-ref": words_of("--format --sort"),
    "log": words_of("--author --committer --format --grep --pretty --since --until -G -S"),
    "merge": _MESSAGES,
    "notes": _MESSAGES,
    "revert": words_of("-m"),
    "shortlog": words_of("--author --format --grep --since --until"),
    "show": words_of("--format --pretty"),
    "stash": _MESSAGES,
    "tag": _MESSAGES | words_of("-am --format --sort"),
}
_PYTEST = words_of("-k -m --durations --junit-prefix --maxfail")
_TEXTS: Mapping[str, frozenset[str]] = {
    "curl": words_of(
        """
        -A -H -X -e -w --data-raw --header --max-time --referer --request --retry --user-agent
        --write-out
        """
    ),
    "gh": words_of(
        "-H -b -q -t --body --header --jq --json --label --method --search --template --title"
    ),
    "go": words_of("-bench -gcflags -ldflags -run -skip -tags"),
    "jest": words_of("-t --testNamePattern"),
    "kubectl": words_of("-l -o --output --raw --selector"),
    "psql": words_of("-c --command"),
    "py.test": _PYTEST,
    "pytest": _PYTEST,
    "vitest": words_of("-t --testNamePattern"),
}
"""Options whose value is text."""

_DATA = words_of("-d --data --data-binary --json")
"""Options of curl whose value is text unless it begins with `@`."""

_CONTAINER = OptionTable(
    """
    -PTditq --detach --detach-keys --init --interactive --no-deps --no-healthcheck --no-TTY
    --privileged --publish-all --quiet --read-only --rm --tty
    """,
    """
    -aehlmpuvw --add-host --cap-add --cap-drop --cpus --entrypoint --env --env-file --gpus
    --hostname --index --ipc --label --memory --mount --name --net --network --pid --platform
    --publish --pull --restart --shm-size --ulimit --user --volume --workdir
    """,
    leading=True,
)
_SSH = OptionTable("-46AaCNTnqtv", "-Fiplo", leading=True)
_RUNNERS = (
    *(("bundle", "exec"), ("hatch", "run"), ("npm", "exec"), ("pdm", "run"), ("pipenv", "run")),
    *(("pnpm", "exec"), ("poetry", "run"), ("uv", "run"), ("bunx",), ("npx",), ("pnpx",)),
)
"""Programs that run the one named in their words, among those used in projects."""

_HOST = re.compile(r"[\w.-]+@[\w.-]+:[^:]*", re.ASCII)
"""A repository of another machine, as in `git clone git@example.org:/srv/shop`."""

_REMOTE = words_of("clone fetch ls-remote pull push remote submodule")

_SED_FILE = re.compile(r"[rRwW]\s*([^\s;}]+)")
_PYTHON = re.compile(r"(?:pypy|python)[\d.]*")


def paths_among(name: str, words: Sequence[str]) -> Iterator[str]:
    """Yield the words of a program that may be paths."""
    words = list(words)
    for runner in _RUNNERS:
        count = len(runner)
        if (name, *words[: count - 1]) == runner and words[count - 1 :]:
            name, words = words[count - 1], words[count:]
            break
    if _PYTHON.fullmatch(name) and len(words) > 1 and words[0] == "-m":
        name, words = words[1], words[2:]
    if name in {"docker", "podman", "nerdctl"}:
        yield from _paths_of_containers(words)
    elif name == "kubectl" and "exec" in words[:1] and "--" in words:
        yield from words[: words.index("--")]
    elif name == "ssh" and (parsed := _SSH.parse(words)) is not None:
        yield from (value for name, value in parsed[0].items() if name in {"-F", "-i", "-o"})
    elif name in {"gsed", "sed"}:
        yield from words
        yield from (path for word in words for path in _SED_FILE.findall(word))
    elif name == "git":
        at = next((n for n, word in enumerate(words) if not word.startswith("-")), 0)
        subcommand, rest = words[at] if words else "", words[at:]
        if subcommand in _REMOTE:
            rest = [word for word in rest if not _HOST.fullmatch(word)]
        yield from words[:at]
        yield from _without_texts(rest, _GIT.get(subcommand, frozenset()))
    else:
        words = words[2:] if name == "gh" and words[:1] == ["api"] else words
        yield from _without_texts(words, _TEXTS.get(name, frozenset()), is_curl=name == "curl")


def _without_texts(
    words: Sequence[str], options: frozenset[str], *, is_curl: bool = False
) -> Iterator[str]:
    rest = iter(words)
    for word in rest:
        name, has_value, value = word.partition("=")
        if is_curl and word in _DATA:
            value = next(rest, "")
            if value.startswith("@"):
                yield value
        elif word in options:
            next(rest, None)
        elif not (has_value and name in options) and not (
            is_curl and has_value and name in _DATA and not value.startswith("@")
        ):
            yield word


def _paths_of_containers(words: Sequence[str]) -> Iterator[str]:
    """Yield words that may be paths of this machine; paths inside a container are left out."""
    inner = list(words)
    if inner[:1] == ["compose"] or inner[:1] == ["container"]:
        inner = inner[1:]
    if inner[:1] == ["cp"]:
        yield from (word for word in inner[1:] if not re.match(r"[\w.-]+:", word))
        return
    parsed = _CONTAINER.parse_all(inner[1:]) if inner[:1] in (["run"], ["exec"]) else None
    if parsed is None:
        yield from words
        return
    for name, value in parsed[0]:
        if name == "--mount":
            yield from re.findall(r"(?:^|,)(?:source|src)=([^,]*)", value)
        elif name in {"-v", "--volume"}:
            source = value.partition(":")[0]
            if re.search(r"[/~.$]", source):
                yield source
        elif name == "--env-file":
            yield value


def runs_its_input(name: str, words: Sequence[str]) -> bool:
    """Return whether a program may run its input, or turn it into words of commands."""
    return bare_name(name) in RUN_INPUT and all(word.startswith("-") for word in words)
