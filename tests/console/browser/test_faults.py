"""The console without a network, in two tabs, and with very long contents."""

from __future__ import annotations

import httpx2
from playwright.sync_api import expect
from tests.console.browser.conftest import OpenPage
from tests.support.processes import ServeProcess


def run(server: ServeProcess, label: str, code: str = "return 1") -> str:
    response = httpx2.post(server.url + "/run", json={"code": code, "label": label}, timeout=60)
    return str(response.json()["run_id"])


def test_browser_that_was_away_shows_what_happened_meanwhile(
    server: ServeProcess, open_page: OpenPage
) -> None:
    page = open_page(f"{server.url}/#/runs")
    context = page.context
    run(server, "before-sleep")
    expect(page.get_by_role("link", name="before-sleep")).to_be_visible()
    context.set_offline(True)
    expect(page.get_by_text("What you see may be old")).to_be_visible()
    run(server, "during-sleep")
    context.set_offline(False)
    expect(page.get_by_role("link", name="during-sleep")).to_be_visible()
    expect(page.get_by_text("What you see may be old")).to_have_count(0)


def test_two_tabs_show_the_same_runs(server: ServeProcess, open_page: OpenPage) -> None:
    first = open_page(f"{server.url}/#/runs")
    with first.context.new_page() as second:
        second.goto(f"{server.url}/#/runs")
        run(server, "for-both")
        for tab in (first, second):
            expect(tab.get_by_role("link", name="for-both")).to_be_visible()


def test_log_line_of_a_megabyte_does_not_stop_the_page(server: ServeProcess, open_page: OpenPage) -> None:
    code = "console.log('long-line ' + 'x'.repeat(1_000_000)); console.log('after it')"
    page = open_page(f"{server.url}/#/runs/{run(server, 'long', code)}")
    expect(page.get_by_text("long-line").first).to_be_visible()
    expect(page.get_by_role("button", name="Edit and run")).to_be_enabled()
    assert page.evaluate("document.body.innerText.length") < 200_000
