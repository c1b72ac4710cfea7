"""`soong-agent serve` as a process: how it starts, who signs in, and how it ends."""

import re
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from browser import CHROMIUM, tab
from isolation import Home
from mcp_clients import configure
from own_consoles import BEARER, TOKEN, browser, serving, signed_in, started
from sweeps import kept
from tables import together

TOKEN_OPTION = ("--token-env", "CONSOLE_TOKEN")
OFF_LOOPBACK = ("--host", "0.0.0.0")  # noqa: S104 - what a user may ask for


@pytest.fixture
def ready(home: Home) -> Home:
    return configure(home, "http://127.0.0.1:9/v1")


@pytest.fixture
def certified(project: Path) -> None:
    """A certificate and its key in the project."""
    make = "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=x -keyout key.pem -out cert.pem"
    names = ("-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run(  # noqa: S603
        ["openssl", *make.split(), *names],  # noqa: S607
        cwd=project,
        stderr=subprocess.DEVNULL,
        check=True,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_standard_output_is_the_link_alone_and_a_signal_ends_it(
    ready: Home, project: Path, number: signal.Signals
) -> None:
    with serving(ready, project) as console:
        assert re.fullmatch(
            r"http://127\.0\.0\.1:[1-9]\d*/login\?code=[A-Za-z0-9_-]{43}", console.link
        )
        assert console.end(number) == (0, "", "")


def test_a_home_without_a_model_is_shown_all_the_same(home: Home, project: Path) -> None:
    with serving(home, project) as console:
        code, _, err = console.end()
    assert code == 0
    assert "config.toml" in err


async def test_a_run_without_a_model_is_refused_with_the_cure(home: Home, project: Path) -> None:
    with serving(home, project) as console:
        async with (
            signed_in(console) as client,
            client.post("/api/runs", json={"message": "hello"}) as response,
        ):
            problem = await response.json()
    assert (response.status, problem["code"]) == (400, "config_error")
    assert "config.toml" in problem["detail"]


async def test_who_is_signed_in_is_led_on_by_the_link(ready: Home, project: Path) -> None:
    with serving(ready, project) as console:
        async with signed_in(console) as client:
            for form in (None, {"code": console.code}):
                method = "POST" if form else "GET"
                async with client.request(
                    method, console.link, data=form, allow_redirects=False
                ) as response:
                    assert (response.status, response.headers["Location"]) == (303, "/")
        async with browser() as other, other.get(f"{console.address}/login") as response:
            assert "<form" not in await response.text()


@pytest.mark.long
@pytest.mark.parametrize("host", ["localhost", "::1", "0.0.0.0"])  # noqa: S104
async def test_the_link_has_the_host_that_was_named(ready: Home, project: Path, host: str) -> None:
    if host == "::1" and not _has_ipv6():
        pytest.skip("this machine has no IPv6")
    with serving(ready, project, "--host", host, *TOKEN_OPTION) as console:
        shown = f"[{host}]" if ":" in host else host
        assert console.link.startswith(f"http://{shown}:{console.port}/login?code=")
        async with (
            aiohttp.ClientSession() as client,
            client.get(f"{console.address}/healthz") as response,
        ):
            assert (response.status, await response.json()) == (200, {"status": "ok"})


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as made:
            made.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--token-env", "NO_SUCH_TOKEN"), "NO_SUCH_TOKEN"),
        (("--token-env", "EMPTY_TOKEN"), "EMPTY_TOKEN"),
        (("--token-file", "no-such-file"), "no-such-file cannot be read: No such file"),
        (("--token-file", "empty"), "empty"),
        (("--token-file", "first-line-empty"), "first-line-empty"),
        (("--token-file", "."), ". cannot be read: Is a directory"),
        (OFF_LOOPBACK, "token"),
        (("--host", "no.such.host.invalid"), "no.such.host.invalid"),
        (("--project", "no-such-folder"), "no-such-folder"),
        (("--tls-cert", "cert.pem"), "--tls-key"),
        (("--tls-cert", "empty", "--tls-key", "empty"), "certificate"),
        (("--tls-cert", "no-such", "--tls-key", "empty"), "certificate no-such cannot be read: No"),
        (("--port", "65536"), "65536"),
        (("--host", ""), "--host"),
        (("--no-such-option",), "--no-such-option"),
        ((*TOKEN_OPTION, "--token-file", "x"), "--token-file"),
    ],
    ids=str,
)
def test_a_start_that_cannot_be_is_refused_with_its_cause(
    ready: Home, project: Path, options: tuple[str, ...], said: str
) -> None:
    (project / "empty").write_text("")
    (project / "first-line-empty").write_text(f"\n{TOKEN}\n")
    process = started(ready, project, "--port", "0", *options, env={"EMPTY_TOKEN": " "})
    out, err = process.communicate(timeout=50)
    assert (process.returncode, out) == (2, "")
    assert said in err
    assert TOKEN not in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "package", kept(["starlette", "uvicorn", "h11", "ag_ui"], "starlette", "ag_ui")
)
def test_a_missing_extra_is_named_with_its_cure(
    ready: Home, project: Path, tmp_path: Path, package: str
) -> None:
    error = f"raise ModuleNotFoundError('No module named {package}', name={package!r})\n"
    (tmp_path / f"{package}.py").write_text(error)
    process = started(ready, project, "--port", "0", env={"PYTHONPATH": str(tmp_path)})
    out, err = process.communicate(timeout=50)
    assert (process.returncode, out) == (2, "")
    assert "the extra serve; to install it:" in err
    assert "Traceback" not in err


