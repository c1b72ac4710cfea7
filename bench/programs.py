"""The same programs in this SDK and in others: lines, time on the clock, CPU.

    python programs.py                       # ours, and every peer that is installed
    python programs.py --install             # make the peers' environments first
    python programs.py -r 7 -p extract ours pydantic_ai
    python programs.py --lines               # only count lines
    python programs.py --page                # and write the tables of docs/recipes/README.md

Ours are the recipes of examples/recipes and what is in programs/ours, the peers' are in
programs/<peer>, written as their own documents write them and formatted by the same formatter. All talk to one scripted model server
(programs/model.py), which takes 20 ms for each answer. Every sample is a fresh process of the
program, and what it prints or serves is checked. Lines are those that are neither blank nor
comments nor the docstring on top; the page of the web service is the same file for all and is not
counted.
"""

import argparse
import ast
import json
import os
import platform
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RECIPES = ROOT / "examples" / "recipes"
FOLDERS = [RECIPES, HERE / "programs" / "ours", ROOT / "examples" / "agcore"]
PAGE = ROOT / "docs" / "recipes" / "README.md"
PROGRAMS = {  # name: what it is
    "typed_answer": "a typed answer from a text",
    "database_tool": "a tool with dependencies and a database",
    "terminal_chat": "a chat in the terminal, words as they come",
    "remote_approval": "a call that is approved in another process",
    "multi_agent": "a writer with a researcher and a critic, one budget",
    "handoffs": "a desk: triage hands over to two specialists",
    "extract": "100 files into typed rows, ten at once, with a budget",
    "resume": "a job that continues after its process was killed",
    "typed_agent": "a typed agent with a tool, and its test without a model",
    "web_service": "a web service: words as they come, approvals, cancelling",
    "coding_agent": "a coding agent: allowed tools, questions, a hook, an own tool",
    "chat_bot": "a chat bot: many users, long chats, memory, old chats",
    "stopping_service": "a service that ends cleanly with open streams",
}
OURS = "ours"
FILES, WEB_RUNS = 100, 20
DESK = """\
(triage -> rentals)
The tandem is yours for 5 days.
(rentals -> triage)
(triage -> workshop)
See you on Monday at 9:00.
Customer(rentals={'tandem': 5}, appointment='Monday at 9:00')
""".splitlines()
BEES = "Bees dance to tell where food is. Say how far the food is, too."
PEERS = {  # name: packages, how it names the model
    "claude_agent": (["claude-agent-sdk"], "claude-sonnet-4-5"),
    "pydantic_ai": (["pydantic-ai-slim[openai]"], "openai-chat:gpt-5-mini"),
    "pydantic_harness": (
        ["pydantic-ai-harness", "pydantic-ai-slim[openai]"],
        "openai-chat:gpt-5-mini",
    ),
    "openai_agents": (["openai-agents"], "gpt-5-mini"),
    "langgraph": (["langchain", "langgraph", "langchain-openai"], "openai:gpt-5-mini"),
    "agno": (["agno", "openai", "sqlalchemy[asyncio]"], "gpt-5-mini"),
}
NEEDED = ["aiosqlite", "starlette", "uvicorn"]
QUIET = {
    "AGNO_TELEMETRY": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LANGSMITH_TRACING": "false",
    "NO_PROXY": "127.0.0.1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "PYTHONWARNINGS": "ignore",
}
# OpenAI Agents speaks Responses unless it is told otherwise; the server speaks Chat Completions.
PRELUDE = {"openai_agents": "import agents; agents.set_default_openai_api('chat_completions');"}
SCRIPT = (
    "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
)
SERVICE = (
    "import sys, uvicorn; sys.path.insert(0, sys.argv[1]); import web_service;"
    "uvicorn.run(web_service.app, port=int(sys.argv[2]), log_level='error')"
)


