"""The programs that a command runs, as views: each a program with its words.

Programs that only start another one are looked through, shells are read by `shell`, and both again
in what they start. A wrapper, an option or a construct that is not in a table is a problem: then
no rule may allow the command. The views are given all the same, for rules that deny.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shutil import which

from msgspec import Struct, field, structs

from agent_core.errors import ToolError
from agent_core.process import find_program
from agent_core.tools.code.expansion import (
    FOUND_BY_FIND,
    GIVEN,
    Expander,
    Expansion,
    takes_given,
)
from agent_core.tools.code.languages import paths_from_top
from agent_core.tools.code.openings import Opening
from agent_core.tools.code.programs import is_program_of_its_name, is_python_of_environment
from agent_core.tools.code.readers import (
    is_known,
    is_reader,
    may_walk,
    opened_by,
    opens_nothing,
    writes_its_words,
)
from agent_core.tools.code.texts import paths_among, runs_its_input
from agent_core.tools.shell_reader import (
    SETS_A_VARIABLE,
    SimpleCommand,
    Word,
    is_plain_test,
    is_reserved,
    read_script,
)
from agent_core.tools.shells import (
    ALL_SHELLS,
    AS_ANOTHER_USER,
    FIND_ACTIONS,
    OTHER_SHELLS,
    RUNNERS,
    SEVERAL_IN_ONE,
    SHELL_COMMANDS,
    SHELLS,
    WRAPPERS,
    bare_name,
    words_of,
)
from agent_core.tools.workspace import PathPolicy
from agent_core.types import CommandView, CommandViews

STREAMS = frozenset(
    Path("/dev", name) for name in ("null", "zero", "stdin", "stdout", "stderr", "tty")
)
_MAX_VIEWS = 300
_MOST_STARTS = 2
_MAX_DEPTH = 12
_MAX_SCRIPTS = 30
_MAX_GUESSED = 64

_SHELL_FLAGS = re.compile(r"-[ceuxnfl]*[ceuxnflo]")
_SHELL_LONG = words_of("--login --noprofile --norc")
_SHELL_SETTINGS = words_of("errexit nounset noglob pipefail xtrace")
_SHELL_ENVIRONMENT = re.compile(
    r"BASH.*|CDPATH|ENV|FPATH|GLOBIGNORE|IFS|POSIXLY_CORRECT|PS4|SHELLOPTS|ZDOTDIR"
)

_PLAIN_BUILTINS = words_of(
    """
    : [ break cd continue echo exit false kill printf pwd return set shift test times true type
    umask wait
    """
)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(?:\[[^\]]*\])?\+?=")
_DURATION = re.compile(r"(?:\d+(?:\.\d*)?|\.\d+)[smhd]?|infinity", re.ASCII)
_SETTING = re.compile(r"-[eux]+|-[eux]*o (?:errexit|nounset|noglob|pipefail|xtrace)")
_FORMAT_THAT_SETS = re.compile(r"-|.*%[^A-Za-z%]*[hlLjzt]*n", re.DOTALL)
_ADDED = Word("…", is_known=False, is_one=False)
_MAY_BE_INPUT = re.compile(r"-\Z|/dev/|/proc/|/fd/")
_SPEAKERS = words_of("[ echo printf test")
"""Programs for which it does not matter what a word is, if it is one."""

READS_A_LINE = "read sets a variable"
"""A problem for rules, though it changes nothing."""


class ReadCommand(Struct):
    """Views and paths found in a command.

    Attributes:
        words: every word of it and of what it runs that may be a path, where it is not known what
            the program opens.
        openings: what the programs open of which that is known.
        guesses: what programs may open at most that were given an unknown option.
        unseen: why it is not known what a program opens that reads files.
        from_top: words that git may take for paths from the top of a working tree.
        history: why it may show files that no index names; rules for paths cannot judge them.
        folders: other folders than its own that relative paths may start from.
        sure: by the number of a view, the words that its program gets in turn, if they are known
            although words are expanded in them; none if it does not matter what they are.
        expanded: the names that patterns and the variables of loops stand for in these views.
        gives_names: a program opens what another one finds.
        starts: all folders that relative paths start from, where it is known that a script enters
            one before anything else; then its own folder is none of them.
    """

    views: list[CommandView] = field(default_factory=list[CommandView])
    problems: list[str] = field(default_factory=list[str])
    words: dict[str, None] = field(default_factory=dict[str, None])
    openings: list[Opening] = field(default_factory=list[Opening])
    guesses: list[Opening] = field(default_factory=list[Opening])
    unseen: str | None = None
    from_top: dict[str, None] = field(default_factory=dict[str, None])
    history: str | None = None
    folders: list[Path] = field(default_factory=list[Path])
    sure: dict[int, tuple[tuple[str, ...], ...]] = field(
        default_factory=dict[int, tuple[tuple[str, ...], ...]]
    )
    expanded: dict[str, None] = field(default_factory=dict[str, None])
    gives_names: bool = False
    starts: tuple[Path, ...] = ()

    def bases(self, cwd: Path) -> tuple[Path, ...]:
        """Return the folders that relative paths are resolved from."""
        return self.starts or (cwd, *self.folders[:1])

    @property
    def for_rules(self) -> CommandViews:
        """Return the views that rules are matched with."""
        problems = self.problems
        if not self.views:
            problems = [*problems, "it runs no program"]
        return CommandViews(
            tuple(self.views), problems[0] if problems else None, self.unseen or self.history
        )


def read_command(
    argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], policy: PathPolicy
) -> ReadCommand:
    """Find the programs that a command runs.

    Args:
        argv: the words of the command.
        cwd: the folder it runs in, resolved.
        env: all that it sees of the environment.
        policy: which places tools write to.
    """
    reader = _Reader(cwd, env, policy)
    reader.command([Word(word) for word in argv], language=None, depth=0)
    return reader.finish()


def _is_relative(opening: Opening) -> bool:
    """Return whether some path of an opening starts from the folder that a command is in."""
    return any(not Path(path).is_absolute() for path in (*opening.paths, *opening.places))


class _Reader:
    """Looks through the words of one command."""

    def __init__(self, cwd: Path, env: Mapping[str, str], policy: PathPolicy) -> None:
        self._cwd = cwd
        self._env = env
        self._policy = policy
        self._found = ReadCommand()
        self._seen: set[tuple[object, ...]] = set()
        self._doubtful: dict[str, None] = {}
        self._count_of_scripts = 0
        self._has_relative = False
        self._repeats = False
        self._enters_first = False
        self._is_chain = False
        self._folder = str(cwd)
        self._enters_unknown: str | None = None
        self._entered: list[Word] = []
        self._is_in_find = False
        self._expander = Expander(
            cwd,
            self._found.folders,
            report=self._add_problem,
            is_of_table=self._is_program_of_table,
        )
        self._command = SimpleCommand([])
        self._cuts_feed = False
        self._texts: dict[str, None] = {}
        self._passed_on: dict[str, None] = {}
        self._consumers = 0
        self._has_option_value = False
        self._uses_output = False

    def finish(self) -> ReadCommand:
        found = self._found
        found.expanded = self._expander.expanded
        if self._cuts_feed:  # then names of it may be cut, too
            found.sure.clear()
        if self._uses_output:  # the output of one program may be a path that another opens
            found.words |= self._texts
            for opening in found.openings:  # the names that it lists may be opened
                if opening.names_only:
                    opening.names_only = False
                    opening.gives_names = "exact"
                    opening.depth = "folder" if opening.depth == "itself" else opening.depth
            if self._consumers > 1:
                found.words |= self._passed_on
            if self._texts or self._has_option_value:
                found.words |= self._doubtful  # an option may make a path of a word that is not one
        if self._enters_unknown is not None and any(map(_is_relative, found.openings)):
            found.unseen = f"it is not known which folder {self._enters_unknown} enters"
        if found.folders:
            found.starts = self._starts()
            if not found.starts:
                self._note_words(self._entered)
            if len(found.folders) > 1 or self._repeats:
                self._add_problem("it changes the folder more than once")
            if self._has_relative or not all(map(os.path.isabs, self._search_path())):
                self._add_problem("it names a program or a target by a path from a changed folder")
        return found

    def _starts(self) -> tuple[Path, ...]:
        """Return the folders that relative paths start from, if that is known for sure."""
        found = self._found
        ends_with_cd = found.views[-1].argv[:1] == ("cd",)  # nothing starts from the last one
        folders = found.folders[:-1] if ends_with_cd else found.folders
        is_known = self._enters_first and not found.problems and not self._repeats
        # Each but the first is read as if it were entered from the first.
        return tuple(folders) if is_known and len(folders) <= _MOST_STARTS else ()

    def _add_problem(self, text: str) -> None:
        if text not in self._found.problems:
            self._found.problems.append(text)

    def command(self, words: Sequence[Word], *, language: str | None, depth: int) -> None:
        """Add the views of a command.

        Args:
            words: its words.
            language: of the shell that runs it, `bash` or `sh`; None if a program does.
            depth: how many others it is in.
        """
        while words and _ASSIGNMENT.match(words[0].text):
            self._add_problem("it sets a variable")
            self._note_words(words[:1])
            words = words[1:]
        if not words:
            return
        key = (
            language,
            len(self._found.folders),
            self._count_of_scripts,
            self._command.feed,
            *words,
        )
        if key in self._seen:
            return
        self._seen.add(key)
        if depth > _MAX_DEPTH or len(self._found.views) >= _MAX_VIEWS:
            self._add_problem("it runs more than is looked at")
            return
        name = words[0].text
        if not words[0].is_known:
            self._note_words(words)
            self._add_problem(f"which program it runs is known only then: {name}")
            self._add(words, None)
            self._guess(words, depth=depth, language=language)
        elif language == "bash" and name == "time":
            if (file := self._resolve(name)) is not None and not self._is_trusted(name, file):
                self._add_problem("a file of the project could be run as time")
            self._wrapper(name, words[1:], language=language, depth=depth)
        elif language and name in SHELL_COMMANDS:
            self._builtin(words, language=language, depth=depth)
        else:
            if language and is_reserved(name):
                self._add_problem(f"{name} belongs to the language of the shell")
            self._program(words, depth=depth)

    def _program(self, words: Sequence[Word], *, depth: int) -> None:
        """A program file: looked through if it is known to run another."""
        name = words[0].text
        program = self._resolve(name)
        names = [bare_name(each) for each in (name, program) if each]
        known = _KNOWN.intersection(names)
        kind = next((each for each in names if each in known), None)
        if "/" in name and not name.startswith("/"):
            self._has_relative = True
        if depth and "/" not in name and self._is_shadowed(name):
            self._add_problem(f"a file of the project could be run as {name}")
        if kind is None:
            self._add(words, program)
            return
        if kind == "find":
            self._add(words, program)
            self._find(words[1:], depth=depth)
        elif kind in SEVERAL_IN_ONE:
            self._add(words, program)
            self.command(words[1:], language=None, depth=depth + 1)
        elif kind in RUNNERS:
            self._add(words, program)
            self._guess(words[1:], depth=depth)
        elif kind in AS_ANOTHER_USER:
            self._add_problem(f"{kind} runs it as another user")
            self._add(words, program)
            self._guess(words[1:], depth=depth)
        elif kind in OTHER_SHELLS or OTHER_SHELLS.intersection(names):
            if any(word.text.startswith(("-", "+")) for word in words[1:]):
                self._add_problem(f"scripts of {kind} are not looked into")
            self._add(words, program)
            self._guess(words[1:], depth=depth)
        elif not self._is_trusted(name, program, is_found_by_shell=depth > 0):
            self._add_problem(f"{name} is not known to be the {kind} of the system")
            self._add(words, program)
            self._guess(words[1:], depth=depth)
        elif kind in SHELLS:
            is_bash = program is not None and Path(program).name == "bash"
            self._shell(words, program, language="bash" if is_bash else "sh", depth=depth)
        else:
            self._wrapper(kind, words[1:], language=None, depth=depth)

    def _wrapper(
        self, kind: str, words: Sequence[Word], *, language: str | None, depth: int
    ) -> None:
        """Read the command that a wrapper starts; the wrapper itself is not a view."""
        parsed = WRAPPERS[kind].parse([word.text for word in words])
        options, inner = parsed or ({}, [])
        count = len(words) - len(inner)
        if parsed is None or not all(word.is_known for word in words[:count]):
            self._add_problem(f"it gives {kind} an option that is not known")
            self._guess(words, depth=depth)
            return
        self._note_words(words[:count])
        words = words[count:]
        while kind == "env" and words and (words[0].text == "-" or "=" in words[0].text):
            self._add_problem("it changes the environment")
            self._note_words(words[:1])
            words = words[1:]
        if kind == "timeout" and words:
            if not words[0].is_known or not _DURATION.fullmatch(words[0].text):
                self._add_problem("it gives timeout a time that cannot be read")
            words = words[1:]
        if kind == "xargs":
            replaced = options.get("-I")
            words = words or [Word("echo")]
            is_exact = not options.keys().isdisjoint({"-0", "--null"})
            is_known = options.keys().isdisjoint({"-d", "--delimiter"})
            is_known &= not self._command.shares
            self._cuts_feed |= self._command.shares
            added = structs.replace(
                _ADDED, printed=self._command.feed if is_known else 0, is_exact=is_exact
            )
            if replaced is None:
                words = [*words, added]
            else:
                words = [_with_unknown(word, replaced, added) for word in words]
        self.command(words, language=language, depth=depth + 1)

    def _find(self, words: Sequence[Word], *, depth: int) -> None:
        """Read the commands that `find` runs for the files it finds."""
        if not all(word.is_known for word in words):
            self._add_problem("it gives find words that are known only when it runs")
        inner: list[Word] | None = None
        for word in words:
            if inner is None:
                if word.text in FIND_ACTIONS:
                    inner = []
                    if "dir" in word.text:
                        self._add_problem("find runs a program in other folders")
            elif word.text == ";" or (word.text == "+" and inner and inner[-1].text == "{}"):
                self._is_in_find = True  # it opens the files that find reaches
                found = structs.replace(_ADDED, printed=FOUND_BY_FIND, is_one=True)
                words_of_it = [_with_unknown(each, "{}", found) for each in inner]
                self.command(words_of_it, language=None, depth=depth + 1)
                self._is_in_find = False
                inner = None
            else:
                inner.append(word)
        if inner is not None:
            self._add_problem("a command of find has no end")
            self._guess(inner, depth=depth)

    def _shell(
        self, words: Sequence[Word], program: str | None, *, language: str, depth: int
    ) -> None:
        """Read a shell: the script of `-c` is read; a file, or standard input, is run unread."""
        has_script, position = False, 1
        while position < len(words) and words[position].text[:1] in {"-", "+"}:
            word = words[position].text
            position += 1
            if word == "--":
                break
            if word in _SHELL_LONG and not has_script:
                continue
            if not words[position - 1].is_known or not _SHELL_FLAGS.fullmatch(word):
                self._add_problem("it gives the shell an option that is not known")
                self._add(words, program)
                self._guess(words[1:], depth=depth)
                return
            has_script |= "c" in word
            if "l" in word and self._is_writable(Path(self._env.get("HOME", os.sep))):
                self._add_problem("the shell would read a file of the project")
            if word.endswith("o"):
                setting = words[position].text if position < len(words) else ""
                if setting not in _SHELL_SETTINGS:
                    self._add_problem("it gives the shell an option that is not known")
                position += 1
        if not has_script or position >= len(words):
            self._add(words, program)
            return
        if any(map(_SHELL_ENVIRONMENT.fullmatch, self._env)):
            self._add_problem("the environment changes what a shell does")
        if not words[position].is_known:
            self._add_problem("the script of a shell is known only when it runs")
            self._note_words([words[position]])
        self._note_words(words[position + 1 :])
        self._script(words[position].text, language=language, depth=depth)

    def _script(self, text: str, *, language: str, depth: int) -> None:
        if depth >= _MAX_DEPTH or self._count_of_scripts >= _MAX_SCRIPTS:
            self._add_problem("it runs more than is looked at")
            return
        key = (language, len(self._found.folders), text)
        if key in self._seen:
            return
        self._seen.add(key)
        self._count_of_scripts += 1
        script = read_script(text, is_bash=language == "bash", env_names=[*self._env])
        self._enters_first |= script.enters_first and depth == 0
        self._is_chain |= script.is_chain and depth == 0
        for problem in script.problems:
            self._add_problem(problem)
        if any(problem != SETS_A_VARIABLE for problem in script.problems):
            self._note_words([Word(text)])
        self._repeats |= script.repeats
        self._note_words(script.words)
        self._has_option_value |= any(word.text.startswith("-") for word in script.words)
        outer = (self._expander.feeds, self._command)
        self._expander.feeds = script.feeds
        for self._command in script.commands:
            each = self._command
            before = len(self._found.views)
            self.command(each.words, language=language, depth=depth + 1)
            if each.reads or each.writes:
                self._redirect(each.reads, each.writes, before)
        self._expander.feeds, self._command = outer
        for text_in in script.inputs:
            self._note_words([Word(text_in)])
            shells = (view for view in self._found.views if self._is_shell(view))
            if next(shells, None) is not None:
                self._add_problem("a shell runs what it reads")
                self._script(text_in, language=language, depth=depth + 1)

    def _redirect(self, reads: Sequence[Word], writes: Sequence[str], before: int) -> None:
        """Give the first view of a command its redirections, or make one of them."""
        views = self._found.views
        if len(views) == before:
            if len(views) >= _MAX_VIEWS:
                self._add_problem("it runs more than is looked at")
                return
            views.append(CommandView((), None))
        view = views[before]
        views[before] = replace(
            view,
            reads=view.reads + self._targets(self._read_by_redirections(reads)),
            writes=view.writes + self._targets(writes),
        )

    def _read_by_redirections(self, words: Sequence[Word]) -> Sequence[str]:
        expanded = self._expander.expand(words, words)
        if expanded.is_given or not expanded.is_sure:
            self._add_problem("a redirection has a target that is known only when it runs")
        self._expander.expanded |= dict.fromkeys(expanded.matched)
        return [text for text in expanded.texts if "\0" not in text]

    def _targets(self, names: Sequence[str]) -> tuple[str, ...]:
        found: list[str] = []
        for name in names:
            if not name.startswith("/"):
                self._has_relative = True
            if Path(os.path.normpath(self._cwd / name)) in STREAMS:
                continue
            self._found.words[name] = None
            found.append(os.path.realpath(self._cwd / name))
        return tuple(found)

    def _builtin(self, words: Sequence[Word], *, language: str, depth: int) -> None:
        """A command that the shell brings itself."""
        name, rest = words[0].text, words[1:]
        match name:
            case "command" if rest and rest[0].text in {"-v", "-V"} and rest[0].is_known:
                self._add(words, self._resolve(name) or name)
            case "command" | "exec":
                self._wrapper(name, rest, language=language, depth=depth)
            case "eval" | "trap" if all(word.is_known for word in rest):
                texts = [word.text for word in rest]
                if texts and texts[0].startswith("-") and texts[0] != "-":
                    self._add_problem(f"it gives {name} an option that is not known")
                self._repeats |= name == "trap"
                script = " ".join(texts) if name == "eval" else "".join(texts[:1])
                if script != "-":
                    self._script(script, language=language, depth=depth + 1)
            case _ if name in _PLAIN_BUILTINS:
                self._is_chain &= name != "cd" or depth == 1
                is_plain = self._is_plain(name, rest)
                if not is_plain and name == "cd":
                    self._enters_unknown = name
                if not is_plain:
                    self._add_problem(f"it gives {name} words that may change what the shell does")
                is_followed = self._enters_first or (self._is_chain and is_plain)
                if name == "cd" and is_followed and len(self._found.views) < _MAX_VIEWS:
                    # They count as folders.
                    self._entered += [Word(self._folder)] if self._is_chain and is_plain else rest
                    argv = tuple(word.text for word in words)
                    self._found.views.append(CommandView(argv, self._resolve(name) or name))
                    return
                self._add(words, self._resolve(name) or name)
            case "read" if self._command.reads_line:
                self._add_problem(READS_A_LINE)
                self._found.sure[len(self._found.views)] = ()
                self._found.views.append(CommandView(tuple(w.text for w in words), name))
            case _:
                if name in {"pushd", "popd"}:
                    self._enters_unknown = name
                self._add_problem(f"{name} changes what the shell does")
                self._add(words, self._resolve(name) or name)
                self._guess(rest, depth=depth, language=language)

    def _is_plain(self, name: str, words: Sequence[Word]) -> bool:
        """Return whether a command of the shell leaves it unchanged and evaluates nothing."""
        texts = [word.text if word.is_known else None for word in words]
        match name:
            case "cd":
                return self._enter(texts)
            case "printf":
                formats = texts[1:] if texts[:1] == ["--"] else texts
                first = formats[0] if formats else None
                return first is not None and not _FORMAT_THAT_SETS.match(first)
            case "[" | "test":
                if name == "[":
                    words, texts = (words, texts) if texts[-1:] == ["]"] else ([_ADDED], [None])
                return all(word.is_one for word in words) and is_plain_test(texts)
            case "set":
                return _SETTING.fullmatch(" ".join(text or "$" for text in texts)) is not None
            case "wait":
                return all(text is not None and not text.startswith("-") for text in texts)
            case _:
                return True

    def _enter(self, texts: Sequence[str | None]) -> bool:
        """Record the target of `cd`; return False if it cannot be determined."""
        target = texts[0] if len(texts) == 1 else None
        if target is None or target.startswith("-") or not target:
            return False
        entered = self._found.folders
        base = entered[0] if self._enters_first and entered else self._cwd
        if self._is_chain:  # each `cd` is one from the folder before
            base = Path(self._folder)
            self._folder = os.path.normpath(base / target)
        folder = os.path.realpath(base / target)
        # From a folder behind a link, `..` leads a shell back to where the link is.
        self._enters_first &= os.path.normpath(base / target) == folder and os.path.isdir(folder)  # noqa: PTH112
        entered.append(Path(folder))
        # A shell takes `..` as text, a program follows links first.
        return folder == os.path.realpath(os.path.normpath(base / target))

    def _guess(self, words: Sequence[Word], *, depth: int, language: str | None = None) -> None:
        """Whatever may be a command among words that cannot be read for sure."""
        self._note_words(words)
        words = [Word(words[0].text), *words[1:]] if words else []
        for position, word in enumerate(words[:_MAX_GUESSED]):
            if word.text.startswith("-") and re.search(r"\s", word.text):
                # `-Sa b` and `--split-string=a b` hold a command.
                _, has_value, value = word.text.partition("=")
                self._script(value if has_value else word.text[2:], language="sh", depth=depth + 1)
            if not word.text or word.text.startswith("-"):
                continue
            if re.search(r"[\s;&|]", word.text):
                self._script(word.text, language="sh", depth=depth + 1)
            elif word.text in SHELL_COMMANDS or self._resolve(word.text) is not None:
                self.command(words[position:], language=language, depth=depth + 1)

    def _add(self, words: Sequence[Word], program: str | None) -> None:
        unknown = next((n for n, word in enumerate(words) if not word.is_known), None)
        argv = tuple(word.text for word in words)
        name = Path(argv[0]).name
        opening, turns = None, None
        if name == "git":
            self._found.from_top |= dict.fromkeys(paths_from_top([*paths_among(name, argv[1:])]))
        if self._is_of_table(words[0], program):
            opening, turns = self._note_opening(name, words[1:])
        else:
            self._note_words(_named_by(words[1:], [*paths_among(name, argv[1:])]))
            self._uses_output |= runs_its_input(name, argv[1:])
        if turns is not None:
            self._found.sure[len(self._found.views)] = tuple((argv[0], *each) for each in turns)
        elif name in _SPEAKERS and all(word.is_one for word in words):
            self._found.sure[len(self._found.views)] = ()
        is_harmless = unknown is None and opening is not None and opening.only_reads
        is_harmless = is_harmless and opening is not None and not opening.starts
        view = CommandView(
            argv, program, unknown_from=unknown, only_reads=is_harmless, file=self._file(argv[0])
        )
        self._found.views.append(view)

    def _is_program_of_table(self, word: Word) -> bool:
        return self._is_of_table(word, self._resolve(word.text))

    def _is_of_table(self, word: Word, program: str | None) -> bool:
        """Return whether a word is a program of the system, or of a shell, with known words."""
        file = self._file(word.text)
        if not word.is_known or program is None or not is_known(Path(word.text).name):
            return False
        if file is None:
            return program == word.text  # the shell brings it
        return not self._is_writable(Path(file)) and is_program_of_its_name(
            Path(file), Path(program)
        )

    def _note_opening(
        self, name: str, words: Sequence[Word]
    ) -> tuple[Opening | None, list[list[str]] | None]:
        """Note what a program of the table opens.

        Returns what it opens, if everything about that is known, and the words that it gets in
        turn if they are certain: all that they stand for is opened, or nothing is.
        """
        turns = [*self._expander.take_turns(words)]
        openings = [opened_by(name, turn.texts) for turn in turns]
        if not all(takes_given(name, *each) for each in zip(openings, turns, strict=True)):
            turns = [*self._expander.take_turns(words, takes_names=False)]
            openings = [opened_by(name, turn.texts) for turn in turns]
        is_whole = all(turn.is_whole for turn in turns)
        known = [each for each in openings if each is not None]
        is_known = len(known) == len(openings)
        named = [text for each in known for text in (*each.paths, *each.places)]
        texts = [*dict.fromkeys(text for turn in turns for text in turn.texts)]
        if not is_known:
            self._note_words(_named_by(words, [*paths_among(name, [w.text for w in words])]))
        elif not is_whole:
            self._note_words(_named_by(words, named))
        others = [text for text in texts if not (is_known and text in named)]
        if writes_its_words(name, texts):
            # The output of a program that opens printed names may name files for a third program.
            is_first = is_whole or opens_nothing(name)
            kept = self._texts if is_first else self._passed_on
            kept |= dict.fromkeys(others)
        if is_known and is_whole:
            is_sure = self._note_known(name, known, turns)
            return known[0], [turn.texts for turn in turns] if is_sure else None
        if not is_whole and opens_nothing(name):
            return None, None
        self._cuts_feed |= self._command.shares
        self._uses_output |= not is_whole
        self._consumers += not is_whole
        if not is_whole:
            self._doubtful |= dict.fromkeys(others)
        if is_reader(name, texts) and not self._is_in_find:
            self._found.unseen = f"it is not known what {name} opens"
            if not is_known and may_walk(name):
                folders = [text for text in texts if not text.startswith("-")]
                walk = Opening(paths=folders or ["."], depth="tree", follows=True)
                self._found.guesses.append(walk)
        return None, None

    def _note_known(
        self, name: str, openings: Sequence[Opening], turns: Sequence[Expansion]
    ) -> bool:
        """Note what a program opens, and return whether that is certain for expanded words."""
        is_sure = all(turn.is_sure for turn in turns)
        for opening, turn in zip(openings, turns, strict=True):
            named = {*opening.paths, *opening.places}
            if not opens_nothing(name) and (others := set(turn.matched) - named):
                # One of them is no file for the program; which one depends on their order.
                is_sure = False
                self._note_words([Word(text) for text in others])
            self._expander.expanded |= dict.fromkeys(turn.matched)
            self._expander.expanded |= dict.fromkeys(named.intersection(turn.values))
            self._found.gives_names |= turn.is_given
            needs_input = name == "tr" or not (opening.paths or opens_nothing(name))
            needs_input |= any(map(_MAY_BE_INPUT.search, turn.texts))
            self._cuts_feed |= self._command.shares and needs_input
            opening.paths = [path for path in opening.paths if path not in GIVEN]
            self._found.openings += [opening, *turn.printed]
        return is_sure

    def _note_words(self, words: Sequence[Word]) -> None:
        for word in words:
            self._found.words[word.text] = None
            if word.is_glob:
                for base in self._found.folders:
                    self._found.words |= dict.fromkeys(self._expander.match(word.text, base))
                self._found.words |= dict.fromkeys(self._expander.match(word.text))

    def _resolve(self, name: str) -> str | None:
        file = self._file(name)
        if file is None:
            return None
        program = os.path.realpath(file)
        if self._is_writable_link(file, program) and not is_python_of_environment(file, program):
            self._add_problem(f"{name} is a link that tools can change")
        return program

    def _is_writable_link(self, file: str, program: str) -> bool:
        below = map(self._policy.is_below_write_root, (Path(file), Path(program)))
        return list(below) == [True, False]

    def _file(self, name: str) -> str | None:
        """Return where a program is found, links not followed."""
        try:
            return str(find_program(name, cwd=self._cwd, env=self._env))
        except ToolError:
            return None

    def _is_writable(self, path: Path) -> bool:
        return any(
            self._policy.is_below_write_root(each) for each in (path, Path(os.path.realpath(path)))
        )

    def _is_trusted(
        self, name: str, program: str | None, *, is_found_by_shell: bool = True
    ) -> bool:
        """Return whether a word finds the program of this name in a folder tools do not write."""
        if program is None:
            return False
        if "/" not in name and is_found_by_shell and self._is_shadowed(name):
            return False
        folders = (folder for folder in self._search_path() if folder.startswith("/"))
        found = (which(Path(name).name, path=folder) for folder in folders)
        return any(
            not self._is_writable(Path(file)) and os.path.realpath(file) == program
            for file in found
            if file
        )

    def _is_shadowed(self, name: str) -> bool:
        """Return whether tools write to a PATH folder that is searched before the program's."""
        for folder in self._search_path():
            if not folder.startswith("/"):
                return True
            if which(name, path=folder) is not None:
                return False
            if self._is_writable(Path(folder)):
                return True
        return False

    def _search_path(self) -> list[str]:
        return (self._env.get("PATH") or os.defpath).split(os.pathsep)

    def _is_shell(self, view: CommandView) -> bool:
        return bool(view.argv) and Path(view.argv[0]).name in ALL_SHELLS


def _named_by(words: Sequence[Word], texts: Sequence[str]) -> list[Word]:
    """Return the words that are among the texts, or are written in parts of them."""
    known = [word for word in words if word.text in texts]
    return known + [Word(text) for text in texts if all(word.text != text for word in known)]


def _with_unknown(word: Word, replaced: str, added: Word) -> Word:
    """Return a word in which a text is replaced by a value known only at run time.

    Args:
        word: as it is written.
        replaced: the text.
        added: the value, if it is the whole word.
    """
    if word.text == replaced:
        return structs.replace(added, text=word.text, is_one=True)
    return Word(word.text, is_known=False) if replaced in word.text else word


_KNOWN = frozenset(
    {
        *WRAPPERS.keys() - {"exec"},
        *AS_ANOTHER_USER,
        *SEVERAL_IN_ONE,
        *RUNNERS,
        *ALL_SHELLS,
        "find",
    }
)
