"""Approvals in the console: pending tool calls, which are shown beside their code, pending steps of flows,
and the forms for both.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import expect
from tests.console.browser.conftest import OpenPage
from tests.support.processes import ServeProcess, running_server

import hutch

FLOW = """\
name: letters
inputs: {people: "list<string>", count: int, urgent: bool}
steps:
  - {id: ask, run: approve, with: {message: "Send to ${input.people}?"}}
"""


@pytest.fixture(scope="module")
def server(home: str) -> Iterator[ServeProcess]:
    """A server whose example tool `shop.order` needs an approval."""
    Path(home, "hutch.toml").write_text('example_tools = true\n[approvals]\nshop__order = "ask"\n')
    with running_server(HUTCH_HOME=home) as running:
        httpx2.post(running.url + "/flows", content=FLOW, headers={"Content-Type": "application/yaml"})
        yield running


def test_call_that_waits_longer_than_the_time_limit_is_allowed_beside_its_code(
    server: ServeProcess, open_page: OpenPage
) -> None:
    page = open_page(f"{server.url}/#/playground")
    page.get_by_label("Time limit (seconds)").fill("3")
    page.get_by_role("button", name="Run", exact=True).click()
    approval = page.locator(".approval")
    expect(approval).to_contain_text("shop.order")
    expect(approval).to_contain_text('"count": 4')
    expect(page.get_by_role("link", name="Approvals")).to_contain_text("1")
    page.wait_for_timeout(3_100)  # wait longer than the run's time limit
    approval.get_by_role("button", name="Allow").click()
    expect(page.get_by_text("80", exact=True)).to_be_visible()
    page.get_by_role("link", name="Timeline").click()
    expect(page.get_by_role("button", name=re.compile("^order"))).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("^Ran .*, with waits"))).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("^Approval: shop.order"))).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
    # "Run again" is available, because the run used only tools of the server.
    page.get_by_role("button", name="Run again").click()
    expect(approval).to_contain_text("shop.order")
    approval.get_by_role("button", name="Deny").click()


def test_suspended_run_is_continued_or_cancelled_on_its_page(
    server: ServeProcess, open_page: OpenPage
) -> None:
    code = "return (await tools.shop.order({article: 'desk', count: 2})).total"
    with ThreadPoolExecutor(2) as pool:
        first, second = (pool.submit(run_code, server, code) for _ in range(2))
        page = open_page(f"{server.url}/#/runs?status=suspended")
        expect(page.get_by_text("suspended", exact=True)).to_have_count(2)
        page.locator(".run-name a").first.click()
        expect(page.locator(".approval")).to_contain_text('"article": "desk"')
        page.get_by_role("button", name="Allow").click()
        expect(page.get_by_text("completed", exact=True)).to_be_visible()
        page.goto(f"{server.url}/#/runs?status=suspended")
        page.locator(".run-name a").click()
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_text("cancelled", exact=True).first).to_be_visible()
        results = [first.result(), second.result()]
    assert sorted(result.get("result") or 0 for result in results) == [0, 300]


def test_run_with_the_tools_of_a_program_shows_how_to_continue_it(
    server: ServeProcess, open_page: OpenPage
) -> None:
    def approve(question: str) -> str:
        raise hutch.Suspend(question)

    async def suspend() -> hutch.Result:
        async with hutch.connect(server.execbox) as h:
            return await h.run("return await tools.approve({question: 'Buy it?'})", tools=[approve])

    with ThreadPoolExecutor(1) as pool:  # Playwright's event loop occupies this thread
        result = pool.submit(lambda: asyncio.run(suspend())).result()
    (call,) = result.pending_calls
    page = open_page(f"{server.url}/#/runs/{result.run_id}")
    card = page.locator(".approval")
    expect(card).to_contain_text("Buy it?")
    expect(card).to_contain_text(f'await h.resume("{result.run_id}", {{"{call.call_id}": "yes"}}, tools=[…])')
    expect(page.get_by_role("button", name="Deliver and continue")).to_have_count(0)


def run_code(server: ServeProcess, code: str) -> dict[str, Any]:
    result: dict[str, Any] = httpx2.post(server.url + "/run", json={"code": code}, timeout=60).json()
    return result


def test_waiting_step_of_a_flow_is_in_the_inbox_and_the_list_of_runs(
    server: ServeProcess, open_page: OpenPage
) -> None:
    page = open_page(f"{server.url}/#/flows/letters")
    page.get_by_label("people").fill('["Ada"]')
    page.get_by_label("count").fill("2")
    page.get_by_label("urgent").select_option("true")
    page.get_by_role("button", name="Start").click()
    expect(page.locator(".approval")).to_contain_text('Send to ["Ada"]?')
    page.get_by_role("link", name="Runs", exact=True).click()
    page.get_by_role("link", name="letters").click()
    expect(page.locator(".approval")).to_contain_text('Send to ["Ada"]?')
    run_id = page.url.rpartition("/")[2]
    page.goto(f"{server.url}/#/runs/{run_id}")
    expect(page.get_by_role("heading", level=1)).to_contain_text("letters")
    page.get_by_role("link", name="Approvals").click()
    expect(page.locator(".approval")).to_contain_text("letters: ask")
    page.get_by_role("link", name="Read and decide").click()
    page.get_by_role("button", name="Approve", exact=True).click()
    expect(page.get_by_text("completed", exact=True)).to_be_visible()
