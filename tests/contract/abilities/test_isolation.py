"""Isolation of wrappers: each execution has its own globals and leaves no state behind."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.contract.abilities.harness import HOST, PLAIN, AbilityHarness, ability_harness

import hutch
from hutch.kernel.execution import Execution
from hutch.sandbox.runner.profile import profile_for
from hutch.session.message_decoding import decode_from_host
from hutch.settings import Settings

pytestmark = pytest.mark.anyio

NAMES = ("fetch", "Request", "Response", "Headers", "Buffer", "process", "left")


async def test_other_guests_of_the_same_process_have_no_wrapper_globals(harness: AbilityHarness) -> None:
    look = f"[{', '.join(f'typeof {name}' for name in NAMES)}, typeof crypto.subtle]"
    nothing = ["undefined"] * (len(NAMES) + 1)

    async def guest() -> object:
        execution = Execution(code=look, profile=profile_for("quickjs"), owner=harness.user.id)
        return (await harness.kernel.run(execution)).result

    leave = (
        "export const wrapper = () => { const was = globalThis.left ?? 0; globalThis.left = was + 1;"
        " Response.prototype.left = 1; return Response.json(was) }"
    )
    ability = await harness.add(leave)
    for _ in range(5):
        answers = await asyncio.gather(harness.execute(ability), guest(), harness.execute(ability), guest())
        assert [answers[1], answers[3]] == [nothing, nothing]
        assert [answers[0].body["result"]["body"], answers[2].body["result"]["body"]] == [0, 0]


def test_client_cannot_request_a_wrapper_job() -> None:
    options = {"timeoutMs": 1, "memoryLimitBytes": 1, "maxLogLines": 1, "maxLogChars": 1}
    message = {"type": "execute", "id": "1", "code": "1", "options": options, "providers": []}
    job = {"form": "wrapper", "input": "{}"}
    decoded = decode_from_host(json.dumps({**message, "job": job}).encode())
    assert decoded == decode_from_host(json.dumps(message).encode())


async def test_many_concurrent_users_are_not_mixed_up(harness: AbilityHarness) -> None:
    """The fake API returns each user's token backwards. A reversed token is not redacted, so the test can
    compare it.
    """

    async def backwards(requests: object, writer: asyncio.StreamWriter) -> None:
        token = requests.all("authorization")[0][::-1]  # type: ignore[attr-defined]
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(token)}\r\nConnection: close\r\n\r\n"
        writer.write(f"{head}{token}".encode())
        await writer.drain()

    harness.api.responses["/x"] = backwards
    shared = await harness.add(
        PLAIN, await harness.new_user(), shared=True, dynamic_header_keys=[f"{HOST}::Authorization"]
    )
    users = [await harness.new_user() for _ in range(8)]
    for user in users:
        await harness.vault.put_credential(user, HOST, "header", "Authorization", f"token-of-{user.id}")

    async def one(number: int) -> None:
        user = users[number % len(users)]
        answer = await harness.abilities.execute(user, shared, {"url": harness.api.url("/x")})
        assert answer.body["result"]["body"] == f"token-of-{user.id}"[::-1]

    await asyncio.gather(*map(one, range(64)))


async def test_abilities_work_on_either_database(runners: hutch.Hutch, store_settings: Settings) -> None:
    """The run uses all tables that a run can use: abilities, dependencies, credentials, the state of
    credentials, and login abilities.
    """
    async with ability_harness(runners, store_settings) as harness:
        credential = await harness.credential("Authorization", "tok-0123456789")
        dependency = await harness.add(PLAIN)
        login = await harness.add(PLAIN, service_name="acme", ability_name="Login")
        fields = {
            "service_name": "acme",
            "dynamic_header_keys": [f"{HOST}::Authorization"],
            "dependency_order": [dependency],
        }
        assert (await harness.fetch("/x", **fields)).status == 200
        harness.api.responses["/x"] = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"
        got = await harness.fetch("/x", **fields)
        assert (got.status, [each["id"] for each in got.body["loginAbilities"]]) == (401, [login])
        assert (await harness.state(credential)).state == "expired"
        del harness.api.responses["/x"]
        assert (await harness.fetch("/x", **fields)).status == 200
        assert (await harness.state(credential)).state == "active"
        fields["dependency_order"] = ["nothing"]
        assert (await harness.fetch("/x", **fields)).body["errorCode"] == "MISSING_DEPENDENCIES"
