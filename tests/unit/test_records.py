"""What the classes of all three packages are made of: structs, pydantic models, dataclasses.

Pydantic builds most validators when they are first used, and knows no structs (decision 0038): a
struct in a model would fail in the middle of a run. Annotations are read by nobody until then.
"""

import ast
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, get_type_hints

import msgspec
import pytest
from pydantic import BaseModel, TypeAdapter

import agcore
import agent_core
import kgent

pytestmark = pytest.mark.timeout(120)  # every module is loaded

T = TypeVar("T")
PACKAGES = (agcore, agent_core, kgent)
ROOT = Path(__file__).parents[2]

GIVEN_TYPES = {
    ("agent_core.tools.decorator", "shape"),
    ("agent_core.tools.output", "with_readable_typed_dicts(output_type)"),
}
"""The adapters of types that a program gives."""

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
    for each in reversed(kind.__mro__):
        module = sys.modules[each.__module__]
        if module in modules():
            names |= names_in(module)
    return names


def test_every_annotation_of_a_struct_names_a_type() -> None:
    kinds = list(classes(msgspec.Struct))
    assert len(kinds) > 200
    for kind in kinds:
        found = get_type_hints(kind, localns=names_for(kind))
        assert set(kind.__struct_fields__) <= set(found)


def adapted_types(module: ModuleType) -> Iterator[str]:
    """What a module makes adapters of, as it is written there."""
    if "TypeAdapter" not in vars(module):
        return
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Call) and node.args:
            made = node.func.value if isinstance(node.func, ast.Subscript) else node.func
            if isinstance(made, ast.Name) and made.id == "TypeAdapter":
                yield ast.unparse(node.args[0])


def test_no_struct_is_in_a_model_or_a_type_adapter() -> None:
    models = list(classes(BaseModel))
    assert len(models) > 200
    for model in models:
        model.model_rebuild(_types_namespace=names_for(model))
        assert model.__pydantic_complete__, model
    left_out: set[tuple[str, str]] = set()
    for module in modules():
        for kind in adapted_types(module):
            if (module.__name__, kind) in GIVEN_TYPES:
                left_out.add((module.__name__, kind))
            else:
                TypeAdapter[Any](eval(kind, names_in(module)))  # noqa: S307 - ours
    assert left_out == GIVEN_TYPES


def test_no_type_of_the_reference_is_a_struct() -> None:
    listed = re.compile(r"^(?:## |- )`(\w+)` \(`([\w.]+)`\)", re.MULTILINE)
    found = {
        getattr(import_module(module), name)
        for page in (ROOT / "docs" / "reference").glob("*.md")
        for name, module in listed.findall(page.read_text(encoding="utf-8"))
    }
    assert len(found) > 50
    assert [
        each for each in found if isinstance(each, type) and issubclass(each, msgspec.Struct)
    ] == []
