"""`mcp add`, `add-json` and `remove`: the lines of READMEs, and what they do to `mcp.json`."""

import json
import os
import shlex
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import warm
from agent_core.cli.server_file import ServerFile
from agent_core.errors import ConfigError
from agent_core.mcp import StoredLogin
from agent_core.mcp.snippets import find_gaps, read_snippet
from command_lines import make_program
from isolation import Home
from runtimes import CONFIG, runtime
from sweeps import sampled
from tables import together

LIBRARY = str(Path(__file__).parents[1] / "mcp_servers" / "library.py")
NPX = {"command": "npx", "args": ["-y", "x-mcp"]}
FAR = {"url": "https://far.example/mcp"}


def mcp(
    home: Home, project: Path, *words: str, given: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-m", "agent_core.cli", "mcp", *words],
        env=home.env() | variables,
        cwd=project,
        input=given,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def servers(home: Home) -> dict[str, Any]:
    path = home.path / "mcp.json"
    if not path.exists():
        return {}
    found: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8-sig"))
    return found["mcpServers"]


@pytest.mark.parametrize(
    ("line", "expected"),
    sampled(
        [
            ("x -- npx -y x-mcp", NPX),
            ("x npx -y x-mcp", NPX),
            ("-- x -- npx -y x-mcp", NPX),
            ("x npx -- -y x-mcp", NPX),
            ("x --transport stdio -- npx -y x-mcp", NPX),
            ("-t stdio -s user x -- npx -y x-mcp", NPX),
            ("x --env A=1 -e B='2 3' -- npx -y x-mcp", NPX | {"env": {"A": "1", "B": "2 3"}}),
            ("--env A=1 B=2 x -- npx -y x-mcp", NPX | {"env": {"A": "1", "B": "2"}}),
            (
                "x --env=A=b=c --timeout 90000 npx -y x-mcp",
                NPX | {"env": {"A": "b=c"}, "timeout_ms": 90000},
            ),
            ("x --env HELD -- npx -y x-mcp", NPX | {"env": {"HELD": "from outside"}}),
            (
                "x -- prog --env C=d -- rest",
                {"command": "prog", "args": ["--env", "C=d", "--", "rest"]},
            ),
            ("x https://far.example/mcp", FAR),
            ("--transport http x https://far.example/mcp", FAR),
            ("x https://far.example/mcp --transport streamable-http", FAR),
            ("x --url https://far.example/mcp", FAR),
            ("x https://far.example/sse", {"url": "https://far.example/sse", "type": "sse"}),
            ("x -t sse https://far.example/mcp", FAR | {"type": "sse"}),
            ("x https://far.example/mcp -H 'X-Key: a:b c'", FAR | {"headers": {"X-Key": "a:b c"}}),
            ("x --header X-Key=a https://far.example/mcp", FAR | {"headers": {"X-Key": "a"}}),
            (
                "x --url https://far.example/mcp --bearer-token-env-var HELD",
                FAR | {"headers": {"Authorization": "Bearer from outside"}},
            ),
            (
                "x --client-id c1 --callback-port 3118 https://far.example/mcp",
                FAR | {"oauth": {"client_id": "c1", "redirect_port": 3118}},
            ),
        ],
        keep=3,
    ),
)
def test_the_lines_of_readmes_are_taken(
    line: str, expected: dict[str, Any], home: Home, project: Path
) -> None:
    done = mcp(home, project, "add", *shlex.split(line), HELD="from outside")
    assert done.returncode == 0, done.stderr
    assert servers(home) == {"x": expected}


SNIPPETS: list[dict[str, Any]] = [
    {"mcpServers": {"x": NPX}},
    {"servers": {"x": {"type": "stdio", **NPX}}, "inputs": []},
    {"mcp": {"servers": {"x": NPX}}},
    {"mcp": {"x": {"type": "local", "command": ["npx", "-y", "x-mcp"], "enabled": True}}},
    {"context_servers": {"x": {"source": "custom", **NPX, "env": {}}}},
    {"context_servers": {"x": {"command": {"path": "npx", "args": ["-y", "x-mcp"]}}}},
    {"amp.mcpServers": {"x": NPX}},
    {"mcpServers": [{"name": "x", **NPX}]},
    {"x": {**NPX, "disabled": False, "description": "what it does"}},
    {"name": "x", **NPX},
    {"name": "x", "command": "npx -y x-mcp"},
]


@pytest.mark.parametrize("snippet", sampled(SNIPPETS, keep=1))
def test_snippets_for_other_clients_are_taken(
    snippet: dict[str, Any], home: Home, project: Path
) -> None:
    text = json.dumps(snippet)
    ways = (
        (["add-json", text], ""),
        (["add", text], ""),
        (["add-json", "x", text], ""),
        (["add", "-"], "$ claude mcp add x \\\n  --scope user \\\n -- npx -y x-mcp\n"),
        (["add", "-"], "codex mcp add x -- npx -y x-mcp"),
        (["add-json", "x", "-"], text),
        (["add", "-"], f"code --add-mcp {shlex.quote(text)}"),
        (["add", "-"], f"claude mcp add-json x {shlex.quote(text)} --scope user"),
    )
    for words, given in ways if snippet is SNIPPETS[0] else sampled(ways, 1):
        done = mcp(home, project, *words, given=given)
        assert done.returncode == 0, (words, done.stderr)
        assert servers(home) == {"x": NPX}, words
        assert "left out" not in done.stderr
        assert mcp(home, project, "remove", "x").returncode == 0


README = """```sh
# Claude Code - don't forget the key
export KEY=1
claude mcp add x -- npx -y x-mcp   # (add --scope user for all projects)
claude mcp list
```
"""
LONG = """claude mcp add-json x '{
  "command": "npx",
  "args": ["-y", "x-mcp"]
}'
"""


@pytest.mark.parametrize(
    ("given", "expected", "left_out"),
    sampled([
        (README, NPX, ""),
        (LONG, NPX, ""),
        ("claude mcp add x 'npx -y x-mcp'", NPX, ""),
        ("`claude mcp add x -- npx -y x-mcp`\n", NPX, ""),
        (f"Add this:\n\n```json\n{json.dumps({'mcpServers': {'x': NPX}})}\n```\nRestart.", NPX, ""),
        ("claude mcp add x -- npx -y x-mcp && claude mcp list", NPX, ""),
        ("claude mcp add x npx -y me/repo#main", {"command": "npx", "args": ["-y", "me/repo#main"]},
         ""),
        ("gemini mcp add x npx -y x-mcp --trust", {**NPX, "args": [*NPX["args"], "--trust"]}, ""),
        ("gemini mcp add --trust --description 'a b' -s user x npx -y x-mcp", NPX,
         "--trust, --description"),
        ("copilot mcp add --tools '*' x -- npx -y x-mcp", NPX, "--tools"),
    ], keep=2),
)  # fmt: skip
def test_lines_with_what_stands_around_them_are_taken(
    given: str, expected: dict[str, Any], left_out: str, home: Home, project: Path
) -> None:
    done = mcp(home, project, "add", "-", given=given)
    assert done.returncode == 0, done.stderr
    assert servers(home) == {"x": expected}
    assert left_out in done.stderr
    assert ("left out" in done.stderr) == bool(left_out)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("claude mcp add a -- b\ncodex mcp add a -- b\n", "2 command lines"),
        ("npx -y x-mcp", "neither JSON nor a command line"),
        ("claude mcp add x 'npx", "neither JSON nor a command line"),
    ],
)
def test_a_text_without_one_server_is_refused_with_the_reason(
    given: str, said: str, home: Home, project: Path
) -> None:
    done = mcp(home, project, "add", "-", given=given)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert servers(home) == {}


