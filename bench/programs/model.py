"""The model of the programs: Chat Completions and Messages, scripted, standard library only.

What it answers depends on the request alone: the address says which program asks
(`http://127.0.0.1:PORT/extract/v1`), the messages how far it is. It streams or not, as asked, and
takes DELAY seconds for each answer, so that work done side by side shows on the clock.

    python model.py            # prints its port
"""

import asyncio
import json
import re
import sys

DELAY = 0.02
LONG = 100_000  # bytes; a longer answer comes in pieces
serial = 0


def text_of(message):
    content = message.get("content") or ""
    return content if isinstance(content, str) else " ".join(p.get("text", "") for p in content)


def results(messages):
    return [text_of(m) for m in messages if m["role"] == "tool"]


def named(tools, part):
    """The offered tool whose name has this part."""
    return next(t["function"] for t in tools if part in t["function"]["name"])


def first_argument(tool, value):
    return {next(iter(tool["parameters"]["properties"])): value}


def web(messages, tools):
    """Asks for one mail, and says what became of it."""
    asked = max(i for i, m in enumerate(messages) if m["role"] == "user")
    if not (done := results(messages[asked:])):
        mail = named(tools, "send_mail")["name"]
        return "I will write to her. ", [(mail, {"to": "ada@example.org", "text": "Hello"})]
    return "The mail is on its way." if "sent 5" in done[-1] else "I have not sent it.", []


def extract(messages, tools):
    """Reads an invoice; answers in the schema mode or with the tool that it is offered."""
    prompt = "\n".join(text_of(m) for m in messages if m["role"] == "user")
    number, customer, total, currency = re.search(
        r"Invoice (\S+) for ([^\n.]+)\.\s+Total: ([\d.]+) (\w+)", prompt
    ).groups()
    found = {"number": number, "customer": customer, "total": float(total), "currency": currency}
    if tools:
        return "", [(tools[0]["function"]["name"], found)]
    return json.dumps(found), []


def database(messages, tools):
    """Misspells the customer, is told, asks again."""
    done, tool = results(messages), named(tools, "orders")
    if not done:
        return "", [(tool["name"], {"customer": "ada"})]
    if "Ada Lovelace" in done[-1] and len(done) == 1:
        return "", [(tool["name"], {"customer": "Ada Lovelace"})]
    return f"Ada Lovelace ordered {done[-1]}", []


def multi(messages, tools):
    """The lead asks both specialists at once; they answer from their instructions."""
    instructions = " ".join(text_of(m) for m in messages if m["role"] in ("system", "developer"))
    if "You research." in instructions:
        return "Bees dance to tell where food is.", []
    if "You criticise." in instructions:
        return "Say how far the food is, too.", []
    if done := results(messages):
        return " ".join(re.findall(r"Bees[^.]*\.|Say[^.]*\.", " ".join(done))), []
    if any("create_sub_agent" in t["function"]["name"] for t in tools):
        child = named(tools, "create_sub_agent")["name"]
        tasks = ("researcher", "What do bees tell?"), ("critic", "Bees dance.")
        return "", [(child, {"agent_definition_id": who, "task": what}) for who, what in tasks]
    if any(t["function"]["name"] == "delegate_task" for t in tools):
        tasks = ("researcher", "What do bees tell?"), ("critic", "Bees dance.")
        return "", [("delegate_task", {"agent_name": who, "task": what}) for who, what in tasks]
    if any("delegate_task_to_member" in t["function"]["name"] for t in tools):
        child = named(tools, "delegate_task_to_member")["name"]
        tasks = ("researcher", "What do bees tell?"), ("critic", "Bees dance.")
        return "", [(child, {"member_id": who, "task": what}) for who, what in tasks]
    research, critic = named(tools, "research"), named(tools, "criti")
    return "", [
        (research["name"], first_argument(research, "What do bees tell?")),
        (critic["name"], first_argument(critic, "Bees dance.")),
    ]


def handoffs(messages, tools):
    """Hands over to the agent for the last message, by way of triage, which then does the work."""
    asked = max(i for i, m in enumerate(messages) if m["role"] == "user")
    done = " ".join(results(messages[asked:]))
    names = [t["function"]["name"] for t in tools]
    wanted = "rentals" if "tandem" in text_of(messages[asked]) else "workshop"
    if wanted == "rentals" and "extend_rental" in names:
        if "is rented for" in done:
            return "The tandem is yours for 5 days.", []
        return "", [("extend_rental", {"bicycle": "tandem", "days": 3})]
    if wanted == "workshop" and "book_slot" in names:
        if "booked" in done:
            return "See you on Monday at 9:00.", []
        if "9:00" in done:
            return "", [("book_slot", {"day": "Monday", "time": "9:00"})]
        return "", [("free_slots", {"day": "Monday"})]
    to = "triage" if {"extend_rental", "book_slot"} & {*names} else wanted
    if found := [name for name in names if name.endswith(f"_to_{to}")]:
        return "", [(found[0], {})]
    return "", [(named(tools, "final_result")["name"], {"to": to})]


