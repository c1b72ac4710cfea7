"""A template as a tree, and where its parts stand in the source."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Text:
    """What stands in the prompt as it is; a raw block is one too."""

    text: str


@dataclass(frozen=True, slots=True)
class Variable:
    """`{{ a.b }}`."""

    path: str
    line: int


@dataclass(frozen=True, slots=True)
class If:
    """`{{#if a}} … {{else}} … {{/if}}`."""

    path: str
    line: int
    then: "Nodes"
    otherwise: "Nodes"


@dataclass(frozen=True, slots=True)
class Each:
    """`{{#each a}} … {{else}} … {{/each}}`."""

    path: str
    line: int
    body: "Nodes"
    otherwise: "Nodes"


@dataclass(frozen=True, slots=True)
class Partial:
    """`{{> name}}`."""

    name: str
    line: int


Node = Text | Variable | If | Each | Partial
Nodes = Sequence[Node]
