"""The programs of examples/recipes, run as they stand against a scripted model service."""

import asyncio
import json
import os
import re
import sqlite3
import subprocess
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from agent_core.providers.scripted import Calls, Fails, Hangs, Says, ScriptedCall, calls
from browser import CHROMIUM, tab
from isolation import Home
from model_server import ModelServer, Received, Reply
from recipe_programs import RECIPES, ROOT, environment, run
from sweeps import kept

pytestmark = pytest.mark.timeout(120)  # whole programs, one after the other; and a browser

INVOICE = re.compile(r"Invoice (\S+) for (.+)\. Total: ([\d.]+) (\w+)")


def read_invoice(asked: Received) -> Reply:
    """What stands on it, as a model says it that has a schema mode, or the tool in its place."""
    found = INVOICE.search(json.dumps(asked.body["messages"]))
    assert found is not None
    number, customer, total, currency = found.groups()
    values: dict[str, Any] = {
        "number": number,
        "customer": customer,
        "total": float(total),
        "currency": currency,
    }
    if number == "INV-0007":
        values["currency"] = "florins"  # and insists on it
    if number == "INV-0008":
        return Fails(message="not today")
    if asked.body.get("tools"):
        return calls("final_answer", **values)
    return Says(text=json.dumps(values))


@pytest.mark.sweep
def test_a_hundred_files_are_read_and_the_bad_ones_named(home: Home, project: Path) -> None:
    folder = project / "invoices"
    folder.mkdir()
    for number in range(100):
        text = f"Invoice INV-{number:04} for Customer {number}. Total: {number}.5 EUR"
        (folder / f"{number:03}.txt").write_text(text, encoding="utf-8")
    with ModelServer.in_thread(read_invoice) as server:
        done = run(home, server, "extract", "invoices", cwd=project)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 100
    for number, row in enumerate(rows):
        if number == 7:
            assert re.match(r"007\.txt: .*currency", row)
        elif number == 8:
            assert re.match(r"008\.txt: .*\n.*not today", row)
        else:
            expected = {"number": f"INV-{number:04}", "customer": f"Customer {number}"}
            assert row == {**expected, "total": number + 0.5, "currency": "EUR"}
    assert not (home.path / "sessions.sqlite").exists()


@pytest.mark.sweep
def test_a_question_is_answered_from_the_database(home: Home, project: Path) -> None:
    database = sqlite3.connect(project / "shop.db")
    database.execute("CREATE TABLE orders (customer, item, price)")
    rows = [("Ada Lovelace", "lamp", 49.0), ("Alan Turing", "chair", 60.0)]
    database.executemany("INSERT INTO orders VALUES (?, ?, ?)", rows)
    database.commit()
    database.close()
    script = [
        calls("orders", customer="ada"),
        calls("orders", customer="Ada Lovelace"),
        "A lamp, for 49.",
    ]
    with ModelServer.in_thread(script) as server:
        done = run(home, server, "database_tool", "shop.db", "What did Ada order?", cwd=project)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "A lamp, for 49.\n"
    first, second = (request.body["messages"][-1]["content"] for request in server.requests[1:])
    assert "There is no 'ada'; customers are ['Ada Lovelace', 'Alan Turing']" in first
    assert "lamp" in second
    assert "chair" not in second


def answer_as_writer(asked: Received) -> Reply:
    said = json.dumps(asked.body["messages"])
    for instructions, answer in (("You research.", "Bees dance."), ("You criticise.", "How far?")):
        if instructions in said:
            return Says(text=answer)
    if asked.body["messages"][-1]["role"] == "tool":
        return Says(text=" ".join(w for w in ("Bees dance.", "How far?") if w in said))
    assert len(asked.body["tools"]) == 1
    tasks = [{"agent_definition_id": who, "task": "Bees"} for who in ("researcher", "critic")]
    name = "agent.create_sub_agent"
    return Calls(calls=[ScriptedCall(name=name, arguments=task) for task in tasks])


@pytest.mark.sweep
def test_a_writer_has_what_a_researcher_and_a_critic_say(home: Home, project: Path) -> None:
    with ModelServer.in_thread(answer_as_writer) as server:
        done = run(home, server, "multi_agent", "Bees", cwd=project)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Bees dance. How far?\n"
    assert len(server.requests) == 4


