"""Starts each command-line agent headless against a model server on loopback.

One entry per agent: how it is installed, its arguments, its environment and the files in its home; telemetry
and updates are switched off as its documentation says. URL is the server's address and ASK the message.
"""

import json
from dataclasses import dataclass, field

URL, ASK, KEY = "@URL@", "@ASK@", "dummy"


@dataclass
class Peer:
    install: (
        str  # "npm PACKAGE", "pip PACKAGE", or "" for what is started with `program` as it stands
    )
    program: list  # the command in its folder
    ask: list  # its arguments for one message, headless
    again: list | None = (
        None  # the same in the session of the last message; None: headless it has no such option
    )
    env: dict = field(default_factory=dict)
    files: dict = field(default_factory=dict)  # path in the home → text
    tools: bool = True  # whether it offers the model a way to read a file


RAW_PYTHON = """
import http.client, json, os, sys
question = {"model": "m", "stream": True, "messages": [{"role": "user", "content": sys.argv[1]}]}
connection = http.client.HTTPConnection(os.environ["MODEL_URL"].split("/")[2])
connection.request("POST", "/v1/chat/completions", json.dumps(question), {"content-type": "application/json"})
for line in connection.getresponse():
    if line.startswith(b"data: {"):
        for choice in json.loads(line[6:])["choices"]:
            print(choice["delta"].get("content") or "", end="")
"""
RAW_NODE = """
const question = { model: "m", stream: true, messages: [{ role: "user", content: process.argv[1] }] };
const options = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(question) };
for (const line of (await (await fetch(process.env.MODEL_URL, options)).text()).split("\\n"))
  if (line.startsWith("data: {"))
    for (const choice of JSON.parse(line.slice(6)).choices) process.stdout.write(choice.delta.content ?? "");
"""
CODEX = """model = "m"
model_provider = "local"
check_for_update_on_startup = false
analytics.enabled = false
feedback.enabled = false
model_providers.local = {name = "local", base_url = "@URL@/v1", env_key = "OPENAI_API_KEY", wire_api = "responses"}
"""
VIBE = """active_model = "m"
enable_telemetry = false
enable_update_checks = false
enable_auto_update = false
providers = [{name = "local", api_base = "@URL@/v1", api_key_env_var = "OPENAI_API_KEY"}]
models = [{name = "m", provider = "local", alias = "m", max_context_length = 200000}]
"""
KIMI = """default_model = "m"
telemetry = false
models.m = {provider = "local", model = "m", max_context_size = 200000}
providers.local = {type = "openai_legacy", base_url = "@URL@/v1", api_key = "dummy"}
"""
OPENCODE_MODELS = {
    "m": {"name": "m", "tool_call": True, "limit": {"context": 200000, "output": 8000}}
}
OPENCODE = {
    "npm": "@ai-sdk/openai-compatible",
    "options": {"baseURL": "@URL@/v1", "apiKey": KEY},
    "models": OPENCODE_MODELS,
}
OPENCODE = {
    "autoupdate": False,
    "share": "disabled",
    "model": "local/m",
    "small_model": "local/m",
    "provider": {"local": OPENCODE},
}
PI_PROVIDER = {
    "baseUrl": "@URL@/v1",
    "api": "openai-completions",
    "apiKey": KEY,
    "models": [{"id": "m", "contextWindow": 200000}],
}
CLINE = {"provider": "openai-compatible", "apiKey": KEY, "model": "m", "baseUrl": "@URL@/v1"}
CLINE = {
    "openai-compatible": {
        "settings": CLINE,
        "updatedAt": "2026-01-01T00:00:00.000Z",
        "tokenSource": "manual",
    }
}
CLINE = {"version": 1, "lastUsedProvider": "openai-compatible", "modes": {}, "providers": CLINE}


def quiet_settings(login):
    """The settings of Gemini CLI and of its fork Qwen Code."""
    general = {"enableAutoUpdate": False, "enableAutoUpdateNotification": False}
    security = {"auth": {"selectedType": login}, "folderTrust": {"enabled": False}}
    return json.dumps(
        {"privacy": {"usageStatisticsEnabled": False}, "general": general, "security": security}
    )


OPENCODE_FILES = {".config/opencode/opencode.json": json.dumps(OPENCODE)}
GEMINI_FILES = {".gemini/settings.json": quiet_settings("gemini-api-key")}
QWEN_FILES = {".qwen/settings.json": quiet_settings("openai")}
PI_FILES = {".pi/agent/models.json": json.dumps({"providers": {"local": PI_PROVIDER}})}

