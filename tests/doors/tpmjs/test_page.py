"""docs/tpmjs.md and the files for deployment say what the code does."""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path

from tests.doors.tpmjs.scripted import DENO, VERDICT, Door

from hutch.doors.cors import HEADERS
from hutch.doors.tpmjs import streaming
from hutch.doors.tpmjs.answers import KINDS
from hutch.doors.tpmjs.http import BATCH_AT_ONCE, routes
from hutch.doors.tpmjs.info import info
from hutch.doors.tpmjs.requests import MAX_BATCH, MAX_NAME
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


def test_every_failure_is_in_the_table_of_codes_and_no_other() -> None:
    told = {(row[0], row[1], row[2]) for row in rows(section("Codes"))}
    assert told == {
        (str(kind.status), f"`{kind.code}`", f"`{kind.stage}` `{kind.code_1_1}`") for kind in KINDS.values()
    }
    for status, _, _, retryable, _ in rows(section("Codes")):
        kinds = [kind for kind in KINDS.values() if str(kind.status) == status]
        assert retryable == ("as told" if status == "200" else "yes" if kinds[0].retryable else "no")


async def test_every_route_is_in_the_table_of_routes_and_no_other() -> None:
    door = Door()
    made = routes(door.tools, door.gate, door.settings, VERDICT, DENO)
    served = {f"`{next(iter(each.methods - {'HEAD'}))} {each.path}`" for each in made}
    assert {row[0] for row in rows(section("Routes"))} == served | {"`GET /health`", "`OPTIONS` any path"}


def test_numbers_are_those_of_the_code() -> None:
    assert f"1 to {MAX_NAME} characters" in section("A request")
    assert f"1 to {MAX_BATCH} of them" in section("Batches")
    assert f"makes them {BATCH_AT_ONCE} at a time" in section("Batches")
    assert f"After {streaming.HEARTBEAT_SECONDS:g} s of silence" in section("Streaming")
    assert f"once {streaming.MAX_WAITING_BYTES // 2**20} MiB" in section("Streaming")
    assert f"`max_body_bytes` ({Settings().max_body_bytes // 2**20} MiB)" in section("A request")
    assert f"`Access-Control-Allow-Origin: {HEADERS['Access-Control-Allow-Origin']}`" in PAGE


def test_every_field_of_info_is_told() -> None:
    said = info(Settings(rate_limit=1, region="x"), VERDICT, DENO)
    told = section("What `/info` says")
    for name in (*said, *said["capabilities"], *said["runtime"]):
        assert re.search(rf"\b{name}\b", told), name


def test_every_setting_that_is_named_exists() -> None:
    shown = set(re.findall(r"HUTCH_([A-Z_]+)", PAGE)) | set(
        re.findall(r"HUTCH_([A-Z_]+)", "".join(path.read_text() for path in DEPLOY.iterdir()))
    )
    assert {name.lower() for name in shown} <= set(Settings.__struct_fields__)


def test_unit_gives_hutch_the_time_to_drain_and_a_jail() -> None:
    unit = ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "hutch.service")
    service = unit["Service"]
    assert float(service["TimeoutStopSec"]) > Settings().drain_seconds
    # Else the guests are ended when the server is asked to drain.
    assert (service["KillMode"], service["Delegate"]) == ("mixed", "yes")
    assert not {"RestrictNamespaces", "PrivateUsers", "SystemCallFilter"} & set(service)


def test_container_is_built_from_files_that_are_there() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    copied = [name for line in re.findall(r"^COPY (.*) \S+$", text, re.M) for name in line.split()]
    assert copied
    assert [name for name in copied if not (ROOT / name).exists()] == []
