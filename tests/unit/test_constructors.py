"""A constructor that is given something wrong says which argument it was, and what was meant."""

import importlib
import inspect
import math
import pickle
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import AnyUrl, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

import agcore
from agcore.llm import CycleConfig, ModelSettings
from agent_core import (
    Agent,
    AgentCoreError,
    AgentRuntime,
    Budget,
    BudgetPool,
    ErrorCode,
    McpStdio,
    ModelConfig,
    PermissionDecision,
    RunOptions,
    TextBlock,
    ToolResult,
    Toolset,
    UserMessage,
    Worker,
)
from agent_core.errors import ArgumentError
from agent_core.testing import Calls, Says
from agent_core.types.fields import Fields
from kgent import RunOptions as KgentOptions
from tables import together

UNKNOWN: dict[str, tuple[Callable[[], object], str, str]] = {
    "a budget": (lambda: Budget(dollars=1), "dollars", "usd"),  # type: ignore[call-arg]
    "a budget, nearly": (lambda: Budget(total_token=1), "total_token", "mean total_tokens?"),  # type: ignore[call-arg]
    "a pool": (lambda: BudgetPool(request=1), "request", "mean requests?"),  # type: ignore[call-arg]
    "options": (lambda: RunOptions(max_turn=1), "max_turn", ""),  # type: ignore[call-arg]
    "an agent": (lambda: Agent("x", tool=[]), "tool", ""),  # type: ignore[call-arg]
    "a runtime": (lambda: AgentRuntime(modl="x:y"), "modl", ""),  # type: ignore[call-arg]
    "a worker": (lambda: Worker(queue=["x"]), "queue", ""),  # type: ignore[call-arg]
    "a model": (lambda: ModelConfig(provider="openai", nme="x"), "nme", "mean name?"),
    "a text": (lambda: TextBlock(txt="x"), "txt", "mean text?"),  # type: ignore[call-arg]
    "a result": (lambda: ToolResult(contents=[]), "contents", "mean content?"),  # type: ignore[call-arg]
    "a toolset": (lambda: Toolset("x", tool=[]), "tool", ""),  # type: ignore[call-arg]
    "a server": (lambda: McpStdio("x", "y", arg=["z"]), "arg", ""),  # type: ignore[call-arg]
    "a script": (lambda: Says(txt="x"), "txt", "mean text?"),  # type: ignore[call-arg]
    "settings": (lambda: ModelSettings(temprature=1), "temprature", ""),  # type: ignore[call-arg]
    "a cycle": (lambda: CycleConfig(max_tool_turn=1), "max_tool_turn", ""),  # type: ignore[call-arg]
    "an agcore agent": (lambda: agcore.Agent("x", tool=[]), "tool", ""),  # type: ignore[call-overload]
    "kgent's options": (lambda: KgentOptions(max_step=1), "max_step", "mean max_steps?"),  # type: ignore[call-arg]
}


