"""Checks of `Runtime.Capabilities` (5.1) and of the message envelope (4)."""

from __future__ import annotations

import json
import re
from typing import Any

from hutch.conformance.outcome import Check, CheckFailed
from hutch.conformance.rep.target import RuntimeTarget
from hutch.protocols.rep.jsonrpc import INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR, RpcError

_SEMVER = re.compile(r"\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?")


async def reports_capabilities(target: RuntimeTarget) -> None:
    target.capabilities = await (await target.connect()).result("Capabilities")


async def has_fields(target: RuntimeTarget) -> None:
    capabilities = await (await target.connect()).result("Capabilities")
    kinds = capabilities.get("step_kinds")
    if not isinstance(capabilities.get("version"), str):
        raise CheckFailed(f"version: expected a string, got {json.dumps(capabilities.get('version'))}")
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        raise CheckFailed("step_kinds: expected a list of strings")
    if len(set(kinds)) != len(kinds):
        raise CheckFailed("step_kinds: expected a set: each kind once")
    if not isinstance(capabilities.get("limits"), dict):
        raise CheckFailed("limits: expected an object")


async def version_is_semantic(target: RuntimeTarget) -> None:
    version = (await (await target.connect()).result("Capabilities")).get("version")
    if not isinstance(version, str) or not _SEMVER.fullmatch(version):
        raise CheckFailed(f"version: expected one such as 0.1.0, got {json.dumps(version)}")


async def concurrency_is_a_number(target: RuntimeTarget) -> None:
    limits = (await (await target.connect()).result("Capabilities")).get("limits")
    concurrency = limits.get("concurrency") if isinstance(limits, dict) else None
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        shown = json.dumps(concurrency)
        raise CheckFailed(f"limits.concurrency: expected an integer of at least 1, got {shown}")


async def echoes_ids(target: RuntimeTarget) -> None:
    connection = await target.connect_new()
    try:
        for id in (1, 2, 1000, 2**31):
            await connection.call("Capabilities", id=id)
    except RpcError as error:
        raise CheckFailed(error.message) from None
    finally:
        await connection.close()


async def answers_in_order(target: RuntimeTarget) -> None:
    connection = await target.connect_new()
    try:
        requests = [_request(id, "Runtime.Capabilities") for id in (1, 2)]
        connection.send(b"\n".join(requests))
        for id in (1, 2):
            await connection.response("Capabilities", id)
    finally:
        await connection.close()


async def refuses_unknown_methods(target: RuntimeTarget) -> None:
    connection = await target.connect()
    await connection.error("NoSuchMethod")
    await connection.expect_alive()


async def unknown_method_has_code(target: RuntimeTarget) -> None:
    error = await (await target.connect()).error("NoSuchMethod")
    if error.code != METHOD_NOT_FOUND:
        raise CheckFailed(f"expected the code {METHOD_NOT_FOUND}, got {error.code}: {error.message}")


async def survives_garbage(target: RuntimeTarget) -> None:
    await _refuses(target, b'{"jsonrpc": "2.0", "id": 1, "method"', PARSE_ERROR)


async def refuses_invalid_requests(target: RuntimeTarget) -> None:
    await _refuses(target, b'{"jsonrpc": "2.0", "id": 7}', INVALID_REQUEST, 7)


async def refuses_batches(target: RuntimeTarget) -> None:
    await _refuses(target, b"[" + _request(7, "Runtime.Capabilities") + b"]", INVALID_REQUEST)


async def _refuses(target: RuntimeTarget, line: bytes, code: int, id: Any = None) -> None:
    connection = await target.connect_new()
    try:
        connection.send(line)
        response = await connection.response("after that", id)
        error = response.error
        if error is None:
            raise CheckFailed("expected an error, got a result")
        if error.code not in (code, 3001):
            raise CheckFailed(f"expected the code {code}, got {error.code}: {error.message}")
        await connection.expect_alive()
    finally:
        await connection.close()


async def ignores_notifications(target: RuntimeTarget) -> None:
    connection = await target.connect_new()
    try:
        connection.send(b'{"jsonrpc": "2.0", "method": "Runtime.Capabilities", "params": {}}')
        await connection.expect_alive()
    finally:
        await connection.close()


def _request(id: int, method: str) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": {}}).encode()


CHECKS = (
    Check("answers Runtime.Capabilities", reports_capabilities, "5.1"),
    Check("capabilities have version, step_kinds and limits", has_fields, "5.1"),
    Check("the version is a semantic version", version_is_semantic, "5.1", required=False),
    Check("limits.concurrency is at least 1", concurrency_is_a_number, "5.1", required=False),
    Check("answers have the id of their request", echoes_ids, "4"),
    Check("two requests at once get two answers, in order, one per line", answers_in_order, "4"),
    Check("an unknown method gets an error; the next request is answered", refuses_unknown_methods, "4"),
    Check("an unknown method gets -32601", unknown_method_has_code, "4", required=False),
    Check(
        "a line that is not JSON gets -32700 or 3001; the next request is answered",
        survives_garbage,
        "4",
        required=False,
    ),
    Check("a request without a method gets -32600", refuses_invalid_requests, "4", required=False),
    Check("a batch gets -32600", refuses_batches, "4", required=False),
    Check("a notification gets no answer", ignores_notifications, "4", required=False),
)
