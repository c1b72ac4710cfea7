"""Public services by name: their address, the variable of their key, and their windows."""

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import urlsplit


class PublicService(NamedTuple):
    """Defaults for a provider's own service.

    Attributes:
        url: its address; `base_url` in the settings replaces it.
        keys: environment variables with the key, as the service's documents call them.
        window: the smallest context window of its current models, in tokens; None if its listing of
            models says it, or nothing does.
        windows: windows of models whose names begin so; the longest beginning counts.
        other_urls: further addresses of the service.
        is_compatible: it is called through OpenAI's protocol, and named like a provider.
    """

    url: str
    keys: tuple[str, ...]
    window: int | None = None
    windows: Mapping[str, int] = MappingProxyType({})
    other_urls: tuple[str, ...] = ()
    is_compatible: bool = True

    @property
    def host(self) -> str:
        """The name of its host."""
        return urlsplit(self.url).hostname or ""

    @property
    def key(self) -> str | None:
        """The variable with the key: the first one that is set, or else the first one, if any."""
        found = (name for name in self.keys if os.environ.get(name, "").strip())
        return next(found, next(iter(self.keys), None))

    def window_of(self, model: str) -> int | None:
        """Return the window of a model; None if it is not known here."""
        name = model.rpartition("/")[2].lower()
        known = [begin for begin in self.windows if name.startswith(begin)]
        return self.windows[max(known, key=len)] if known else self.window


_MILLION = 1_048_576
_QUARTER = 262_144

SERVICES: Mapping[str, PublicService] = MappingProxyType(
    {
        "openai": PublicService(
            "https://api.openai.com/v1", ("OPENAI_API_KEY",), 128_000, is_compatible=False
        ),
        "anthropic": PublicService(
            "https://api.anthropic.com", ("ANTHROPIC_API_KEY",), 200_000, is_compatible=False
        ),
        "gemini": PublicService(
            "https://generativelanguage.googleapis.com",
            ("GEMINI_API_KEY",),
            200_000,
            is_compatible=False,
        ),
        "cerebras": PublicService(
            "https://api.cerebras.ai/v1",
            ("CEREBRAS_API_KEY",),
            windows={"gpt-oss-120b": 131_072, "zai-glm-4.7": 131_072, "qwen-3": 65_536},
        ),
        "deepseek": PublicService(
            "https://api.deepseek.com",
            ("DEEPSEEK_API_KEY",),
            windows={"deepseek-v4": 1_000_000, "deepseek-flash": 1_000_000, "deepseek-": 64_000},
        ),
        "fireworks": PublicService(
            "https://api.fireworks.ai/inference/v1",
            ("FIREWORKS_API_KEY",),
            windows={
                "deepseek-v4": 1_040_000,
                "glm-5": 1_040_000,
                "gpt-oss": 131_072,
                "kimi-k2": 262_144,
                "kimi-k3": 1_040_000,
                "minimax-m2": 204_800,
                "minimax-m3": 524_288,
            },
        ),
        "github": PublicService("https://models.github.ai/inference", ("GITHUB_TOKEN",)),
        "groq": PublicService("https://api.groq.com/openai/v1", ("GROQ_API_KEY",)),
        "minimax": PublicService(
            "https://api.minimax.io/v1",
            ("MINIMAX_API_KEY",),
            windows={"minimax-m2": 204_800, "minimax-m3": 1_000_000},
            other_urls=("https://api.minimaxi.com/v1",),
        ),
        "mistral": PublicService(
            "https://api.mistral.ai/v1",
            ("MISTRAL_API_KEY",),
            windows={
                "codestral": 256_000,
                "devstral": _QUARTER,
                "mistral-large": _QUARTER,
                "mistral-large-4": _MILLION,
                "mistral-medium-3-5": _QUARTER,
                "mistral-small-2603": _QUARTER,
            },
        ),
        "moonshot": PublicService(
            "https://api.moonshot.ai/v1",
            ("MOONSHOT_API_KEY", "KIMI_API_KEY"),
            windows={
                "kimi-k2": _QUARTER,
                "kimi-k3": _MILLION,
                "moonshot-v1-8k": 8192,
                "moonshot-v1-32k": 32_768,
                "moonshot-v1-128k": 131_072,
            },
            other_urls=("https://api.moonshot.cn/v1",),
        ),
        "openrouter": PublicService("https://openrouter.ai/api/v1", ("OPENROUTER_API_KEY",)),
        "qwen": PublicService(
            "https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
            ("DASHSCOPE_API_KEY",),
            other_urls=(
                "https://dashscope.aliyuncs.com/compatible-mode/v1",
                "https://dashscope-us.aliyuncs.com/compatible-mode/v1",
            ),
        ),
        "together": PublicService("https://api.together.xyz/v1", ("TOGETHER_API_KEY",)),
        "xai": PublicService(
            "https://api.x.ai/v1",
            ("XAI_API_KEY",),
            windows={"grok-3": 131_072, "grok-4": 256_000, "grok-4.5": 500_000},
        ),
        "vertex": PublicService(
            "https://aiplatform.googleapis.com", (), 200_000, is_compatible=False
        ),
        "zhipu": PublicService(
            "https://api.z.ai/api/paas/v4",
            ("ZHIPU_API_KEY", "ZAI_API_KEY", "ZHIPUAI_API_KEY"),
            windows={
                "glm-4.5": 131_072,
                "glm-4.6": 200_000,
                "glm-4.6v": 128_000,
                "glm-4.7": 200_000,
                "glm-5.2": 1_000_000,
                "glm-5.3": 1_000_000,
            },
            other_urls=("https://open.bigmodel.cn/api/paas/v4",),
        ),
    }
)
"""Services by the name of their provider."""

SPELLINGS: Mapping[str, str] = MappingProxyType(
    {"dashscope": "qwen", "glm": "zhipu", "kimi": "moonshot", "zai": "zhipu"}
)
"""Other names of the same services."""

COMPATIBLE = tuple(sorted(name for name, row in SERVICES.items() if row.is_compatible))
"""Names of the services that are called through OpenAI's protocol."""


def provider_named(name: str) -> str:
    """Return the name of a provider in its first spelling."""
    return SPELLINGS.get(name, name)


def public_service(provider: str, base_url: str | None) -> PublicService | None:
    """Return the provider's own service if the address is its; None for every other server."""
    service = SERVICES.get(provider)
    if service is None or not base_url:
        return service
    hosts = {urlsplit(url).hostname for url in (service.url, *service.other_urls)}
    try:
        address = urlsplit(base_url.strip())
        is_its_own = address.scheme == "https" and address.hostname in hosts
        is_its_own = is_its_own and "@" not in address.netloc  # parsers disagree about it
        return service if is_its_own and address.port in {None, 443} else None
    except ValueError:
        return None
