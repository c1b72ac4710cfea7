"""Tools of your own: registered, called alone and together, allowed by name, and when they fail.

Runs offline, without a model: python examples/agcore/custom_tool.py
"""

import asyncio
from typing import Any

from agcore.tools import (
    BaseTool,
    PermissionChecker,
    PermissionConfig,
    ToolContext,
    ToolError,
    ToolInvocation,
    ToolRegistry,
    ToolReturn,
    tool,
)

WEATHER = {"Genf": 22, "Oslo": 14}


class GetWeather(BaseTool):
    """A tool as a class: name, description, schema, and what it does."""

    name = "get_weather"
    description = "The temperature in a city, in degrees Celsius."

    def parameters(self) -> dict[str, Any]:
        city = {"type": "string", "description": "The city's name."}
        return {"type": "object", "properties": {"city": city}, "required": ["city"]}

    async def execute(self, arguments: dict[str, Any], context: ToolContext) -> ToolReturn:
        city = arguments["city"]
        if city not in WEATHER:
            raise ToolError.ExecutionFailed(self.name, f"no weather station in {city}")
        return {"city": city, "temperature": WEATHER[city], "session": context.session_id}


@tool(permission="readonly")
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the one.
        b: the other.
    """
    return a + b


async def main() -> None:
    registry = ToolRegistry([GetWeather(), add])
    for definition in registry.definitions():
        print(f"{definition.name}: {definition.description}")

    print("\nOne call:", await registry.invoke("get_weather", {"city": "Genf"}))
    print("A function is a tool too:", await registry.invoke("add", {"a": 19, "b": 23}))

    print("\nSeveral at once, answers in order, one failure leaves the others alone:")
    outcomes = await registry.invoke_all(
        [
            ToolInvocation("get_weather", {"city": "Oslo"}),
            ToolInvocation("get_weather", {"city": "Atlantis"}),
            ToolInvocation("get_weather", {"town": "Genf"}),
            ToolInvocation("get_wether", {"city": "Genf"}),
            ToolInvocation("add", {"a": 1, "b": 2}),
        ],
        timeout_s=30,
    )
    for outcome in outcomes:
        if outcome.error is None:
            print(f"- {outcome.name}: {outcome.value}")
        else:
            again = "may work later" if outcome.error.is_recoverable() else "will not work"
            print(f"- {outcome.name}: {type(outcome.error).__name__}, {again}: {outcome.error}")

    print("\nOnly what is on the white list may be called:")
    checker = PermissionChecker(PermissionConfig.white_list(["get_weather"]))
    careful = ToolRegistry([GetWeather(), add], permissions=checker)
    print("- offered:", [definition.name for definition in careful.definitions()])
    try:
        await careful.invoke("add", {"a": 1, "b": 2})
    except ToolError.PermissionDenied as error:
        print(f"- {error}")

    print("\nEverything but what is on the black list may be called:")
    checker = PermissionChecker(PermissionConfig.black_list(["delete_file"]))
    checker.check("get_weather")
    try:
        checker.check("delete_file")
    except ToolError.PermissionDenied as error:
        print(f"- {error}")


if __name__ == "__main__":
    asyncio.run(main())
