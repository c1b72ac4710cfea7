"""A coding agent: some tools run, edits ask, lock files are never edited, text as it comes."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from claude_agent_sdk import (
    ClaudeAgentOptions,
    ClaudeSDKClient,
    HookContext,
    HookInput,
    HookJSONOutput,
    HookMatcher,
    PermissionResult,
    PermissionResultAllow,
    PermissionResultDeny,
    ResultMessage,
    StreamEvent,
    ToolPermissionContext,
    create_sdk_mcp_server,
    tool,
)

MODEL = os.environ.get("MODEL", "claude-sonnet-4-5")


@tool("failures", "Return what the last test run found.", {})
async def failures(_: dict[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": Path("failures.txt").read_text(encoding="utf-8")}]}


async def ask(
    name: str, arguments: dict[str, Any], context: ToolPermissionContext
) -> PermissionResult:
    print(f"- {arguments.get('old_string')}\n+ {arguments.get('new_string')}")
    answer = await asyncio.to_thread(input, f"{name} {arguments.get('file_path')}? [y/n] ")
    return PermissionResultAllow() if answer == "y" else PermissionResultDeny(message="no")


async def no_lock_files(data: HookInput, _: str | None, context: HookContext) -> HookJSONOutput:
    if data["hook_event_name"] == "PreToolUse":
        if str(data["tool_input"].get("file_path")).endswith(".lock"):
            return {
                "hookSpecificOutput": {
                    "hookEventName": "PreToolUse",
                    "permissionDecision": "deny",
                    "permissionDecisionReason": "lock files are generated",
                }
            }
    return {}


async def main(task: str) -> None:
    options = ClaudeAgentOptions(
        model=MODEL,
        system_prompt="You repair programs.",
        tools=["Read", "Grep", "Edit"],
        allowed_tools=["Read", "Grep", "mcp__project__failures"],
        mcp_servers={"project": create_sdk_mcp_server("project", tools=[failures])},
        can_use_tool=ask,
        hooks={"PreToolUse": [HookMatcher(matcher="Edit", hooks=[no_lock_files])]},
        include_partial_messages=True,
        setting_sources=[],
        max_turns=20,
    )
    async with ClaudeSDKClient(options) as client:
        await client.query(task)
        async for message in client.receive_response():
            if isinstance(message, StreamEvent):
                if (delta := message.event.get("delta", {})).get("type") == "text_delta":
                    print(delta["text"], end="", flush=True)
            elif isinstance(message, ResultMessage):
                if message.is_error:
                    sys.exit(message.result)
                print(f"\n{message.usage} tokens, cost: {message.total_cost_usd}")


asyncio.run(main(sys.argv[1]))
