"""An editor that speaks the Agent Client Protocol with the real command, and checks every line.

    with Editor(home) as editor:
        session_id = editor.open(project)
        reply = editor.prompt(session_id, "hello")
        assert reply.text == "hi"

Each line both ways is validated against the JSON Schema of the protocol's own models, and, where
`ACP_TEST_NPM` names a folder with the npm package `@agentclientprotocol/sdk`, against the published
schema as well. Questions are answered as `editor.answers` says, by the id of an option, in order;
the last one stays. `editor.messages` has everything that the agent has sent, in order.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from queue import Empty, Queue
from types import TracebackType
from typing import Any, Self

import acp.schema
import jsonschema
from pydantic import BaseModel

from isolation import Home

WAIT_S = 50.0
NPM = "ACP_TEST_NPM"
FROM_AGENT = ("session/request_permission", "fs/", "terminal/", "elicitation/")
COMMAND = (sys.executable, "-m", "agent_core.cli", "acp")

TAKES: dict[str, type[BaseModel]] = {
    "initialize": acp.schema.InitializeRequest,
    "authenticate": acp.schema.AuthenticateRequest,
    "session/new": acp.schema.NewSessionRequest,
    "session/load": acp.schema.LoadSessionRequest,
    "session/resume": acp.schema.ResumeSessionRequest,
    "session/fork": acp.schema.ForkSessionRequest,
    "session/list": acp.schema.ListSessionsRequest,
    "session/close": acp.schema.CloseSessionRequest,
    "session/delete": acp.schema.DeleteSessionRequest,
    "session/set_mode": acp.schema.SetSessionModeRequest,
    "session/set_config_option": acp.schema.SetSessionConfigOptionSelectRequest,
    "session/prompt": acp.schema.PromptRequest,
    "session/cancel": acp.schema.CancelNotification,
    "session/update": acp.schema.SessionNotification,
    "session/request_permission": acp.schema.RequestPermissionRequest,
    "elicitation/create": acp.schema.CreateFormSessionElicitationRequest,
    "$/cancel_request": acp.schema.CancelRequestNotification,
}
GIVES: dict[str, type[BaseModel]] = {
    "initialize": acp.schema.InitializeResponse,
    "session/new": acp.schema.NewSessionResponse,
    "session/load": acp.schema.LoadSessionResponse,
    "session/resume": acp.schema.ResumeSessionResponse,
    "session/fork": acp.schema.ForkSessionResponse,
    "session/list": acp.schema.ListSessionsResponse,
    "session/close": acp.schema.CloseSessionResponse,
    "session/delete": acp.schema.DeleteSessionResponse,
    "session/set_mode": acp.schema.SetSessionModeResponse,
    "session/set_config_option": acp.schema.SetSessionConfigOptionResponse,
    "session/prompt": acp.schema.PromptResponse,
    "session/request_permission": acp.schema.RequestPermissionResponse,
}


@cache
def _validator(model: type[BaseModel]) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(model.model_json_schema(by_alias=True))


@cache
def _published(name: str) -> jsonschema.Draft202012Validator | None:
    if (folder := os.environ.get(NPM)) is None:
        return None
    place = "node_modules/@agentclientprotocol/sdk/schema/v1/schema.unstable.json"
    definitions = json.loads(Path(folder, place).read_text(encoding="utf-8"))["$defs"]
    name = {
        "SetSessionConfigOptionSelectRequest": "SetSessionConfigOptionRequest",
        "CreateFormSessionElicitationRequest": "CreateElicitationRequest",
    }.get(name, name)
    return jsonschema.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": definitions})


def check(model: type[BaseModel], value: object) -> None:
    """Fail if a value does not fit the protocol's schema."""
    for validator in (_validator(model), _published(model.__name__)):
        if validator is not None:
            validator.validate(value)  # pyright: ignore[reportUnknownMemberType]


def check_line(message: Mapping[str, Any], asked: dict[object, str]) -> None:
    """Fail if a message of either side does not fit; `asked` holds what is not answered yet."""
    if (method := message.get("method")) is not None:
        check(TAKES[method], message.get("params"))
        asked[method.startswith(FROM_AGENT), message.get("id")] = method
    elif "error" in message:
        check(acp.schema.Error, message["error"])
    else:
        found = [asked.pop((each, message["id"]), None) for each in (False, True)]
        check(GIVES[next(filter(None, found))], message["result"])


