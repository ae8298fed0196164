"""Runs: the live list, filters in the URL, the timeline and the source line of each call."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from playwright.sync_api import expect
from tests.console.browser.conftest import OpenPage
from tests.support.processes import ServeProcess


@pytest.fixture(scope="module")
def failed_run(server: ServeProcess) -> str:
    body = {"code": "const x = 1;\nthrow new Error('it broke');", "label": "nightly"}
    return str(httpx2.post(server.url + "/run", json=body, timeout=60).json()["run_id"])


def test_new_run_appears_without_reloading(server: ServeProcess, open_page: OpenPage) -> None:
    page = open_page(f"{server.url}/#/runs")
    expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
    httpx2.post(server.url + "/run", json={"code": "return 1", "label": "fresh-run"}, timeout=60)
    expect(page.get_by_role("link", name="fresh-run")).to_be_visible()


def test_filters_are_in_the_url_and_select_runs(
    server: ServeProcess, failed_run: str, open_page: OpenPage
) -> None:
    httpx2.post(server.url + "/run", json={"code": "return 1", "label": "fine"}, timeout=60)
    page = open_page(f"{server.url}/#/runs")
    page.get_by_role("button", name=re.compile("^Failed")).click()
    expect(page).to_have_url(re.compile("status=failed"))
    expect(page.get_by_role("link", name="nightly").first).to_be_visible()
    expect(page.get_by_role("link", name="fine")).to_have_count(0)
    page.get_by_role("searchbox").fill("no such run anywhere")
    expect(page.get_by_text("No run matches these filters")).to_be_visible()
    page.get_by_role("button", name="Clear all").click()
    expect(page.get_by_role("link", name="fine").first).to_be_visible()


def test_failure_is_shown_with_its_line_in_the_code(
    server: ServeProcess, failed_run: str, open_page: OpenPage
) -> None:
    page = open_page(f"{server.url}/#/runs/{failed_run}")
    expect(page.get_by_role("alert")).to_contain_text("it broke")
    expect(page.locator(".line-error")).to_contain_text("throw new Error")
    expect(page.get_by_role("button", name=re.compile("^Ran"))).to_be_visible()


def test_recorded_code_is_edited_and_run_in_the_playground(
    server: ServeProcess, failed_run: str, open_page: OpenPage
) -> None:
    page = open_page(f"{server.url}/#/runs/{failed_run}")
    page.get_by_role("button", name="Edit and run").click()
    expect(page.get_by_label("Code", exact=True)).to_contain_text("it broke")


def test_run_is_replayed_without_side_effects(server: ServeProcess, open_page: OpenPage) -> None:
    body = {"code": "return 6 * 7", "label": "replayed"}
    run_id = httpx2.post(server.url + "/run", json=body, timeout=60).json()["run_id"]
    page = open_page(f"{server.url}/#/runs/{run_id}")
    page.get_by_role("button", name="Replay without side effects").click()
    expect(page).not_to_have_url(re.compile(run_id))
    expect(page.get_by_role("heading", level=1)).to_contain_text("completed")
    expect(page.get_by_role("link", name=run_id[:12])).to_be_visible()


def test_selected_runs_are_cancelled_or_run_again_together(server: ServeProcess, open_page: OpenPage) -> None:
    def run(code: str) -> httpx2.Response:
        body = {"code": code, "label": "bulk", "limits": {"timeout_ms": 60_000}}
        return httpx2.post(server.url + "/run", json=body, timeout=90)

    run("return 1")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run, "await new Promise((resolve) => setTimeout(resolve, 60_000))")
        page = open_page(f"{server.url}/#/runs?label=bulk")
        expect(page.get_by_text("running", exact=True)).to_be_visible()
        page.get_by_label("Select all loaded runs").check()
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("status")).to_contain_text("1 of 2 cancelled.")
        assert not waiting.result().json()["ok"]
    expect(page.get_by_text("2 selected")).to_have_count(0)
    page.get_by_label("Select all loaded runs").check()
    page.get_by_role("button", name="Run again").click()
    expect(page.get_by_role("status")).to_contain_text("2 of 2 started again.")


def test_files_of_a_run_are_shown_and_downloaded(server: ServeProcess, open_page: OpenPage) -> None:
    svg = '<svg xmlns="http://www.w3.org/2000/svg" width="7" height="5"/>'
    code = f"await files.write('a.csv', 'x,y'); display('{svg}', 'image/svg+xml')"
    run_id = httpx2.post(server.url + "/run", json={"code": code}, timeout=60).json()["run_id"]
    page = open_page(f"{server.url}/#/runs/{run_id}")
    page.get_by_role("tab", name="Files (2)").click()
    image = page.get_by_role("img", name="display-1.svg")
    expect(image).to_be_visible()
    assert image.evaluate("image => image.naturalWidth") == 7
    with page.expect_download() as download:
        page.get_by_role("link", name="a.csv").click()
    assert download.value.path().read_text() == "x,y"


def test_session_shows_its_variables_and_runs_a_turn(server: ServeProcess, open_page: OpenPage) -> None:
    page = open_page(f"{server.url}/#/sessions")
    page.get_by_label("Name of a new session").fill("work")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_text("The session has no variables yet")).to_be_visible()
    page.get_by_label("Code").fill("let prices = [3, 5]; prices.length")
    page.get_by_label("Code").press("Control+Enter")
    expect(page.get_by_role("row", name="prices Array")).to_be_visible()
    expect(page.locator(".code").filter(has_text="2")).to_be_visible()
    page.get_by_role("button", name="Undo the last turn").click()
    expect(page.get_by_text("The session has no variables yet")).to_be_visible()
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("There are no sessions yet")).to_be_visible()


def test_unknown_run_is_explained(server: ServeProcess, open_page: OpenPage) -> None:
    page = open_page(f"{server.url}/#/runs/{'0' * 32}")
    expect(page.get_by_text("There is no such run")).to_be_visible()
