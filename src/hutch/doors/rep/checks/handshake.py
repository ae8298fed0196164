"""Capabilities (5.1) and the envelope of requests and answers (4)."""

from __future__ import annotations

import json
import re
from typing import Any

from hutch.doors.rep.checks.outcome import Check, Failed
from hutch.doors.rep.checks.subject import Subject
from hutch.doors.rep.codes import INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR

_SEMVER = re.compile(r"\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?")


async def answers_first(on: Subject) -> None:
    on.capabilities = await (await on.talk()).result("Capabilities")


async def has_fields(on: Subject) -> None:
    told = await (await on.talk()).result("Capabilities")
    kinds = told.get("step_kinds")
    if not isinstance(told.get("version"), str):
        raise Failed(f"version: expected a text, got {json.dumps(told.get('version'))}")
    if not isinstance(kinds, list) or not all(isinstance(each, str) for each in kinds):
        raise Failed("step_kinds: expected a list of texts")
    if len(set(kinds)) != len(kinds):
        raise Failed("step_kinds: expected a set: each kind once")
    if not isinstance(told.get("limits"), dict):
        raise Failed("limits: expected an object")


async def version_is_semantic(on: Subject) -> None:
    version = (await (await on.talk()).result("Capabilities")).get("version")
    if not isinstance(version, str) or not _SEMVER.fullmatch(version):
        raise Failed(f"version: expected one such as 0.1.0, got {json.dumps(version)}")


async def concurrency_is_a_number(on: Subject) -> None:
    limits = (await (await on.talk()).result("Capabilities")).get("limits")
    many = limits.get("concurrency") if isinstance(limits, dict) else None
    if isinstance(many, bool) or not isinstance(many, int) or many < 1:
        raise Failed(f"limits.concurrency: expected an integer of at least 1, got {json.dumps(many)}")


async def echoes_ids(on: Subject) -> None:
    talk = await on.fresh()
    try:
        for id in (1, 2, 1000, 2**31):
            await talk.call("Capabilities", id=id)
    finally:
        await talk.close()


async def answers_in_order(on: Subject) -> None:
    """Both at once: two lines, two answers."""
    talk = await on.fresh()
    try:
        one = _request(1, "Runtime.Capabilities")
        talk.say(one + b"\n" + _request(2, "Runtime.Capabilities"))
        for id in (1, 2):
            await talk.answer("Capabilities", id)
    finally:
        await talk.close()


async def refuses_unknown_methods(on: Subject) -> None:
    talk = await on.talk()
    await talk.refusal("NoSuchMethod")
    await talk.still_answers()


async def has_a_code_for_them(on: Subject) -> None:
    error = await (await on.talk()).refusal("NoSuchMethod")
    if error.code != METHOD_NOT_FOUND:
        raise Failed(f"expected the code {METHOD_NOT_FOUND}, got {error.code}: {error.message}")


async def survives_garbage(on: Subject) -> None:
    await _refuses(on, b'{"jsonrpc": "2.0", "id": 1, "method"', PARSE_ERROR)


async def refuses_no_request(on: Subject) -> None:
    await _refuses(on, b'{"jsonrpc": "2.0", "id": 7}', INVALID_REQUEST, 7)


async def refuses_batches(on: Subject) -> None:
    await _refuses(on, b"[" + _request(7, "Runtime.Capabilities") + b"]", INVALID_REQUEST)


async def _refuses(on: Subject, line: bytes, code: int, id: Any = None) -> None:
    talk = await on.fresh()
    try:
        talk.say(line)
        told = await talk.answer("after that", id)
        if told.error is None:
            raise Failed("expected an error, got a result")
        if told.error.code not in (code, 3001):
            raise Failed(f"expected the code {code}, got {told.error.code}: {told.error.message}")
        await talk.still_answers()
    finally:
        await talk.close()


async def ignores_notifications(on: Subject) -> None:
    talk = await on.fresh()
    try:
        talk.say(b'{"jsonrpc": "2.0", "method": "Runtime.Capabilities", "params": {}}')
        await talk.still_answers()
    finally:
        await talk.close()


def _request(id: int, method: str) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": {}}).encode()


CHECKS = (
    Check("answers Runtime.Capabilities", "5.1", True, answers_first),
    Check("capabilities have version, step_kinds and limits", "5.1", True, has_fields),
    Check("the version is a semantic one", "5.1", False, version_is_semantic),
    Check("limits.concurrency is at least 1", "5.1", False, concurrency_is_a_number),
    Check("the id of a request is that of its answer", "4", True, echoes_ids),
    Check("two requests at once get two answers, in order, a line each", "4", True, answers_in_order),
    Check(
        "an unknown method gets an error, and the next request an answer", "4", True, refuses_unknown_methods
    ),
    Check("an unknown method gets -32601", "4", False, has_a_code_for_them),
    Check("a line that is no JSON gets -32700 or 3001, and the next an answer", "4", False, survives_garbage),
    Check("a request without a method gets -32600", "4", False, refuses_no_request),
    Check("a batch gets -32600", "4", False, refuses_batches),
    Check("a notification gets no answer", "4", False, ignores_notifications),
)