def stopping(messages, tools):
    """Tells a story of many words, slowly, and short ones when it is asked again."""
    asked = [text_of(m) for m in messages if m["role"] == "user"]
    if "story" in asked[-1]:
        return "word " * 1000, []
    return f"You have asked {len(asked)} times.", []


def coding(messages, tools):
    """Looks at the failures, reads, edits, tries the lock file too, and says so."""
    done, names = results(messages), [t["function"]["name"] for t in tools]
    if not names:
        return "Repairs", []  # somebody wants a title
    failures, read, edit = (
        next(name for name in names if part in name.lower())
        for part in ("failures", "read", "edit")
    )
    prompt = " ".join(text_of(m) for m in messages if m["role"] == "user")
    folder = re.search(r"in (/\S+)\.", prompt).group(1)

    def change(file, before, after):
        if edit == "Edit":
            replaced = {"old_string": before, "new_string": after}
            return edit, {"file_path": f"{folder}/{file}", **replaced}
        return edit, {"path": file, "edits": [{"old": before, "new": after}]}

    match len(done):
        case 0:
            return "I look at the failures. ", [(failures, {})]
        case 1:
            name = "file_path" if read == "Read" else "path"
            files = ("total.py", "uv.lock")
            return "", [(read, {name: f"{folder}/{file}"}) for file in files]
        case 3:
            return "", [change("total.py", "a - b", "a + b")]
        case 4:
            return "", [change("uv.lock", "1", "2")]
    return "It adds now. " + ("The lock file stays." if "generated" in done[-1] else "?"), []


REMEMBER = {"remember": "note", "write_memory": "content"}


def chat(messages, tools):
    """Remembers when it is told to, summarises, and says what it sees."""
    system = " ".join(text_of(m) for m in messages if m["role"] in ("system", "developer"))
    last, done = text_of(messages[-1]), results(messages[-1:])
    if last.startswith("<memory>") and not done:  # what a program adds to what the user has said
        last = text_of(messages[-2])
    whole = " ".join(map(text_of, messages))
    if "worth remembering" in system:
        told = re.search(r"\[user (node_\w+)\]\nRemember that I like ([^.]+)", whole)
        found = {"decision": "new", "category": "user", "filename": "likes", "tags": []}
        if told:
            found |= {"summary": f"Likes {told[2]}", "content": f"The user likes {told[2]}."}
            found |= {"source_node_ids": [told[1]]}
        return json.dumps({"explicit": bool(told), "memories": [found] if told else []}), []
    if "ummari" in system:
        summary = "They spoke at length of one word, which came many times."
        return json.dumps({"summary": summary}) if "JSON" in system else summary, []
    names = [t["function"]["name"] for t in tools]
    if last.startswith("Remember") and (name := next(iter({*names} & REMEMBER.keys()), None)):
        return "", [(name, {REMEMBER[name]: "Likes short answers"})]
    if last.startswith("What do I like"):
        return "Short answers." if "short answers" in whole else "I do not know.", []
    if last.startswith("How long"):
        return f"I see {len(whole) // 1000} kB.", []
    return "Noted." if done or last else "", []


def typed(messages, tools):
    """Finds the meeting; answers in the schema mode or with the tool that it is offered."""
    found = {"title": "Lunch", "day": "2026-12-24", "people": ["Ada", "Alan"]}
    if results(messages):
        return "Done.", []
    return ("", [(tools[0]["function"]["name"], found)]) if tools else (json.dumps(found), [])


def terminal(messages, tools):
    """Counts what was said; a program may add messages of its own."""
    said = [text_of(m).strip() for m in messages if m["role"] == "user"]
    return f"You said {sum(text in ('Hello.', 'Again.', 'And now?') for text in said)} things.", []


def remote(messages, tools):
    """Asks for a refund, and says what became of it."""
    if not (done := results(messages)):
        return "", [("refund", {"order": 7})]
    return "Order 7 is refunded." if "refunded order" in done[-1] else "I may not.", []


def resume(messages, tools):
    """Measures step by step what has no result yet."""
    done = results(messages)
    left = [step for step in (1, 2, 3) if str(step * 1.5) not in done]
    return ("", [("measure", {"step": left[0]})]) if left else (" ".join(sorted({*done})), [])


PROGRAMS = {
    "remote": remote,
    "resume": resume,
    "terminal": terminal,
    "typed": typed,
    "chat": chat,
    "coding": coding,
    "stopping": stopping,
    "web": web,
    "extract": extract,
    "database": database,
    "multi": multi,
    "handoffs": handoffs,
}


