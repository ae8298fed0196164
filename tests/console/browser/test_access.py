"""The view of users, keys and limits."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest
from playwright.sync_api import expect
from tests.console.browser.conftest import OpenPage
from tests.support.processes import ServeProcess, running_server

KEY = "operators-key"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    home = str(tmp_path_factory.mktemp("home"))
    with running_server(HUTCH_API_KEY=KEY, HUTCH_HOME=home, HUTCH_MAX_EXECUTIONS_PER_MINUTE="600") as running:
        yield running


def test_limits_of_a_user_and_a_key_are_edited(guarded: ServeProcess, open_page: OpenPage) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    with httpx2.Client(base_url=guarded.url, headers=headers, timeout=60) as operator:
        operator.post("/console/users", json={"name": "ann"})
        operator.post("/console/users/ann/keys", json={"name": "laptop"})
        link = operator.post("/console/links").json()["path"]
        page = open_page(guarded.url + link)
        expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
        page.goto(f"{guarded.url}/#/access/ann")
        expect(page.get_by_label("Per minute")).to_have_attribute("placeholder", "600")
        expect(page.get_by_text("Today: 0 executions, 0 CPU s")).to_be_visible()
        page.get_by_label("Per day", exact=True).fill("many")
        page.get_by_role("button", name="Save limits").click()
        expect(page.get_by_role("alert")).to_contain_text("max_executions_per_day")
        page.get_by_label("Per day", exact=True).fill("1000")
        page.get_by_label("Turns in queue").fill("2")
        page.get_by_role("button", name="Save limits").click()
        expect(page.get_by_text("Saved.")).to_be_visible()
        page.get_by_role("button", name="Limits", exact=True).click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Per minute").fill("30")
        dialog.get_by_role("button", name="Save limits").click()
        expect(page.get_by_text("30 / minute")).to_be_visible()
        shown = operator.get("/console/users/ann").json()
        assert shown["quota"] == {"max_executions_per_day": 1000, "weight": 2}
        assert shown["keys"][0]["quota"] == {"max_executions_per_minute": 30}