@pytest.mark.sweep
@together("text", ["\n", " ", "```\n", "'", "\\\n", " #", "{,", "/*", "<"])
def test_a_snippet_is_read_in_a_time_that_grows_with_its_length(text: str) -> None:
    with pytest.raises(ValueError, match=r"it is|not JSON"):
        read_snippet(text * 300_000)


@together(
    ("command", "words"),
    [
        ("npx -y x-mcp", ["npx", "-y", "x-mcp"]),
        ("/bin/sh run.sh", ["/bin/sh", "run.sh"]),
        ("/Applications/My App.app/mcp", ["/Applications/My App.app/mcp"]),
        ("/opt/no-such --port 1", ["/opt/no-such", "--port", "1"]),
        ("C:\\Program Files\\x\\mcp.exe", ["C:\\Program Files\\x\\mcp.exe"]),
        ("C:\\x\\mcp.exe --port 1", ["C:\\x\\mcp.exe", "--port", "1"]),
        ("uvx 'a b'", ["uvx", "a b"]),
    ],
)
def test_a_command_with_spaces_is_a_path_or_a_command_line(command: str, words: list[str]) -> None:
    found = read_snippet(json.dumps({"x": {"command": command}})).servers["x"]
    assert [found["command"], *found.get("args", [])] == words