@together("name", UNKNOWN)
def test_an_unknown_argument_is_named_and_a_field_with_what_was_meant(name: str) -> None:
    make, wrong, meant = UNKNOWN[name]
    with pytest.raises((TypeError, AgentCoreError)) as caught:
        make()
    said = str(caught.value)
    assert wrong in said
    assert meant in said
    assert "\n" not in said


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "a budget": (lambda: Budget(usd="much"), "usd"),  # type: ignore[arg-type]
    "a pool": (lambda: BudgetPool(usd="1"), "usd"),  # type: ignore[arg-type]
    "a message": (lambda: UserMessage(content=3), "content"),  # type: ignore[arg-type]
    "a message without content": (lambda: UserMessage(), "content"),  # type: ignore[call-arg]
    "a block": (lambda: UserMessage(content=[{"type": "text"}]), "content"),  # type: ignore[list-item]
    "a decision": (lambda: PermissionDecision(decision="no"), "decision"),  # type: ignore[arg-type]
    "a model": (lambda: ModelConfig(provider="openai", name=3), "name"),
    "a script": (lambda: Calls(calls="x"), "calls"),  # type: ignore[arg-type]
    "a toolset": (lambda: Toolset(3), "name"),  # type: ignore[arg-type]
    "a server": (lambda: McpStdio(3, "x"), "name"),  # type: ignore[arg-type]
    "a program": (lambda: McpStdio("x", 3), "command"),  # type: ignore[arg-type]
    "an agent": (lambda: Agent("x", tools=3), "tools"),  # type: ignore[arg-type]
    "a runtime": (lambda: AgentRuntime(persist="no"), "persist"),  # type: ignore[arg-type]
    "a folder": (lambda: AgentRuntime(3), "project_dir"),  # type: ignore[arg-type]
    "a worker": (lambda: Worker(concurrency="many"), "concurrency"),  # type: ignore[arg-type]
    "settings": (lambda: ModelSettings(temperature="hot"), "temperature"),  # type: ignore[arg-type]
    "a cycle": (lambda: CycleConfig(seed=True, temperature=[]), "seed"),  # type: ignore[arg-type]
}


@together("name", WRONG)
def test_an_argument_of_a_wrong_type_is_a_validation_error_that_names_it(name: str) -> None:
    make, wrong = WRONG[name]
    with pytest.raises(AgentCoreError) as caught:
        make()
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    assert wrong in caught.value.message
    assert "\n" not in caught.value.message
    assert "pydantic" not in caught.value.message
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own
    assert (str(again), again.code) == (str(caught.value), caught.value.code)


