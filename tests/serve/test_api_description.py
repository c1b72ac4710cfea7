"""The description of the API, against the application and against requests made from it."""

import asyncio
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode, checks as schemathesis_checks
from starlette.requests import Request
from starlette.routing import Route, Router

from agent_core import AgentRuntime
from agent_core.serve import Principal, app
from agent_core.serve.door import Door
from agent_core.serve.openapi import describe, described_operations
from agent_core.testing import function_model
from apis import api
from consoles import EVERYTHING, served
from isolation import Home
from runtimes import CONFIG, runtime

TOKEN = "a-token-of-the-tests"  # noqa: S105 - of no service
BELOW = ("/api/", "/openapi.json", "/healthz", "/livez", "/ag-ui", "/v1/")
"""The addresses that the description is about."""
ELSEWHERE = "^(/ag-ui|/v1)"
"""The addresses of other protocols, whose clients have tests of their own."""
SKIPPED = {"positive_data_acceptance"}
"""Not every string is the id of something."""
EVERY_CHECK: Any = list(HealthCheck)


def test_every_route_is_described_and_every_description_has_a_route(
    home: Home, project: Path
) -> None:
    door = app(runtime(home, project))
    assert isinstance(door, Door)
    router = door._inside
    assert isinstance(router, Router)
    served_ones = {
        (method, route.path.replace(":path", ""))
        for route in router.routes
        if isinstance(route, Route) and route.path.startswith(BELOW)
        for method in route.methods or ()
        if method != "HEAD"
    }
    assert served_ones == {(each.method, each.path) for each in described_operations()}
    paths = describe("/", "cookie").paths
    described = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert described == served_ones


def test_the_description_is_complete() -> None:
    document = describe("/", "cookie").model_dump()
    text = json.dumps(document)
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    for part in text.split('"$ref": "')[1:]:
        assert part.partition('"')[0] in known
    for path, methods in document["paths"].items():
        for operation in methods.values():
            names = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
            assert all(f"{{{name}}}" in path for name in names)
            assert {"400"} < set(operation["responses"])
    assert "RuntimeEvent" in document["components"]["schemas"]


async def test_the_description_names_where_the_application_is_mounted(
    home: Home, project: Path
) -> None:
    made = runtime(home, project)
    async with made, api(made) as client:
        document = (await client.get("/openapi.json")).body
    assert document["openapi"] == "3.1.0"
    assert document["servers"] == [{"url": "/"}]


def _principal(request: Request) -> Principal | None:
    is_known = request.headers.get("authorization") == f"Bearer {TOKEN}"
    return EVERYTHING if is_known else None


@contextmanager
def _running(home: Home, project: Path) -> Generator[tuple[str, dict[str, str]]]:
    """Serve a runtime with a session in a thread of its own; yield its address and known ids."""
    home.write_config(CONFIG)
    started, ending = threading.Event(), asyncio.Event()
    found: dict[str, Any] = {}

    async def serve() -> None:
        found["loop"] = asyncio.get_running_loop()
        async with AgentRuntime(project, home_dir=home.path, model=function_model(_reply)) as made:
            run = await made.run("hello", "s1")
            page = await made.pages.session("s1")
            found["ids"] = {
                "session_id": "s1",
                "run_id": run.run_id,
                "state_id": page.nodes[-1].node_id,
            }
            async with served(app(made, auth=_principal)) as address:
                found["address"] = address
                started.set()
                await ending.wait()

    thread = threading.Thread(target=asyncio.run, args=[serve()])
    thread.start()
    try:
        assert started.wait(30)
        yield found["address"], found["ids"]
    finally:
        found["loop"].call_soon_threadsafe(ending.set)
        thread.join()


def _reply(_: object) -> str:
    return "done"


@pytest.mark.parametrize(
    "examples", [1, pytest.param(100, marks=[pytest.mark.sweep, pytest.mark.timeout(1800)])]
)
def test_requests_made_from_the_description_get_what_it_promises(
    home: Home, project: Path, examples: int
) -> None:
    with _running(home, project) as (address, ids):
        headers = {"Authorization": f"Bearer {TOKEN}"}
        schema: Any = schemathesis.openapi.from_url(f"{address}/openapi.json", headers=headers)
        every: list[Any] = [*schemathesis_checks.CHECKS.get_all()]  # pyright: ignore[reportUnknownMemberType]
        checks = [check for check in every if check.__name__ not in SKIPPED]
        problems: list[str] = []
        for found in schema.exclude(path_regex=ELSEWHERE).get_all_operations():
            for mode in GenerationMode:
                _try(
                    found.ok(),
                    mode,
                    ids=ids,
                    checks=checks,
                    examples=examples,
                    headers=headers,
                    problems=problems,
                )
    assert not problems, "\n\n".join(problems)


def _try(
    operation: Any,
    mode: GenerationMode,
    *,
    ids: dict[str, str],
    checks: list[Any],
    examples: int,
    headers: dict[str, str],
    problems: list[str],
) -> None:
    seen = 0

    @seed(7)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=EVERY_CHECK,
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def attempt(case: Any) -> None:
        nonlocal seen
        seen += 1
        if mode is GenerationMode.POSITIVE and seen % 2:
            names: dict[str, Any] = case.path_parameters or {}
            case.path_parameters = {name: ids.get(name, value) for name, value in names.items()}
        body: Any = case.body
        if isinstance(body, dict) and "into" in body:
            case.body = {"node_id": "n1"}  # and no folder of this machine
        response = case.call(headers=headers, timeout=30)
        case.validate_response(response, checks=checks, headers=headers)

    try:
        attempt()
    except BaseExceptionGroup as group:
        problems += [f"{operation.label}, {mode}: {error!r}" for error in group.exceptions]
    except Unsatisfiable:
        pass  # every request of the kind is valid
