"""`hutch gateway` and `hutch tools`: all MCP servers behind one address, and what they have."""

from __future__ import annotations

import os
import shlex
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import msgspec

from hutch import settings as settings_module
from hutch.cli import loop
from hutch.cli.alone import ALONE, started
from hutch.cli.output import print_json
from hutch.doors.toolscript.client import checked_url
from hutch.doors.toolscript.execute import VARIABLE
from hutch.errors import HutchError
from hutch.settings import Settings

_ANSWER_SECONDS = 60.0

# Of a description in a list of tools.
_MOST_CHARACTERS = 100


def url_of(settings: Settings) -> str:
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"


def environment() -> int:
    """Prints what a shell is to evaluate, so that scripts find the gateway."""
    print(f"export {VARIABLE}={shlex.quote(url_of(settings_module.load()))}")
    return 0


def status(url: str | None, *, json: bool) -> int:
    """Exit code 1 when a server cannot be reached."""
    settings = settings_module.load()
    asked = url or os.environ.get(VARIABLE) or url_of(settings)
    found = loop.run(_ask(settings, asked, "/status"))
    if json:
        print_json(msgspec.json.encode(found))
    else:
        counted = f"{found['tools']} tools of {len(found['servers'])} servers"
        print(f"{asked}: {counted}, revision {found['revision']}")
        for server in found["servers"]:
            trouble = f"   {server['error']}" if server["error"] else ""
            print(f"  {server['name']:20} {server['state']:12} {server['tools']} tools{trouble}")
        for clash in found["collisions"]:
            print(f"  note: {clash['became']} would all be called {clash['name']}")
    return 0 if all(server["state"] != "failed" for server in found["servers"]) else 1


def list_tools(url: str | None, only: str | None, *, json: bool) -> int:
    entries, servers = loop.run(_tools_and_servers(url, only))
    if not entries:
        print(f"hutch: {_why_none(servers, only)}", file=sys.stderr)
    if json:
        print_json(msgspec.json.encode(entries))
    for entry in () if json else entries:
        description = (entry["description"] or "").strip().split("\n")[0]
        print(f"{entry['qualifiedName']:40} {_clipped(description)}")
    return 0


def _clipped(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 2].rstrip()} …"


def search_tools(url: str | None, query: str, limit: int, *, json: bool) -> int:
    """Exit code 1 when nothing is found."""
    found, why_none = loop.run(_search(url, query, limit))
    if json:
        print_json(msgspec.json.encode(found))
    for each in () if json else found:
        tool = each["tool"]
        print(f"{each['score']:.2f}  {tool['qualifiedName']}   {each['reason']}")
    if not found:
        print(f"hutch: {why_none}", file=sys.stderr)
    return 0 if found else 1


def show_types(url: str | None, only: str | None, *, compact: bool) -> int:
    query = {"filter": only, "compact": "true" if compact else None}
    print(loop.run(_text(url, "/runtime/tools.d.ts", **query)))
    return 0


async def _search(url: str | None, query: str, limit: int) -> tuple[Any, str]:
    """What is found, and why nothing is."""
    async with _client(url) as client:
        found = _checked(await client.get("/search", params=_given({"q": query, "limit": limit}))).json()
        if found:
            return found, ""
        tools, servers = await _listed(client, None)
        return found, "nothing found; try other words" if tools else _why_none(servers, None)


async def _tools_and_servers(url: str | None, only: str | None) -> tuple[Any, Any]:
    async with _client(url) as client:
        return await _listed(client, only)


async def _listed(client: httpx2.AsyncClient, only: str | None) -> tuple[Any, Any]:
    tools = _checked(await client.get("/tools", params=_given({"filter": only}))).json()
    return tools, _checked(await client.get("/servers")).json()


def _why_none(servers: list[dict[str, Any]], only: str | None) -> str:
    if not servers:
        return (
            "there are no MCP servers, and so no tools; write .toolscript.json, or name a file in mcp_config"
        )
    named = ", ".join(each["name"] for each in servers)
    if only is not None:
        return f"no tool is named by --filter {only}; the servers are {named}"
    return f"none of the servers has any tools: {named}; a gateway's `hutch gateway status` says why"


async def _text(url: str | None, path: str, **query: Any) -> str:
    async with _client(url) as client:
        return _checked(await client.get(path, params=_given(query))).text


async def _ask(settings: Settings, url: str, path: str) -> Any:
    async with _remote(settings, url) as client:
        return _checked(await client.get(path)).json()


def _given(query: dict[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in query.items() if value is not None}


def _checked(answer: httpx2.Response) -> httpx2.Response:
    if answer.status_code != 200:
        raise HutchError(f"The gateway answers {answer.status_code}: {answer.text[:500]}")
    return answer


@asynccontextmanager
async def _client(url: str | None) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the gateway named, or of one of our own for as long as this takes."""
    settings = settings_module.load(ALONE)
    url = url or os.environ.get(VARIABLE) or None
    if url is not None:
        async with _remote(settings, url) as client:
            yield client
        return
    async with started(settings) as app:
        transport = httpx2.ASGITransport(app.gateway_app)
        async with httpx2.AsyncClient(
            transport=transport, base_url=app.world.url, timeout=None, headers=_key(settings)
        ) as client:
            yield client


@asynccontextmanager
async def _remote(settings: Settings, url: str) -> AsyncIterator[httpx2.AsyncClient]:
    checked_url(url)
    try:
        async with httpx2.AsyncClient(
            base_url=url,
            timeout=_ANSWER_SECONDS,
            headers=_key(settings),
            trust_env=False,
            verify=_authorities(url),
        ) as client:
            yield client
    except httpx2.HTTPError as error:
        raise HutchError(
            f"The gateway at {url} cannot be reached: {error}.",
            remedy="Start it with `hutch gateway start`, or name another with --gateway-url.",
        ) from None


def _authorities(url: str) -> ssl.SSLContext | bool:
    """Without TLS none, so that nobody could be verified: reading all takes 30 ms."""
    return httpx2.URL(url).scheme == "https" or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _key(settings: Settings) -> dict[str, str]:
    return {"authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}