@together(
    "entry",
    [
        {"command": "a", "env": ["A=b"]},
        {"command": "a", "env_vars": "A"},
        {"command": ["a"], "args": "b"},
        {"command": "a 'b"},
        {"command": "a", "env": {"A=$(touch b)": "<c>"}},
        {"command": "a", "env": {"A\u001b[31m": "b"}},
        {"url": "https://far.example/", "headers": ["a"]},
        {"url": "https://far.example/", "headers": {"a';touch b;'": "<c>"}},
        {"url": ["https://far.example/"]},
        {"url": "https://far.example/", "bearer_token_env_var": {"a": 1}},
        {"url": "https://far.example/", "oauth": "a"},
    ],
)
def test_an_entry_of_the_wrong_form_is_an_error_that_repeats_none_of_it(
    entry: dict[str, Any],
) -> None:
    with pytest.raises(
        ValueError, match=r"must be|has a name with other signs|quotation"
    ) as caught:
        read_snippet(json.dumps({"x": entry}))
    assert "touch" not in str(caught.value)
    assert "\u001b" not in str(caught.value)


@together(
    ("snippet", "expected"),
    [
        ('"x": {"command": "npx", "args": ["-y", "x-mcp"]},', NPX),
        ('[mcp_servers.x]\ncommand = "npx"\nargs = ["-y", "x-mcp"]\n', NPX),
        ('{"x": {"serverUrl": "https://far.example/mcp"}}', FAR),
        ('{"x": {"httpUrl": "https://far.example/mcp", "headers": {}}}', FAR),
        ('{"x": {"url": "https://far.example/mcp", "type": "streamableHttp"}}', FAR),
        ('{"x": {"url": "https://far.example/mcp", "type": "remote"}}', FAR),
        (
            '{"x": {"command": "npx", "args": ["--port", 80], "env": {"N": 3, "ON": true}}}',
            {"command": "npx", "args": ["--port", "80"], "env": {"N": "3", "ON": "true"}},
        ),
        ('{"x": {"command": "npx", "isActive": false}}', {"command": "npx", "disabled": True}),
        (
            '{"x": {"command": "npx", "args": ["a//b", "/*c*/", "d,}"], "env": {"U": "http://u"}}}',
            {"command": "npx", "args": ["a//b", "/*c*/", "d,}"], "env": {"U": "http://u"}},
        ),
        (
            '{"x": {"command": "npx", "args": ["--header", "K:${KEY}"], "env": {"KEY": "v-1"}}}',
            {"command": "npx", "args": ["--header", "K:${KEY}"], "env": {"KEY": "v-1"}},
        ),
    ],
)
def test_spellings_of_entries(snippet: str, expected: dict[str, Any]) -> None:
    found = read_snippet(snippet)
    assert found.servers == {"x": expected}
    assert find_gaps(expected) == {}
    assert found.left_out == []


