"""`hutch gateway`, `hutch tools` and `hutch auth`: the gateway, its tools, and logins to MCP servers."""

from __future__ import annotations

import os
import shlex
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import httpx2
import msgspec

from hutch.cli.support import event_loop
from hutch.cli.support.console import print_json, print_line, print_message, print_note, print_text
from hutch.cli.support.event_loop import ONE_SHOT_SETTINGS, open_app
from hutch.cli.support.project import current_folder, load_project_settings, project_servers
from hutch.errors import HutchError, InvalidExecution
from hutch.mcp_client.config_file import load_config
from hutch.protocols.toolscript.execute import GATEWAY_VARIABLE
from hutch.protocols.toolscript.gateway.answers import (
    Answer,
    GatewayStatus,
    ListedMatch,
    ListedServer,
    ListedTool,
    decode_answer,
)
from hutch.protocols.toolscript.gateway.client import parse_gateway_url
from hutch.settings import MIB, Settings, load_settings
from hutch.text import printable

if TYPE_CHECKING:
    from hutch.mcp_client.config import ServerConfig
    from hutch.vault.tokens import Tokens

T = TypeVar("T")

MAX_ANSWER_BYTES = 64 * MIB
_RESPONSE_SECONDS = 60.0

_MAX_DESCRIPTION_CHARS = 100


def _default_gateway_url(settings: Settings) -> str:
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"


def print_environment() -> int:
    """Prints the shell command that exports the gateway's URL for scripts."""
    print_line(f"export {GATEWAY_VARIABLE}={shlex.quote(_default_gateway_url(load_settings()))}")
    return 0


def show_gateway_status(url: str | None, *, json: bool) -> int:
    """Prints the status of a gateway. Returns 1 if a server cannot be reached."""
    settings = load_settings()
    gateway_url = url or os.environ.get(GATEWAY_VARIABLE) or _default_gateway_url(settings)
    answer = event_loop.run_async(_get_status(settings, gateway_url))
    status = answer.value
    if json:
        print_json(msgspec.json.encode(answer.json))
    else:
        counts = f"{status.tools} tools of {len(status.servers)} servers"
        print_line(f"{gateway_url}: {counts}, revision {status.revision}")
        for server in status.servers:
            error = f"   {server.error}" if server.error else ""
            print_line(f"  {server.name:20} {server.state:12} {server.tools} tools{error}")
        for collision in status.collisions:
            print_line(f"  note: {collision.became} would all be called {collision.name}")
    return 0 if all(server.state != "failed" for server in status.servers) else 1


def list_tools(url: str | None, tool_filter: str | None, *, json: bool) -> int:
    tools, servers = event_loop.run_async(_list_tools(url, tool_filter))
    if not tools.value:
        print_note(_explain_no_tools(servers, tool_filter, is_remote=_remote_url(url) is not None))
    if json:
        print_json(msgspec.json.encode(tools.json))
    for tool in () if json else tools.value:
        print_line(f"{tool.shown_name:40} {_summary(tool)}")
    return 0


def _summary(tool: ListedTool) -> str:
    return _clip((tool.description or "").strip().split("\n")[0])


def _clip(text: str) -> str:
    return text if len(text) <= _MAX_DESCRIPTION_CHARS else f"{text[: _MAX_DESCRIPTION_CHARS - 2].rstrip()} …"


def search_tools(url: str | None, query: str, limit: int, *, scores: bool, json: bool) -> int:
    """Prints the tools that match a query. Returns 1 if nothing is found."""
    matches, why_none = event_loop.run_async(_search(url, query, limit))
    if json:
        print_json(msgspec.json.encode(matches.json))
    for match in () if json else matches.value:
        score = f"{match.score:.2f}  " if scores else ""
        print_line(f"{score}{match.tool.shown_name:40} {_summary(match.tool)}".rstrip())
        if scores and match.reason:
            print_line(f"      {match.reason}")
    if not matches.value:
        print_note(why_none)
    return 0 if matches.value else 1


def show_types(url: str | None, tool_filter: str | None, *, compact: bool) -> int:
    print_text(event_loop.run_async(_get_types(url, tool_filter, compact)))
    return 0


# --- client of the gateway ---


async def _search(url: str | None, query: str, limit: int) -> tuple[Answer[list[ListedMatch]], str]:
    """Returns the matches, and the reason if there are none."""
    async with _open_client(url) as client:
        matches = await _get(client, "/search", list[ListedMatch], q=query, limit=limit)
        if matches.value:
            return matches, ""
        tools, servers = await _get_tools_and_servers(client, None)
        if tools.value:
            return matches, "nothing found; try other words"
        return matches, _explain_no_tools(servers, None, is_remote=_remote_url(url) is not None)


def _remote_url(url: str | None) -> str | None:
    """Returns the URL of the gateway to use, or None for one in this process."""
    return url or os.environ.get(GATEWAY_VARIABLE) or None


async def _list_tools(
    url: str | None, tool_filter: str | None
) -> tuple[Answer[list[ListedTool]], list[ListedServer]]:
    async with _open_client(url) as client:
        return await _get_tools_and_servers(client, tool_filter)


async def _get_tools_and_servers(
    client: httpx2.AsyncClient, tool_filter: str | None
) -> tuple[Answer[list[ListedTool]], list[ListedServer]]:
    tools = await _get(client, "/tools", list[ListedTool], filter=tool_filter)
    return tools, (await _get(client, "/servers", list[ListedServer])).value


