"""Routes of the console's Tools view: installed npm packages, and the abilities of all users."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from hutch.console.accounts import AccountStorage
from hutch.errors import InvalidPackage, PackageNotFound
from hutch.http.endpoint import HttpProtocol, RequestContext
from hutch.http.errors import ApiError
from hutch.http.requests import JsonBodyReader
from hutch.npm.package_spec import PackageSpec, parse_spec_argument
from hutch.npm.packages import Package, PackageInfo, PackageManager
from hutch.text import cut, format_unix_time

MAX_ABILITIES = 1_000
MAX_DESCRIPTION_CHARS = 500


@dataclass(frozen=True)
class ToolCatalogServices:
    packages: Callable[[], PackageManager]
    """Returns the package manager, which is created on first use."""
    listed_tools: Callable[[Package], Mapping[str, Mapping[str, Any]]]
    """Returns the tools that a package's package.json lists, by name."""
    count_spares: Callable[[Package], int]
    """Returns the number of idle processes that have the package imported."""
    storage: AccountStorage


def routes(services: ToolCatalogServices, protocol: HttpProtocol, bodies: JsonBodyReader) -> list[BaseRoute]:
    """`protocol` must allow access only to the operator."""
    handlers = ToolCatalogHandlers(services, bodies)
    return [
        protocol.route("/console/packages", GET=handlers.packages, POST=handlers.install),
        protocol.route("/console/packages/{spec:path}", GET=handlers.package, DELETE=handlers.remove),
        protocol.route("/console/abilities", GET=handlers.abilities),
    ]


class ToolCatalogHandlers:
    def __init__(self, services: ToolCatalogServices, bodies: JsonBodyReader) -> None:
        self._services = services
        self._bodies = bodies

    async def packages(self, context: RequestContext) -> Response:
        installed = await asyncio.to_thread(self._services.packages().list)
        return JSONResponse({"packages": [_package_body(info) for info in installed]})

    async def install(self, context: RequestContext) -> Response:
        """Installs the package that `{"package": "NAME@VERSION"}` names. Responds when the installation has
        finished.
        """
        text = (await self._bodies.read_object(context.request)).get("package")
        if not isinstance(text, str):
            raise ApiError("invalid_request", "`package`: expected a name such as ms or ms@2.1.3")
        try:
            package = await self._services.packages().get(_spec(text))
        except PackageNotFound as error:
            raise ApiError("unavailable" if error.retryable else "not_found", error.message) from None
        return JSONResponse({"name": package.name, "version": package.version}, status_code=201)

    async def package(self, context: RequestContext) -> Response:
        """Shows the tools of an installed package, and how many spares it has. Never installs a package,
        because a page of another site can send a GET request.
        """
        spec = _spec(context.request.path_params["spec"])
        package = await asyncio.to_thread(self._services.packages().find, spec)
        if package is None:
            raise ApiError("not_found", f"{spec} is not installed")
        tools = await asyncio.to_thread(self._services.listed_tools, package)
        return JSONResponse(
            {
                "name": package.name,
                "version": package.version,
                "tools": [
                    {"name": name, "description": _description(entry.get("description"))}
                    for name, entry in tools.items()
                ],
                "spares": self._services.count_spares(package),
            }
        )

    async def remove(self, context: RequestContext) -> Response:
        spec = _spec(context.request.path_params["spec"])
        if not await self._services.packages().remove(spec.name, spec.version):
            raise ApiError("not_found", f"{spec} is not installed")
        return Response(status_code=204)

    async def abilities(self, context: RequestContext) -> Response:
        """Lists the abilities of all users, without their code."""
        store = await self._services.storage.store()
        names = {user.id: user.name for user in await store.users.list()}
        rows = await store.abilities.list_all(MAX_ABILITIES)
        return JSONResponse(
            {
                "abilities": [
                    {
                        "id": row.ability_id,
                        "name": row.name,
                        "service": row.service_name,
                        "description": _description(row.description),
                        "owner": names.get(row.owner_id),
                        "version": row.version,
                        "shared": row.shared,
                        "updatedAt": row.updated_at,
                    }
                    for row in rows
                ],
                "isComplete": len(rows) < MAX_ABILITIES,
            }
        )


def _spec(text: str) -> PackageSpec:
    try:
        return parse_spec_argument(text)
    except InvalidPackage as error:
        raise ApiError("invalid_request", error.message) from None


def _package_body(info: PackageInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "version": info.version,
        "bytes": info.size,
        "files": info.files,
        "installedAt": format_unix_time(info.installed),
        "usedAt": format_unix_time(info.used),
        "knownAs": list(info.known_as),
    }


def _description(text: object) -> str:
    return cut(text, MAX_DESCRIPTION_CHARS) if isinstance(text, str) else ""