OPENAI = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "@URL@/v1", "DO_NOT_TRACK": "1"}
LITELLM = {
    "OPENAI_API_KEY": KEY,
    "OPENAI_API_BASE": "@URL@/v1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}
RAW = {"MODEL_URL": "@URL@/v1/chat/completions"}
SOONG = {"SOONG_AGENT_MODEL": "openai:m@@URL@/v1", "OPENAI_API_KEY": KEY}
CLAUDE = {
    "ANTHROPIC_BASE_URL": URL,
    "ANTHROPIC_API_KEY": KEY,
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
}
CLAUDE |= {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_ERROR_REPORTING": "1"}
CLAUDE_ASK = ["-p", ASK, "--model", "claude-sonnet-4-5"]
GEMINI = {
    "GEMINI_API_KEY": KEY,
    "GOOGLE_GEMINI_BASE_URL": URL,
    "GEMINI_CLI_TRUST_WORKSPACE": "true",
}
GEMINI_ASK = ["-p", ASK, "-m", "gemini-2.5-flash"]
OPENCODE_ENV = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
}
PI = {"PI_OFFLINE": "1", "PI_TELEMETRY": "0", "PI_SKIP_VERSION_CHECK": "1"}
PI_ASK = ["--model", "local/m", ASK]
DEEPAGENTS = {
    **OPENAI,
    "LANGSMITH_TRACING": "false",
    "DEEPAGENTS_CODE_NO_UPDATE_CHECK": "1",
    "DEEPAGENTS_CODE_PRICES_AUTO_UPDATE": "0",
}
OPENHANDS = {
    **LITELLM,
    "LLM_API_KEY": KEY,
    "LLM_BASE_URL": "@URL@/v1",
    "LLM_MODEL": "openai/m",
    "OPENHANDS_SUPPRESS_BANNER": "1",
}
OPENHANDS_ASK = ["--headless", "--override-with-envs", "-t", ASK]
AIDER_ASK = [
    "--no-check-update",
    "--analytics-disable",
    "--no-show-model-warnings",
    "--no-gitignore",
    "--yes-always",
    "--no-pretty",
]
AIDER_ASK += ["--model", "openai/m", "--message", ASK]
MINI = {
    **LITELLM,
    "MSWEA_CONFIGURED": "true",
    "MSWEA_SILENT_STARTUP": "1",
    "MSWEA_COST_TRACKING": "ignore_errors",
}
MINI_ASK = ["-y", "--exit-immediately", "-l", "0", "-m", "openai/m", "-t", ASK]
LLM = {
    ".config/io.datasette.llm/extra-openai-models.yaml": '- model_id: m\n  model_name: m\n  api_base: "@URL@/v1"\n'
}

PEERS = {
    "soong": Peer(
        "pip soong-agent", ["soong-agent"], ["run", ASK], ["run", "--continue", ASK], SOONG
    ),
    "claude": Peer(
        "npm @anthropic-ai/claude-code", ["claude"], CLAUDE_ASK, ["--continue", *CLAUDE_ASK], CLAUDE
    ),
    "claude-bare": Peer(
        "npm @anthropic-ai/claude-code",
        ["claude"],
        ["--bare", *CLAUDE_ASK],
        ["--bare", "--continue", *CLAUDE_ASK],
        CLAUDE,
    ),
    "codex": Peer(
        "npm @openai/codex",
        ["codex"],
        ["exec", ASK],
        ["exec", "resume", "--last", ASK],
        OPENAI,
        {".codex/config.toml": CODEX},
    ),
    "opencode": Peer(
        "npm opencode-ai",
        ["opencode"],
        ["run", ASK],
        ["run", "--continue", ASK],
        OPENCODE_ENV,
        OPENCODE_FILES,
    ),
    "gemini": Peer(
        "npm @google/gemini-cli",
        ["gemini"],
        GEMINI_ASK,
        ["--resume", "latest", *GEMINI_ASK],
        GEMINI,
        GEMINI_FILES,
    ),
    "qwen": Peer(
        "npm @qwen-code/qwen-code",
        ["qwen"],
        ["-m", "m", ASK],
        ["-m", "m", "--continue", ASK],
        OPENAI,
        QWEN_FILES,
    ),
    "pi": Peer(
        "npm @earendil-works/pi-coding-agent",
        ["pi"],
        ["-p", *PI_ASK],
        ["-p", "-c", *PI_ASK],
        PI,
        PI_FILES,
    ),
    "cline": Peer(
        "npm cline",
        ["cline"],
        [ASK],
        None,
        OPENAI,
        {".cline/data/settings/providers.json": json.dumps(CLINE)},
    ),
    "vibe": Peer(
        "pip mistral-vibe",
        ["vibe"],
        ["--trust", "-p", ASK],
        ["--trust", "-c", "-p", ASK],
        OPENAI,
        {".vibe/config.toml": VIBE},
    ),
    # kimi-cli 1.52 only says that it is no longer maintained
    "kimi": Peer(
        "pip kimi-cli==1.51.0",
        ["kimi"],
        ["--quiet", "-p", ASK],
        ["--quiet", "-C", "-p", ASK],
        {},
        {".kimi/config.toml": KIMI},
    ),
    "deepagents": Peer(
        "pip deepagents-code",
        ["dcode"],
        ["-M", "openai:m", "--no-mcp", "-q", "-n", ASK],
        None,
        DEEPAGENTS,
    ),
    "openhands": Peer(
        "pip openhands",
        ["openhands"],
        OPENHANDS_ASK,
        ["--resume", "--last", *OPENHANDS_ASK],
        OPENHANDS,
    ),
    "mini": Peer("pip mini-swe-agent", ["mini"], MINI_ASK, None, MINI),
    "aider": Peer(
        "pip aider-chat",
        ["aider"],
        AIDER_ASK,
        ["--restore-chat-history", *AIDER_ASK],
        LITELLM,
        tools=False,
    ),
    "llm": Peer(
        "pip llm",
        ["llm"],
        ["-m", "m", ASK],
        ["-m", "m", "-c", ASK],
        {"OPENAI_API_KEY": KEY},
        LLM,
        tools=False,
    ),
    "raw-python": Peer("", ["python3", "-I", "-c", RAW_PYTHON], [ASK], None, RAW, tools=False),
    "raw-node": Peer(
        "", ["node", "--input-type=module", "-e", RAW_NODE], [ASK], None, RAW, tools=False
    ),
}
