"""Commands of declarative tools: values are words or parameters, never a part of a text.

`{{args.field}}` is the only thing that is ever filled in. An argument vector is filled element by
element. In a script a placeholder becomes `"${soong_arg_N}"`, a variable that is set from a
positional parameter. That is one word, whatever the value is, but only where a shell expands words
and never evaluates what comes out. So a script with placeholders is parsed, and admitted only if
all of it consists of constructs that every shell reads alike, and each placeholder stands in an
argument of a command, the target of a redirection, the subject of a `case` or an operand of `[`.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import orjson
from msgspec import Struct, structs

from agent_core.text.json_text import JsonValue
from agent_core.tools.commands import find_input_problem, find_problem, nested_scripts
from agent_core.tools.shell_reader import (
    CONTROL,
    SimpleCommand,
    Word,
    read_template,
    text_of,
    walk,
)
from agent_core.tools.shells import words_of

if TYPE_CHECKING:
    from tree_sitter import Node

SHELL = "/bin/sh"
PLACEHOLDER = re.compile(r"\{\{\s*args\.([A-Za-z_][A-Za-z0-9_-]*)\s*\}\}")

_ANY_BRACES = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_VARIABLE = "soong_arg_"
_SETS_BY_READING = words_of("mapfile read readarray")
_BLANK = re.compile(rb"(?:[ \t\n]|\\\n)*")
_PLAIN = re.compile(r"(?:~/)?[A-Za-z0-9_@%+=:,./-]*")
_PARAMETER = re.compile(r"\$(?:[@*0-9]|\{(?:[@*]|[0-9]+)\})")

_PORTABLE = words_of(
    """
    program comment list pipeline negated_command redirected_statement subshell compound_statement
    command command_name word concatenation string string_content raw_string number
    simple_expansion expansion variable_name special_variable_name regex command_substitution
    variable_assignment declaration_command unset_command function_definition
    file_redirect file_descriptor
    if_statement elif_clause else_clause while_statement for_statement do_group
    case_statement case_item extglob_pattern
    test_command unary_expression binary_expression test_operator
    arithmetic_expansion parenthesized_expression
    && || ; & | ;; ( ) { } ! " $( ` ${ $(( )) [ ] $ =
    > >> < >& <& >|
    :- :+ := :? - + ? # ## % %% * /
    == != <= >= -eq
    if then elif else fi while until for in do done case esac
    export readonly local unset
    """
)
"""Every construct that a script with placeholders may have, anywhere in it."""

_AROUND = words_of(
    """
    program list pipeline negated_command redirected_statement subshell compound_statement
    command file_redirect command_substitution function_definition
    if_statement elif_clause else_clause while_statement for_statement do_group
    case_statement case_item test_command unary_expression binary_expression
    string concatenation
    """
)
"""Every construct that a placeholder may be inside of, at any depth."""

_PLACES = {
    "comment": "in a comment",
    "raw_string": "in single quotes, where nothing is expanded",
    "heredoc_redirect": "in a here-document",
    "heredoc_body": "in a here-document",
    "herestring_redirect": "in a here-string",
    "arithmetic_expansion": "in arithmetic",
    "variable_assignment": "in an assignment",
    "command_name": "in the place of a program",
    "expansion": "inside another expansion",
    "subscript": "in the index of an array",
    "brace_expression": "in a brace expansion",
    "ansi_c_string": "in a $'…' string",
    "translated_string": 'in a $"…" string',
    "regex": "in a pattern",
    "extglob_pattern": "in a pattern",
    "process_substitution": "in a process substitution",
    "array": "in an array",
}


def placeholders(template: str) -> Iterator[str]:
    """The fields a template names.

    Raises:
        ValueError: there is something else between double braces.
    """
    for found in _ANY_BRACES.finditer(template):
        match = PLACEHOLDER.fullmatch(found[0])
        if match is None:
            raise ValueError(f"{found[0][:80]} is not of the form {{{{args.field}}}}")
        yield match[1]


def fill_argv(argv: Sequence[str], arguments: Mapping[str, JsonValue]) -> list[str]:
    """Return each element with its values put in; an absent one is empty.

    An element that is one placeholder is left out if its argument is absent.
    """
    whole = map(PLACEHOLDER.fullmatch, argv)
    kept = (
        part
        for part, match in zip(argv, whole, strict=True)
        if match is None or arguments.get(match[1]) is not None
    )
    return [PLACEHOLDER.sub(lambda m: _value_text(arguments.get(m[1])), part) for part in kept]


def _value_text(value: object) -> str:
    """A value as one word: a string as it is, nothing for null, everything else as JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else orjson.dumps(value).decode()