class EditorError(Exception):
    """The agent has answered a request with an error."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(str(error["message"]))
        self.code = int(error["code"])
        self.data = error.get("data")


@dataclass
class Reply:
    """What came of a prompt, and what was shown meanwhile."""

    stop_reason: str
    updates: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    @property
    def text(self) -> str:
        return text_of(self.updates)


def text_of(updates: list[dict[str, Any]], kind: str = "agent_message_chunk") -> str:
    """The text of the chunks of one kind."""
    found = (each["content"]["text"] for each in updates if each["sessionUpdate"] == kind)
    return "".join(found)


class Editor:
    """The client's side of one connection."""

    def __init__(self, home: Home, *arguments: str, form: Mapping[str, Any] | None = None) -> None:
        self.form = form
        self.process = subprocess.Popen(  # noqa: S603 - our own command
            [*COMMAND, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=home.env(),
        )
        self.answers: list[str | None] = ["allow_once"]
        self.asked: list[dict[str, Any]] = []
        self.cancelled: list[int] = []
        self.updates: list[dict[str, Any]] = []
        self.stray: list[dict[str, Any]] = []
        self.messages: list[dict[str, Any]] = []
        self.errors = ""
        self._asked: dict[int, str] = {}
        self._early: dict[int, dict[str, Any]] = {}
        self._number = 0
        self._incoming: Queue[dict[str, Any] | None] = Queue()
        self.is_gone = False
        self._reads = threading.Event()
        self._reads.set()
        self._readers = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Self:
        can: dict[str, Any] = {"elicitation": {"form": {}}} if self.form is not None else {}
        self.request("initialize", protocolVersion=1, clientCapabilities=can)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        code = self.close()
        assert error is not None or code == 0, self.errors

    def close(self) -> int:
        """Close the connection, and return the exit code."""
        self.read_on()
        assert self.process.stdin is not None
        if not self.process.stdin.closed:
            self.process.stdin.close()
        return self._wait()

    def kill(self) -> None:
        """End the agent as a crash would; what was not read is not read any more."""
        self.is_gone = True
        self.read_on()
        self.process.kill()
        self._wait()

    def _wait(self) -> int:
        code = self.process.wait(WAIT_S)
        for reader in self._readers:
            reader.join(WAIT_S)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()
        return code

    def open(self, project: Path, servers: list[dict[str, Any]] | None = None) -> str:
        """A new session in the project."""
        made = self.request("session/new", cwd=str(project), mcpServers=servers or [])
        return str(made["sessionId"])

    def load(self, session_id: str, project: Path) -> list[dict[str, Any]]:
        """What a session shows when it is loaded."""
        before = len(self.updates)
        self.request("session/load", sessionId=session_id, cwd=str(project), mcpServers=[])
        return self.updates[before:]

    def prompt(self, session_id: str, *content: str | dict[str, Any]) -> Reply:
        """Send a message, and wait for its end."""
        return self.finish(self.begin(session_id, *content))

    def begin(self, session_id: str, *content: str | dict[str, Any]) -> int:
        """Send a message, and return the number of its request."""
        blocks = [{"type": "text", "text": c} if isinstance(c, str) else c for c in content]
        return self.ask("session/prompt", sessionId=session_id, prompt=blocks)

    def finish(self, number: int) -> Reply:
        """Wait for the end of a message."""
        before = len(self.updates)
        result = self.result(number)
        return Reply(result["stopReason"], self.updates[before:])

    def request(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask, and wait for the answer."""
        return self.result(self.ask(method, **params))

    def ask(self, method: str, **params: Any) -> int:
        """Send a request, and return its number."""
        self._number += 1
        self._asked[self._number] = method
        self._send_checked({"id": self._number, "method": method, "params": params})
        return self._number

    def notify(self, method: str, **params: Any) -> None:
        """Send a notification."""
        self._send_checked({"method": method, "params": params})

    def result(self, number: int) -> dict[str, Any]:
        """The answer to a request."""
        while True:
            message = self._early.pop(number, None) or self.take()
            assert message is not None, f"the agent has ended: {self.errors}"
            if "method" not in message and message.get("id") == number:
                if "error" in message:
                    check(acp.schema.Error, message["error"])
                    raise EditorError(message["error"])
                check(GIVES[self._asked.pop(number)], message["result"])
                return message["result"]
            self.handle(message)

    def handle(self, message: dict[str, Any]) -> None:
        """Do what the agent asks for."""
        if "method" not in message and message.get("id") in self._asked:
            self._early[message["id"]] = message
            return
        if "method" not in message:
            self.stray.append(message)
            return
        method = str(message["method"])
        params: dict[str, Any] = message["params"]
        check(TAKES[method], params)
        if method == "session/update":
            self.updates.append(params["update"])
        elif method == "$/cancel_request":
            self.cancelled.append(params["requestId"])
        elif method == "elicitation/create":
            self.asked.append(message)
            answered = {"action": "accept", "content": self.form}
            self.send({"id": message["id"], "result": answered})
        else:
            self.asked.append(message)
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            if answer is not None:
                self.decide(message, answer)

    def decide(self, asked: Mapping[str, Any], option_id: str) -> None:
        """Answer a question: the id of an option, or `cancelled`."""
        outcome = {"outcome": "selected", "optionId": option_id}
        if option_id == "cancelled":
            outcome = {"outcome": "cancelled"}
        check(acp.schema.RequestPermissionResponse, {"outcome": outcome})
        self.send({"id": asked["id"], "result": {"outcome": outcome}})

    def until_asked(self) -> dict[str, Any]:
        """Wait for the next question, which is left open, and return it."""
        self.answers = [None]
        seen = len(self.asked)
        self.until(lambda: len(self.asked) > seen)
        return self.asked[-1]

    def until(self, happened: Callable[[], object]) -> None:
        """Read messages until something has happened."""
        while not happened():
            message = self.take()
            assert message is not None, f"the agent has ended: {self.errors}"
            self.handle(message)

    def _send_checked(self, message: dict[str, Any]) -> None:
        check(TAKES[message["method"]], message["params"])
        self.send(message)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message as it is."""
        self.send_raw(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def send_raw(self, data: bytes) -> None:
        """Send bytes."""
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def take(self) -> dict[str, Any] | None:
        """The next message; None if there will be none."""
        try:
            message = self._incoming.get(timeout=WAIT_S)
        except Empty:
            raise AssertionError(f"the agent says nothing: {self.errors}") from None
        if message is None:
            self._incoming.put(None)
        else:
            self.messages.append(message)
        return message

    def stop_reading(self) -> None:
        """Read nothing more than one line, so that the agent soon cannot write."""
        self._reads.clear()

    def read_on(self) -> None:
        """Read again."""
        self._reads.set()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._reads.wait()
            if self.is_gone:
                return
            message = json.loads(line)
            assert message["jsonrpc"] == "2.0"
            self._incoming.put(message)
        self._incoming.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors += line.decode(errors="replace")
