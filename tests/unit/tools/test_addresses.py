"""Which hosts a call names, and that nothing unclear passes for a host on a list."""

from typing import Any

import pytest

from agent_core.tools.addresses import hosts_in


@pytest.mark.parametrize(
    ("arguments", "hosts"),
    [
        ({"url": "https://Good.example/x?y"}, ["good.example"]),
        ({"url": "good.example:8080/x"}, ["good.example"]),
        ({"url": "http://user:pw@good.example"}, ["good.example"]),
        ({"host": "good.example:22", "note": "see https://other.example"}, ["good.example"]),
        (
            {"targets": [{"link": "//b.example"}, {"link": "ftp://a.example"}]},
            ["a.example", "b.example"],
        ),
        ({"url": "http://[::1]:80/"}, ["::1"]),
        ({"query": "words"}, []),
        ({"url": "", "host": None, "hostname": 7}, []),
    ],
)
def test_hosts_are_read_from_addresses_and_from_arguments_named_like_one(
    arguments: dict[str, Any], hosts: list[str]
) -> None:
    assert hosts_in(arguments) == hosts


@pytest.mark.parametrize(
    "address",
    [
        "http://evil.example\\@good.example/",
        "http://good.example\t.evil.example/",
        "http://evil.example, good.example/",
        "http://[good.example/",
        "http://g\u043e\u043ed.example/",
        "file:///etc/passwd",
        "/good.example",
    ],
)
def test_an_unclear_address_is_no_host_that_a_list_could_have(address: str) -> None:
    (host,) = hosts_in({"url": address})
    assert host.startswith("?")
    assert "," not in host


def test_deep_nesting_ends_the_search() -> None:
    nested: dict[str, Any] = {"url": "https://deep.example"}
    for _ in range(5000):
        nested = {"in": nested}
    assert hosts_in(nested) == []