Event = tuple[str | None, str, dict[str, Any]]


@asynccontextmanager
async def service(
    home: Home,
    project: Path,
    model: ModelServer,
    *,
    app: str = "web_service:app",
    is_killed: bool = False,
) -> AsyncGenerator[ClientSession]:
    """The web service in a process of its own, and a client of it."""
    command = ["-m", "uvicorn", "--app-dir", str(RECIPES), "--port", "0", app]
    server = await asyncio.create_subprocess_exec(
        sys.executable, *command, cwd=project, env=environment(home, model), stderr=PIPE
    )
    assert server.stderr is not None
    try:
        said = ""
        while (found := re.search(r"http://127\.0\.0\.1:\d+", said)) is None:
            line = await server.stderr.readline()
            assert line, said
            said += line.decode()
        async with ClientSession(found[0]) as client:
            yield client
        if is_killed:
            server.kill()
    finally:
        with suppress(ProcessLookupError):
            server.terminate()
        _, complaints = await server.communicate()
    assert b"Traceback" not in complaints, complaints.decode()


async def start(client: ClientSession, session: str = "s1") -> str:
    async with client.post("/runs", json={"message": "Write to Ada", "session": session}) as done:
        assert done.status == 200, await done.text()
        return (await done.json())["run_id"]


async def events(
    client: ClientSession, run_id: str, last_id: str | None = None
) -> AsyncGenerator[Event]:
    headers = {} if last_id is None else {"Last-Event-ID": last_id}
    async with client.get(f"/runs/{run_id}/events", headers=headers) as response:
        assert response.content_type == "text/event-stream"
        fields: dict[str, str] = {}
        async for line in response.content:
            if line.strip():
                name, _, value = line.decode().rstrip("\n").partition(": ")
                fields[name] = value
            elif fields:
                yield fields.get("id"), fields["event"], json.loads(fields["data"])
                fields = {}


async def all_events(client: ClientSession, run_id: str, last_id: str | None = None) -> list[Event]:
    return [event async for event in events(client, run_id, last_id)]


async def events_until(client: ClientSession, run_id: str, kind: str) -> list[Event]:
    """The events up to the first of this kind; then the connection is gone."""
    seen = list[Event]()
    async with aclosing(events(client, run_id)) as shown:
        async for event in shown:
            seen.append(event)
            if event[1] == kind:
                break
    return seen


async def answer(client: ClientSession, question: Event, allow: bool) -> None:
    path = f"/questions/{question[2]['request_id']}"
    async with client.post(path, json={"allow": allow}) as done:
        assert done.status == 204


ASKS = Calls(
    calls=[ScriptedCall(name="send_mail", arguments={"to": "a@b.org", "text": "Hi"})],
    text="I will write. ",
)


def say_what_came_of_it(asked: Received) -> Reply:
    is_sent = "sent 2 characters to a@b.org" in asked.body["messages"][-1]["content"]
    return Says(text="It is sent." if is_sent else "I did not.")


@pytest.mark.parametrize(
    ("allow", "expected"),
    kept([(True, "It is sent."), (False, "I did not.")], (True, "It is sent.")),
)
async def test_a_question_is_put_to_the_user_over_http(
    home: Home, project: Path, allow: bool, expected: str
) -> None:
    with ModelServer.in_thread([ASKS, say_what_came_of_it]) as model:
        async with service(home, project, model) as client:
            run_id, text, seen = await start(client), "", list[Event]()
            async for event in events(client, run_id):
                seen.append(event)
                if event[1] == "model_text_delta":
                    text += event[2]["text"]
                if event[1] == "permission_requested":
                    assert event[2]["tool_name"] == "send_mail"
                    await answer(client, event, allow)
    assert text == f"I will write. {expected}"
    assert seen[-1][1] == "run_completed"
    assert seen[-1][2]["result"] == expected