class Script(Struct, frozen=True):
    """A script that can be run.

    Attributes:
        text: the script for the shell; the same for every call.
        fields: the arguments passed as positional parameters, in this order.
    """

    text: str
    fields: tuple[str, ...]

    def argv(self, arguments: Mapping[str, JsonValue]) -> list[str]:
        """The argument vector of one call."""
        values = [_value_text(arguments.get(field)) for field in self.fields]
        return [SHELL, "-c", self.text, *([SHELL, *values] if values else [])]


def parse_script(template: str, *, is_nested: bool = False) -> Script:
    """Read the template of a script. Without placeholders it may be anything.

    Args:
        template: the script.
        is_nested: its parameters are values: it is the argument of a shell.

    Raises:
        ValueError: a placeholder stands where a value could become shell text, or the script has
            something that shells do not read alike. Names the line and the cure.
    """
    fields = tuple(dict.fromkeys(placeholders(template)))
    if not fields:
        return Script(template, ())
    if strange := CONTROL.search(template):
        raise ValueError(f"{_line(template, strange.start())}: remove the control character there")
    if _VARIABLE in template:
        raise ValueError(f"rename the variable {_VARIABLE}…; such names are for the placeholders")
    unquoted = _ParsedScript(template, fields)
    bare = {number for number, place in enumerate(unquoted.places()) if place.is_bare}
    script = _ParsedScript(template, fields, bare=bare, is_nested=is_nested)
    script.check()
    given = " ".join(f"{_VARIABLE}{n}=${{{n}}}" for n in range(1, len(fields) + 1))
    return Script(f"{given}; shift {len(fields)}; {script.source.decode()}", fields)


def check_argv(argv: Sequence[str]) -> None:
    """Check the arguments of a program that is started without a shell.

    Raises:
        ValueError: the program is a shell, an interpreter or a program that starts another one,
            and would read a value as its text. Names the cure.
    """
    words: list[Word] = []
    for part in argv:
        if first := PLACEHOLDER.search(part):
            # Quotes around the value are for the program; only words that run text are looked for.
            start = re.match(r"[\w=-]*", part[: first.start()])
            pieces = (start[0] if start else "", None)
            words.append(Word(part, is_known=False, pieces=pieces, has_value=True))
        else:
            words.append(Word(part))
    if any(word.has_value for word in words) and (problem := _find_problem(words)):
        raise ValueError(f"args: {problem}")


def _find_problem(words: Sequence[Word], *, is_fed: bool = False) -> str | None:
    """Return why a command, or a script in its arguments, must not get or read a value, or None.

    The parameters of such a script are values, so it is read with placeholders in their places.
    """
    if problem := find_problem(words) or ((is_fed and find_input_problem(words)) or None):
        return problem
    for text in nested_scripts(words, is_fed=is_fed):
        template = f"{_PARAMETER.sub('{{args.value}}', text)}\n: {{{{args.value}}}}"
        template = f"cat {{{{args.value}}}} | {{\n{template}\n}}" if is_fed else template
        try:
            parse_script(template, is_nested=True)
        except ValueError as error:
            return f"in the script of the shell there: {str(error).partition(': ')[2]}"
    return None


class _Place(Struct, frozen=True):
    """One placeholder in a script."""

    shown: str
    line: str
    node: "Node"

    @property
    def is_bare(self) -> bool:
        """Return whether it is outside double quotes."""
        return self.node.parent is None or self.node.parent.type != "string"

    def refused(self, where: str, cure: str = "") -> ValueError:
        cure = cure or "make it an argument of a command, or use command_type exec"
        return ValueError(f"{self.line}: the placeholder {self.shown} is {where}; {cure}")