def test_a_port_that_is_taken_is_named(ready: Home, project: Path) -> None:
    with serving(ready, project) as console:
        process = started(ready, project, "--port", str(console.port))
        out, err = process.communicate(timeout=50)
    assert (process.returncode, out, str(console.port) in err) == (2, "", True)


async def test_the_link_opens_a_form_that_signs_in_once(ready: Home, project: Path) -> None:
    with serving(ready, project) as console:
        async with browser() as client:
            for _ in range(2):  # opening it uses nothing up
                async with client.get(console.link) as response:
                    page = await response.text()
                    assert response.status == 200
                    assert console.code in page
                    assert not response.cookies
            async with client.get(f"{console.address}/api/sessions") as response:
                assert response.status == 401
            async with client.post(
                f"{console.address}/login", data={"code": console.code}, allow_redirects=False
            ) as response:
                assert (response.status, response.headers["Location"]) == (303, "/")
                cookie = response.headers["Set-Cookie"]
            async with client.get(f"{console.address}/api/nothing") as response:
                assert response.status == 404
        name, *attributes = cookie.split("; ")
        assert name.partition("=")[0] == f"soong-agent-{console.port}"
        assert console.code not in name
        assert set(attributes) == {"Max-Age=2592000", "HttpOnly", "SameSite=Strict", "Path=/"}
        async with (
            browser() as another,
            another.post(
                f"{console.address}/login", data={"code": console.code}, allow_redirects=False
            ) as response,
        ):
            assert (response.status, response.headers["WWW-Authenticate"]) == (401, "Bearer")
            assert "Set-Cookie" not in response.headers


@pytest.mark.long
async def test_a_cookie_outlives_a_restart_and_ends_with_the_token_and_at_another_port(
    ready: Home, project: Path
) -> None:
    with serving(ready, project, *TOKEN_OPTION) as console:
        port = console.port
        async with signed_in(console) as client:
            jar = client.cookie_jar
            values = {each.key: each.value for each in jar}
    value = values[f"soong-agent-{port}"]
    assert TOKEN not in value
    statuses: list[int] = []
    other = {"CONSOLE_TOKEN": "another-token-of-the-tests-9876543210"}
    for options, at, env in (
        (TOKEN_OPTION, port, {}),
        (TOKEN_OPTION, port, other),
        (TOKEN_OPTION, 0, {}),
    ):
        with serving(ready, project, *options, port=at, env=env) as console:
            headers = {"Cookie": f"soong-agent-{console.port}={value}"}
            async with (
                aiohttp.ClientSession(headers=headers) as client,
                client.get(f"{console.address}/api/nothing") as response,
            ):
                statuses.append(response.status)
    assert statuses == [404, 401, 401]


