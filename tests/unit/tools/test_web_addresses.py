"""The addresses that `web.fetch` may reach."""

# ruff: noqa: SIM905 - long lists of short words
import socket
from ipaddress import ip_address
from typing import Any

import pytest

from agent_core.errors import PermissionDeniedError, ToolError
from agent_core.http import client
from agent_core.http.opening import Endpoint
from agent_core.tools.web.network import Gate, read_url, request_page
from agent_core.tools.web.page import check_type
from raw_servers import answering, serving
from tables import together

PRIVATE = """
    0.0.0.0 10.0.0.1 100.64.0.1 100.100.100.200 127.0.0.1 127.8.9.1 168.63.129.16 169.254.169.254
    172.16.0.1 172.31.255.255 192.0.0.192 192.168.0.1 198.18.0.1 203.0.113.5 224.0.0.1 240.0.0.1
    255.255.255.255 :: ::1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:169.254.169.254 64:ff9b::7f00:1
    64:ff9b::a9fe:a9fe 2002:7f00:1:: 2002:a00:1:: fc00::1 fd00:ec2::254 fe80::1 fec0::1 ff02::1
    2001:db8::1 100::1 2001:0:a9fe:a9fe::1
    """.split()
PUBLIC = "1.1.1.1 93.184.216.34 172.32.0.1 2606:4700::1111 64:ff9b::101:101 2002:101:101::".split()


@together("address", PRIVATE)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    with pytest.raises(PermissionDeniedError, match="not a public address"):
        Gate([]).check("name.test", ip_address(address), 80)


@together("address", PUBLIC)
def test_a_public_address_may_be_reached(address: str) -> None:
    Gate([]).check("name.test", ip_address(address), 80)


@together(
    "url",
    [
        "http://127.1/",
        "http://2130706433/",
        "http://0x7f.0.0.1/",
        "http://0177.0.0.1/",
        "http://0/",
        "http://127.0.0.1./",
        "http://[::1]/",
        "http://[::ffff:10.0.0.1]/",
    ],
)
def test_every_spelling_of_a_private_address_is_refused(url: str) -> None:
    with pytest.raises(PermissionDeniedError):
        Gate(["other.test"]).check_literal(read_url(url))


@together(
    ("entry", "host", "address"),
    [
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("127.0.0.1:8000", "127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "127.1", "127.0.0.1"),
        ("[::1]:8000", "::1", "::1"),
        ("::1", "::1", "::1"),
        ("LOCALHOST", "localhost", "::1"),
        ("wiki.intranet", "wiki.intranet.", "10.1.2.3"),
        ("wiki.intranet", "wiki.intranet", "::ffff:10.1.2.3"),
        ("wiki.intranet", "wiki.intranet", "100.70.1.2"),
        ("wiki.intranet", "wiki.intranet", "fd12:3456::1"),
        ("169.254.169.254", "169.254.169.254", "169.254.169.254"),
    ],
)
def test_a_host_that_the_user_names_may_have_a_private_address(
    entry: str, host: str, address: str
) -> None:
    Gate([entry]).check(host, ip_address(address), 8000)


@together("entry", ["127.0.0.1:8000", "127.0.0.1:x", "127.0.0.1:99999"])
def test_a_host_that_is_named_with_a_port_is_reached_at_that_port_only(entry: str) -> None:
    with pytest.raises(PermissionDeniedError):
        Gate([entry]).check_literal(read_url("http://127.0.0.1/"))


@together(
    ("host", "address"),
    [
        ("sub.wiki.intranet", "10.1.2.3"),
        ("other.test", "10.1.2.3"),
        ("other.test", "127.0.0.1"),
        ("wiki.intranet", "169.254.169.254"),
        ("wiki.intranet", "::ffff:169.254.169.254"),
        ("wiki.intranet", "::169.254.169.254"),
        ("wiki.intranet", "64:ff9b::a9fe:a9fe"),
        ("wiki.intranet", "2002:a9fe:a9fe::1"),
        ("wiki.intranet", "fe80::1"),
        ("wiki.intranet", "168.63.129.16"),
        ("wiki.intranet", "::ffff:168.63.129.16"),
        ("wiki.intranet", "100.100.100.200"),
        ("wiki.intranet", "192.0.0.192"),
        ("wiki.intranet", "fd00:ec2::254"),
        ("wiki.intranet", "224.0.0.1"),
    ],
)
def test_naming_a_host_covers_no_other_and_no_metadata_address(host: str, address: str) -> None:
    with pytest.raises(PermissionDeniedError):
        Gate(["wiki.intranet", "127.0.0.1"]).check(host, ip_address(address), 80)


@together(
    "url",
    [
        "ftp://a.test/",
        "file:///etc/passwd",
        "//a.test/",
        "a.test",
        "http://",
        "http:///x",
        "http://user@a.test/",
        "http://user:secret@a.test/",
        "http://a.test\\@b.test/",
        "http://a.test/x y",
        "http://a.test/\n",
        "http://a.test:99999/",
        "http://[::1",
        "http://[fe80::1%25eth0]/",
        "http://exämple.test/",
        "data:text/plain,x",
        "http://a.test/" + "x" * 5000,
    ],
)
def test_what_is_no_plain_address_is_refused(url: str) -> None:
    with pytest.raises(ToolError, match=r"\$\.url"):
        read_url(url)


@together(
    "kind",
    "text/html text/plain text/markdown application/json application/ld+json application/xml"
    " application/atom+xml application/xhtml+xml application/yaml application/javascript"
    " image/svg+xml application/octet-stream".split(),
)
def test_types_of_text_are_read(kind: str) -> None:
    check_type("http://a.test/", kind)


@together("kind", "application/pdf image/png application/zip video/mp4 font/woff2 nonsense".split())
def test_other_types_are_refused(kind: str) -> None:
    with pytest.raises(ToolError, match="not text"):
        check_type("http://a.test/", kind)


async def test_the_address_that_was_checked_is_the_one_that_is_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name that means another address when it is looked up again leads nowhere else."""
    looked_up: list[str] = []

    async def resolve(host: str, port: int) -> list[Endpoint]:
        looked_up.append(host)
        return [(socket.AF_INET, (f"127.0.0.{len(looked_up)}", port))]

    monkeypatch.setattr(client, "resolve", resolve)
    page = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
    async with serving(answering(page)) as served:
        url = read_url(served.replace("127.0.0.1", "pages.test"))
        limits: dict[str, Any] = {"max_bytes": 100, "accepts": check_type, "seconds": 20.0}
        answer = await request_page(url, Gate(["pages.test"]), **limits)
        assert answer.body == b"hello"
        assert looked_up == ["pages.test"]
        looked_up.clear()
        with pytest.raises(PermissionDeniedError):
            await request_page(url, Gate([]), **limits)
        assert looked_up == ["pages.test"]
