"""What is kept of a listing, and for how long."""

from typing import Any

import pytest

from agent_core.mcp.discovery import (
    MAX_DESCRIPTION_CHARS,
    DiscoveryCache,
    Offer,
    ToolSpec,
    read_tool,
)
from tables import together

OBJECT: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}


def spec(
    description: str = "does it", schema: dict[str, Any] | None = None, name: str = "do"
) -> ToolSpec:
    return read_tool(name, description, schema or OBJECT, is_readonly=False)


def test_a_fingerprint_covers_description_and_schema() -> None:
    other = {"type": "object", "properties": {"a": {"type": "integer"}}}
    prints = {each.fingerprint for each in (spec(), spec("does it all"), spec(schema=other))}
    assert len(prints) == 3
    assert spec().fingerprint == spec().fingerprint


def test_the_order_of_keys_changes_nothing() -> None:
    turned = {"properties": {"a": {"type": "string"}}, "type": "object"}
    assert spec(schema=turned).fingerprint == spec().fingerprint


def test_a_long_description_is_cut_and_still_distinguished() -> None:
    long = "x" * MAX_DESCRIPTION_CHARS
    one, two = spec(long + "1"), spec(long + "2")
    assert one.description == two.description
    assert one.description.endswith("… (+1 character)")
    assert one.fingerprint != two.fingerprint


@together("name", ["", "a b", "a/b", "ü", "x" * 129, "a\n"])
def test_a_name_that_no_provider_takes_is_left_out(name: str) -> None:
    left_out = spec(name=name)
    assert "name" in left_out.fault
    assert (left_out.description, left_out.input_schema) == ("", {})


@pytest.mark.long
def test_a_schema_that_would_break_requests_is_left_out() -> None:
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(100_000):
        deep = {"not": deep}
    broken = {"type": "object", "properties": {"a": {"type": "no such type"}}}
    for schema in (deep, broken, {"type": "object", "title": "x" * 300_000}):
        assert "schema" in spec(schema=schema).fault
    while deep:  # a garbage collector of its own: freeing it at once would be too deep as well
        deep = deep.pop("not", {})


def test_a_discovery_is_kept_until_it_is_old_or_dropped() -> None:
    cache, key = DiscoveryCache(), ("shop", "hash")
    assert cache.get(key, 60) is None
    cache.put(key, Offer((spec(),)))
    assert cache.get(key, 60) == Offer((spec(),))
    assert cache.get(key, 0) is None
    assert cache.get(("shop", "another hash"), 60) is None
    cache.drop(key)
    assert cache.get(key, 60) is None
