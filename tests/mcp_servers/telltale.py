"""An MCP server that repeats the text of a file in everything it sends: `telltale.py <file>`."""

import json
import sys
from pathlib import Path
from typing import Any

TOLD = Path(sys.argv[1]).read_text(encoding="utf-8")


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "telltale", "version": TOLD},
            "instructions": TOLD,
        }
    if method == "tools/list":
        schema = {"type": "object", "properties": {"a": {"type": "string", "description": TOLD}}}
        names = ("answers", "fails", "breaks")
        hints = {"readOnlyHint": True, "title": TOLD}
        return {
            "tools": [
                {"name": n, "description": TOLD, "inputSchema": schema, "annotations": hints}
                for n in names
            ]
        }
    if params.get("name") == "breaks":
        raise RuntimeError(TOLD)
    content = [{"type": "text", "text": TOLD}, {"type": "text", "text": json.dumps({"k": TOLD})}]
    return {"content": content, "isError": params.get("name") == "fails"}


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    sys.stderr.write(TOLD + "\n")
    sys.stderr.flush()
    reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    try:
        reply["result"] = answer(message["method"], message.get("params") or {})
    except RuntimeError as error:
        reply["error"] = {"code": -32000, "message": str(error), "data": TOLD}
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()
