"""Which hosts a call names, and that nothing unclear passes for a host on a list."""

import time
from typing import Any

import pytest

from agent_core.permissions.addresses import hosts_in
from sweeps import sampled
from tables import together


@together(
    ("arguments", "hosts"),
    [
        ({"url": "https://Good.example/x?y"}, ["good.example"]),
        ({"url": "https://good.example/index.html"}, ["good.example"]),
        ({"url": "good.example:8080/x"}, ["good.example"]),
        ({"url": "http://user:pw@good.example"}, ["good.example"]),
        ({"url": "HTTPS://GOOD.EXAMPLE./"}, ["good.example"]),
        ({"url": "http://[::1]:80/"}, ["::1"]),
        ({"url": "https://[fe80::1%25eth0]/"}, ["fe80::1"]),
        ({"url": "http://2130706433/"}, ["2130706433"]),
        ({"url": "https://xn--bcher-kva.example/"}, ["xn--bcher-kva.example"]),
        (
            {"targets": [{"link": "//b.example"}, {"link": "ftp://a.example"}]},
            ["a.example", "b.example"],
        ),
        ({"query": "words", "limit": 10, "exact": True}, []),
        ({"query": "v1.2.3, e.g. at 12:30"}, []),
        ({"query": "python 3.11rc1, 1.5e3"}, []),
        ({"url": "http://server:8080/x"}, ["server"]),
        ({"server": {"url": "https://good.example", "method": "GET"}}, ["good.example"]),
        ({"url": "", "host": None}, []),
    ],
)
def test_hosts_are_read_from_addresses(arguments: dict[str, Any], hosts: list[str]) -> None:
    assert hosts_in(arguments) == hosts


@together(
    ("arguments", "host"),
    [
        ({"url": "https://good.example", "note": "see https://evil.example"}, "evil.example"),
        ({"url": "https://good.example", "note": "or evil.example, too"}, "evil.example"),
        ({"url": "https://good.example/?next=https%3A%2F%2Fevil.example"}, "evil.example"),
        ({"url": "https://good.example/?next=https%253A%252F%252Fevil.example"}, "evil.example"),
        ({"url": "https://good.example/https://evil.example/"}, "evil.example"),
        ({"url": "https://good.example@evil.example/"}, "evil.example"),
        ({"url": "https://good.example#@evil.example"}, "evil.example"),
        ({"url": "http:evil.example"}, "evil.example"),
        ({"url": "http:/evil.example/x"}, "evil.example"),
        ({"url": "evil%2Eexample"}, "evil.example"),
        ({"a": {"b": [{"c": "EVIL.example."}]}}, "evil.example"),
        ({"a": {"https://evil.example": 1}}, "evil.example"),
        ({"a": {"evil.example": {}}}, "evil.example"),
        ({"x": "evil.example:22"}, "evil.example"),
        ({"x": "intranet:8080"}, "intranet"),
        ({"x": "localhost"}, "localhost"),
        ({"x": "git@evil.example:some/repository"}, "evil.example"),
        ({"x": "jdbc:mysql://evil.example:3306/x"}, "evil.example"),
        ({"x": "\\\\evil.example\\share"}, "evil.example"),
        ({"x": "2001:db8::1"}, "2001:db8::1"),
        ({"x": "[2001:db8::1]:443"}, "2001:db8::1"),
        ({"x": "10.0.0.1"}, "10.0.0.1"),
        ({"x": "0x7f.1"}, "0x7f.1"),
        ({"x": "0177.0.0.1"}, "0177.0.0.1"),
        ({"x": "b\u00fccher.example"}, "?b\u00fccher.example"),
        ({"x": "evil\u3002example"}, "?evil\u3002example"),
        ({"host": "intranet"}, "intranet"),
        ({"hosts": ["intranet"]}, "intranet"),
        ({"serverURL": "intranet"}, "intranet"),
        ({"proxy_host": "intranet"}, "intranet"),
        ({"host": 2130706433}, "2130706433"),
        ({"host": 127.1}, "127.1"),
        ({"ip": "127.1"}, "127.1"),
        ({"server": {"name": "intranet", "port": 80}}, "intranet"),
        ({"hosts": [{"value": "intranet"}]}, "intranet"),
        ({"headers": ["Host: intranet"]}, "intranet"),
        ({"dsn": "host=intranet dbname=x"}, "intranet"),
        ({"body": '{"url": "intranet"}'}, "intranet"),
        ({"x": "127.1:8080"}, "127.1"),
        ({"x": "3scale:8080"}, "3scale"),
        ({"x": "db.dc1"}, "db.dc1"),
        ({"x": "https:intranet"}, "intranet"),
        ({"x": "http:127.1"}, "127.1"),
        ({"x": "\\\\intranet\\share"}, "?\\\\intranet\\share"),
    ],
)
def test_a_host_is_found_wherever_it_stands(arguments: dict[str, Any], host: str) -> None:
    assert host in hosts_in(arguments)


@together(
    "address",
    [
        "http://evil.example\\@good.example/",
        "http://good.example\t.evil.example/",
        "http://evil.example, good.example/",
        "http://[good.example/",
        "http://g\u043e\u043ed.example/",
        "http://good.example%00.evil.example/",
        "http://good.example;evil.example/",
        "file:///etc/passwd",
        "/good.example",
    ],
)
def test_an_unclear_address_is_no_host_that_a_list_could_have(address: str) -> None:
    unclear = [host for host in hosts_in({"url": address}) if host.startswith("?")]
    assert unclear
    assert not any("," in host for host in unclear)


def test_nesting_hides_no_host() -> None:
    nested: dict[str, Any] = {"url": "https://deep.example"}
    for _ in range(5000):
        nested = {"in": [nested]}
    assert hosts_in(nested) == ["deep.example"]


@pytest.mark.parametrize(
    "piece", sampled(["a", "a.", "a.a:", "//", "%25", "@", "x:/", ":"], keep=3)
)
def test_long_arguments_cost_what_they_are_long(piece: str) -> None:
    started = time.process_time()
    hosts_in({"x": piece * 100_000})
    assert time.process_time() - started < 5
