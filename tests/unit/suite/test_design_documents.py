"""Every place that the tables of the design documents name exists, and the pages are theirs."""

import argparse
import dis
import importlib
import inspect
import re
import runpy
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from agent_core.cli.arguments import build_parser
from agent_core.config.models import Config
from kgent.cli import build_parser as build_kgent_parser
from tables import together

pytestmark = pytest.mark.checked

ROOT = Path(__file__).parents[3]
WRITER: Mapping[str, Any] = runpy.run_path(str(ROOT / "docs" / "write_design_documents.py"))
PACKAGES = {"agcore", "agent_core", "kgent"}
ENDS = re.compile(r"(?P<name>[\w.]+)(?:\((?P<parameter>\w*)\))?")


def rows() -> Iterator[tuple[str, str, Any]]:
    """Each row, with a name for reports and the home of its section."""
    for table in WRITER["tables"]():
        for section in table.sections:
            for row in section.rows:
                yield f"{table.number}, {section.title}, {row.name}", section.home, row


@cache
def fields_of(owner: type) -> set[str]:
    """The fields of a class: declared ones, and what its constructor assigns."""
    found: set[str] = set()
    for each in inspect.getmro(owner):
        found |= vars(each).get("__annotations__", {}).keys()
        made = vars(each).get("__init__")
        if inspect.isfunction(made):
            steps = dis.get_instructions(made)
            found |= {step.argval for step in steps if step.opname == "STORE_ATTR"}
    return found


def imported(path: str) -> tuple[object, list[str]]:
    """The module that a dotted path begins with, and the names that follow."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        try:
            return importlib.import_module(".".join(parts[:end])), parts[end:]
        except ModuleNotFoundError:
            continue
    raise LookupError(f"there is no module {path}")


def look_up_name(path: str) -> str | None:
    """Return the reason why a Python name is not there as written; None if it is."""
    match = ENDS.fullmatch(path)
    assert match is not None, path
    found, names = imported(match["name"])
    for place, name in enumerate(names):
        if hasattr(found, name):
            is_class = inspect.isclass(found)  # a property of it must not be called
            found = inspect.getattr_static(found, name) if is_class else getattr(found, name)
            found = getattr(found, "__func__", found)
        elif inspect.isclass(found) and name in fields_of(found) and place == len(names) - 1:
            return "it is a field" if match["parameter"] is not None else None
        else:
            return f"there is no {name}"
    if match["parameter"] is None:
        return "it is called with ()" if inspect.isroutine(found) else None
    if not callable(found):
        return "it is not callable"
    if match["parameter"] and match["parameter"] not in inspect.signature(found).parameters:
        return f"it has no parameter {match['parameter']}"
    return None


@cache
def parsers() -> Mapping[str, Any]:
    return {"soong-agent": build_parser(), "kgent": build_kgent_parser()}


def look_up_command(line: str) -> str | None:
    """Return the reason why a command line is unknown; None if each word and option is known."""
    program, *words = line.split()
    parser: Any = parsers()[program]
    for word in words:
        actions: list[Any] = parser._actions
        if word.startswith("-"):
            if not any(word in action.option_strings for action in actions):
                return f"it has no option {word}"
            continue
        below = [each for each in actions if each.nargs == argparse.PARSER]
        chosen: Any = below[0].choices.get(word) if below else None
        if chosen is not None:
            parser = chosen
        elif below:
            return f"it has no command {word}"
    return None


def look_up_setting(place: str) -> str | None:
    """Return the reason why `[section] key` is no setting; None if it is."""
    match = re.fullmatch(r"\[([\w.]+)\]\s*(\w*)", place)
    assert match is not None, place
    model: Any = Config
    for key in [*match[1].split("."), *filter(None, [match[2]])]:
        fields = getattr(model, "model_fields", {})
        if key not in fields:
            return f"there is no setting {key}"
        model = fields[key].annotation
    return None


@cache
def contracts() -> set[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return {each["id"] for each in settings["tool"]["importlinter"]["contracts"]}


def look_up_contract(line: str) -> str | None:
    """Return the reason why `lint-imports --contract ID` checks nothing; None if it does."""
    name = line.removeprefix("lint-imports --contract ")
    return None if name in contracts() else f"there is no import contract {name}"


def look_up_file(place: str) -> str | None:
    """Return the reason why a file, a heading or a test is not there; None if it is."""
    path, _, test = place.partition("::")
    path, _, heading = path.partition("#")
    if not (ROOT / path).exists():
        return "there is no such file"
    text = (ROOT / path).read_text("utf-8") if test or heading else ""
    if test and not re.search(rf"^(async )?def {re.escape(test)}\(", text, re.M):
        return f"it has no test {test}"
    anchors = {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.+)$", text, re.M)
    }
    return f"it has no heading {heading}" if heading and heading not in anchors else None


def look_up(place: str, home: str) -> str | None:
    """Return the reason why a place does not exist as written; None if it does."""
    if place.startswith("["):
        return look_up_setting(place)
    if place.startswith("lint-imports "):
        return look_up_contract(place)
    if place.split()[0] in {"soong-agent", "kgent"} and "." not in place.split()[0]:
        return look_up_command(place)
    if "/" in place:
        return look_up_file(place)
    is_whole = not home or place.partition(".")[0] in PACKAGES
    return look_up_name(place if is_whole else f"{home}.{place}")


def test_every_place_exists_as_it_is_written() -> None:
    found = list(rows())
    assert len(found) > 150
    wrong = [
        f"{where}: {row.place}: {reason}"
        for where, home, row in found
        if row.place and (reason := look_up(row.place, home))
    ]
    assert wrong == []


def test_a_row_without_a_place_has_a_reason_and_every_reason_is_in_both_languages() -> None:
    unexplained = [where for where, _, row in rows() if not row.place and not row.difference]
    assert unexplained == []
    in_one = [where for where, _, row in rows() if bool(row.difference) != bool(row.difference_zh)]
    assert in_one == []


@together(
    ("place", "reason"),
    [
        ("agcore.llm.LlmCycle.usage", "it is called with ()"),
        ("agcore.llm.LlmCycle.run_id()", "it is not callable"),
        ("agcore.llm.HookContext.none", "there is no none"),
        ("agcore.llm.HookContext(none)", "it has no parameter none"),
        ("agcore.none.Name", "there is no none"),
        ("docs/none.md", "there is no such file"),
        ("docs/agcore.md#none", "it has no heading none"),
        ("tests/unit/agcore/test_plans.py::test_none", "it has no test test_none"),
        ("soong-agent sessions none", "it has no command none"),
        ("soong-agent sessions list --none", "it has no option --none"),
        ("kgent none", "it has no command none"),
        ("lint-imports --contract none", "there is no import contract none"),
        ("[context] none", "there is no setting none"),
    ],
)
def test_a_place_that_does_not_exist_is_found(place: str, reason: str) -> None:
    assert look_up(place, "") == reason


def test_the_pages_are_written_from_the_tables() -> None:
    docs = ROOT / "docs"
    changed = [
        page for page, text in WRITER["pages"]().items() if (docs / page).read_text("utf-8") != text
    ]
    assert changed == [], "run make reference"
