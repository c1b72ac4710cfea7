"""Downloads of the API."""

from pathlib import Path

import pytest

from agent_core.providers.scripted import calls
from agent_core.serve.api.files import disposition
from apis import api
from isolation import Home
from runtimes import CONFIG, runtime
from tables import together

SNAPSHOTS = f'{CONFIG}\n[workspace]\nsnapshots = "turn"\n'
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c636060606000000005000163a8e24d0000000049454e44ae426082"
)


@together(
    ("path", "header"),
    [
        ("a.txt", 'filename="a.txt"'),
        ("sub/folder/a b.txt", 'filename="a b.txt"'),
        ("C:\\x\\a.txt", 'filename="a.txt"'),
        ('say "hi".txt', "filename=\"say _hi_.txt\"; filename*=UTF-8''say%20%22hi%22.txt"),
        ("文件.txt", "filename=\"__.txt\"; filename*=UTF-8''%E6%96%87%E4%BB%B6.txt"),
        ("a\r\nSet-Cookie: b.txt", 'filename="aSet-Cookie: b.txt"'),
        ("a\u202etxt.exe", 'filename="atxt.exe"'),
        ("100%;x=y.txt", 'filename="100%;x=y.txt"'),
        ("..", 'filename="file"'),
        ("a/", 'filename="file"'),
        ("a.", 'filename="a"'),
        ("\ud800.txt", 'filename=".txt"'),
        (".hidden", 'filename=".hidden"'),
    ],
)
def test_a_file_is_saved_under_a_harmless_name(path: str, header: str) -> None:
    assert disposition(path) == f"attachment; {header}"
    disposition(path).encode("ascii")


async def test_artifacts_are_downloaded(home: Home, project: Path) -> None:
    script = [calls("code.run_command", argv=["seq", "60000"]), "done"]
    config = f'{CONFIG}\n[[permissions.rules]]\ndecision = "allow"\ncommand = ["seq", "*"]\n'
    made = runtime(home, project, script, config=config)
    async with made, api(made) as client:
        run = await client.post("/api/runs", {"message": "go", "session_id": "s1"})
        await client.ended(run.body["run_id"])
        artifacts = (await client.get("/api/sessions/s1")).body["artifacts"]
        answer = await client.get(f"/api/artifacts/{artifacts[0]['artifact_id']}")
    text = answer.body.decode()
    assert answer.status == 200
    assert "59999\n60000" in text
    assert int(answer.headers["Content-Length"]) == len(answer.body)
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Content-Disposition"].startswith("attachment; filename=")
    assert "/" not in answer.headers["Content-Disposition"]


@pytest.mark.long
async def test_recorded_files_are_downloaded(home: Home, project: Path) -> None:
    (project / "sub").mkdir()
    (project / "sub" / "pixel.dat").write_bytes(PIXEL)
    (project / "page.html").write_text("<script>alert(1)</script>")
    (project / "文 件.txt").write_text("unicode\n")
    (project / "large.bin").write_bytes(bytes(range(256)) * 4096)
    made = runtime(
        home, project, [calls("code.write_file", path="a", content="b"), "done"], config=SNAPSHOTS
    )
    async with made, api(made) as client:
        options = {"permission_mode": "accept-edits"}
        run = await client.post(
            "/api/runs", {"message": "go", "session_id": "s1", "options": options}
        )
        await client.ended(run.body["run_id"])
        node = (await client.get("/api/sessions/s1")).body["session"]["active_node_id"]
        snapshot = (await made.diff_workspace(node, node)).after
        files = f"/api/snapshots/{node}/files"
        picture = await client.get(f"{files}/sub/pixel.dat")
        page = await client.get(f"{files}/page.html")
        large = await client.get(f"/api/snapshots/{snapshot}/files/large.bin")
        named = await client.get(f"{files}/文 件.txt")
        missing = [
            await client.get(f"{files}/{path}")
            for path in ("none.txt", "sub", "..%2F..%2Fetc%2Fpasswd", "%2Fetc%2Fpasswd")
        ]
    assert (picture.status, picture.body) == (200, PIXEL)
    assert picture.headers["Content-Type"] == "image/png"
    assert (page.status, page.headers["Content-Type"]) == (200, "application/octet-stream")
    assert page.headers["Content-Disposition"] == 'attachment; filename="page.html"'
    assert large.body == (project / "large.bin").read_bytes()
    assert (named.status, named.body) == (200, b"unicode\n")
    assert [each.status for each in missing] == [404] * 4