class _ParsedScript:
    """A script whose placeholders have become variables, and how the parser reads it.

    Args:
        template: the script.
        fields: the names of its placeholders, each once.
        bare: the numbers of the placeholders that get double quotes.
        is_nested: its parameters are values.
    """

    def __init__(
        self,
        template: str,
        fields: Sequence[str],
        *,
        bare: set[int] | None = None,
        is_nested: bool = False,
    ) -> None:
        self._template = template
        self._is_nested = is_nested
        self._found: list[tuple[re.Match[str], int, int]] = []
        self._keeps_input = False
        self._is_all_fed = False
        filled, last = bytearray(), 0
        for number, match in enumerate(PLACEHOLDER.finditer(template)):
            quote = b'"' if number in (bare or ()) else b""
            variable = f"${{{_VARIABLE}{fields.index(match[1]) + 1}}}".encode()
            filled += template[last : match.start()].encode() + quote
            self._found.append((match, len(filled), len(filled) + len(variable)))
            filled += variable + quote
            last = match.end()
        self.source = bytes(filled + template[last:].encode())
        self._script = read_template(self.source)
        self._root = cast("Node", self._script.root)

    def places(self) -> Iterator[_Place]:
        """Yield the places of the placeholders.

        Raises:
            ValueError: the parser sees no expansion there.
        """
        for match, start, end in self._found:
            line = _line(self._template, match.start())
            before = self._template[: match.start()]
            if before.endswith(("\\", "$")):
                raise ValueError(f"{line}: remove the {before[-1]} before {match[0]}")
            node = self._root.descendant_for_byte_range(start, end)
            seen = "" if node is None else node.type
            place = _Place(match[0], line, node or self._root)
            if (seen, place.node.start_byte, place.node.end_byte) != ("expansion", start, end):
                raise place.refused(_PLACES.get(seen, "where no value is expanded"))
            yield place

    def check(self) -> None:
        """Check that every shell reads the script alike, evaluates nothing, and keeps values words.

        Raises:
            ValueError: it does not.
        """
        for place in self.places():
            if where := _find_misplacement(place):
                raise place.refused(where)
        self._note_kept_values()
        problems = {
            command.node.id: problem
            for command in self._script.commands
            if command.node is not None and (problem := self._find_command_problem(command))
        }
        end = 0
        for node in walk(self._root):
            problem = self._find_node_problem(node) or problems.get(node.id)
            if node.child_count == 0:
                if not problem and not _BLANK.fullmatch(self.source, end, node.start_byte):
                    problem = f"the text before {_shown(node)} cannot be read"
                end = node.end_byte
            if problem:
                raise ValueError(f"command, line {node.start_point.row + 1}: {problem}")
        for line, problem in self._script.misread:
            raise ValueError(f"command, line {line}: {problem}; write it in another way")

    def _note_kept_values(self) -> None:
        """Note whether values that are read stay in variables or descriptors."""
        for command in self._script.commands:
            if command.node is None or not self._is_fed(command.node):
                continue
            names = {word.literal for word in command.words}
            # A variable that was read into may be used anywhere behind that.
            self._keeps_input |= not names.isdisjoint(_SETS_BY_READING)
            self._is_all_fed |= "exec" in names
        self._keeps_input |= any(
            node.type == "command_substitution" and self._is_fed(node) for node in walk(self._root)
        )

    def _find_node_problem(self, node: "Node") -> str | None:
        """Return why a construct must not be in the script; None if it may."""
        if not _is_portable(node):
            cure = "in a script with placeholders write it in another way"
            return f"{_shown(node)} is not read alike by all shells; {cure}"
        if node.type == "arithmetic_expansion" and self._is_fed(node):
            has_variable = any(each.type == "variable_name" for each in walk(node))
            return "do not use what is read in arithmetic" if has_variable else None
        return None

    def _find_command_problem(self, command: SimpleCommand) -> str | None:
        """Return why a command must not be in the script; None if it may."""
        words = [*map(self._with_value, command.words)]
        if not words or command.node is None:
            return None
        is_fed = self._is_fed(command.node)
        if is_fed or any(word.has_value for word in words):
            parts = (each for each in walk(self._root) if each.type == "function_definition")
            names = (part.child_by_field_name("name") for part in parts)
            if words[0].literal in {text_of(name) for name in names if name is not None}:
                return "give no placeholder to a function of the script"
        if words[0].literal is None and self._is_nested:
            return "write out the name of the program there"
        return _find_problem(words, is_fed=is_fed)

    def _is_fed(self, node: "Node") -> bool:
        """Return whether a node can read a value: from a pipe, or a file that a value names."""
        if self._keeps_input or self._is_all_fed:
            return True
        for each in (node, *_upwards(node)):
            before = each.prev_sibling
            while before is not None and each.parent is not None and each.parent.type == "pipeline":
                if _has_value(before):
                    return True
                before = before.prev_sibling
            if each.type == "redirected_statement":
                redirects = (part for part in each.children if part.type == "file_redirect")
                if any(_has_value(part) and _operator(part) == "<" for part in redirects):
                    return True
        return False

    def _with_value(self, word: Word) -> Word:
        """Return a word that says whether a value is in it, or may be."""
        is_read = self._keeps_input and word.literal is None
        return structs.replace(word, has_value=is_read or _VARIABLE in word.text)


