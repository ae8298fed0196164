"""`hutch queue`, `webhooks`, `script`, `schedule` and `trigger` with a real server."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from tests.support.processes import ServeProcess, hutch, running_server, wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    with running_server(HUTCH_HOME=str(tmp_path_factory.mktemp("home"))) as running:
        yield running


def command(server: ServeProcess, *arguments: str, input: str = "") -> CompletedProcess[str]:
    return hutch(*arguments, "--url", server.url, input=input)


def post(server: ServeProcess, path: str, body: object) -> dict[str, str]:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as response:
        answer: dict[str, str] = json.load(response)
    return answer


def test_dead_letters_are_listed_retried_and_removed(server: ServeProcess) -> None:
    body = {"async": True, "kind": "code", "request": {"code": "throw new Error()"}, "attempts": 1}
    run_id = post(server, "/runs", body)["runId"]
    wait_until(lambda: run_id in command(server, "queue", "list", "--dead").stdout)
    assert "1 dead" in command(server, "queue", "list").stdout
    assert "is queued again" in command(server, "queue", "retry", run_id).stdout
    wait_until(lambda: run_id in command(server, "queue", "list", "--dead").stdout)
    assert command(server, "queue", "remove", run_id).returncode == 0
    assert command(server, "queue", "list", "--json").stdout == "[]\n"
    assert command(server, "queue", "list", "--dead").stderr == "hutch: there are no dead letters\n"
    refused = command(server, "queue", "retry", run_id)
    assert (refused.returncode, "not a dead letter" in refused.stderr) == (2, True)


def test_script_with_schedule_and_trigger(server: ServeProcess, tmp_path: Path) -> None:
    file = tmp_path / "report.js"
    file.write_text("return `Hi ${name}`")
    saved = command(server, "script", "save", "report", str(file), "--engine", "quickjs")
    assert saved.stdout == "report is saved\n"
    assert command(server, "script", "show", "report").stdout == "return `Hi ${name}`\n"
    assert "report" in command(server, "script", "list").stdout
    assert command(server, "script", "list", "--json").stdout.count("\n") == 1
    options = ("--script", "report", "--inputs", '{"name": "Bo"}')
    added = command(server, "schedule", "add", "nightly", "0 3 * * *", *options, "--timezone", "Asia/Tokyo")
    assert "nightly starts next at 20" in added.stdout
    assert "T18:00:00" in command(server, "schedule", "list").stdout
    assert command(server, "schedule", "pause", "nightly").stdout == "nightly is paused\n"
    assert "paused" in command(server, "schedule", "list").stdout
    assert command(server, "schedule", "resume", "nightly").stdout == "nightly is active\n"
    assert command(server, "schedule", "remove", "nightly").stdout == "nightly is removed\n"
    invalid = command(server, "schedule", "add", "x", "61 * * * *", *options)
    assert (invalid.returncode, "cron: expected" in invalid.stderr) == (2, True)

    added = command(server, "trigger", "add", "greet", "--script", "report", "--map", '{"name": "body.who"}')
    url = added.stdout.split()[1]
    run_id = post(server, url, {"who": "Ann"})["runId"]
    assert run_id in command(server, "trigger", "list").stdout
    assert command(server, "trigger", "pause", "greet").returncode == 0
    assert command(server, "trigger", "resume", "greet").returncode == 0
    assert command(server, "trigger", "remove", "greet").returncode == 0
    assert command(server, "script", "remove", "report").returncode == 0


def test_webhooks_are_listed_and_sent_again(server: ServeProcess) -> None:
    body = {"async": True, "kind": "code", "request": {"code": "return 1"}}
    run_id = post(server, "/runs", {**body, "webhook": "https://localhost:44444/hook"})["runId"]
    listed: list[dict[str, str]] = []

    def is_listed() -> bool:
        listed[:] = json.loads(command(server, "webhooks", "list", "--run", run_id, "--json").stdout)
        return bool(listed and listed[0]["attempts"])

    wait_until(is_listed)
    assert "localhost resolves to" in command(server, "webhooks", "list").stdout
    assert "is sent again" in command(server, "webhooks", "send", listed[0]["id"]).stdout
    secret = command(server, "webhooks", "secret").stdout
    assert secret.startswith("whsec_")
    assert command(server, "webhooks", "secret", "--rotate").stdout != secret
