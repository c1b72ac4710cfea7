"""Every module and class of the three packages, and the types that a program is given."""

import ast
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar, is_typeddict

import agcore
import agent_core
import kgent

T = TypeVar("T")
PACKAGES = (agcore, agent_core, kgent)

SUPERVISED = {"agent_core.process.supervisor"}
"""Modules that are programs of their own, with other modules beside them on their path."""


@cache
def modules() -> tuple[ModuleType, ...]:
    return tuple(
        import_module(found.name)
        for package in PACKAGES
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        if found.name not in SUPERVISED and not found.name.endswith(".__main__")
    )


def classes(base: type[T]) -> Iterator[type[T]]:
    for module in modules():
        for each in vars(module).values():
            if (
                isinstance(each, type)
                and issubclass(each, base)
                and each.__module__ == module.__name__
            ):
                yield each


@cache
def tree_of(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


@cache
def names_in(module: ModuleType) -> dict[str, Any]:
    """The names of a module, with those that only type checkers import."""
    names = dict(vars(module))
    if "TYPE_CHECKING" in names:
        for node in tree_of(module).body:
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                imports = [n for n in node.body if isinstance(n, ast.Import | ast.ImportFrom)]
                program = ast.Module(list(imports), type_ignores=[])
                exec(compile(program, str(module.__file__), "exec"), names)  # noqa: S102 - ours
    return names


def names_for(kind: type) -> dict[str, Any]:
    """The names that the annotations of a class and of its bases may use."""
    names: dict[str, Any] = {}
    if is_typeddict(kind):  # before Python 3.12 it does not know what it is derived from
        for base in filter(is_typeddict, classes(dict)):
            names |= names_in(sys.modules[base.__module__])
    for each in reversed(kind.__mro__):
        module = sys.modules[each.__module__]
        if module in modules():
            names |= names_in(module)
    return names
