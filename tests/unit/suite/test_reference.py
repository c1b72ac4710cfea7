"""The pages of the reference are what the source says, and every name is where its page says."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_core import AgentRuntime, BudgetPool, Pages, RunHandle, Session, Tasks
from tables import together

pytestmark = pytest.mark.checked

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs" / "reference"
IMPORTED = re.compile(r"(?:Every name is i|^I)mported from `(\S+?)`", re.MULTILINE)
PAGES = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")
WRITE = """
import gc, runpy, sys
gc.disable()  # what is made is kept: a quarter of the time
pages = runpy.run_path(sys.argv[1])["pages"]
import pathlib
for name, text in pages().items():
    pathlib.Path(sys.argv[2], name).write_text(text, encoding="utf-8")
"""


@pytest.mark.timeout(60)
def test_the_reference_is_what_the_source_says(tmp_path: Path) -> None:
    done = subprocess.run(  # noqa: S603 - our own program, in our own interpreter
        [sys.executable, "-c", WRITE, str(ROOT / "docs" / "write_reference.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    now = {path.name: path.read_text("utf-8") for path in tmp_path.iterdir()}
    kept = {path.name: path.read_text("utf-8") for path in FOLDER.glob("*.md")}
    assert [name for name in now.keys() | kept.keys() if now.get(name) != kept.get(name)] == [], (
        "run make reference"
    )


@pytest.mark.parametrize(
    ("what", "kept"),
    [("tool_schemas", "assets/tool_schemas.json"), ("schema", "storage/schema.sql")],
)
def test_what_a_start_reads_is_what_it_would_build(what: str, kept: str) -> None:
    write = ROOT / "docs" / f"write_{what}.py"
    program = f"import runpy; print(runpy.run_path({str(write)!r})[{what!r}](), end='')"
    done = subprocess.run(  # noqa: S603 - our own program, in our own interpreter
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    text = (ROOT / "src" / "agent_core" / kept).read_text("utf-8")
    assert done.stdout == text, "run make reference"


def documented() -> Iterator[tuple[str, str, str]]:
    """Page, module and name: a heading of a name, or one of the types at the end of a page."""
    for page in PAGES:
        text = page.read_text("utf-8")
        module = IMPORTED.search(text)
        assert module is not None, page.name
        for name in re.findall(r"^#{1,3} `(\w+)`$", text, re.M):
            yield page.name, module[1], name
        for name, home in re.findall(r"^- `(\w+)` \(`([\w.]+)`\)", text, re.M):
            yield page.name, home, name


def test_every_name_can_be_imported_from_where_its_page_says() -> None:
    found = list(documented())
    assert len(found) > 200
    assert {module for _, module, _ in found} >= {"agent_core", "agent_core.testing", "kgent"}
    missing = [
        f"{page}: {module}.{name}"
        for page, module, name in found
        if not hasattr(importlib.import_module(module), name)
    ]
    assert missing == []


PACKAGES = (
    *("agent_core", "agent_core.testing", "agent_core.serve", "agcore.llm", "agcore.agent"),
    *("agent_core.frontends.ag_ui", "agent_core.frontends.ai_sdk", "agent_core.frontends.parts"),
    "kgent",
)


@together("package", PACKAGES)
def test_every_exported_name_has_a_heading_on_one_page(package: str) -> None:
    headed = [name for page, module, name in documented() if module == package and page]
    exported = importlib.import_module(package).__all__
    assert sorted(exported) == sorted(name for name in headed if name in set(exported))


def test_every_link_of_the_index_leads_to_a_heading() -> None:
    index = (FOLDER / "README.md").read_text("utf-8")
    links = re.findall(r"\]\(([\w-]+\.md)#(\w+)\)", index)
    assert len(links) > 150
    anchors = {
        (page.name, heading.lower())
        for page in PAGES
        for heading in re.findall(r"^#{1,3} `(\w+)`$", page.read_text("utf-8"), re.M)
    }
    assert set(links) - anchors == set()


def test_a_guide_and_the_reference_name_every_public_method() -> None:
    docs = FOLDER.parent
    guides = [page for page in docs.rglob("*.md") if not {"reference", "zh"} & {*page.parts}]
    words = {word for page in guides for word in re.findall(r"\w+", page.read_text("utf-8"))}
    shown = {word for page in PAGES for word in re.findall(r"\w+", page.read_text("utf-8"))}
    missing = [
        f"{owner.__name__}.{name}"
        for owner in (AgentRuntime, Session, RunHandle, Pages, Tasks, BudgetPool)
        for name, member in inspect.getmembers(owner)
        if not name.startswith("_") and (callable(member) or isinstance(member, property))
        if name not in words & shown
    ]
    assert missing == []


def documented_methods() -> Iterator[tuple[str, str, str, list[str]]]:
    """Page, module, dotted name and parameters of each signature below a method's heading."""
    heading = re.compile(r"^#{2,4} `(\w+\.\w+)`\n\n((?:```python\n.*?```\n+)+)", re.M | re.S)
    for page in PAGES:
        text = page.read_text("utf-8")
        module = IMPORTED.search(text)
        assert module is not None, page.name
        for name, blocks in heading.findall(text):
            for block in re.findall(r"```python\n(.*?)```", blocks, re.S):
                (function,) = ast.parse(f"{block.rstrip()}: ...").body
                assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef), block
                shown = function.args
                given = [*shown.posonlyargs, *shown.args, *shown.kwonlyargs]
                yield page.name, f"{module[1]}.{name}", function.name, [each.arg for each in given]


def test_every_signature_has_the_name_and_the_parameters_of_its_method() -> None:
    found = list(documented_methods())
    assert len(found) > 150
    wrong: list[str] = []
    for page, path, shown, parameters in found:
        module, owner, method = path.rsplit(".", 2)
        function = getattr(getattr(importlib.import_module(module), owner), method)
        real = inspect.signature(function).parameters
        if shown != method or not set(parameters) <= {*real, "kwargs"} - {"self"}:
            wrong.append(f"{page}: {path}: def {shown}({', '.join(parameters)})")
    assert wrong == []
