"""Exceptions and records survive `pickle` and `copy`: what a process pool sends back is whole.

Every class of the packages is found by itself, so a new one is tested as well.
"""

import copy
import multiprocessing
import pickle
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import cache
from inspect import Parameter, isabstract, signature
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints, is_typeddict

import msgspec
import pytest
from pydantic import AwareDatetime, BaseModel, ValidationError

from agcore.agent import AgentError
from agcore.agent.task import Plan, Step
from agcore.llm import CostTracker, LlmError
from agent_core import (
    Agent,
    AgentCoreError,
    ErrorCode,
    GuardStop,
    RunError,
    RunResult,
    RunStatus,
    ToolRetry,
)
from agent_core.errors import ParkedError
from agent_core.tools.base import OutputMisfitError
from agent_core.types import Usage
from all_classes import classes, names_for
from kgent.engine.mock import MockContinuation
from pool_work import run_in_pool
from tables import together

pytestmark = pytest.mark.timeout(180)  # every module is loaded

Kind = type[Any]
NOW = datetime(2026, 11, 28, 12, 30, tzinfo=UTC)
PLAIN: dict[Any, Any] = {
    str: "x",
    bool: True,
    int: 3,
    float: 1.5,
    bytes: b"x",
    Decimal: Decimal("1.5"),
    datetime: NOW,
    date: NOW.date(),
    timedelta: timedelta(seconds=3),
    Path: Path("a/b"),
    PurePath: PurePath("a/b"),
    type(None): None,
    None: None,
    AwareDatetime: NOW,
    Any: {"any": [1, "x", None]},
    object: ["anything"],
}
SEQUENCES = (list, Sequence, Iterable, Collection)
SETS = (set, frozenset)
MAPPINGS = (dict, Mapping)
CONTAINERS = (*SEQUENCES, *SETS, *MAPPINGS, tuple)

PROCESS_BOUND = {
    *("agcore.agent.runtime.RuntimeBundle", "agcore.llm.calls.ModelCalls"),
    "agcore.llm.calls.ProviderModel",
    *("agent_core.extensions.JudgedCall", "agent_core.loop.guards.RunGuard"),
    "agcore.llm.calls.CallerRun",
    "agent_core.testing.tools.FakeToolContext",
    *(f"agent_core.tools.base.{name}" for name in ("Action", "Tool", "ToolContext")),
    "agent_core.tools.decorator.FunctionTool",
    *("kgent.engine.base.AgentRunRequest", "kgent.tools.calls.ToolCallScope"),
    *("kgent.tools.calls.RecordedCalls", "kgent.tools.registry.ToolDefinition"),
    *("kgent.runtime.context.RunContext", "kgent.runtime.task.Means"),
}
"""Classes whose values belong to one process: they hold functions, connections or locks."""

NOT_RECORDS = {
    "agcore.llm.calls.CallTurn": "work in progress",
    "agent_core.process.jail.Jail": "the supervisor sends it as JSON",
}
"""Dataclasses of the engine that no program gets."""


class BoundError(Exception):
    """A value of this type belongs to one process."""


def example_of(hint: Any, depth: int = 0) -> Any:
    """Make a value of a type.

    Raises:
        BoundError: there is no such value that another process could have.
    """
    if isinstance(hint, TypeVar):
        return example_of(hint.__bound__ or str, depth)
    if hint in PLAIN:
        return PLAIN[hint]
    kind, parts = get_origin(hint) or hint, get_args(hint)
    if kind is Literal:
        return parts[0]
    if kind in {typing.Annotated, typing.Required, typing.NotRequired}:
        return example_of(parts[0], depth)
    if kind in {typing.Union, types.UnionType}:
        return first_of(parts, depth)
    if kind in CONTAINERS:
        return container_of(kind, parts or (str, str), depth + 1)
    if isinstance(kind, type):
        return object_of(kind, depth + 1)
    raise BoundError(hint)


def container_of(kind: Any, parts: Sequence[Any], depth: int) -> Any:
    if depth > 4:
        return {} if kind in MAPPINGS else ()
    if kind in MAPPINGS:
        return {example_of(parts[0], depth): example_of(parts[1], depth)}
    if kind is tuple:
        return tuple(example_of(part, depth) for part in parts if part is not ...)
    values = [example_of(parts[0], depth)]
    return cast("object", kind(values)) if kind in SETS else values


def object_of(kind: Kind, depth: int) -> Any:
    if issubclass(kind, Enum):
        return next(iter(cast("Iterable[Any]", kind)))
    if is_typeddict(kind):
        hints = get_type_hints(kind, localns=names_for(kind))
        return {name: example_of(each, depth) for name, each in hints.items()}
    if issubclass(kind, BaseException) or is_record(kind):
        return next(iter(examples(kind, depth)))
    raise BoundError(kind)