async def test_the_token_signs_in_by_its_header_and_by_the_form(
    ready: Home, project: Path, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\nwhatever else\n")
    with serving(ready, project, "--token-file", str(token)) as console:
        async with browser() as client:
            for headers, expected in (
                (BEARER, 404),
                ({"Authorization": f"bearer  {TOKEN}"}, 404),
                ({"Authorization": f"Basic {TOKEN}"}, 401),
                ({"Authorization": TOKEN}, 401),
                ({"Authorization": "Bearer"}, 401),
                ({"Authorization": f"Bearer {TOKEN} x"}, 401),
                ({"X-Token": TOKEN}, 401),
                ({"Cookie": f"{console.cookie}={TOKEN}"}, 401),
            ):
                url = f"{console.address}/api/nothing"
                async with client.get(url, headers=headers) as response:
                    assert response.status == expected, headers
            for path in (f"/api/nothing?token={TOKEN}", f"/?access_token={TOKEN}", f"/{TOKEN}"):
                async with client.get(console.address + path) as response:
                    assert response.status == 401
            async with client.post(
                f"{console.address}/login", data={"token": TOKEN}, allow_redirects=False
            ) as response:
                assert response.status == 303
            async with client.get(f"{console.address}/api/nothing") as response:
                assert response.status == 404
        code, out, err = console.end()
    assert (code, out, err) == (0, "", "")
    kept = [path for path in ready.path.rglob("*") if path.is_file()]
    assert [path for path in kept if TOKEN.encode() in path.read_bytes()] == []


async def test_after_ten_wrong_tokens_further_ones_wait_and_who_is_signed_in_does_not(
    ready: Home, project: Path
) -> None:
    with serving(ready, project, *TOKEN_OPTION) as console:
        url = f"{console.address}/api/nothing"
        async with signed_in(console) as inside, browser() as client:
            statuses: list[int] = []
            retry_after: str | None = None
            for number in range(6):
                wrong = {"Authorization": f"Bearer wrong-{number}"}
                async with client.get(url, headers=wrong) as response:
                    statuses.append(response.status)
                async with client.post(
                    f"{console.address}/login", data={"code": f"wrong-{number}"}
                ) as response:
                    statuses.append(response.status)
                    retry_after = response.headers.get("Retry-After")
            assert statuses == [401] * 10 + [429] * 2
            assert retry_after is not None
            assert 0 < int(retry_after) <= 60
            async with inside.get("/api/nothing") as response:
                assert response.status == 404
            async with client.get(url, headers=BEARER) as response:
                assert response.status == 404
            async with client.get(url) as response:  # without any token
                assert response.status == 401


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
async def test_a_browser_signs_in_with_the_link_and_then_with_the_token(
    ready: Home, project: Path, tmp_path: Path
) -> None:
    with serving(ready, project, *TOKEN_OPTION) as console:
        async with tab(tmp_path) as page:
            await page.open(console.link)
            await page.click("Sign in")
            await page.until("location.pathname === '/'")
            assert await page.run("document.cookie") == ""
            await page.run("fetch('/logout', {method: 'POST'}).then(() => location.assign('/'))")
            await page.until("document.querySelector('input[type=password]')")
            await page.run(f"document.querySelector('#token').value = '{TOKEN}'")
            await page.click("Sign in")
            await page.until("location.pathname === '/' && !document.querySelector('#token')")
            # A page of another origin signs nobody in, and posts nothing.
            await page.run(f"location.assign('http://localhost:{console.port}/login')")
            await page.until("location.hostname === 'localhost' && document.body")
            await page.run(f"document.forms[0].action = '{console.address}/login'")
            await page.run(f"document.querySelector('#token').value = '{TOKEN}'")
            await page.run(
                "addEventListener('securitypolicyviolation', e => { window.refused = e })"
            )
            await page.run("document.forms[0].submit()")
            await page.until("window.refused && refused.effectiveDirective === 'form-action'")


def test_a_server_warns_of_what_others_can_read_or_guess(
    ready: Home, project: Path, certified: None
) -> None:
    tls = ("--tls-cert", "cert.pem", "--tls-key", "key.pem")
    said: list[int] = []
    short = {"CONSOLE_TOKEN": "short"}
    for options, env in (
        (OFF_LOOPBACK, short),
        (OFF_LOOPBACK, {}),
        ((*OFF_LOOPBACK, *tls), {}),
        ((), short),
    ):
        with serving(ready, project, *TOKEN_OPTION, *options, env=env) as console:
            code, out, err = console.end()
            assert (code, out) == (0, "")
            said.append(err.count("warning: "))
    assert said == [2, 1, 0, 1]


async def test_a_home_that_cannot_be_written_is_shown(ready: Home, project: Path) -> None:
    (ready.path / "console.key").mkdir()
    with serving(ready, project, "--read-only") as console:
        async with signed_in(console) as client, client.get("/api/sessions") as response:
            assert response.status == 200
        code, _, err = console.end()
    assert (code, "console.key" in err) == (0, True)


@pytest.mark.parametrize("options", [(), ("--read-only",)])
async def test_signing_out_ends_the_cookie_in_the_browser(
    ready: Home, project: Path, options: tuple[str, ...]
) -> None:
    with serving(ready, project, *options) as console:
        async with signed_in(console) as client:
            async with client.post("/logout", allow_redirects=False) as response:
                assert (response.status, response.headers["Location"]) == (303, "/login")
            async with client.get("/api/nothing") as response:
                assert response.status == 401


@pytest.fixture(scope="module")
def signed_out(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a console that nobody has signed in to."""
    home = configure(Home(tmp_path_factory.mktemp("home")), "http://127.0.0.1:9/v1")
    with serving(home, tmp_path_factory.mktemp("project"), *TOKEN_OPTION) as console:
        yield console.address


@together(
    ("languages", "found"),
    [
        ("", "en"),
        ("zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("en-GB,en;q=0.9,zh;q=0.8", "en"),
        ("zh;q=0.1,en;q=0", "zh"),
        ("fr", "en"),
        ("zh;q=x", "en"),
    ],
)
async def test_a_browser_that_is_not_signed_in_gets_the_form_in_its_language(
    signed_out: str, languages: str, found: str
) -> None:
    headers = {"Accept": "text/html,*/*;q=0.8", "Accept-Language": languages}
    async with (
        browser() as client,
        client.get(f"{signed_out}/sessions/x", headers=headers) as response,
    ):
        page = await response.text()
        assert response.status == 401
        assert response.headers["WWW-Authenticate"] == "Bearer"
        assert response.content_type == "text/html"
    assert f'<html lang="{found}">' in page
    assert 'method="post" action="/login"' in page
    assert "<script" not in page


async def test_tls_is_its_own_and_the_cookie_is_then_secure(
    ready: Home, project: Path, certified: None
) -> None:
    context = ssl.create_default_context(cafile=project / "cert.pem")
    options = ("--tls-cert", "cert.pem", "--tls-key", "key.pem")
    with serving(ready, project, *options) as console:
        assert console.link.startswith("https://127.0.0.1:")
        connector = aiohttp.TCPConnector(ssl=context)
        async with (
            aiohttp.ClientSession(connector=connector) as client,
            client.post(
                f"{console.address}/login", data={"code": console.code}, allow_redirects=False
            ) as response,
        ):
            assert response.status == 303
            assert "Secure" in response.headers["Set-Cookie"].split("; ")
