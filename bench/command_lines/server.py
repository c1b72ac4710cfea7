"""A model server on 127.0.0.1 that records every request, for measuring command-line agents.

It speaks OpenAI Chat Completions and Responses, Anthropic Messages and Gemini, streamed or not,
and answers "done". If it is given a file, it first calls the client's own tool that reads a file
(its shell with `cat` where there is none), once per conversation. Standard library only.
"""

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ANSWER = "done"
READERS = ("read_file", "read", "readfile", "view", "file_editor", "read_files")
SHELLS = (
    "bash",
    "shell",
    "shell_command",
    "run_shell_command",
    "exec_command",
    "run_commands",
    "terminal",
    "execute",
)
PATHS = ("path", "file_path", "filePath", "absolute_path", "filename")
ENDS = {
    "/chat/completions": "chat",
    "/responses": "responses",
    "/messages": "anthropic",
    "generatecontent": "gemini",
}
RESULTS = {
    "chat": '"role": "tool"',
    "responses": 'call_output"',
    "anthropic": '"tool_result"',
    "gemini": '"functionResponse"',
}
READ, WROTE = 1000, 10  # the tokens that every reply claims


class Request:
    """One recorded request; if it asks a model, `api` says how, and the rest is what it holds."""

    def __init__(self, method, path, body):
        self.when, self.size = time.monotonic(), len(body)
        self.path, self.name = path, f"{method} {path.split('?')[0]}"
        end = path.split("?")[0].lower()
        self.api = next(
            (api for tail, api in ENDS.items() if method == "POST" and end.endswith(tail)), None
        )
        if self.api:
            self.json = json.loads(body)
            self.tools, self.system, self.messages = split(self.api, self.json)
            self.schemas = dict(named(self.tools))


def split(api, body):
    """The tools, the system messages and the other messages of a request, as sent."""
    tools = body.get("tools") or []
    if api == "gemini":
        system = body.get("systemInstruction") or body.get("system_instruction")
        return tools, [system] if system else [], body.get("contents") or []
    if api == "anthropic":
        system = body.get("system") or []
        return tools, [system] if isinstance(system, str) else system, body["messages"]
    items = body["messages"] if api == "chat" else body["input"]
    items = [{"role": "user", "content": items}] if isinstance(items, str) else items
    system = [m for m in items if m.get("role") in ("system", "developer")]
    first = [body["instructions"]] if body.get("instructions") else []
    return tools, first + system, [m for m in items if m not in system]


def named(tools):
    """Yield (name, (definition, JSON Schema of its arguments)) of every tool."""
    for tool in tools:
        for spec in tool.get("functionDeclarations") or tool.get("tools") or [tool]:
            inner = spec.get("function") or spec
            schema = (
                inner.get("parameters")
                or inner.get("input_schema")
                or inner.get("parametersJsonSchema")
                or {}
            )
            yield inner.get("name") or inner.get("type"), (spec, schema)


def reading(request, file):
    """The call of one of the client's tools that reads `file`: (name, arguments), or None."""
    known = {name.lower().rpartition("__")[2]: name for name in request.schemas}
    for wanted in (*READERS, *SHELLS):
        if name := known.get(wanted):
            schema = request.schemas[name][1]
            fields, needed = schema.get("properties") or {}, list(schema.get("required") or ())
            if wanted in READERS and not {"files", *PATHS} & set(needed):
                needed += [f for f in PATHS if f in fields][:1]
            return name, {f: argument(f, fields[f], wanted in SHELLS, file) for f in needed}
    return None


def argument(name, schema, in_shell, file):
    kind = schema.get("type")
    if in_shell and name in ("command", "cmd", "commands"):
        return (
            f"cat {file}"
            if kind != "array"
            else [f"cat {file}"]
            if name == "commands"
            else ["bash", "-c", f"cat {file}"]
        )
    if name == "files":
        return [file if schema["items"].get("type") == "string" else {"path": file}]
    if name in PATHS:
        return file
    if choices := schema.get("enum"):
        return "view" if "view" in choices else choices[0]
    return {"integer": 1, "number": 1, "boolean": False, "array": [], "object": {}}.get(
        kind, "read"
    )


# Each reply is (events of a stream, the same unstreamed); an event is (name or None, data).


def chat(call, model):
    usage = {"prompt_tokens": READ, "completion_tokens": WROTE, "total_tokens": READ + WROTE}
    head, finish = {"id": "c1", "created": 1, "model": model}, "tool_calls" if call else "stop"
    message = {"role": "assistant", "content": None if call else ANSWER}
    if call:
        function = {"name": call[0], "arguments": json.dumps(call[1])}
        message["tool_calls"] = [
            {"index": 0, "id": "call_1", "type": "function", "function": function}
        ]
    whole = {
        **head,
        "object": "chat.completion",
        "usage": usage,
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
    }
    head["object"] = "chat.completion.chunk"
    chunks = [
        [{"index": 0, "delta": message, "finish_reason": None}],
        [{"index": 0, "delta": {}, "finish_reason": finish}],
    ]
    events = [{**head, "choices": choices} for choices in chunks] + [
        {**head, "choices": [], "usage": usage}
    ]
    return [*((None, json.dumps(event)) for event in events), (None, "[DONE]")], whole