@pytest.mark.sweep
def test_several_servers_come_together_and_keys_without_a_meaning_are_named(
    home: Home, project: Path
) -> None:
    snippet = {
        "mcpServers": {
            "Framelink MCP": NPX | {"autoApprove": ["*"], "trust": True},
            "mcp": FAR | {"env": {"A": "b"}},
        }
    }
    done = mcp(home, project, "add-json", json.dumps(snippet))
    assert done.returncode == 0, done.stderr
    assert servers(home) == {"Framelink-MCP": NPX, "mcp": FAR}
    assert "left out, because it has no meaning here" in done.stderr
    for key in ("Framelink MCP.autoApprove", "Framelink MCP.trust", "mcp.env"):
        assert key in done.stderr
    assert mcp(home, project, "add-json", "other", json.dumps(snippet)).returncode == 2
    renamed = mcp(home, project, "add-json", "other", json.dumps({"mcpServers": {"y": FAR}}))
    assert renamed.returncode == 0, renamed.stderr
    assert servers(home)["other"] == FAR


@together(
    ("fields", "places"),
    [
        ({"env": {"API_KEY": "YOUR_API_KEY"}}, ["env.API_KEY"]),
        ({"env": {"API_KEY": "<your key>"}}, ["env.API_KEY"]),
        ({"env": {"A": "${input:token}", "B": "${B}", "C": "$C"}}, ["env.A", "env.B", "env.C"]),
        ({"env": {"GITHUB_TOKEN": "", "NOTE": ""}}, ["env.GITHUB_TOKEN"]),
        ({"env": {"T": "ghp_xxxxxxxx", "U": "sk-...", "V": "****"}}, ["env.T", "env.U", "env.V"]),
        ({"env": {"T": "BRAVE_API_KEY"}}, ["env.T"]),
        ({"env": {"HOST": "https://yourcompany.example.net"}}, ["env.HOST"]),
        ({"env": {"T": "ghp_aB3dE5", "MODE": "PROD_EU", "P": "password"}}, []),
        ({"headers": {"Authorization": "Bearer ${env:TOKEN}"}}, ["headers.Authorization"]),
        ({"headers": {"Authorization": "Bearer {env:TOKEN}"}}, ["headers.Authorization"]),
        ({"env": {"T": "put-token-here", "WHERE": "there"}}, ["env.T"]),
        ({"env": {"A": "REPLACE_ME", "B": "changeme", "C": "replaced"}}, ["env.A", "env.B"]),
        ({"headers": {"Authorization": "Bearer "}}, ["headers.Authorization"]),
        ({"headers": {"Authorization": "Bearer a.b.c", "X-Mode": "x"}}, []),
        (
            {"args": ["/path/to/dir", "--key=YOUR-KEY", "${workspaceFolder}"]},
            ["args[0]", "args[1]", "args[2]"],
        ),
        ({"args": ["-e", "GITHUB_TOKEN", "a<b", "./...", "{{.ID}}"]}, []),
        ({"url": "https://{region}.example/mcp"}, ["url"]),
        ({"url": "https://far.example/mcp?key=YOUR_KEY"}, ["url"]),
        ({"command": "/path/to/uv"}, ["command"]),
    ],
)
def test_placeholders_are_found(fields: dict[str, Any], places: list[str]) -> None:
    assert list(find_gaps(fields)) == places


@pytest.mark.sweep
def test_a_placeholder_is_refused_with_its_cure_and_filled_by_an_option(
    home: Home, project: Path
) -> None:
    snippet = json.dumps(
        {
            "inputs": [{"id": "token", "type": "promptString", "description": "GitHub token"}],
            "servers": {"gh": NPX | {"env": {"GITHUB_TOKEN": "${input:token}", "MODE": "ro"}}},
        }
    )
    done = mcp(home, project, "add-json", snippet)
    assert (done.returncode, done.stdout) == (2, "")
    assert "gh has a placeholder to fill in: env.GITHUB_TOKEN (GitHub token)" in done.stderr
    assert "add it again with --env GITHUB_TOKEN=…" in done.stderr
    assert not (home.path / "mcp.json").exists()
    secret = "ghs_16C7e42F292c6912E7710c838347Ae178B4a"  # noqa: S105 - made up
    done = mcp(home, project, "add-json", snippet, "--env", "GITHUB_TOKEN", GITHUB_TOKEN=secret)
    assert done.returncode == 0, done.stderr
    assert servers(home)["gh"]["env"] == {"GITHUB_TOKEN": secret, "MODE": "ro"}
    assert "mcp.json holds GITHUB_TOKEN as given; only you can read it" in done.stderr
    far = json.dumps({"far": FAR | {"headers": {"Authorization": "Bearer <token>"}}})
    refused = mcp(home, project, "add-json", far)
    assert "--header 'Authorization: …'" in refused.stderr
    header = f"Authorization: Bearer {secret}"
    done = mcp(home, project, "add", "-", "--header", header, given=far)
    assert done.returncode == 0, done.stderr
    assert servers(home)["far"]["headers"] == {"Authorization": f"Bearer {secret}"}


