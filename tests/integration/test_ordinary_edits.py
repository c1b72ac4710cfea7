"""Edits that need no question with `accept-edits`, and files that ask as something obeys them."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_core.providers.scripted import calls
from agent_core.types import PermissionDecision, PermissionExplanation, PermissionRequest
from isolation import Home
from runtimes import CONFIG, Asked, runtime
from sweeps import sampled

ORDINARY = [
    *("README.md", "README.zh-CN.md", "CHANGELOG.md", "docs/guide.md", "docs/CODE_OF_CONDUCT.md"),
    *("src/app.py", "tests/test_app.py", "tests/conftest.py", "src/hooks/useCart.ts", "main.go"),
    *("src/workflows/order.py", "package.json", "pyproject.toml", "Makefile", "Dockerfile"),
    *("tsconfig.json", "src/config.js", "config/settings.yaml", "docker-compose.yml"),
    *("scripts/build.sh", "bin/tool", ".gitignore", "pkg/.gitignore", ".editorconfig"),
    *(".dockerignore", "data/.gitkeep", "vendor/lib/a.c", "LICENSE", "notes.txt", "a"),
    *("docs/cursor.md", "src/agents.py", "agents/worker.py", "skill.py", "pipelines.py"),
    *("setup.cfg", "tox.ini", "justfile", "Taskfile.yml", "go.mod", "requirements.txt", "a.json"),
    *("src/project.rs", "lib/config.ex", "src/build/a.py", "project/a.py", "web/package.json"),
]
OBEYED = [
    *(".husky/pre-commit", ".githooks/pre-push", ".vscode/tasks.json", ".vscode/settings.json"),
    *(".idea/workspace.xml", ".claude/settings.json", ".mcp.json", "mcp.json", ".envrc"),
    *("AGENTS.md", "CLAUDE.md", "pkg/AGENTS.md", "pkg/deep/claude.md", "GEMINI.md", "agents.md"),
    *("CLAUDE.local.md", "AGENTS.override.md", "skills/deploy/SKILL.md", "WARP.md", "CODEX.md"),
    *(".github/workflows/ci.yml", ".github/copilot-instructions.md", ".gitlab-ci.yml"),
    *(".circleci/config.yml", ".travis.yml", "Jenkinsfile", "ci/Jenkinsfile.release"),
    *("azure-pipelines.yml", "bitbucket-pipelines.yml", "appveyor.yml", "cloudbuild.yaml"),
    *(".pre-commit-config.yaml", "lefthook.yml", ".lefthook.toml", ".devcontainer/Dockerfile"),
    *(".cursor/rules/a.mdc", ".cursorrules", ".windsurfrules", ".aider.conf.yml", ".npmrc"),
    *(".yarnrc.yml", ".bashrc", ".direnvrc", ".exrc", ".nvim.lua", ".gitmodules", ".tool-versions"),
    *("pkg/.vscode/launch.json", "a/b/.hidden/c.py", "work.code-workspace", "mise.toml"),
    *("node_modules/x/index.js", "lib/site-packages/a.pth", "sitecustomize.py", "a/inject.pth"),
    *("docs/review.prompt.md", "docs/style.instructions.md", ".eslintrc.js", ".VSCode/tasks.json"),
    *(".gitattributes", ".Husky/pre-commit", ".unknown"),
    *(
        "eslint.config.js",
        "web/prettier.config.mjs",
        "vitest.config.ts",
        "build.rs",
        "build.gradle",
    ),
    *("app/settings.gradle.kts", "gradle.properties", "gradle/wrapper/gradle-wrapper.properties"),
    *("gradle/wrapper/gradle-wrapper.jar", "mix.exs", "Package.swift", "build.zig", "Gemfile"),
    *("x.gemspec", "flake.nix", "shell.nix", "devbox.json", "devenv.yaml", "docs/HEAD"),
    *("pylintrc", "mypy.ini", "karma.conf.js", "Directory.Build.props", "build.sbt"),
    # what editors evaluate when they open a project
    *("Cargo.toml", "crates/a/Cargo.toml", "rust-toolchain.toml", "rust-project.json"),
    *("App.csproj", "src/App.fsproj", "App.vbproj", "App.vcxproj", "App.csproj.user", "App.sln"),
    *("App.slnx", "Directory.Packages.props", "build/common.props", "a.proj", "global.json"),
    *("nuget.config", "pom.xml", "web/pom.xml", "gradle/libs.versions.toml", "plugins.sbt"),
    *("buildSrc/src/main/kotlin/conventions.kt", "build-logic/a/b.kt", "project/Build.scala"),
    *("project/build.properties", "build.mill", "build.sc", "project.clj", "deps.edn"),
    *("config/config.exs", "apps/a/config/dev.exs", "rebar.config", "gems.rb", "Gemfile"),
    *("Package@swift-5.9.swift", "App.xcodeproj/project.pbxproj", "hie.yaml", "a.cabal"),
    *("cabal.project.local", "stack.yaml", "package.yaml", "Setup.hs", "CMakeLists.txt"),
    *("cmake/a.cmake", "CMakePresets.json", "meson.build", "BUILD", "lib/BUILD.bazel"),
    *("WORKSPACE", "MODULE.bazel", "rules/a.bzl", "dune-project", "lib/dune", "lakefile.lean"),
    *("pubspec.yaml", "analysis_options.yaml", "Project.toml", "dub.json", "a.nimble"),
    *("webpack.config.babel.js", "nx.json", "docs/conf.py", "psalm.xml", "phpstan.neon.dist"),
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder whose parent is its own, too: repositories are made there."""
    (folder := tmp_path / "around" / "project").mkdir(parents=True)
    return folder