@pytest.mark.sweep
async def test_a_reconnect_loses_nothing_also_when_the_server_was_started_anew(
    home: Home, project: Path
) -> None:
    with ModelServer.in_thread([ASKS, say_what_came_of_it]) as model:
        async with service(home, project, model) as client:
            run_id = await start(client)
            before = await events_until(client, run_id, "permission_requested")
            last_id = before[-1][0]
            reading = asyncio.create_task(all_events(client, run_id, last_id))
            await asyncio.sleep(0.1)
            await answer(client, before[-1], allow=True)
            after = await reading
        async with service(home, project, model) as client:
            whole = await all_events(client, run_id)
            rest = await all_events(client, run_id, last_id)
    first, last = ids(before), ids(after)
    assert first + last == ids(whole) == [str(n) for n in range(1, len(first + last) + 1)]
    assert ids(rest) == last
    assert whole[-1][2]["result"] == rest[-1][2]["result"] == "It is sent."
    for seen in ([*before, *after], whole):
        assert "".join(text for text in texts(seen)) == "I will write. It is sent."
    assert texts(rest) == ["It is sent."]


def ids(seen: list[Event]) -> list[str]:
    return [number for number, _, _ in seen if number is not None]


def texts(seen: list[Event]) -> list[str]:
    """The messages, as the page puts them together."""
    complete, text = list[str](), ""
    for _, kind, payload in seen:
        if kind == "model_text_delta":
            text = payload["text"] if payload.get("from_start") else text + payload["text"]
        elif kind == "message_completed":
            complete.append(text)
            text = ""
    return complete


@pytest.mark.sweep
async def test_a_run_is_cancelled_while_it_asks(home: Home, project: Path) -> None:
    with ModelServer.in_thread([ASKS]) as model:
        async with service(home, project, model) as client:
            run_id, kinds = await start(client), list[str]()
            async for _, kind, _ in events(client, run_id):
                kinds.append(kind)
                if kind == "permission_requested":
                    async with client.post(f"/runs/{run_id}/cancel") as done:
                        assert done.status == 204
            assert kinds[-1] == "run_cancelled"


@pytest.mark.sweep
async def test_a_question_ends_with_its_server_and_the_session_goes_on(
    home: Home, project: Path
) -> None:
    with ModelServer.in_thread([ASKS, "Here I am."]) as model:
        async with service(home, project, model, is_killed=True) as client:
            run_id = await start(client)
            before = await events_until(client, run_id, "permission_requested")
        async with service(home, project, model) as client:
            rest = await all_events(client, run_id, before[-1][0])
            again = await all_events(client, await start(client))
    assert rest[-1][1] == "run_failed"
    assert again[-1][1:] == ("run_completed", again[-1][2])
    assert again[-1][2]["result"] == "Here I am."
    assert "sent 2 characters" not in model.requests[1].text


@pytest.mark.sweep
async def test_what_makes_no_sense_is_refused(home: Home, project: Path) -> None:
    with ModelServer.in_thread([ASKS, say_what_came_of_it]) as model:
        async with service(home, project, model) as client:
            run_id = await start(client)
            asked = [e[2] for e in await events_until(client, run_id, "permission_requested")]
            answered = f"/questions/{asked[-1]['request_id']}"
            wrong: list[tuple[str, Any, int]] = [
                ("/runs", {"message": "", "session": "s1"}, 400),
                ("/runs", {"message": "x", "session": "no id"}, 400),
                ("/runs/run_x/cancel", {}, 404),
                ("/questions/req_x", {"allow": True}, 404),
                (answered, {"allow": False}, 204),
                (answered, {"allow": True}, 404),
            ]
            for path, body, status in wrong:
                async with client.post(path, json=body) as done:
                    assert (path, done.status) == (path, status), await done.text()
            async with client.get("/runs/run_x/events") as done:
                assert done.status == 404
            assert (await all_events(client, run_id))[-1][2]["result"] == "I did not."


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium (Debian: apt-get install it)")
async def test_the_page_streams_asks_and_survives_being_loaded_again(
    home: Home, project: Path, tmp_path: Path
) -> None:
    send = "form.message.value = 'Write'; form.requestSubmit()"
    script = [
        ASKS,
        say_what_came_of_it,
        ASKS,
        say_what_came_of_it,
        Hangs(text="Let me think about this for a long while, because it"),
    ]
    with ModelServer.in_thread(script) as model:
        async with service(home, project, model) as client, tab(tmp_path) as page:
            await page.open(str(client._base_url))
            await page.run(send)
            await page.shows("I will write.")
            await page.click("Allow")
            await page.shows("It is sent.")
            await page.run(send)
            await page.shows("send_mail")
            await page.run("window.isOld = true; location.reload()")
            await page.until("!window.isOld && document.readyState === 'complete'")
            await page.click("Deny")
            await page.shows("I did not.")
            await page.run(send)
            await page.shows("Let me")
            await page.click("Cancel")
            await page.until("document.querySelector('.run_cancelled')")


