"""The tutorial about operating: its blocks are run, in order, and its files are what they claim."""

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

import warm
from agent_core.api.monitor import WorkerFigures, metrics_text
from agent_core.cli.arguments import build_parser
from agent_core.providers.scripted import Hangs, calls
from agent_core.types.workers import QueueDepth
from isolation import Home
from model_server import ModelServer
from page_terminals import EVERY, Terminals, blocks_of, eventually, free_port
from postgres import Server

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorials" / "operate.md"
FILES = ROOT / "examples" / "tutorials" / "operate"
UNITS = sorted(FILES.glob("*.service"))
REPLIES = [
    calls("code.write_file", path="list.md", content="- bread\n"),
    Hangs(),
    "There is one file.",
    "The list is in list.md.",
]


@dataclass
class Walk:
    """The page as somebody works through it."""

    terminals: Terminals
    model: ModelServer
    ports: dict[str, str]
    open: dict[str, ExitStack] = field(default_factory=dict[str, ExitStack])

    def __post_init__(self) -> None:
        self._rest = iter([each for each in blocks_of(PAGE) if each[0] != EVERY])

    def _next(self, terminal: str) -> str:
        title, commands = next(self._rest)
        assert title == terminal
        for port, free in self.ports.items():
            commands = commands.replace(port, free)
        # All addresses of the machine, in place of the one that the page names.
        port = self.ports["8642"]
        commands = commands.replace("--host 10.0.0.5", f"--port {port} --host 0.0.0.0")
        return commands.replace("//10.0.0.5:", "//127.0.0.1:")

    def do(self, terminal: str = "yours") -> str:
        """Run the next block to its end; what it prints."""
        return self.terminals.run(terminal, self._next(terminal))

    def begin(self, terminal: str) -> "subprocess.Popen[bytes]":
        """Begin the next block, which goes on until `end`."""
        stack = self.open[terminal] = ExitStack()
        return stack.enter_context(self.terminals.running(terminal, self._next(terminal)))

    def end(self, terminal: str) -> None:
        """Press Ctrl-C in a terminal."""
        self.open.pop(terminal).close()

    def is_done(self) -> bool:
        return next(self._rest, None) is None

    def health(self, port: str) -> dict[str, Any]:
        """Return what a worker says about itself."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[port]}/healthz") as answer:
            return json.load(answer)

    def workers(self) -> list[dict[str, Any]]:
        lines = self.terminals.ask("workers", "--json").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


@contextmanager
def walk(home: Home, project: Path, server: Server) -> Generator[Walk]:
    folder = project / "operate"
    (folder / "project").mkdir(parents=True)
    (folder / "home").mkdir()
    environment = {**os.environ, "OPENAI_API_KEY": "k"}
    tools = folder / "bin"
    warm.write_command(tools)
    environment["PATH"] = os.pathsep.join(
        [str(tools), str(Path(sys.executable).parent), str(server.bin), os.environ["PATH"]]
    )
    server.sql("CREATE ROLE agent LOGIN PASSWORD 'password'")
    environment["PGPORT"] = str(server.port)  # the page has the usual one
    for variable, name in (("AGENT_DATABASE", "agents"), ("RESTORED", "restored")):
        server.sql(f"CREATE DATABASE {name} OWNER agent")
        environment[variable] = f"postgresql://agent:password@127.0.0.1:{server.port}/{name}"
    with ModelServer.in_thread(REPLIES) as model:
        config = (FILES / "config.toml").read_text("utf-8")
        address = f'name = "gpt-5-mini"\nbase_url = "{model.base_url("openai")}"'
        config = config.replace('name = "gpt-5-mini"', address)
        config += "\n[memory]\nenabled = false\n[worker]\ndrain_seconds = 0.2\n"
        (folder / "home" / "config.toml").write_text(config, "utf-8")
        walked = Walk(
            Terminals(PAGE, folder, environment),
            model,
            {port: str(free_port()) for port in ("9464", "9465", "8642")},
        )
        try:
            yield walked
        finally:
            for terminal in list(walked.open):
                walked.end(terminal)
        assert walked.is_done()
        model.assert_complete()


@pytest.mark.timeout(180)
def test_the_blocks_of_the_page_do_what_it_says(
    home: Home, project: Path, postgres_server: Server
) -> None:
    with walk(home, project, postgres_server) as page:
        page.do()
        page.begin("first worker")
        page.begin("second worker")
        eventually(lambda: len(page.workers()) == 2)
        assert "waiting for an answer to req_" in page.do()

        page.do()
        token = page.terminals.folder / "token"
        assert (token.stat().st_mode & 0o777, len(token.read_text())) == (0o600, 65)
        page.begin("console")
        eventually(lambda: _is_open(page.ports["8642"]))
        health, _, listed = page.do().partition("}")
        assert json.loads(health + "}") == {"status": "ok"}
        assert len(json.loads(listed)["items"]) == 2

        assert "soong_agent_database_up 1" in page.do()

        page.do()
        eventually(lambda: len(page.model.requests) == 2)
        busy = next(each for each in ("9464", "9465") if page.health(each)["running"])
        page.end("first worker" if busy == "9464" else "second worker")
        assert "There is one file." in page.do()

        page.do()
        for name in ("auth", "pgpass", "agents.dump", "home.tgz"):
            assert (page.terminals.folder / name).stat().st_mode & 0o777 == 0o600
        for terminal in list(page.open):
            page.end(terminal)
        answered = page.do("yours, with the restored database")
        assert re.search(r"^answered\nthe run waits: no worker is alive", answered, re.M)
        page.begin("a worker for the restored database")
        assert "- bread" in page.do("yours, with the restored database")


def test_an_alert_names_metrics_and_labels_that_workers_have() -> None:
    figures = WorkerFigures(
        worker_id="w",
        version="1",
        protocol=1,
        concurrency=4,
        running=0,
        started=1,
        ended={"failed": 1},
        parked=0,
        takeovers=0,
        handed_over=0,
        is_draining=False,
        heartbeat_age_s=0.1,
        is_alive=True,
        lanes=[
            QueueDepth(
                queue="default", place="host:a", tenant=None, protocol=1, depth=1, oldest_s=9.0
            )
        ],
    )
    samples = re.findall(r"^(soong_agent_\w+)(?:\{(.*)\})? ", metrics_text(figures), re.M)
    labels = {name: set(re.findall(r"(\w+)=", shown)) for name, shown in samples}
    (group,) = yaml.safe_load((FILES / "alerts.yml").read_text("utf-8"))["groups"]
    assert group["rules"]
    for rule in group["rules"]:
        (name,) = re.findall(r"soong_agent_\w+", rule["expr"])
        used = re.findall(r"(\w+)=", rule["expr"]) + re.findall(r"by \((.*?)\)", rule["expr"])
        assert {each.strip() for one in used for each in one.split(",")} <= labels[name], rule
        assert set(rule) <= {"alert", "expr", "for", "annotations"}


def test_a_unit_runs_a_command_of_ours_with_the_files_of_the_page(tmp_path: Path) -> None:
    program = shutil.which("true") or "/bin/true"
    for unit in UNITS:
        text = unit.read_text("utf-8")
        (line,) = re.findall(r"^ExecStart=/opt/soong-agent/bin/soong-agent (.*)$", text, re.M)
        options = build_parser().parse_args(line.replace("%i", "9464").split())
        stops = int(*re.findall(r"^TimeoutStopSec=(\d+)$", text, re.M))
        assert stops > getattr(options, "drain_seconds", 15)
        copy = tmp_path / unit.name
        copy.write_text(text.replace("/opt/soong-agent/bin/soong-agent", program), "utf-8")
        if analyze := shutil.which("systemd-analyze"):
            done = subprocess.run(  # noqa: S603
                [analyze, "verify", "--man=no", str(copy)],
                capture_output=True,
                text=True,
                check=False,
            )
            found = [each for each in done.stderr.splitlines() if unit.name in each]
            assert (done.returncode, found) == (0, [])
        else:
            sections = re.findall(r"^\[(\w+)\]$|^(\w+)=.+$|^$", text, re.M)
            assert [name for name, _ in sections if name] == ["Unit", "Service", "Install"]


def test_the_proxy_passes_on_what_the_console_needs() -> None:
    text = (FILES / "nginx.conf").read_text("utf-8")
    console = (ROOT / "docs" / "console.md").read_text("utf-8")
    (block,) = re.findall(r"^```nginx\n(.*?)^```$", console, re.S | re.M)
    shown, used = ({line.strip() for line in each.splitlines()} for each in (block, text))
    assert shown <= used


def _is_open(port: str) -> bool:
    done = subprocess.run(  # noqa: S603
        ["curl", "-fsS", f"http://127.0.0.1:{port}/healthz"],  # noqa: S607
        capture_output=True,
        check=False,
    )
    return done.returncode == 0
