"""The simple commands that a shell would run for a script, with words as the shell makes them.

Permissions read the commands of models with it (`tools/code/views.py`), declarative tools their
scripts (`tools/script.py`). Only known syntax is accepted: a list of constructs, a pattern for the
text of each word, and a pattern for the text between the words. Everything else is a problem, and
so is a construct that the shell in use reads differently from bash. With a problem the commands
found are a guess. The parser is loaded when the first script is read: most programs never see one.
"""

import math
import re
import shlex
import sys
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from glob import escape
from itertools import pairwise, product
from typing import TYPE_CHECKING

from msgspec import Struct, field

from agent_core.tools.shells import words_of

if TYPE_CHECKING:
    from tree_sitter import Language, Node

CONTROL = re.compile(r"[^\n\t\x20-\x7e\x80-\U0010ffff]|[\x7f-\x9f]")
"""Characters that no script needs, and that shells and parsers read in different ways."""

_MAX_SCRIPT = 16_384
_MAX_SIGNS = 600
"""The parser holds all threads up while it reads, for long where a text is full of signs."""

_MAX_DEPTH = 60


class Word(Struct, frozen=True):
    """A word of a command.

    Attributes:
        text: as the program gets it; as it is written where that is not known.
        is_known: nothing is expanded in it.
        is_glob: a pattern for the names of files, and nothing else is expanded in it; `text` is
            as `glob` reads it.
        is_one: it stays one word, whatever is expanded in it.
        values: with the variable of a loop, the words that it becomes in turn, each of them known,
            a pattern, or printed; none if that is unknown.
        printed: the number of the feed that prints it, as one of many lines or words.
        is_exact: each printed name is one word, whatever signs it has.
        pieces: its parts as they are written, without quotes; None is anything that a shell puts
            in. None at all: `text` is one piece, or unknown as a whole.
        has_value: a value that a declarative tool is given is in it.
    """

    text: str
    is_known: bool = True
    is_glob: bool = False
    is_one: bool = True
    values: tuple["Word", ...] = ()
    printed: int = 0
    is_exact: bool = False
    pieces: tuple[str | None, ...] = ()
    has_value: bool = False

    @property
    def all_pieces(self) -> tuple[str | None, ...]:
        """Return its parts, at least one."""
        return self.pieces or ((self.text,) if self.is_known else (None,))

    @property
    def literal(self) -> str | None:
        """Return its text, a `~` unchanged; None if anything else is expanded in it."""
        return None if None in self.all_pieces else self.written

    @property
    def written(self) -> str:
        """Return the text that is written in it, without what is expanded."""
        return "".join(piece or "" for piece in self.all_pieces)

    @property
    def prefix(self) -> str:
        """Return the text that is written before the first expansion."""
        pieces = self.all_pieces
        end = pieces.index(None) if None in pieces else len(pieces)
        return "".join(piece or "" for piece in pieces[:end])

    @property
    def alternatives(self) -> tuple["Word", ...]:
        """Return the words that it may be, as far as they are known; none if they are not."""
        return (self,) if self.is_known or self.is_glob or self.printed else self.values


class SimpleCommand(Struct):
    """One command of a script; without words it only redirects.

    Attributes:
        words: its program, and the words that it is given.
        reads: what redirections read; each is known, or a pattern for one file.
        writes: what redirections write.
        feed: the number of the feed that it reads from; 0 if that is not known.
        shares: other commands read lines of the same feed.
        reads_line: it is `read` with names of variables that mean nothing to other programs.
        node: of it in the tree of the script.
    """

    words: list[Word]
    reads: list[Word] = field(default_factory=list[Word])
    writes: list[str] = field(default_factory=list[str])
    feed: int = 0
    shares: bool = False
    reads_line: bool = False
    node: "Node | None" = None


class ReadScript(Struct):
    """Commands and words found in a script.

    Attributes:
        commands: in the order of the text; those in words stand before the command of the word.
        words: other words of it, which become words of its commands.
        inputs: here-documents, which a shell would run.
        problems: why this may not be all, or not be it.
        misread: the ones that may make a shell read another script, with their lines.
        repeats: a part of it that may change the folder may run several times.
        enters_first: nothing of it runs unless the `cd` that it begins with succeeds.
        is_chain: it consists of commands of which each runs only if all before it have succeeded.
        feeds: commands joined by pipes, whose output other commands read; numbered from 1.
        root: the tree of the script, if it was parsed.
    """

    commands: list[SimpleCommand] = field(default_factory=list[SimpleCommand])
    words: list[Word] = field(default_factory=list[Word])
    inputs: list[str] = field(default_factory=list[str])
    problems: list[str] = field(default_factory=list[str])
    misread: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    repeats: bool = False
    enters_first: bool = False
    is_chain: bool = False
    feeds: list[list[SimpleCommand]] = field(default_factory=list[list[SimpleCommand]])
    root: "Node | None" = None