@pytest.mark.sweep
async def test_a_service_without_async_answers_many_at_once(home: Home, project: Path) -> None:
    command = ["-m", "flask", "--app", str(RECIPES / "flask_service.py"), "run", "--port", "0"]

    def sell(asked: Received) -> Reply:
        last = asked.body["messages"][-1]
        return calls("stock", item="lamp") if last["role"] == "user" else Says(text="Twelve.")

    with ModelServer.in_thread(sell) as model:
        server = await asyncio.create_subprocess_exec(
            sys.executable, *command, cwd=project, env=environment(home, model), stderr=PIPE
        )
        assert server.stderr is not None
        try:
            said = ""
            while (found := re.search(r"http://127\.0\.0\.1:\d+", said)) is None:
                line = await server.stderr.readline()
                assert line, said
                said += line.decode()

            async def ask(session: str, message: str = "How many lamps?") -> tuple[int, Any]:
                body = {"message": message, "session": session}
                async with client.post("/ask", json=body) as done:
                    return done.status, await done.json()

            async with ClientSession(found[0]) as client:
                sessions = [f"s{number % 5}" for number in range(20)]
                answers = await asyncio.gather(*map(ask, sessions))
                refused = await ask("s1", "")
        finally:
            server.terminate()
            _, complaints = await server.communicate()
    assert answers == [(200, {"answer": "Twelve.", "session": each}) for each in sessions]
    assert refused[0] == 400
    assert "empty" in refused[1]["error"]
    assert b"Traceback" not in complaints, complaints.decode()


def test_an_evaluation_is_repeated_from_its_recordings(home: Home, project: Path) -> None:
    pytest.importorskip("pydantic_evals", reason="the package pydantic-evals is not installed")

    def answer(asked: Received) -> Reply:
        last = asked.body["messages"][-1]
        if last["role"] == "tool":
            return Says(text=f"There are {re.findall(r'[0-9]+', last['content'])[0]} left.")
        return calls("stock", item="lamp" if "lamps" in last["content"] else "chair")

    with ModelServer.in_thread(answer) as server:
        done = run(home, server, "evaluation", cwd=project)
        assert done.returncode == 0, done.stderr
        asked = len(server.requests)
        again = run(home, server, "evaluation", cwd=project)
        assert again.returncode == 0, again.stderr
        assert (asked, len(server.requests)) == (4, 4)
    assert "There are 12 left." in done.stdout
    assert "100.0%" in done.stdout.replace(" ", "")
    assert len(list((project / "recordings").rglob("*.yaml"))) == 2


INSPECT_RUN = """
import sys

sys.path.insert(0, sys.argv[1])
from inspect_ai import eval
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_agent import inventory

usage = ModelUsage(input_tokens=100, output_tokens=10, total_tokens=110)
outputs = []
for item, said in (("lamp", "There are 12."), ("chair", "There are 5.")):
    outputs.append(ModelOutput.for_tool_call("mockllm/model", "stock", {"item": item}))
    outputs.append(ModelOutput.from_content("mockllm/model", said))
outputs = [each.model_copy(update={"usage": usage}) for each in outputs]
model = get_model("mockllm/model", custom_outputs=outputs)
(log,) = eval(inventory(), model=model, display="none", log_dir="logs", max_samples=1)
print(log.status)
for sample in log.samples:
    print(sample.scores["includes"].value, [(each.role, each.text) for each in sample.messages])
"""


