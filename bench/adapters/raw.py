"""Parts that the bare loops share: one agent, one tool, a log. Persistence: one row, one commit per message."""

import sqlite3

import orjson
from tool import add

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two integers.",
            "parameters": {
                "type": "object",
                "required": ["a", "b"],
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            },
        },
    }
]


class Log:
    """Append-only message log in SQLite: WAL, default synchronous=FULL, a commit per message."""

    def __init__(self, path):
        self.db = sqlite3.connect(path, isolation_level=None)
        self.db.execute("pragma journal_mode=wal")
        self.db.execute(
            "create table if not exists log(id integer primary key, sid text, body blob)"
        )

    def append(self, sid, message):
        self.db.execute("insert into log(sid, body) values (?, ?)", (sid, orjson.dumps(message)))

    def read(self, sid):
        rows = self.db.execute("select body from log where sid = ? order by id", (sid,))
        return [orjson.loads(body) for (body,) in rows]


class Agent:
    def __init__(self, client, tools, log=None):
        self.client, self.tools, self.log = client, tools, log
        self.functions = {t["function"]["name"]: add for t in tools}
        self.last = None

    async def run(self, prompt, sid, on_text):
        history = self.log.read(sid) if self.log and sid == self.last else []
        self.last = sid

        def keep(message):
            history.append(message)
            if self.log:
                self.log.append(sid, message)

        keep({"role": "user", "content": prompt})
        while True:
            text, calls = [], []
            body = {
                "model": self.client.model,
                "messages": history,
                "tools": self.tools,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            async for chunk in self.client.events(body):
                for choice in chunk["choices"]:
                    delta = choice["delta"]
                    if delta.get("content"):
                        text.append(delta["content"])
                        on_text(delta["content"])
                    for part in delta.get("tool_calls") or ():
                        if part.get("id"):
                            calls.append(part)
                        else:
                            calls[part["index"]]["function"]["arguments"] += part["function"][
                                "arguments"
                            ]
            if not calls:
                keep({"role": "assistant", "content": "".join(text)})
                return "".join(text)
            keep({"role": "assistant", "content": None, "tool_calls": calls})
            for call in calls:
                function = call["function"]
                result = await self.functions[function["name"]](
                    **orjson.loads(function["arguments"])
                )
                keep({"role": "tool", "tool_call_id": call["id"], "content": str(result)})


def make_agent(ctx):
    return Agent(ctx[0], TOOLS, ctx[1])


async def run(ctx, agent, prompt, sid, on_text):
    return await agent.run(prompt, sid, on_text)