class Always(Asked):
    """Answers that the rule of each question is to be saved."""

    async def __call__(self, request: PermissionRequest) -> PermissionDecision:
        answer = await super().__call__(request)
        return answer.model_copy(update={"metadata": {"always": True}})


async def judge(home: Home, project: Path, *paths: str) -> dict[str, PermissionExplanation]:
    """Explain writing each path with `accept-edits`."""
    async with runtime(home, project, permission_callback=Asked("deny")) as made:
        return {
            path: await made.explain_permission(
                "code.write_file",
                {"path": path, "content": "x", "overwrite": True},
                permission_mode="accept-edits",
            )
            for path in paths
        }


async def test_ordinary_work_is_not_asked_for(home: Home, project: Path) -> None:
    found = await judge(home, project, *ORDINARY)
    assert [path for path, verdict in found.items() if verdict.decision != "allow"] == []


async def test_links_to_the_project_and_among_installed_packages_change_nothing(
    home: Home, project: Path
) -> None:
    installed = project / ".next" / "node_modules"
    installed.mkdir(parents=True)
    (project / "packages" / "one").mkdir(parents=True)
    (installed / "one").symlink_to(project / "packages" / "one")
    (project / ".self").symlink_to(".")
    (project / ".above").symlink_to("..")
    found = await judge(home, project, "a.py", "packages/one/index.js")
    assert {verdict.decision for verdict in found.values()} == {"allow"}


async def test_files_that_other_programs_execute_or_obey_are_asked_for(
    home: Home, project: Path
) -> None:
    found = await judge(home, project, *OBEYED)
    assert [path for path, verdict in found.items() if verdict.decision != "ask"] == []
    assert found["Cargo.toml"].by == "writing asks; other programs execute or obey this file"


def _git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=folder, check=True)  # noqa: S603, S607


def _hooks_path(project: Path) -> str:
    _git(project, "init", "-q")
    _git(project, "config", "core.hooksPath", "tools/hooks")
    return "tools/hooks/deep/check"


def _hooks_path_is_the_project(project: Path) -> str:
    _git(project, "init", "-q")
    _git(project, "config", "core.hooksPath", ".")
    return "pre-commit"


def _hooks_path_of_the_user(project: Path) -> str:
    _git(project, "init", "-q")
    _git(project, "config", "--global", "core.hooksPath", "hooks-of-mine")
    return "hooks-of-mine/pre-commit"


def _hooks_path_in_an_included_file(project: Path) -> str:
    _git(project, "init", "-q")
    _git(project, "config", "include.path", "../shared.gitconfig")
    settings = "[core]\nhooksPath = 'x'\nhooksPath=lib/run\n"
    (project / "shared.gitconfig").write_text(settings, encoding="utf-8")
    return "lib/run/pre-commit"


