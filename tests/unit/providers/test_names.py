import re

import pytest
from hypothesis import given, strategies as st

from agent_core.errors import ProviderError
from agent_core.providers.requests import ToolNames, wire_name
from tables import together

CANONICAL = st.from_regex(r"[A-Za-z0-9_.\-]{1,256}", fullmatch=True)


@given(CANONICAL)
def test_every_name_is_safe_short_and_comes_back(name: str) -> None:
    wire = wire_name(name)

    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", wire)
    assert ToolNames([name]).canonical(wire) == name


@given(CANONICAL, CANONICAL)
def test_different_names_stay_different(one: str, other: str) -> None:
    assert (wire_name(one) == wire_name(other)) is (one == other)


def test_dots_become_two_underscores() -> None:
    assert wire_name("code.read_file") == "code__read_file"
    assert wire_name("recall") == "recall"


def test_a_name_that_has_two_underscores_itself_gets_a_stable_suffix() -> None:
    assert wire_name("a__b") == "a__b_63e5c1c455"


def test_names_that_only_differ_after_many_characters_stay_different() -> None:
    one, other = "mcp." + "x" * 100 + ".a", "mcp." + "x" * 100 + ".b"

    assert wire_name(one) != wire_name(other)
    assert len(wire_name(one)) == 64


def test_a_name_made_to_look_like_another_ones_is_refused() -> None:
    victim = "a__b"
    copy = wire_name(victim).replace("__", ".")

    with pytest.raises(ProviderError, match="same name"):
        ToolNames([victim, copy])


@together("name", ["", "na me", "x" * 10_000, "é", "\ud800"])
def test_a_name_no_tool_can_have_is_safe_to_send_back(name: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", wire_name(name))
    assert len(ToolNames([]).canonical(name)) <= 256