def first_of(kinds: Sequence[Any], depth: int) -> Any:
    for kind in kinds:
        try:
            value = example_of(kind, depth)
        except BoundError:
            continue
        if value is not None:
            return value
    if type(None) in kinds:
        return None
    raise BoundError(kinds)


def a_plan() -> Plan:
    plan = Plan.of("sell lamps", ["count", "sell"])
    plan.steps[0].start()
    plan.steps[0].fail(AgentError.Llm(LlmError.RateLimit("too many", retry_after_s=3.0)))
    return plan


MADE: dict[Kind, Callable[[], Any]] = {
    Agent: lambda: Agent("a", "Answer.", tools=["code.read_file"], max_turns=3),
    MockContinuation: lambda: MockContinuation(nudged=["again"]),
    OutputMisfitError: lambda: OutputMisfitError([{"path": "$.a", "message": "is missing"}]),
    ParkedError: lambda: ParkedError("req_1", "req_2"),
    Plan: a_plan,
}
"""Values of the classes whose arguments the annotations do not describe."""


def is_record(kind: Kind) -> bool:
    return is_dataclass(kind) or issubclass(kind, BaseModel | msgspec.Struct)


def builtin_bases(kind: Kind) -> list[Kind]:
    return [each for each in kind.__mro__ if each.__module__ == "builtins"]


def arguments_of(kind: Kind) -> dict[str, tuple[Any, bool]]:
    """The arguments of a class: their types, and whether they are required."""
    hints = get_type_hints(kind, localns=names_for(kind))
    if issubclass(kind, BaseModel):
        return {n: (f.annotation, f.is_required()) for n, f in kind.model_fields.items()}
    if is_dataclass(kind):
        return {
            each.name: (
                hints[each.name],
                each.default is MISSING and each.default_factory is MISSING,
            )
            for each in fields(kind)
            if each.init
        }
    if issubclass(kind, msgspec.Struct):
        return {
            each.name: (hints[each.name], each.required) for each in msgspec.structs.fields(kind)
        }
    found: dict[str, tuple[Any, bool]] = {}
    if kind.__init__ in {each.__init__ for each in builtin_bases(kind)}:
        return {"message": (str, True)}
    known = get_type_hints(kind.__init__, localns=names_for(kind))
    for each in signature(kind).parameters.values():
        if each.kind in {Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL}:
            continue
        found[each.name] = known.get(each.name, str), each.default is Parameter.empty
    return found


def examples(kind: Kind, depth: int = 0) -> Iterator[Any]:
    """Make a value with all fields, and one with the required fields only.

    Raises:
        BoundError: a required field belongs to one process.
    """
    if depth > 6 or isabstract(kind):
        raise BoundError(kind)
    if kind in MADE:
        yield MADE[kind]()
        return
    given: dict[str, Any] = {}
    required: dict[str, Any] = {}
    for name, (hint, is_required) in arguments_of(kind).items():
        try:
            given[name] = example_of(hint, depth)
        except BoundError:
            if is_required:
                raise BoundError(f"{kind.__name__}.{name}: {hint}") from None
        if is_required:
            required[name] = given[name]
    yield made(kind, given)
    yield made(kind, required)


def made(kind: Kind, given: dict[str, Any]) -> Any:
    if not issubclass(kind, BaseModel):
        return kind(*given.values()) if "message" in given and len(given) == 1 else kind(**given)
    try:
        return kind(**given)
    except (ValidationError, AgentCoreError):
        return kind.model_construct(**given)


def facts(value: Any) -> Any:
    """A value as something that can be compared."""
    if isinstance(value, BaseException):
        own = {name: facts(each) for name, each in vars(value).items()}
        return type(value), str(value), repr(value), facts(list(value.args)), own
    if isinstance(value, Step | CostTracker):
        return type(value), {name: facts(each) for name, each in vars(value).items()}
    if isinstance(value, BaseModel):
        own = {name: facts(each) for name, each in vars(value).items()}
        return type(value), own, value.model_fields_set
    if isinstance(value, Mapping):
        return {facts(key): facts(each) for key, each in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [facts(each) for each in cast("list[Any]", value)]
    if is_dataclass(value):
        return type(value), {each.name: facts(getattr(value, each.name)) for each in fields(value)}
    return value


WAYS: list[Callable[[Any], Any]] = [
    *(
        lambda value, protocol=protocol: pickle.loads(pickle.dumps(value, protocol))  # noqa: S301
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    ),
    copy.copy,
    copy.deepcopy,
    lambda value: pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(value)))),  # noqa: S301
]


def assert_survives(value: Any) -> None:
    expected = facts(value)
    for way in WAYS:
        assert facts(way(value)) == expected


def path_of(kind: Kind) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


