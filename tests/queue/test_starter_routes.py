"""Dead letters, webhooks, saved scripts, schedules and triggers over HTTP."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.queue.test_routes import OPERATOR, add, ended
from tests.support.processes import TIMEOUT_SECONDS, ServeProcess, hutch, running_server
from tests.support.stalls import ServerStalls, repeat_on_stall

from hutch.app.app import App
from hutch.http.auth import AccessControl
from hutch.settings import Settings


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[ServeProcess]:
    with running_server(
        HUTCH_HOME=str(home), HUTCH_API_KEY=OPERATOR, HUTCH_EGRESS_ALLOW="127.0.0.1"
    ) as running:
        yield running


@pytest.fixture
async def client(server: ServeProcess) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {"Authorization": f"Bearer {OPERATOR}"}
    async with httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=TIMEOUT_SECONDS) as client:
        yield client


async def test_dead_letter_is_listed_retried_and_removed(client: httpx2.AsyncClient) -> None:
    run_id = (await add(client, "throw new Error('no')", attempts=1)).json()["runId"]
    await ended(client, run_id)
    listed = (await client.get("/queue")).json()
    assert listed["counts"]["dead"] == 1
    assert [(run["run_id"], run["state"]) for run in listed["runs"]] == [(run_id, "dead")]
    assert (await client.post(f"/queue/{run_id}/retry")).status_code == 202
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while (await ended(client, run_id))["queue"]["state"] != "dead":  # noqa: ASYNC110 - polls
            await asyncio.sleep(0.02)
    assert (await client.delete(f"/queue/{run_id}")).json()["ok"] is True
    assert (await client.get("/queue")).json()["runs"] == []
    assert (await client.post(f"/queue/{run_id}/retry")).status_code == 409
    assert (await client.post("/queue/unknown/retry")).status_code == 404


async def test_deliveries_are_listed_with_statuses_and_sent_again(client: httpx2.AsyncClient) -> None:
    # The target of the webhook is a page that the server does not have, so deliveries fail with 404.
    url = f"{str(client.base_url).rstrip('/')}/no-such-page"
    run_id = (await add(client, webhook=url)).json()["runId"]

    async def delivery(attempts: int) -> dict[str, Any]:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while True:
                found = (await client.get("/webhooks", params={"run_id": run_id})).json()["deliveries"]
                if found and found[0]["attempt_count"] >= attempts:
                    return dict(found[0])
                await asyncio.sleep(0.02)

    first = await delivery(1)
    assert [attempt["status"] for attempt in first["attempts"]] == [404]
    assert (first["state"], first["event"]) == ("pending", "run.completed")
    assert (await client.post(f"/webhooks/{first['id']}/send")).status_code == 202
    assert (await delivery(2))["attempts"][1]["status"] == 404
    assert (await client.post("/webhooks/unknown/send")).status_code == 404
    secret = (await client.get("/webhooks/secret")).json()["secret"]
    assert secret.startswith("whsec_")
    assert (await client.post("/webhooks/secret")).json()["secret"] != secret


async def test_schedule_of_a_saved_script_runs_it(client: httpx2.AsyncClient) -> None:
    saved = await client.put("/scripts/greet", json={"code": "return `Hi ${name}`", "engine": "quickjs"})
    assert saved.status_code == 200
    assert [script["name"] for script in (await client.get("/scripts")).json()["scripts"]] == ["greet"]
    body = {"name": "often", "script": "greet", "cron": "* * * * * *", "inputs": {"name": "Bo"}}
    added = await client.post("/schedules", json=body)
    assert added.status_code == 201, added.text
    assert (await client.post("/schedules", json=body)).status_code == 409
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while (run_id := (await client.get("/schedules")).json()["schedules"][0]["last_run_id"]) is None:  # noqa: ASYNC110 - polls
            await asyncio.sleep(0.05)
    detail = await ended(client, run_id)
    assert detail["result"]["result"] == "Hi Bo"
    assert detail["queue"]["source"] == "schedule often"
    paused = await client.patch("/schedules/often", json={"paused": True})
    assert (paused.json()["paused"], paused.json()["next_at"]) == (True, None)
    assert (await client.delete("/schedules/often")).status_code == 200
    assert (await client.get("/schedules")).json() == {"schedules": []}
    invalid = await client.post("/schedules", json={**body, "cron": "often"})
    assert (invalid.status_code, "cron: expected" in invalid.text) == (400, True)


async def test_trigger_starts_a_run_for_a_signed_request(client: httpx2.AsyncClient) -> None:
    code = {"code": "return `${event} to ${repo}`", "engine": "quickjs"}
    await client.put("/scripts/on-push", json=code)
    mapping = {"repo": "body.repository.name", "event": "headers.x-github-event"}
    body = {"name": "push", "script": "on-push", "signature": "github", "map": mapping}
    added = (await client.post("/triggers", json=body)).json()
    url, secret = added["url"], added["secret"]
    payload = json.dumps({"repository": {"name": "hutch"}}).encode()
    signature = "sha256=" + hmac.new(secret.encode(), payload, hashlib.sha256).hexdigest()
    headers = {
        "x-hub-signature-256": signature,
        "x-github-event": "push",
        "x-github-delivery": "d-1",
        "content-type": "application/json",
    }
    async with httpx2.AsyncClient(base_url=client.base_url, timeout=TIMEOUT_SECONDS) as github:
        accepted = await github.post(url, content=payload, headers=headers)
        assert accepted.status_code == 202, accepted.text
        repeated = await github.post(url, content=payload, headers=headers)
        assert repeated.json() == accepted.json()  # a repeated delivery does not start a second run
        forged = await github.post(url, content=payload + b" ", headers=headers)
        assert forged.status_code == 401
        assert (await github.post("/hooks/guess", content=payload, headers=headers)).status_code == 404
        detail = await ended(client, accepted.json()["runId"])
        assert detail["result"]["result"] == "push to hutch"
        listed = (await client.get("/triggers")).json()["triggers"]
        assert [(each["name"], each["last_run_id"]) for each in listed] == [
            ("push", accepted.json()["runId"])
        ]
        assert secret not in json.dumps(listed)
        await client.patch("/triggers/push", json={"paused": True})
        assert (await github.post(url, content=payload, headers=headers)).status_code == 404
    assert (await client.delete("/triggers/push")).status_code == 200
    # Inputs that are set in the trigger cannot be replaced by a request to the URL.
    fixed = {"name": "fixed", "script": "on-push", "inputs": {"repo": "mine"}}
    added = (await client.post("/triggers", json=fixed)).json()
    accepted = await client.post(added["url"], json={"event": "push", "repo": "other"})
    assert (await ended(client, accepted.json()["runId"]))["result"]["result"] == "push to mine"


JSON, FORM = "application/json", "application/x-www-form-urlencoded"
# The bodies are made by functions. Otherwise pytest would make all of them when it collects the tests.
HOSTILE_BODIES: dict[str, tuple[Callable[[], bytes], str, str]] = {
    "values": (lambda: b"[" + b"[]," * 3_000_000 + b"1]", JSON, "values"),
    "levels": (lambda: b"[" * 100_000, JSON, "nested"),
    "fields": (lambda: b"a=1&" * 200_000, FORM, "1000 fields"),
    "form": (lambda: b"a=" + b"1" * 2_000_000, FORM, "1048576 bytes"),
    "payload": (lambda: b"payload={", FORM, "expected JSON or a form"),
    "copies": (lambda: b'{"text":"' + b'\\"' * 4_000_000 + b'"}', JSON, "more than 16777216 bytes"),
}


@pytest.mark.parametrize(("body", "kind", "problem"), HOSTILE_BODIES.values(), ids=HOSTILE_BODIES)
@repeat_on_stall
async def test_hostile_request_to_a_trigger_is_refused_without_a_stall(
    client: httpx2.AsyncClient, server: ServeProcess, body: Callable[[], bytes], kind: str, problem: str
) -> None:
    """Without limits, decoding the first of these bodies took a second, and the last body became 800 MB of
    inputs.
    """
    await client.put("/scripts/open", json={"code": "return 1", "engine": "quickjs"})
    mapping = {f"copy{number}": "body" for number in range(100)}
    added = await client.post("/triggers", json={"name": "open", "script": "open", "map": mapping})
    assert added.status_code == 201, added.text
    try:
        content, headers = body(), {"content-type": kind}
        with ServerStalls(server.process.pid, server.url) as stalls:
            refused = await client.post(added.json()["url"], content=content, headers=headers)
    finally:
        await client.delete("/triggers/open")
    assert refused.status_code == 400, refused.text
    assert problem in refused.json()["error"]["message"]
    stalls.assert_short()


async def test_users_manage_only_what_belongs_to_them(
    client: httpx2.AsyncClient, server: ServeProcess, home: Path
) -> None:
    env = {"HUTCH_HOME": str(home)}
    hutch("user", "add", "ann", env=env)
    key = hutch("key", "add", "ann", "--scope", "execbox", env=env).stdout.split()[-1].strip()
    await client.put("/scripts/secret", json={"code": "return 1", "engine": "quickjs"})
    body = {"name": "own", "script": "secret", "cron": "0 0 1 1 *"}
    assert (await client.post("/schedules", json=body)).status_code == 201
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=TIMEOUT_SECONDS) as ann:
        assert (await ann.get("/scripts")).json() == {"scripts": []}
        assert (await ann.get("/schedules")).json() == {"schedules": []}
        assert (await ann.delete("/schedules/own")).status_code == 404
        assert (await ann.get("/queue")).json()["runs"] == []
        # The key of this client has no scope for toolscripts. So the client can neither save a toolscript nor
        # replace or remove a toolscript that another key has saved.
        other = hutch("key", "add", "ann", "--scope", "toolscript", env=env).stdout.split()[-1].strip()
        authorized = {"Authorization": f"Bearer {other}"}
        saved = await ann.put("/scripts/mine", json={"code": "return 1"}, headers=authorized)
        assert saved.status_code == 200
        quickjs = {"code": "return 2", "engine": "quickjs"}
        refused = [
            await ann.put("/scripts/new", json={"code": "return 1"}),
            await ann.put("/scripts/mine", json=quickjs),
            await ann.delete("/scripts/mine"),
            await ann.post("/schedules", json={**body, "script": "mine"}),
        ]
        assert [response.status_code for response in refused] == [403] * 4
        assert (await ann.get("/scripts/mine")).json()["code"] == "return 1"
        assert (await ann.put("/scripts/own", json=quickjs)).status_code == 200
        # The operator sees the schedules of all users, and can change each schedule by its id. A name refers
        # to a schedule of the operator.
        assert (await ann.post("/schedules", json={**body, "script": "own"})).status_code == 201
        (added,) = (await ann.get("/schedules")).json()["schedules"]
        paused = await client.patch(f"/schedules/{added['id']}", json={"paused": True})
        assert (paused.status_code, paused.json()["id"]) == (200, added["id"])
        assert (await ann.get("/schedules")).json()["schedules"][0]["paused"] is True
        (own,) = [
            row
            for row in (await client.get("/schedules")).json()["schedules"]
            if row["name"] == "own" and row["id"] != added["id"]
        ]
        assert (await ann.delete(f"/schedules/{own['id']}")).status_code == 404
        assert (await client.delete("/schedules/own")).status_code == 200
        assert [row["id"] for row in (await ann.get("/schedules")).json()["schedules"]] == [added["id"]]
        assert (await client.delete(f"/schedules/{added['id']}")).status_code == 200
        assert (await ann.get("/schedules")).json() == {"schedules": []}


async def test_key_without_the_scope_of_the_target_cannot_change_schedules_and_triggers(
    client: httpx2.AsyncClient, server: ServeProcess, home: Path
) -> None:
    env = {"HUTCH_HOME": str(home)}
    hutch("user", "add", "dee", env=env)
    keys = {
        scope: hutch("key", "add", "dee", "--scope", scope, env=env).stdout.split()[-1].strip()
        for scope in ("execbox", "toolscript", "rep")
    }
    async with httpx2.AsyncClient(base_url=server.url, timeout=TIMEOUT_SECONDS) as dee:

        async def send(scope: str, method: str, path: str, body: Any = None) -> int:
            headers = {"Authorization": f"Bearer {keys[scope]}"}
            return (await dee.request(method, path, json=body, headers=headers)).status_code

        code = {"code": "return 1", "engine": "quickjs"}
        assert await send("execbox", "PUT", "/scripts/hers", code) == 200
        for path, more in (("/schedules", {"cron": "0 0 1 1 *"}), ("/triggers", {})):
            named = f"{path}/hers"
            assert await send("execbox", "POST", path, {"name": "hers", "script": "hers", **more}) == 201
            for scope in ("toolscript", "rep"):
                assert await send(scope, "PATCH", named, {"paused": True}) == 403
                assert await send(scope, "DELETE", named) == 403
            assert await send("execbox", "PATCH", named, {"paused": True}) == 200
        assert await send("execbox", "DELETE", "/schedules/hers") == 200
        # Without its script, the trigger does nothing. So every key of the user may remove the trigger.
        assert await send("execbox", "DELETE", "/scripts/hers") == 200
        assert await send("rep", "DELETE", "/triggers/hers") == 200


async def test_scripts_schedules_and_triggers_of_one_owner_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hutch.protocols.queue.routes.MAX_PER_OWNER", 2)
    settings = Settings(home=str(tmp_path), quickjs_warm=0, deno_warm=0, max_code_bytes=1_000)
    app = await App.create(settings)
    try:
        await app.storage.start()
        transport = httpx2.ASGITransport(app.http_app(AccessControl(settings, app.storage)))
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            code = {"code": "return 1", "engine": "quickjs"}
            saved = [(await client.put(f"/scripts/s{n}", json=code)).status_code for n in (1, 2, 3, 2)]
            assert saved == [200, 200, 409, 200], "a script can be changed although there is no room"
            long = await client.put("/scripts/s1", json={**code, "code": "1" * 1_001})
            assert (long.status_code, "max_code_bytes" in long.text) == (400, True)
            for path, more in (("/schedules", {"cron": "0 0 1 1 *"}), ("/triggers", {})):
                bodies = [{"name": f"n{n}", "script": "s1", **more} for n in range(3)]
                added = [(await client.post(path, json=body)).status_code for body in bodies]
                assert added == [201, 201, 409], path
    finally:
        await app.close()


async def test_what_a_removed_user_has_added_is_removed(
    client: httpx2.AsyncClient, server: ServeProcess, home: Path
) -> None:
    env = {"HUTCH_HOME": str(home)}
    hutch("user", "add", "cy", env=env)
    key = hutch("key", "add", "cy", "--scope", "execbox", env=env).stdout.split()[-1].strip()
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=TIMEOUT_SECONDS) as cy:
        await cy.put("/scripts/own", json={"code": "return 1", "engine": "quickjs"})
        body = {"name": "cys", "script": "own", "cron": "0 0 1 1 *"}
        assert (await cy.post("/schedules", json=body)).status_code == 201
    assert "cys" in (await client.get("/schedules")).text
    hutch("user", "remove", "cy", env=env)
    assert "cys" not in (await client.get("/schedules")).text


async def test_form_with_a_payload_that_is_not_json_is_refused(client: httpx2.AsyncClient) -> None:
    await client.put("/scripts/form", json={"code": "return n", "engine": "quickjs"})
    url = (await client.post("/triggers", json={"name": "form", "script": "form"})).json()["url"]
    kind = {"content-type": "application/x-www-form-urlencoded"}
    for content, status in (("payload={", 400), ('payload={"n":1}', 202), ("n=1", 202), ("[" * 9_999, 202)):
        assert (await client.post(url, content=content, headers=kind)).status_code == status
    assert (await client.post(url, content="[" * 9_999)).status_code == 400
