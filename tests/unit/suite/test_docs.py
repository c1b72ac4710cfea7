"""The documents say what the code does: settings, links, and nothing of anybody's machine."""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from agent_core.config.models import Config, ModelConfig, ModelProfile
from isolation import Home
from tables import together

pytestmark = pytest.mark.checked

ROOT = Path(__file__).parents[3]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "bench" / "README.md"])
TABLE_OF_MAP = {
    "overrides": '"<tool>"',
    "tool_overrides": '"mcp.<server_id>.<tool>"',
}

Setting = tuple[str, str, str]
"""Section heading, key, default as TOML."""


def table_in(annotation: Any) -> type[BaseModel] | None:
    """The table a field holds, once, in a list or by name; a name-or-table is a plain value."""
    match get_origin(annotation), [a for a in get_args(annotation) if a is not NoneType]:
        case None, _ if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return annotation
        case origin, [*_, inner] if origin in {list, dict}:
            return table_in(inner)
        case origin, [inner, *_] if origin is Annotated:
            return table_in(inner)
        case origin, [inner] if origin in {Union, UnionType}:
            return table_in(inner)
        case _:
            return None


def default_of(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    return "none" if value is None else f"`{json.dumps(value)}`"


def settings(model: type[BaseModel], *path: str, is_list: bool = False) -> Iterator[Setting]:
    name = ".".join(path)
    heading = f"`[[{name}]]`" if is_list else f"`[{name}]`"
    for key, field in model.model_fields.items():
        if key in {"model_fallbacks", "model_overrides"}:
            continue  # each is a [model], whole or in part
        table, origin = table_in(field.annotation), get_origin(field.annotation)
        if table is None:
            yield heading, key, default_of(field)
        else:
            below = (*path, key, TABLE_OF_MAP[key]) if origin is dict else (*path, key)
            yield from settings(table, *below, is_list=origin is list)


def documented() -> Iterator[Setting]:
    heading = ""
    for line in (ROOT / "docs" / "settings.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        elif row := re.fullmatch(r"\| `(\w+)` \| (.+?) \| .+ \|", line):
            yield heading, row[1], row[2]


def test_every_setting_is_documented_with_its_default_and_no_other() -> None:
    in_code = list(settings(Config))
    assert len(in_code) > 80
    assert sorted(documented()) == sorted(in_code)


def test_a_profile_has_keys_of_a_model_and_no_other() -> None:
    assert ModelProfile.model_fields.keys() <= ModelConfig.model_fields.keys()


@together("path", DOCUMENTS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_relative_link_leads_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    targets = re.findall(r"\]\((?!https?://|#)([^)#\s]+)", text)
    assert [t for t in targets if not (path.parent / t).exists()] == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site (`zensical.toml`) write them."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", prose, re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        found.add(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return found


@together("path", DOCUMENTS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_anchor_of_a_link_is_a_heading(path: Path) -> None:
    links = re.findall(r"\]\((?!https?://)([^)#\s]*)#([^)\s]+)\)", path.read_text(encoding="utf-8"))
    pages = [(path if not target else path.parent / target, anchor) for target, anchor in links]
    assert [a for page, a in pages if page.suffix == ".md" and a not in anchors(page)] == []


def test_the_change_check_builds_the_site() -> None:
    steps = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert [s for s in steps if s.startswith("make ")] == [
        "make check",
        "make docs",
        "make guard",
        "make test-long",
        "make test",
    ]


def test_no_file_holds_a_path_of_one_machine_or_the_address_of_a_package_index() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    private = re.compile(rf"{re.escape(str(ROOT))}\b|https?://\S+/simple/")
    found = {
        name
        for name in listed.stdout.split("\0")
        if name
        and (ROOT / name).is_file()
        and private.search((ROOT / name).read_bytes().decode("utf-8", "replace"))
    }
    assert found - {"tests/unit/suite/test_docs.py"} == set()


def test_the_picture_of_the_layers_is_the_contract_that_is_checked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (checked,) = (c["layers"] for c in contracts if c["id"] == "layers")
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawn = re.findall(r"^│ (\w+(?: \| \w+)*) ", page, re.MULTILINE)
    assert drawn == [re.sub(r"[()]", "", layer) for layer in checked]


def programs() -> Iterator[tuple[str, str]]:
    pages = (
        ROOT / "docs" / f"{name}.md" for name in ("conversations", "sdk", "providers", "telemetry")
    )
    for path in (ROOT / "README.md", *pages):
        blocks = re.findall(r"^```python\n(.+?)^```$", path.read_text("utf-8"), re.S | re.M)
        for number, block in enumerate(blocks, start=1):
            yield f"{path.stem}-{number}", block


@pytest.mark.parametrize("program", [pytest.param(code, id=name) for name, code in programs()])
def test_a_program_in_the_documents_runs_as_it_stands(
    program: str, home: Home, project: Path
) -> None:
    (project / "path" / "to" / "project").mkdir(parents=True)
    replies = home.write("replies.json", json.dumps(["Answered."] * 4))
    provider = "mine" if '"mine"' in program else "scripted"
    program = program.replace('"openai:gpt-5-mini"', repr(f"scripted:{replies}"))
    home.write_config(f'[model]\nprovider = "{provider}"\nname = "x"\npath = "{replies}"\n')
    file = home.path.with_name(f"{home.path.name}.py")  # the home and the project are its own
    file.write_text(program, encoding="utf-8")
    done = subprocess.run(  # noqa: S603 - our own text, in our own interpreter
        [sys.executable, str(file)],
        cwd=project,
        env=home.env(PYTHONWARNINGS="error"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "failed" not in done.stdout
    assert done.stdout.strip() or "assert " in program


def test_the_sample_for_contributors_passes_ruff_as_a_file_of_the_project(tmp_path: Path) -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (sample,) = re.findall(r"^```python\n(.+?)^```$", page, re.S | re.M)
    (tmp_path / "__init__.py").touch()
    file = tmp_path / "count_lines.py"
    file.write_text(sample, encoding="utf-8")
    settings = ("--config", str(ROOT / "pyproject.toml"), "--no-cache")
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(  # noqa: S603 - our own program
            [sys.executable, "-m", "ruff", *command, *settings, str(file)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_is_a_landing_page() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 900


def test_the_toolkit_begins_the_same_in_the_readme_and_on_its_page() -> None:
    blocks = [code for name, code in programs() if name.startswith("README") and "agcore" in code]
    page = (ROOT / "docs" / "agcore.md").read_text(encoding="utf-8")
    assert blocks == re.findall(r"^```python\n(.+?)^```$", page, re.S | re.M)[:1]


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    site = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    folders = ("", "agcore/", "design_documents/", "recipes/", "reference/", "tutorials/", "zh/**/")
    pages = [page for folder in folders for page in ROOT.glob(f"docs/{folder}*.md")]
    named = {name for name in re.findall(r'= "(\S+\.md)" }', site) if name.startswith("docs/")}
    assert named - {"docs/decisions/README.md"} == {p.relative_to(ROOT).as_posix() for p in pages}


def configurations() -> Iterator[tuple[str, str]]:
    for path in DOCUMENTS:
        blocks = re.findall(r"^```toml\n(.+?)^```$", path.read_text("utf-8"), re.S | re.M)
        for number, block in enumerate(blocks, start=1):
            yield f"{path.stem}-{number}", block


@together("block", [pytest.param(text, id=name) for name, text in configurations()])
def test_a_configuration_in_the_documents_is_accepted(block: str) -> None:
    table = tomllib.loads(block)
    table["model"] = {"provider": "ollama", "name": "x", **table.get("model", {})}
    Config.model_validate(table)


@together("provider", ["openai", "anthropic", "ollama", "gemini", "bedrock", "vertex"])
def test_every_option_of_a_provider_is_documented(provider: str) -> None:
    page = (ROOT / "docs" / "model-calls.md").read_text(encoding="utf-8")
    listed = re.search(rf"^- `{provider}`: (.+?)\.$", page, re.S | re.M)
    assert listed is not None
    module = {"openai": "chat_completions"}.get(provider, provider)
    known: frozenset[str] = import_module(f"agent_core.providers.{module}").KNOWN_OPTIONS
    assert {*re.findall(r"`(\w+)`", listed[1]), "extra_body", "headers"} == known
