"""Changes to a finished run folder, some of them with every hash computed again."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kgent.runtime.state import SCHEMA_VERSION, state_hash, state_text
from kgent.sandbox.workspace import FILES, LOGS
from kgent_runs import lines, state


def rewrite(root: Path, name: str, change: Callable[[str], str]) -> None:
    path = root / name
    before = path.read_text(encoding="utf-8")
    after = change(before)
    assert after != before
    path.write_text(after, encoding="utf-8")


def edit_state(root: Path, **fields: Any) -> None:
    content = state(root) | fields
    (root / "run.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def forge(root: Path, **fields: Any) -> None:
    """Give `run.json` these fields, and compute every hash that depends on anything again."""
    content = state(root) | fields
    events = lines(root / "events.jsonl")
    events[-1]["data"]["run_json_sha256"] = state_hash(content)
    write_events(root, events)
    hashes = dict[str, str]()
    for name, key in (("sandbox-manifest.json", "files"), ("artifact-manifest.json", "artifacts")):
        manifest = json.loads((root / name).read_text())
        for file in manifest[key]:
            if "path_hex" not in file and len(file["path"]) < 200:
                raw = (root / file["path"]).read_bytes()
                file |= {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
        raw = json.dumps(manifest).encode()
        (root / name).write_bytes(raw)
        hashes[name] = hashlib.sha256(raw).hexdigest()
    text = state_text(content | {"manifests": hashes})
    (root / "run.json").write_text(text, encoding="utf-8")
    if content["schema_version"] >= SCHEMA_VERSION:
        seal_attempt(root)


def seal_attempt(root: Path) -> None:
    """Copy the records of a run into the folder of its last attempt."""
    attempts = sorted((root / "attempts").iterdir())
    for name in FILES:
        raw = (root / name).read_bytes()
        if name in LOGS and attempts[1:]:
            manifest = json.loads((attempts[-2] / "sandbox-manifest.json").read_text())
            begin = {file["path"]: file["bytes"] for file in manifest["files"]}[name]
            raw = raw[begin:]
        (attempts[-1] / name).write_bytes(raw)


def write_events(root: Path, events: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events)
    (root / "events.jsonl").write_text(text, encoding="utf-8")
