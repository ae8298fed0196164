"""docs/tpmjs.md and the deployment files match the code."""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path
from typing import Any

from tests.protocols.tpmjs.harness import DENO, SELF_TEST, TpmjsServer

from hutch.http import sse
from hutch.http.middleware.cors import HEADERS
from hutch.protocols.tpmjs.descriptions import info_response
from hutch.protocols.tpmjs.requests import MAX_BATCH, MAX_NAME_CHARS
from hutch.protocols.tpmjs.responses import FAILURE_KINDS
from hutch.protocols.tpmjs.routes import MAX_BATCH_CONCURRENCY, routes
from hutch.settings import Settings

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/tpmjs.md").read_text()
DEPLOY = ROOT / "examples/deploy"


def section(title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    assert found is not None, title
    return found[1]


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def test_table_of_codes_is_complete() -> None:
    documented = {(row[0], row[1], row[2]) for row in rows(section("Codes"))}
    assert documented == {
        (str(kind.status), f"`{kind.code}`", f"`{kind.stage}` `{kind.code_1_1}`")
        for kind in FAILURE_KINDS.values()
    }
    for status, _, _, retryable, _ in rows(section("Codes")):
        kinds = [kind for kind in FAILURE_KINDS.values() if str(kind.status) == status]
        assert retryable == ("depends" if status == "200" else "yes" if kinds[0].retryable else "no")


async def test_table_of_routes_is_complete() -> None:
    server = TpmjsServer()
    queue: Any = object()
    made = routes(server.tools, server.access, server.settings, SELF_TEST, DENO, queue)
    served = {f"`{next(iter(route.methods - {'HEAD'}))} {route.path}`" for route in made}
    assert {row[0] for row in rows(section("Routes"))} == served | {"`GET /health`", "`OPTIONS` any path"}


def test_numbers_match_the_code() -> None:
    assert f"1 to {MAX_NAME_CHARS} characters" in section("Request")
    assert f"1 to {MAX_BATCH} requests" in section("Batches")
    assert f"runs {MAX_BATCH_CONCURRENCY} at a time" in section("Batches")
    assert f"Every {sse.HEARTBEAT_SECONDS:g} s" in section("Streaming")
    assert f"once {sse.MAX_BUFFER_BYTES // 2**20} MiB" in section("Streaming")
    assert f"`max_body_bytes` ({Settings().max_body_bytes // 2**20} MiB)" in section("Request")
    assert f"`Access-Control-Allow-Origin: {HEADERS['Access-Control-Allow-Origin']}`" in PAGE


def test_every_field_of_info_is_documented() -> None:
    data = info_response(Settings(rate_limit=1, region="x"), SELF_TEST, DENO)
    documented = section("Fields of `/info`")
    for name in (*data, *data["capabilities"], *data["runtime"]):
        assert re.search(rf"\b{name}\b", documented), name


def test_named_settings_exist() -> None:
    shown = set(re.findall(r"HUTCH_([A-Z_]+)", PAGE)) | set(
        re.findall(r"HUTCH_([A-Z_]+)", "".join(path.read_text() for path in DEPLOY.iterdir()))
    )
    assert {name.lower() for name in shown} <= set(Settings.__struct_fields__)


def test_systemd_unit_allows_draining_and_a_jail() -> None:
    unit = ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "hutch.service")
    service = unit["Service"]
    assert float(service["TimeoutStopSec"]) > Settings().drain_seconds
    # With another `KillMode`, systemd would end the guests when it asks the server to drain.
    assert (service["KillMode"], service["Delegate"]) == ("mixed", "yes")
    assert not {"RestrictNamespaces", "PrivateUsers", "SystemCallFilter"} & set(service)


def test_containerfile_copies_existing_files() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    copied = [name for line in re.findall(r"^COPY (.*) \S+$", text, re.M) for name in line.split()]
    assert copied
    assert [name for name in copied if not (ROOT / name).exists()] == []
