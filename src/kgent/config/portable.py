"""A profile independent of its place: the content of its fingerprint, and its copy.

Skills and scripts count by their content instead of their paths, so that the copy in a run folder,
whose paths lead into that folder, has the same fingerprint as the original.
"""

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent_core.config.section import Section
from agent_core.opening import read_text_file
from kgent.config.models import SANDBOX_PLACEHOLDERS, SQLITE, KgentConfig, ModelConfig
from kgent.errors import KgentError
from kgent.sandbox.inputs import INPUTS, input_name
from kgent.skills.registry import SkillRegistry

KEPT_SKILLS = "archive/skills"
KEPT_MODEL = "archive/model"
"""The folders of a run folder for its skills, and for the script that replaces a model."""
MAX_SCRIPT_BYTES = 1_000_000
_SCRIPT_PROVIDERS = {"scripted"}


_LATER_KEYS: tuple[tuple[str, str, object], ...] = (
    ("deliverables", "review", False),
    ("model", "fallbacks", []),
    ("runtime", "unattended", "deny"),
)
"""Keys that came later than the fingerprint, with the defaults that do not count in it."""


def portable_fields(config: KgentConfig) -> dict[str, Any]:
    """Return the content of a profile, with paths replaced by hashes or names of their files."""
    fields = config.model_dump(mode="json", exclude={"workspace": {"sandbox"}})
    for spec in fields["parameters"].values():
        spec["value"] = spec["default"] if spec["value"] is None else spec["value"]
    with suppress(KgentError):  # unreadable skills count by their paths
        content = SkillRegistry.of(config).hashes()
        enabled = config.skills.enabled
        found: dict[str, Any] = {"content": content} if content else {"paths": []}
        fields["skills"] = {"enabled": enabled, **found}
    models = (config.model, *config.model.fallbacks)
    for field, model in zip(_model_fields(fields), models, strict=True):
        if model.path is not None:
            script = read_script(config, model)
            hashed = hashlib.sha256(script).hexdigest() if script is not None else None
            field["path"] = {"name": Path(model.path).name, "sha256": hashed}
        if model.price.searches is None:  # it came later, like the keys below
            del field["price"]["searches"]
    for section, key, default in _LATER_KEYS:  # equal profiles keep the fingerprints they had
        if fields[section][key] == default:
            del fields[section][key]
    for fallback in fields["model"].get("fallbacks", ()):
        del fallback["fallbacks"]
    if place := _memory_path(config):
        fields["memory"]["provider"] = f"{SQLITE}{place.name}"
    for field, server in zip(fields["tools"]["mcp"], config.tools.mcp, strict=True):
        field["cwd"] = config.place(server.cwd or ".").name if server.command else None
    for field, spec in zip(fields["inputs"], config.inputs, strict=True):
        field.update({"path": None, "as": input_name(config, spec)})
    return fields


def placeless_fields(config: KgentConfig) -> dict[str, Any]:
    """Return the content of a profile in a run folder, with only the names of outside files.

    Unlike `portable_fields` it has no hashes: files inside are compared as files.
    """
    fields = config.model_dump(mode="json", exclude={"workspace": {"sandbox"}})
    for field in _model_fields(fields):
        field["path"] = Path(field["path"]).name if field["path"] is not None else None
    if place := _memory_path(config):
        fields["memory"]["provider"] = f"{SQLITE}{place.name}"
    for server in fields["tools"]["mcp"]:
        server["cwd"] = Path(server["cwd"]).name if server["cwd"] else None
    return fields


def relocated(
    config: KgentConfig, root: Path, *, script: str | None = None, skills: bool = False
) -> KgentConfig:
    """Return the profile for the run folder `root`, from which it can be run again.

    Args:
        config: the profile, from wherever it was read.
        root: the run folder.
        script: the path of the copied `model.path` in the run folder, if there is one.
        skills: whether the skills were copied into the run folder.
    """
    changes: dict[str, Section | list[Any]] = {}
    place = str(root.parent / "{run_id}")
    kept = Path(config.workspace.sandbox)
    if "{run_id}" in str(kept):
        place = str(config.place(str(kept)))
    bare = place
    for known in SANDBOX_PLACEHOLDERS:
        bare = bare.replace(known, "")
    if "{" not in bare and "}" not in bare:
        changes["workspace"] = config.workspace.model_copy(update={"sandbox": place})
    fallbacks = [
        one.model_copy(update={"path": str(config.place(one.path))}) if one.path else one
        for one in config.model.fallbacks
    ]
    path = script or (str(config.place(config.model.path)) if config.model.path else None)
    changes["model"] = config.model.model_copy(update={"path": path, "fallbacks": fallbacks})
    if skills:
        found = [KEPT_SKILLS] if SkillRegistry.of(config).discover() else []
        changes["skills"] = config.skills.model_copy(update={"paths": found})
    if memory := _memory_path(config):
        provider = f"{SQLITE}{memory}"
        changes["memory"] = config.memory.model_copy(update={"provider": provider})
    if config.tools.mcp:
        servers = [
            one.model_copy(update={"cwd": str(config.place(one.cwd or "."))})
            if one.command
            else one
            for one in config.tools.mcp
        ]
        changes["tools"] = config.tools.model_copy(update={"mcp": servers})
    if config.inputs:
        changes["inputs"] = [
            spec.model_copy(update={"path": f"{INPUTS}/{name}", "name": name})
            for spec in config.inputs
            for name in [input_name(config, spec)]
        ]
    return config.model_copy(update=changes)


def read_script(config: KgentConfig, model: ModelConfig) -> bytes | None:
    """Return the file of a model's `path` if it is a script; None if it is a model or missing."""
    is_script = config.runtime.engine == "mock" or model.provider in _SCRIPT_PROVIDERS
    if model.path is None or not is_script:
        return None
    try:
        content = read_text_file(config.place(model.path), MAX_SCRIPT_BYTES + 1)
    except (OSError, ValueError):
        return None
    return content if len(content) <= MAX_SCRIPT_BYTES else None


def _model_fields(fields: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the fields of the model and of its fallbacks."""
    return [fields["model"], *fields["model"]["fallbacks"]]


def _memory_path(config: KgentConfig) -> Path | None:
    provider = config.memory.provider or ""
    name = provider.removeprefix(SQLITE)
    return config.place(name) if name and name != provider else None