def _included_settings(project: Path) -> str:
    _git(project, "init", "-q")
    _git(project, "config", "include.path", "../shared.gitconfig")
    return "shared.gitconfig"


def _file_monitor(project: Path) -> str:
    _git(project, "init", "-q")
    _git(project, "config", "core.fsmonitor", "tools/watch.py")
    return "tools/watch.py"


def _filter_with_arguments(project: Path) -> str:
    _git(project, "init", "-q")
    _git(project, "config", "filter.x.clean", "python3 'tools/clean.py' %f")
    return "tools/clean.py"


def _alias(project: Path) -> str:
    _git(project, "init", "-q")
    _git(project, "config", "alias.ship", "!./tools/ship.sh --all")
    return "tools/ship.sh"


def _linked_hook(project: Path) -> str:
    _git(project, "init", "-q")
    (project / "tools").mkdir()
    (project / "tools" / "check.sh").touch()
    (project / ".git" / "hooks").mkdir(exist_ok=True)
    (project / ".git" / "hooks" / "pre-push").symlink_to("../../tools/check.sh")
    return "tools/check.sh"


def _repository_above(project: Path) -> str:
    _git(project.parent, "init", "-q")
    _git(project.parent, "config", "core.hooksPath", f"{project.name}/run")
    return "run/pre-commit"


def _linked_worktree(project: Path) -> str:
    (main := project.parent / "main").mkdir()
    _git(main, "init", "-q")
    _git(main, *("-c", "user.name=n", "-c", "user.email=e@x"), *("commit", "--allow-empty", "-qm1"))
    project.rmdir()
    _git(main, "worktree", "add", "-q", str(project))
    _git(main, "config", "core.hooksPath", "run")
    return "run/pre-commit"


def _link_to_a_hidden_folder(project: Path) -> str:
    (project / ".vscode").mkdir()
    (project / "editor").symlink_to(".vscode")
    return "editor/tasks.json"


def _target_of_a_hidden_folder(project: Path) -> str:
    (project / "editor").mkdir()
    (project / ".vscode").symlink_to("editor")
    return "editor/tasks.json"


def _target_of_instructions(project: Path) -> str:
    (project / "docs").mkdir()
    (project / "pkg").mkdir()
    (project / "docs" / "guide.md").touch()
    (project / "pkg" / "AGENTS.md").symlink_to("../docs/guide.md")
    return "docs/guide.md"


def _target_of_a_link_of_the_home(project: Path) -> str:
    (project / "bashrc").touch()
    Path("~/.bashrc").expanduser().symlink_to(project / "bashrc")
    return "bashrc"


def _environment(project: Path) -> str:
    (project / "env" / "bin").mkdir(parents=True)
    (project / "env" / "pyvenv.cfg").touch()
    return "env/bin/activate"


def _named(project: Path, by: str, text: str) -> None:
    (project / by).parent.mkdir(parents=True, exist_ok=True)
    (project / by).write_text(text, encoding="utf-8")


def _named_by_a_hook(project: Path) -> str:
    _git(project, "init", "-q")
    _named(project, ".git/hooks/pre-commit", "#!/bin/sh\nexec ./tools/check.sh --all\n")
    return "tools/check.sh"


def _named_by_husky(project: Path) -> str:
    _named(project, "web/.husky/pre-commit", "node tools/check.js && npm test\n")
    return "web/tools/check.js"


def _named_by_pre_commit(project: Path) -> str:
    text = (
        "repos:\n- repo: local\n  hooks:\n  - {id: a, entry: python tools/check.py, files: src/}\n"
    )
    _named(project, ".pre-commit-config.yaml", text)
    return "tools/check.py"


def _named_by_lefthook(project: Path) -> str:
    _named(project, "lefthook.yml", "pre-commit:\n  commands:\n    a:\n      run: tools/check.sh\n")
    return "tools/check.sh"


def _folder_of_programs_on_entering(project: Path) -> str:
    _named(project, ".envrc", "PATH_add tools/bin\n")
    return "tools/bin/ls"


def _sourced_on_entering(project: Path) -> str:
    _named(project, ".envrc", "source_env tools/env.sh\n")
    return "tools/env.sh"


def _task_of_an_editor(project: Path) -> str:
    text = '{"tasks": [{"command": "${workspaceFolder}/tools/open.sh",}]} // runs on opening'
    _named(project, ".vscode/tasks.json", text)
    return "tools/open.sh"