def _has_value(node: "Node") -> bool:
    return _VARIABLE in text_of(node)


def _find_misplacement(place: _Place) -> str | None:
    """Return where a placeholder is, if its value may not stay one word there; else None."""
    below = place.node
    for node in _upwards(place.node):
        if node.type not in _AROUND:
            return _PLACES.get(node.type, f"in a {node.type.replace('_', ' ')}")
        match node.type:
            case "command":
                words = _words(node)
                if below not in words[1:]:
                    return "in the place of a program" if below in words else "in an assignment"
            case "concatenation":
                if where := _find_neighbour_problem(node):
                    return where
            case "file_redirect":
                if _operator(node) not in {"<", ">", ">>", ">|"}:
                    return "in the number of a descriptor"
            case _:
                is_wrong, where = _WRONG_PARTS.get(node.type, (None, ""))
                if is_wrong and is_wrong(node, below):
                    return where
        below = node
    return "where quotes do not hold" if place.is_bare else None


_WRONG_PARTS: Mapping[str, tuple[Callable[["Node", "Node"], bool], str]] = {
    "command_substitution": (lambda node, _: not text_of(node).startswith("$("), "in backquotes"),
    "for_statement": (lambda _, below: below.type != "do_group", "in the list of a for loop"),
    "case_item": (
        lambda node, below: below in node.children_by_field_name("value"),
        "in a pattern",
    ),
    "function_definition": (
        lambda node, below: below != node.child_by_field_name("body"),
        "in the name of a function",
    ),
    "test_command": (lambda node, _: node.children[0].type != "[", "in [[ ]]"),
}


def _find_neighbour_problem(node: "Node") -> str | None:
    """Return a placement error if the rest of an unquoted word is not plain, or None."""
    for part in node.children:
        match part.type:
            case "word" | "number" if _PLAIN.fullmatch(text_of(part)):
                continue
            case "string" | "raw_string" | "simple_expansion":
                continue
            case "expansion" | "command_substitution":
                return "beside an expansion; put double quotes around the whole word"
            case _:
                return f"beside {_shown(part)}; put double quotes around the whole word"
    return None


def _operator(redirect: "Node") -> str:
    operator = redirect.child_by_field_name("operator")
    operator = operator or next((c for c in redirect.children if not c.is_named), None)
    return text_of(operator) if operator is not None else ""


def _words(command: "Node") -> list["Node"]:
    """The program of a command and its arguments."""
    name = command.child_by_field_name("name")
    return [*([name] if name else []), *command.children_by_field_name("argument")]


def _upwards(node: "Node") -> Iterator["Node"]:
    while (parent := node.parent) is not None:
        yield parent
        node = parent


def _shown(node: "Node") -> str:
    return repr(text_of(node)[:40]) if not node.is_missing else f"the missing {node.type}"


def _line(text: str, position: int) -> str:
    return f"command, line {text.count(chr(10), 0, position) + 1}"


def _is_portable(node: "Node") -> bool:
    if node.is_error or node.is_missing or node.type not in _PORTABLE:
        return False
    if node.type == "$":  # of `$"…"`, or torn from a name by the parser
        return node.parent is not None and node.parent.type in {"simple_expansion", "string"}
    return True