def test_inspect_evaluates_an_agent(home: Home, project: Path) -> None:
    """`INSPECT_TEST_PYTHON` names an interpreter with `inspect_ai`, `openai` and what we need."""
    python = os.environ.get("INSPECT_TEST_PYTHON", sys.executable)
    look = [python, "-c", "import inspect_ai, openai"]
    if subprocess.run(look, capture_output=True, check=False).returncode:  # noqa: S603
        pytest.skip("the package inspect_ai is not installed, and INSPECT_TEST_PYTHON names none")
    done = subprocess.run(  # noqa: S603
        [python, "-c", INSPECT_RUN, str(RECIPES)],
        cwd=project,
        env={**os.environ, "SOONG_AGENT_HOME": str(home.path), "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    status, lamps, chairs = done.stdout.splitlines()[-3:]
    assert status == "success"
    assert lamps.startswith("C [('user', 'How many lamps are left?'), ('assistant', ")
    assert lamps.endswith("('tool', '12'), ('assistant', 'There are 12.')]")
    assert chairs.startswith("I ")


BODIES = [b"", b"{", b"[]", b"3", b'{"message": 3, "session": "s1"}', b'{"message": "x"}']


async def test_a_bad_request_is_the_clients_fault(home: Home, project: Path) -> None:
    with ModelServer.in_thread([]) as model:
        async with service(home, project, model) as client:
            statuses = list[int]()
            for path in ("/runs", "/questions/req_1"):
                for body in BODIES:
                    async with client.post(path, data=body) as done:
                        assert "error" in await done.json()
                        statuses.append(done.status)
            odd = {"message": "x", "session": "no such id!"}
            async with client.post("/runs", json=odd) as done:
                statuses.append(done.status)
            for last_id in ("x", "-1", "²"):
                async with client.get(
                    "/runs/run_1/events", headers={"Last-Event-ID": last_id}
                ) as done:
                    statuses.append(done.status)
            assert set(statuses) == {400}
            async with client.get("/runs/run_1/events") as done:
                assert done.status == 404


@pytest.mark.long
async def test_one_process_of_fastapi_streams_and_ends_what_nobody_reads(
    home: Home, project: Path
) -> None:
    order = '{"item": "lamp", "number": 2}'
    wrong = ["no order"] * 3
    script = [
        calls("stock", item="lamp"),
        "Twelve lamps.",
        order,
        *wrong,
        Hangs(text="Once"),
        "Yes.",
    ]
    said = {"text": "How many?", "chat": "c1"}
    with ModelServer.in_thread(script) as model:
        async with service(home, project, model, app="fastapi_chat:app") as client:
            async with client.post("/chat", json=said) as done:
                assert (await done.text(), done.status) == ("Twelve lamps.", 200)
            async with client.post("/orders", json=said) as done:
                assert await done.json() == json.loads(order)
            async with client.post("/orders", json=said) as done:
                assert done.status == 502
            async with client.post("/chat", json=said) as leaves:
                assert await leaves.content.readexactly(3) == b"Onc"
                run_id = leaves.headers["Run-Id"]
            async with client.post("/chat", json=said) as done:  # waits for the end of the other
                assert await done.text() == "Yes."
            async with client.post(f"/runs/{run_id}/cancel") as done:
                assert await done.json() == "cancelled"
            async with client.post("/chat", json={"text": "x"}) as done:
                assert done.status == 422
            async with client.post("/chat", json={"text": "", "chat": "c1"}) as done:
                assert done.status == 400
            async with client.post("/runs/run_1/cancel") as done:
                assert done.status == 404
        model.assert_complete()


@pytest.mark.parametrize("program", sorted(RECIPES.glob("*.py")), ids=lambda file: file.stem)
def test_the_page_of_a_recipe_shows_the_program_as_it_stands(program: Path) -> None:
    page = ROOT / "docs" / "recipes" / f"{program.stem.replace('_', '-')}.md"
    shown = re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.S | re.M)
    assert program.read_text(encoding="utf-8") in shown


def test_the_fragments_of_the_comparison_stand_in_programs() -> None:
    page = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
    files = [*RECIPES.glob("*.py"), *(ROOT / "bench" / "programs").rglob("*.py")]
    programs = [without_space(file.read_text(encoding="utf-8")) for file in files]
    fragments = re.findall(r"^```py\n(.*?)^```$", page, re.S | re.M)
    assert len(fragments) > 15
    missing = [part for part in fragments if not any(without_space(part) in p for p in programs)]
    assert missing == []


def without_space(code: str) -> str:
    """The formatter sets fragments to the left, where more fits into a line."""
    return re.sub(r"\s|,(?=\s*\))", "", code)
