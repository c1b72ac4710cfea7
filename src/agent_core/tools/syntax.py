"""Shell scripts as trees of syntax.

The parser is loaded when the first script is read: most programs never see one.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Language, Node

CONTROL = re.compile(r"[^\n\t\x20-\x7e\x80-\U0010ffff]|[\x7f-\x9f]")
"""Characters that no script needs, and that shells and parsers read in different ways."""


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
    """A node and all below it, in the order of the text."""
    pending = [root]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(reversed(node.children))


def text_of(node: "Node") -> str:
    """Return the text of a node."""
    return (node.text or b"").decode()
