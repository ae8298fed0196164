"""Answers that cannot be read: whose they are, so that who waits for one need not wait any longer."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from mcp.shared.message import SessionMessage
from mcp.types import PARSE_ERROR, ErrorData, JSONRPCError
from pydantic import ValidationError

from hutch.upstream.failures import Flaw

_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"'
# Of such length as ours can have.
_ID = rb'"id"\s*:\s*(\d{1,20}|"[ +\w]{1,20}")'
# `{"jsonrpc":"2.0","id":7,…` as most write it, or `…,"jsonrpc":"2.0","id":7}`.
_ID_FIRST = re.compile(rb"\s*\{\s*(?:" + _VERSION + rb"\s*,\s*)?" + _ID + rb"\s*[,}]\s*")
_ID_LAST = re.compile(rb",\s*" + _ID + rb"\s*(?:,\s*" + _VERSION + rb"\s*)?\}\s*$")
# What tells an answer from a request of the server's own, which may have the same number.
_ANSWER = re.compile(rb"(?:" + _VERSION + rb'\s*,\s*)?"(?:result|error)"\s*:')
_ANSWER_FIRST = re.compile(rb"\s*\{\s*" + _ANSWER.pattern)


def too_large(head: bytes, tail: bytes, limit: int) -> SessionMessage | None:
    """For the beginning and the end of an answer that is not kept."""
    found = _ID_FIRST.match(head) or _ID_LAST.search(tail)
    if found is None:
        return None
    message = f"the answer is larger than {limit} bytes"
    return _failed(msgspec.json.decode(found[1]), message, Flaw("too_large"))


def unreadable(error: ValidationError) -> SessionMessage | None:
    """For what the SDK's types refuse."""
    for each in error.errors(include_url=False, include_context=False):
        given = each["input"]
        if each["type"] == "json_invalid":
            return _no_json(given if isinstance(given, bytes) else given.encode(errors="replace"))
        if _is_answer(given):
            return _failed(given["id"], "the answer is not as JSON-RPC has it", Flaw("invalid_result"))
    return None


def _is_answer(given: Any) -> bool:
    # True is an int, but no id.
    return isinstance(given, dict) and type(given.get("id")) in (int, str) and given.get("method") is None


def _no_json(text: bytes) -> SessionMessage | None:
    first = _ID_FIRST.match(text)
    if first is not None:
        found = first if _ANSWER.match(text, first.end()) else None
    else:
        found = _ID_LAST.search(text) if _ANSWER_FIRST.match(text) else None
    if found is None:
        return None
    return _failed(msgspec.json.decode(found[1]), "the answer is not JSON", Flaw("invalid_result"))


def _failed(call: int | str, message: str, flaw: Flaw) -> SessionMessage:
    error = ErrorData(code=PARSE_ERROR, message=message, data=flaw)
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=call, error=error))