def test_no_secret_is_shown(home: Home, project: Path) -> None:
    secret = "s3cr3t-of-the-test-0123456789"  # noqa: S105 - made up
    for words in (
        ["a", "--env", f"KEY={secret}", "--", "npx", "--api-key", secret],
        ["b", f"https://far.example/mcp?key={secret}", "--header", f"X-Key: {secret}"],
        ["a", "--env", f"KEY={secret}", "--", "npx"],
        ["a b", "--env", f"KEY={secret}", "--", "npx"],
        ["c", "--env", f"KEY={secret}", "OTHER=<x>", "--", "npx"],
        ["d", "--env", f"KEY={secret}", "https://far.example/mcp"],
    ):
        done = mcp(home, project, "add", *words)
        assert secret not in done.stdout + done.stderr, words
    done = mcp(home, project, "add", "-", given=f'{{"x": {{"command": 5, "env": {{"A": "{secret}"')
    assert (done.returncode, secret in done.stderr) == (2, False)
    assert secret in (home.path / "mcp.json").read_text(encoding="utf-8")
    assert stat.S_IMODE((home.path / "mcp.json").stat().st_mode) == 0o600


@together(
    ("words", "code", "said"),
    sampled(
        [
            ([], 2, "a name is missing"),
            (["x"], 2, "a command or an address is missing"),
            (["a b", "npx"], 2, "a-b would do"),
            (["x", "ftp://far.example/mcp"], 2, "url must be an http or https address"),
            (["x", "https://me:pw@far.example/mcp"], 2, "must not contain credentials"),
            (["x", "https://far.example/mcp", "more"], 2, "'more' is unexpected"),
            (["x", "--bogus", "--", "npx"], 2, "unrecognized arguments: --bogus"),
            (["x", "--env", "A B", "--", "npx"], 2, "NAME=VALUE is needed"),
            (["x", "--env", "NOT_SET_ANYWHERE", "--", "npx"], 2, "NOT_SET_ANYWHERE is not set"),
            (
                ["x", "--header", "nothing", "https://far.example/"],
                2,
                "a name and a value are needed",
            ),
            (["x", "--header", "K: é", "https://far.example/"], 2, "printable ASCII"),
            (["x", "--env", "A=b", "https://far.example/mcp"], 2, "--env is for a command"),
            (["x", "--header", "K: v", "--", "npx"], 2, "--header is for an address"),
            (['{"x": {"command": "a", "env": ["A=b"]}}'], 2, "env must be an object"),
            (["x", "--transport", "http", "--", "npx"], 2, "does not fit x, which is a command"),
            (["x", "--transport", "ws", "--", "npx"], 2, "invalid choice: 'ws'"),
            (["x", "--", ""], 2, "the command is empty"),
            (["-"], 2, "it is empty"),
            (["{}"], 2, "it has no server"),
            (['{"mcpServers": {"x": {"command": }}}'], 2, "line 1: not JSON"),
            (['{"x": {"command": "a"}, "x": {"command": "b"}}'], 2, "given twice"),
            (['{"command": "a"}'], 2, "does not name its server"),
            (["[" * 100_000], 2, "nested too deeply"),
            (["taken", "--", "npx"], 1, "has a server taken already; nothing was added"),
            (
                ['{"new": {"command": "a"}, "taken": {"command": "b"}}'],
                1,
                "has a server taken already",
            ),
        ],
        keep=8,
    ),
)
def test_what_cannot_be_added_is_refused_and_nothing_is_written(
    words: list[str], code: int, said: str, home: Home, project: Path
) -> None:
    before = '{"mcpServers":{"taken":{"command":"mine"}}}'
    home.write("mcp.json", before)
    done = mcp(home, project, "add", *words)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert len(done.stderr.splitlines()) <= 2
    assert done.stdout == ""
    assert (home.path / "mcp.json").read_text(encoding="utf-8") == before


