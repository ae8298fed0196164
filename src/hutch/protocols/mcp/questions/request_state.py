"""Seals the `requestState` of MCP 2026-07-28, which the client stores between two requests.

The SDK binds each state to the method, the tool, its arguments, the owner and an expiry, and checks all of
them when the client sends the state back. This module provides the keys.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.request_state import (
    AESGCMRequestStateCodec,
    InvalidRequestState,
    RequestStateBoundary,
    RequestStateSecurity,
)
from mcp.shared.exceptions import MCPError
from mcp.types import INTERNAL_ERROR

from hutch.errors import HutchError, VaultError

if TYPE_CHECKING:
    from hutch.store.encryption import Cipher
    from hutch.store.store import Store

_CONTEXT = "MCP requestState"
# Prefix of texts that the keys of the store encrypt; see `hutch.vault.crypto`.
_STORE_PREFIX = "hutch1."
_INVALID = (
    "requestState: expected the value of the last `input_required` result, with the same tool, arguments and"
    " API key. It was altered, belongs to another call or caller, or has expired. Call the tool again"
    " without it."
)


class StateCodec:
    """Seals states with a key of this process or, after `load`, with the keys of the store.

    A state that was sealed with the keys of the store can be opened by every server with this store, also
    after a restart.
    """

    def __init__(self, open_store: Callable[[], Awaitable[Store]]) -> None:
        self._open_store = open_store
        self._own = AESGCMRequestStateCodec([os.urandom(32)])
        self._cipher: Cipher | None = None

    async def load(self) -> None:
        """Loads the keys of the store. Raises StoreError and VaultError."""
        self._cipher = await (await self._open_store()).encryption.ready()

    def seal(self, payload: bytes) -> str:
        if self._cipher is None:
            return self._own.seal(payload)
        return self._cipher.encrypt_bytes(payload, _CONTEXT)

    def unseal(self, token: str) -> bytes:
        if self._cipher is None or not token.startswith(_STORE_PREFIX):
            return self._own.unseal(token)
        try:
            return self._cipher.decrypt_bytes(token, _CONTEXT)
        except VaultError as error:
            raise InvalidRequestState(str(error)) from None


class RequestStateMiddleware:
    """Seals the states that handlers return, and opens the states that clients send back."""

    def __init__(
        self, codec: StateCodec, owner_of: Callable[[ServerRequestContext[Any, Any]], str], seconds: float
    ) -> None:
        """`seconds` is the time after which a state is refused."""
        self._codec = codec
        security = RequestStateSecurity(codec=codec, ttl=seconds, bind_principal=owner_of)
        self._boundary = RequestStateBoundary(security, default_audience="hutch")

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        state = (ctx.params or {}).get("requestState")
        if isinstance(state, str) and state.startswith(_STORE_PREFIX):
            try:
                await self._codec.load()
            except HutchError as error:
                raise MCPError(INTERNAL_ERROR, str(error)) from None
        try:
            return await self._boundary(ctx, call_next)
        except MCPError as error:
            if error.error.data == {"reason": "invalid_request_state"}:
                raise MCPError(error.error.code, _INVALID, error.error.data) from None
            raise
