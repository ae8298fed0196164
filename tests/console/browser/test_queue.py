"""The view of asynchronous runs, webhooks, schedules and triggers."""

from __future__ import annotations

from typing import Any

import httpx2
from playwright.sync_api import expect
from tests.console.browser.conftest import VIEWPORT, OpenPage
from tests.support.processes import ServeProcess, wait_until


def test_dead_letter_is_retried_and_a_webhook_sent_again(server: ServeProcess, open_page: OpenPage) -> None:
    body: dict[str, Any] = {"async": True, "kind": "code", "attempts": 1}
    body["request"] = {"code": "throw new Error('no')", "label": "broken"}
    httpx2.post(server.url + "/runs", json={**body, "webhook": "https://localhost:44444/hook"})
    wait_until(lambda: "dead" in httpx2.get(server.url + "/queue").json()["counts"])
    page = open_page(f"{server.url}/#/queue")
    row = page.get_by_role("row").filter(has_text="broken")
    expect(row).to_contain_text("dead")
    row.get_by_role("button", name="Retry").click()
    wait_until(lambda: len(httpx2.get(server.url + "/webhooks").json()["deliveries"]) == 2)
    message = page.get_by_role("row").filter(has_text="run.failed").first
    expect(message).to_contain_text("localhost resolves to")
    id = httpx2.get(server.url + "/webhooks").json()["deliveries"][0]["id"]
    page.set_viewport_size({"width": 390, "height": 800})
    again = message.get_by_role("button", name="Send again")
    box = again.bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= 390
    again.click()
    page.set_viewport_size(VIEWPORT)

    def attempts() -> int:
        found = httpx2.get(server.url + "/webhooks").json()["deliveries"]
        return int(next(each["attempt_count"] for each in found if each["id"] == id))

    wait_until(lambda: attempts() >= 2)
    row.get_by_role("button", name="Remove").click()
    expect(page.get_by_text("Nothing is queued")).to_be_visible()
    page.get_by_role("button", name="Show the webhook secret").click()
    expect(page.get_by_role("button", name="Copy the webhook secret")).to_be_visible()


def test_schedules_and_triggers_are_paused_and_removed(server: ServeProcess, open_page: OpenPage) -> None:
    httpx2.put(server.url + "/scripts/report", json={"code": "return 1", "engine": "quickjs"})
    httpx2.post(server.url + "/schedules", json={"name": "night", "script": "report", "cron": "0 3 * * *"})
    httpx2.post(server.url + "/triggers", json={"name": "push", "script": "report", "signature": "github"})
    page = open_page(f"{server.url}/#/queue")
    for name, text in (("night", "0 3 * * * UTC"), ("push", "github")):
        row = page.get_by_role("row").filter(has_text=name)
        expect(row).to_contain_text("script report")
        expect(row).to_contain_text(text)
        row.get_by_role("button", name="Pause").click()
        expect(row).to_contain_text("paused")
        row.get_by_role("button", name="Resume").click()
        expect(row).not_to_contain_text("paused")
        row.get_by_role("button", name="Remove").click()
        expect(row).to_have_count(0)