def _server_of_an_agent(project: Path) -> str:
    _named(
        project, ".mcp.json", '{"mcpServers": {"a": {"command": "python", "args": ["tools/a.py"]}}}'
    )
    return "tools/a.py"


def _hook_of_an_agent(project: Path) -> str:
    _named(
        project,
        ".claude/settings.json",
        '{"hooks": [{"command": "$CLAUDE_PROJECT_DIR/tools/a.sh"}]}',
    )
    return "tools/a.sh"


def _sourced_by_the_shell_of_the_user(project: Path) -> str:
    text = f"source {project}/tools/env.sh # aliases\n"
    Path("~/.bashrc").expanduser().write_text(text, encoding="utf-8")
    return "tools/env.sh"


def _last_part_of_a_repository(project: Path) -> str:
    _named(project, "data/HEAD", "ref: refs/heads/main\n")
    return "data/objects/info/packs"


@pytest.mark.parametrize(
    "place",
    sampled(
        [
            _named_by_a_hook,
            _named_by_husky,
            _named_by_pre_commit,
            _named_by_lefthook,
            _folder_of_programs_on_entering,
            _sourced_on_entering,
            _task_of_an_editor,
            _server_of_an_agent,
            _hook_of_an_agent,
            _sourced_by_the_shell_of_the_user,
            _last_part_of_a_repository,
            _hooks_path,
            _hooks_path_is_the_project,
            _hooks_path_of_the_user,
            _hooks_path_in_an_included_file,
            _included_settings,
            _file_monitor,
            _filter_with_arguments,
            _alias,
            _linked_hook,
            _repository_above,
            _linked_worktree,
            _link_to_a_hidden_folder,
            _target_of_a_hidden_folder,
            _target_of_instructions,
            _target_of_a_link_of_the_home,
            _environment,
        ],
        keep=5,
    ),
    ids=lambda place: place.__name__.strip("_"),
)
async def test_settings_and_links_make_a_file_obeyed(
    place: Callable[[Path], str],
    home: Home,
    project: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (own := tmp_path / "person").mkdir()
    monkeypatch.setenv("HOME", str(own))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("GIT_CONFIG_GLOBAL", raising=False)
    path = place(project)
    found = await judge(home, project, path, "src/other.py")
    assert [verdict.decision for verdict in found.values()] == ["ask", "allow"]


CONFIGURATION = [
    *("package.json", "pyproject.toml", "setup.cfg", "tox.ini", "Makefile", "justfile"),
    *("Taskfile.yml", "tsconfig.json", "ruff.toml", "run", "Dockerfile", "requirements.txt"),
    *("package-lock.json", "web/package.json", "web/tool.yaml", "pkg/setup.cfg", "cfg/anything"),
]
WORK = [
    *("app.py", "web/index.ts", "README.md", "README.rst", "LICENSE", "data.csv", "notes.txt"),
    *("web/logo.svg", "src/settings.json", "web/src/a.yaml", "docs/a.toml", "src/a", ".gitignore"),
]


def _package(project: Path) -> None:
    _named(project, "web/package.json", "{}")
    _named(project, "cfg/pyproject.toml", "")


def _real_hook(project: Path) -> None:
    _named(project, ".git/hooks/pre-commit", "#!/bin/sh\nnpx lint-staged\n")


def _settings_name_a_folder(project: Path) -> None:
    _git(project, "config", "core.hooksPath", "tools/githooks")


def _own_settings_name_a_folder(project: Path) -> None:
    _named(project.parent, "githooks/pre-push", "")
    _git(project, "config", "--global", "core.hooksPath", str(project.parent / "githooks"))


def _settings_have_a_hook(project: Path) -> None:
    _git(project, "config", "hook.lint.command", "make lint")


def _husky(project: Path) -> None:
    _named(project, ".husky/pre-commit", "npx lint-staged")


def _lefthook(project: Path) -> None:
    _named(project, "lefthook.yml", "pre-commit: {}")


def _pre_commit(project: Path) -> None:
    _named(project, ".pre-commit-config.yaml", "repos: []")


def _nothing(_: Path) -> None:
    pass


def _only_samples(project: Path) -> None:
    _named(project, ".git/hooks/pre-commit.sample", "#!/bin/sh\n")


def _hooks_are_off(project: Path) -> None:
    _real_hook(project)
    _git(project, "config", "core.hooksPath", "/dev/null")


@pytest.mark.parametrize(
    ("prepare", "decision"),
    sampled(
        [
            *((each, "ask") for each in (_real_hook, _settings_name_a_folder, _husky, _lefthook)),
            *((each, "ask") for each in (_own_settings_name_a_folder, _settings_have_a_hook)),
            (_pre_commit, "ask"),
            *((each, "allow") for each in (_nothing, _only_samples, _hooks_are_off)),
        ],
        keep=4,
    ),
    ids=lambda each: getattr(each, "__name__", each).strip("_"),
)
async def test_configuration_in_the_root_is_obeyed_where_hooks_are_active(
    prepare: Callable[[Path], None],
    decision: str,
    home: Home,
    project: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (own := tmp_path / "person").mkdir()
    monkeypatch.setenv("HOME", str(own))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("GIT_CONFIG_GLOBAL", raising=False)
    _git(project, "init", "-q", "--template=")
    _package(project)
    prepare(project)
    found = await judge(home, project, *CONFIGURATION)
    assert {path: verdict.decision for path, verdict in found.items()} == dict.fromkeys(
        CONFIGURATION, decision
    )
    found = await judge(home, project, *WORK)
    assert [path for path, verdict in found.items() if verdict.decision != "allow"] == []


async def test_hooks_of_the_repository_around_a_project_obey_its_packages(
    home: Home, project: Path
) -> None:
    _git(project.parent, "init", "-q", "--template=")
    _real_hook(project.parent)
    found = await judge(home, project, "package.json", "settings.yaml", "src/a.yaml")
    assert [verdict.decision for verdict in found.values()] == ["ask", "allow", "allow"]


async def test_an_answer_for_a_folder_does_not_cover_what_is_obeyed_in_it(
    home: Home, project: Path
) -> None:
    """A file that is obeyed is asked for by itself, and its answer is for that file."""
    names = ["a.txt", "b.txt", "AGENTS.md", ".envrc", "AGENTS.md"]
    script: list[Any] = [
        *(calls("code.write_file", path=name, content="x", overwrite=True) for name in names),
        "done",
    ]
    user = Asked("allow_for_session")
    async with runtime(home, project, script, permission_callback=user) as made:
        await made.run("go", session_id="s1")
    assert [Path(request.metadata["target"]).name for request in user.requests] == [
        *("a.txt", "AGENTS.md", ".envrc")
    ]
    assert user.requests[1].target_scope == f"code.write_file: the file {project / 'AGENTS.md'}"


async def test_a_saved_rule_for_a_folder_does_not_cover_what_is_obeyed_in_it(
    home: Home, project: Path
) -> None:
    user = Always("allow_once")
    names = ["a.txt", "b.txt", "AGENTS.md", ".envrc", "AGENTS.md"]
    script: list[Any] = [
        *(calls("code.write_file", path=name, content="x", overwrite=True) for name in names),
        "done",
    ]
    config = CONFIG + "[permissions]\nsave_rules = true\n"
    async with runtime(home, project, script, config=config, permission_callback=user) as made:
        await made.run("go", session_id="s1")
    asked = [Path(request.metadata["target"]).name for request in user.requests]
    assert asked == ["a.txt", "AGENTS.md", ".envrc"]
    assert 'only = "edits"' in user.requests[0].metadata["rule"]
    assert str(project / "AGENTS.md") in user.requests[1].metadata["rule"]


async def test_a_rule_can_be_about_ordinary_edits(home: Home, project: Path) -> None:
    rule = '[[permissions.rules]]\ndecision = "allow"\nonly = "edits"\n'
    async with runtime(
        home, project, config=CONFIG + rule, permission_callback=Asked("deny")
    ) as made:
        for path, decision in (("src/a.py", "allow"), (".envrc", "ask"), ("../a.py", "ask")):
            found = await made.explain_permission("code.write_file", {"path": path, "content": "x"})
            assert (path, found.decision) == (path, decision)
        command = await made.explain_permission("code.run_command", {"argv": ["true"]})
        assert command.decision == "ask"
