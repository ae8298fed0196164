"""Bodies with hundreds of thousands of problems: the answer is short, and other requests are not delayed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.protocols.abilities import harness
from tests.protocols.abilities.harness import AbilityServer, ability, error_message
from tests.support.stalls import ServerStalls, repeat_on_stall

from hutch.problems import MORE_PROBLEMS

pytestmark = pytest.mark.anyio

MAX_RESPONSE_BYTES = 200_000
COUNT = 50_000
SIMILAR = {f"wrapper_cod{number}": 1 for number in range(COUNT)}


@pytest.fixture(scope="module")
async def ability_server(
    anyio_backend: object, environment: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[AbilityServer]:
    async with harness.start_ability_server(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.mark.parametrize(
    ("path", "make_body", "expected"),
    [
        ("/my/abilities", lambda: dict.fromkeys(map(str, range(200_000))), "has more than 100000 values"),
        ("/my/abilities", lambda: SIMILAR, "expected at most 200 fields"),
        ("/my/abilities", lambda: ability(**{f"wrapper_cod{at}": 1 for at in range(150)}), MORE_PROBLEMS),
        ("/my/abilities", lambda: ability(static_headers=[None] * COUNT), "expected at most 200 items"),
        (
            "/my/abilities",
            lambda: ability(static_headers={f"a b{at}": 1 for at in range(100)}),
            MORE_PROBLEMS,
        ),
        ("/my/abilities", lambda: ability(dynamic_header_keys=["a b"] * COUNT), "expected at most 200 items"),
        (
            "/my/abilities",
            lambda: ability(dependencies={"missing": [1] * COUNT}),
            "expected at most 200 items",
        ),
        ("/my/abilities", lambda: ability(dependency_order=["x" * 1_000_000]), "expected up to 200 letters"),
        ("/my/credentials", lambda: SIMILAR, "domain: expected a string"),
        ("/my/abilities/a/execute", lambda: SIMILAR, "belongs inside it"),
    ],
    ids=["values", "fields", "typos", "headers", "names", "keys", "missing", "long", "credential", "execute"],
)
@repeat_on_stall
async def test_refusal_is_short_and_does_not_stall_the_server(
    ability_server: AbilityServer, path: str, make_body: Callable[[], dict[str, Any]], expected: str
) -> None:
    body = make_body()
    eve = await ability_server.user("eve")
    with ServerStalls(ability_server.server.process.pid, ability_server.server.url) as stalls:
        answer = await eve.call("POST", path, json=body)
    assert expected in error_message(answer, 400, "INVALID_REQUEST")
    assert len(answer.content) < MAX_RESPONSE_BYTES
    stalls.assert_short()