def responses(call, model):
    item = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": ANSWER, "annotations": []}],
    }
    if call:
        item = {
            "type": "function_call",
            "call_id": "call_1",
            "name": call[0],
            "arguments": json.dumps(call[1]),
        }
    item |= {"id": "i1", "status": "completed"}
    usage = {"input_tokens": READ, "output_tokens": WROTE, "total_tokens": READ + WROTE}
    whole = {
        "id": "r1",
        "object": "response",
        "created_at": 1,
        "model": model,
        "status": "completed",
        "output": [item],
        "usage": usage,
    }
    empty = {
        **item,
        "status": "in_progress",
        "arguments" if call else "content": "" if call else [],
    }
    delta = {
        "type": f"response.{'function_call_arguments' if call else 'output_text'}.delta",
        "output_index": 0,
        "content_index": 0,
    }
    events = [
        {
            "type": "response.created",
            "response": {**whole, "status": "in_progress", "output": [], "usage": None},
        }
    ]
    events += [{"type": "response.output_item.added", "output_index": 0, "item": empty}]
    events += [{**delta, "item_id": "i1", "delta": item["arguments"] if call else ANSWER}]
    events += [
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    ]
    return [(event["type"], json.dumps(event)) for event in events], whole


def anthropic(call, model):
    usage, stop = {"input_tokens": READ, "output_tokens": WROTE}, "tool_use" if call else "end_turn"
    block = (
        {"type": "tool_use", "id": "toolu_1", "name": call[0], "input": call[1]}
        if call
        else {"type": "text", "text": ANSWER}
    )
    whole = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [block],
        "stop_reason": stop,
        "usage": usage,
    }
    empty = {**block, "input": {}} if call else {**block, "text": ""}
    piece = (
        {"type": "input_json_delta", "partial_json": json.dumps(call[1])}
        if call
        else {"type": "text_delta", "text": ANSWER}
    )
    events = [{"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}}]
    events += [{"type": "content_block_start", "index": 0, "content_block": empty}]
    events += [
        {"type": "content_block_delta", "index": 0, "delta": piece},
        {"type": "content_block_stop", "index": 0},
    ]
    events += [
        {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": usage},
        {"type": "message_stop"},
    ]
    return [(event["type"], json.dumps(event)) for event in events], whole


def gemini(call, model):
    part = {"functionCall": {"name": call[0], "args": call[1]}} if call else {"text": ANSWER}
    usage = {
        "promptTokenCount": READ,
        "candidatesTokenCount": WROTE,
        "totalTokenCount": READ + WROTE,
    }
    whole = {
        "candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP"}],
        "usageMetadata": usage,
    }
    return [(None, json.dumps(whole))], whole


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        """Nothing is logged."""

    def handle(self):
        with contextlib.suppress(ConnectionError):
            super().handle()

    def read_body(self):
        if self.headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size + 2)[:-2]
        self.rfile.readline()
        return body

    def answer(self):
        request = Request(self.command, self.path, self.read_body())
        self.server.requests.append(request)
        if not request.api:
            return self.other(request.name)
        seen = RESULTS[request.api] in json.dumps(request.messages)
        call = reading(request, self.server.file) if self.server.file and not seen else None
        events, whole = globals()[request.api](call, request.json.get("model") or "m")
        if not (request.json.get("stream") or "stream" in request.name):
            return self.send(200, "application/json", json.dumps(whole))
        lines = [
            (f"event: {name}\n" if name else "") + f"data: {data}\n\n" for name, data in events
        ]
        return self.send(200, "text/event-stream", "".join(lines))

    def other(self, name):
        """Answer what agents ask beside: the list of models, the count of tokens."""
        if name.endswith("/models"):
            self.send(
                200,
                "application/json",
                '{"object": "list", "data": [{"id": "m", "object": "model", "created": 1}], "models": []}',
            )
        elif "count" in name.lower():
            self.send(200, "application/json", '{"input_tokens": 1000, "totalTokens": 1000}')
        else:
            self.send(404, "application/json", '{"error": {"message": "not here"}}')

    def send(self, status, kind, text):
        body = text.encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_POST = do_HEAD = do_PUT = answer


class ModelServer(ThreadingHTTPServer):
    """Serves in threads of this process; `requests` grows in the order of arrival."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests, self.file = [], None
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def reset(self, file=None):
        """Forget what was recorded; `file` is what the client is told to read before the answer."""
        self.requests, self.file = [], file

    def handle_error(self, *_):
        """A client that left early."""