def test_a_name_that_is_taken_is_replaced_on_request_only(home: Home, project: Path) -> None:
    assert mcp(home, project, "add", "x", "--", "one").returncode == 0
    assert mcp(home, project, "add", "y", "--", "two").returncode == 0
    refused = mcp(home, project, "add", "x", "--", "three")
    assert (refused.returncode, "--replace" in refused.stderr) == (1, True)
    assert mcp(home, project, "add", "x", "--replace", "--", "three").returncode == 0
    assert list(servers(home).items()) == [("x", {"command": "three"}), ("y", {"command": "two"})]


LAYOUTS = [
    '{\n  "mcpServers": {\n    "one": {"command": "1"},\n    "two": {\n      "command": "2"\n    }\n  }\n}\n',  # noqa: E501
    '{"mcpServers":{"one":{"command":"1"},"two":{"command":"2"}}}',
    '{\n\t"mcpServers": {\n\t\t"one": { "command" : "1" } ,\n\t\t"two": {"command": "2"}\n\t}\n}',
    '{\r\n  "mcpServers": {\r\n    "one": {"command": "1"},\r\n    "two": {"command": "2"}\r\n  }\r\n}\r\n',  # noqa: E501
    '\ufeff{ "mcpServers" : { "one": {"command": "1"}, "two": {"command": "\\u00e9 }{"} } }\n',
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_rest_of_the_file_stays(layout: str, home: Home, project: Path) -> None:
    path = home.path / "mcp.json"
    path.write_bytes(layout.encode())
    file = ServerFile(home.path, project)
    known = json.loads(layout.removeprefix("\ufeff"))["mcpServers"]
    long = {"command": "x", "args": ["word"] * 30}
    file.put({"new": NPX, "long": long}, replaces=False)
    text = path.read_bytes().decode()
    assert servers(home) == known | {"new": NPX, "long": long}
    assert ("\r\n" in layout) == ("\r\n" in text)
    assert not ("\r\n" in layout and "\n" in text.replace("\r\n", ""))
    assert text.startswith("\ufeff") == layout.startswith("\ufeff")
    file.put({"one": FAR}, replaces=True)
    assert next(iter(servers(home).items())) == ("one", FAR)
    file.put({"one": known["one"]}, replaces=True)
    file.remove("new")
    file.remove("long")
    kept = path.read_bytes().decode()
    assert json.loads(kept.removeprefix("\ufeff")) == {"mcpServers": known}
    assert kept.partition('"two"')[2] == layout.partition('"two"')[2]
    for name in ("one", "two"):
        file.remove(name)
    assert servers(home) == {}


@pytest.mark.parametrize("text", [None, "", " \n", "{}", "{\n}\n", '{"mcpServers": {}}'])
def test_a_file_without_servers_gets_its_first(text: str | None, home: Home, project: Path) -> None:
    path = home.path / "mcp.json"
    if text is not None:
        home.write("mcp.json", text)
        if not text.strip():  # for a start it is a mistake, and stays one
            with pytest.raises(ConfigError, match="not JSON"):
                ServerFile(home.path, project).put({"x": NPX}, replaces=False)
            return
    ServerFile(home.path, project).put({"x": NPX}, replaces=False)
    assert servers(home) == {"x": NPX}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.long
def test_a_broken_file_is_named_and_stays(home: Home, project: Path) -> None:
    for broken in ('{"mcpServers": {"a": {"command": 1}}}', "{", '{"mcpServers": {"a": {}}}', "[]"):
        home.write("mcp.json", broken)
        for words in (["add", "x", "--", "npx"], ["remove", "a"]):
            done = mcp(home, project, *words)
            assert done.returncode == 2, done.stderr
            assert "the MCP servers in" in done.stderr
            assert (home.path / "mcp.json").read_text(encoding="utf-8") == broken


def test_a_link_stays_one_and_its_file_becomes_private(
    home: Home, project: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "servers.json"
    kept.write_text('{"mcpServers": {}}', encoding="utf-8")
    kept.chmod(0o644)
    (home.path / "mcp.json").symlink_to(kept)
    ServerFile(home.path, project).put({"x": NPX}, replaces=False)
    assert (home.path / "mcp.json").is_symlink()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert servers(home) == {"x": NPX}


def test_writers_at_once_lose_nothing(home: Home, project: Path) -> None:
    def add(number: int) -> None:
        ServerFile(home.path, project).put({f"s{number}": NPX}, replaces=False)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(12)))
    assert len(servers(home)) == 12


