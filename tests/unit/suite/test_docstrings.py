"""What the three packages export is documented, down to its methods and the errors they raise."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

from tables import together

pytestmark = pytest.mark.checked

ROOT = Path(__file__).parents[3]
PACKAGES = ("agcore", "agent_core", "kgent")

_QUESTION = re.compile(r"\s*(?:what|who|whose|whether|how|where|when|which|why)\b", re.IGNORECASE)

Export = tuple[str, str, Any]
"""Name with its package, bare name, and what it stands for."""


def exports(module: ModuleType) -> Iterator[Export]:
    for name in module.__all__:
        value = getattr(module, name)
        yield f"{module.__name__}.{name}", name, value
        if isinstance(value, ModuleType):
            yield from exports(value)


EXPORTS = [export for package in PACKAGES for export in exports(import_module(package))]


@cache
def documented_values() -> frozenset[str]:
    """Names that are assigned at the top of a module and followed by a text."""
    paths = [path for package in PACKAGES for path in (ROOT / "src" / package).rglob("*.py")]
    texts = [path.read_text(encoding="utf-8") for path in paths]
    others = ModuleType | FunctionType | type
    values = [name for _, name, value in EXPORTS if not isinstance(value, others)]
    assigned = re.compile(rf"^({'|'.join(values)}) = ", re.M)  # to parse all files takes seconds
    bodies = [ast.parse(text).body for text in texts if assigned.search(text)]
    return frozenset(
        ast.unparse(target)
        for body in bodies
        for value, text in pairwise(body)
        if isinstance(value, ast.Assign) and isinstance(text, ast.Expr)
        if isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
        for target in value.targets
    )


def methods(owner: type) -> Iterator[tuple[str, FunctionType]]:
    """What a class adds for its callers: public methods, and the function behind each property."""
    for name, value in list(vars(owner).items()):
        function = value.fget if isinstance(value, property) else inspect.unwrap(value)
        if isinstance(function, FunctionType) and not name.startswith("_"):
            yield name, function


def functions(value: Any) -> Iterator[tuple[str, FunctionType]]:
    if isinstance(value, FunctionType):
        yield "", value
    elif isinstance(value, type):
        yield from ((f".{name}", function) for name, function in methods(value))


def raises(function: FunctionType) -> bool:
    """Whether it makes an error itself; `...Error(...)`, or a kind of one, `XError.Kind(...)`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    made = [n.exc for n in ast.walk(tree) if isinstance(n, ast.Raise)]
    return any(isinstance(exc, ast.Call) and "Error" in ast.unparse(exc.func) for exc in made)


def is_documented(name: str, value: Any) -> bool:
    if isinstance(value, ModuleType | FunctionType):
        return bool(value.__doc__)
    if not isinstance(value, type):
        return name in documented_values()
    written = vars(value).get("__doc__") or ""
    return bool(written) and not written.startswith(f"{value.__name__}(")  # dataclasses write one


@together("package", PACKAGES)
def test_every_exported_name_has_a_docstring(package: str) -> None:
    own = [export for export in EXPORTS if export[0].startswith(f"{package}.")]
    assert len(own) >= 10
    assert [path for path, name, value in own if not is_documented(name, value)] == []


def test_every_method_of_an_exported_class_has_a_docstring() -> None:
    found = [
        (f"{path}{name}", function)
        for path, _, value in EXPORTS
        for name, function in functions(value)
        if function.__module__.split(".")[0] in PACKAGES
    ]
    assert len(found) > 100
    assert [path for path, function in found if not function.__doc__] == []


def test_a_function_that_makes_an_error_says_so_or_refers_to_what_does() -> None:
    raising = [
        (f"{path}{name}", function)
        for path, _, value in EXPORTS
        for name, function in functions(value)
        if function.__module__.split(".")[0] in PACKAGES and raises(function)
    ]
    assert len(raising) > 10
    assert [
        path
        for path, function in raising
        if "Raises:" not in (function.__doc__ or "") and "See `" not in (function.__doc__ or "")
    ] == []


def docstrings_in(path: Path) -> Iterator[tuple[str, str]]:
    """Yield file, line and name of each module, class and function, with its docstring."""
    place = path.relative_to(ROOT / "src")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module):
            yield str(place), ast.get_docstring(node) or ""
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{place}:{node.lineno} {node.name}", ast.get_docstring(node) or ""


def test_no_docstring_begins_with_a_question_word() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")}
    assert sum(text.count('"""') for text in texts.values()) > 2000
    begin = re.compile(rf'"""{_QUESTION.pattern}', re.IGNORECASE)  # to parse all takes seconds
    described = [
        each for path, text in texts.items() if begin.search(text) for each in docstrings_in(path)
    ]
    assert [name for name, text in described if _QUESTION.match(text)] == []
