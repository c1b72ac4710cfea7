"""One class for one mistake: the table of errors in docs/sdk.md, held against the sources."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_core import AgentCoreError, ArgumentError, ConfigError, ErrorCode
from agent_core.errors import reworded

pytestmark = pytest.mark.checked

SOURCES = Path(__file__).parents[2] / "src"


def raised(package: str) -> Iterator[tuple[str, ast.Call]]:
    """Yield every call that makes an error of the core, with its place."""
    for path in sorted((SOURCES / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                yield f"{path.relative_to(SOURCES)}:{node.lineno}", node


def has_code(call: ast.Call, code: str) -> bool:
    return any(isinstance(each, ast.Attribute) and each.attr == code for each in call.args)


def names_an_option(call: ast.Call) -> bool:
    return any(
        isinstance(key, ast.Constant) and key.value == "option"
        for each in (*call.args, *(keyword.value for keyword in call.keywords))
        if isinstance(each, ast.Dict)
        for key in each.keys
    )


@pytest.mark.parametrize("package", ["agent_core", "agcore"])
def test_a_wrong_argument_is_an_argument_error(package: str) -> None:
    wrong = [
        place
        for place, call in raised(package)
        if isinstance(call.func, ast.Name)
        if (call.func.id == "ConfigError" and has_code(call, "VALIDATION_ERROR"))
        or (call.func.id in {"AgentCoreError", "ConfigError"} and names_an_option(call))
    ]
    assert not wrong, "raise ArgumentError(message, argument) here"


def test_an_argument_error_is_caught_as_what_it_is() -> None:
    error = ArgumentError("tools must be a list", "tools", {"index": 3})
    assert isinstance(error, ConfigError)
    assert isinstance(error, ValueError)
    assert (error.code, error.retryable) == (ErrorCode.VALIDATION_ERROR, False)
    assert error.details == {"option": "tools", "index": 3}


def test_another_message_leaves_an_error_as_it_is() -> None:
    for error in (
        ArgumentError("short", "tools"),
        AgentCoreError("timeout", "short", retryable=True, details={"s": 3}),
    ):
        found = reworded(error, "a longer message")
        assert type(found) is type(error)
        assert (found.code, found.details) == (error.code, error.details)
        assert found.retryable is error.retryable
        assert (str(found), found.args) == ("a longer message", ("a longer message",))
        assert error.message == "short"