@pytest.mark.sweep
def test_a_server_that_was_added_answers(home: Home, project: Path) -> None:
    done = mcp(home, project, "add", "lib", "--", sys.executable, *warm.arguments(LIBRARY))
    assert done.returncode == 0, done.stderr
    assert "cannot be started" not in done.stderr
    assert "to try it: soong-agent mcp test lib" in done.stderr
    assert mcp(home, project, "list").stdout.split()[0] == "lib"
    assert mcp(home, project, "test", "lib").returncode == 0
    missing = mcp(home, project, "add", "gone", "--", "no-such-program-anywhere")
    assert missing.returncode == 0
    assert "gone cannot be started yet: there is no program" in missing.stderr


def test_a_removal_deletes_the_login_and_names_what_still_speaks_of_the_server(
    home: Home, project: Path
) -> None:
    for name in ("far", "twin"):
        assert mcp(home, project, "add", name, FAR["url"]).returncode == 0
    StoredLogin(home.path, FAR["url"]).write(tokens={"access_token": "t-0123456789"})
    first = mcp(home, project, "remove", "far")
    assert (first.returncode, "login" in first.stderr) == (0, False)
    assert StoredLogin(home.path, FAR["url"]).read()
    home.write_config(
        'model = "ollama:none"\n[tools.mcp]\ndisabled_servers = ["twin"]\n'
        '[tools.mcp.tool_overrides."mcp.twin.x"]\npermission = "readonly"\n'
    )
    second = mcp(home, project, "remove", "twin")
    assert second.returncode == 0, second.stderr
    assert "removed twin from mcp.json, and deleted its login" in second.stderr
    assert "still names mcp.twin.x, twin" in second.stderr
    assert not StoredLogin(home.path, FAR["url"]).read()
    assert mcp(home, project, "remove", "twin").returncode == 1
    assert mcp(home, project, "remove").returncode == 2


@pytest.mark.parametrize(
    "argv",
    [
        ["soong-agent", "mcp", "add", "--env", "A=b", "x", "--", "evil"],
        ["soong-agent", "mcp", "add-json", '{"x": {"command": "evil"}}'],
        ["sh", "-c", "echo '{}' | soong-agent mcp add -"],
        ["python3", "-m", "agent_core.cli", "mcp", "remove", "x"],
    ],
)
async def test_no_command_of_the_agent_changes_the_servers(
    argv: list[str], home: Home, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_program(tmp_path / "soong-agent")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    allows = '[[permissions.rules]]\ndecision = "allow"\ncommand = ["*"]\n'
    async with runtime(home, project, config=CONFIG + allows) as engine:
        found = await engine.explain_permission("code.run_command", {"argv": argv})
    assert (found.decision, found.by) == ("deny", "the program's own files")


def test_the_commands_are_completed_and_their_help_fits(home: Home, project: Path) -> None:
    for action in ("add", "add-json", "remove"):
        shown = mcp(home, project, action, "--help", COLUMNS="80")
        assert shown.returncode == 0
        assert max(map(len, shown.stdout.splitlines())) <= 80
    assert "mcp add" in mcp(home, project, "--help").stdout
    script = subprocess.run(
        [sys.executable, "-m", "agent_core.cli", "completion", "bash"],
        env=home.env(),
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    ).stdout
    assert "add add-json remove" in script
    assert "--replace" in script
