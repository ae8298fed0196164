"""Whether `maxRequestBodyBytes` is what it says."""

from __future__ import annotations

import msgspec

from hutch.cli.compliance.outcome import NotTested
from hutch.cli.compliance.subject import EXECUTE, Subject
from hutch.cli.compliance.upload import upload

# More than this is not sent to find out.
MOST_BYTES = 64 * 1024 * 1024


async def refuses_more(on: Subject) -> None:
    """One byte more than the limit."""
    await _refuses_more(on, chunked=False)


async def refuses_more_in_chunks(on: Subject) -> None:
    """The same without a Content-Length that would give it away."""
    await _refuses_more(on, chunked=True)


async def _refuses_more(on: Subject, *, chunked: bool) -> None:
    body = await _padded(on, 1)
    await on.ready()
    answer = await upload(on.client, EXECUTE, body, on.patience.execution, chunked=chunked)
    answer.refusal(413, 400)


async def accepts_limit(on: Subject) -> None:
    """As many bytes as the limit allows."""
    (await on.execute(await _padded(on, 0))).execution()


async def _padded(on: Subject, more: int) -> bytes:
    """The valid request, with spaces after it, of so many bytes more than the limit."""
    limit = await on.limit("maxRequestBodyBytes")
    if limit is None:
        raise NotTested("GET /info tells no maxRequestBodyBytes")
    if limit > MOST_BYTES:
        raise NotTested(f"the limit of {limit} bytes is too much to send")
    if not on.client.direct:
        raise NotTested("the environment names a proxy, which may have a limit of its own")
    return msgspec.json.encode(on.tool.request()).ljust(limit + more)