_STRUCTURE = words_of(
    """
    program list pipeline negated_command subshell compound_statement do_group
    if_statement elif_clause else_clause while_statement case_statement case_item
    command_substitution process_substitution
    """
)
"""Constructs that consist of statements, and of the tokens below."""

_TOKENS = words_of(
    """
    ; & && || | |& ;; ( ) { } ! if then elif else fi while until do done case in esac
    $( ` <( >(
    """
)
_BASH_ONLY = words_of("|& <( >( &> &>> <<<")
SETS_A_VARIABLE = "the script sets a variable"
_ASSIGNMENTS = words_of("variable_assignments declaration_command unset_command")
_RESERVED = words_of(
    """
    ! [[ ]] { } case coproc do done elif else esac fi for foreach function if in repeat select
    then time until while
    """
)
_TEST_TOKENS = words_of("= != == ! [ ]")
_UNARY = words_of("-n -z -e -f -d -r -w -x -s -L -h -b -c -p -S -g -u -k")
_BINARY = words_of("= != -eq -ne -gt -ge -lt -le -nt -ot -ef")

_PLAIN = r"(?:[^\s;|&<>()$`\"'\\]|\\[^\n])*"
_WORD = re.compile(_PLAIN)
_STRING = re.compile(r"(?:[^\"$`\\]|\\.)*", re.DOTALL)
_PATTERN = re.compile(r"(?:[\w./:*?@%+=,-]|\[[\w-]+\])+")
_ANSI = re.compile(r"\$'(?:[^'\\]|\\[^'])*'", re.DOTALL)
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})|([abeEfnrtv\\'\"?]))"
)
_SIGNS = dict(zip("abeEfnrtv", "\a\b\33\33\f\n\r\t\v", strict=True))
_ARITHMETIC = re.compile(r"\$\(\([\d\s+*/%-]*\)\)")
_BRACES = re.compile(r"\{.*?(?:,|\.\.).*?\}", re.DOTALL)
_GLOB = re.compile(r"[*?\[]")
_TILDE = re.compile(r"(?:^|[=:])~")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_STRANGE_HEREDOC = "the script has a here-document that shells may read differently"
_HEREDOC_PARTS = words_of("<< <<- heredoc_start heredoc_body heredoc_end")
_HEREDOC = re.compile(r"(['\"]?)([A-Za-z_][\w.-]*)\1")
_BLANKS = re.compile(rb"(?:[ \t\n]|(?<=[ \t\n])\\\n)*")
_ON_ONE_LINE = re.compile(rb"(?:[ \t]|(?<=[ \t\n])\\\n)*")
_NOTHING = re.compile(rb"")
_SIGN = re.compile(r"[^\w\s./,:=@%+-]|\n")
_SEPARATORS = re.compile(r"\|\||&&|[;&|\n()`{}]|\$\(|<\(|>\(")
_LOOP_VARIABLE = re.compile(r"[a-z][a-z0-9_]*")
_READ_LINE = re.compile(r"(?:IFS=[ \t]+)?read(?:[ \t]+-r)?((?:[ \t]+[a-z][a-z0-9_]*)+)")
_MAY_READ_LINE = re.compile(r"(?=\bread(?:[ \t]+-r)?((?:[ \t]+[a-z][a-z0-9_]*)+))")
_NEVER_SPLIT = re.compile(r"[\w./@%+,:=-]+")
_VARIABLE = re.compile(r"\$\w+|\$\{\w+\}")
_MOST_VALUES = 64
_INPUTS = words_of("heredoc_redirect herestring_redirect")


def read_script(text: str, *, is_bash: bool, env_names: Sequence[str] = ()) -> ReadScript:
    """Find the commands of a script.

    Args:
        text: the script.
        is_bash: the shell is known to be bash; else only what all shells read alike is known.
        env_names: the variables that the programs it starts would see.
    """
    found = ReadScript()
    if any(not char.isprintable() and char not in "\n\t" for char in text):
        found.problems.append("the script has characters that shells may read differently")
    if len(text) > _MAX_SCRIPT or len(_SIGN.findall(text)) > _MAX_SIGNS:
        found.problems.append("the script is too long to be looked at")
    else:
        _Reader(text.encode(), found, is_bash=is_bash, env_names=env_names).read()
    if found.problems:
        found.commands.extend(_guess(text[:_MAX_SCRIPT]))
    return found


def read_template(source: bytes) -> ReadScript:
    """Find the commands of a script of any length, for any shell."""
    found = ReadScript()
    _Reader(source, found, is_bash=False, env_names=()).read()
    return found


def parse(source: bytes) -> "Node":
    """Return the syntax tree of a script. Text that cannot be parsed becomes an error node."""
    from tree_sitter import Parser  # noqa: PLC0415

    return Parser(_language()).parse(source).root_node


@cache
def _language() -> "Language":
    import tree_sitter_bash  # noqa: PLC0415
    from tree_sitter import Language  # noqa: PLC0415

    return Language(tree_sitter_bash.language())


def walk(root: "Node") -> Iterator["Node"]:
    """Yield a node and all below it, in the order of the text."""
    pending = [root]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(reversed(node.children))


def text_of(node: "Node") -> str:
    """Return the text of a node."""
    return (node.text or b"").decode()


def _body_of(root: "Node") -> "Node":
    """Return the content of a script, without parentheses around all of it."""
    body = root.children[0] if len(root.children) == 1 else root
    while body.type == "subshell" and len(body.children) == 3:
        body = body.children[1]
    return body


def _is_chain(body: "Node") -> bool:
    """Return whether a script is `a && b && c`, with no part of it run at another time."""
    if body.type == "list":
        is_joined = [each.type for each in body.children[1:-1]] == ["&&"]
        return is_joined and all(_is_chain(body.children[at]) for at in (0, -1))
    if body.type == "redirected_statement":
        return _is_chain(body.children[0])
    return body.type == "command" and not _has_commands(body)


def _has_commands(node: "Node") -> bool:
    """Return whether there are commands in the words of a command."""
    return any("substitution" in each.type or _has_commands(each) for each in node.children)


def _guess(text: str) -> Iterator[SimpleCommand]:
    """Whatever may be a command of a script that cannot be read for sure."""
    for part in _SEPARATORS.split(text.replace("\\\n", "")):
        try:
            words = shlex.split(part)
        except ValueError:
            words = part.split()
        if words:
            yield SimpleCommand([Word(word) for word in words])


class _Reader:
    """Goes through the tree of one script."""

    def __init__(
        self, source: bytes, found: ReadScript, *, is_bash: bool, env_names: Sequence[str]
    ) -> None:
        self._source = source
        self._found = found
        self._is_bash = is_bash
        self._env_names = env_names
        self._depth = 0
        self._variables: dict[str, tuple[Word, ...]] = {}
        self._feed = 0
        self._is_redirected = False
        reads = _MAY_READ_LINE.findall(source.decode())
        self._set_by_read = Counter(name for names in reads for name in names.split())

    def read(self) -> None:
        self._found.root = root = parse(self._source)
        if root.has_error:
            self._garbled(root)
        gaps = (self._source[: root.start_byte], self._source[root.end_byte :])
        if any(gap.strip(b" \t\n") for gap in gaps):
            self._garbled(root)
        body = _body_of(root)
        self._found.enters_first = self._enters_first(body)
        self._found.is_chain = _is_chain(body)
        self._statement(root)

    def _enters_first(self, first: "Node") -> bool:
        """Return whether nothing runs unless a `cd` before it succeeds: `cd x && a && b`."""
        while first.type == "list" or (
            # The redirection of the last command; one of `cd` is in no list.
            first.type == "redirected_statement" and first.children[0].type == "list"
        ):
            if first.type == "redirected_statement":
                first = first.children[0]
            if [each.type for each in first.children[1:-1]] != ["&&"]:
                return False
            first = first.children[0]
        words = self._source[first.start_byte : first.end_byte].split()
        return first.type == "command" and words[:1] == [b"cd"]

    def _add_problem(self, text: str) -> None:
        if text not in self._found.problems:
            self._found.problems.append(text)

    def _misread(self, text: str, node: "Node") -> None:
        self._add_problem(text)
        self._found.misread.append((node.start_point.row + 1, text))

    def _garbled(self, node: "Node") -> None:
        self._misread("a part of the script cannot be read", node)

    def _unknown(self, node: "Node") -> None:
        name = node.type.replace("_", " ") if node.is_named else repr(node.type)
        self._add_problem(f"the script has a construct that is not looked into: {name}")

    def _between(self, node: "Node", pattern: re.Pattern[bytes]) -> None:
        """Report a problem if the text between the parts of a node means something to a shell."""
        for before, after in pairwise(node.children):
            if not pattern.fullmatch(self._source, before.end_byte, after.start_byte):
                self._garbled(node)

    def _statement(self, node: "Node") -> None:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            self._misread("the script is nested too deep", node)
        else:
            self._one_statement(node)
        self._depth -= 1

    def _one_statement(self, node: "Node") -> None:
        match node.type:
            case "command" | "test_command" | "redirected_statement":
                self._command(node)
            case "comment":
                self._comment(node)
            case kind if kind in _STRUCTURE:
                self._construct(node)
            case "for_statement":
                self._for(node)
            case "variable_assignment":
                self._assignment(node)
            case kind if kind in _ASSIGNMENTS:
                self._add_problem(SETS_A_VARIABLE)
                self._inside(node)
            case "function_definition":
                self._add_problem("the script defines a function")
                self._inside(node)
            case "file_redirect":
                command = SimpleCommand([], node=node)
                self._redirect(node, command)
                self._found.commands.append(command)
            case _:
                self._unknown(node)
                self._inside(node)

    def _construct(self, node: "Node") -> None:
        match node.type:
            case "pipeline":
                self._pipeline(node)
            case "while_statement":
                self._while(node)
            case _:
                self._structure(node)

    def _assignment(self, node: "Node") -> None:
        self._add_problem(SETS_A_VARIABLE)
        value = node.child_by_field_name("value")
        if value is not None:
            self._found.words.append(self._word(value))
        name = node.child_by_field_name("name")
        if name is None or name.type != "variable_name":
            self._unknown(node)
            self._inside(node)

    def _inside(self, node: "Node") -> None:
        """The commands below a node that is a problem anyway."""
        for child in node.children:
            if child.is_named:
                self._statement(child)

    def _structure(self, node: "Node") -> None:
        self._between(node, _BLANKS)
        if node.type == "command_substitution" and re.match(r"(?s)`.*\\", text_of(node)):
            self._misread("the script has a backslash in backquotes", node)
        for index, child in enumerate(node.children):
            if node.type in {"case_statement", "case_item"} and (
                node.field_name_for_child(index) == "value"
            ):
                if node.type == "case_statement":
                    self._word(child)
                elif not _PATTERN.fullmatch(text_of(child)):
                    self._unknown(child)
                    self._inside(child)
            elif child.is_named:
                self._statement(child)
            elif child.type not in _TOKENS or child.is_missing:
                self._unknown(child)
            elif child.type in _BASH_ONLY and not self._is_bash:
                self._add_problem(f"not all shells read {child.type} alike")

    def _pipeline(self, node: "Node") -> None:
        """Read commands joined by pipes; the output of each is fed to the next."""
        outer, feed = self._feed, list[SimpleCommand]()
        is_known = not self._is_redirected  # which of them reads the file is unknown
        self._between(node, _BLANKS)
        for child in node.children:
            if not child.is_named:
                is_plain = child.type in _TOKENS and not child.is_missing
                if not is_plain:
                    self._unknown(child)
                elif child.type in _BASH_ONLY and not self._is_bash:
                    self._add_problem(f"not all shells read {child.type} alike")
                is_known &= is_plain and child.type == "|"
                self._feed = self._add_feed(feed) if is_known else 0
                continue
            before = len(self._found.commands)
            self._statement(child)
            added = self._found.commands[before:]
            readers = [each for each in added if each.feed == self._feed]
            for each in readers:
                each.shares |= len(readers) > 1
            # Messages joined to the output are no names of files.
            is_known &= len(added) == 1 and "&" not in text_of(child)
            feed += added
        self._feed = outer

    def _add_feed(self, commands: Sequence[SimpleCommand]) -> int:
        self._found.feeds.append([*commands])
        return len(self._found.feeds)

    def _while(self, node: "Node") -> None:
        """Read a loop; `while read` assigns each line of its input to its variable."""
        before = len(self._found.commands)
        condition = node.child_by_field_name("condition")
        found = condition and _READ_LINE.fullmatch(text_of(condition))
        names = found[1].split() if found and node.children[0].type == "while" else []
        if len(names) == 1 and self._feed:
            line = Word("…", is_known=False, printed=self._feed)
            with self._variable(names[0], [line], reads=1):
                self._structure(node)
        else:
            self._structure(node)
        self._note_repeated(before)

    @contextmanager
    def _variable(self, name: str, values: Sequence[Word], *, reads: int) -> Generator[None]:
        """Read a part in which a variable becomes these words in turn.

        Args:
            name: of the variable.
            values: if one of them is unknown, nothing is known about it.
            reads: how often `read` sets it if that is known; no other `read` may set it.
        """
        known = tuple(each for word in values for each in word.alternatives)
        is_split = any(
            _VARIABLE.fullmatch(each.text) and not _is_never_split(each) for each in values
        )
        is_known = all(word.alternatives for word in values) and not is_split
        is_known &= len(known) <= _MOST_VALUES and self._set_by_read[name] == reads
        is_nested = name in self._variables
        self._variables[name] = known if is_known and not is_nested else ()
        yield
        if not is_nested:
            del self._variables[name]

    def _for(self, node: "Node") -> None:
        """Read a loop; its variable must mean nothing to any program, or to the shell."""
        self._between(node, _BLANKS)
        before = len(self._found.commands)
        name, values = "", list[Word]()
        for index, child in enumerate(node.children):
            match node.field_name_for_child(index) or child.type:
                case "variable":
                    name = text_of(child)
                    if not _LOOP_VARIABLE.fullmatch(name) or name in self._env_names:
                        self._add_problem(f"the script sets the variable {name}")
                case "value":
                    word = self._word(child)
                    values += self._numbers(word) or [word]
                    self._found.words.append(word)
                case "body":
                    with self._variable(name, values, reads=0):
                        self._statement(child)
                case "for" | "in" | ";":
                    pass
                case _:
                    self._unknown(child)
        self._note_repeated(before)

    def _numbers(self, word: Word) -> list[Word]:
        """Return the numbers that `$(seq …)` prints; none if it is anything else, or too many."""
        feed = self._found.feeds[word.printed - 1] if word.printed else []
        texts = [each.text for each in feed[0].words if each.is_known] if len(feed) == 1 else []
        if len(texts) not in {2, 3} or texts[0] != "seq" or len(texts) != len(feed[0].words):
            return []
        if not all(text.isascii() and text.isdecimal() and len(text) < 7 for text in texts[1:]):
            return []
        first = int(texts[1]) if len(texts) == 3 else 1
        last = int(texts[-1])
        numbers = range(first, last + 1)
        return [Word(str(each)) for each in numbers] if len(numbers) <= _MOST_VALUES else []

    def _note_repeated(self, before: int) -> None:
        """Note that the commands of a loop run several times, if they may change the folder."""
        words = (word for each in self._found.commands[before:] for word in each.words)
        self._found.repeats |= any("cd" in word.text for word in words)

    def _comment(self, node: "Node") -> None:
        """A comment ends with the line, and begins where every shell begins one."""
        before = self._source[max(node.start_byte - 2, 0) : node.start_byte]
        after = self._source[node.end_byte : node.end_byte + 1]
        begins = not before or before[-1:] in b" \t\n;&|()"
        if not begins or before[:-1] == b"\\" or after not in {b"", b"\n"}:
            self._misread("the script has a comment that shells may read differently", node)

    def _command(self, node: "Node") -> None:
        """Read a simple command with its redirections, or a construct with redirections."""
        body = node.child_by_field_name("body") if node.type == "redirected_statement" else node
        outer = (self._feed, self._is_redirected)
        parts = [*node.children, *(body.children if body is not None else ())]
        if any(map(_sets_input, parts)):
            self._feed, self._is_redirected = 0, True
        self._one_command(node, body)
        self._feed, self._is_redirected = outer

    def _one_command(self, node: "Node", body: "Node | None") -> None:
        command = SimpleCommand([], feed=self._feed, node=body or node)
        first = len(self._found.commands)
        if body is None or body.type in {"command", "test_command"}:
            if body is not None:
                self._words(body, command)
        else:
            self._statement(body)
        if body is not node:
            self._between(node, _ON_ONE_LINE)
            for child in node.children:
                if child != body:
                    self._redirect(child, command)
        inner = self._found.commands[first:]
        if body is not None and body.type not in {"command", "test_command"}:
            if command.words:
                self._garbled(node)
            if inner and not command.words:
                inner[0].reads += command.reads
                inner[0].writes += command.writes
                return
        self._found.commands.append(command)

    def _words(self, node: "Node", command: SimpleCommand) -> None:
        self._between(node, _ON_ONE_LINE)
        if node.type == "test_command":
            self._test(node, command)
            return
        end = -1
        for child in node.children:
            if child.type in {"file_redirect", "herestring_redirect", "heredoc_redirect"}:
                self._redirect(child, command)
            elif child.type == "variable_assignment":
                if not _READ_LINE.fullmatch(text_of(node)):
                    self._statement(child)
            elif not child.is_named:
                self._unknown(child)
            else:
                if child.start_byte == end:
                    self._garbled(node)
                command.words.append(self._word(child))
            end = child.end_byte
        found = _READ_LINE.fullmatch(text_of(node))
        command.reads_line = bool(found and not {*found[1].split()}.intersection(self._env_names))

    def _test(self, node: "Node", command: SimpleCommand) -> None:
        """Read a test: `[ … ]` is a command like any other; `[[ … ]]` has a language of its own."""
        opening = text_of(node.children[0]) if node.children else ""
        if opening != "[":
            self._unknown(node)
            self._inside(node)
            return
        command.words.extend(self._operands(node))

    def _operands(self, node: "Node") -> Iterator[Word]:
        self._between(node, _ON_ONE_LINE)
        for child in node.children:
            if child.type in {"unary_expression", "binary_expression"}:
                yield from self._operands(child)
            elif child.type == "test_operator" or child.type in _TEST_TOKENS:
                yield Word(text_of(child))
            elif child.is_named:
                yield self._word(child)
            else:
                self._unknown(child)

    def _redirect(self, node: "Node", command: SimpleCommand) -> None:
        match node.type:
            case "file_redirect":
                self._file_redirect(node, command)
            case "heredoc_redirect":
                self._heredoc(node, command)
            case "herestring_redirect":
                if not self._is_bash:
                    self._add_problem("not all shells read <<< alike")
                for child in node.children:
                    if child.is_named:
                        self._found.inputs.append(self._word(child).text)
            case _:
                self._unknown(node)

    def _file_redirect(self, node: "Node", command: SimpleCommand) -> None:
        self._between(node, _ON_ONE_LINE)
        # `{name}>file` sets a variable, and `a2>file` is the word `a2`.
        before = self._source[max(node.start_byte - 1, 0) : node.start_byte]
        has_number = node.children[0].type == "file_descriptor"
        if before.strip(b" \t\n;&|()") and (has_number or re.fullmatch(rb"[}\d]", before)):
            self._misread("the script has a redirection that shells may read differently", node)
        operator, targets = "", list[Word]()
        for child in node.children:
            if child.type == "file_descriptor":
                continue
            if child.is_named:
                targets.append(self._word(child))
            else:
                operator = child.type
        if not targets and operator in {"<&-", ">&-"}:
            return
        target = targets[0] if targets else Word("", is_known=False)
        command.words.extend(targets[1:])
        is_number = target.text.isascii() and target.text.isdecimal()
        if operator in {"<&", ">&"} and target.is_known and is_number:
            return
        is_value = operator == "<" and target.is_one and bool(target.values)
        is_value &= not any(word.printed for word in target.values)
        if not (target.is_known or is_value) or not target.text:
            self._add_problem("a redirection has a target that is known only when it runs")
        if operator in {"&>", "&>>", ">&"} and not self._is_bash:
            self._add_problem(f"not all shells read {operator} alike")
        match operator:
            case "<":
                command.reads += target.values if is_value else [target]
            case ">" | ">>" | ">|" | "&>" | "&>>" | ">&":
                command.writes.append(target.text)
            case _:
                self._unknown(node)

    def _heredoc(self, node: "Node", command: SimpleCommand) -> None:
        """Read a here-document, whose lines may contain expansions."""
        parts = {child.type: child for child in node.children}
        start, body, end = map(parts.get, ("heredoc_start", "heredoc_body", "heredoc_end"))
        rest = [child for child in node.children if child.type not in _HEREDOC_PARTS]
        for child in rest:
            if child.type == "pipeline":
                self._structure(child)
            else:
                self._redirect(child, command)
        word = _HEREDOC.fullmatch(text_of(start)) if start and "<<" in parts else None
        if start is None or end is None or word is None or len(rest) > 1:
            self._add_problem(_STRANGE_HEREDOC)
            return
        # The body begins behind the line, and ends with the first line that is the word.
        line_end = max(start.end_byte, *(child.end_byte for child in rest), 0)
        begin = self._source.find(b"\n", line_end) + 1
        gaps = (
            self._source[start.end_byte : rest[0].start_byte if rest else start.end_byte],
            self._source[line_end : begin - 1],
        )
        lines = self._source[begin : end.start_byte].split(b"\n")
        is_plain = not any(gap.strip(b" \t") for gap in gaps) and (
            body is None or begin <= body.start_byte
        )
        is_whole = text_of(end) == word[2] and lines[-1] == b"" and word[2].encode() not in lines
        if not is_plain or not is_whole or self._source[end.end_byte : end.end_byte + 1].strip():
            self._add_problem(_STRANGE_HEREDOC)
        text = b"\n".join(lines).decode(errors="replace")
        if not word[1] and re.search(r"[$`\\]", text):
            self._add_problem("the script has expansions in a here-document")
            self._inside(body or end)
        self._found.inputs.append(text)

    def _word(self, node: "Node") -> Word:
        self._depth += 1
        word = Word(text_of(node), is_known=False, is_one=False)
        if self._depth > _MAX_DEPTH:
            self._misread("the script is nested too deep", node)
        else:
            word = self._one_word(node)
        self._depth -= 1
        return word

    def _one_word(self, node: "Node") -> Word:
        text = text_of(node)
        match node.type:
            case "word" | "number" if node.child_count == 0 and _WORD.fullmatch(text):
                return self._bare(text)
            case "raw_string":
                return Word(text[1:-1])
            case "ansi_c_string":
                return self._ansi(text)
            case "string":
                return self._string(node)
            case "command_name" | "concatenation":
                return self._joined(node)
            case "simple_expansion":
                self._between(node, _NOTHING)
                values = self._variables.get(text[1:], ())
                return Word(text, is_known=False, is_one=False, values=values)
            case "expansion":
                return self._expansion(node)
            case "command_substitution":
                return Word(text, is_known=False, is_one=False, printed=self._substitution(node))
            case "process_substitution":
                self._statement(node)
                return Word(text, is_known=False)
            case "arithmetic_expansion" if _ARITHMETIC.fullmatch(text):
                return Word(text, is_known=False)
            case _:
                self._unknown(node)
                self._inside(node)
                return Word(text, is_known=False, is_one=False)

    def _substitution(self, node: "Node") -> int:
        """Read the commands of `$(…)`, and return the number of their feed, or 0."""
        before = len(self._found.commands)
        self._statement(node)
        statements = [child for child in node.children if child.is_named]
        stages = statements[0].children if len(statements) == 1 else []
        if stages and statements[0].type == "redirected_statement":
            stages = stages[0].children if stages[0].type == "pipeline" else []
        elif not statements or statements[0].type != "pipeline":
            stages = []
        added = self._found.commands[before:]
        is_plain = len(added) == max(sum(each.is_named for each in stages), 1)
        return self._add_feed(added) if is_plain and "&" not in text_of(node) else 0

    def _bare(self, text: str) -> Word:
        """A word outside of quotes."""
        bare = _ESCAPED.sub("", text)
        if _BRACES.search(bare):
            self._add_problem("the script has braces that a shell expands")
        is_glob = _GLOB.search(bare) is not None
        has_home = _TILDE.search(text) is not None
        if is_glob:
            shown = _ESCAPED.sub(lambda found: escape(found[1]), text)
        else:
            shown = text if has_home else _ESCAPED.sub(r"\1", text)
        is_known = not is_glob and not has_home
        pieces: tuple[str | None, ...] = (shown,) if has_home else ()
        if is_glob:  # which name it becomes is unknown
            before = _GLOB.split(text, maxsplit=1)[0]
            pieces = (before, None, text[len(before) :])
        return Word(
            shown,
            is_known=is_known,
            is_glob=is_glob and not has_home,
            is_one=not is_glob,
            pieces=pieces,
        )

    def _ansi(self, text: str) -> Word:
        """`$'…'`: bash reads escapes in it, other shells a dollar and a string."""
        if not _ANSI.fullmatch(text) or not self._is_bash:
            self._add_problem("not all shells read $'…' alike")
        return Word(_ESCAPE.sub(_read_escape, text[2:-1]), is_known="\\" not in text)

    def _string(self, node: "Node") -> Word:
        """A word, or a part of one, in double quotes."""
        parts, end, is_known = list[str](), node.start_byte + 1, True
        words = list[Word]()
        for child in node.children[1:-1]:
            parts.append(self._source[end : child.start_byte].decode(errors="replace"))
            if parts[-1].strip(" \t\n"):
                self._garbled(node)
            text = text_of(child)
            if child.type == "string_content":
                if not _STRING.fullmatch(text):
                    self._unknown(child)
                parts.append(re.sub(r"\\([$`\"\\]|\n)", lambda m: m[1].strip("\n"), text))
                words.append(Word(parts[-2] + parts[-1]))
            elif child.type == "$":
                parts.append(text)
                words.append(Word(parts[-2] + parts[-1]))
            else:
                if text.startswith("`") and '"' in text:
                    self._misread("the script has quotes in backquotes in quotes", node)
                words += [Word(parts[-1]), self._word(child)]
                parts.append(words[-1].text)
                is_known = False
            end = child.end_byte
        parts.append(self._source[end : node.end_byte - 1].decode(errors="replace"))
        if parts[-1].strip(" \t\n"):
            self._garbled(node)
        is_one = not re.search(r"[@*]", "".join(parts)) or is_known
        words.append(Word(parts[-1]))
        values = () if is_known else _values_of(words)
        pieces = () if is_known else _pieces_of(words)
        text = "".join(parts)
        return Word(text, is_known=is_known, is_one=is_one, values=values, pieces=pieces)

    def _joined(self, node: "Node") -> Word:
        """Join the adjacent parts of one word."""
        self._between(node, _NOTHING)
        words = [self._word(child) for child in node.children]
        bare = "".join(
            text_of(child) for child in node.children if child.type in {"word", "number"}
        )
        if len(words) > 1 and _BRACES.search(_ESCAPED.sub("", bare)):
            self._add_problem("the script has braces that a shell expands")
        if not words:
            self._unknown(node)
        has_home = len(words) > 1 and text_of(node).startswith("~")
        is_glob = any(word.is_glob for word in words)
        is_glob &= all(word.is_known or word.is_glob for word in words)
        is_known = all(word.is_known for word in words) and not has_home
        is_split = not all(map(_is_never_split, words))
        values = () if is_known or is_glob or has_home or is_split else _values_of(words)
        return Word(
            "".join(escape(w.text) if is_glob and w.is_known else w.text for w in words),
            is_known=is_known,
            is_glob=is_glob,
            is_one=all(word.is_one for word in words),
            values=values,
            pieces=() if is_known else _pieces_of(words),
        )

    def _expansion(self, node: "Node") -> Word:
        """`${name}`, its length, or with another text where it is empty."""
        self._between(node, _NOTHING)
        for child in node.children:
            match child.type:
                case "${" | "}" | "variable_name" | "special_variable_name":
                    pass
                case ":-" | "-" | ":+" | "+":
                    pass
                case "#" if child.prev_sibling is not None and child.prev_sibling.type == "${":
                    pass
                case "word" | "number" | "simple_expansion" | "command_substitution":
                    self._word(child)
                case _:  # within double quotes other quotes are text
                    self._unknown(child)
                    self._inside(child)
        text = text_of(node)
        values = self._variables.get(text[2:-1], ())
        return Word(text, is_known=False, is_one=False, values=values)


def _sets_input(node: "Node") -> bool:
    """Return whether a part of a command redirects its standard input, or may."""
    if node.type in _INPUTS:
        return True
    return node.type == "file_redirect" and "<" in text_of(node)


def _pieces_of(words: Sequence[Word]) -> tuple[str | None, ...]:
    return tuple(piece for word in words for piece in word.all_pieces)


def _values_of(words: Sequence[Word]) -> tuple[Word, ...]:
    """Return the words that parts of one word make together; none if that is unknown."""
    parts = [word for word in words if word.text or not word.is_known]
    if len(parts) == 1:
        return parts[0].values
    counts = math.prod(len(word.alternatives) for word in parts)
    if not 0 < counts <= _MOST_VALUES:
        return ()
    if any(each.printed for word in parts for each in word.alternatives):
        return ()
    return tuple(map(_join, product(*(word.alternatives for word in parts))))


def _is_never_split(word: Word) -> bool:
    """Return whether a shell makes one word of whatever the variables in it become."""
    return word.is_one or all(
        each.is_known and _NEVER_SPLIT.fullmatch(each.text) for each in word.values
    )


def _join(parts: Sequence[Word]) -> Word:
    """Return one word of known parts and patterns."""
    is_glob = any(word.is_glob for word in parts)
    texts = (escape(each.text) if is_glob and each.is_known else each.text for each in parts)
    return Word("".join(texts), is_known=not is_glob, is_glob=is_glob, is_one=not is_glob)


def _read_escape(found: re.Match[str]) -> str:
    """Return the character of a `$'…'` escape; an escape unknown to the shell is unchanged."""
    *hexadecimal, octal, sign = found.groups()
    if sign is not None:
        return _SIGNS.get(sign, sign)
    number = int(octal, 8) if octal else int("".join(filter(None, hexadecimal)), 16)
    return chr(number) if number <= sys.maxunicode else found[0]


def is_reserved(word: str) -> bool:
    """Return whether a shell reads a word as syntax where a program could be named."""
    return word in _RESERVED


def is_plain_test(words: Sequence[str | None]) -> bool:
    """Return whether a test has one written operator, so that no value can be read as one.

    None in `words` means an unknown word.
    """
    operands = [word for word in words if word != "]"]
    match operands[1:] if operands[:1] == ["!"] else operands:
        case [_]:
            return True
        case [operator, _]:
            return operator in _UNARY
        case [_, operator, _]:
            return operator in _BINARY
        case _:
            return False
