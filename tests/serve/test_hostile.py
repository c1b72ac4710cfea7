"""Requests of those who want in, or want the console down: nobody gets in, and it still answers."""

import asyncio
import contextlib
import json
import re
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest

from isolation import Home, fresh_folder
from mcp_clients import configure
from own_consoles import TOKEN, OwnConsole, Reply, browser, serving
from tables import together

SAFE = {
    "content-security-policy": "default-src 'none'; base-uri 'none'; frame-ancestors 'none';"
    " form-action 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
AUTHORIZED = f"Authorization: Bearer {TOKEN}\r\n"
FORM = "Content-Type: application/x-www-form-urlencoded\r\n"


@pytest.fixture(scope="module")
def console() -> Generator[OwnConsole]:
    """One server for all of them: none brings it down."""
    home = configure(Home(fresh_folder("home", "hostile")), "http://127.0.0.1:9/v1")
    project = fresh_folder("project", "hostile")
    with serving(home, project, "--token-env", "CONSOLE_TOKEN") as console:
        yield console


@pytest.fixture(autouse=True)
async def still_answers(console: OwnConsole) -> AsyncGenerator[None]:
    """After each of them the server lives, answers, and has said nothing."""
    yield
    assert console.process.poll() is None
    reply = await ask(console, "GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n")
    assert (reply.status, json.loads(reply.body)) == (200, {"status": "ok"})


class Raw(NamedTuple):
    """The two ends of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def read_reply(self) -> Reply:
        """Read one response with a length."""
        async with asyncio.timeout(30):
            head = await self.reader.readuntil(b"\r\n\r\n")
            reply = Reply.of(head)
            length = int(reply.headers.get("content-length", ["0"])[0])
            reply.body = await self.reader.readexactly(length)
        return reply

    async def ended(self) -> bytes:
        """Read until the server closes the connection."""
        async with asyncio.timeout(40):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""


@asynccontextmanager
async def connected(console: OwnConsole, *, room: int | None = None) -> AsyncGenerator[Raw]:
    """Connect a socket; `room` is the size of its receive buffer in bytes."""
    made = socket.socket()
    if room is not None:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    made.setblocking(False)
    await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", console.port))
    reader, writer = await asyncio.open_connection(sock=made)
    try:
        yield Raw(reader, writer)
    finally:
        writer.close()


async def ask(console: OwnConsole, request: str) -> Reply:
    """Send bytes, and read the first response; `{host}` and `{port}` are the server's."""
    async with connected(console) as raw:
        text = request.replace("{host}", f"127.0.0.1:{console.port}")
        text = text.replace("{port}", str(console.port)).replace("{cookie}", console.cookie)
        await raw.send(text.encode("latin-1"))
        return await raw.read_reply()


def get(path: str = "/api/nothing", *lines: str, host: str = "{host}") -> str:
    head = "".join(f"{line}\r\n" for line in lines)
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{head}\r\n"


def post(path: str, body: str = "", *lines: str, host: str = "{host}") -> str:
    head = "".join(f"{line}\r\n" for line in lines)
    return (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n{head}\r\n{body}"
    )


def auth(path: str, *lines: str, host: str = "{host}") -> str:
    return get(path, f"Authorization: Bearer {TOKEN}", *lines, host=host)


LOGIN = FORM.strip()
PREFLIGHT = (
    "OPTIONS /api/nothing HTTP/1.1\r\nHost: {host}\r\nOrigin: https://evil.example\r\n"
    "Access-Control-Request-Method: POST\r\n\r\n"
)
BAD_SIGNATURE = "{cookie}=9999999999.AAAAAAAAAAAAAAAAAAAAAA." + "0" * 64
CASES: dict[str, tuple[str, int | set[int]]] = {
    # names that lead here by DNS: rebinding
    "another name": (auth("/api/nothing", host="evil.example:{port}"), 403),
    "another name, health": (get("/healthz", host="evil.example:{port}"), 403),
    "another name, login": (get("/login", host="evil.example"), 403),
    "a name that begins alike": (auth("/", host="127.0.0.1.evil.example:{port}"), 403),
    "a name that ends alike": (auth("/", host="evil.localhost:{port}"), 403),
    "user in Host": (auth("/", host="evil@127.0.0.1:{port}"), 403),
    "no port": (auth("/", host="127.0.0.1"), 403),
    "another port": (auth("/", host="127.0.0.1:1"), 403),
    "every address": (auth("/", host="0.0.0.0:{port}"), 403),
    "a decimal address": (auth("/", host="2130706433:{port}"), 403),
    "a short address": (auth("/", host="127.1:{port}"), 403),
    "a dot at the end": (auth("/", host="localhost.:{port}"), 403),
    "an empty Host": (auth("/", host=""), 403),
    "two Hosts": (auth("/", "Host: evil.example"), 400),
    "no Host": (f"GET / HTTP/1.1\r\n{AUTHORIZED}\r\n", 400),
    "no Host, old": (f"GET / HTTP/1.0\r\n{AUTHORIZED}\r\n", 403),
    "forwarded Host": (
        auth("/", "X-Forwarded-Host: 127.0.0.1:{port}", host="evil.example"),
        403,
    ),
    "absolute address": (auth("http://evil.example/api/nothing"), 404),
    # other pages
    "another origin": (
        post("/ag-ui", "{}", f"Authorization: Bearer {TOKEN}", "Origin: https://evil.example"),
        403,
    ),
    "another origin, login": (
        post("/login", f"token={TOKEN}", LOGIN, "Origin: http://evil.example"),
        403,
    ),
    "another port's origin": (
        post("/login", f"token={TOKEN}", LOGIN, "Origin: http://127.0.0.1:1"),
        403,
    ),
    "another scheme's origin": (
        post("/login", f"token={TOKEN}", LOGIN, "Origin: https://{host}"),
        403,
    ),
    "another name's origin": (
        post("/login", f"token={TOKEN}", LOGIN, "Origin: http://localhost:{port}"),
        403,
    ),
    "no origin's name": (post("/login", f"token={TOKEN}", LOGIN, "Origin: null"), 403),
    "an empty origin": (post("/login", f"token={TOKEN}", LOGIN, "Origin:"), 403),
    "two origins": (
        post("/login", f"token={TOKEN}", LOGIN, "Origin: http://{host}", "Origin: http://x"),
        403,
    ),
    "an origin with a path": (
        post("/login", f"token={TOKEN}", LOGIN, "Origin: http://{host}/"),
        403,
    ),
    "an origin with a user": (
        post("/login", f"token={TOKEN}", LOGIN, "Origin: http://{host}@evil.example"),
        403,
    ),
    "preflight": (PREFLIGHT, 401),
    # tokens and cookies
    "nobody": (get(), 401),
    "token in the address": (get(f"/api/nothing?token={TOKEN}"), 401),
    "token as access_token": (get(f"/?access_token={TOKEN}"), 401),
    "token as path": (get(f"/{TOKEN}"), 401),
    "token as user of the address": (get(f"http://{TOKEN}@{{host}}/api/nothing"), 401),
    "token as cookie": (get("/api/nothing", f"Cookie: {{cookie}}={TOKEN}"), 401),
    "an empty cookie": (get("/api/nothing", "Cookie: {cookie}="), 401),
    "a made-up cookie": (get("/api/nothing", f"Cookie: {BAD_SIGNATURE}"), 401),
    "a cookie of odd digits": (
        get("/api/nothing", "Cookie: {cookie}=٣.a.b".encode().decode("latin-1")),
        401,
    ),
    "a thousand cookies": (
        get("/api/nothing", "Cookie: " + "; ".join(["{cookie}=x"] * 1000)),
        401,
    ),
    "two tokens": (auth("/api/nothing", f"Authorization: Bearer {TOKEN}"), 401),
    "digest": (get("/api/nothing", f'Authorization: Digest username="{TOKEN}"'), 401),
    # paths
    "up from assets": (get("/assets/../api/nothing"), {401, 404}),
    "up from assets, encoded": (get("/assets/%2e%2e/api/nothing"), {401, 404}),
    "up from assets, twice encoded": (get("/assets/%252e%252e/%252e%252e/etc/passwd"), 404),
    "a file of the machine": (get("/assets/../../../../../../etc/passwd"), 404),
    "a file of the machine, encoded": (get("/assets/..%2f..%2f..%2fetc%2fpasswd"), 404),
    "a file of the machine, backslashes": (get("/assets/..%5c..%5cetc%5cpasswd"), 404),
    "an absolute file": (get("/assets//etc/passwd"), 404),
    "NUL in assets": (get("/assets/%00"), 404),
    "NUL": (auth("/api/sessions/%00"), 404),
    "NUL in the query": (auth("/api/sessions?query=%00"), 400),
    "two slashes": (get("//api/nothing"), 401),
    "health with a tail": (get("/healthz/../api/nothing"), 401),
    "health with a semicolon": (get("/healthz;x=/api/nothing"), 401),
    "login with a tail": (get("/login/x"), 401),
    "upper case": (get("/API/nothing"), 401),
    "no UTF-8": (auth("/api/sessions/%ff%fe%c0%af"), 404),
    "bidi and ANSI in an id": (auth("/api/sessions/%1b%5b31m%e2%80%ae"), 404),
    "HTML in an id": (auth("/api/sessions/%3Cscript%3Ealert(1)%3C%2Fscript%3E"), 404),
    "a long path": (auth("/" + "a" * 30_000), 404),
    # methods
    "method override": (
        auth("/api/nothing", "X-HTTP-Method-Override: DELETE", "X-Method: POST"),
        404,
    ),
    "TRACE": (f"TRACE /healthz HTTP/1.1\r\nHost: {{host}}\r\n{AUTHORIZED}\r\n", 405),
    "CONNECT": (f"CONNECT 10.0.0.1:22 HTTP/1.1\r\nHost: {{host}}\r\n{AUTHORIZED}\r\n", {400, 404}),
    "an unknown method": (f"BREW /healthz HTTP/1.1\r\nHost: {{host}}\r\n{AUTHORIZED}\r\n", 405),
    "OPTIONS *": (f"OPTIONS * HTTP/1.1\r\nHost: {{host}}\r\n{AUTHORIZED}\r\n", 404),
    "upgrade": (get("/", "Connection: Upgrade", "Upgrade: websocket"), 401),
    "upgrade to HTTP/2": (
        get("/", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAA"),
        401,
    ),
    "HTTP/2 at once": ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400, 403}),
    # shapes that two servers read differently
    "two lengths": (
        post("/login", "a=b", LOGIN, "Content-Length: 30"),
        400,
    ),
    "length and chunks": (
        post("/login", "0\r\n\r\n", LOGIN, "Transfer-Encoding: chunked"),
        400,
    ),
    "chunks, misspelt": (post("/login", "", "Transfer-Encoding: xchunked"), {400, 501}),
    "chunks twice": (
        "POST /login HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked, chunked\r\n\r\n",
        {400, 501},
    ),
    "a negative length": (
        "POST /login HTTP/1.1\r\nHost: {host}\r\nContent-Length: -1\r\n\r\n",
        400,
    ),
    "a length with a sign": (
        "POST /login HTTP/1.1\r\nHost: {host}\r\nContent-Length: +3\r\n\r\na=b",
        400,
    ),
    "a space before the colon": ("GET / HTTP/1.1\r\nHost : {host}\r\n\r\n", 400),
    "a folded header": ("GET / HTTP/1.1\r\nHost: {host}\r\nX: a\r\n b\r\n\r\n", {400, 401}),
    "a bare carriage return": ("GET / HTTP/1.1\r\nHost: {host}\r\nX: a\rb\r\n\r\n", 400),
    "NUL in a header": ("GET / HTTP/1.1\r\nHost: {host}\r\nX: a\0b\r\n\r\n", 400),
    "a wrong chunk": (
        f"POST /login HTTP/1.1\r\nHost: {{host}}\r\n{FORM}Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        400,
    ),
    "no HTTP": ("\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
    "old HTTP": ("GET /\r\n\r\n", 400),
    # too much
    "many headers": (get("/", *(f"X-{number}: y" for number in range(8_000))), {400, 431}),
    "a long header": (get("/", "X: " + "y" * 100_000), {400, 431}),
    "a long token": (get("/api/nothing", "Authorization: Bearer " + "y" * 30_000), {401, 429}),
    "a long body, announced": (
        f"POST /ag-ui HTTP/1.1\r\nHost: {{host}}\r\n{AUTHORIZED}Content-Length: 104857600\r\n\r\n",
        413,
    ),
    "a long body of nobody": (
        "POST /ag-ui HTTP/1.1\r\nHost: {host}\r\nContent-Length: 104857600\r\n\r\n{",
        401,
    ),
    "a long form": (
        f"POST /login HTTP/1.1\r\nHost: {{host}}\r\n{FORM}Content-Length: 104857600\r\n\r\na",
        413,
    ),
    "a form of many fields": (post("/login", "&".join(["a=b"] * 3000), LOGIN), 400),
    "a form that is JSON": (post("/login", "{}", "Content-Type: application/json"), 415),
    "a long Idempotency-Key": (
        post("/ag-ui", "{}", f"Authorization: Bearer {TOKEN}", "Idempotency-Key: " + "k" * 9_999),
        400,
    ),
    "deep JSON": (
        post(
            "/ag-ui",
            "[" * 100_000,
            f"Authorization: Bearer {TOKEN}",
            "Content-Type: application/json",
        ),
        400,
    ),
}


@together("name", CASES)
async def test_a_hostile_request_is_refused(console: OwnConsole, name: str) -> None:
    request, expected = CASES[name]
    reply = await ask(console, request)
    assert reply.status in (expected if isinstance(expected, set) else {expected})
    assert {key: reply.headers.get(key) for key in SAFE} == {
        key: [value] for key, value in SAFE.items()
    }
    assert not {each for each in reply.headers if each.startswith("access-control-")}
    assert "set-cookie" not in reply.headers
    assert TOKEN.encode() not in reply.body
    assert b"<script" not in reply.body
    assert not set(reply.body) & {0x1B, 0x00}
    if reply.status == 401:
        assert reply.headers["www-authenticate"] == ["Bearer"]


TOO_MANY = [f"X-{number}: x" for number in range(201)]
OF_A_BROWSER = {
    name: (request, expected)
    for name, (request, expected) in CASES.items()
    if "{host}\r\n" in request and not re.match(r"\S+ (http:/)?/(api|ag-ui|v1|healthz)", request)
} | {
    "too many headers": (auth("/", *TOO_MANY), 431),
    "NUL in a session": (auth("/sessions/%00"), 404),
    "NUL in the query of a page": (auth("/?q=%00"), 400),
    "a long form": (post("/login", "token=" + "a" * 20_000, LOGIN), 413),
    "no form": (post("/login", "{}", "Content-Type: application/json"), 415),
    "no origin": (post("/sessions/x/undo", "", "Cookie: {cookie}=x"), 401),
    "another method": ("PUT /login HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n", 405),
    "a page of nobody": (auth("/sessions/none"), 404),
    "another name, page": (auth("/", host="evil.example"), 403),
}


@together("name", OF_A_BROWSER)
async def test_a_browser_is_refused_with_a_page(console: OwnConsole, name: str) -> None:
    request, expected = OF_A_BROWSER[name]
    reads = "Accept: text/html,*/*;q=0.8\r\nAccept-Language: zh\r\n"
    first, _, rest = request.partition("\r\n")
    reply = await ask(console, f"{first}\r\n{reads}{rest}")
    assert reply.status in (expected if isinstance(expected, set) else {expected})
    (kind,) = reply.headers["content-type"]
    if kind == "application/problem+json":  # the parser refuses it
        assert reply.status == 400
        assert reply.headers["connection"] == ["close"]
        return
    assert kind == "text/html; charset=utf-8"
    assert b'<html lang="zh">' in reply.body
    assert {key: reply.headers.get(key) for key in SAFE} == {
        key: [value] for key, value in SAFE.items()
    }
    assert TOKEN.encode() not in reply.body
    assert not set(reply.body) & {0x1B, 0x00}
    if reply.status == 401:
        assert b'action="/login"' in reply.body


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 60


@pytest.mark.parametrize("origin", [None, "null", "https://evil.example", "http://127.0.0.1:1"])
async def test_a_cookie_alone_changes_nothing(console: OwnConsole, origin: str | None) -> None:
    headers = {} if origin is None else {"Origin": origin}
    async with browser() as client:
        login = f"{console.address}/login"
        async with client.post(login, data={"token": TOKEN}, allow_redirects=False) as response:
            assert response.status == 303
        for path in ("/ag-ui", "/logout", "/v1/chat/completions", "/api/nothing"):
            async with client.post(console.address + path, json={}, headers=headers) as response:
                assert response.status == 403, path
        async with client.get(f"{console.address}/api/nothing") as response:
            assert response.status == 404  # it is signed in


async def test_a_body_of_100_mb_is_refused_before_it_is_read(console: OwnConsole) -> None:
    head = f"POST /ag-ui HTTP/1.1\r\nHost: 127.0.0.1:{console.port}\r\n{AUTHORIZED}"
    head += "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk, sent = b"100000\r\n" + b" " * 2**20 + b"\r\n", 0
    async with connected(console) as raw:
        await raw.send(head.encode())
        reply = asyncio.create_task(raw.read_reply())
        with contextlib.suppress(ConnectionError):
            while not reply.done() and sent < 100:
                await raw.send(chunk)
                sent += 1
        assert (await reply).status == 413
        assert sent < 50
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                await raw.send(chunk)
        await raw.ended()


async def test_a_flood_of_small_chunks_ends_at_the_limit(console: OwnConsole) -> None:
    head = f"POST /login HTTP/1.1\r\nHost: 127.0.0.1:{console.port}\r\n{FORM}"
    async with connected(console) as raw:
        await raw.send(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        reply = asyncio.create_task(raw.read_reply())
        with contextlib.suppress(ConnectionError):
            while not reply.done():
                await raw.send(b"1\r\na\r\n" * 1_000)
        assert (await reply).status == 413


async def test_whoever_never_ends_a_head_is_cut(console: OwnConsole) -> None:
    async with connected(console) as raw, connected(console) as again:
        await raw.send(b"GET / HTTP/1.1\r\nHost: ")
        await again.send(get("/healthz").replace("{host}", f"127.0.0.1:{console.port}").encode())
        assert (await again.read_reply()).status == 200
        await again.send(b"GET / HTTP/1.1\r\n")  # the second request of a connection

        async def drip() -> None:
            with contextlib.suppress(ConnectionError):
                while True:
                    await asyncio.sleep(0.5)
                    await again.send(b"X: y\r\n")

        dripping = asyncio.create_task(drip())
        assert [await raw.ended(), await again.ended()] == [b"", b""]
        dripping.cancel()


@pytest.mark.long
async def test_idle_connections_keep_nobody_out(console: OwnConsole) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for number in range(1_000):
            raw = await stack.enter_async_context(connected(console))
            await raw.send(b"GET / HTTP/1.1\r\n" if number % 2 else b"")
        reply = await ask(console, auth("/api/nothing"))
        assert reply.status == 404


async def test_a_pipeline_is_answered_in_order(console: OwnConsole) -> None:
    host = f"127.0.0.1:{console.port}"
    parts = [get("/healthz"), get("/api/nothing"), auth("/api/nothing"), get("/healthz")]
    async with connected(console) as raw:
        await raw.send("".join(parts).replace("{host}", host).encode())
        assert [(await raw.read_reply()).status for _ in parts] == [200, 401, 404, 200]


async def test_a_smuggled_request_is_no_second_one(console: OwnConsole) -> None:
    host = f"127.0.0.1:{console.port}"
    inner = auth("/api/nothing").replace("{host}", host)
    head = f"POST /login HTTP/1.1\r\nHost: {host}\r\n{FORM}Content-Length: {len(inner) + 5}\r\n"
    async with connected(console) as raw:
        await raw.send(f"{head}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n{inner}".encode())
        assert (await raw.read_reply()).status == 400
        assert await raw.ended() == b""