def _explain_no_tools(servers: list[ListedServer], tool_filter: str | None, *, is_remote: bool) -> str:
    if not servers:
        return "no MCP servers are configured; write .toolscript.json, or name a file in mcp_config"
    names = ", ".join(server.name for server in servers)
    if tool_filter is not None:
        return f"--filter {tool_filter} matches no tool; the servers are {names}"
    # Give the hint only for a remote gateway. A gateway in this process has already reported the reasons.
    hint = "; `hutch gateway status` shows why" if is_remote else ""
    return f"none of the servers has any tools: {names}{hint}"


async def _get_types(url: str | None, tool_filter: str | None, compact: bool) -> str:
    async with _open_client(url) as client:
        query = {"filter": tool_filter, "compact": "true" if compact else None}
        status, body = await _request(client, "/runtime/tools.d.ts", query)
        if status == 404:
            # The public implementation of the gateway has only this path. `compact` makes its response
            # contain only declarations. Without `compact`, the response would contain the functions too.
            query["compact"] = "true"
            status, body = await _request(client, "/runtime/tools.ts", query)
        return _check_status(status, body).decode(errors="replace")


async def _get_status(settings: Settings, url: str) -> Answer[GatewayStatus]:
    async with _open_remote_client(settings, url) as client:
        return await _get(client, "/status", GatewayStatus)


async def _get(client: httpx2.AsyncClient, path: str, kind: type[T], **query: Any) -> Answer[T]:
    return decode_answer(path, _check_status(*await _request(client, path, query)), kind)


async def _request(client: httpx2.AsyncClient, path: str, query: dict[str, Any]) -> tuple[int, bytes]:
    params = {name: str(value) for name, value in query.items() if value is not None}
    body = bytearray()
    async with client.stream("GET", path, params=params) as response:
        async for part in response.aiter_bytes():
            body += part
            if len(body) > MAX_ANSWER_BYTES:
                raise HutchError(f"The gateway's answer to {path} is larger than {MAX_ANSWER_BYTES} bytes.")
    return response.status_code, bytes(body)


def _check_status(status: int, body: bytes) -> bytes:
    if status != 200:
        raise HutchError(f"The gateway answers {status}: {body[:500].decode(errors='replace')}")
    return body


@asynccontextmanager
async def _open_client(url: str | None) -> AsyncIterator[httpx2.AsyncClient]:
    """Opens a client of the gateway at the given URL, or of a temporary gateway in this process."""
    settings = load_project_settings(ONE_SHOT_SETTINGS, current_folder())
    url = _remote_url(url)
    if url is not None:
        async with _open_remote_client(settings, url) as client:
            yield client
        return
    async with open_app(settings, project_servers(settings, current_folder())) as app:
        transport = httpx2.ASGITransport(app.gateway_app)
        async with httpx2.AsyncClient(
            transport=transport,
            base_url=app.script_gateway.url,
            timeout=None,
            headers=_auth_headers(settings),
        ) as client:
            yield client


@asynccontextmanager
async def _open_remote_client(settings: Settings, url: str) -> AsyncIterator[httpx2.AsyncClient]:
    parse_gateway_url(url)
    try:
        async with httpx2.AsyncClient(
            base_url=url,
            timeout=_RESPONSE_SECONDS,
            headers=_auth_headers(settings),
            trust_env=False,
            verify=_tls_verification(url),
        ) as client:
            yield client
    except httpx2.HTTPError as error:
        raise HutchError(
            f"The gateway at {url} cannot be reached: {error}.",
            remedy="Start it with `hutch gateway start`, or name another with --gateway-url.",
        ) from None


def _tls_verification(url: str) -> ssl.SSLContext | bool:
    """Returns the TLS setting for a URL. For http it is an empty context, because loading the certificate
    authorities takes 30 ms.
    """
    return httpx2.URL(url).scheme == "https" or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _auth_headers(settings: Settings) -> dict[str, str]:
    return {"authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}


# --- hutch auth ---


def log_in(server: str) -> int:
    from hutch.mcp_client.oauth.login import login  # imported here, because the import takes long

    logged_in = event_loop.run_async(login(*_find_server(server), show=_print_login_url))
    print_note(f"logged in to {server}" if logged_in else f"{server} requires no login")
    return 0


def log_out(server: str) -> int:
    from hutch.mcp_client.oauth.login import logout

    logged_out = logout(*_find_server(server))
    print_note(f"logged out of {server}" if logged_out else f"there was no login to {server}")
    return 0


def _find_server(server: str) -> tuple[ServerConfig, Tokens]:
    """Returns a configured server and the token store. Raises InvalidExecution."""
    from hutch.vault.tokens import Tokens

    settings = load_settings()
    paths = settings.mcp_config or None
    project = None if paths else project_servers(settings, current_folder())()
    servers = load_config(paths, project=project).servers
    if server not in servers:
        known = ", ".join(sorted(servers)) or "none"
        raise InvalidExecution(
            "SERVER", f"there is no server {server!r} in the configuration; it lists {known}"
        )
    return servers[server], Tokens.at(settings.home_path, os.environ)


def _print_login_url(url: str) -> None:
    print_message(f"Open this page to log in:\n  {printable(url)}")
