"""Tools of your own: two functions, a raw definition, and a command in `home/tools`.

    python examples/tools/own_tools.py

The model's replies come from `home/replies.json`; everything else is real.
"""

import asyncio
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field

from agent_core import (
    AgentRuntime,
    ErrorCode,
    OfferContext,
    PermissionDecision,
    PermissionRequest,
    Tool,
    ToolContext,
    ToolDefinition,
    ToolError,
    ToolRetry,
    Toolset,
    tool,
)
from agent_core.types import Decision, ToolPermission, ToolResultBlock

HOME = Path(__file__).with_name("home")


@tool(name="shop.stock", permission="readonly")
async def stock(
    item: str,
    warehouse: Annotated[int, Field(ge=1, le=9)] = 1,
    *,
    context: ToolContext,
) -> dict[str, int]:
    """How many of an item are left.

    Args:
        item: the item's name, singular.
        warehouse: which warehouse to ask.
        context: filled in by the runtime.
    """
    context.progress(f"asking warehouse {warehouse}")
    return {item: 12}


class Line(BaseModel):
    """One line of an order."""

    item: str
    amount: int = Field(gt=0)


@tool(name="shop.order")
def order(lines: list[Line], note: str | None = None) -> str:
    """Order items. The user confirms every order."""
    if sold_out := [line.item for line in lines if line.item != "lamp"]:
        raise ToolError(ErrorCode.VALIDATION_ERROR, f"sold out: {', '.join(sold_out)}")
    return f"ordered {sum(line.amount for line in lines)} ({note or 'no note'})"


@dataclass
class Shop:
    prices: dict[str, int]


@tool(name="shop.price_of", permission="readonly")
async def price_of(item: str, context: ToolContext[Shop]) -> int:
    """The price of an item, in cents."""
    if item not in context.deps.prices:
        raise ToolRetry(f"there is no {item!r}; items are {', '.join(context.deps.prices)}")
    return context.deps.prices[item]


def is_staff(context: OfferContext[Shop]) -> bool:
    return context.run.role == "main" and bool(context.deps.prices)


def known_items(context: OfferContext[Shop]) -> ToolDefinition:
    schema = {**context.definition.input_schema}
    schema["properties"] = {"item": {"type": "string", "enum": [*context.deps.prices]}}
    return context.definition.model_copy(update={"input_schema": schema})


@tool(name="shop.receipt", readonly=True, timeout_s=5, max_retries=2, ends_run=True)
def receipt(item: str, context: ToolContext[Shop]) -> str:
    """Write the receipt, and finish."""
    return f"{item}: {context.deps.prices[item] / 100:.2f} €"


@tool(name="shop.discount", is_enabled=is_staff, prepare=known_items)
def discount(item: str, context: ToolContext[Shop]) -> str:
    """Sell an item for less."""
    context.deps.prices[item] -= 100
    return "done"


class Warehouses(Toolset):
    async def open(self) -> list[Tool]:
        self.counts = {"lamp": 12}  # a connection, in a real one

        @tool(permission="readonly")
        def count(item: str) -> int:
            """Count what is left of an item."""
            return self.counts[item]

        return [count]

    async def close(self) -> None:
        self.counts.clear()


WAREHOUSES = Warehouses("warehouses", prefix="warehouse.", filter=["count"])


PRICE = ToolDefinition(
    name="shop.price",
    description="The price of an item, in cents.",
    input_schema={
        "type": "object",
        "properties": {"item": {"type": "string"}},
        "required": ["item"],
    },
    permission=ToolPermission.READONLY,
)


async def price(arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
    return {"item": arguments["item"], "cents": 4900, "asked_by": context.run.role}


async def allow(request: PermissionRequest) -> PermissionDecision:
    print(f"may {request.tool_name} run? {request.args_summary}")
    return PermissionDecision(decision=Decision.ALLOW_ONCE)


def show(result: ToolResultBlock) -> None:
    said = [block.model_dump(include={"text", "data"}) for block in result.content]
    print(result.metadata["tool_name"], said if result.error is None else result.error.message)


async def use(home: Path, project: Path) -> None:
    async with AgentRuntime(project, home_dir=home, permission_callback=allow) as runtime:
        runtime.register_tool(stock)
        runtime.register_tool(order)
        runtime.register_tool(PRICE, price)
        handle = await runtime.start("Order three lamps and a sofa, if we need them.")
        await handle.wait()
        for node in (await runtime.replay_session(handle.session_id)).nodes:
            for result in node.results:
                show(result)
        print(f"{handle.status}: {handle.result_text}")
        if handle.error is not None:
            print(handle.error.message)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        home, project = Path(folder, "home"), Path(folder, "project")
        shutil.copytree(HOME, home)
        project.mkdir()
        (project / "shop.py").write_text("# REVIEW: are three enough?\n", encoding="utf-8")
        asyncio.run(use(home, project))


main()