class Part(Fields):
    """A part of the model below."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["part"]
    size: int = 1


class Other(Fields):
    """The other kind of part."""

    type: Literal["other"]


class Whole(Fields):
    """Has a field for each kind of fault that the public models can report."""

    share: float = Field(default=1, gt=0, le=1, allow_inf_nan=False)
    turns: int = Field(default=1, ge=0, lt=10)
    step: int = Field(default=3, multiple_of=3)
    label: str = Field(default="x", min_length=1, max_length=5, pattern="^[a-z, ]*$")
    items: list[int] = Field(default=[], max_length=2)
    pair: tuple[int, int] = (1, 2)
    table: dict[str, int] = {}
    kind: Literal["x"] | Annotated[int, Field(gt=0)] = "x"
    parts: list[Annotated[Part | Other, Field(discriminator="type")]] = []
    folder: Path = Path()
    at: AwareDatetime | None = None
    url: AnyUrl | None = None


FAULTS: list[tuple[str, object, str]] = [
    ("share", 0, "share of Whole must be greater than 0, not 0"),
    ("share", 2.5, "share of Whole must be less than or equal to 1, not 2.5"),
    ("share", math.nan, "share of Whole must be a finite number, not nan"),
    ("share", "hot", "share of Whole must be a number, not 'hot'"),
    ("turns", -1, "turns of Whole must be greater than or equal to 0, not -1"),
    ("turns", 10, "turns of Whole must be less than 10, not 10"),
    ("turns", 1 << 20_000, "turns of Whole must be less than 10"),
    ("turns", 1.5, "turns of Whole must be an integer, not 1.5"),
    ("turns", [1], "turns of Whole must be an integer, not a list"),
    ("step", 4, "step of Whole must be a multiple of 3, not 4"),
    ("label", "", "label of Whole must have at least 1 character, not ''"),
    ("label", "A", "label of Whole must match pattern '^[a-z, ]*$', not 'A'"),
    ("label", 3, "label of Whole must be a text, not an int"),
    ("items", [1, 2, 3], "items of Whole must have at most 2 items, not 3"),
    ("items", [1, "x"], "items[1] of Whole must be an integer, not 'x'"),
    ("pair", (1,), "pair of Whole has too few items"),
    ("pair", ("x", None), "pair[0] of Whole must be an integer, not 'x'"),
    ("table", {"a": "x"}, "table.a of Whole must be an integer, not 'x'"),
    ("table", {"a b": None}, "table['a b'] of Whole must be an integer, not None"),
    ("table", {1: 1}, "a key of table of Whole must be a text, not an int"),
    ("kind", -3, "kind of Whole must be 'x' or greater than 0, not -3"),
    ("kind", "y", "kind of Whole must be 'x' or an integer, not 'y'"),
    ("parts", [{}], "parts[0] of Whole lacks type"),
    (
        "parts",
        [{"type": "p"}],
        "parts[0] of Whole: its type must be one of 'part', 'other', not 'p'",
    ),
    (
        "parts",
        [{"type": "part", "size": "x"}],
        "parts[0].size of Whole must be an integer, not 'x'",
    ),
    ("parts", [{"type": "part", "part": 1}], "parts[0] of Whole has an unknown field part"),
    ("folder", 3, "folder of Whole must be a path, not an int"),
    ("at", datetime(2020, 1, 1), "at of Whole must have timezone info"),  # noqa: DTZ001 - the fault
    ("url", "http://me:secret@[", "url of Whole must be a valid URL"),
]


@together(("field", "value", "said"), FAULTS)
def test_what_is_said_about_a_value_is_true(field: str, value: object, said: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        Whole(**{field: value})  # type: ignore[arg-type]
    assert caught.value.message == said
    assert caught.value.details == {"option": field}
    assert isinstance(caught.value, ValueError)


def test_the_fields_of_public_models_say_which_number_was_wrong() -> None:
    with pytest.raises(ArgumentError, match=r"timeout_ms of ModelConfig must .*greater.*, not 0$"):
        ModelConfig(provider="openai", name="x", timeout_ms=0)
    with pytest.raises(ArgumentError, match=r"content\[0\]\.text of UserMessage .* not an int$"):
        UserMessage(content=[{"type": "text", "text": 3}])  # type: ignore[list-item]


def test_a_worker_takes_lists_and_none_for_its_lists() -> None:
    address = "postgresql://nobody@127.0.0.1:9/none"
    assert Worker(database_url=address, queues=None, places=["host:a"])
    with pytest.raises(AgentCoreError, match="queues"):
        Worker(database_url=address, queues=[3])  # type: ignore[list-item]


def test_fields_are_given_by_name() -> None:
    with pytest.raises(TypeError, match=r"PermissionDecision.*decision, reason"):
        PermissionDecision("deny")  # type: ignore[call-arg]


@pytest.mark.parametrize("module", ["agent_core", "agcore", "agcore.llm", "kgent"])
def test_no_public_class_shows_pydantics_own_error(module: str) -> None:
    raw: list[str] = []
    names: list[str] = importlib.import_module(module).__all__
    for name in names:
        kind = getattr(sys.modules[module], name)
        if inspect.isclass(kind) and issubclass(kind, BaseModel):
            try:
                kind(no_such_field=1)
            except ValidationError:
                raw.append(name)
            except (AgentCoreError, TypeError):
                pass
    assert raw == []


def test_data_that_does_not_fit_is_still_pydantics_own_error() -> None:
    with pytest.raises(ValidationError):
        Budget.model_validate({"dollars": 1})


def test_a_model_that_holds_another_one_names_the_place() -> None:
    class Order(BaseModel):
        limit: Budget

    assert Order(limit=Budget(usd=1)).limit == Budget(usd=1)
    with pytest.raises(ValidationError):
        Order.model_validate({"limit": {"dollars": 1}})


def test_the_constructors_keep_their_signatures() -> None:
    assert "max_turns" in inspect.signature(RunOptions).parameters
    assert "usd" in inspect.signature(Budget).parameters
    assert next(iter(inspect.signature(AgentRuntime).parameters)) == "project_dir"
