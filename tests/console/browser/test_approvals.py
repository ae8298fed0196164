"""Approvals: waiting tool calls beside the code that makes them, waiting steps of flows, and their forms."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import expect
from tests.console.browser.conftest import OpenPage
from tests.support.processes import ServeProcess, running_server

FLOW = """\
name: letters
inputs: {people: "list<string>", count: int, urgent: bool}
steps:
  - {id: ask, run: approve, with: {message: "Send to ${input.people}?"}}
"""


@pytest.fixture(scope="module")
def server(home: str) -> Iterator[ServeProcess]:
    """A server whose example shop asks before it takes an order."""
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
    page.wait_for_timeout(3_100)  # the time limit
    approval.get_by_role("button", name="Allow").click()
    expect(page.locator(".code").filter(has_text="80")).to_be_visible()
    page.get_by_role("link", name="Timeline").click()
    expect(page.get_by_role("button", name=re.compile("^order"))).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)


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
