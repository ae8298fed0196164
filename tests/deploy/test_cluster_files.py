"""The files in `deploy/` are valid, agree with the settings, and start what the documentation says."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from hutch.cli.commands import hutch
from hutch.settings import Settings

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))


def documents(path: Path) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(path.read_text()) if each]


def containers() -> dict[str, dict[str, Any]]:
    """Returns the containers of all workloads by name."""
    found = {}
    for path in MANIFESTS:
        for document in documents(path):
            if document.get("kind") in ("Deployment", "StatefulSet"):
                for each in document["spec"]["template"]["spec"]["containers"]:
                    found[each["name"]] = each
    return found


def check_command(words: list[str]) -> None:
    assert words[0].endswith("hutch")
    command = hutch.commands[words[1]]
    with command.make_context(words[1], words[2:]):
        pass


def test_variables_are_settings() -> None:
    known = {f"HUTCH_{name.upper()}" for name in Settings.__struct_fields__} | {"HUTCH_MASTER_KEY"}
    files = [path for path in DEPLOY.rglob("*") if path.is_file() and path.suffix in (".yaml", ".service")]
    assert len(files) >= 7
    for path in files:
        assert set(re.findall(r"HUTCH_[A-Z_]+", path.read_text())) <= known, path


def test_permissions_are_those_of_the_documentation() -> None:
    [documented] = re.findall(r"```conf\n(.*?)```", (ROOT / "docs/scaling.md").read_text(), re.S)
    assert (DEPLOY / "nats.conf").read_text() == documented
    assert (DEPLOY / "kubernetes/nats.conf").read_text() == documented


def test_compose_file_has_all_parts() -> None:
    [compose] = documents(DEPLOY / "compose.yaml")
    services = compose["services"]
    assert {"postgres", "nats", "front-1", "front-2", "worker", "caddy"} <= services.keys()
    check_command(services["worker"]["command"])
    text = (DEPLOY / "compose.yaml").read_text()
    needed = set(re.findall(r"\$\{(\w+):\?\}", text))
    example = (DEPLOY / "environment.example").read_text()
    assert needed == set(re.findall(r"^(\w+)=", example, re.M))
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in compose["volumes"] or (DEPLOY / source).is_file(), volume


def test_workloads_have_probes_resources_and_a_security_context() -> None:
    found = containers()
    assert found.keys() == {"nats", "front", "worker"}
    for container in found.values():
        assert {"readinessProbe", "livenessProbe", "resources", "securityContext"} <= container.keys()
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        if container["image"] == "hutch":
            check_command(container["command"])


def test_autoscaler_uses_an_exported_metric() -> None:
    from tests.support.metrics import exported_series

    scalers = [
        document
        for document in documents(DEPLOY / "kubernetes/worker.yaml")
        if document["kind"] == "HorizontalPodAutoscaler"
    ]
    names = {metric["external"]["metric"]["name"] for metric in scalers[0]["spec"]["metrics"]}
    assert names == {"hutch_wanted_places"}
    assert exported_series()["hutch_wanted_places"] == {"kind"}


@pytest.mark.parametrize("path", sorted((DEPLOY / "systemd").glob("*.service")), ids=lambda path: path.name)
def test_units_start_existing_commands(path: Path, tmp_path: Path) -> None:
    [command] = re.findall(r"^ExecStart=(.*)$", path.read_text(), re.M)
    words = shlex.split(command)
    if "hutch" in words[0]:
        check_command(words)
    else:
        assert words == ["/usr/local/bin/nats-server", "--config", "/etc/hutch/nats.conf"]
    analyze = shutil.which("systemd-analyze")
    if analyze is not None:
        text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", path.read_text(), flags=re.M)
        (tmp_path / path.name).write_text(text)
        done = subprocess.run(
            [analyze, "verify", "--man=no", str(tmp_path / path.name)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert path.name not in done.stderr, done.stderr
