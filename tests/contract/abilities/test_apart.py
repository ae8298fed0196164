"""What wrappers have, nobody else has; and nothing stays of one execution for the next."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.contract.abilities.workshop import HERE, PLAIN, Workshop, workshop

import hutch
from hutch.kernel import Execution
from hutch.sandbox.profile import profile_for
from hutch.session.messages import decode_from_host
from hutch.settings import Settings

pytestmark = pytest.mark.anyio

NAMES = ("fetch", "Request", "Response", "Headers", "Buffer", "process", "left")


async def test_other_guests_of_the_same_process_have_none_of_it(shop: Workshop) -> None:
    look = f"[{', '.join(f'typeof {name}' for name in NAMES)}, typeof crypto.subtle]"
    nothing = ["undefined"] * (len(NAMES) + 1)

    async def guest() -> object:
        execution = Execution(code=look, profile=profile_for("quickjs"), owner=shop.user.id)
        return (await shop.kernel.run(execution)).result

    leave = (
        "export const wrapper = () => { const was = globalThis.left ?? 0; globalThis.left = was + 1;"
        " Response.prototype.left = 1; return Response.json(was) }"
    )
    ability = await shop.add(leave)
    for _ in range(5):
        answers = await asyncio.gather(shop.execute(ability), guest(), shop.execute(ability), guest())
        assert [answers[1], answers[3]] == [nothing, nothing]
        assert [answers[0].body["result"]["body"], answers[2].body["result"]["body"]] == [0, 0]


def test_a_client_cannot_ask_for_it() -> None:
    options = {"timeoutMs": 1, "memoryLimitBytes": 1, "maxLogLines": 1, "maxLogChars": 1}
    message = {"type": "execute", "id": "1", "code": "1", "options": options, "providers": []}
    job = {"form": "wrapper", "input": "{}"}
    heard = decode_from_host(json.dumps({**message, "job": job}).encode())
    assert heard == decode_from_host(json.dumps(message).encode())


async def test_many_users_at_once_are_not_mixed_up(shop: Workshop) -> None:
    """The service answers with the token that it got, backwards: as that, it is no secret to anybody."""

    async def backwards(asked: object, writer: asyncio.StreamWriter) -> None:
        token = asked.all("authorization")[0][::-1]  # type: ignore[attr-defined]
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(token)}\r\nConnection: close\r\n\r\n"
        writer.write(f"{head}{token}".encode())
        await writer.drain()

    shop.api.answers["/x"] = backwards
    shared = await shop.add(
        PLAIN, await shop.new_user(), shared=True, dynamic_header_keys=[f"{HERE}::Authorization"]
    )
    users = [await shop.new_user() for _ in range(8)]
    for user in users:
        await shop.vault.put_credential(user, HERE, "header", "Authorization", f"token-of-{user.id}")

    async def one(number: int) -> None:
        user = users[number % len(users)]
        answer = await shop.abilities.execute(user, shared, {"url": shop.api.url("/x")})
        assert answer.body["result"]["body"] == f"token-of-{user.id}"[::-1]

    await asyncio.gather(*map(one, range(64)))


async def test_on_either_database(runners: hutch.Hutch, store_settings: Settings) -> None:
    """All that a run reads and writes there: ability, dependencies, credentials, their state, the logins."""
    async with workshop(runners, store_settings) as shop:
        credential = await shop.credential("Authorization", "tok-0123456789")
        there = await shop.add(PLAIN)
        login = await shop.add(PLAIN, service_name="acme", ability_name="Login")
        fields = {
            "service_name": "acme",
            "dynamic_header_keys": [f"{HERE}::Authorization"],
            "dependency_order": [there],
        }
        assert (await shop.fetched("/x", **fields)).status == 200
        shop.api.answers["/x"] = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"
        got = await shop.fetched("/x", **fields)
        assert (got.status, [each["id"] for each in got.body["loginAbilities"]]) == (401, [login])
        assert (await shop.state(credential)).state == "expired"
        del shop.api.answers["/x"]
        assert (await shop.fetched("/x", **fields)).status == 200
        assert (await shop.state(credential)).state == "active"
        fields["dependency_order"] = ["nothing"]
        assert (await shop.fetched("/x", **fields)).body["errorCode"] == "MISSING_DEPENDENCIES"
