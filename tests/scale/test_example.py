"""The page of `examples/scale` does what it says, one terminal each, and its files are right."""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import warm
from agent_core.cli.arguments import build_parser
from agent_core.config.load import read_setup
from page_terminals import EVERY, Terminals, blocks_of, eventually, free_port

EXAMPLE = Path(__file__).parents[2] / "examples" / "scale"
PAGE = EXAMPLE / "README.md"


@pytest.fixture
def terminals(project: Path, database_url: str) -> Terminals:
    folder = project / "scale"
    shutil.copytree(EXAMPLE, folder)
    model = str(free_port())
    for file, old, new in (
        ("home/config.toml", ":8765/", f":{model}/"),
        ("model.py", "8765", model),
    ):
        text = (folder / file).read_text(encoding="utf-8")
        assert old in text
        (folder / file).write_text(text.replace(old, new), encoding="utf-8")
    tools = folder / "bin"
    warm.write_command(tools)
    path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
    return Terminals(PAGE, folder, {**os.environ, "PATH": path, "SCALE_DATABASE_URL": database_url})


@pytest.mark.timeout(120)
def test_the_page_does_what_it_says(terminals: Terminals) -> None:
    parts = iter([each for each in blocks_of(PAGE) if each[0] != EVERY])

    port = str(free_port())

    def next_of(terminal: str) -> tuple[str, str]:
        title, commands = next(parts)
        assert title == terminal
        return title, commands.replace("9464", port)

    with (
        terminals.running(*next_of("model")),
        terminals.running(*next_of("first worker")) as first,
    ):
        eventually(lambda: "host:" in terminals.ask("workers"))  # it has migrated
        with terminals.running(*next_of("second worker")) as second:
            eventually(lambda: len(terminals.ask("workers", "--json").splitlines()) == 2)
            started = terminals.run(*next_of("yours"))
            assert "host:" in started
            watched = terminals.run(*next_of("a colleague's"))
            assert "waiting for an answer to req_" in watched
            assert "example answers" in terminals.ask("doctor")
            answered = terminals.run(*next_of("yours"))
            assert "The report is in report.md" in answered
            report = terminals.folder / "project" / "report.md"
            assert report.read_text(encoding="utf-8") == "# Report\n\nAll is well.\n"
            terminals.run(*next_of("yours"))
            run_id = (terminals.folder / "counting").read_text(encoding="utf-8").strip()
            eventually(lambda: run_id not in terminals.ask("queue", "--json"))
            shown = terminals.ask("sessions", "list", "--json")
            assert "cancelled" in shown
            terminals.run(*next_of("yours, with containers"))
            copy = terminals.folder / "result" / report.name
            assert copy.read_text(encoding="utf-8") == report.read_text(encoding="utf-8")
        assert second.returncode == 0
    assert first.returncode == 0
    assert next(parts, None) is None


def commands_of_files() -> Iterator[tuple[str, list[str]]]:
    """What the containers and the page run, as arguments of `soong-agent`."""
    compose = yaml.safe_load((EXAMPLE / "docker-compose.yml").read_text(encoding="utf-8"))
    for name, service in compose["services"].items():
        if "command" in service:
            yield f"compose {name}", service["command"]
    for document in kubernetes():
        pod = document.get("spec", {}).get("template", {}).get("spec", {})
        for container in [*pod.get("initContainers", []), *pod.get("containers", [])]:
            yield f"kubernetes {container['name']}", container["args"]
    for title, text in blocks_of(PAGE):
        inner = re.findall(r'"\$\(([^"]*)\)"', text)
        for part in (re.sub(r'"\$\([^"]*\)"', "x", text), *inner):
            for found in re.findall(r"^.*?\bsoong-agent ([^|<>&\n]*)", part, re.M):
                yield f"page {title}: {found}", shlex.split(found)


def kubernetes() -> list[dict[str, Any]]:
    text = (EXAMPLE / "kubernetes.yaml").read_text(encoding="utf-8")
    return list(yaml.safe_load_all(text))


def test_every_command_line_is_one_of_ours() -> None:
    parser = build_parser()
    for place, arguments in commands_of_files():
        try:
            parser.parse_args(arguments)
        except SystemExit:
            pytest.fail(f"{place}: {arguments}")


def test_kubernetes_waits_longer_than_a_drain_and_takes_secrets_from_the_environment() -> None:
    settings, deployment = kubernetes()
    pod = deployment["spec"]["template"]
    container = pod["spec"]["containers"][0]
    (drain,) = (each for each in container["args"] if each.startswith("--drain-seconds="))
    assert pod["spec"]["terminationGracePeriodSeconds"] > int(drain.partition("=")[2])
    assert deployment["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    (port,) = (each for each in container["args"] if each.startswith("--metrics-port="))
    assert container["ports"][0]["containerPort"] == int(port.partition("=")[2])
    for probe in ("startupProbe", "readinessProbe"):
        assert container[probe]["httpGet"] == {"path": "/healthz", "port": "metrics"}
    assert container["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "metrics"}
    for each in (container, pod["spec"]["initContainers"][0]):
        assert all("secretKeyRef" in variable["valueFrom"] for variable in each["env"])
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
    assert volumes["config"]["configMap"]["name"] == settings["metadata"]["name"]


def test_the_image_has_the_home_that_settings_are_mounted_into() -> None:
    image = (EXAMPLE / "Dockerfile").read_text(encoding="utf-8")
    (home,) = re.findall(r"^ENV SOONG_AGENT_HOME=(.*)$", image, re.M)
    (user,) = re.findall(r"--uid (\d+) agent", image)
    assert re.search(rf"^RUN .*install -d -o agent .*{home}$", image, re.M)  # else it is root's
    assert f"USER {user}\n" in image
    compose = yaml.safe_load((EXAMPLE / "docker-compose.yml").read_text("utf-8"))["services"]
    for service in ("migrate", "worker"):
        (volume,) = compose[service]["volumes"]
        assert volume.split(":")[1] == f"{home}/config.toml"
    pod = kubernetes()[1]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsUser"] == int(user)
    for container in (*pod["initContainers"], *pod["containers"]):
        assert container["volumeMounts"][0]["mountPath"] == f"{home}/config.toml"


def test_compose_waits_longer_than_a_drain() -> None:
    worker = yaml.safe_load((EXAMPLE / "docker-compose.yml").read_text("utf-8"))["services"][
        "worker"
    ]
    (drain,) = (each for each in worker["command"] if each.startswith("--drain-seconds="))
    assert int(worker["stop_grace_period"].removesuffix("s")) > int(drain.partition("=")[2])


@pytest.mark.parametrize("source", ["home", "kubernetes"])
def test_the_configurations_are_read(
    source: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SCALE_DATABASE_URL", "SCALE_MODEL_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "postgresql://soong:a-secret@127.0.0.1/soong")
    if source == "home":
        text = (EXAMPLE / "home" / "config.toml").read_text(encoding="utf-8")
    else:
        text = kubernetes()[0]["data"]["config.toml"]
    (project / "config.toml").write_text(text, encoding="utf-8")
    read_setup(project, config_path=project / "config.toml", home_dir=project / "home")
