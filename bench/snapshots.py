"""The cost of snapshots of a workspace, compared with a bare walk, a shadow git directory and `cp -a`.

    python bench/snapshots.py                # 20,000 files
    python bench/snapshots.py --files 2000 --rounds 3

Each figure is CPU time, of this process and its children, the least of the rounds: what other work
on the machine disturbs least. The rows of one round are measured one after the other.
"""

import argparse
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from agent_core.snapshots.store import SnapshotStore

WORDS = "def return self import value for in if not None class async await list of the a to".split()


def cpu():
    own, children = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def make(folder, files):
    chance = random.Random(1)
    for number in range(files):
        place = folder / f"package{number % 97}" / f"part{number % 11}" / f"module{number}.py"
        place.parent.mkdir(parents=True, exist_ok=True)
        lines = chance.randint(20, 300)
        place.write_text("\n".join(" ".join(chance.choices(WORDS, k=8)) for _ in range(lines)))


def walk(folder):
    """A bare walk: every entry looked at once, nothing kept."""
    for top, _, names in os.walk(folder):
        for name in names:
            os.lstat(os.path.join(top, name))


def walk_scandir(folder):
    waiting = [folder]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)


class ShadowGit:
    """Snapshots as other tools take them: a git directory beside the workspace."""

    def __init__(self, folder, work):
        self.command = [
            "git",
            f"--git-dir={folder}",
            f"--work-tree={work}",
            "-c",
            "core.autocrlf=false",
        ]
        self("init", "-q")

    def __call__(self, *arguments):
        done = subprocess.run(
            [*self.command, *arguments], check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def record(self):
        self("add", "-A")
        return self("write-tree")

    def restore(self, tree):
        self("read-tree", tree)
        self("checkout-index", "-f", "-a")
        self("clean", "-fdq")


def change(work, names, tag):
    for name in names:
        (work / name).write_text(f"changed {tag}")


def measure(files, rounds):
    place = Path(tempfile.mkdtemp(prefix="bench-snapshots-"))
    best = {}

    def timed(name, function, *arguments):
        begin = cpu()
        result = function(*arguments)
        best[name] = min(best.get(name, 1e9), cpu() - begin)
        return result

    try:
        work = place / "work"
        make(work, files)
        names = [
            path.relative_to(work) for path in sorted(work.rglob("*.py"))[:: max(1, files // 10)]
        ]
        many = [
            path.relative_to(work) for path in sorted(work.rglob("*.py"))[:: max(1, files // 1000)]
        ]
        for turn in range(rounds):
            store = SnapshotStore(place / f"store{turn}")
            git = ShadowGit(place / f"git{turn}", work)
            timed("walk", walk, work)
            timed("scandir", walk_scandir, work)
            first = timed("first", store.record, work).snapshot_id
            first_git = timed("first git", git.record)
            store.record(work)
            timed("unchanged", store.record, work)
            timed("unchanged git", git.record)
            change(work, names, f"a{turn}")
            timed("little", store.record, work)
            timed("little git", git.record)
            change(work, many, f"b{turn}")
            store.record(work)
            git.record()
            timed("restore", store.restore, work, first)
            change(work, many, f"c{turn}")
            git.record()
            timed("restore git", git.restore, first_git)
            store.record(work)
            copies = place / f"fork{turn}", place / f"cp{turn}"
            forks = [
                ("fork", lambda: store.copy_out(work, copies[0])),
                ("cp", lambda: subprocess.run(["cp", "-a", work, copies[1]], check=True)),
            ]
            for name, copy in forks if turn % 2 else reversed(forks):  # who is first, pays
                timed(name, copy)
            size = sum(
                path.stat().st_size
                for path in (place / f"store{turn}").rglob("*")
                if path.is_file()
            )
            size_git = sum(
                path.stat().st_size for path in (place / f"git{turn}").rglob("*") if path.is_file()
            )
            best["size"], best["size git"] = size / 1e6, size_git / 1e6
            for folder in (*copies, place / f"store{turn}", place / f"git{turn}"):
                shutil.rmtree(folder)
    finally:
        shutil.rmtree(place)
    return best


def table(best):
    def line(name, ours, beside, goal=""):
        return f"| {name} | {ours:.3f} | {beside:.3f} | {ours / beside:.2f} | {goal} |"

    return "\n".join(
        [
            "| CPU seconds, MB | ours | beside | of it | bound |",
            "|---|---|---|---|---|",
            line(
                "unchanged turn, beside a bare walk (`os.walk` and `lstat`)",
                best["unchanged"],
                best["walk"],
                "1.5",
            ),
            line(
                "unchanged turn, beside the barest walk (`os.scandir`)",
                best["unchanged"],
                best["scandir"],
                "1.5",
            ),
            line("10 files changed, beside a bare walk", best["little"], best["walk"], "1.5"),
            line("fork, beside `cp -a`", best["fork"], best["cp"], "1.2"),
            line("unchanged turn, beside shadow git", best["unchanged"], best["unchanged git"]),
            line("10 files changed, beside shadow git", best["little"], best["little git"]),
            line("first recording, beside shadow git", best["first"], best["first git"]),
            line(
                "restore of 1,000 changed files, beside shadow git",
                best["restore"],
                best["restore git"],
            ),
            line("size on the disk, beside shadow git", best["size"], best["size git"]),
        ]
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    print(f"{asked.files} files, the least of {asked.rounds} rounds\n")
    print(table(measure(asked.files, asked.rounds)))
