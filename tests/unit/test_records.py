"""What the classes of all three packages are made of: structs, pydantic models, dataclasses.

Pydantic builds most validators when they are first used, and knows no structs (decision 0038): a
struct in a model would fail in the middle of a run. Annotations are read by nobody until then.
"""

import ast
import copy
import inspect
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import FrozenInstanceError, asdict, fields, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import (
    Any,
    Generic,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
import pytest
from pydantic import BaseModel, TypeAdapter

import agent_core
import kgent
from agent_core.tools.base import Action, ToolContext
from agent_core.tools.registry import tool_from
from agent_core.types import event_details
from agent_core.types.tools import Access, CommandView, CommandViews, ToolDefinition
from all_classes import PACKAGES, classes, modules, names_for, names_in, tree_of

pytestmark = pytest.mark.timeout(120)  # every module is loaded

ROOT = Path(__file__).parents[2]

GIVEN_TYPES = {
    ("agent_core.tools.signatures", "shape"),
    ("agent_core.tools.output", "with_readable_typed_dicts(output_type)"),
    ("agent_core.tools.values", "kind"),
    ("agent_core.serve.bodies", "model"),
    ("agent_core.serve.openapi", "key[1]"),
    ("agent_core.serve.operations", "kind"),
}
"""The adapters of types that a caller gives."""

PAGES = (
    "agent_core.testing",
    *("agcore.agent", "agcore.llm", "agcore.memory", "agcore.prompt", "agcore.tools"),
)
"""Modules with a page of the reference, like `agent_core` and `kgent`."""


@pytest.mark.checked
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


@pytest.mark.checked
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


def exported() -> dict[object, str]:
    """What has a page in the reference."""
    pages = [agent_core, kgent, *(import_module(name) for name in PAGES)]
    return {
        getattr(module, name): f"{module.__name__}.{name}"
        for module in pages
        for name in module.__all__
        if name not in {"__version__"}
    }


def listed() -> dict[object, str]:
    """What the reference names beside that, in a line."""
    line = re.compile(r"^- `(\w+)` \(`([\w.]+)`\)", re.MULTILINE)
    return {
        getattr(import_module(module), name): f"{module}.{name}"
        for page in (ROOT / "docs" / "reference").glob("*.md")
        for name, module in line.findall(page.read_text(encoding="utf-8"))
    }


def in_signature(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """What a function takes and gives."""
    function = inspect.unwrap(function)
    module = sys.modules[function.__module__]
    if module in modules():
        yield from get_type_hints(function, localns=names_in(module)).items()


def in_class(kind: type, *, has_page: bool) -> Iterator[tuple[str, Any]]:
    """The public fields and properties of a class and, with a page, what its methods take."""
    if kind.__module__.partition(".")[0] not in {package.__name__ for package in PACKAGES}:
        return
    fields = get_type_hints(kind, localns=names_for(kind))
    yield from ((name, hint) for name, hint in fields.items() if not name.startswith("_"))
    for name in dir(kind):
        member = inspect.getattr_static(kind, name)
        if name.startswith("_"):
            continue
        if isinstance(member, property | cached_property):
            getter = member.fget if isinstance(member, property) else member.func
            assert getter is not None
            yield from ((name, hint) for _, hint in in_signature(getter))
        elif has_page and name in vars(kind):
            function = getattr(member, "__func__", member)
            if inspect.isfunction(function):
                yield from ((f"{name}()", hint) for _, hint in in_signature(function))


def types_in(hint: Any) -> Iterator[type]:
    """All types that an annotation is made of."""
    if hint in (None, Generic):
        return
    for part in (get_origin(hint), *get_args(hint)):
        for each in cast("Iterable[Any]", part if isinstance(part, list | tuple) else (part,)):
            yield from types_in(each)
    if isinstance(hint, type):
        yield hint


@pytest.mark.checked
def test_what_a_program_is_given_is_no_struct() -> None:
    """A program may use `dataclasses` on it, or have it in a model; details are only read."""
    pages = exported()
    waiting = {**listed(), **pages}
    found = dict[type, str]()
    while waiting:
        each, path = waiting.popitem()
        hints: Iterable[tuple[str, Any]] = [("", each)]
        if isinstance(each, type):
            found[each] = path
            hints = in_class(each, has_page=each in pages)
        elif inspect.isfunction(each):
            hints = in_signature(each)
        for name, hint in hints:
            waiting |= {k: f"{path}.{name}" for k in types_in(hint) if k not in found}
    assert len(found) > 200
    structs = {k: path for k, path in found.items() if issubclass(k, msgspec.Struct)}
    assert {k: path for k, path in structs.items() if k.__module__ != event_details.__name__} == {}


def test_what_a_call_touches_can_be_copied_changed_and_taken_apart() -> None:
    access = Access(summary="ls", command=CommandViews((CommandView(("ls",), None),)))
    action = Action(access, no_effect)
    changed = replace(action, access=replace(action.access, asks=True)).access
    assert (changed.asks, changed.summary) == (True, "ls")
    assert changed == replace(access, asks=True) != access
    assert asdict(access)["command"]["views"][0]["argv"] == ("ls",)
    assert {each.name for each in fields(access)} >= {"asks", "scope", "hook_summary"}
    assert pickle.loads(pickle.dumps(access)) == copy.deepcopy(access) == copy.copy(access)  # noqa: S301
    assert "summary='ls'" in repr(access)
    with pytest.raises(FrozenInstanceError):
        access.asks = True  # type: ignore[misc]
    assert TypeAdapter(Access).validate_python({"asks": True}).asks


async def no_effect() -> str:
    return ""


def test_a_value_compares_hashes_and_shows_itself_like_a_dataclass() -> None:
    view = CommandView(("ls",), None)
    assert view == CommandView(("ls",), None) != CommandView(("ls",), "/bin/ls")
    assert {view: 1}[CommandView(("ls",), None)] == 1
    assert repr(view) == (
        "CommandView(argv=('ls',), program=None, reads=(), writes=(), unknown_from=None,"
        " only_reads=False, file=None)"
    )
    views = CommandViews((view,))
    assert views != view
    assert view != ("ls",)
    tool = tool_from(ToolDefinition(name="own.tool", description=""), no_handler)
    assert tool == copy.copy(tool) != replace(tool, ends_run=True)
    assert "name='own.tool', description" in repr(tool)
    assert not repr(tool).endswith("name='own.tool')")


def no_handler(arguments: dict[str, Any], context: ToolContext) -> str:
    return ""