def chat_answer(program, request):
    global serial
    messages, tools = request["messages"], request.get("tools") or []
    text, calls = PROGRAMS[program](messages, tools)
    made = []
    for name, arguments in calls:
        serial += 1
        function = {"name": name, "arguments": json.dumps(arguments)}
        made.append({"id": f"call_{serial:08d}", "type": "function", "function": function})
    prompt = len(json.dumps(messages)) // 4
    produced = 4 + len(text) // 4 + 12 * len(calls)
    usage = {"prompt_tokens": prompt, "completion_tokens": produced}
    return text, made, usage | {"total_tokens": prompt + produced}


def body(program, path, request):
    """The bytes of the answer and their type."""
    if path.endswith("/count_tokens"):
        return json.dumps({"input_tokens": 100}).encode(), "application/json"
    if path.endswith("/messages"):
        return message_body(*chat_answer(program, chat_request(request)), request)
    return completion_body(*chat_answer(program, request), request)


def completion_body(text, calls, usage, request):
    finish = "tool_calls" if calls else "stop"
    base = {"id": "chatcmpl-1", "created": 1700000000, "model": request["model"]}
    if not request.get("stream"):
        message = {"role": "assistant", "content": text or None, "refusal": None}
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
        whole = base | {"object": "chat.completion", "choices": [choice], "usage": usage}
        return json.dumps(whole).encode(), "application/json"
    base["object"] = "chat.completion.chunk"
    deltas = [{"role": "assistant", "content": ""}]
    deltas += [{"content": word} for word in re.findall(r"\S+\s*", text)]
    deltas += [{"tool_calls": [{"index": i, **call}]} for i, call in enumerate(calls)]
    chunks = [
        base | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        for delta in deltas
    ]
    chunks.append(base | {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    chunks.append(base | {"choices": [], "usage": usage})
    lines = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks]
    return b"".join([*lines, b"data: [DONE]\n\n"]), "text/event-stream"


def chat_request(request):
    """A request of Anthropic's Messages as one of Chat Completions."""
    messages = []
    for message in request["messages"]:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for block in blocks:
            if block["type"] == "tool_result":
                messages.append({"role": "tool", "content": block.get("content")})
            elif block["type"] == "text":
                messages.append({"role": message["role"], "content": block["text"]})
    tools = [
        {"function": {"name": each["name"], "parameters": each.get("input_schema", {})}}
        for each in request.get("tools", [])
    ]
    return {"messages": messages, "tools": tools}


def message_body(text, calls, usage, request):
    """The answer as Anthropic's Messages write it."""
    blocks = [{"type": "text", "text": text}] if text else []
    for call in calls:
        made = call["function"]
        given = {"name": made["name"], "input": json.loads(made["arguments"])}
        blocks.append({"type": "tool_use", "id": call["id"].replace("call", "toolu"), **given})
    counted = {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]}
    whole = {"id": "msg_1", "type": "message", "role": "assistant", "model": request["model"]}
    ending = {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}
    if not request.get("stream"):
        whole |= {"content": blocks, **ending, "usage": counted}
        return json.dumps(whole).encode(), "application/json"
    whole |= {"content": [], "stop_reason": None, "stop_sequence": None, "usage": counted}
    events = [("message_start", {"message": whole})]
    for index, block in enumerate(blocks):
        if block["type"] == "text":
            empty, deltas = {**block, "text": ""}, re.findall(r"\S+\s*", block["text"])
            deltas = [{"type": "text_delta", "text": word} for word in deltas]
        else:
            given = json.dumps(block["input"])
            empty, deltas = {**block, "input": {}}, [{"type": "input_json_delta"}]
            deltas[0]["partial_json"] = given
        events.append(("content_block_start", {"index": index, "content_block": empty}))
        events += [("content_block_delta", {"index": index, "delta": each}) for each in deltas]
        events.append(("content_block_stop", {"index": index}))
    events.append(("message_delta", {"delta": ending, "usage": counted}))
    events.append(("message_stop", {}))
    lines = [f"event: {k}\ndata: {json.dumps({'type': k, **data})}\n\n" for k, data in events]
    return "".join(lines).encode(), "text/event-stream"


def parts(answer):
    size = 1000 if len(answer) > LONG else len(answer)
    return (answer[start : start + size] for start in range(0, len(answer), size))


async def serve(reader, writer):
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            if not head.startswith(b"post"):  # which models there are, and the like
                writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                continue
            length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
            request = json.loads(await reader.readexactly(length))
            await asyncio.sleep(DELAY)
            path = head.split()[1].decode().partition("?")[0]
            answer, kind = body(path.split("/")[1], path, request)
            start = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(answer)}"
            writer.write(start.encode() + b"\r\n\r\n")
            for part in parts(answer):
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(DELAY if len(answer) > LONG else 0)
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
