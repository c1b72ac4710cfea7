"""Manifests at the end of a run, and what `verify` and `show` make of them."""

import json
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath

import pytest

from kgent.cli import main
from kgent.review.verification import verify
from kgent_runs import a_run, calls, state
from sweeps import sampled

HOSTILE = '<script>alert(1)</script>\x1b[31m"'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    result = a_run(
        tmp_path,
        calls("write_file", path="deliverables/report.md", content="# Report\n"),
        calls("write_file", path="workspace/deep/notes.md", content=HOSTILE),
        calls("write_memory", content=HOSTILE),
        calls("read_file", path="/etc/passwd"),
        HOSTILE,
        deliverables={
            "required": [
                {"path": "deliverables/report.md", "kind": "report"},
                "deliverables/missing.md",
            ]
        },
    )
    assert result.sandbox_root is not None
    return result.sandbox_root


def test_both_manifests_are_there_and_run_json_vouches_for_them(root: Path) -> None:
    assert set(state(root)["manifests"]) == {"sandbox-manifest.json", "artifact-manifest.json"}
    sandbox = json.loads((root / "sandbox-manifest.json").read_text())
    assert sandbox["root"] == str(root)
    assert {"events.jsonl", "transcript.md", "config.yaml"} <= {
        file["path"] for file in sandbox["files"]
    }


def test_the_paths_of_artifacts_are_relative_to_the_folder(root: Path) -> None:
    artifacts = json.loads((root / "artifact-manifest.json").read_text())["artifacts"]
    for artifact in artifacts:
        path = PurePosixPath(artifact["path"])
        assert not path.is_absolute()
        assert ".." not in path.parts
        assert (root / path).exists() == (artifact["status"] == "present")
    made = {artifact["path"]: artifact["created_by"] for artifact in artifacts}
    assert made == {
        "archive/candidate-memory.jsonl": "tool:write_memory",
        "archive/conversation.jsonl": "runtime",
        "deliverables/missing.md": "nobody",
        "deliverables/report.md": "tool:write_file",
        "workspace/deep/notes.md": "tool:write_file",
    }


def test_an_untouched_folder_is_sound(root: Path) -> None:
    verdict = verify(root)
    assert verdict.problems == []
    assert verdict.checked == 13


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "change", "said"),
    sampled(
        [
            ("deliverables/report.md", b"# Other!\n", "its SHA-256 differs"),
            ("deliverables/report.md", b"longer than before", "9 bytes then, 18 now"),
            ("deliverables/report.md", None, "is missing"),
            ("events.jsonl", b"", "events.jsonl was changed"),
            ("transcript.md", None, "transcript.md is missing"),
            ("artifact-manifest.json", b'{"artifacts": [], "updated_at": "x"}', "changed after"),
            ("artifact-manifest.json", b"{", "artifact-manifest.json is damaged"),
            ("config.yaml", b"kgent: {", "cannot be read as a profile"),
            ("workspace/deep/notes.md", Path("/etc/passwd"), "no longer an ordinary file"),
        ],
        keep=2,
    ),
)
def test_every_change_is_noticed(
    root: Path, name: str, change: bytes | Path | None, said: str
) -> None:
    path = root / name
    path.unlink()
    if isinstance(change, Path):
        path.symlink_to(change)
    elif change is not None:
        path.write_bytes(change)
    assert said in "\n".join(verify(root).problems)
    assert main(["verify", str(root)]) == 1


def test_a_manifest_that_names_places_outside_is_not_followed(root: Path) -> None:
    path = root / "artifact-manifest.json"
    manifest = json.loads(path.read_text())
    manifest["artifacts"][0]["path"] = "../../etc/passwd"
    manifest["artifacts"][0]["sha256"] = "0" * 64
    path.write_text(json.dumps(manifest))
    assert "names a place outside the run folder" in "\n".join(verify(root).problems)


def test_show_prints_a_run_without_running_what_is_in_it(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(root)]) == 0
    out = capsys.readouterr().out
    assert "incomplete" in out
    assert "write_file" in out
    assert "run.incomplete" in out
    assert "\x1b]" not in out
    assert "\x1b[31m" not in out


class Tags(HTMLParser):
    """Collects what a page is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def test_the_page_is_self_contained_and_runs_nothing(root: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["show", str(root), "--html", str(page)]) == 0
    text = page.read_text()
    tags = Tags()
    tags.feed(text)
    assert tags.tags.isdisjoint({"script", "img", "link", "iframe", "form", "object"})
    assert tags.attributes <= {
        *("lang", "charset", "http-equiv", "content", "name", "class", "id", "scope", "href"),
        *("aria-labelledby", "aria-label", "role", "tabindex"),
    }
    assert "default-src &#x27;none&#x27;" in text or "default-src 'none'" in text
    assert "&lt;script&gt;" in text
    assert "\x1b" not in text
    assert "deliverables/report.md" in text


def test_a_page_that_cannot_be_written_is_two(root: Path, tmp_path: Path) -> None:
    assert main(["show", str(root), "--html", str(tmp_path / "no" / "page.html")]) == 2
