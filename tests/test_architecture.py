"""Rules about the shape of the code that no linter knows."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tables import together

pytestmark = pytest.mark.checked

SOURCES = Path(__file__).parents[1] / "src"
ENGINE = SOURCES / "agent_core"
MODULES = sorted(SOURCES.rglob("*.py"))
Function = ast.FunctionDef | ast.AsyncFunctionDef

MAX_LOOP = 40
MAX_CONTEXT_FIELDS = 12

IMPORTED_WHEN_USED = {
    "charset_normalizer",
    "httptools",
    "jsonschema",
    "mcp",
    "prompt_toolkit",
    "rich",
    "xllamacpp",
    "yaml",
    "yarl",
}
DATACLASSES = {
    "api/handles.py": {"RunResult"},
    "extensions.py": {"ExtensionContext", "JudgedCall"},
    "loop/guards.py": {"RunGuard"},
    "loop/options.py": {"Agent", "RunOptions"},
    "process/jail.py": {"Jail"},
    "process/mounts.py": {"Shared"},
    "process/renames.py": {"_Copy"},
    "tools/base.py": {"Action", "OfferContext", "Tool", "ToolContext", "ToolAnswer"},
    "tools/decorator.py": {"FunctionTool"},
    "tools/signatures.py": {"Parameter"},
    "types/content.py": {"Draft", "NodeFlags"},
    "types/questions.py": {"PermissionGrant"},
    "types/tools.py": {"Access", "CommandView", "CommandViews"},
}
"""The records of the engine that are no structs (decision 0038)."""

CONTEXT_VARIABLE = "agent_core/loop/inside.py"
"""The only module with a context variable (decision 0039)."""

VAGUE = re.compile(r"(?i)(^|_)(manager|helper|util|utils|misc)(_|$)|(Manager|Helper|Utils?)$")

GIVEN_NAMES = {"ContextManager"}
"""Public names that the design prescribes, whatever they say."""


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def parsed(path: Path) -> ast.Module:
    return ast.parse(text_of(path))


def mentioning(words: str) -> list[Path]:
    """The modules with text that fits an expression; to parse all modules takes seconds."""
    return [path for path in MODULES if re.search(words, text_of(path))]


def functions(path: Path) -> Iterator[Function]:
    return (node for node in ast.walk(parsed(path)) if isinstance(node, Function))


def shown(path: Path) -> str:
    return path.relative_to(SOURCES).as_posix()


def is_only_a_name_for_another(statement: ast.stmt) -> bool:
    match statement:
        case ast.Import() | ast.ImportFrom():
            return True
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
        case ast.Assign(value=ast.Name() | ast.Attribute()):
            return True
        case _:
            return False


def re_exports_only(path: Path) -> bool:
    body = [s for s in parsed(path).body if not isinstance(s, ast.Expr)]
    return body != [] and all(map(is_only_a_name_for_another, body))


def test_a_module_does_more_than_re_export() -> None:
    packages = {"__init__.py", "__main__.py"}
    does_more = {*mentioning(r"(?m)^(async )?(def|class) ")}
    rest = [path for path in MODULES if path not in does_more and path.name not in packages]
    assert [shown(path) for path in rest if re_exports_only(path)] == []


def violations(path: Path) -> Iterator[str]:
    for node in ast.walk(parsed(path)):
        match node:
            case ast.Global():
                yield f"{shown(path)}:{node.lineno} changes module state: {', '.join(node.names)}"
            case ast.Name(id="ContextVar") | ast.Attribute(attr="ContextVar"):
                if shown(path) == CONTEXT_VARIABLE:
                    continue
                yield f"{shown(path)}:{node.lineno}: context is passed by hand"
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                if VAGUE.search(node.name) and node.name not in GIVEN_NAMES:
                    yield f"{shown(path)}:{node.lineno}: {node.name} says nothing about its work"
            case _:
                pass


OPENING = ENGINE / "opening.py"
CONNECTIONS = ENGINE / "storage" / "connections.py"
IN_THE_SUPERVISOR = {
    *("binds.py", "bubblewrap.py", "jail.py", "kernel.py", "landlock.py", "mounts.py"),
    *("renames.py", "seccomp.py", "supervisor.py"),
}
"""Modules of `process` that run in a process of their own, which has no database open."""

OPENERS = {
    *("open", "io.open", "os.open", "codecs.open", "sqlite3.connect", "fcntl.lockf"),
    *("shutil.copy", "shutil.copy2", "shutil.copyfile", "shutil.copytree", "shutil.move"),
}
METHODS_THAT_OPEN = {"read_text", "read_bytes", "write_text", "write_bytes"}


def openings(path: Path) -> Iterator[str]:
    """Calls that open a file without looking whether it is a database."""
    for node in ast.walk(parsed(path)):
        if not isinstance(node, ast.Call):
            continue
        called, first = ast.unparse(node.func), ast.unparse(node.args[0]) if node.args else ""
        is_mode = re.fullmatch(r"'[rwxabt+]+'", first) is not None
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        in_memory = called == "sqlite3.connect" and first == "':memory:'"
        if (called in OPENERS and not in_memory) or method in METHODS_THAT_OPEN:
            yield f"{shown(path)}:{node.lineno}: {called}"
        elif method == "open" and (is_mode or not first) and called != "self.open":
            yield f"{shown(path)}:{node.lineno}: {called}({first})"


def test_no_module_opens_a_file_that_may_be_an_open_database() -> None:
    """Closing a descriptor of it would release the locks of SQLite: `agent_core.opening` looks."""
    exempt = {OPENING, CONNECTIONS, *(ENGINE / "process" / name for name in IN_THE_SUPERVISOR)}
    names = {each.rpartition(".")[2] for each in OPENERS} | METHODS_THAT_OPEN
    paths = mentioning(rf"\b({'|'.join(sorted(names))})\(")
    assert exempt & {*paths}
    assert [found for path in paths if path not in exempt for found in openings(path)] == []


def test_state_has_an_owner_and_things_have_names() -> None:
    paths = mentioning(r"\bglobal\b|ContextVar|(def|class) \w*(?i:manager|helper|util|misc)")
    assert paths
    assert [found for path in paths for found in violations(path)] == []


def test_the_loop_is_one_page() -> None:
    (converse,) = (f for f in functions(ENGINE / "loop" / "run.py") if f.name == "converse")
    assert (converse.end_lineno or 0) - converse.lineno < MAX_LOOP


def test_the_run_context_stays_small_and_complete() -> None:
    tree = parsed(ENGINE / "loop" / "context.py")
    (context,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "RunContext")
    fields = [n for n in context.body if isinstance(n, ast.AnnAssign)]
    assert 0 < len(fields) <= MAX_CONTEXT_FIELDS
    assert [ast.unparse(f.target) for f in fields if "None" in ast.unparse(f.annotation)] == []
    assert "frozen=True" in map(ast.unparse, context.keywords)


def test_the_records_of_the_engine_are_structs() -> None:
    found = {
        path.relative_to(ENGINE).as_posix(): {
            node.name
            for node in ast.walk(parsed(path))
            if isinstance(node, ast.ClassDef)
            and any("dataclass" in ast.unparse(each) for each in node.decorator_list)
        }
        for path in mentioning("dataclass")
        if path.is_relative_to(ENGINE)
    }
    assert {path: names for path, names in found.items() if names} == DATACLASSES


@together("package", ["agcore", "agent_core", "kgent"])
def test_importing_a_package_loads_nothing_that_only_some_programs_need(package: str) -> None:
    program = f"import {package}, json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(  # noqa: S603 — our own interpreter and text
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout)}
    assert loaded & {*IMPORTED_WHEN_USED, "pydantic"} == set()
    assert package in loaded


VERSION_LOADS = {
    *("agent_core", "agent_core.loading", "agent_core.cli", "agent_core.cli.command"),
    *("agent_core.cli.exit_codes", "agent_core.cli.streams"),
}
HELP_LOADS = VERSION_LOADS | {
    *("agent_core.text", "agent_core.cli.arguments", "agent_core.cli.layout"),
    *("agent_core.cli.options", "agent_core.cli.commands", "agent_core.cli.commands.run"),
}
DEAR_ONES = {
    *("dataclasses", "datetime", "hashlib", "importlib.metadata", "inspect", "json"),
    *("msgspec", "pathlib", "shutil", "signal", "typing_extensions", "urllib.parse"),
}
"""Modules that take longer to import than the version and the help to be shown."""


@together(
    ("option", "ours", "dear"),
    [
        ("--version", VERSION_LOADS, DEAR_ONES | {"argparse", "re", "typing"}),
        ("--help", HELP_LOADS, DEAR_ONES),
    ],
)
def test_version_and_help_load_few_modules(option: str, ours: set[str], dear: set[str]) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(SOURCES)!r})\n"
        f"from agent_core.cli import main; assert main([{option!r}]) == 0\n"
        "print(*sys.modules)"
    )
    done = subprocess.run(  # noqa: S603 — our own interpreter and text; `-S`: nothing is loaded
        [sys.executable, "-S", "-c", program], capture_output=True, text=True, check=True
    )
    loaded = {*done.stdout.splitlines()[-1].split()}
    assert {name for name in loaded if name.startswith("agent_core")} <= ours
    assert not dear & loaded


@pytest.mark.parametrize("package", ["agent_core", "kgent"])
def test_help_loads_nothing_that_a_command_needs(package: str) -> None:
    program = (
        f"from {package}.cli import main; import json, sys; assert main(['--help']) == 0;"
        " print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(  # noqa: S603 — our own interpreter and text
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}
    assert loaded & {*IMPORTED_WHEN_USED, "asyncio", "pydantic"} == set()