@cache
def all_of(base: Kind) -> list[Kind]:
    return sorted(set(classes(base)), key=path_of)


def test_every_exception_survives() -> None:
    kinds = [kind for kind in all_of(BaseException) if not kind.__name__.startswith("_")]
    assert len(kinds) > 50
    for kind in kinds:
        for error in islice(examples(kind), 2):
            error.add_note("a note")
            assert_survives(error)


def test_every_record_survives() -> None:
    kinds: list[Kind] = [*all_of(BaseModel), *(k for k in all_of(object) if is_dataclass(k))]
    assert len(kinds) > 300
    bound: set[str] = set()
    for kind in kinds:
        if kind.__name__.startswith("_") or path_of(kind) in NOT_RECORDS:
            continue
        try:
            values = list(examples(kind))
        except BoundError:
            bound.add(path_of(kind))
            continue
        for value in values:
            assert_survives(value)
    assert bound == PROCESS_BOUND


class ShopError(AgentCoreError):
    """An error of a program, with an `__init__` and an attribute of its own."""

    __slots__ = ("aisle",)

    def __init__(self, item: str, *, left: int) -> None:
        super().__init__(ErrorCode.VALIDATION_ERROR, f"only {left} of {item}", details={"n": left})
        self.item = item
        self.aisle = 7


class AsksAgain(ToolRetry):
    def __init__(self, item: str) -> None:
        super().__init__(f"say how many of {item}")
        self.item = item


class Stops(GuardStop):
    def __init__(self, rule: int, text: str) -> None:
        super().__init__(f"rule {rule}: {text}")
        self.rule = rule


@dataclass(frozen=True)
class SealedError(AgentCoreError):
    """An error of a program that refuses changes."""

    item: str

    def __post_init__(self) -> None:
        own = {"code": ErrorCode.TOOL_ERROR, "message": self.item, "retryable": False}
        for name, value in own.items():
            object.__setattr__(self, name, value)


def own_errors() -> list[Exception]:
    return [
        SealedError("lamps"),
        ShopError("lamps", left=3),
        AsksAgain("lamps"),
        Stops(3, "no lamps"),
        AgentError.Llm(LlmError.Request("no", status=503, retry_after_s=2.5)),
        RunError(ErrorCode.TIMEOUT, "late", a_result(), retryable=True, details={"after_s": 3}),
    ]


def a_result() -> RunResult[Any]:
    usage = Usage(input_tokens=3, output_tokens=4, total_tokens=7, cost=0.5)
    return RunResult(
        output={"left": 3},
        text="3",
        status=RunStatus.FAILED,
        usage=usage,
        session_id="s1",
        run_id="run_1",
    )


@together("error", own_errors(), ids=lambda error: type(error).__name__)
def test_the_errors_of_a_program_survive_with_their_own_arguments(error: Exception) -> None:
    object.__setattr__(error, "__notes__", ["seen at the door"])
    assert_survives(error)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert again.__notes__ == ["seen at the door"]
    assert getattr(again, "aisle", None) == getattr(error, "aisle", None)


def test_a_text_is_not_doubled() -> None:
    error = ToolRetry("say how many")
    assert str(copy.copy(error)) == str(error)
    assert str(error).count("Call the tool again") == 1


def test_what_caused_an_error_stays_behind_as_with_every_exception() -> None:
    try:
        try:
            raise OSError("gone")
        except OSError as cause:
            raise ShopError("lamps", left=1) from cause
    except ShopError as error:
        again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert again.__cause__ is None
    assert again.__traceback__ is None
    assert str(again) == "only 1 of lamps"


def test_a_plan_and_a_sum_of_usage_survive() -> None:
    tracker = CostTracker()
    tracker.add(Usage(input_tokens=3, total_tokens=3))
    for value in (a_plan().steps[0], tracker):
        assert_survives(value)


@pytest.mark.long
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_failed_run_leaves_its_process_pool_usable(method: str) -> None:
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        failed = pool.submit(run_in_pool, 1).exception(timeout=100)
        result = pool.submit(run_in_pool, 2).result(timeout=100)
    assert isinstance(failed, RunError)
    assert (failed.code, failed.result.session_id) == (ErrorCode.PROVIDER_ERROR, "s1")
    assert "no lamps" in failed.message
    assert str(failed) == failed.message
    assert failed.result.events
    assert (result.text, result.session_id) == ("2 lamps", "s2")


@pytest.mark.long
def test_a_failed_run_is_raised_by_a_multiprocessing_pool() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        with pytest.raises(RunError, match="no lamps") as caught:
            pool.apply(run_in_pool, (1,))
        assert pool.apply(run_in_pool, (2,)).text == "2 lamps"
    assert caught.value.result.run_id.startswith("run_")