@dataclass
class Side:
    """One SDK: its programs and the interpreter that has it."""

    name: str
    folders: list[Path]
    python: Path
    model: str

    def file(self, program):
        """The program, or None."""
        files = [folder / f"{program}.py" for folder in self.folders]
        return next((file for file in files if file.exists()), None)

    def command(self, code, *arguments):
        return [str(self.python), "-c", PRELUDE.get(self.name, "") + code, *map(str, arguments)]

    def environment(self, port, program, scratch):
        url = f"http://127.0.0.1:{port}/{program}/v1"
        model = f"{self.model}@{url}" if self.name == OURS else self.model
        own = {"MODEL": model, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": "sk-fake"}
        own |= {"ANTHROPIC_BASE_URL": url.removesuffix("/v1"), "ANTHROPIC_API_KEY": "sk-fake"}
        own |= {"SOONG_AGENT_HOME": str(scratch / "home"), "HOME": str(scratch)}
        own |= {"PAGE": str(RECIPES / "web_service.html")}
        return os.environ | QUIET | own


def sides(venvs):
    found = [Side(OURS, FOLDERS, Path(sys.executable), "openai:gpt-5-mini")]
    for name, (_, model) in PEERS.items():
        python = venvs / name / "bin" / "python"
        found.append(Side(name, [HERE / "programs" / name], python, model))
    return found


def install(venvs):
    for name, (packages, _) in PEERS.items():
        if not (folder := venvs / name).exists():
            print(f"making {folder}", file=sys.stderr, flush=True)
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
            pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
            subprocess.run([*pip, *packages, *NEEDED], check=True)


def versions(side):
    code = (
        "import sys, importlib.metadata as m;"
        "print(*(f'{p} {m.version(p)}' for p in sys.argv[1:]), sep=', ')"
    )
    packages = PEERS[side.name][0] if side.name in PEERS else ["soong-agent"]
    names = [package.split("[")[0] for package in packages]
    asked = [str(side.python), "-c", code, *names]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def lines_of(file):
    text = file.read_text(encoding="utf-8")
    docstring = ast.parse(text).body[0].end_lineno
    lines = map(str.strip, text.splitlines()[docstring:])
    return sum(bool(line) and not line.startswith("#") for line in lines)


# ---- what the programs work on ----------------------------------------------


def lay_out(scratch):
    (scratch / "invoices").mkdir()
    for number in range(FILES):
        text = f"Invoice INV-{number:04} for Customer {number} Ltd.\n\nTotal: {number}.50 EUR\n"
        (scratch / "invoices" / f"{number:03}.txt").write_text(text, encoding="utf-8")
    (scratch / "failures.txt").write_text("test_total: 3 + 4 is not -1\n", encoding="utf-8")
    (scratch / "total.py").write_text("def total(a, b):\n    return a - b\n", encoding="utf-8")
    (scratch / "uv.lock").write_text("1\n", encoding="utf-8")
    with sqlite3.connect(scratch / "shop.db") as database:
        database.execute("CREATE TABLE orders (customer, item, price)")
        rows = [("Ada Lovelace", "lamp", 49.0), ("Ada Lovelace", "desk", 120.5)]
        rows.append(("Alan Turing", "chair", 60.0))
        database.executemany("INSERT INTO orders VALUES (?, ?, ?)", rows)
    database.close()


@contextmanager
def model_server():
    command = [sys.executable, str(HERE / "programs" / "model.py")]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield int(server.stdout.readline())
    finally:
        server.kill()
        server.wait()


# ---- the programs, run and checked -------------------------------------------


def check_typed(printed):
    found = {"title": "Lunch", "day": "2026-12-24", "people": ["Ada", "Alan"]}
    assert json.loads(printed) == found, printed


def check_extract(printed):
    rows = [json.loads(line) for line in printed.splitlines()]
    assert len(rows) == FILES, printed[:500]
    for number, row in enumerate(rows):
        expected = {"number": f"INV-{number:04}", "customer": f"Customer {number} Ltd"}
        assert row == expected | {"total": number + 0.5, "currency": "EUR"}, row


def check_database_tool(printed):
    rows = ast.literal_eval(re.search(r"\[.*\]", printed, re.S).group())
    assert rows == [{"item": "lamp", "price": 49.0}, {"item": "desk", "price": 120.5}], printed


def check_multi_agent(printed):
    assert printed.strip() == BEES, printed


def check_nothing(printed):
    """The program asserts its answer itself."""


def check_handoffs(printed):
    assert printed.splitlines() == DESK, printed


def check_coding(printed):
    assert "I look at the failures. " in printed, printed
    assert "It adds now. The lock file stays." in printed, printed


SCRIPTS = {  # name: arguments, what it reads, how what it prints is checked
    "typed_answer": ([], "Lunch with Ada and Alan on Christmas Eve.", check_typed),
    "extract": (["invoices"], "", check_extract),
    "database_tool": (["shop.db", "What did Ada order?"], "", check_database_tool),
    "multi_agent": (["bees"], "", check_multi_agent),
    "typed_agent": ([], "", check_nothing),
    "coding_agent": (["Fix the failing test in {}."], "y\n", check_coding),
    "handoffs": ([], "Keep the tandem for 3 more days.\nAnd repair it.\n", check_handoffs),
}


def run_script(side, program, port, scratch):
    arguments, read, check = SCRIPTS[program]
    arguments = [argument.format(scratch) for argument in arguments]
    command = side.command(SCRIPT, side.file(program), *arguments)
    environment = side.environment(port, program.split("_")[0], scratch)
    printed, wall, cpu = run_process(command, scratch, environment, read)
    check(printed)
    return wall, cpu


def run_process(command, scratch, environment, read=""):
    """What a process prints, its seconds and its CPU seconds."""
    began = time.perf_counter()
    with tempfile.TemporaryFile() as typed:
        typed.write(read.encode())
        typed.seek(0)
        pipes = {"stdin": typed, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        child = subprocess.Popen(command, cwd=scratch, env=environment, **pipes)
    printed, complained = child.stdout.read(), child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    wall = time.perf_counter() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, complained.decode()[-2000:]
    return printed.decode(), wall, usage.ru_utime + usage.ru_stime


def run_terminal(side, program, port, scratch):
    """A chat goes on in a second process."""
    environment = side.environment(port, "terminal", scratch)
    command = side.command(SCRIPT, side.file(program), "chat")
    printed, *first = run_process(command, scratch, environment, "Hello.\nAgain.\n")
    assert printed.splitlines() == ["You said 1 things.", "You said 2 things."], printed
    printed, *second = run_process(command, scratch, environment, "And now?\n")
    assert printed.splitlines() == ["You said 3 things."], printed
    return tuple(map(sum, zip(first, second, strict=True)))


def run_remote(side, program, port, scratch):
    """A process asks, another one answers."""
    environment = side.environment(port, "remote", scratch)
    took = []
    for decision, expected in (("yes", "Order 7 is refunded."), ("no", "I may not.")):
        ask = side.command(SCRIPT, side.file(program), "ask", "Refund order 7.")
        request, *used = run_process(ask, scratch, environment)
        answer = side.command(SCRIPT, side.file(program), "answer", request.strip(), decision)
        printed, *also = run_process(answer, scratch, environment)
        assert printed.strip() == expected, printed
        took += [used, also]
    return tuple(map(sum, zip(*took, strict=True)))


def run_resume(side, program, port, scratch):
    """A job is killed in its second step; what was measured is not measured again."""
    environment = side.environment(port, "resume", scratch) | {"PYTHONUNBUFFERED": "1"}
    command = side.command(SCRIPT, side.file(program))
    slow = environment | {"SECONDS": "0.3"}
    child = subprocess.Popen(command, cwd=scratch, env=slow, stdout=subprocess.PIPE)
    while b"2" not in (line := child.stdout.readline()):
        assert line, "it has not come to its second step"
    child.kill()
    child.wait()
    printed, *used = run_process(command, scratch, environment | {"SECONDS": "0"})
    assert printed.splitlines()[:2] == ["measuring 2", "measuring 3"], printed
    assert all(value in printed for value in ("1.5", "3.0", "4.5")), printed
    return tuple(used)


def run_chats(side, program, port, scratch):
    """A bot is told much, and started anew; it remembers, has forgotten nothing, and deletes."""
    environment = side.environment(port, "chat", scratch)
    command = side.command(SCRIPT, side.file(program))
    told = ["ada c1 Remember that I like short answers."]
    told += [f"ada long {number} {'word ' * 2000}" for number in range(14)]
    _, *first = run_process(command, scratch, environment, "\n".join(told))
    asked = ["ada c2 What do I like?", "bob c1 What do I like?", "ada long How long is it?"]
    asked += ["ada c1 /chats", "ada c1 /delete", "ada c1 /chats"]
    printed, *second = run_process(command, scratch, environment, "\n".join(asked))
    likes, nothing, length, chats, deleted, left = printed.splitlines()
    assert (likes, nothing) == ("ada c2: Short answers.", "bob c1: I do not know."), printed
    assert int(re.search(r"(\d+) kB", length)[1]) < 120, length
    assert all(chat in chats for chat in ("c1", "c2", "long")), chats
    assert deleted == "ada c1: deleted", deleted
    assert "c1" not in left.partition(":")[2], left
    return tuple(map(sum, zip(first, second, strict=True)))


class Service:
    """A running web service, as its page uses it."""

    def __init__(self, url):
        self.url = url

    def post(self, path, body=None):
        data = b"" if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method="POST")
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.read()

    def start(self, session, message="Write to Ada"):
        asked = {"message": message, "session": session}
        return json.loads(self.post("/runs", asked))["run_id"]

    def events(self, run_id, last_id=None):
        headers = {} if last_id is None else {"Last-Event-ID": last_id}
        request = urllib.request.Request(f"{self.url}/runs/{run_id}/events", headers=headers)
        event = {}
        with urllib.request.urlopen(request, timeout=30) as response:
            for line in map(bytes.decode, response):
                if line.strip():
                    key, _, value = line.rstrip("\n").partition(": ")
                    event[key] = value
                elif "data" in event:
                    yield event.get("id"), event["event"], json.loads(event["data"])
                    event = {}

    def converse(self, session, allow):
        """One run with its question; everything that the page is sent."""
        seen = []
        run_id = self.start(session)
        for number, kind, payload in self.events(run_id):
            seen.append((number, kind, payload))
            if kind == "permission_requested":
                self.post(f"/questions/{payload['request_id']}", {"allow": allow})
        return run_id, seen


def check_service(service):
    run_id, seen = service.converse("checked", allow=True)
    assert seen[-1][1:] == ("run_completed", seen[-1][2]), seen[-1]
    assert seen[-1][2]["result"].endswith("The mail is on its way."), seen[-1]
    complete = text = ""
    for _, kind, payload in seen:
        if kind == "model_text_delta":
            text = payload["text"] if payload.get("from_start") else text + payload["text"]
        elif kind == "message_completed":
            complete, text = complete + text, ""
    assert complete + text == "I will write to her. The mail is on its way.", complete + text
    asked = next(number for number, kind, _ in seen if kind == "permission_requested")
    again = list(service.events(run_id, asked))  # the connection broke right after the question
    assert again[-1][1:] == seen[-1][1:], again[-1]
    assert "permission_requested" not in [kind for _, kind, _ in again], again
    _, seen = service.converse("checked", allow=False)
    assert seen[-1][2]["result"].endswith("I have not sent it."), seen[-1]
    run_id = service.start("cancelled")
    for _, kind, _ in service.events(run_id):
        if kind == "permission_requested":
            service.post(f"/runs/{run_id}/cancel")
    assert kind == "run_cancelled", kind


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def started(command, own, scratch, environment):
    """A server that answers, and its client."""
    server = subprocess.Popen(command, cwd=scratch, env=environment)
    url = f"http://127.0.0.1:{own}"
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            break
        except urllib.error.HTTPError:
            break
        except OSError:
            assert server.poll() is None, "the service has ended"
            time.sleep(0.05)
    return server, Service(url)


def run_stopping(side, program, port, scratch):
    """A service is stopped while it streams; the next one continues the conversation."""
    cpu = 0.0
    began = time.perf_counter()
    for signal_, message in ((signal.SIGTERM, "Tell a story."), (signal.SIGINT, "How often?")):
        environment = side.environment(port, "stopping", scratch) | {"PORT": str(free_port())}
        command = side.command(SCRIPT, side.file(program))
        server, service = started(command, int(environment["PORT"]), scratch, environment)
        kinds, texts = [], []
        for _, kind, payload in service.events(service.start("told", message)):
            if kind == "model_text_delta" and not texts and "story" in message:
                server.send_signal(signal_)
            kinds.append(kind)
            texts += [payload["text"]] if kind == "model_text_delta" else []
        expected = "run_cancelled" if "story" in message else "run_completed"
        assert kinds[-1] == expected, kinds
        if "story" not in message:
            server.send_signal(signal_)
        _, status, usage = os.wait4(server.pid, 0)
        server.returncode = os.waitstatus_to_exitcode(status)
        assert server.returncode == 0, server.returncode
        cpu += usage.ru_utime + usage.ru_stime
    # A framework that does not store what it asks before the answer has forgotten the first one.
    assert "".join(texts) in ("You have asked 2 times.", "You have asked 1 times."), texts
    return time.perf_counter() - began, cpu


def run_service(side, _, port, scratch):
    own = free_port()
    environment = side.environment(port, "web", scratch)
    command = side.command(SERVICE, side.file("web_service").parent, own)
    server, service = started(command, own, scratch, environment)
    try:
        check_service(service)
        began = time.perf_counter()
        for number in range(WEB_RUNS):
            service.converse(f"s{number}", allow=True)
        wall = time.perf_counter() - began
    finally:
        server.terminate()
        _, status, usage = os.wait4(server.pid, 0)
        server.returncode = os.waitstatus_to_exitcode(status)
    return wall, usage.ru_utime + usage.ru_stime


RUNNERS = {
    "terminal_chat": run_terminal,
    "remote_approval": run_remote,
    "resume": run_resume,
    "chat_bot": run_chats,
    "web_service": run_service,
    "stopping_service": run_stopping,
}
MEASURED = [*SCRIPTS, *RUNNERS]


def measure(chosen, program, repeats):
    """Medians by side; the sides take turns, so that what else the machine does meets all of them."""
    run = RUNNERS.get(program, run_script)
    samples = {side.name: [] for side in chosen}
    with model_server() as port:
        for _ in range(repeats):
            for side in chosen:
                print(f"{program} {side.name}", file=sys.stderr, flush=True)
                with tempfile.TemporaryDirectory() as folder:
                    lay_out(Path(folder))
                    samples[side.name].append(run(side, program, port, Path(folder)))
    found = {}
    for name, taken in samples.items():
        walls, cpus = zip(*taken, strict=True)
        found[name] = {"wall_s": median(walls), "cpu_s": median(cpus)}
    return found


# ---- the tables ----------------------------------------------------------------


def table_of_lines(chosen):
    """How long each program is; a side without it has a dash."""
    rows = ["| program |" + "".join(f" {side.name} |" for side in chosen)]
    rows.append("|---" * (len(chosen) + 1) + "|")
    for program, what in PROGRAMS.items():
        files = [side.file(program) for side in chosen]
        cells = [str(lines_of(file)) if file else "–" for file in files]
        rows.append(f"| `{program}`: {what} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def table_of_figures(results):
    rows = ["| program | |" + "".join(f" {name} |" for name in results)]
    rows.append("|---" * (len(results) + 2) + "|")
    for program in MEASURED:
        for shown, key in (("seconds", "wall_s"), ("CPU seconds", "cpu_s")):
            found = [side.get(program) for side in results.values()]
            if not any(found):
                continue
            cells = [f"{each[key]:.2f}" if each else "–" for each in found]
            name = f"`{program}`" if key == "wall_s" else ""
            rows.append(f"| {name} | {shown} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def write(name, shown):
    """Put a table between its marks on the page."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.split(begin)[0], text.split(end)[1]
    PAGE.write_text(f"{before}{begin}\n\n{shown}\n\n{end}{after}", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sides", nargs="*", help="default: ours and every peer that is installed")
    parser.add_argument("-r", "--repeats", type=int, default=5)
    parser.add_argument("-p", "--programs", default=",".join(MEASURED))
    parser.add_argument("--venvs", type=Path, default=HERE / "venvs" / "programs")
    parser.add_argument("--install", action="store_true", help="make the peers' environments")
    parser.add_argument("--lines", action="store_true", help="count only, and run nothing")
    parser.add_argument("--page", action="store_true", help="write the page's tables")
    options = parser.parse_args()
    if options.install:
        install(options.venvs)
    everyone = sides(options.venvs)
    print(shown := table_of_lines(everyone))
    if options.page:
        write("lines", shown)
    if options.lines:
        return
    load = os.getloadavg()[0]
    chosen = [
        side
        for side in everyone
        if side.name in (options.sides or [side.name]) and side.python.exists()
    ]
    results = {side.name: {} for side in chosen}
    for program in options.programs.split(","):
        having = [side for side in chosen if side.file(program)]
        for name, found in measure(having, program, options.repeats).items():
            results[name][program] = found
    where = f"CPython {platform.python_version()}, {os.cpu_count()} cores"
    loads = f"load average {load:.1f} before and {os.getloadavg()[0]:.1f} after"
    shown = table_of_figures(results)
    shown += (
        f"\n\nMedians of {options.repeats} on {date.today()}, {where}, {loads}:"
        f" {'; '.join(map(versions, chosen))}."
    )
    print(shown)
    if options.page:
        write("figures", shown)


if __name__ == "__main__":
    main()
