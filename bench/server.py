"""Fake OpenAI Chat Completions server (SSE), standard library only.

The model name scripts the reply, so the server keeps no state:

    fake-T-N    while the request holds fewer than T tool results: one tool call
                after that: N text chunks (5 characters each)

The tool called is the first one offered. A client that offers a `final_answer`
tool (smolagents) gets that call after the text, since it ends its loop that way.
Every SSE event is its own HTTP chunk; BATCH events go out per write.
"""

import asyncio
import json
import sys

TOKENS = "word ", "text "  # two, since LiteLLM aborts a stream that repeats one chunk
BATCH = 16
DONE = b"data: [DONE]\n\n"
HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    b"Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n"
)
serial = 0


def event(model, delta, finish=None, usage=None):
    choices = (
        [] if usage else [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
    )
    body = {
        "id": "chatcmpl-fake",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": model,
        "system_fingerprint": "fp_fake",
        "choices": choices,
        "usage": usage,
    }
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


def call_events(model, name, args, index=0):
    """One tool call, its arguments split in pieces the way real models stream them."""
    global serial
    serial += 1
    fn = {"name": name, "arguments": ""}
    yield event(
        model,
        {
            "tool_calls": [
                {"index": index, "id": f"call_{serial:08d}", "type": "function", "function": fn}
            ]
        },
    )
    text = json.dumps(args)
    for i in range(0, len(text), 4):
        yield event(
            model, {"tool_calls": [{"index": index, "function": {"arguments": text[i : i + 4]}}]}
        )


def tool_results(messages):
    """Tool results so far; smolagents sends them as user text 'Observation:'."""
    count = sum(m["role"] == "tool" for m in messages)
    return count or sum(
        json.dumps(m["content"]).count("Observation:") for m in messages if m["role"] == "user"
    )


def reply(request):
    """The SSE events of one answer."""
    model = request["model"].split("/")[-1]
    turns, chunks = map(int, model.split("-")[1:3])
    names = [t["function"]["name"] for t in request.get("tools") or []]
    done = tool_results(request["messages"])
    events = [event(model, {"role": "assistant", "content": None if done < turns else ""})]
    if done < turns:
        name = next(n for n in names if n != "final_answer")
        events += call_events(model, name, {"a": done, "b": 1})
        finish, produced = "tool_calls", 12
    else:
        words = [event(model, {"content": token}) for token in TOKENS]
        events += [words[i % 2] for i in range(chunks)]
        finish, produced = "stop", chunks
        if "final_answer" in names:
            events += call_events(model, "final_answer", {"answer": ("".join(TOKENS) * 4).strip()})
            finish = "tool_calls"
    events.append(event(model, {}, finish))
    if (request.get("stream_options") or {}).get("include_usage"):
        prompt = 20 * len(request["messages"])
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": produced,
            "total_tokens": prompt + produced,
        }
        events.append(event(model, {}, usage=usage))
    events.append(DONE)
    return events


async def serve(reader, writer):
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
            request = json.loads(await reader.readexactly(length))
            if not request.get("stream"):
                raise ValueError("this server only streams")
            frames = [b"%x\r\n%b\r\n" % (len(e), e) for e in reply(request)] + [b"0\r\n\r\n"]
            for i in range(0, len(frames), BATCH):
                out = b"".join(frames[i : i + BATCH])
                writer.write(out if i else HEAD + out)
                await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main(port):
    server = await asyncio.start_server(serve, "127.0.0.1", port, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
