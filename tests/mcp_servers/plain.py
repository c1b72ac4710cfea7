"""An MCP server of the 2025 protocol in plain Python: small, quick to start, and as rude as asked.

`python plain.py [trait…]`; each trait is one bad habit, see `TRAITS`. What it does wrong is the
point: nothing of the SDK is between a test and the bytes.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TRAITS = set(sys.argv[1:])
DIARY = os.environ.get("PLAIN_DIARY")
_lock = threading.Lock()
_cancelled: set[Any] = set()
_listed: list[Any] = []


def note(line: str) -> None:
    """Write down what happened, for the test to read."""
    if DIARY:
        with Path(DIARY).open("a", encoding="utf-8") as diary:
            diary.write(line + "\n")


def send(message: dict[str, Any]) -> None:
    raw(json.dumps({"jsonrpc": "2.0", **message}))


def raw(line: str) -> None:
    if "bom" in TRAITS:
        line = f"\ufeff{line}"
    if "pretty" in TRAITS:
        line = json.dumps(json.loads(line), indent=2)
    with _lock:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def text(value: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value}]}


def schema(**properties: str) -> dict[str, Any]:
    fields = {name: {"type": kind} for name, kind in properties.items()}
    return {"type": "object", "properties": fields, "required": list(properties)}


def listing() -> list[dict[str, Any]]:
    readonly = {"annotations": {"readOnlyHint": True}}
    tools: list[dict[str, Any]] = [
        {"name": "echo", "description": "Says it again.", "inputSchema": schema(text="string")}
        | readonly,
        {"name": "write", "description": "Changes something.", "inputSchema": schema()},
        {"name": "long", "inputSchema": schema(length="integer")} | readonly,
        {"name": "slow", "inputSchema": schema(seconds="number")} | readonly,
        {"name": "march", "inputSchema": schema(steps="integer", pause="number")} | readonly,
        {"name": "die", "inputSchema": schema()},
        {"name": "environment", "inputSchema": schema()} | readonly,
        {"name": "raw", "inputSchema": schema(line="string")} | readonly,
        {"name": "change", "inputSchema": schema()},
        {
            "name": "ask",
            "inputSchema": {
                "type": "object",
                "properties": {"method": {"type": "string"}, "params": {"type": "object"}},
                "required": ["method"],
            },
        }
        | readonly,
    ]
    if "typed" in TRAITS:
        typed = {
            "name": "typed",
            "inputSchema": schema(line="string"),
            "outputSchema": schema(n="integer"),
        }
        tools.append(typed)
    if "changed" in TRAITS:
        tools[1]["description"] = "Changes something else."
    if "contradictory" in TRAITS:
        hints: dict[str, dict[str, Any]] = {
            "both": {"readOnlyHint": True, "destructiveHint": True},
            "both_as_text": {"readOnlyHint": True, "destructiveHint": "true"},
            "both_as_numbers": {"readOnlyHint": 1, "destructiveHint": 1},
            "neither": {"readOnlyHint": False, "destructiveHint": False},
            "unsaid": {"readOnlyHint": None},
            "reads": {"readOnlyHint": True, "destructiveHint": False},
        }
        tools += [
            {"name": name, "inputSchema": schema(), "annotations": given}
            for name, given in hints.items()
        ]
    if "open" in TRAITS:
        hints = {
            "fetch": {"readOnlyHint": True, "openWorldHint": True},
            "fetch_as_text": {"readOnlyHint": True, "openWorldHint": "true"},
            "fetch_as_number": {"readOnlyHint": True, "openWorldHint": 1},
            "closed": {"readOnlyHint": True, "openWorldHint": False},
            "unsaid_world": {"readOnlyHint": True, "openWorldHint": None},
            "publish": {"openWorldHint": True},
        }
        tools += [
            {"name": name, "inputSchema": schema(), "annotations": given}
            for name, given in hints.items()
        ]
    if "unclear" in TRAITS:
        unclear: dict[str, Any] = {
            "reads": {"readOnlyHint": True, "title": "Reads", "openWorldHint": "maybe"},
            "text": {"readOnlyHint": "true"},
            "number": {"readOnlyHint": 1},
            "fraction": {"readOnlyHint": 1.0},
            "yes": {"readOnlyHint": "yes"},
            "on": {"readOnlyHint": "on"},
            "null": {"readOnlyHint": None},
            "word": {"readOnlyHint": "maybe"},
            "list": {"readOnlyHint": [True]},
            "table": {"readOnlyHint": {"value": True}},
            "snake": {"read_only_hint": True},
            "perhaps_destroys": {"readOnlyHint": True, "destructiveHint": "perhaps"},
            "destroys_zero": {"readOnlyHint": True, "destructiveHint": 0},
            "no_table": [True],
            "title_only": {"readOnlyHint": "true", "title": 7},
        }
        tools += [
            {"name": name, "inputSchema": schema(), "annotations": given}
            for name, given in unclear.items()
        ]
    if "reports" in TRAITS:
        tools.append({"name": "meta", "inputSchema": schema()} | readonly)
    if "twice" in TRAITS:
        tools.append(tools[0])
    tools += json.loads(os.environ.get("PLAIN_TOOLS", "[]"))
    if "many" in TRAITS:
        tools = [{"name": f"t{number}", "inputSchema": schema()} for number in range(1001)]
    if "unusable" in TRAITS:
        vast = {"type": "object", "description": "x" * 300_000}
        broken = {"type": "object", "properties": {"a": {"type": "nonsense"}}}
        tools += [
            {"name": "vast", "inputSchema": vast},
            {"name": "broken", "inputSchema": broken},
            {"name": "odd name/", "inputSchema": schema()},
        ]
    return tools


class AnsweredElsewhereError(Exception):
    """This call is answered elsewhere, or never."""


def echo(call: "Call") -> str:
    return call.arguments["text"]


def write(_: "Call") -> str:
    return "written"


def long(call: "Call") -> str:
    return "x" * call.arguments["length"]


def slow(call: "Call") -> str:
    end = time.monotonic() + call.arguments["seconds"]
    while time.monotonic() < end:
        time.sleep(0.01)
        if call.request_id in _cancelled and "deaf" not in TRAITS:
            note("stopped slow")
            raise AnsweredElsewhereError
    return "slept"


def march(call: "Call") -> str:
    for step in range(call.arguments["steps"]):
        time.sleep(call.arguments["pause"])
        params = {"progressToken": call.meta.get("progressToken"), "progress": step + 1}
        send({"method": "notifications/progress", "params": {**params, "message": "left"}})
    return "arrived"


def die(_: "Call") -> str:
    sys.stderr.write("I am done for\n")
    sys.stderr.flush()
    os._exit(3)


def environment(_: "Call") -> str:
    return json.dumps(dict(os.environ))


def meta(call: "Call") -> str:
    return json.dumps(call.meta)


def any_line(call: "Call") -> str:
    raw(call.arguments["line"].replace("ID", json.dumps(call.request_id)))
    raise AnsweredElsewhereError


def change(_: "Call") -> str:
    TRAITS.symmetric_difference_update({"changed"})
    send({"method": "notifications/tools/list_changed"})
    return "changed"


def ask(call: "Call") -> str:
    send(
        {"id": "q1", "method": call.arguments["method"], "params": call.arguments.get("params", {})}
    )
    raise AnsweredElsewhereError  # by what our question is answered with, see `serve`


WORK: dict[str, Callable[["Call"], str]] = {
    "echo": echo,
    "write": write,
    "long": long,
    "slow": slow,
    "march": march,
    "die": die,
    "environment": environment,
    "meta": meta,
    "raw": any_line,
    "typed": any_line,
    "change": change,
    "ask": ask,
}


@dataclass
class Call:
    request_id: Any
    name: str
    arguments: dict[str, Any]
    meta: dict[str, Any]

    def run(self) -> None:
        note(f"call {self.name}")
        try:
            result = text(WORK.get(self.name, write)(self))
        except AnsweredElsewhereError:
            return
        send({"id": self.request_id, "result": result})


def answer(message: dict[str, Any]) -> None:
    request_id, params = message.get("id"), message.get("params", {})
    match message.get("method"):
        case "initialize":
            capabilities = {"tools": {"listChanged": True}}
            info = {"name": "plain", "version": "1"}
            send(
                {
                    "id": request_id,
                    "result": {
                        "protocolVersion": params["protocolVersion"],
                        "capabilities": capabilities,
                        "serverInfo": info,
                    },
                }
            )
        case "tools/list":
            note("list")
            if "endless" in TRAITS:
                result: dict[str, Any] = {"tools": [], "nextCursor": "more"}
            elif "PLAIN_CURSORS" in os.environ:
                cursors = json.loads(
                    os.environ["PLAIN_CURSORS"]
                )  # one after another, round and round
                _listed.append(params.get("cursor"))
                result = {
                    "tools": listing(),
                    "nextCursor": cursors[(len(_listed) - 1) % len(cursors)],
                }
            else:
                result = {"tools": listing()}
            send({"id": request_id, "result": result})
        case "tools/call":
            made = Call(
                request_id, params["name"], params.get("arguments", {}), params.get("_meta", {})
            )
            threading.Thread(target=made.run, daemon=True).start()
        case "notifications/cancelled":
            _cancelled.add(params["requestId"])
            note("cancelled")
        case str() if request_id is not None:
            send({"id": request_id, "error": {"code": -32601, "message": "no such method"}})
        case _:
            pass


def refuse_probe(message: dict[str, Any]) -> None:
    """Do what servers do that expect `initialize` and nothing else first."""
    if "strict" in TRAITS:
        sys.exit(f"expected initialize, but received {message.get('method')}")
    if "strict_quiet" in TRAITS:
        sys.exit(0)
    if "strict_later" in TRAITS:
        send({"id": message["id"], "error": {"code": -32600, "message": "initialize first"}})
        sys.exit("not initialized")
    for _ in sys.stdin:  # its state is broken: it reads, and never answers again
        pass


def serve() -> None:
    last_call: Any = None
    for number, line in enumerate(sys.stdin):
        message = json.loads(line)
        strict = TRAITS & {"strict", "strict_deaf", "strict_quiet", "strict_later"}
        if strict and number == 0 and message.get("method") != "initialize":
            note("probed")
            refuse_probe(message)
        if message.get("method") == "tools/call":
            last_call = message["id"]
        if message.get("id") == "q1" and "method" not in message:
            send(
                {
                    "id": last_call,
                    "result": text(json.dumps(message.get("error", message.get("result")))),
                }
            )
            continue
        answer(message)


def misbehave() -> None:
    """What is wrong from the start."""
    if "crash" in TRAITS:
        sys.exit("this server never works")
    if "child" in TRAITS:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        note(f"child {child.pid}")
    if "daemon" in TRAITS and os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            note(f"child {os.getpid()}")
            os.closerange(0, 64)
            sleep = ["x", "-ISc", "import time; time.sleep(600)"]
            os.execve(sys.executable, sleep, {})  # noqa: S606
        os._exit(0)
    if "stubborn" in TRAITS:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "chatty" in TRAITS:
        raw("Welcome! This server prints a greeting.")
        sys.stderr.write("noise \x1b]0;title\x07\n" * 200)
        sys.stderr.flush()
    while "bomb" in TRAITS:
        sys.stdout.write("x" * 65_536)


def main() -> None:
    note(f"start {os.getpid()}")
    misbehave()
    if "mute" not in TRAITS:
        serve()
    while TRAITS & {"mute", "stubborn"}:
        time.sleep(60)


main()
