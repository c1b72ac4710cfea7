"""O10: the suite writes below its own `test-runs` folder and nowhere else."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from isolation import REAL_HOME, Guard, Home, program_file, redirect_home, run_folder

pytestmark = pytest.mark.checked

ROOT = Path(__file__).parents[3]
pytest_plugins = ["pytester"]


def test_o10_homes_and_projects_lie_below_this_runs_folder(home: Home, project: Path) -> None:
    run = Path.home() / ".soong-agent" / "test-runs" / os.environ["SOONG_AGENT_TEST_RUN_ID"]
    assert home.path.is_relative_to(run / "home")
    assert project.is_relative_to(run / "project")
    assert os.environ["SOONG_AGENT_HOME"] == str(home.path)
    assert list(home.path.iterdir()) == []


def test_o10_the_home_of_the_person_at_the_keyboard_is_not_the_suites() -> None:
    assert Path.home() != Path(os.environ[REAL_HOME])
    assert run_folder().is_relative_to(Path.home())


def test_a_worker_process_keeps_the_run_it_was_started_for(monkeypatch: pytest.MonkeyPatch) -> None:
    before = dict(os.environ)
    redirect_home()
    assert dict(os.environ) == before


def test_a_config_is_where_a_child_process_finds_it(home: Home) -> None:
    path = home.write_config('[model]\nprovider = "scripted"\nname = "x"\n')
    assert path == home.path / "config.toml"
    assert home.env(EXTRA="1")["SOONG_AGENT_HOME"] == str(home.path)
    assert home.env(EXTRA="1")["EXTRA"] == "1"


class TestTheGuard:
    def guard(self, tmp_path: Path) -> tuple[Guard, Path, Path]:
        own, real = tmp_path / "own", tmp_path / "real"
        for place in (own, real):
            (place / ".soong-agent").mkdir(parents=True)
            (place / ".soong-agent" / "config.toml").write_text("a = 1\n", encoding="utf-8")
        return Guard(own, real), own / ".soong-agent", real / ".soong-agent"

    def test_allows_what_happens_below_test_runs(self, tmp_path: Path) -> None:
        guard, own, _ = self.guard(tmp_path)
        (own / "test-runs" / "1" / "home").mkdir(parents=True)
        (own / "test-runs" / "1" / "home" / "config.toml").write_text("", encoding="utf-8")
        assert guard.violations() == []

    def test_names_a_new_a_changed_and_a_deleted_file(self, tmp_path: Path) -> None:
        guard, own, real = self.guard(tmp_path)
        (own / "sessions.sqlite").write_bytes(b"")
        (own / "config.toml").write_text("a = 12\n", encoding="utf-8")
        (real / "config.toml").unlink()
        assert guard.violations() == [
            own / "config.toml",
            own / "sessions.sqlite",
            real / "config.toml",
        ]

    def test_does_not_mistake_the_real_test_runs_for_its_own(self, tmp_path: Path) -> None:
        guard, _, real = self.guard(tmp_path)
        (real / "test-runs").mkdir()
        assert guard.violations() == [real / "test-runs"]


def test_o10_a_run_that_touches_the_home_fails_though_its_tests_passed(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = pytester.path / "own"
    own.mkdir()
    monkeypatch.setenv("HOME", str(own))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    pytester.makeconftest((ROOT / "tests" / "conftest.py").read_text(encoding="utf-8"))
    (pytester.path / "test_stray.py").write_text(
        "from pathlib import Path\n\n"
        "def test_writes_where_it_must_not():\n"
        "    (Path.home() / '.soong-agent' / 'stray').mkdir(parents=True)\n",
        encoding="utf-8",
    )
    result = pytester.runpytest_subprocess("-pno:cacheprovider", "-pno:schemathesis")
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*changed outside the suite's own folder*", "*stray"])


def test_a_run_that_is_killed_leaves_no_program_behind(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(pytester.path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    pytester.makeconftest((ROOT / "tests" / "conftest.py").read_text(encoding="utf-8"))
    pytester.makepyfile(
        """
        import os, signal, subprocess

        def test_starts_a_program_and_is_killed():
            words = ["sh", "-c", "echo $$ > pid; exec sleep 60"]
            subprocess.Popen(words, start_new_session=True)
            while not (os.path.exists("pid") and open("pid").read().endswith(chr(10))):
                pass
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    result = pytester.runpytest_subprocess("-pno:cacheprovider", "-pno:schemathesis")
    assert result.ret == -signal.SIGKILL
    program = Path("/proc", (pytester.path / "pid").read_text("ascii").strip())
    while program.exists() and b"sleep" in (program / "cmdline").read_bytes():
        time.sleep(0.01)


TAKEN_OVER = """
import pytest, collected
plain = ["-pno:cacheprovider", "-pno:schemathesis", "-pno:xdist", "--import-mode=importlib"]
tests = collected.Collecting()
pytest.main([*plain, "--collect-only", "-q"], plugins=[tests])
collected.hand_over(tests.session, tests.skipped)
print("=== taken over")
pytest.main([*plain, "-q"])
"""


def test_workers_take_over_the_tests_that_one_process_has_collected(tmp_path: Path) -> None:
    (tmp_path / "test_here.py").write_text(
        "print(file=open('imports', 'a'))\n\ndef test_something(tmp_path): pass\n", "utf-8"
    )
    (tmp_path / "test_missing.py").write_text(
        "import pytest\npytest.importorskip('no_such_module_anywhere')\n", "utf-8"
    )
    done = subprocess.run(  # noqa: S603
        [sys.executable, program_file(TAKEN_OVER)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "1 passed, 1 skipped" in done.stdout.partition("=== taken over")[2]
    assert (tmp_path / "imports").read_text("utf-8") == "\n", "it was imported again"
