"""A model for trying out the page beside this file: it plans a file, writes it, and takes its time.

    python model.py [port [address]]            # serves http://127.0.0.1:8765/v1

It speaks the chat completions of OpenAI, as far as the example needs them, with nothing but the
standard library. "count" makes it count on and on; any other wish becomes one call of
`code.write_file`, where there is this tool, and a sentence.
"""

import json
import sys
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Model(BaseHTTPRequestHandler):
    """Answers every request with a stream."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Send what comes next in the conversation."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        messages: list[dict[str, Any]] = body["messages"]
        last = max(place for place, each in enumerate(messages) if each["role"] == "user")
        tools: list[str] = [each["function"]["name"] for each in body.get("tools", ())]
        writer = next((name for name in tools if name.endswith("write_file")), None)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        if "count" in str(messages[last]["content"]).lower():
            for number in range(1, 3600):
                self.send({"content": f"{number} "})
                time.sleep(1)
        elif writer and last == len(messages) - 1:
            report = "# Report\n\nAll is well.\n"
            arguments = json.dumps({"path": "report.md", "content": report, "overwrite": True})
            function = {"name": writer, "arguments": arguments}
            call = {"index": 0, "id": f"call_{time.time_ns()}", "type": "function"}
            self.send({"tool_calls": [{**call, "function": function}]}, "tool_calls")
        else:
            for part in ("The report ", "is in ", "report.md.") if writer else ("pong",):
                self.send({"content": part})
                time.sleep(0.1)
            self.send({}, "stop")
        self.wfile.write(b"data: [DONE]\n\n")

    def send(self, delta: dict[str, Any], finish: str | None = None) -> None:
        """Send a piece of the answer at once."""
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        chunk = {"id": "chat", "object": "chat.completion.chunk", "choices": [choice]}
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base
        """Keep quiet."""


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8765
    address = sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1"
    with suppress(KeyboardInterrupt):
        ThreadingHTTPServer((address, port), Model).serve_forever()
